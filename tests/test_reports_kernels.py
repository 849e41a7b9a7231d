"""Kernel rows and what did not run: each cell, ratio and count is what the records hold."""

from pathlib import Path

import pytest

from tests.report_page import Page
from tests.report_sample import CPU, GPU, US, kernel
from verifyscope.records import Measurement, Record, Samples


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def one_case(*changes: Measurement) -> list[Record]:
    return [GPU, *changes]


def test_a_row_shows_time_ratio_floor_and_bandwidth(page: Page) -> None:
    page.of(
        one_case(
            kernel("triton", 25.0),
            kernel("flashinfer", 40.0, kind="baseline-direct"),
        )
    )
    assert page.row("### `tree_attention`", "`triton`") == {
        "implementation": "`triton`",
        "kind": "own",
        "time (95 %)": "25.0 us (24.8–25.2)",
        "to baseline": "0.62 faster \\*",
        "of floor": "80 %",
        "bandwidth": "1.20 TB/s",
    }
    assert page.row("### `tree_attention`", "`flashinfer`")["to baseline"] == "the baseline"
    assert "**`t4-l8k`**: rows 4, context 8,192, touches 30.0 MB, floor 20.0 us" in page.text
    assert (
        "- `tree_attention`: `triton` takes 0.62 of the time of `flashinfer` in 1 case: 1 faster."
    )
    assert "All rows: graph of 64 calls." in page.text


def test_the_baseline_is_the_fastest_direct_one_and_never_one_of_different_work(
    page: Page,
) -> None:
    page.of(
        one_case(
            kernel("own", 30.0),
            kernel("different", 1.0, kind="baseline-different-work"),
            kernel("composed", 10.0, kind="baseline-composed"),
            kernel("direct", 20.0, kind="baseline-direct"),
            kernel("slow direct", 40.0, kind="baseline-direct"),
        )
    )
    ratios = {
        row["implementation"]: row["to baseline"] for row in page.rows("### `tree_attention`")
    }
    assert ratios == {
        "`different`": "0.05 faster \\*",
        "`composed`": "0.50 faster \\*",
        "`direct`": "the baseline",
        "`own`": "1.50 slower \\*",
        "`slow direct`": "2.00 slower \\*",
    }


def test_without_a_direct_baseline_a_composed_one_serves_and_its_kind_says_so(page: Page) -> None:
    page.of(one_case(kernel("own", 30.0), kernel("parts", 20.0, kind="baseline-composed")))
    parts = page.row("### `tree_attention`", "`parts`")
    assert (parts["kind"], parts["to baseline"]) == ("composed baseline", "the baseline")
    assert page.row("### `tree_attention`", "`own`")["to baseline"] == "1.50 slower \\*"


@pytest.mark.parametrize(
    "other",
    [{"launch": "eager", "depth": None}, {"environment": "cpu"}, {"cache": "flushed"}],
)
def test_rows_of_other_circumstances_are_not_compared(page: Page, other: dict[str, object]) -> None:
    page.of(
        [GPU, CPU, kernel("own", 30.0), kernel("direct", 20.0, kind="baseline-direct", **other)]
    )
    assert "to baseline" not in page.row("### `tree_attention`", "`own`")
    assert "`own` takes" not in page.text.partition("## Machine")[0]


def test_a_verdict_comes_from_the_raw_samples_where_they_are_kept(page: Page) -> None:
    own, direct = kernel("own", 30.0), kernel("direct", 30.3, kind="baseline-direct")
    samples = [
        Samples(id=own.id, seconds=tuple((30 + 0.01 * n) * US for n in range(9))),
        Samples(id=direct.id, seconds=tuple((30.1 + 0.01 * n) * US for n in range(9))),
    ]
    page.of(one_case(own, direct), samples)
    assert page.row("### `tree_attention`", "`own`")["to baseline"] == "1.00 same"
    assert "raw samples were not kept" not in page.text
    (page.folder / "run" / "samples.jsonl").unlink()
    page.of(one_case(own, direct))
    assert page.row("### `tree_attention`", "`own`")["to baseline"] == "0.99 unsure \\*"
    assert "raw samples were not kept" in page.text


def test_a_warm_time_stands_beside_the_cold_one_and_a_flushed_one_says_so(page: Page) -> None:
    page.of(
        one_case(
            kernel("triton", 12.0, cache="warm"),
            kernel("triton", 25.0),
            kernel("cupy", 26.0, cache="flushed", flags=("throttled",)),
        )
    )
    triton, cupy = page.rows("### `tree_attention`")
    assert (triton["time (95 %)"], triton["warm"]) == ("25.0 us (24.8–25.2)", "12.0 us")
    assert (cupy["warm"], cupy["notes"]) == ("–", "flushed; **throttled**")


def test_of_repeats_the_last_counts_and_the_others_are_named(page: Page) -> None:
    page.of(one_case(*(kernel("triton", us) for us in (25.0, 24.0, 26.0, 25.5))))
    (row,) = page.rows("### `tree_attention`")
    assert row["time (95 %)"].startswith("25.5 us")
    assert "last of 4 runs, 24.0–26.0" in page.text


def test_a_setting_shows_what_was_asked_and_what_was_in_force(page: Page) -> None:
    page.of(
        one_case(
            kernel("a", 1.0, requested={"PROTO": "LL"}, effective={"PROTO": "LL"}),
            kernel("b", 2.0, requested={"PROTO": "LL"}, effective={"PROTO": "Simple"}),
            kernel("c", 3.0, requested={"PROTO": "LL"}),
        )
    )
    notes = [row["notes"] for row in page.rows("### `tree_attention`")]
    assert notes == [
        "PROTO LL",
        "PROTO LL asked, Simple in force",
        "PROTO LL asked, not known in force",
    ]


