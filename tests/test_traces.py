"""A Kineto trace becomes the right busy time, classes, steps and findings."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingest import __main__ as command
from ingest import kineto, trace_events, trace_findings
from ingest.facts import Facts
from ingest.gpu_findings import Gpu, Readings
from ingest.opening import Unreadable
from ingest.trace_facts import TraceFacts
from tests.trace_files import LAYER, Kineto, concluded, facts, log_of, packed, ranked, read
from verifyscope import cli, models
from verifyscope.records import Finding, Measurement, Reader

CANARY = "PLACEHOLDER-MUST-NOT-BE-PRINTED"


def ingest(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(command.application, command.PROGRAM, arguments)
    return int(ended.value.code or 0)


def model(layers: int, *, graph: bool = False, every: float = 50.0) -> Kineto:
    """A step of `layers` layers, and one all-reduce more behind the embedding."""
    made = Kineto()
    kernels = ["multimem_all_reduce_kernel", *LAYER * layers]
    if graph:
        made.graph(kernels, 0, dur=10)
    else:
        made.eager(kernels, 0, dur=10, every=every)
    return made


def shares(told: TraceFacts) -> dict[str, float]:
    return {str(name): round(share, 4) for name, share in told.top}


def test_busy_is_a_union_and_the_sum_stands_beside_it() -> None:
    made = Kineto()
    made.gpu("gemm", 0, 100, stream=1, correlation=1)
    made.gpu("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 50, 100, stream=2, correlation=2)
    made.gpu("gemm", 250, 50, stream=1, correlation=3)
    told = facts(made.bytes()).breakdown
    assert told.busy_s == pytest.approx(200e-6)
    assert told.sum_s == pytest.approx(250e-6)
    assert told.span_s == pytest.approx(300e-6)
    assert told.idle_s == pytest.approx(100e-6)
    by_name = {one.name: one for one in told.classes}
    assert by_name["dense_gemm"].busy_s == pytest.approx(150e-6)
    assert by_name["dense_gemm"].alone_s == pytest.approx(100e-6)
    assert by_name["all_reduce"].alone_s == pytest.approx(50e-6)


@pytest.mark.parametrize("origin", [0, 1_683_564_901_540_885, 1_365_627_949_869.794])
def test_whole_microseconds_and_nanoseconds_behind_the_point_are_both_exact(origin: float) -> None:
    made = Kineto()
    for number in range(10):
        made.gpu("gemm", origin + 20 * number, 10.25 if origin % 1 else 10, correlation=number)
    told = facts(made.bytes()).breakdown
    assert told.busy_s == pytest.approx(102.5e-6 if origin % 1 else 100e-6, abs=1e-8)
    assert told.span_s == pytest.approx(told.busy_s + told.idle_s)


def test_times_may_be_text() -> None:
    made = Kineto()
    made.gpu("gemm", 0, 1)
    made.events[0] |= {"ts": "5", "dur": "10"}
    assert facts(made.bytes()).breakdown.busy_s == pytest.approx(10e-6)


def test_copies_and_memsets_are_busy_time_of_their_own_category() -> None:
    made = Kineto()
    made.gpu("gemm", 0, 10, correlation=1)
    made.gpu("Memcpy DtoD (Device -> Device)", 20, 5, cat="gpu_memcpy", correlation=2)
    made.gpu("Memset (Device)", 30, 5, cat="gpu_memset", correlation=3)
    told = facts(made.bytes())
    assert told.breakdown.busy_s == pytest.approx(20e-6)
    assert told.breakdown.sum_s == pytest.approx(10e-6)
    assert told.breakdown.kernel_count == 1
    assert shares(told) == {"dense_gemm": 0.5, "copy": 0.5}


def test_a_share_of_busy_and_of_the_kernel_sum_differ_by_the_copies() -> None:
    made = Kineto()
    made.gpu("multimem_all_reduce_kernel", 0, 20, correlation=1)
    made.gpu("gemm", 20, 60, correlation=2)
    made.gpu("Memcpy DtoD", 80, 20, cat="gpu_memcpy", correlation=3)
    rows = {one.implementation: one.dims for one in classes(made)}
    assert rows["all_reduce"]["share_of_busy"] == pytest.approx(0.2)
    assert rows["all_reduce"]["share_of_kernel_sum"] == pytest.approx(0.25)
    assert "share_of_kernel_sum" not in rows["copy"]


def classes(made: Kineto) -> list[Measurement]:
    found = list(kineto.read(log_of(made.bytes())))
    return [x for x in found if isinstance(x, Measurement) and x.op == "trace class"]


@pytest.mark.parametrize(
    "header",
    [{}, {"deviceProperties": []}, {"distributedInfo": {"backend": "nccl"}}, {"schemaVersion": 1}],
)
def test_a_trace_without_devices_rank_or_gpu_events_says_so_and_no_number(header: Any) -> None:
    made = Kineto(header=header)
    made.annotation("ProfilerStep#1", 0, 100)
    told = facts(made.bytes())
    assert told.rank is None
    assert told.device_name is None
    assert told.breakdown.busy_s == 0
    assert list(concluded(made.bytes())) == ["no-gpu-events"]
    assert classes(made) == []


def test_rank_and_device_are_read_before_and_behind_the_events() -> None:
    made = Kineto()
    made.gpu("gemm", 0, 10, device=3)
    head = {
        "distributedInfo": {"rank": 2, "world_size": 8},
        "deviceProperties": [{"id": 3, "name": "NVIDIA B200"}, {"id": 0, "name": ""}],
    }
    made.header = head
    before = made.bytes()
    behind = json.dumps({"traceEvents": made.events, **head}).encode()
    for data in (before, behind):
        told = facts(data)
        assert (told.rank, told.world, told.device) == (2, 8, 3)
        assert told.device_name == "NVIDIA B200"


def test_each_gpu_of_a_process_is_a_case_of_its_own() -> None:
    made = Kineto()
    made.gpu("gemm", 0, 10, device=0, correlation=1)
    made.gpu("gemm", 0, 30, device=1, correlation=2)
    found = {trace.device: trace for trace in read(made.bytes())[0]}
    launched = Kineto()
    for number, device in enumerate((0, 1, 1)):
        launched.call("cudaLaunchKernel", 20 * number, 3)
        launched.gpu("gemm", 20 * number + 5, 10, device=device)
    assert {one: len(trace.gpu) for one, trace in found.items()} == {0: 1, 1: 1}
    assert {trace.device: len(trace.calls) for trace in read(launched.bytes())[0]} == {0: 1, 1: 2}
    assert {row.case: row.median_s for row in classes(made)} == pytest.approx(
        {"GPU 0": 10e-6, "GPU 1": 30e-6}
    )


def test_kernels_under_one_graph_launch_share_its_correlation_and_make_a_step() -> None:
    made = Kineto()
    at = 0.0
    for _ in range(3):
        at = made.graph(LAYER * 8, at, dur=10) + 200
    told = facts(made.bytes())
    assert told.graph_launches == 3
    assert told.graph_kernels == 3 * 48
    assert told.launches == 0
    assert told.steps is not None
    assert (told.steps.how, len(told.steps.steps)) == ("graph launch", 3)
    assert told.steps.layers == 8
    assert told.steps.lengths_s == pytest.approx([527e-6] * 3)


def test_counts_name_the_model() -> None:
    said = concluded(model(36).bytes())["trace-breakdown"].sentence
    assert "of 36 layers (73 all-reduces = 2 x 36 + 1)" in said
    assert "kimi" not in said
    assert "of 61 layers (123 all-reduces = 2 x 61 + 1), as kimi-k2" in (
        concluded(model(61).bytes())["trace-breakdown"].sentence
    )


def test_a_step_needs_attention_to_have_layers() -> None:
    made = Kineto()
    made.eager([name for name in LAYER if "fmha" not in name] * 36, 0, dur=10, every=50)
    assert "36 layers" not in concluded(made.bytes())["trace-breakdown"].sentence


def test_steps_are_found_by_annotation_through_the_launch_of_each_kernel() -> None:
    made = Kineto()
    for number in range(3):
        made.annotation(f"ProfilerStep#{number}", 10_000 * number, 6_000)
        made.eager(LAYER * 8, 10_000 * number + 10, dur=10, every=100)
    told = facts(made.bytes())
    assert told.steps is not None
    assert (told.steps.how, len(told.steps.steps), told.steps.layers) == ("annotation", 3, 8)
    assert told.steps.lengths_s == pytest.approx([4710e-6] * 3)


def test_steps_are_found_by_a_kernel_that_runs_once_a_step() -> None:
    made, at = Kineto(), 0.0
    for _ in range(5):
        at = made.eager(["vocab_parallel_embedding", *LAYER * 10], at, dur=10, every=12) + 20
    told = facts(made.bytes())
    assert told.steps is not None
    assert told.steps.how == "kernel that runs once a step"
    assert (len(told.steps.steps), told.steps.layers, told.steps.kernels) == (5, 10, 61)


def test_a_long_gap_splits_steps_and_a_far_away_copy_does_not_stretch_one() -> None:
    made = Kineto()
    made.eager(LAYER * 8, 0, dur=10, every=12)
    made.eager(LAYER * 8, 100_000, dur=10, every=12)
    made.gpu("Memcpy DtoH (Device -> Pinned)", 900_000, 5, cat="gpu_memcpy")
    told = facts(made.bytes())
    assert told.steps is not None
    assert told.steps.how == "repeat of layers"
    assert told.steps.lengths_s == pytest.approx([574e-6, 574e-6])


def test_a_stray_kernel_does_not_stretch_an_annotated_step() -> None:
    made = Kineto()
    made.annotation("execute_context_0(0)_generation_1(1)", 0, 2_000)
    made.eager(LAYER * 8, 10, dur=10, every=12)
    made.call("cudaLaunchKernel", 1_900, 3)
    made.gpu("gemm", 500_000, 10)
    told = facts(made.bytes())
    assert told.steps is not None
    assert told.steps.lengths_s == pytest.approx([574e-6])


# Each finding: a trace that must raise it, and a near miss that must not.


def host_sync(blocking: float, busy_after: bool = False) -> Kineto:
    """The host waits until the GPU has run dry, each time, and only then launches more."""
    made, at = Kineto(), 0.0
    for _ in range(30):
        made.call("cudaLaunchKernel", at, 2)
        made.gpu("gemm", at + 3, 100)
        made.call("cudaStreamSynchronize", at + 5, blocking)
        at += 200
        if busy_after:
            made.call("cudaLaunchKernel", at - 170, 2)
            made.gpu("gemm", at - 97, 99)
    return made


def waiting(durations: Sequence[float]) -> Kineto:
    return ranked(0, 8, multimem_all_reduce_kernel=durations)


def piecewise(launches: int) -> Kineto:
    made, at = Kineto(), 0.0
    made.annotation("ProfilerStep#1", 0, 100_000)
    for _ in range(launches):
        at = made.graph(LAYER * (8 // launches), at, dur=10) + 5
    return made


def copies(rate: float) -> Kineto:
    made = Kineto(header={"deviceProperties": [{"id": 0, "name": "NVIDIA B200"}]})
    for number in range(4):
        made.gpu(
            "Memcpy DtoD (Device -> Device)",
            100 * number,
            20,
            cat="gpu_memcpy",
            bytes=int(rate * 20e-6 / 2),
            correlation=number,
        )
    made.gpu("gemm", 1000, 10, correlation=9)
    return made


def paused(gap: float) -> Kineto:
    made = model(8, every=11.0)
    made.eager(LAYER * 8, 600 + gap, dur=10, every=11)
    return made


def straggler(*sums: float) -> list[bytes]:
    return [
        ranked(rank, len(sums), ncclDevKernel_SendRecv=[one / 4] * 4).bytes()
        for rank, one in enumerate(sums)
    ]


CASES = (
    ("launch-bound", [model(36).bytes()], [model(36, graph=True).bytes()]),
    ("launch-bound", [model(36).bytes()], [model(36, every=11.0).bytes()]),
    ("graph-off", [model(36).bytes()], [model(36, graph=True).bytes()]),
    ("graph-off", [model(36).bytes()], [model(36, every=10.5).bytes()]),
    ("host-sync", [host_sync(150).bytes()], [host_sync(2).bytes()]),
    ("host-sync", [host_sync(150).bytes()], [host_sync(150, busy_after=True).bytes()]),
    ("graph-piecewise-fallback", [piecewise(8).bytes()], [piecewise(1).bytes()]),
    ("straggler-rank", straggler(400, 9500, 1800), straggler(400, 520, 410)),
    ("collective-wait", [waiting([10] * 4 + [90] * 8)], [waiting([10] * 12)]),
    ("long-pause", [paused(500_000)], [paused(1_500)]),
    ("warm-benchmark", [copies(12e12)], [copies(6e12)]),
)


@pytest.mark.parametrize(("name", "case", "near_miss"), CASES)
def test_a_finding_is_raised_by_its_case_and_not_by_a_near_miss(
    name: str, case: list[Any], near_miss: list[Any]
) -> None:
    raising, other = (
        [one if isinstance(one, bytes) else one.bytes() for one in files]
        for files in (case, near_miss)
    )
    assert name in concluded(*raising)
    assert name not in concluded(*other)


@pytest.mark.parametrize(
    ("collective_us", "power_w", "spins"),
    [(60.0, 140.0, True), (60.0, 450.0, False), (10.0, 140.0, False)],
)
def test_collectives_at_a_fraction_of_the_power_spin(
    collective_us: float, power_w: float, spins: bool
) -> None:
    made = ranked(0, 8, multimem_all_reduce_kernel=[collective_us], gemm=[100 - collective_us])
    readings = Readings(use=100.0, power_w=power_w, limit_w=600.0, count=9)
    gpus = Facts(file="smi.csv", gpus=(Gpu(index=0, line=2, readings=readings),))
    trace = Facts(file="t.json", traces=(facts(made.bytes()),))
    found = {one.name: one for one in trace_findings.conclusions([trace, gpus])}
    assert ("collective-spin" in found) is spins
    if spins:
        assert [seen.file for seen in found["collective-spin"].seen] == ["t.json", "smi.csv"]


def test_launch_bound_tells_busy_span_and_what_a_step_would_gain() -> None:
    found = concluded(model(36).bytes())["launch-bound"]
    assert "busy for 2.17 ms of 10.8 ms (20.1 %) and waits for 8.64 ms" in found.sentence
    assert found.worth_s == pytest.approx(8.64e-3)


def test_idle_is_told_by_cause() -> None:
    made = host_sync(150)
    idle = facts(made.bytes()).idle
    assert idle.waiter == "cudaStreamSynchronize"
    assert (idle.syncs, idle.launches) == (29, 0)
    assert idle.sync_s == pytest.approx(29 * 100e-6)
    late = facts(model(8).bytes()).idle
    assert late.launch_s == pytest.approx(48 * 40e-6)
    assert late.sync_s == late.device_s == late.away_s == late.unknown_s == 0
    inside = facts(model(8, graph=True).bytes()).idle
    assert inside.device_s == pytest.approx(48e-6)


def test_a_pause_between_requests_is_no_launch_bound_step() -> None:
    made = model(8, every=11.0)
    made.eager(LAYER * 8, 500_000, dur=10, every=11)
    found = concluded(made.bytes())
    assert "launch-bound" not in found
    assert "long pauses 499 ms" in found["trace-breakdown"].sentence


def test_the_rank_with_the_least_time_in_a_collective_came_last() -> None:
    files = straggler(3999, 9506, 1807, 8002, 6353, 6056, 1823, 389)
    found = concluded(*files)["straggler-rank"]
    assert found.sentence.startswith("rank 7 came last to ncclDevKernel_SendRecv: ")
    assert "the transfer takes at most 0.389 ms, and rank 1 waited at least 9.12 ms" in (
        found.sentence
    )
    assert found.worth_s == pytest.approx(9117e-6)
    assert found.seen[7].value == "rank 7: 0.389 ms"


def test_ranks_near_the_least_are_named_with_it_and_missing_ranks_are_told() -> None:
    files = straggler(1799, 1830, 1685, 1772, 234, 195, 1735, 1357)[1:]
    said = concluded(*files)["straggler-rank"].sentence
    assert said.startswith("rank 4 and 5 came last")
    assert said.endswith("7 of 8 ranks are here")


def test_ranks_that_cannot_be_compared_are_not() -> None:
    once, again = straggler(400, 9500)[0], straggler(400, 9500)[0]
    assert "more than once" in concluded(once, again)["ranks-not-compared"].sentence
    fewer = ranked(1, 2, ncclDevKernel_SendRecv=[100.0] * 3).bytes()
    found = concluded(once, fewer)
    assert "equally many calls" in found["ranks-not-compared"].sentence
    assert "straggler-rank" not in found


def test_a_graph_launch_without_kernels_hides_its_nodes_and_no_gap_is_told() -> None:
    made = Kineto()
    for number in range(4):
        made.call("cudaGraphLaunch", 1000 * number, 10)
        made.correlation += 1
        made.gpu("gemm", 1000 * number + 900, 10)
    found = concluded(made.bytes())
    assert "--cuda-graph-trace=node" in str(found["graph-nodes-hidden"].next_action)
    assert "launch-bound" not in found
    assert "busy" not in found["trace-breakdown"].sentence
    for row in classes(made):
        assert "share_of_busy" not in row.dims


def test_small_graphs_whose_kernels_are_there_hide_nothing() -> None:
    made, at = Kineto(), 0.0
    for size in (1, 2, 8, 8):
        at = made.graph(["gemm"] * size, at, dur=10) + 5
    assert "graph-nodes-hidden" not in concluded(made.bytes())


def test_fewer_kernels_a_step_than_the_model_has_layers_are_a_capture_that_hides_nodes() -> None:
    told = facts(model(10, graph=True).bytes())
    trace = Facts(file="t", traces=(told,))
    for layers, hidden in ((61, False), (62, True)):
        config = Facts(file="c", model=replace(models.TABLE["kimi-k2"], layers=layers))
        names = {one.name for one in trace_findings.conclusions([trace, config])}
        assert ("graph-nodes-hidden" in names) is hidden


def test_what_is_no_part_of_a_verify_pass_is_named_and_the_unknown_is_shown() -> None:
    made = Kineto()
    made.gpu("multi_tensor_apply_kernel<AdamFunctor<float>>", 0, 30, correlation=1)
    made.gpu("split_embedding_codegen_forward_unweighted_kernel", 30, 20, correlation=2)
    made.gpu("qzx_17", 50, 50, correlation=3)
    found = concluded(made.bytes())
    assert "optimizer 0.0300 ms and embedding table 0.0200 ms" in found["other-known"].sentence
    assert found["unclassified"].sentence.startswith("GPU 0: 50 % of busy time is in 1 kernels")
    assert found["unclassified"].seen[0].value == "qzx_17: 0.0500 ms"
    assert "unclassified 50 %" in found["trace-breakdown"].sentence


# What a file may be like.


def numbers(told: TraceFacts) -> dict[str, float]:
    """What a trace says, in numbers; where time 0 lies moves their last bits."""
    whole, steps = told.breakdown, told.steps
    found: dict[str, float] = {str(one.name): one.busy_s for one in whole.classes}
    found |= {one.name: one.sum_s for one in whole.kernels}
    found |= {"busy": whole.busy_s, "span": whole.span_s, "kernels": whole.kernel_count}
    found |= {"launch": told.idle.launch_s, "launches": told.launches}
    return found | ({"step": steps.lengths_s[0], "layers": steps.layers or 0} if steps else {})


def same(one: TraceFacts, other: TraceFacts) -> bool:
    return numbers(one) == pytest.approx(numbers(other), rel=1e-9)


@pytest.mark.parametrize("chunk", [64, 1000, 4096])
@pytest.mark.parametrize("dump", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_chunks_give_the_same_as_the_whole(
    chunk: int, dump: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(8)
    made.header = {"deviceProperties": [{"id": 0, "name": "a, {b}, {"}, {"id": 1}]}
    for number, event in enumerate(made.events):
        event["args"]["note"] = [{"a": 1}, {"b": '"}, {"'}][number % 2 :]
    whole = facts(made.bytes())
    monkeypatch.setattr(trace_events, "CHUNK_BYTES", chunk)
    data = made.bytes(**dump)
    traces, faults = read(data)
    assert (faults.undecoded, faults.cut, faults.headless) == (0, False, False)
    assert faults.events == len(made.events)
    assert same(facts(data), whole)
    assert traces[0].device_name == "a, {b}, {"


def test_a_cut_trace_is_read_up_to_there_and_says_so() -> None:
    data = model(8).bytes()
    found = concluded(data[: len(data) // 2])
    assert "file-cut" in found
    assert facts(data[: len(data) // 2]).breakdown.kernel_count in range(20, 28)
    assert "file-cut" not in concluded(data)


def test_a_trace_cut_before_its_kernels_is_not_one_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = model(8)
    made.events.sort(key=lambda event: event["cat"])
    file = tmp_path / "t.json"
    file.write_bytes(made.bytes()[:2000])
    assert ingest(str(file), "--records", str(tmp_path / "r")) == 0
    assert "no GPU kernel is in what is left of the trace, which is cut" in capsys.readouterr().out


def test_damaged_events_are_dropped_counted_and_do_not_take_others_along() -> None:
    made = model(8)
    data = made.bytes()
    name = b'"name": "fused_moe_kernel"'
    damaged = data.replace(name, b'"name": "fused_moe_kernel', 1).replace(name, b'"name": 5', 2)
    found = concluded(damaged)
    assert "events-not-read" in found
    assert facts(damaged).breakdown.kernel_count >= 49 - 5


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "null", '"x"', "-5", "1e300"])
def test_an_event_without_a_time_is_dropped_and_counted(value: str) -> None:
    data = model(8).bytes().replace(b'"dur": 10', f'"dur": {value}'.encode(), 1)
    assert facts(data).breakdown.kernel_count == 48
    assert "1 of 98 events" in concluded(data)["events-not-read"].sentence


def test_an_event_that_stands_there_twice_counts_once() -> None:
    made = model(8)
    whole = facts(made.bytes())
    made.events += made.events[10:20]
    found = concluded(made.bytes())
    assert "5 GPU events stand there twice" in found["duplicate-events"].sentence
    assert facts(made.bytes()).breakdown == whole.breakdown


def test_the_order_of_events_means_nothing() -> None:
    made = model(8)
    whole = facts(made.bytes())
    made.events = made.events[::-1]
    turned = facts(made.bytes())
    assert turned.breakdown.busy_s == pytest.approx(whole.breakdown.busy_s)
    assert turned.idle.launches == whole.idle.launches


def test_a_time_that_does_not_fit_its_stream_is_told() -> None:
    made = model(8)
    made.events[21]["dur"] = 400
    assert "overlap-in-stream" in concluded(made.bytes())
    assert "overlap-in-stream" not in concluded(model(8).bytes())


def test_a_list_without_an_object_around_it_is_a_trace_too() -> None:
    made = model(8)
    data = json.dumps(made.events).encode()
    assert kineto.recognises(data)
    assert same(facts(data + b"\n"), facts(made.bytes()))


def test_deep_nesting_is_no_trouble() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    data = model(8).bytes().replace(b'"pid": 9', b'"pid": 9, "deep": ' + deep, 1)
    assert "events-not-read" in concluded(data)


@pytest.mark.parametrize("data", [b"{", b'{"deviceProperties": [', b"[]", b"{}"])
def test_what_is_no_trace_is_refused_in_a_line_or_not_recognised(data: bytes) -> None:
    if kineto.recognises(data):
        with pytest.raises(Unreadable, match="give it whole"):
            read(data)


# The command.


def test_the_command_reads_a_folder_of_ranks_and_says_who_came_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for number, data in enumerate(straggler(400, 9500)):
        (folder / f"rank{number}.json.gz").write_bytes(packed(data))
    records = tmp_path / "r.jsonl"
    assert ingest(str(folder), "--records", str(records)) == 0
    out = capsys.readouterr().out
    assert out.startswith("rank 0 came last to ncclDevKernel_SendRecv")
    kept = list(Reader(records))
    assert {x.case for x in kept if isinstance(x, Measurement)} == {
        "rank 0 of 2, GPU 0",
        "rank 1 of 2, GPU 0",
    }
    (found,) = (x for x in kept if isinstance(x, Finding) and x.name == "straggler-rank")
    assert [one.at for one in found.evidence] == ["ncclDevKernel_SendRecv"] * 2


def test_an_environment_in_a_trace_and_a_path_in_a_name_reach_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = model(8)
    made.header = {"metadata": {"system": {"env": {"HF_TOKEN": CANARY}}}, "traceName": "/home/x"}
    made.gpu("/home/alice/secret/kernel_17", 9000, 10, correlation=999)
    made.events.append({"cat": "cpu_op", "name": CANARY, "ts": 1, "dur": 2})
    file, records = tmp_path / "t.json", tmp_path / "r.jsonl"
    file.write_bytes(made.bytes())
    assert ingest(str(file), "--records", str(records)) == 0
    told = "".join(capfd.readouterr()) + records.read_text()
    assert CANARY not in told
    assert "alice" not in told
    assert "kernel_17" in told


def test_the_command_takes_classes_of_a_user_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Kineto()
    made.gpu("qzx_17", 0, 50)
    file, own = tmp_path / "t.json", tmp_path / "own.csv"
    file.write_bytes(made.bytes())
    own.write_text("class,kind,pattern,evidence\nmoe,my experts,^qzx_,seen here\n")
    assert ingest(str(file), "--records", str(tmp_path / "r"), "--classes", str(own)) == 0
    assert "moe 100 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("class,kind\n", "1: the first line must be class,kind,pattern,evidence"),
        ("class,kind,pattern,evidence\nmoo,a,b,c\n", "2: no class 'moo'; classes: attention, moe"),
        ("class,kind,pattern,evidence\nmoe,a,(,c\n", "2: '(' is no regular expression"),
        ("class,kind,pattern,evidence\nmoe,a,x*,c\n", "2: 'x*' finds every name"),
        ("class,kind,pattern,evidence\nmoe,a\n", "2: 2 columns"),
    ],
)
def test_a_file_of_classes_that_is_wrong_is_refused_with_its_line(
    text: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.csv"
    own.write_text(text)
    assert ingest("t.json", "--classes", str(own)) == 2
    assert error in capsys.readouterr().err
