"""Lines of SGLang and vLLM, component tables and runs become the right numbers, or none."""

import pytest

from ingest import sglang, vllm
from tests import serving_lines as lines
from tests.serving_lines import facts_of, findings_of, times_of


def cycles(text: str) -> list[tuple[str, int | None, list[float]]]:
    """Mode, running requests and cycles in milliseconds of each load."""
    return [
        (one.mode, one.running, [round(seconds * 1e3, 2) for seconds in one.seconds])
        for one in facts_of(text).steps
    ]


# SGLang.


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-05 10:27:56 TP0] Decode batch. #running-req: 2, #token: 186, token usage: 0.00, "
        "accept len: 2.00, accept rate: 0.50, cuda graph: True, gen throughput (token/s): 200.00, "
        "#queue-req: 0, ",
        "Decode batch [41], #running-req: 2, #full token: 186, full token usage: 0.00, #swa "
        "token: 9, "
        "accept len: 2.00, npu graph: True, gen throughput (token/s): 200.00, #queue-req: 0, est. "
        "decode TFLOPS/s (per GPU): 1.00, est. read BW (GB/s per GPU): 99.00",
        "svc-1  | \x1b[32m[2026-01-05 10:27:56 DP0 TP0 EP0]\x1b[0m Decode batch, #running-req: 2, "
        "#token: 186, accept len: 2.00, pre-allocated usage: 0.1, #prealloc-req: 0, cuda graph: "
        "True, "
        "gen throughput (token/s): 200.00, #queue-req: 0",
    ],
)
def test_every_form_of_a_decode_line_gives_the_same_cycle(line: str) -> None:
    (steps,) = facts_of(line + "\n").steps
    assert (steps.mode, steps.running, steps.launch) == ("verify", 2, "graph")
    assert steps.cycle_s == 2.0 * 2 / 200.0
    assert steps.acceptance == 2.0


def test_a_line_without_accept_len_or_graph_is_a_plain_step() -> None:
    text = lines.steady(10.0, graph=None)
    (steps,) = facts_of(text).steps
    assert (steps.mode, steps.launch, steps.acceptance, steps.rows) == ("decode", None, None, 1)
    assert steps.cycle_s == pytest.approx(0.010, rel=1e-4)


def test_the_first_window_after_idle_time_is_dropped_and_says_why() -> None:
    idle = lines.sglang(0.4, tokens=1000, accept=2.0)
    text = idle + "\n" + lines.steady(10.0, accept=2.0)
    assert [round(s * 1e3) for s in facts_of(text).steps[0].seconds] == [10] * 6
    dropped = findings_of(text)["windows-dropped"]
    assert dropped.evidence[0].at == 1
    assert "500 x the later ones: it spans idle time" in dropped.evidence[0].value


def test_a_first_window_that_agrees_with_the_later_ones_counts() -> None:
    assert len(facts_of(lines.steady(10.0, accept=2.0)).steps[0].seconds) == 6
    assert "windows-dropped" not in findings_of(lines.steady(10.0, accept=2.0))


def test_a_window_in_which_requests_came_or_went_breaks_the_token_identity() -> None:
    steady = lines.steady(10.0, accept=2.0, windows=4)
    odd = lines.sglang(300.0, tokens=1100, accept=2.0, second=30)
    more = lines.steady(10.0, accept=2.0, windows=4, start=1100)
    text = steady + odd + "\n" + more
    seconds = facts_of(text).steps[0].seconds
    assert [round(one * 1e3) for one in seconds] == [10] * 8
    reason = findings_of(text)["windows-dropped"].evidence[0].value
    assert "requests came or went in it" in reason


