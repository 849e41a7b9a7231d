"""Each finding is raised by its case and not by a near miss."""

import pytest

from ingest import verdict
from tests import serving_lines as lines
from tests.serving_lines import concluded

FOUNDING = (
    "Target verify: 29.47 ms/cyc (97.0%)\n"
    "Target verify: 29.48 ms/cyc (97.0%)\n"
    "Target verify: 29.49 ms/cyc (97.0%)\n"
)
PLAIN_RUNS = "".join(f"Run {at}/3: 2048 tokens in 24.82s = 82.5 tok/s\n" for at in (1, 2, 3))
FOUNDING_SENTENCE = (
    "verify 29.48 ms, 97 % of a 30.4 ms cycle; against 12.12 ms plain, acceptance must exceed "
    "2.51 to "
    "pay; acceptance is not in this file"
)


@pytest.mark.parametrize(
    "texts",
    [
        (FOUNDING + "Plain: 82.5 tok/s\n",),
        (FOUNDING + "Plain decode: 12.12 ms/tok\n",),
        (FOUNDING, PLAIN_RUNS),
        (FOUNDING, lines.steady(12.12, graph=None)),
    ],
)
def test_the_founding_lines_give_their_numbers_and_their_verdict(texts: tuple[str, ...]) -> None:
    found = concluded(*texts)
    assert found["break-even"].sentence == FOUNDING_SENTENCE
    assert verdict.verdict([*found.values()], [], []) == FOUNDING_SENTENCE
    assert found["share-bound"].sentence == (
        "verify bounds the cycle (97 %): halving verify gives 1.94 x the tokens/s, halving all "
        "that is "
        "not verify 1.02 x, halving acceptance 0.50 x"
    )


def test_the_plain_step_may_come_from_the_command_line() -> None:
    assert concluded(FOUNDING, plain_ms=12.12)["break-even"].sentence == FOUNDING_SENTENCE


def test_without_a_plain_step_nothing_is_said_to_pay() -> None:
    found = concluded(FOUNDING)
    assert "break-even" not in found
    assert found["cycle"].sentence == (
        "verify 29.48 ms, 97 % of a 30.4 ms cycle; acceptance is not in this file; what a plain "
        "step "
        "takes is not in these files"
    )


def test_runs_of_the_same_file_imply_an_acceptance_and_are_never_the_plain_step() -> None:
    runs = "".join(f"Run {at}/2: 2048 tokens in 34.13s = 60.0 tok/s\n" for at in (1, 2))
    assert concluded(FOUNDING + runs, plain_ms=12.12)["break-even"].sentence == (
        f"{FOUNDING_SENTENCE}; its runs imply 1.82"
    )
    assert "break-even" not in concluded(FOUNDING + runs)


@pytest.mark.parametrize(
    ("accepted", "words"),
    [(2.4, "does not pay, 0.96 x"), (2.6, "pays, 1.04 x")],
)
def test_measured_acceptance_stands_beside_the_needed_one(accepted: float, words: str) -> None:
    text = FOUNDING + f"Accept length: {accepted} tok/cyc\n"
    sentence = concluded(text, plain_ms=12.12)["break-even"].sentence
    assert f"it is {accepted:.2f}: speculation {words} the plain rate" in sentence


def test_a_plain_step_at_another_load_is_no_plain_step() -> None:
    served = lines.steady(30.0, accept=2.0, running=8)
    assert "break-even" not in concluded(served, lines.steady(12.0, running=1))
    assert "break-even" in concluded(served, lines.steady(12.0, running=8))


def test_the_plain_step_of_the_own_file_comes_before_that_of_another() -> None:
    other = "aggregate tok/s\nconc no_mtp mtp3\n1 50.0 60.0\n8 90.0 99.0\n"
    own = FOUNDING + "Plain: 82.5 tok/s\n"
    assert concluded(other, own)["break-even"].sentence == FOUNDING_SENTENCE
    assert concluded(other, FOUNDING, PLAIN_RUNS)["break-even"].sentence == FOUNDING_SENTENCE
    assert "against 20.00 ms plain" in concluded(other, FOUNDING)["break-even"].sentence


def test_the_cycle_line_of_a_table_is_the_cycle() -> None:
    text = "Verify: 20.00 ms/cyc\nDraft: 4.00 ms/cyc\nCycle: 25.00 ms/cyc\n"
    found = concluded(text, plain_ms=10.0)
    assert "80 % of a 25.0 ms cycle" in found["break-even"].sentence
    assert "halving verify gives 1.67 x the tokens/s, halving drafting 1.09 x" in (
        found["share-bound"].sentence
    )


def test_a_cycle_without_one_large_part_is_bound_by_none() -> None:
    text = "Verify: 5.50 ms/cyc (55.0%)\nDraft: 4.50 ms/cyc (45.0%)\n"
    assert "share-bound" not in concluded(text, plain_ms=10.0)


