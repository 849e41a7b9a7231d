"""What a sweep plans, prints and refuses, without any rank."""

import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import sweep
from collectives._sweep import backend, devices, overview
from collectives._sweep import points as sweep_points
from collectives._sweep.combination import Combination
from collectives._sweep.messages import Gpus
from collectives._sweep.spec import Spec
from collectives._sweep.state import Row, State
from collectives._sweep.table import Table as SweepTable
from collectives.operations.all_reduce import ALL_REDUCE
from ingest import nccl_tests
from ingest.log import numbered_lines
from ingest.nccl_tests import Table
from tests.sweep_jobs import EAGER, IN_A_ROW, a_spec, a_state, probed, some_points, timed
from verifyscope import cli
from verifyscope.errors import UsageError


def plan(
    on_device: bool = False,
    dtype: str = "bfloat16",
    model: str | None = None,
    tokens: list[int] | None = None,
    least: int | None = None,
    most: int | None = None,
) -> list[int]:
    found = sweep_points.points(
        on_device=on_device,
        dtype=dtype,
        model=model,
        tokens=tokens,
        min_bytes=least,
        max_bytes=most,
    )
    assert [point.in_place for point in found] == [False, True] * (len(found) // 2)
    return [point.size_bytes for point in found if not point.in_place]


def printed(spec: Spec) -> SweepTable:
    return SweepTable(spec, backend=backend.find(spec.backend), collective=ALL_REDUCE)


def measured(
    spec: Spec, seconds: list[float], wrong: list[int] | None = None, library: str = "2.13.0"
) -> State:
    """Return a sweep whose points took `seconds` in each call of three starts."""
    state = a_state(spec)
    state.take(probed(spec, library=library))
    for start in range(3):
        for point, took in enumerate(seconds):
            bad = wrong[point] if wrong and start == 0 else 0
            state.take(timed(point, (took,) * 5, start=start, wrong=bad))
    return state


def eager(state: State) -> list[Row]:
    return [row for row in state.rows(0) if row.timing == EAGER]


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
    assert plan(on_device=True)[-1] == 64 * 2**20


def test_a_size_that_is_both_keeps_its_tokens() -> None:
    (point, _) = sweep_points.points(
        on_device=False,
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
    spec = a_spec()
    state = measured(spec, [1e-3, 1e-3, 109.644e-6, 106.99e-6])
    assert list(printed(spec).rows(eager(state)))[1] == (
        "       57344         28672  bfloat16     sum      -1"
        "   109.64    0.52    0.78       0   106.99    0.54    0.80       0"
    )


def test_what_was_not_run_and_the_time_of_wrong_values_are_not_printed() -> None:
    spec = a_spec(dtype="float32", points=some_points(dtype="float32", sizes=(32768, 32768)))
    (line,) = printed(spec).rows(eager(measured(spec, [1e-3], [12])))
    assert line.split() == (
        ["32768", "8192", "float", "sum", "-1", "N/A", "N/A", "N/A", "12", *["N/A"] * 4]
    )


def test_a_combination_without_a_time_has_no_rows() -> None:
    spec = a_spec()
    state = a_state(spec)
    state.take(probed(spec, status="ignored", reason="asked for ring/ll, NCCL took tree/ll"))
    assert list(printed(spec).rows(list(state.rows(0)))) == []
    said = [line for line in overview.lines(state) if line.endswith("65536 B)")]
    assert said == [
        "# gloo: ignored: asked for ring/ll, NCCL took tree/ll "
        "(eager, eager x 4, graph, graph x 4; 3 sizes, 32768 to 65536 B)"
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(15.6e-6, "15.60"), (9999.99e-6, "9999.99"), (10.64041, "10640410"), (0.0106404, "10640.4")],
)
def test_a_time_has_as_many_decimals_as_fit(seconds: float, text: str) -> None:
    spec = a_spec()
    row, *_ = printed(spec).rows(eager(measured(spec, [seconds])))
    assert row.split()[5] == text


@given(
    seconds=st.lists(st.floats(1e-6, 9.0), min_size=6, max_size=6),
    wrong=st.lists(st.sampled_from([0, 0, 1, 7]), min_size=6, max_size=6),
)
@settings(max_examples=30, deadline=None)
def test_a_printed_table_is_read_back_as_it_was_measured(
    seconds: list[float], wrong: list[int]
) -> None:
    spec = a_spec()
    state, made = measured(spec, seconds, wrong), printed(spec)
    rows = eager(state)
    lines = [*made.header(spec.combinations[0], state.probes[0]), *made.rows(rows)]
    lines += [*made.footer(rows, concluded=True), *overview.lines(state)]
    (table,) = read_back(lines)
    assert (table.name, table.ranks, table.nodes) == ("all_reduce_perf", 4, 1)
    assert table.backend == "gloo"
    assert table.concluded
    assert table.out_of_bounds == sum(wrong)
    halves = [half for row in table.rows for half in (row.out_of_place, row.in_place)]
    for half, row in zip(halves, rows, strict=True):
        assert half is not None
        assert half.wrong == row.wrong
        if row.summary is None:
            assert half.time_us is None
        else:
            assert half.time_us == pytest.approx(row.summary.median * 1e6, rel=1e-3, abs=0.006)


def test_the_header_names_the_library_and_the_combination() -> None:
    known = Combination(backend="nccl", algorithm="ring", protocol="ll", channels=4)
    spec = a_spec(backend="nccl", combinations=(known,))
    state = measured(spec, [], library="2.27.5+cuda12.9")
    made = printed(spec)
    (table,) = read_back([*made.header(known, state.probes[0])])
    assert (table.nccl_version, table.backend) == ("2.27.5", "nccl ring/ll channels=4")
    bare = a_spec()
    first = next(iter(printed(bare).header(bare.combinations[0], probed(bare, library="2.13+cpu"))))
    assert re.fullmatch(r"# verifyscope version \S+ backend=gloo torch=2\.13\+cpu", first)


def test_ranks_of_several_machines_are_on_several_nodes() -> None:
    spec = a_spec(local_ranks=2)
    state = measured(spec, [])
    (table,) = read_back([*printed(spec).header(spec.combinations[0], state.probes[0])])
    assert (table.ranks, table.nodes) == (4, 2)


def test_the_average_counts_both_directions_and_no_wrong_row() -> None:
    spec = a_spec()
    # 32,768 B in 32.768 us are 1 GB/s, 1.5 on the bus of four ranks.
    rows = eager(measured(spec, [32.768e-6, 1e-9], [0, 1]))
    assert printed(spec).average(rows) == pytest.approx(1.5)
    assert printed(spec).average(rows[1:]) == 0


def test_the_overview_sets_all_times_of_a_size_side_by_side() -> None:
    ring = Combination(backend="nccl", algorithm="ring", protocol="ll")
    known = Combination(backend="nccl", algorithm="nvls", verdict="unsupported", reason="no switch")
    spec = a_spec(
        combinations=(Combination(backend="nccl"), ring, known),
        points=some_points(sizes=(1024, 1024)),
    )
    state = a_state(spec)
    state.take(probed(spec, effective={"algorithm": "tree", "protocol": "ll", "channels": "2"}))
    state.take(probed(spec, 1, effective={"algorithm": "ring", "protocol": "ll"}))
    for start in range(3):
        state.take(timed(1, (20e-6,), start=start))
        state.take(timed(1, (10e-6,), start=start, at=1))
        state.take(timed(1, (8.5e-6,), start=start, at=1, timing=IN_A_ROW))
    assert list(overview.lines(state))[2:5] == [
        "# bytes  combination   ran         eager  eager x 4  status",
        "#  1024  nccl          tree/ll x2  20.00          -  ok",
        "#  1024  nccl ring/ll  ring/ll     10.00       8.50  ok",
    ]
    assert list(overview.lines(state))[-1] == "# nccl nvls: not run: no switch"


def sweep_refuses(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, arguments)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "mpi"], "unknown backend 'mpi'; known: gloo, nccl"),
        (["--dtype", "int4"], "unknown dtype 'int4'; known: bfloat16, float16, float32, float8"),
        (["--model", "kimi-k9"], "unknown model 'kimi-k9'; known: kimi-k2"),
        (["--min-bytes", "8Q"], "'8Q' is not a whole number"),
        (["--max-bytes", "-1"], "'-1' is not a whole number"),
        (["--min-bytes", "64K", "--max-bytes", "8K"], "--min-bytes 65536 is above --max-bytes"),
        (["--min-bytes", "5", "--max-bytes", "7"], "no power of two lies between"),
        (["--min-bytes", "1"], "--min-bytes 1 holds no element of bfloat16; give 2 or more"),
        (["--max-bytes", "8T"], "8 processes need 317 TB for the largest size"),
        (["--tokens", "4"], "--rows needs --model"),
        (["--model", "kimi-k2.5", "--tokens", "0"], "'0' is not a whole number above zero"),
        (["--model", "kimi-k2.5", "--tokens", "1,,2"], "'' is not a whole number"),
        (["--depth", "1"], "--depth 1 is out of range; give 2 to 10000"),
        (["--starts", "2"], "--starts 2 is out of range; give 3 to 100"),
        (["--batches", "0"], "--batches 0 is out of range"),
        (["--stress-calls", "0"], "--stress-calls 0 is out of range"),
        (["--dtype", "float8_e4m3fn"], "gloo has no float8_e4m3fn; give --backend nccl"),
        (["--algos", "rings"], "unknown algorithm 'rings'; known: ring, tree,"),
        (["--protos", "^simple"], "'^simple' would switch LL128 on past its safety gate"),
        (["--protos", "ll64"], "unknown protocol 'll64'; known: ll, ll128, simple, ^ll128, def"),
        (["--channels", "65"], "--channels 65 is out of range; give 1 to 64"),
        (["--p2p-level", "2"], "--p2p-level 2 means different things to different guides; give"),
        (["--p2p-level", "PCI"], "unknown P2P level 'PCI'; known: LOC, NVL, PIX, PXB, PHB, SYS"),
        (["--p2p", "maybe"], "unknown --p2p 'maybe'; known: on, off"),
        (["--graph-file", "absent.xml"], "cannot read --graph-file absent.xml: No such file"),
        (["--graph-file", "README.md"], "--graph-file README.md has no <graphs>; give what"),
        (["--gpu-order", "0,1"], "--gpu-order names 2 devices for 8 ranks of a machine"),
        (["--gpu-order", "0,0"], "--gpu-order 0,0 names a device twice"),
        (["--gpu-order", "a"], "--gpu-order a is no list of device numbers"),
        (["--bind", "core"], "unknown --bind 'core'; known: numa, none"),
        (["--launch-option", "fast=1"], "unknown launch option 'fast'; known: mode, graph-mixing,"),
        (["--launch-option", "graph-mixing=2"], "graph-mixing takes 0 or 1"),
        (["--resume", "nowhere"], "--resume nowhere: no nowhere.journal there; give the folder"),
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
    named = {"--backend", "--resume"} & {*arguments}
    backend = [] if named else ["--backend", "gloo"]
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
    known = a_spec(backend="nccl", ranks=8, local_ranks=8)
    with pytest.raises(UsageError, match=r"but 2 NVIDIA GPUs were found; give --gpus 2, or --gpus"):
        devices.require_gpus(known, Gpus(2))
    with pytest.raises(UsageError, match=r"no NVIDIA GPU was found \(torch is built without CUDA"):
        devices.require_gpus(known, Gpus(0, "torch is built without CUDA"))
    devices.require_gpus(known, Gpus(8))
    ordered = Combination(backend="nccl", gpu_order=(8, 1, 2, 3, 4, 5, 6, 7))
    with pytest.raises(UsageError, match="--gpu-order names device 8, but 8 NVIDIA GPUs were"):
        devices.require_gpus(replace(known, combinations=(ordered,)), Gpus(8))


def test_sums_of_float8_are_measured_only_where_they_can_be_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sweep_refuses("--dtype", "float8_e5m2", "--gpus", "9", "--plan") == 2
    assert "sums of float8_e5m2 over 9 ranks cannot be checked" in capsys.readouterr().err
    assert sweep_refuses("--dtype", "float8_e5m2", "--gpus", "8", "--plan") == 0
