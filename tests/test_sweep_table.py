"""What a sweep plans, prints and refuses, without any rank."""

import re
from io import BytesIO
from pathlib import Path

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import sweep
from collectives._sweep import devices
from collectives._sweep import plan as sweep_plan
from collectives._sweep import table as sweep_table
from collectives._sweep.launch import Group, Result
from collectives._sweep.messages import Gpus, Joined
from collectives._sweep.plan import Job, Point
from collectives.all_reduce import ALL_REDUCE
from ingest import nccl_tests
from ingest.log import numbered_lines
from ingest.nccl_tests import Table
from verifyscope import cli, stats
from verifyscope.errors import UsageError


def plan(
    backend: str = "gloo",
    dtype: str = "bfloat16",
    model: str | None = None,
    tokens: list[int] | None = None,
    least: int | None = None,
    most: int | None = None,
) -> list[int]:
    found = sweep_plan.points(
        backend=backend, dtype=dtype, model=model, tokens=tokens, min_bytes=least, max_bytes=most
    )
    assert [point.in_place for point in found] == [False, True] * (len(found) // 2)
    return [point.size_bytes for point in found if not point.in_place]


def job(*, dtype: str = "bfloat16", backend: str = "gloo", ranks: int = 4) -> Job:
    points = sweep_plan.points(
        backend=backend,
        dtype=dtype,
        model="kimi-k2.5",
        tokens=[4],
        min_bytes=32768,
        max_bytes=65536,
    )
    return Job(
        collective=ALL_REDUCE,
        backend=backend,
        ranks=ranks,
        dtype=dtype,
        points=points,
        iterations=20,
        warmup=5,
        timeout_s=60,
    )


def result(point: Point, seconds: float, wrong: int = 0) -> Result:
    samples = (seconds,) * 5
    return Result(
        point=point, samples=samples, summary=stats.summarise(samples), wrong=wrong, exposed=0
    )


def group(library: str = "2.13.0") -> Group:
    return Group(
        ranks=tuple(
            Joined(rank=r, pid=100 + r, device=r, bus="cpu", name="x86_64", library_version=library)
            for r in range(4)
        )
    )


def read_back(lines: list[str]) -> list[Table]:
    text = "\n".join(lines) + "\n"
    return list(nccl_tests.tables(numbered_lines(BytesIO(text.encode()))))


def test_sizes_of_a_model_are_tokens_times_hidden_times_bytes() -> None:
    assert plan(model="kimi-k2.5", tokens=[1, 4]) == [14336, 57344]
    assert plan(model="kimi-k2.5", tokens=[3]) == [43008]
    assert plan(model="llama-3.1-70b", tokens=[1], dtype="float32") == [32768]


def test_bounds_give_the_powers_of_two_between_them_and_both_add_up() -> None:
    assert plan(least=5000, most=65536) == [8192, 16384, 32768, 65536]
    assert plan(least=8192, most=16384, model="kimi-k2.5", tokens=[1]) == [8192, 14336, 16384]


def test_without_sizes_there_are_those_of_a_verify_pass_and_powers_around_them() -> None:
    found = plan()
    assert set(found) >= {14336, 28672, 57344, 114688, 229376, 8192, 2**20}
    assert found == sorted(set(found))
    assert plan(backend="nccl")[-1] == 64 * 2**20


def test_a_size_that_is_both_keeps_its_tokens() -> None:
    (point, _) = sweep_plan.points(
        backend="gloo",
        dtype="bfloat16",
        model="llama-3.1-70b",
        tokens=[1],
        min_bytes=16384,
        max_bytes=16384,
    )
    assert (point.size_bytes, point.tokens, point.model) == (16384, 1, "llama-3.1-70b")
    assert point.elements == 8192


def test_one_bound_alone_has_a_sensible_other() -> None:
    assert plan(most=1024) == [1024]
    assert plan(least=2**21) == [2**21]


def test_a_row_is_printed_as_nccl_tests_prints_it() -> None:
    known = job()
    point = known.points[2]
    line = sweep_table.row(known, result(point, 109.644e-6), result(known.points[3], 106.99e-6))
    assert line == (
        "       57344         28672  bfloat16     sum      -1"
        "   109.64    0.52    0.78       0   106.99    0.54    0.80       0"
    )


def test_what_was_not_run_and_the_time_of_wrong_values_are_not_printed() -> None:
    known = job(dtype="float32")
    line = sweep_table.row(known, result(known.points[0], 1e-3, wrong=12), None)
    assert line.split() == (
        ["32768", "8192", "float", "sum", "-1", "N/A", "N/A", "N/A", "12", *["N/A"] * 4]
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(15.6e-6, "15.60"), (9999.99e-6, "9999.99"), (10.64041, "10640410"), (0.0106404, "10640.4")],
)
def test_a_time_has_as_many_decimals_as_fit(seconds: float, text: str) -> None:
    known = job()
    assert sweep_table.row(known, result(known.points[0], seconds), None).split()[5] == text