def test_rows_of_a_cpu_are_labelled_in_table_and_text(page: Page) -> None:
    page.of([CPU, kernel("torch", 900.0, environment="cpu", launch="eager", cache="warm")])
    assert "All rows: CPU, eager, warm." in page.text
    assert "**Rows marked CPU were timed on a CPU. They say nothing about a GPU.**" in page.text
    assert "Measured on Laptop, 8 cores, no GPU." in page.text


def test_ceilings_are_rates_and_not_rows_to_compare(page: Page) -> None:
    ceiling = {"floor_s": None, "case": "1G"}
    page.of(
        one_case(
            kernel(
                "read",
                700.0,
                part="memory_ceiling",
                op="memory_read",
                touched_bytes=1.05e9,
                **ceiling,
            ),
            kernel("mma", 900.0, part="matrix_ceiling", op="matrix", flops=3.6e11, **ceiling),
            kernel("empty", 2.0, part="empty_kernel", op="empty", **ceiling),
        )
    )
    rates = {row["ceiling"]: row["rate"] for row in page.rows("### What the machine gives")}
    assert rates == {"`memory_read`": "1.50 TB/s", "`matrix`": "400 Tflop/s", "`empty`": "–"}


def test_several_cases_have_an_overview_and_one_row_each_needs_no_table_of_its_own(
    page: Page,
) -> None:
    cases = [(f"t{t}", {"rows": t}) for t in (1, 2)]
    page.of(
        one_case(
            *(kernel("own", 10.0 * len(c), case=c, dims=d) for c, d in cases),
            *(kernel("direct", 40.0, case=c, dims=d, kind="baseline-direct") for c, d in cases),
        )
    )
    overview = page.row("### `tree_attention`", "`t1`")
    assert overview == {
        "case": "`t1`",
        "floor": "20.0 us",
        "`own`": "20.0 us, 0.50 faster \\*",
        "`direct`": "40.0 us",
    }
    page.of(one_case(*(kernel("own", 10.0, case=c, dims=d) for c, d in cases)))
    assert [row["case"] for row in page.rows("### `tree_attention`")] == ["`t1`", "`t2`"]


def test_a_verify_is_set_beside_a_step_of_one_token_and_fitted(page: Page) -> None:
    page.of(
        one_case(
            *(
                kernel(
                    "own",
                    10.0 + 2 * t,
                    case=f"t{t}",
                    dims={"rows": t, "context": 8192, "tree": f"x{t}"},
                )
                for t in (1, 2, 4, 8)
            ),
            kernel("own", 5.0, case="short", dims={"rows": 2, "context": 1}),
        )
    )
    assert page.rows("time(T) / time(1)") == [
        {
            "implementation": "`own`",
            "T=1": "12.0 us",
            "T=2": "1.17",
            "T=4": "1.50",
            "T=8": "2.17",
            "base": "10.0 us",
            "slope": "2.00 us",
            "floor": "20.0 us",
            "growth over the roofline's": "**2.17 at T=8, above 1.3**",
        }
    ]


def test_more_rows_than_a_page_holds_are_counted(page: Page) -> None:
    page.of(one_case(*(kernel("own", 10.0, case=f"c{n}") for n in range(2100))))
    assert "\n1,100 cases are left out here; all are in the records." in page.text
    assert "**2,100 points measured**" in page.text


def test_what_is_left_out_is_work_beside_kernels_first(page: Page) -> None:
    beside: dict[str, object] = {"part": "metadata", "op": "tree_attention_plan"}
    page.of(
        one_case(
            *(kernel("own", 10.0, case=f"c{n}", **beside) for n in range(900)),
            *(kernel("own", 10.0, case=f"c{n}") for n in range(200)),
        )
    )
    assert len(page.rows("### `tree_attention`")) == 200
    assert len(page.rows("### `tree_attention_plan`")) == 800


def test_five_hundred_equal_reasons_are_one_row_with_a_count(page: Page) -> None:
    page.of(
        one_case(
            *(kernel("cupy", None, case=f"c{n}") for n in range(300)),
            *(kernel("triton", None, case=f"c{n}") for n in range(200)),
            *(kernel("torch", None, case=f"c{n}", reason=f"needs {n}.5 GB") for n in range(9)),
            kernel("sdpa", None, status="failed", reason="wrong"),
            kernel("sdpa", None, case="v", status="void", reason="119 % of the ceiling"),
        )
    )
    assert page.rows("## What did not run, and why") == [
        {
            "status": "**failed**",
            "rows": "1",
            "reason": "wrong",
            "which": "`tree_attention/sdpa` 1",
        },
        {
            "status": "void",
            "rows": "1",
            "reason": "119 % of the ceiling",
            "which": "`tree_attention/sdpa` 1",
        },
        {
            "status": "skipped",
            "rows": "500",
            "reason": "needs a CUDA device; this machine has none",
            "which": "`tree_attention/cupy` 300, `tree_attention/triton` 200",
        },
        {
            "status": "skipped",
            "rows": "9",
            "reason": "needs 0.5 GB (and 8 reasons like it)",
            "which": "`tree_attention/torch` 9",
        },
    ]
    assert (
        "**Nothing measured**; 1 failed; 1 void (119 % of the ceiling); 509 skipped (500 of them: "
        "needs a CUDA device; this machine has none)."
    ) in page.text