def test_token_counts_that_move_in_pages_do_not_drop_good_windows() -> None:
    paged = [lines.sglang(200.0, tokens=at // 64 * 64, accept=2.0, second=at // 80) for at in
             range(1000, 1800, 80)]  # fmt: skip
    assert len(facts_of("\n".join(paged) + "\n").steps[0].seconds) == 10


def test_a_prefill_taints_its_window_and_clean_ones_count() -> None:
    prefill = (
        "[2026-01-05 10:00:03 TP0] Prefill batch, #new-seq: 1, #new-token: 512, #queue-req: 0\n"
    )
    slow = lines.sglang(100.0, tokens=1400, accept=2.0, second=5)
    text = lines.steady(10.0, accept=2.0, windows=4) + prefill + slow + "\n"
    assert [round(s * 1e3) for s in facts_of(text).steps[0].seconds] == [10] * 4
    assert (
        findings_of(text)["windows-dropped"].evidence[0].value.endswith("a prompt was read in it")
    )


def test_windows_that_all_hold_prompts_are_kept_and_flagged() -> None:
    prompt = "TP0] Prefill batch, #new-seq: 1, #new-token: 5, #queue-req: 0\n"
    text = lines.steady(12.0, accept=2.0, windows=1, graph="False", start=920)
    for line in lines.steady(10.0, accept=2.0, windows=4).splitlines():
        text += line.split("TP0]")[0] + prompt + line + "\n"
    eager, graph = facts_of(text).steps
    assert (eager.launch, graph.launch) == ("eager", "graph")
    assert graph.flags == ("prefill-window",)


def test_ranks_of_data_parallel_attention_are_told_apart() -> None:
    a = lines.steady(10.0, accept=2.0).splitlines()
    b = [
        line.replace("TP0", "DP1 TP1")
        for line in lines.steady(20.0, accept=2.0, start=9).splitlines()
    ]
    text = "".join(f"{one}\n{other}\n" for one, other in zip(a, b, strict=True))
    assert [(running, set(ms)) for _, running, ms in cycles(text)] == [(1, {10.0}), (1, {20.0})]


@pytest.mark.parametrize(
    ("lens", "rates", "tokens"),
    [
        ((2.17, 1.95, 1.8, 2.05), (0.54, 0.49, 0.45, 0.51), 4),
        ((2.94, 2.80, 2.84), (0.65, 0.60, 0.61), 4),
        ((1.00, 1.00), (0.11, 0.11), 9),
        ((2.00,), (0.50,), None),  # 4 by one definition, 3 by the other
    ],
)
def test_verify_tokens_are_known_where_one_definition_of_the_rate_fits(
    lens: tuple[float, ...], rates: tuple[float, ...], tokens: int | None
) -> None:
    reader = sglang.Reader()
    for at, (length, rate) in enumerate(zip(lens, rates, strict=True), 1):
        line = lines.sglang(100.0, accept=length)
        reader.take(at, line.replace(", cuda", f", accept rate: {rate:.2f}, cuda"))
    assert reader.inferred_tokens == tokens


def test_verify_rows_come_from_the_settings_first() -> None:
    head = "server_args=ServerArgs(tp_size=8, speculative_num_draft_tokens=5, api_key='sk-1')\n"
    text = head + lines.steady(10.0, accept=2.0, running=4)
    assert facts_of(text).steps[0].rows == 20
    (record,) = times_of(text)
    assert (record.ranks, record.dims["rows"], record.dims["all_rows"]) == (8, 5, 20)


@pytest.mark.parametrize("cut", range(60, 190, 9))
def test_a_cut_line_is_never_a_wrong_number(cut: int) -> None:
    whole = lines.steady(10.0, accept=2.0, windows=3)
    text = whole + lines.sglang(200.0, tokens=1320, accept=2.0, second=9)[:cut] + "\n"
    assert {one for _, _, found in cycles(text) for one in found} == {10.0}


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e9", "9" * 40, "0.00"])
def test_what_is_no_throughput_gives_no_cycle(value: str) -> None:
    line = lines.sglang(200.0, tokens=100, accept=2.0).replace("200.00", value)
    assert facts_of(line + "\n").steps == ()
    assert set(findings_of(line + "\n")) & {"lines-not-read", "windows-dropped"}


# vLLM.


def test_a_pair_of_lines_gives_cycle_acceptance_and_rows() -> None:
    (steps,) = facts_of(lines.vllm(30.0, running=4)).steps
    assert (steps.mode, steps.running, steps.rows) == ("verify", 4, 16)
    assert steps.cycle_s == pytest.approx(0.030, rel=1e-4)
    assert steps.acceptance == 2.5
    assert steps.flags == ("first-window",)


def test_the_identities_hold_for_a_good_pair() -> None:
    engine, drafts = lines.vllm(30.0).splitlines()
    known = vllm.parse(drafts)
    assert known is not None
    assert known.length_holds
    assert known.expected_rate() == pytest.approx(83.33, abs=0.01)
    assert "83.3 tokens/s" in engine


def test_a_window_whose_generation_does_not_fit_its_drafts_is_dropped() -> None:
    text = lines.vllm(30.0, generated=32.1) + lines.vllm(30.0, second=10) * 1
    seconds = facts_of(text).steps[0].seconds
    assert [round(one * 1e3) for one in seconds] == [30]
    reason = findings_of(text)["windows-dropped"].evidence[0].value
    assert "32.1 tokens/s were generated and 83.3 fit its drafts" in reason


def test_one_percent_of_rounding_breaks_no_identity() -> None:
    text = lines.vllm(30.0, generated=83.9)
    assert len(facts_of(text).steps) == 1


def test_metrics_without_drafted_throughput_give_the_cycle_by_generation() -> None:
    text = (
        lines.plain_vllm(10.0, running=2)
        + "INFO 01-05 09:00:00 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 50.0%, "
        "Mean acceptance length: 2.50, Accepted: 1500 tokens, Drafted: 3000 tokens, Per-position "
        "acceptance "
        "rate: 0.500, 0.500, 0.500\n"
    )
    (steps,) = facts_of(text).steps
    assert steps.cycle_s == pytest.approx(2.5 * 2 / 200.0)
    assert steps.verify_tokens == 4


def test_an_engine_line_alone_is_a_plain_step_and_in_a_log_with_drafts_none() -> None:
    plain = lines.plain_vllm(10.0, second=1) + lines.plain_vllm(10.0, second=11)
    assert cycles(plain) == [("decode", 1, [10.0, 10.0])]
    assert cycles(lines.vllm(30.0) + lines.plain_vllm(10.0, second=1)) == [("verify", 1, [30.0])]


def test_the_sums_of_the_first_engine_give_acceptance_alone() -> None:
    text = (
        "INFO 10-16 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System "
        "efficiency: 0.598, Number of speculative tokens: 3, Number of accepted tokens: 8547, "
        "Number "
        "of draft tokens: 13311, Number of emitted tokens: 10616.\n"
    )
    known = facts_of(text)
    assert known.steps == ()
    assert known.stated_acceptance is not None
    assert known.stated_acceptance[1] == pytest.approx(10616 / (13311 / 3))


# Component tables, runs, timers, tables by load.


@pytest.mark.parametrize(
    "line",
    [
        "Target verify: 29.47 ms/cyc (97.0%)",
        "  Target verify :  29.47 ± 0.12 ms/cycle (97.0 %) over 512 cycles",
        "INFO 01-05 09:00:00 [spec.py:9] Target verify: 29.47 ms/cyc (97.0%), Draft: 0.61 ms/cyc "
        "(2.0%)",
        "Target verify = 29470 us/cyc, 97.0%",
    ],
)
def test_a_component_line_gives_mean_and_share(line: str) -> None:
    verify = next(one for one in facts_of(line + "\n").components if one.role == "forward")
    assert verify.label == "Target verify"
    assert verify.seconds[0] == pytest.approx(29.47e-3)
    assert verify.share == pytest.approx(0.97)
    assert verify.spread_s == (pytest.approx(0.12e-3) if "±" in line else None)
    assert verify.cycles == (512 if "512" in line else None)


def test_a_component_line_that_is_cut_in_its_share_is_not_read() -> None:
    assert facts_of("Target verify: 29.47 ms/cyc (9\n").components == ()
    assert findings_of("Target verify: 29.47 ms/cyc (9\n")["lines-not-read"].evidence[0].at == 1


def test_the_stage_times_of_vllms_first_engine_are_a_component_table() -> None:
    text = (
        "SpecDecodeWorker stage times: average_time_per_proposal_tok_ms=1.20 scoring_time_ms=21.00 "
        "verification_time_ms=0.90\n"
    )
    found = {one.role: one.seconds[0] for one in facts_of(text).components}
    assert found == {
        "forward": pytest.approx(0.021),
        "draft": pytest.approx(0.0012),
        "sampling": pytest.approx(0.0009),
    }


RUNS = "".join(
    f"Run {at}/5: {tokens} tokens in {seconds}s = {tokens / seconds:.1f} tok/s\n"
    for at, (tokens, seconds) in enumerate(
        [(2048, 33.88), (2048, 31.26), (2048, 40.24), (2041, 33.21), (2048, 34.42)], 1
    )
)


def test_runs_are_averaged_by_run_and_by_token_and_warmups_are_none() -> None:
    (record,) = times_of("Warmup 1/2: 2048 tokens in 90.00s = 22.8 tok/s\n" + RUNS)
    assert record.count == 5
    assert round(float(record.method["by_run_tok_s"]), 1) == 59.6
    assert round(float(record.method["by_token_tok_s"]), 1) == 59.1
    assert record.method["outliers"] == "3"
    assert record.method["warmups"] == 1


def test_a_run_whose_rate_is_not_its_tokens_over_seconds_is_not_used() -> None:
    text = RUNS.replace("33.88s", "3.88s")
    assert [run.index for run in facts_of(text).runs[0].runs] == [2, 3, 4, 5]
    assert findings_of(text)["rate-disagrees"].evidence[0].at == 1


@pytest.mark.parametrize(
    "last", ["Average: 59.", "Mean (5 runs): 59.6 to", "Run 6/6: 2048 tok", "Avg:"]
)
def test_a_cut_summary_or_run_is_a_warning(last: str) -> None:
    assert findings_of(RUNS + last + "\n")["cut-line"].evidence[0].at == 6
    assert "cut-line" not in findings_of(RUNS + "Average: 59.6 tok/s\n")


def test_runs_that_are_announced_and_missing_are_named() -> None:
    text = "".join(RUNS.splitlines(keepends=True)[:3])
    assert findings_of(text)["runs-missing"].sentence == "3 of the 5 announced runs are there"
    assert "runs-missing" not in findings_of(RUNS)


def test_component_lines_between_runs_do_not_part_them() -> None:
    between = RUNS.replace("\n", "\nDraft: 0.60 ms/cyc (2.0%)\n")
    assert [len(runs.runs) for runs in facts_of(between).runs] == [5]


def test_a_heading_says_which_runs_are_plain() -> None:
    text = "--- baseline, no speculation ---\n" + RUNS + "--- EAGLE-3 ---\n" + RUNS
    assert [runs.plain for runs in facts_of(text).runs] == [True, False]
    assert [runs.plain for runs in facts_of(RUNS).runs] == [None]


TIMER = (
    "[TIMING iter=50] GPU and CPU ms/iter:\n"
    "  label          n  gpu_total  gpu_avg  cpu_total  cpu_avg\n"
    "  build_total   50      125.0      2.5     4200.0     84.0\n"
    "  read_lengths  50        0.2    0.004     3998.0    79.96\n"
    "  split         50        4.8    0.096        5.0      0.1\n"
)


def test_an_event_timer_table_gives_both_clocks_of_each_label() -> None:
    timers = {timer.label: (timer.gpu_s, timer.host_s) for timer in facts_of(TIMER).timers}
    assert timers["read_lengths"] == pytest.approx((4e-6, 79.96e-3))
    assert len(timers) == 3


def test_a_timer_row_whose_average_is_not_its_total_is_not_read() -> None:
    text = TIMER.replace("79.96\n", "7.96\n")
    assert [timer.label for timer in facts_of(text).timers] == ["build_total", "split"]
    assert findings_of(text)["lines-not-read"].evidence[0].at == 4


MATRIX = (
    "model X, aggregate decode tok/s\nconc    no_mtp   mtp3\n"
    "4       164.3    247.3\n8       251.5    201.5\n16      429.2    313.3\n32      318.1    "
    "405.6\n"
)


def test_a_table_by_load_gives_plain_steps_and_drafted_tokens() -> None:
    known = facts_of(MATRIX)
    assert [(one.name, one.plain, one.drafted) for one in known.columns] == [
        ("no_mtp", True, 0),
        ("mtp3", False, 3),
    ]
    steps = {one.running: round(one.cycle_s * 1e3, 1) for one in known.all_steps}
    assert steps == {4: 24.3, 8: 31.8, 16: 37.3, 32: 100.6}


def test_columns_of_all_reduces_are_named_without_their_unit_and_have_the_ranks_of_the_title() -> (
    None
):
    text = (
        "# all-reduce latency, 8 GPUs\nbytes     without_us  with_us\n"
        "32768     48.16       26.20\n65536     48.69       25.59\n"
    )
    records = [one for one in times_of(text) if one.op == "all_reduce"]
    assert {(one.implementation, one.ranks) for one in records} == {("without", 8), ("with", 8)}
    times = {(one.implementation, one.dims["bytes"]): one.median_s for one in records}
    assert times["with", 65_536] == pytest.approx(25.59e-6)


def test_a_table_without_a_unit_is_not_read() -> None:
    text = MATRIX.replace("tok/s", "speed")
    assert facts_of(text).columns == ()
    assert "lines-not-read" in findings_of(text)


# Settings and privacy.


def test_settings_are_read_by_name_and_nothing_else_is() -> None:
    text = (
        "server_args=ServerArgs(model_path='/home/alice/kimi', host='10.0.0.7', "
        "api_key='sk-secret', "
        "attention_backend='fa3', speculative_attention_mode='decode', tp_size=8)\n"
        "non-default args: "
        "{'tensor_parallel_size': 8, 'hf_token': 'hf_secret', 'dtype': 'bfloat16'}\n"
        "NCCL_PROTO=Simple MY_API_KEY=sk-other python -m x --attention-backend=/home/x --tp 4\n"
    )
    text += lines.steady(10.0)
    found = {name: one.value for name, one in facts_of(text).settings.items()}
    assert found == {
        "attention_backend": "fa3",
        "speculative_attention_mode": "decode",
        "tp_size": "8",
        "tensor_parallel_size": "8",
        "dtype": "bfloat16",
        "NCCL_PROTO": "Simple",
    }


def test_nothing_private_reaches_a_record() -> None:
    head = (
        "[2026-01-05 10:00:00] alice@box.example.com /home/alice/run.py 10.0.0.7:29500 sk-secret\n"
        "WARNING [compilation.py] CUDAGraphMode.FULL is not supported with /opt/alice/B backend "
        "(see "
        "http://box.example.com/x?key=sk-secret); setting cudagraph_mode=PIECEWISE\n"
        "Custom allreduce is disabled because /home/alice/lib.so is missing at 10.0.0.7:80 for "
        "alice@box.example.com\n"
    )
    from verifyscope.records import Finding, Measurement, encoded

    text = head + lines.steady(10.0, accept=2.0)
    records = [one for one in lines.read(text) if isinstance(one, (Finding, Measurement))]
    records += [one.finding(environment="e", command="c") for one in lines.concluded(text).values()]
    whole = b"".join(map(encoded, records)).decode()
    for word in ("alice", "10.0.0.7", "example.com", "sk-secret", "/home", "/opt"):
        assert word not in whole
    assert "graph-piecewise-fallback" in whole


def test_engines_whose_lines_are_interleaved_are_told_apart() -> None:
    text = ""
    for at in range(3):
        one, other = lines.vllm(30.0, second=at), lines.vllm(60.0, second=at)
        text += one + other.replace("Engine 000", "Engine 001")
    assert [found for _, _, found in cycles(text)] == [[30.0] * 3, [60.0] * 3]


def test_a_long_log_is_counted_whole_though_a_sample_of_it_is_kept() -> None:
    steady = lines.steady(10.0, accept=2.0, windows=6000)
    odd = lines.sglang(200.0, tokens=10, accept=2.0)
    (record,) = times_of(steady)
    assert record.count == 6000
    (record,) = times_of(
        steady + odd + "\n" + lines.steady(10.0, accept=2.0, windows=5999, start=10)
    )
    assert record.count == pytest.approx(11_999, rel=2e-3)


def test_a_setting_that_changes_within_a_file_is_named() -> None:
    text = "--attention-backend fa3\n--attention-backend triton\n" + lines.steady(10.0)
    found = findings_of(text)["settings-changed"]
    assert found.evidence[0].value == "attention_backend=triton"
    assert facts_of(text).settings["attention_backend"].value == "fa3"
    assert "settings-changed" not in findings_of("--tp 8\n--tp 8\n" + lines.steady(10.0))