@given(
    seconds=st.lists(st.floats(1e-6, 9.0), min_size=6, max_size=6),
    wrong=st.lists(st.sampled_from([0, 0, 1, 7]), min_size=6, max_size=6),
)
@settings(max_examples=50, deadline=None)
def test_a_printed_table_is_read_back_as_it_was_measured(
    seconds: list[float], wrong: list[int]
) -> None:
    known = job()
    results = [result(p, s, w) for p, s, w in zip(known.points, seconds, wrong, strict=True)]
    lines = [*sweep_table.header(known, group())]
    lines += [sweep_table.row(known, results[at], results[at + 1]) for at in (0, 2, 4)]
    lines += sweep_table.footer(known, results, concluded=True)
    (table,) = read_back(lines)
    assert (table.name, table.ranks, table.nodes) == ("all_reduce_perf", 4, 1)
    assert table.backend == "gloo"
    assert table.concluded
    assert table.out_of_bounds == sum(wrong)
    halves = [half for row in table.rows for half in (row.out_of_place, row.in_place)]
    for half, measured in zip(halves, results, strict=True):
        assert half is not None
        assert half.wrong == measured.wrong
        if measured.wrong:
            assert half.time_us is None
        else:
            assert half.time_us == pytest.approx(measured.summary.median * 1e6, rel=1e-3, abs=0.006)


def test_the_header_names_the_library_that_moved_the_data() -> None:
    (table,) = read_back([*sweep_table.header(job(backend="nccl"), group("2.27.5"))])
    assert (table.nccl_version, table.backend) == ("2.27.5", "nccl")
    first = next(iter(sweep_table.header(job(), group("2.13.0+cpu"))))
    assert re.fullmatch(r"# verifyscope version \S+ backend=gloo torch=2\.13\.0\+cpu", first)


def test_the_average_counts_both_directions_and_no_wrong_row() -> None:
    known = job()
    right, wrong = result(known.points[0], 32.768e-6), result(known.points[1], 1e-9, wrong=1)
    # 32,768 B in 32.768 us are 1 GB/s, 1.5 on the bus of four ranks.
    assert sweep_table.average(known, [right, wrong]) == pytest.approx(1.5)
    assert sweep_table.average(known, [wrong]) == 0


def sweep_refuses(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, arguments)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "mpi"], "unknown backend 'mpi'; known: gloo, nccl"),
        (["--dtype", "int4"], "unknown dtype 'int4'; known: bfloat16, float16, float32"),
        (["--model", "kimi-k9"], "unknown model 'kimi-k9'; known: kimi-k2"),
        (["--min-bytes", "8Q"], "'8Q' is not a whole number"),
        (["--max-bytes", "-1"], "'-1' is not a whole number"),
        (["--min-bytes", "64K", "--max-bytes", "8K"], "--min-bytes 65536 is above --max-bytes"),
        (["--min-bytes", "5", "--max-bytes", "7"], "no power of two lies between"),
        (["--min-bytes", "1"], "--min-bytes 1 holds no element of bfloat16; give 2 or more"),
        (["--max-bytes", "8T"], "8 processes need 317 TB for the largest size"),
        (["--tokens", "4"], "--tokens needs --model"),
        (["--model", "kimi-k2.5", "--tokens", "0"], "'0' is not a whole number above zero"),
        (["--model", "kimi-k2.5", "--tokens", "1,,2"], "'' is not a whole number"),
        (["--gpus", "0"], "--gpus 0 is out of range; give 1 to 256"),
        (["--ranks", "-3"], "--gpus -3 is out of range"),
        (["--gpus", "many"], "valid integer"),
        (["--iterations", "0"], "--iterations 0 is out of range"),
        (["--warmup", "-1"], "--warmup -1 is out of range"),
        (["--timeout", "0"], "--timeout 0 is out of range; give 1 to 86400"),
        (["--timeout", "nan"], "--timeout nan is out of range"),
        (["--algorithm", "ring"], "No such option"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = [] if "--backend" in arguments else ["--backend", "gloo"]
    assert sweep_refuses(*backend, *arguments) == 2
    printed = capsys.readouterr()
    (said,) = printed.err.splitlines()
    assert words in said
    assert printed.out == ""


def test_without_a_driver_the_answer_is_what_to_type_instead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def absent() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    monkeypatch.chdir(tmp_path)
    assert sweep_refuses("--gpus", "8") == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        "python -m collectives.sweep: --gpus 8, but no NVIDIA GPU was found; give "
        "--gpus 8 --backend gloo for 8 CPU processes"
    )
    assert list(tmp_path.iterdir()) == []


def test_with_fewer_gpus_the_answer_says_how_many_and_why() -> None:
    known = job(backend="nccl", ranks=8)
    with pytest.raises(UsageError, match=r"but 2 NVIDIA GPUs were found; give --gpus 2, or --gpus"):
        devices.require_gpus(known, Gpus(2))
    with pytest.raises(UsageError, match=r"no NVIDIA GPU was found \(torch is built without CUDA"):
        devices.require_gpus(known, Gpus(0, "torch is built without CUDA"))
    devices.require_gpus(known, Gpus(8))
