"""`python -m graphs.replay --predict`: the budget of the founding case, and what is not known."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from graphs import collective_times, prediction, replay
from graphs.collective_times import Times
from graphs.layers import forward
from graphs.prediction import Bandwidth, Prediction, summed
from verifyscope import cli, records
from verifyscope.errors import UsageError
from verifyscope.hardware import find_gpu
from verifyscope.models import TABLE
from verifyscope.records import Environment, Measurement, Source, Status
from verifyscope.runs import Appender

_ROOT = Path(__file__).resolve().parent.parent
_COMMAND = ["--model", "kimi-k2.5", "--tp", "8", "--predict", "rtx-pro-6000-server"]
_GIVEN = Bandwidth(bytes_per_s=1.5e12, source="given")


def _predicted(rows: int, times: Times | None = None, *, gpu: str = "h200") -> Prediction:
    asked = forward(TABLE["kimi-k2.5"], tp=8, rows=rows, context=8192)
    times = times or Times()
    return prediction.predict(asked, gpu=find_gpu(gpu), bandwidth=_GIVEN, times=times)


def _run(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.run(replay.app, "python -m graphs.replay", arguments)
    shown = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, shown.out, shown.err


def test_at_1_50_tb_a_second_the_weights_take_6_9_ms_and_3_rows_5_9() -> None:
    for rows, milliseconds in ((4, 6.9), (3, 5.9)):
        total = summed(_predicted(rows).lines)
        assert round(total.weight_bytes / 1.5e12 * 1e3, 1) == milliseconds
        assert round(total.kv_bytes / 1.5e12 * 1e3, 1) == 0.4
        floor_s = total.touched_bytes / 1.5e12
        assert total.seconds == pytest.approx(floor_s)  # so few rows are bound by bytes
        assert not total.complete


def test_an_all_reduce_time_counts_123_times_and_the_gather_stays_unknown() -> None:
    by_part = _predicted(4, Times(all_reduce_s=33e-6)).by_part()
    assert summed(by_part["all_reduce"]).seconds == pytest.approx(122 * 33e-6)
    assert summed(by_part["embedding_all_reduce"]).seconds == pytest.approx(33e-6)
    gather = summed(by_part["logits_all_gather"])
    assert not gather.complete
    assert gather.seconds == 0


def test_many_rows_are_bound_by_flops_at_the_peak_of_their_format() -> None:
    deepseek = forward(TABLE["deepseek-v3"], tp=8, rows=4096, context=8192)
    bandwidth = Bandwidth(bytes_per_s=1e18, source="so fast that flops alone count")

    def o_proj_s(gpu: str) -> float:
        found = prediction.predict(
            deepseek, gpu=find_gpu(gpu), bandwidth=bandwidth, times=Times()
        ).lines
        seconds = next(line.seconds for line in found if line.op.name == "o_proj")
        assert seconds is not None
        return seconds

    flops = 2 * 4096 * 2048 * 7168
    assert o_proj_s("h200") == pytest.approx(flops / 1978e12)
    assert o_proj_s("a100-pcie") == pytest.approx(flops / 312e12)  # it has no fp8


def test_the_printed_table_holds_the_numbers_of_the_founding_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*_COMMAND, "--rows", "4", "--context", "8192", "--bandwidth", "1.50T"]
    code, out, err = _run([*arguments, "--records", str(tmp_path / "p.jsonl")], capsys)
    assert code == 0
    rows = {tuple(line.split("\t")[2:4]): line.split("\t")[4:] for line in out.splitlines()}
    assert rows["dense_gemm", "attention_projections"][:3] == ["366", "51.8 MB", "3.16 GB"]
    assert rows["dense_gemm", "shared_expert"][1] == "11.0 MB"
    assert rows["moe", "routed_experts"][-4:] == ["3.85 ms", "52.7 %", "3.85 ms", "floor"]
    assert rows["all_reduce", "all_reduce"] == ["122", *["-"] * 7, "4.03 ms", "public"]
    assert rows["attention", "attention"][-4:] == ["387 us", "5.3 %", "3.02 ms", "public"]
    assert rows["sum", "sum"][2:4] == ["10.3 GB", "576 MB"]
    assert rows["sum", "sum"][-4:] == ["7.31 ms", "100.0 %", "14.1 ms", "public"]
    assert "31.0 distinct of 384 expected, 3.10 MB each" in out
    assert "# all_reduce: 122 x 33.0 us of 57,344 B = 4.03 ms, public: nccl 2.29.2 between" in out
    assert "# attention: 61 x 49.4 us = 3.02 ms, public: sglang 0.5.14 triton for 4 seq" in out
    assert "4 sequences, an upper bound for 4 rows" in out
    assert (
        "# byte floor: 10.3 GB of weights in 6.87 ms, 576 MB of KV in 384 us: 7.31 ms with "
        "activations, before communication"
    ) in out
    assert "# public components, the rest at its floor: 14.1 ms, which is no floor" in out
    assert "DRAM 1.50 TB/s: given by --bandwidth" in out
    assert err == f"records: {tmp_path / 'p.jsonl'}\n"


def test_records_times_their_calls_are_the_budget_and_share_one_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "p.jsonl"
    _run([*_COMMAND, "--rows", "3,4", "--all-reduce-us", "33", "--records", str(path)], capsys)
    environment, *found = records.read([path])
    assert isinstance(environment, Environment)
    every = [one for one in found if isinstance(one, Measurement)]
    assert len(every) == len(found)
    mine = [one for one in every if one.dims.get("rows") == 3]
    assert len({one.method["prediction"] for one in mine}) == 1
    assert {one.case for one in mine} == {"kimi-k2.5-tp8-rows3-context8192-rtx-pro-6000-server"}
    assert {one.source for one in every} == {"predicted"}
    assert len(
        {
            (one.op, one.implementation, one.dims.get("rows"), one.dims.get("against"))
            for one in every
        }
    ) == len(every)
    ours = [one for one in mine if one.implementation == "roofline"]
    weights = sum(float(one.dims.get("weight_bytes", 0)) * int(one.dims["calls"]) for one in ours)
    assert round(weights / 1e9, 1) == 8.9
    reduces = [one for one in ours if one.part == "all_reduce"]
    assert sum(int(one.dims["calls"]) for one in reduces) == 122
    assert {one.dims["message_bytes"] for one in reduces} == {43_008}
    assert {(one.median_s, one.floor_s, one.touched_bytes) for one in reduces} == {
        (33e-6, None, None)
    }
    gather = next(one for one in ours if one.part == "logits_all_gather")
    assert (gather.status, gather.median_s) == ("skipped", None)
    assert gather.reason == "not known: give a --sweep or --measured that has all_gather"
    (public,) = [one for one in mine if one.op == gather.op and one is not gather]
    assert (public.implementation, public.part) == ("public component", gather.part)
    assert public.median_s == pytest.approx((91.43 - 0.875 * (91.43 - 75.26)) * 1e-6)
    experts = next(one for one in ours if one.op == "experts_down")
    assert round(float(experts.dims["distinct_experts"]), 1) == 23.5
    assert experts.median_s == experts.floor_s
    assert experts.touched_bytes == pytest.approx(float(experts.median_s or 0) * 1500e9)
    assert experts.ranks == 8
    assert experts.environment == environment.id
    assert (experts.mode, experts.launch) == (None, None)


def test_json_holds_every_op_and_null_for_what_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep" / "p.json"
    arguments = [*_COMMAND, "--rows", "4", "--json", str(path)]
    _run([*arguments, "--records", str(tmp_path / "p.jsonl")], capsys)
    (case,) = json.loads(path.read_text())
    assert case["parts"]["all_reduce"]["seconds"] is None
    assert case["parts"]["lm_head"]["seconds"] > 0
    assert case["sum"]["complete"] is False
    o_proj = next(op for op in case["ops"] if op["name"] == "o_proj" and op["section"] == "experts")
    assert (o_proj["calls"], o_proj["weight_bytes"]) == (60, 14_680_064)
    assert o_proj["shape"] == {"batch": 1, "rows": 4, "inputs": 1024, "outputs": 7168}


def test_unlikely_input_is_said_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*_COMMAND, "--context", "1M", "--bandwidth", "2T"]
    code, _, err = _run([*arguments, "--records", str(tmp_path / "p.jsonl")], capsys)
    assert code == 0
    assert "2.00 TB/s is above the 1.60 TB/s of RTX PRO 6000" in err
    assert "context 1048576 is above the 262144 positions of kimi-k2.5" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "kimi-k2.5"],
            "give --device cpu or --device cuda to measure a stub, or --predict GPU",
        ),
        (["--predict", "h200"], "Missing option '--model'"),
        (["--model", "kimi-k9", "--predict", "h200"], "unknown model 'kimi-k9'; known: kimi-k2,"),
        (["--model", "kimi-k2", "--predict", "h900"], "unknown GPU 'h900'; known: rtx-pro-6000"),
        ([*_COMMAND, "--rows", "0"], "count '0' is not a whole number above zero"),
        ([*_COMMAND, "--rows=-4"], "count '-4' is not a whole number above zero"),
        ([*_COMMAND, "--rows", "4,"], "count '' is not a whole number above zero"),
        ([*_COMMAND, "--context", "8g"], "count '8g' is not a whole number above zero"),
        ([*_COMMAND, "--tp", "7"], "cannot be split over 7 ranks; it can over 1, 2, 4, 8"),
        ([*_COMMAND, "--bandwidth", "1.5"], "rate '1.5' is not a number of bytes a second of at"),
        ([*_COMMAND, "--all-reduce-us", "0"], "'0' is not a time above zero; give one like 33.5"),
        ([*_COMMAND, "--all-reduce-us", "nan"], "'nan' is not a time above zero"),
        ([*_COMMAND, "--all-reduce-us", "fast"], "'fast' is not a time above zero"),
        ([*_COMMAND, "--all-reduce-us", "3", "--sweep", "x"], "--all-reduce-us or --sweep, not"),
        ([*_COMMAND, "--tp", "1", "--all-reduce-us", "3"], "--tp 1 has no all-reduce; leave out"),
        ([*_COMMAND, "--sweep", "absent.jsonl"], "absent.jsonl does not exist; give a records"),
        ([*_COMMAND, "--records", "."], "--records . is a folder; name a file in it"),
        ([*_COMMAND, "--fast"], "No such option: --fast"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(arguments, capsys)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_the_command_runs_as_a_module_and_its_help_loads_neither_torch_nor_numpy(
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "graphs.replay"]
    helped = subprocess.run([*words, "--help"], cwd=_ROOT, capture_output=True, text=True)
    assert helped.returncode == 0
    assert "--all-reduce-us" in helped.stdout
    loaded = {line.rpartition("|")[2].strip() for line in helped.stderr.splitlines()}
    assert {"typer", "verifyscope.hardware"} <= loaded
    assert not loaded & {"torch", "numpy", "matplotlib", "rich"}


_TABLE_S = {16_384: 27e-6, 32_768: 29e-6, 65_536: 33e-6, 131_072: 60e-6}


def _reduce(
    size: int,
    seconds: float,
    *,
    ranks: int = 8,
    implementation: str = "nccl",
    part: str = "all_reduce",
    source: Source = "imported",
    status: Status = "ok",
    requested: dict[str, str] | None = None,
) -> Measurement:
    return Measurement(
        source=source,
        part=part,
        op=part,
        implementation=implementation,
        case=f"{size}B",
        status=status,
        reason=None if status == "ok" else "lost",
        dims={"bytes": size, "in_place": False},
        requested=requested or {},
        median_s=seconds if status == "ok" else None,
        ranks=ranks,
        environment="e",
        command="c",
    )


def _sweep(folder: Path, found: Sequence[Measurement]) -> Path:
    path = folder / "sweep.jsonl"
    file = Appender(path)
    for record in found:
        file.append(record)
    file.close()
    return path


def _table(folder: Path, *more: Measurement) -> Path:
    return _sweep(folder, [*(_reduce(size, s) for size, s in _TABLE_S.items()), *more])


def test_a_sweep_gives_the_time_between_its_neighbouring_sizes(tmp_path: Path) -> None:
    times = collective_times.from_sweep(_table(tmp_path), ranks=8)
    line = _predicted(4, times).by_part()["all_reduce"][0]
    assert line.seconds == pytest.approx(29e-6 + (57_344 - 32_768) / 32_768 * 4e-6)
    assert line.how == "between 32,768 and 65,536 B of sweep.jsonl (nccl, 8 ranks)"
    exact = _sweep(tmp_path, [_reduce(57_344, 31e-6), _reduce(57_344, 33e-6)])
    line = _predicted(4, collective_times.from_sweep(exact, ranks=8)).by_part()["all_reduce"][0]
    assert line.seconds == pytest.approx(32e-6)


def test_of_four_times_of_a_size_the_one_most_like_a_pass_counts(tmp_path: Path) -> None:
    times = [
        msgspec.structs.replace(_reduce(57_344, seconds), launch=launch, depth=depth)
        for seconds, launch, depth in (
            (40e-6, "eager", 1),
            (35e-6, "eager", 122),
            (30e-6, "graph", 1),
            (25e-6, "graph", 122),
        )
    ]
    for found, seconds in ((times, 25e-6), (times[:2], 35e-6), (times[:1], 40e-6)):
        (tmp_path / "sweep.jsonl").unlink(missing_ok=True)
        known = collective_times.from_sweep(_sweep(tmp_path, found), ranks=8)
        line = _predicted(4, known).by_part()["all_reduce"][0]
        assert line.seconds == pytest.approx(seconds)


def test_outside_of_the_measured_sizes_a_time_is_not_known(tmp_path: Path) -> None:
    times = collective_times.from_sweep(_table(tmp_path), ranks=8)
    for rows in (1, 16):  # 14,336 and 229,376 B
        line = _predicted(rows, times).by_part()["all_reduce"][0]
        assert line.seconds is None
        assert line.how == "sweep.jsonl (nccl, 8 ranks) measured 16.4 kB to 131 kB only"


def test_an_all_gather_has_its_own_times(tmp_path: Path) -> None:
    gathers = [_reduce(size, 1e-4, part="all_gather") for size in (2**20, 2**21)]
    by_part = _predicted(
        4, collective_times.from_sweep(_table(tmp_path, *gathers), ranks=8)
    ).by_part()
    assert by_part["logits_all_gather"][0].seconds == pytest.approx(1e-4)
    assert summed([line for lines in by_part.values() for line in lines]).complete


def test_only_what_ran_with_as_many_ranks_and_was_not_predicted_counts(tmp_path: Path) -> None:
    others = [
        _reduce(57_344, 1.0, ranks=4),
        _reduce(57_344, 1.0, source="predicted"),
        _reduce(57_344, 1.0, status="hang"),
        _reduce(57_344, 1.0, requested={"NCCL_PROTO": "LL"}),
    ]
    path = _table(tmp_path, *others)
    line = _predicted(4, collective_times.from_sweep(path, ranks=8)).by_part()["all_reduce"][0]
    assert line.seconds == pytest.approx(32e-6)
    with pytest.raises(UsageError, match=r"no all-reduce of 2 ranks \(only of 4, 8 ranks\)"):
        collective_times.from_sweep(path, ranks=2)


def test_all_reduces_of_others_and_combinations_stand_back_behind_the_backend_s_own_choice(
    tmp_path: Path,
) -> None:
    other = [
        _reduce(57_344, 1.0, implementation="symm_mem_one_shot"),
        _reduce(57_344, 1.0, implementation="cupy_nccl"),
        _reduce(57_344, 1.0, implementation="nccl ring/ll", requested={"NCCL_ALGO": "Ring"}),
    ]
    library = {"nccl": "2.30.7"}
    for asked in ({}, library):
        rows = [_reduce(57_344, 25e-6, requested=asked), *other]
        (tmp_path / "sweep.jsonl").unlink(missing_ok=True)
        known = collective_times.from_sweep(_sweep(tmp_path, rows), ranks=8)
        line = _predicted(4, known).by_part()["all_reduce"][0]
        assert line.seconds == pytest.approx(25e-6)


def test_two_ways_of_reducing_in_one_file_are_not_mixed(tmp_path: Path) -> None:
    path = _table(tmp_path, _reduce(57_344, 1e-3, implementation="gloo"))
    with pytest.raises(UsageError, match=r"holds several ways \(gloo; nccl\); give a file with"):
        collective_times.from_sweep(path, ranks=8)


def test_a_truncated_sweep_is_read_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _table(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    times = collective_times.from_sweep(path, ranks=8)
    assert times.points is not None
    assert list(times.points["all_reduce"]) == [16_384, 32_768, 65_536]
    assert "the last line is incomplete" in capsys.readouterr().err