def served(cycle_ms: float, running: int, **more: float) -> str:
    """Three windows of vLLM at one load, k = 3."""
    return "".join(lines.vllm(cycle_ms, running=running, second=at, **more) for at in range(3))  # type: ignore[arg-type]


def plain(step_ms: float, running: int) -> str:
    """Three windows of vLLM without speculation."""
    return "".join(lines.plain_vllm(step_ms, running=running, second=at) for at in range(3))


def runs_of(*seconds: float) -> str:
    """Runs of 1,000 tokens."""
    return "".join(
        f"Run {at}/{len(seconds)}: 1000 tokens in {each}s = {1000 / each:.1f} tok/s\n"
        for at, each in enumerate(seconds, 1)
    )


CASES: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    (
        "drafter-broken",
        (lines.steady(10.0, accept=1.0),),
        (lines.steady(10.0, accept=1.0, windows=3) + lines.steady(10.0, accept=1.02, start=2000),),
    ),
    ("drafter-broken", (served(30.0, 1, accepted=0.0),), (served(30.0, 1, accepted=0.01),)),
    (
        "acceptance-suspiciously-high",
        (served(30.0, 1, accepted=2.93),),
        (served(30.0, 1, accepted=2.7),),
    ),
    (
        "graph-off",
        (lines.steady(8.8, running=48, graph="False"),),
        (lines.steady(8.8, running=48, graph="True"),),
    ),
    (  # the flag is of the last batch: one window shows nothing
        "graph-off",
        ("Cudagraph is disabled under eager mode\n" + served(30.0, 1),),
        (
            lines.steady(8.8, windows=5)
            + lines.steady(8.8, windows=1, graph="False", start=1200)
            + lines.steady(8.8, windows=5, start=1240),
        ),
    ),
    (
        "graph-piecewise-fallback",
        (
            "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention "
            "backend "
            "FlashInferBackend (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting "
            "cudagraph_mode=PIECEWISE\n",
        ),
        ("Profiling CUDA graph memory: PIECEWISE=5, cudagraph_mode=FULL_AND_PIECEWISE ms/cyc\n",),
    ),
    (
        "kernel-cliff",
        (served(41.5, 4) + served(100.0, 8),),
        (served(41.5, 4) + served(80.0, 8),),
    ),
    (
        "verify-slower-than-plain-rows-matched",
        (served(50.0, 4), plain(37.3, 16)),
        (served(41.5, 4), plain(37.3, 16)),
    ),
    (
        "verify-slower-than-plain",
        ("verify (default backend)      ~400 ms\nplain decode forward      <100 ms\n",),
        ("verify (default backend)      ~150 ms\nplain decode forward      <100 ms\n",),
    ),
    (
        "host-sync",
        (
            "label  n  gpu_total  gpu_avg  cpu_total  cpu_avg\nbuild  50  125.0  2.5  4200.0  "
            "84.0\n"
            "read_lengths  50  0.2  0.004  3998.0  79.96\n",
        ),
        (
            "label  n  gpu_total  gpu_avg  cpu_total  cpu_avg\nbuild  50  4000.0  80.0  4200.0  "
            "84.0\n"
            "read_lengths  50  0.2  0.004  5.0  0.1\n",
        ),
    ),
    (
        "fixed-cost-not-sharded",
        (
            "--tp 1\n" + lines.steady(40.0, accept=2.0),
            "--tp 4\n" + lines.steady(34.0, accept=2.0),
        ),
        (
            "--tp 1\n" + lines.steady(40.0, accept=2.0),
            "--tp 4\n" + lines.steady(12.0, accept=2.0),
        ),
    ),
    (
        "setting-without-effect",
        (
            "--speculative-attention-mode prefill\n" + FOUNDING,
            "--speculative-attention-mode decode\n" + FOUNDING,
        ),
        (
            "--speculative-attention-mode prefill --tp 8\n" + FOUNDING,
            "--speculative-attention-mode decode --tp 4\n" + FOUNDING,
        ),
    ),
    (
        "setting-with-effect",
        (
            "--attention-backend fa3\n" + FOUNDING,
            "--attention-backend triton\n" + FOUNDING.replace("29.4", "19.0"),
        ),
        ("--attention-backend fa3\n" + FOUNDING, "--attention-backend triton\n" + FOUNDING),
    ),
    (
        "unexplained-difference",
        ("--tp 8\n" + FOUNDING, "--tp 8\n" + FOUNDING.replace("29.4", "19.0")),
        ("--tp 8\n" + FOUNDING, "--tp 8\n" + FOUNDING),
    ),
    (
        "setting-ignored",
        ("WARNING: speculative_attention_mode is ignored with this backend\n" + FOUNDING,),
        ("WARNING: top_p is ignored with this backend\n" + FOUNDING,),
    ),
    (
        "custom-all-reduce-off",
        (
            "Custom allreduce is disabled because it's not supported on more than two PCIe-only "
            "GPUs. "
            "To silence this warning, specify disable_custom_all_reduce=True explicitly.\n",
        ),
        ("Custom allreduce is disabled by disable_custom_all_reduce=True\n" + FOUNDING,),
    ),
    (
        "protocol-not-proven",
        ("$ NCCL_PROTO=Simple program -> kernel: ncclDevKernel_AllReduce_Sum_f16_RING_LL\n",),
        ("$ NCCL_PROTO=LL program -> kernel: ncclDevKernel_AllReduce_Sum_f16_RING_LL\n",),
    ),
    (
        "speculation-by-load",
        ("tok/s\nconc no_mtp mtp3\n1 59.0 95.6\n8 251.5 201.5\n",),
        ("tok/s\nctx piecewise full_graph\n2000 75.0 116.6\n",),
    ),
    (
        "run-outlier",
        (runs_of(10.0, 10.1, 13.0, 9.9, 10.0),),
        (runs_of(10.0, 10.1, 10.2, 9.9, 10.0),),
    ),
    (
        "summary-disagrees",
        (PLAIN_RUNS + "Average: 75.1 tok/s\n",),
        (PLAIN_RUNS + "Average: 82.5 tok/s\n",),
    ),
    (
        "interval-too-small",
        ("Run 1/1: 32 tokens in 0.40s = 80.0 tok/s\n",),
        ("Run 1/1: 320 tokens in 4.00s = 80.0 tok/s\n",),
    ),
    (
        "interval-too-small",
        (
            "--decode-log-interval 1\n"
            + "".join(lines.sglang(100.0, tokens=100 + at, second=at) + "\n" for at in range(8)),
        ),
        (lines.steady(10.0),),
    ),
    (
        "acceptance-drives-rate",
        (lines.steady(10.0, accept=1.8, windows=3) + lines.steady(10.0, accept=2.05, start=1216),),
        (lines.steady(10.0, accept=2.0),),
    ),
    (
        "cost-grows",
        (
            "".join(
                lines.sglang(1000 / (10 + at), tokens=1000 + 40 * at, second=at) + "\n"
                for at in range(24)
            ),
        ),
        (lines.steady(10.0, windows=24, jitter=(0.0, 0.01, -0.01)),),
    ),
    (
        "cost-flat",
        (lines.steady(10.0, windows=24),),
        (lines.steady(10.0, windows=24, jitter=(0.0, 0.2, -0.2, 0.1, -0.15)),),
    ),
]


