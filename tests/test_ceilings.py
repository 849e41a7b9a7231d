"""What rows are held to: the right ceiling, the floor it gives, and when a time is void."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from kernels._points import Point
from kernels._registry import Case, Cost, Op
from kernels.ceilings import empty_kernel, matrix_ceiling, memory_ceiling
from suites import _records, ceilings
from suites._measure import Measured, Outcome, Planned, Timed
from suites._records import Writer
from suites.ceilings import Ceilings
from tests.timed_ops import doubling
from verifyscope import environment
from verifyscope.alternate import Alternation, StopRule
from verifyscope.records import Measurement
from verifyscope.records import read as read_records

ROOT = Path(__file__).resolve().parent.parent
MEASURED = Ceilings(
    memory={"memory_read": 1.0e12, "memory_write": 1.2e12, "memory_copy": 1.1e12},
    matrix={"bfloat16": 1.0e14},
    empty_s=2e-6,
)
READING = Cost(flops=0, read_bytes=9.9e9, written_bytes=0.1e9)
COPYING = Cost(flops=0, read_bytes=5e9, written_bytes=5e9)


def test_the_ceiling_is_the_best_of_all_but_for_what_mostly_reads() -> None:
    assert MEASURED.memory_for(COPYING) == ("memory_write", 1.2e12)
    assert MEASURED.memory_for(READING) == ("memory_read", 1.0e12)
    a_tenth = Cost(flops=0, read_bytes=9e9, written_bytes=1e9)
    assert MEASURED.memory_for(a_tenth) == ("memory_write", 1.2e12)


def test_without_a_read_ceiling_the_best_of_the_others_holds() -> None:
    only = Ceilings(memory={"memory_copy": 1.1e12})
    assert only.memory_for(READING) == ("memory_copy", 1.1e12)


def test_a_time_is_void_above_102_percent_and_only_there() -> None:
    assert MEASURED.why_void(READING, 10e9 / 1.0199e12) is None
    reason = MEASURED.why_void(READING, 10e9 / 1.0201e12)
    assert reason == (
        "1.02 TB/s is 102.0 % of the measured memory_read ceiling of 1.00 TB/s: "
        "not all of it came from memory"
    )


def test_without_a_ceiling_nothing_is_void_and_nothing_has_a_floor() -> None:
    assert Ceilings().why_void(READING, 1e-12) is None
    assert Ceilings().floor_s(READING, "bfloat16") is None
    assert Ceilings().method_for(READING) == {}


def test_the_floor_is_bytes_over_the_ceiling_or_flops_over_the_peak() -> None:
    assert MEASURED.floor_s(READING, "bfloat16") == 0.01
    heavy = replace(READING, flops=2e12)
    assert MEASURED.floor_s(heavy, "bfloat16") == 0.02
    assert MEASURED.floor_s(heavy, "float8_e4m3fn") == 0.01


def measurement(op: str, part: str, median_s: float, **more: Any) -> Measurement:
    here = environment.current()
    fields: dict[str, Any] = {"implementation": "torch", "case": "1G", "status": "ok"}
    return Measurement(
        source="measured",
        part=part,
        op=op,
        median_s=median_s,
        environment=here.id,
        command=here.command,
        **(fields | more),
    )


def test_the_best_implementation_makes_the_ceiling() -> None:
    memory, matrix = "memory_ceiling", "matrix_ceiling"
    found = ceilings.from_records(
        [
            measurement("memory_read", memory, 2e-3, touched_bytes=2e9),
            measurement("memory_read", memory, 1e-3, touched_bytes=2e9),
            measurement("memory_copy", memory, 1e-6, touched_bytes=2e9, flags=("fits-cache",)),
            measurement("matrix_ceiling", matrix, 1.0, flops=3e12, dims={"dtype": "float16"}),
            measurement("matrix_ceiling", matrix, 2.0, flops=3e12, dims={"dtype": "float16"}),
            measurement("empty_kernel", "empty_kernel", 3e-6),
            measurement("empty_kernel", "empty_kernel", 2e-6),
            measurement("empty_kernel", "empty_kernel", 1.2e-6, launch="graph", cache="warm"),
        ]
    )
    assert found == Ceilings(
        memory={"memory_read": 2e12}, matrix={"float16": 3e12}, empty_s=2e-6, node_s=1.2e-6
    )


def test_a_ceiling_walks_three_caches_and_a_gibibyte() -> None:
    gigabyte = Cost(flops=0, read_bytes=2.0**30, written_bytes=0)
    assert ceilings.is_ceiling_of_memory(gigabyte, 128 * 2**20, device="cuda")
    assert not ceilings.is_ceiling_of_memory(gigabyte, 400 * 2**20, device="cuda")
    a_quarter = Cost(flops=0, read_bytes=2.0**28, written_bytes=0)
    assert not ceilings.is_ceiling_of_memory(a_quarter, 32 * 2**20, device="cuda")
    assert ceilings.is_ceiling_of_memory(a_quarter, 32 * 2**20, device="cpu")
    assert ceilings.is_ceiling_of_memory(a_quarter, None, device="cpu")
    assert not ceilings.is_ceiling_of_memory(a_quarter, 86 * 2**20, device="cpu")


# From an outcome to its records.

POINT = Point(
    part="activation", op="doubling", implementation="one", kind="own", case="few", reason=None
)
COST = Cost(flops=8, read_bytes=1e9, written_bytes=1e9)


@pytest.fixture(autouse=True)
def _doubling_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_records, "all_ops", lambda: {"doubling": doubling.OP})
    case = doubling.OP.cases[0]
    monkeypatch.setattr(_records, "resolve", lambda point: (None, case))


def timed(cache: Any, samples: tuple[float, ...], launch: Any = "graph") -> Timed:
    return Timed(
        samples=samples,
        clock="cuda-graph",
        cache=cache,
        launch=launch,
        calls=41,
        sets=41,
        facts={"graph_nodes": 82},
    )


def measured(*timings: Timed, planned: tuple[Planned, ...] = (), **more: Any) -> Measured:
    outcome = Outcome(
        implementation=next(iter(doubling.OP.implementations.values())),
        case=doubling.OP.cases[0],
        status="ok",
        timed=timings,
        facts={"backend": "fa2"},
        planned=planned,
    )
    return Measured(
        cost=COST,
        outcomes={"one": outcome},
        alternation=Alternation(samples={}, failures={}, rounds=9, stopped_by="width"),
        rule=StopRule(time_cap_s=2.0, target_width=0.01, min_rounds=5),
        **more,
    )


def writer(*, cache_bytes: int | None = 10**6, device: str = "cuda") -> Writer:
    return Writer(
        environment=environment.current(),
        device=device,
        cache_bytes=cache_bytes,
        ceilings=MEASURED,
    )


def test_a_cold_row_says_how_it_was_measured_and_what_it_is_held_to() -> None:
    samples = (2e-3, 3e-3, 4e-3)
    (line,) = writer().lines(POINT, measured(timed("cold", samples)))
    record = line.record
    assert line.samples == samples
    assert (record.status, record.median_s, record.low_s, record.high_s) == (
        "ok", 3e-3, 2e-3, 4e-3,
    )  # fmt: skip
    assert (record.cache, record.launch, record.depth, record.count) == ("cold", "graph", 41, 3)
    assert record.touched_bytes == 2e9
    assert record.floor_s == pytest.approx(2e9 / 1.2e12)
    assert record.effective == {"backend": "fa2"}
    assert record.dims == {"rows": 1, "numbers": 8}
    assert record.method == {
        "clock": "cuda-graph",
        "calls_per_sample": 41,
        "input_sets": 41,
        "graph_nodes": 82,
        "rounds": 9,
        "alternated": "one",
        "target_width": 0.01,
        "min_rounds": 5,
        "warm_up_s": 0.0,
        "time_cap_s": 2.0,
        "stopped_by": "width",
        "ceiling": "memory_write",
        "ceiling_bytes_per_s": 1.2e12,
        "moved_bytes": 2e9,
        "roof_s": record.floor_s,
        "nodes": 2,
        "limited_by": "bytes",
    }


@pytest.mark.parametrize("cache", ["cold", "flushed"])
def test_a_row_beyond_the_ceiling_is_void_and_leaves_no_time(cache: str) -> None:
    (line,) = writer().lines(POINT, measured(timed(cache, (1e-3, 1e-3, 1e-3))))
    assert (line.record.status, line.record.median_s, line.samples) == ("void", None, ())
    assert "166.7 % of the measured memory_write ceiling" in (line.record.reason or "")
    assert line.record.floor_s is not None


def test_a_warm_row_may_be_faster_than_memory_and_has_no_floor_of_bytes() -> None:
    given = measured(timed("cold", (3e-3,)), timed("warm", (1e-3,)))
    cold, warm = writer(cache_bytes=10**9).lines(POINT, given)
    assert (warm.record.cache, warm.record.status, warm.record.median_s) == ("warm", "ok", 1e-3)
    assert warm.record.floor_s is None
    assert cold.record.floor_s is not None


def test_a_warm_row_far_above_the_cache_has_the_floor_all_the_same() -> None:
    (line,) = writer(cache_bytes=2**25, device="cpu").lines(POINT, measured(timed("warm", (3e-3,))))
    assert line.record.floor_s == pytest.approx(2e9 / 1.2e12)


def test_a_plan_is_a_row_of_its_own_and_so_is_each_stage() -> None:
    planned = (
        Planned(stage=None, samples=(5e-4, 7e-4)),
        Planned(stage="mask", samples=(1e-4, 3e-4)),
        Planned(stage="pack", samples=(4e-4,), within="plan"),
    )
    _, whole, mask, pack = writer().lines(POINT, measured(timed("cold", (3e-3,)), planned=planned))
    record = whole.record
    assert (record.part, record.op, record.implementation) == ("metadata", "doubling_plan", "one")
    assert record.median_s == pytest.approx(6e-4)
    assert (record.launch, whole.samples) == ("eager", (5e-4, 7e-4))
    assert record.touched_bytes is None
    assert record.method == {"clock": "perf-counter", "calls_per_sample": 1}
    assert (mask.record.part, mask.record.op) == ("metadata", "doubling_plan_mask")
    assert mask.record.method["stage"] == "mask"
    assert mask.record.median_s == pytest.approx(2e-4)
    assert (pack.record.method["stage"], pack.record.method["within"]) == ("pack", "plan")


@pytest.mark.parametrize(
    ("part", "case", "flags"),
    [
        ("matrix_ceiling", matrix_ceiling.OP.cases[0], ("too-small",)),
        ("matrix_ceiling", matrix_ceiling.OP.cases[1], ()),
        ("memory_ceiling", memory_ceiling.READ.cases[1], ()),
    ],
)
def test_a_tiny_product_is_no_ceiling_and_says_so(
    part: str, case: Case, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_records, "resolve", lambda point: (None, case))
    point = msgspec.structs.replace(POINT, part=part)
    (line,) = writer().lines(point, measured(timed("warm", (3e-3,))))
    assert line.record.flags == flags
    # A ceiling has no floor: it makes the others'.
    assert line.record.floor_s is None


def test_throttling_and_doubt_are_flags() -> None:
    given = measured(
        timed("cold", (3e-3,)),
        throttled=("power",),
        in_doubt="after a failed capture of a/b",
        conditions={"sm_mhz_min": 900},
    )
    record = writer().lines(POINT, given)[0].record
    assert record.flags == ("throttled", "in-doubt")
    assert record.conditions == {"sm_mhz_min": 900}
    assert record.method["in_doubt"] == "after a failed capture of a/b"


# The ops that make the ceilings, on tiny cases with what this machine has.

OPS = (
    memory_ceiling.READ,
    memory_ceiling.WRITE,
    memory_ceiling.COPY,
    matrix_ceiling.OP,
    empty_kernel.OP,
)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_each_has_a_case_for_a_gpu_for_a_cpu_and_a_tiny_one(op: Op) -> None:
    assert any(case.tiny for case in op.cases)
    assert any(case.cpu for case in op.cases)
    if op is not empty_kernel.OP:
        assert any(not case.tiny and not case.cpu for case in op.cases)


@pytest.mark.parametrize(
    ("op", "touched_bytes"),
    [
        (memory_ceiling.READ, 3 * 65536 + 3 * 4),
        (memory_ceiling.WRITE, 3 * 65536 + 4),
        (memory_ceiling.COPY, 2 * 3 * 65536),
        (matrix_ceiling.OP, 3 * 48 * 48 * 4),
        (empty_kernel.OP, 8),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_touched_bytes_are_what_is_read_and_written(op: Op, touched_bytes: int) -> None:
    tiny = next(case for case in op.cases if case.tiny)
    assert op.cost(op.inputs(tiny, torch.device("cpu"))).touched_bytes == touched_bytes


def test_a_product_of_matrices_is_two_flops_a_multiply_add() -> None:
    tiny = matrix_ceiling.OP.cases[0]
    assert matrix_ceiling.OP.cost(matrix_ceiling.OP.inputs(tiny, torch.device("cpu"))).flops == (
        2 * 48**3
    )


def test_the_command_measures_and_records_the_ceilings_of_this_machine(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    command = [sys.executable, "-m", "suites.ceilings", "--records", str(records)]
    command += ["--max-time-s", "0.05"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    found = [record for record in read_records([records]) if isinstance(record, Measurement)]
    assert {(row[0], row[1], row[6]) for row in rows} == {
        (record.op, record.implementation, record.status) for record in found
    }
    assert {record.op for record in found if record.status == "ok"} >= {op.name for op in OPS}
    for record in found:
        assert (record.median_s is None) == (record.status != "ok")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--records", "{here}"], "is a folder; name a file in it"),
        (["--max-time-s", "-1"], "--max-time-s -1.0 is no time; give seconds above 0, such as 1"),
    ],
)
def test_the_command_refuses_what_it_cannot_do_in_one_line(
    given: list[str], said: str, tmp_path: Path
) -> None:
    words = [word.format(here=tmp_path) for word in given]
    command = [sys.executable, "-m", "suites.ceilings", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
