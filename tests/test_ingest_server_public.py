"""Public serving logs, where they lie beside the checkout, give the facts expected of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from ingest.conclusions import Conclusion
from tests.serving_lines import concluded, facts_of

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "server"

pytestmark = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"no {SHARED.name} logs beside the checkout"
)


def text_of(start: str) -> str:
    (path,) = SHARED.glob(f"{start}_*")
    return path.read_text(encoding="utf-8")


def expected(start: str) -> dict[str, Any]:
    found = json.loads((SHARED / "expected.json").read_text(encoding="utf-8"))
    facts: dict[str, Any] = next(one["facts"] for one in found if one["file"].startswith(start))
    return facts


def cycles_ms(start: str) -> list[list[float]]:
    return [[one * 1e3 for one in steps.seconds] for steps in facts_of(text_of(start)).steps]


def gains_of(found: Conclusion) -> dict[str, float]:
    """How many times as fast, by load."""
    words = [seen.value.split() for seen in found.seen]
    return {each[0]: float(each[2]) for each in words}


def test_01_the_cycle_is_constant_and_acceptance_drives_the_rate() -> None:
    want = expected("01")
    (steps,) = facts_of(text_of("01")).steps
    assert [one * 1e3 for one in steps.seconds] == pytest.approx(want["cycle_ms"], abs=0.006)
    assert list(steps.acceptances) == want["accept_len"]
    assert steps.line == 2  # the first window spans idle time
    assert steps.verify_tokens == want["num_draft_tokens"]
    assert "spread 0.3 %" in concluded(text_of("01"))["acceptance-drives-rate"].sentence


def test_02_a_plain_step_without_the_newer_fields() -> None:
    want = expected("02")
    known = facts_of(text_of("02"))
    (steps,) = known.steps
    assert steps.mode == "decode"
    assert steps.cycle_s * 1e3 == pytest.approx(want["step_ms"], abs=0.005)
    assert sum(1 / one for one in steps.seconds) / 4 == pytest.approx(want["mean_tok_s"], abs=0.005)
    assert known.steps_a_window == want["tokens_per_line"]


def test_04_a_missing_graph_and_a_drafter_that_gives_nothing() -> None:
    want = expected("04")
    (off, on), found = cycles_ms("04"), concluded(text_of("04"))
    assert off == pytest.approx(
        [want["step_ms_before"], want["second_before_line_step_ms"]], abs=0.006
    )
    assert on == pytest.approx([want["step_ms_after"]], abs=0.006)
    assert f"({want['gain_pct']} %)" in found["graph-off"].sentence
    assert "drafter-broken" in found


def test_05_acceptance_agrees_with_the_growth_of_tokens() -> None:
    want = expected("05")
    known = facts_of(text_of("05"))
    (steps,) = known.steps
    assert [one * 1e3 for one in steps.seconds] == pytest.approx(want["cycle_ms"], abs=0.05)
    assert known.steps_a_window == want["interval"]
    assert steps.verify_tokens == 4  # (2.94 - 1) / 3 is its accept rate
    assert steps.rows == 192


def test_06_cycles_and_rows_by_load_and_the_cliff_between_16_and_32_rows() -> None:
    want = expected("06")
    steps = {str(one.running): one for one in facts_of(text_of("06")).steps}
    assert {load: one.rows for load, one in steps.items()} == want["verify_rows"]
    for load, cycle_ms in want["cycle_ms"].items():
        assert steps[load].cycle_s * 1e3 == pytest.approx(cycle_ms, rel=0.005)
    each = [one * 1e3 for step in steps.values() for one in step.seconds]
    assert each == pytest.approx(want["per_line_cycle_ms"][1:], abs=0.06)
    assert steps["1"].line == 4  # its first window is a partial one
    assert (
        "2.40 x the time for 2.00 x the rows" in concluded(text_of("06"))["kernel-cliff"].sentence
    )


def test_07_where_speculation_pays_and_that_plain_decoding_has_the_same_cliff() -> None:
    want = expected("07")
    known = facts_of(text_of("07"))
    plain = {str(one.running): round(one.cycle_s * 1e3, 1) for one in known.all_steps}
    assert plain == pytest.approx(want["step_ms_no_mtp"], abs=0.1)
    found = concluded(text_of("06"), text_of("07"))
    gains = gains_of(found["speculation-by-load"])
    assert gains == pytest.approx(want["speedup"], abs=0.006)
    cliff = found["kernel-cliff"].sentence
    assert "41.7 ms to 100 ms" in cliff  # rows 16 and 32 with drafts
    assert "37.3 ms and 101 ms" in cliff  # the same rows without
    assert "verify-slower-than-plain-rows-matched" not in found


def test_08_the_piecewise_fallback_and_a_cost_that_grows_with_context() -> None:
    found = concluded(text_of("08"))
    assert found["graph-piecewise-fallback"].seen[0].line == 1
    gains = gains_of(found["columns-compared"])
    assert gains == pytest.approx(expected("08")["speedup"], abs=0.006)
    assert "grows with context" in found["columns-compared"].sentence


def test_09_the_host_waits_in_one_label() -> None:
    want, found = expected("09"), concluded(text_of("09"))["host-sync"]
    assert f"blocked {want['host_blocked_ms']} ms" in found.sentence
    assert f"GPU works {want['gpu_ms'] * 1000:.2f} us" in found.sentence
    assert f"{want['share_of_build_cpu_pct']} % of the longest label" in found.sentence


def test_13_the_table_of_latencies_gives_its_speedups() -> None:
    gains = gains_of(concluded(text_of("13"))["columns-compared"])
    assert gains == pytest.approx(expected("13")["speedup"], abs=0.006)


def test_18_a_kernel_name_proves_no_protocol() -> None:
    want, found = expected("18"), concluded(text_of("18"))["protocol-not-proven"]
    assert f"NCCL_PROTO={want['requested']} " in found.sentence
    assert f"called {want['kernel_suffix']}" in found.sentence


def test_21_verify_takes_four_times_a_plain_step() -> None:
    want, found = expected("21"), concluded(text_of("21"))["verify-slower-than-plain"]
    assert f"takes {want['verify_ms_default']} ms, at least {want['ratio']}.00 x" in found.sentence
    assert f"takes {want['verify_ms_with_mla_backend']} ms" in found.sentence