@pytest.mark.parametrize(
    ("name", "case", "near"), CASES, ids=[f"{at}-{case[0]}" for at, case in enumerate(CASES)]
)
def test_a_finding_is_raised_by_its_case_and_not_by_a_near_miss(
    name: str, case: tuple[str, ...], near: tuple[str, ...]
) -> None:
    assert name in concluded(*case)
    assert name not in concluded(*near)


def test_a_missing_graph_costs_at_least_what_the_intervals_leave() -> None:
    text = lines.steady(8.8, running=48, graph="False", windows=2) + lines.steady(
        7.82, running=48, windows=2, start=4000
    )
    found = concluded(text)["graph-off"]
    assert "costs at least 0.980 ms (12.5 %)" in found.sentence
    assert found.worth_s == pytest.approx(0.98e-3, abs=2e-6)


def test_a_cliff_that_plain_decoding_has_too_is_no_matter_of_the_drafter() -> None:
    verify = served(41.5, 4) + served(100.4, 8)
    plain = "aggregate tok/s\nconc no_mtp mtp3\n16 429.2 313.3\n32 318.1 405.6\n"
    sentence = concluded(verify, plain)["kernel-cliff"].sentence
    assert sentence.startswith("from 16 to 32 rows a pass goes from 41.5 ms to 100 ms")
    assert "without speculation the same rows take 37.3 ms and 101 ms" in sentence


def test_the_innermost_label_that_waits_is_named() -> None:
    found = concluded(CASES[9][1][0])["host-sync"]
    assert "blocked 79.96 ms an iteration in read_lengths" in found.sentence
    assert "95.2 % of the longest label" in found.sentence
    assert found.worth_s == pytest.approx(79.956e-3)


def test_findings_name_the_lines_that_show_them() -> None:
    found = concluded(FOUNDING, PLAIN_RUNS)["break-even"]
    assert [(seen.file, seen.line) for seen in found.seen] == [("a.log", 1), ("b.log", 1)]


def test_growth_is_told_by_context_with_slope_and_interval() -> None:
    sentence = concluded(CASES[-2][1][0])["cost-grows"].sentence
    assert "grows with context: last quarter " in sentence
    assert "; slope 25 ms (25 to 25) a 1,000 tokens of context" in sentence


def test_a_log_of_plain_steps_alone_is_told_with_its_rate() -> None:
    times = lines.times_of(lines.steady(12.12, graph=None))
    assert verdict.verdict([], [], times) == (
        "plain decoding takes 12.12 ms a step at 1 running: 82.5 tokens/s"
    )
