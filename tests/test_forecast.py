"""`python -m graphs.replay --predict` beyond the floor: whose times, the founding case, a trace."""

import json
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from ingest import kineto, trace
from ingest.log import Log
from ingest.opening import Unreadable
from tests.report_sample import CPU, GPU, kernel, write
from tests.test_replay import _run as run
from verifyscope import cli, passes, predictions, records
from verifyscope.records import Measurement, Record, Value

_FOUNDING = ["--model", "kimi-k2.5", "--tp", "8", "--predict", "rtx-pro-6000-server"]
_ROOT = Path(__file__).resolve().parent.parent
_SERVER = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what is printed on stdout; the records are in r.jsonl."""
    code, out, err = run([*_FOUNDING, "--records", "r.jsonl", *arguments], capsys)
    assert code == 0, err
    return out


def rows(out: str, what: str) -> dict[str, list[str]]:
    """Return the cells of a table by the name of each row."""
    lines = (line.split("\t") for line in out.splitlines() if not line.startswith("#"))
    return {line[3]: line[4:] for line in lines if line[2] == what}


def recorded(op: str) -> list[Measurement]:
    found = [one for one in records.read([Path("r.jsonl")]) if isinstance(one, Measurement)]
    return [one for one in found if one.op == op]


def test_the_bandwidth_is_what_others_reached_and_its_nominal_one_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = ask(capsys, "--rows", "4", "--context", "8192")
    (line,) = [line for line in out.splitlines() if line.startswith("# DRAM")]
    assert line.startswith("# DRAM 1.50 TB/s: reached by others, 1.47 TB/s to 1.53 TB/s in 19")
    assert "nominal 1,597 GB/s (clocks under load" in line
    _, out, _ = run(["--model", "kimi-k2.5", "--predict", "h200", "--records", "r.jsonl"], capsys)
    assert "# DRAM 4.80 TB/s: nominal, 4,800 GB/s (system files" in out


def test_the_field_is_told_for_orientation_where_it_is_the_same_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = ask(capsys, "--rows", "4")
    assert "# orientation, of the field: plain decode 11.5 to 12.1 ms a token" in out
    assert "# orientation, of the field: best whole cycles 19 to 21 ms" in out
    assert "routed_experts, attention_projections, router, shared_expert" in out
    assert "taken with the weights in the L2 and cannot be cold" in out
    assert "orientation" not in ask(capsys, "--rows", "4", "--tp", "4")


def test_the_founding_case_is_shown_with_its_excess_by_hypothesis_over_two_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = ask(capsys, "--rows", "3", "--context", "8192")
    assert "23.5 distinct of 384 expected" in out
    assert "8.91 GB of weights in 5.94 ms" in out
    assert "122 x 30.9 us of 43,008 B = 3.77 ms" in out
    assert "# observed 29.5 ms: the founding case's log" in out
    found = rows(out, "excess")
    # 10.45 ms over 19.04; 16.62 ms over the 12.87 that are predicted with components.
    assert found["all-reduces"][:2] == [
        "10.4 ms: +85.7 us for an all-reduce, 122 of them",
        "16.6 ms: +136 us for an all-reduce, 122 of them",
    ]
    assert found["launch gaps"][:2] == [
        "10.4 ms: +171 us for a layer, 61 of them",
        "16.6 ms: +272 us for a layer, 61 of them",
    ]
    assert found["attention read T times"][0].endswith("for a further read, 122 of them")
    assert all(len(cells) == 4 and all(cells) for cells in found.values())
    each = {(one.implementation, one.dims["against"]): one for one in recorded("excess")}
    reduces = each["all-reduces", "earlier run"]
    assert reduces.median_s == pytest.approx(10.45e-3 / 122)
    assert reduces.dims["observed_s"] == 29.49e-3
    assert len(each) == 6
    assert "excess" not in ask(capsys, "--rows", "4")


def test_anybodys_pass_is_held_against_an_earlier_run_and_the_prediction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = ask(capsys, "--rows", "4", "--observed-ms", "26.28", "--earlier-ms", "20.18")
    assert rows(out, "excess")["launch gaps"][0] == "6.10 ms: +100 us for a layer, 61 of them"
    out = ask(capsys, "--rows", "4", "--observed-ms", "26.28")
    (cells,) = {len(cells) for cells in rows(out, "excess").values()}
    assert cells == 3
    out = ask(capsys, "--rows", "4", "--observed-ms", "9")
    assert "nothing to explain" in out
    assert not rows(out, "excess")


def test_eager_and_graph_differ_once_launches_are_slower_than_kernels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = ask(
        capsys, "--rows", "4", "--launch-us", "20", "--node-us", "1", "--graph-launch-us", "9"
    )
    found = rows(out, "timeline")
    assert found["eager"][:2] == ["1,402", "28.0 ms"]
    assert found["graph"][:2] == ["1", "9.00 us"]
    # 14.08 ms of kernels, 1,401 gaps of a microsecond and a launch.
    assert found["graph"][5] == "15.5 ms"
    assert "# 20.0 us a launch: given by --launch-us" in out
    (eager,) = [one for one in recorded("timeline") if one.launch == "eager"]
    assert eager.median_s == pytest.approx(28.04e-3 + 0.24e-3, rel=2e-3)
    assert eager.method["launch_us"] == "given by --launch-us"
    captured = rows(out, "what-if")["graph capture"]
    assert captured[0] == "15.5 ms"


def test_uneven_ranks_are_an_example_unless_they_are_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = ask(capsys, "--rows", "4")
    assert "one of 8 ranks takes 1.1 times as long (assumed: --slow-rank)" in out
    usual = rows(out, "what-if")["now"][0]
    assert usual == rows(out, "timeline")["eager"][5]
    out = ask(capsys, "--rows", "4", "--slow-rank", "1.5", "--jitter-us", "1")
    assert "takes 1.5 times as long, each kernel 1.00 us more on average\n" in out
    assert rows(out, "what-if")["now"][0] == rows(out, "timeline")["eager"][6]
    out = run(["--model", "kimi-k2.5", "--predict", "h200", "--records", "r.jsonl"], capsys)[1]
    assert "uneven ranks:" not in out


def test_levers_are_told_with_their_source_and_what_is_not_known_stays_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = ask(capsys, "--rows", "4", "--accepted", "2", "--share", "0.97", "--plain-ms", "12.12")
    found = rows(out, "what-if")
    assert list(found) == [
        "now",
        "graph capture",
        "protocol",
        "one-shot all-reduce",
        "fused norm",
        "faster MoE",
        "faster attention",
        "fewer rows",
        "higher acceptance",
    ]
    # 25.75 us at 57,344 B instead of 33.0 for 123 calls: 0.89 ms less.
    assert found["protocol"][-1].startswith("25.8 us and not 33.0 us each: NCCL LL by a graph")
    assert found["protocol"][0] == "14.0 ms"
    # The cycle is 14.9 / 0.97 = 15.37 ms.
    assert found["now"][:3] == ["14.9 ms", "130", "1.27"]
    assert found["faster MoE"][0] == found["now"][0]
    _, out, _ = run(
        ["--model", "kimi-k2.5", "--tp", "8", "--predict", "h200", "--rows", "4"], capsys
    )
    unknown = rows(out, "what-if")["protocol"]
    assert unknown[:3] == ["not known", "-", "-"]
    assert unknown[-1] == "not known: give the all-reduce's time now"
    out = ask(capsys, "--rows", "4", "--protocol-us", "20", "--one-shot-us", "25")
    found = rows(out, "what-if")
    assert found["one-shot all-reduce"][3] == found["protocol"][3]


def test_no_lever_goes_below_the_byte_floor(capsys: pytest.CaptureFixture[str]) -> None:
    out = ask(capsys, "--rows", "4", "--observed-ms", "8", "--one-shot-us", "0.001")
    assert rows(out, "what-if")["one-shot all-reduce"][0] == "7.31 ms, held at its floor"
    assert rows(out, "what-if")["fewer rows"][3] == "6.36 ms, held at its floor"
    held = {one.implementation for one in recorded("what_if") if "at-byte-floor" in one.flags}
    assert "one-shot all-reduce" in held


def test_lists_are_fitted_over_rows_and_over_context(capsys: pytest.CaptureFixture[str]) -> None:
    out = ask(capsys, "--rows", "1,2,4", "--context", "1k,8k,32k")
    lines = [line.split("\t") for line in out.splitlines() if line.split("\t")[2:3] == ["fit"]]
    assert len(lines) == (3 + 3) * 4
    (floor,) = [line for line in lines if line[3:5] == ["byte floor", "context, at rows 4"]]
    # 61 layers x 1,152 B a token and rank at 1.5 TB/s.
    assert floor[6] == "46.8 ns a token"
    assert floor[7] == "0 s"
    names = {line[3] for line in lines}
    assert {"components, an upper bound", "components"} <= names  # rows 1 has no bound in it
    fitted = recorded("fit")
    assert len(fitted) == len(lines)
    one = next(
        each
        for each in fitted
        if each.implementation == "byte floor over context" and each.dims["rows"] == 4
    )
    assert one.dims["slope_s"] == pytest.approx(61 * 1152 / 1.5e12)
    assert "context" not in one.dims
    assert "fit" not in ask(capsys, "--rows", "4", "--context", "8k")


# ---- --measured ----


def machine(name: str) -> Record:
    state = msgspec.structs.replace(GPU.gpus[0], name=name)
    return msgspec.structs.replace(GPU, gpus=(state,))


def attention(us: float, **changes: object) -> Measurement:
    dims: dict[str, Value] = {
        "rows": 4,
        "requests": 1,
        "context": 8192,
        "heads": 8,
        "latent": 512,
        "rope": 64,
        "kv": "bf16",
    }
    return kernel(
        "triton", us, **{"op": "mla_verify", "dims": dims, "touched_bytes": None, **changes}
    )


def test_a_users_records_go_before_published_times(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        machine(_SERVER),
        attention(22.0),
        attention(9.0, cache="warm"),
        attention(8.0, kind="baseline-different-work"),
        kernel("empty", 1.3, part="empty_kernel", op="empty_kernel", cache="warm", launch="graph"),
    ]
    write(Path("mine.jsonl"), lines)
    out = ask(capsys, "--rows", "4", "--measured", "mine.jsonl")
    assert "# attention: 61 x 22.0 us = 1.34 ms, measured: triton graph; mine.jsonl" in out
    assert "# 1.30 us between two kernels: empty_kernel of mine.jsonl" in out
    (own,) = [one for one in recorded("attention") if one.implementation != "roofline"]
    assert own.implementation == predictions.MEASURED


def test_tables_go_through_ingest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nccl.csv").write_text(
        "op_name,nccl_dtype,num_gpus,message_size,latency_us\n"
        "all_reduce,half,8,16384,20.0\nall_reduce,half,8,32768,24.0\n"
        "all_gather,half,8,524288,60.0\nall_gather,half,8,1048576,70.0\n",
        encoding="utf-8",
    )
    out = ask(capsys, "--rows", "4", "--measured", "nccl.csv")
    assert "# all_reduce: 122 x 23.0 us of 57,344 B = 2.81 ms, measured: nccl between" in out
    assert "# attention: 61 x 49.4 us = 3.02 ms, public:" in out


def test_a_sweep_under_a_setting_is_what_the_lever_protocol_gives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def swept(us: float, settings: dict[str, str]) -> Measurement:
        dims: dict[str, Value] = {"bytes": 57_344, "dtype": "bfloat16", "in_place": False}
        more = {"op": "all_reduce", "dims": dims, "ranks": 8, "requested": settings}
        return kernel("nccl", us, part="all_reduce", **more)

    lines = [swept(40.0, {}), swept(28.0, {"NCCL_PROTO": "LL"}), swept(31.0, {"NCCL_ALGO": "Tree"})]
    write(Path("sweep.jsonl"), [machine(_SERVER), *lines])
    out = ask(capsys, "--rows", "4", "--measured", "sweep.jsonl")
    assert "# all_reduce: 122 x 40.0 us of 57,344 B = 4.88 ms, measured: nccl graph; sweep" in out
    told = rows(out, "what-if")["protocol"][-1]
    assert told == "28.0 us and not 40.0 us each: NCCL_PROTO=LL; sweep.jsonl"


def test_what_does_not_count_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("cpu.jsonl"), [CPU, attention(22.0, environment="cpu")])
    write(Path("h200.jsonl"), [machine("NVIDIA H200"), attention(22.0)])
    for name, why in (("cpu", "1 of a CPU"), ("h200", "1 of h200")):
        code, out, err = run([*_FOUNDING, "--rows", "4", "--measured", f"{name}.jsonl"], capsys)
        assert (code, out) == (2, "")
        assert f"--measured {name}.jsonl: left out: {why}" in err
        assert "holds no time that counts for rtx-pro-6000-server" in err


def test_a_measured_pass_stands_beside_its_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    dims: dict[str, Value] = {"model": "kimi-k2.5", "tp": 8, "rows": 4, "context": 8192}
    whole = kernel("stub", 15_500.0, part="forward", op=passes.FORWARD, dims=dims, launch="eager")
    write(Path("mine.jsonl"), [machine(_SERVER), whole])
    out = ask(capsys, "--rows", "4", "--measured", "mine.jsonl")
    assert rows(out, "agreement")["eager"] == ["15.5 ms", "14.9 ms", "-3.8 %", "agrees"]
    (one,) = recorded("agreement")
    assert one.dims["off"] == pytest.approx(14.905 / 15.5 - 1, rel=1e-3)
    assert one.method["verdict"] == "agrees"


# ---- --trace ----


def log_of(data: bytes) -> Log:
    return Log(file="t.json", lines=iter(()), stream=BytesIO(data), environment="e", command="c")


def traced(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[bytes, list[trace.Trace]]:
    ask(capsys, "--rows", "4", "--trace", "deep/t.json", *more)
    data = Path("deep/t.json").read_bytes()
    found, faults = kineto.traces(log_of(data))
    assert (faults.undecoded, faults.untimed, faults.cut, faults.headless) == (0, 0, False, False)
    return data, found


def test_a_trace_holds_every_kernel_of_all_61_layers_and_our_own_reader_opens_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, (one,) = traced(capsys)
    assert (len(one.gpu), len(one.calls)) == (1402, 1402)
    assert one.overlapping == 0
    (eager,) = [each for each in recorded("timeline") if each.launch == "eager"]
    assert one.gpu.end_s[-1] - one.calls.start_s[0] == pytest.approx(eager.median_s, abs=2e-9)
    assert (one.gpu.correlation == one.calls.correlation).all()
    events = json.loads(data)["traceEvents"]
    kernels = [each for each in events if each.get("cat") == "kernel"]
    assert {each["args"].get("layer") for each in kernels} == {None, *range(61)}
    assert sum(each["args"]["part"] == "all_reduce" for each in kernels) == 122
    for each in events:
        assert each["ph"] in ("X", "M")
        if each["ph"] == "X":
            assert {"name", "cat", "pid", "tid", "ts", "dur"} <= set(each)
            assert each["dur"] >= 0
    assert len(data) < 2e6


def test_a_graph_is_one_call_and_each_uneven_rank_a_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, found = traced(capsys, "--launch", "graph", "--slow-rank", "1.2")
    assert [one.device for one in found] == list(range(8))
    for one in found:
        assert (len(one.gpu), len(one.calls)) == (1402, 1)
        assert set(one.gpu.correlation) == set(one.calls.correlation)
        assert one.calls_named("GraphLaunch").all()
    ends = {round(float(one.gpu.end_s[-1]) * 1e9) for one in found}
    assert len(ends) == 1  # the last kernel is the gather of the logits
    assert len(data) < 16e6


def test_a_predicted_trace_passes_for_no_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    data, _ = traced(capsys)
    with pytest.raises(Unreadable, match=r"graphs\.replay predicted, nothing in it was measured"):
        list(kineto.read(log_of(data)))
    names = {
        each["args"]["name"]
        for each in json.loads(data)["traceEvents"]
        if each["name"] == "process_name"
    }
    assert names == {
        "rank 0: predicted, not measured: kimi-k2.5 tp8 rows 4 context 8192 on "
        "rtx-pro-6000-server, eager"
    }


# ---- Bad input ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--launch", "graf"], "unknown launch 'graf'; known: eager, piecewise, graph"),
        (["--launch-us", "-1"], "'-1' is not a time of zero or more; give one like 33.5"),
        (["--node-us", "inf"], "'inf' is not a time of zero or more"),
        (["--jitter-us", "x"], "'x' is not a time of zero or more"),
        (["--slow-rank", "0.9"], "'0.9' is not a number of at least 1; give one like 1.1"),
        (["--tp", "1", "--slow-rank", "1.1"], "--tp 1 waits for no other rank; leave out"),
        (["--tp", "1", "--one-shot-us", "9"], "--tp 1 has no all-reduce; leave out --protocol-us"),
        (["--observed-ms", "0"], "'0' is not a time above zero"),
        (["--earlier-ms", "19.04"], "--earlier-ms is held against an observed pass; give --obs"),
        (["--rows", "3,4", "--observed-ms", "9"], "--observed-ms is of one pass; give one --rows"),
        (["--rows", "3,4", "--trace", "t.json"], "--trace shows one pass; give one --rows and"),
        (["--accepted", "5"], "a pass of 4 rows yields at most 4 tokens; give fewer, or more"),
        (["--accepted", "0.5"], "'0.5' is not a number of at least 1"),
        (["--higher-accepted", "4.5"], "--higher-accepted 4.5: a pass of 4 rows yields at most 4"),
        (["--share", "0"], "--share 0 is no share of a cycle; give one like 0.97"),
        (["--share", "1.2"], "--share 1.2 is no share of a cycle"),
        (["--fewer-rows", "4"], "--fewer-rows 4 is not fewer than --rows 4"),
        (["--launches", "attn=2"], "names 'attn', which is no part and no op of this pass; ops:"),
        (["--measured", "absent.jsonl"], "cannot read absent.jsonl: no such file or directory"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_exit_status_2(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run([*_FOUNDING, "--rows", "4", *arguments], capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_place_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    code, _, err = run(
        [*_FOUNDING, "--rows", "4", "--records", "r.jsonl", "--trace", "file/t"], capsys
    )
    assert code == 1
    assert "a part of this path is a file" in err


def test_readme_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    text = readme.partition("## Where the time of a pass goes, before it has run")[2]
    command, *blocks = re.findall(r"(?:^    .*\n)+", text.partition("\n## ")[0], re.MULTILINE)
    monkeypatch.setattr(cli, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "400")  # no row of a table goes on below itself
    words = command.split()
    assert words[:3] == ["python", "-m", "graphs.replay"]
    code, out, _ = run([*words[3:], "--records", "r.jsonl"], capsys)
    assert code == 0
    printed = out.splitlines()
    shown = [line[4:] for block in blocks for line in block.splitlines()]
    assert len(shown) > 12
    for line in shown:
        start = line.removesuffix("...").rstrip()
        assert any(one == line or (start != line and one.startswith(start)) for one in printed), (
            line
        )
