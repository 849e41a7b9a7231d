"""What a row of our own is held to, and what is predicted where it cannot run."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernels import all_ops
from kernels._points import Point
from suites._measure import Measured, Outcome, Timed
from suites._performance import held_to, nodes_of
from suites._records import Writer
from suites._suite import predicted
from suites.ceilings import Ceilings
from verifyscope import environment
from verifyscope.hardware import find_gpu
from verifyscope.roofline import Cost, roof

MEASURED = Ceilings(
    memory={"memory_read": 1.5e12}, matrix={"bfloat16": 4e14}, empty_s=5e-6, node_s=1.5e-6
)
READING = Cost(flops=1e9, read_bytes=29e6, written_bytes=1e6)  # 20 us of bytes, 2.5 us of flops
CASE = "t8-b1-l8k-eagle4-p16-h8x1-d128-bf16"
POINT = Point(
    part="attention",
    op="tree_attention",
    implementation="triton",
    kind="own",
    case=CASE,
    reason="needs a CUDA device; this machine has none",
)


def outcome(**more: Any) -> Outcome:
    op = all_ops()["tree_attention"]
    one = op.implementations["triton"]
    return Outcome(implementation=one, case=op.cases[0], status="ok", **more)


def timed(cache: Any = "cold", *, samples: tuple[float, ...] = (25e-6,), nodes: int = 82) -> Timed:
    return Timed(
        samples=samples,
        clock="cuda-graph",
        cache=cache,
        launch="graph",
        calls=41,
        sets=41,
        facts={"graph_nodes": nodes},
    )


def told(cost: Cost = READING, *, median_s: float = 25e-6, **more: Any) -> dict[str, Any]:
    return held_to(
        outcome(launches=2, **more),
        timed(),
        cost=cost,
        dtype="bfloat16",
        ceilings=MEASURED,
        median_s=median_s,
    )


def test_the_bound_is_the_roof_over_its_reachable_share_and_the_nodes() -> None:
    row = told()
    assert row["roof_s"] == pytest.approx(20e-6)
    assert (row["nodes"], row["node_s"], row["limited_by"]) == (2, 1.5e-6, "bytes")
    assert row["bound_s"] == pytest.approx(20e-6 / 0.85 + 2 * 1.5e-6)
    assert row["within_bound"] is True
    assert told(median_s=26.6e-6)["within_bound"] is False


def test_bytes_flops_or_nodes_limit_whichever_is_longest() -> None:
    many = Cost(flops=4e10, read_bytes=29e6, written_bytes=1e6)
    assert (told(many)["limited_by"], told(many)["roof_s"]) == ("flops", pytest.approx(1e-4))
    tiny = Cost(flops=1, read_bytes=1e5, written_bytes=0)
    assert told(tiny)["limited_by"] == "nodes"


def test_a_form_is_held_to_what_it_moves() -> None:
    eight_times = Cost(flops=1e9, read_bytes=8 * 29e6, written_bytes=1e6)
    row = told(form_cost=eight_times, median_s=150e-6)
    assert row["moved_bytes"] == 233e6
    assert row["roof_s"] == pytest.approx(233e6 / 1.5e12)
    assert row["within_bound"] is True


def test_without_a_ceiling_or_a_node_there_is_no_bound() -> None:
    nothing = held_to(
        outcome(), timed(), cost=READING, dtype="bfloat16", ceilings=Ceilings(), median_s=1.0
    )
    assert nothing == {}
    # The ceilings of a CPU have no node.
    row = held_to(
        outcome(launches=2),
        timed(),
        cost=READING,
        dtype="float32",
        ceilings=Ceilings(memory={"memory_read": 1.5e12}),
        median_s=1.0,
    )
    assert row == {
        "moved_bytes": 30e6,
        "roof_s": pytest.approx(20e-6),
        "nodes": 2,
        "limited_by": "bytes",
    }


def test_nodes_are_those_of_the_graph_where_nothing_is_said() -> None:
    assert nodes_of(outcome(launches=3), timed(nodes=82)) == 3
    assert nodes_of(outcome(), timed(nodes=82)) == 2
    assert nodes_of(outcome(), timed(nodes=83)) is None


def writer(*, cache_bytes: int = 10**6) -> Writer:
    here = environment.current()
    return Writer(environment=here, device="cuda", cache_bytes=cache_bytes, ceilings=MEASURED)


def measured(kind: str, cache: Any) -> dict[str, Any]:
    samples = (25e-6, 25e-6, 26e-6)
    given = Measured(
        cost=READING,
        outcomes={"triton": outcome(launches=2, timed=(timed(cache, samples=samples),))},
    )
    point = msgspec.structs.replace(POINT, kind=kind)
    return writer(cache_bytes=10**9).lines(point, given)[0].record.method


def test_cold_rows_of_our_own_say_it_and_baselines_and_warm_ones_do_not() -> None:
    assert measured("own", "cold")["within_bound"] is True
    assert measured("own", "flushed")["bound_s"] == pytest.approx(26.529e-6, rel=1e-4)
    assert "bound_s" not in measured("baseline-direct", "cold")
    assert "bound_s" not in measured("own", "warm")


def test_what_needs_a_gpu_is_predicted_and_never_measured() -> None:
    line = writer().predicted(POINT, gpu=find_gpu("rtx-pro-6000-server"))
    assert line is not None
    record = line.record
    assert (record.source, record.status, line.samples) == ("predicted", "ok", ())
    assert record.environment == writer().environment.id
    assert record.floor_s == pytest.approx(record.touched_bytes / 1597e9)  # type: ignore[operator]
    assert record.method["limited_by"] == "bytes"
    assert predicted(record) == (
        "predicted on rtx-pro-6000-server: 2.65 us and 2 launches, floor 2.65 us"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "baseline-direct", "implementation": "sdpa"},
        {"implementation": "nope"},
        {"case": "t1-b1-l5-chain-p1-h2x2-d16-bf16"},  # tiny: nobody waits for it
    ],
)
def test_nothing_else_is_predicted(other: dict[str, str]) -> None:
    point = msgspec.structs.replace(POINT, **other)
    assert writer().predicted(point, gpu=find_gpu("h200")) is None


def test_a_gpu_that_is_not_known_ends_the_suites_with_one_line(tmp_path: Path) -> None:
    from suites import conftest

    with pytest.raises(pytest.exit.Exception, match="unknown GPU 'h300'; known: ") as ended:
        conftest._named("h300")
    assert ended.value.returncode == 2


def test_a_roof_knows_what_is_not_known() -> None:
    alone = roof(READING, bytes_per_s=1.5e12, flops_per_s=None)
    assert (alone.flops_s, alone.nodes_s, alone.bound_s) == (None, None, None)
    assert alone.least_s == alone.roof_s == pytest.approx(20e-6)
