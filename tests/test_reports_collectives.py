"""Sweeps, predictions and builds: each bandwidth, sum and worst is what the records hold."""

import re
from pathlib import Path

import pytest

from tests.report_page import Page
from tests.report_sample import CPU, US, built, collective, imported, predicted


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def test_a_sweep_has_both_bandwidths_in_both_directions(page: Page) -> None:
    inside = {"bytes": 57_344, "dtype": "bfloat16", "in_place": True}
    page.of(
        [
            CPU,
            collective(57_344, 100.0, p99_s=150 * US, low_s=95 * US, high_s=104 * US),
            collective(57_344, 80.0, dims=inside, flags=("non-monotone",)),
        ]
    )
    assert page.rows("### all_reduce, gloo, 8 ranks, bfloat16, CPU, measured") == [
        {
            "bytes": "57,344",
            "time": "100 us (95.0–104)",
            "p99": "150 us",
            "algbw": "573 MB/s",
            "busbw": "1.00 GB/s",
            "in-place time": "80.0 us",
            "in-place busbw": "1.25 GB/s",
            "notes": "in place **non-monotone**",
        }
    ]
    assert "say nothing about a link between GPUs" in page.text


@pytest.mark.parametrize(
    ("op", "ranks", "busbw"),
    [
        ("all_gather", 8, "502 MB/s"),
        ("broadcast", 8, "573 MB/s"),
        ("unheard_of", 8, None),
        ("all_reduce", 1, None),
    ],
)
def test_the_bus_factor_is_that_of_the_collective_and_its_ranks(
    page: Page, op: str, ranks: int, busbw: str | None
) -> None:
    page.of([CPU, collective(57_344, 100.0, op=op, part="other_collective", ranks=ranks)])
    assert page.rows(f"### {op}")[0].get("busbw") == busbw


def test_a_size_that_hung_stands_in_its_sweep_with_the_reason(page: Page) -> None:
    page.of([CPU, collective(1024, 10.0), collective(2048, None)])
    last = page.rows("### all_reduce")[1]
    assert (last["bytes"], last["time"]) == ("2,048", "–")
    assert last["notes"] == "**hang**: rank 3 did not come back"


def test_measured_and_imported_series_are_told_apart_by_source_and_file(page: Page) -> None:
    page.of(
        [
            CPU,
            imported(1024, 30.0, file="a.txt"),
            imported(1024, 31.0, file="b.txt"),
            collective(1024, 900.0),
        ]
    )
    headings = re.findall(r"^### (all_reduce.*)$", page.text, re.MULTILINE)
    assert headings == [
        "all_reduce, gloo, 8 ranks, bfloat16, CPU, measured",
        "all_reduce, nccl, 8 ranks, bfloat16, imported from a.txt",
        "all_reduce, nccl, 8 ranks, bfloat16, imported from b.txt",
    ]
    assert "**1 point measured** on Laptop, 8 cores, no GPU; 2 imported from `a.txt`, `b.txt`." in (
        page.text
    )


def test_the_all_reduces_of_a_pass_are_two_a_layer(page: Page) -> None:
    dims = {"bytes": 57_344, "in_place": False, "tokens": 4, "model": "kimi-k2.5"}
    page.of([CPU, collective(57_344, 33.0, dims=dims), collective(8, 10.0)])
    assert page.rows("### What a pass spends in all-reduces") == [
        {
            "model": "kimi-k2.5",
            "rows": "4",
            "bytes a call": "57,344",
            "a call": "33.0 us",
            "calls": "122",
            "a pass": "4.03 ms",
        }
    ]


def test_a_budget_adds_up_and_says_at_least_where_a_part_is_not_known(page: Page) -> None:
    page.of(
        [
            CPU,
            predicted("routed_experts", 60.0, 60, distinct_experts=31.0),
            predicted("attention_projections", 40.0, 60),
            predicted("all_reduce", None, 122),
        ]
    )
    rows = page.rows("### Predicted: kimi-k2.5, TP 8, 4 rows, 8,192 tokens of context")
    assert [(row["part"], row["calls"], row["time"], row["of what is known"]) for row in rows] == [
        ("routed_experts", "60", "3.60 ms", "60 %"),
        ("attention_projections", "60", "2.40 ms", "40 %"),
        ("all_reduce", "122", "not known", "–"),
        ("**the pass**", "242", "**at least 6.00 ms**", ""),
    ]
    assert rows[0]["notes"] == "31.0 distinct experts"
    assert rows[2]["notes"] == "not known: give --all-reduce-us"
    assert rows[2]["all bytes"] == "–"
    assert rows[3]["all bytes"] == "**240 MB**"
    assert "**Nothing in this section was measured on the GPU that is named.**" in page.text


def test_a_complete_budget_says_no_at_least(page: Page) -> None:
    page.of([CPU, predicted("routed_experts", 60.0, 60), predicted("all_reduce", 33.0, 122)])
    rows = page.rows("### Predicted:")
    assert [row["share"] for row in rows] == ["53 %", "47 %", ""]
    assert rows[-1]["time"] == "**7.63 ms**"
    assert "at least" not in page.text


def test_several_passes_stand_side_by_side_by_class(page: Page) -> None:
    page.of(
        [
            CPU,
            *(predicted("routed_experts", 30.0 * rows, 60, rows=rows) for rows in (1, 4)),
            *(predicted("lm_head", 180.0, 1, rows=rows) for rows in (1, 4)),
            predicted("all_reduce", None, 122, rows=4),
        ]
    )
    (moe,) = [row for row in page.rows("## Predicted budget") if row["predicted"] == "moe"]
    assert moe == {
        "predicted": "moe",
        "1 row": "1.80 ms",
        "4 rows, all-reduce not known": "7.20 ms",
    }


def test_a_prediction_that_was_made_twice_stands_once(page: Page) -> None:
    page.of([CPU, *(predicted("lm_head", 180.0, 1) for _ in range(3))])
    assert page.text.count("### Predicted:") == 1
    assert page.rows("### Predicted:")[0]["calls"] == "1"


def test_what_nccl_believes_of_a_call_is_no_predicted_pass(page: Page) -> None:
    believed = predicted("all_reduce", 25.0, 1, bytes=57_344, algorithm="ring")
    page.of([CPU, collective(57_344, 100.0), believed])
    assert "## Predicted" not in page.text


def test_the_worst_of_each_kernel_and_architecture_is_shown_and_every_failure(page: Page) -> None:
    page.of(
        [
            CPU,
            built("_attend", 90, registers=100, shared_bytes=101_376, case="a"),
            built("_attend", 90, registers=200, spilled_bytes=8, shared_bytes=0, case="b"),
            built("_attend", 120, registers=None, spilled_bytes=None, shared_bytes=None, found=()),
            built("_merge", 90, failure="spills | 64 B", spilled_bytes=64),
        ]
    )
    attend, merge = page.rows("## Compiled")
    assert (attend["sm_90"], attend["sm_120"]) == ("200 / 8 / 100 %", "– / – / –")
    assert attend["instructions"] == "tensor_core (not on sm_120)"
    assert (merge["sm_90"], merge["sm_120"]) == ("128 / 64 / 50 % **1 of 1 failed**", "–")
    assert page.rows("### What the gate refused")[0]["failure"] == "spills \\| 64 B"
    assert "4 kernel builds for sm_90, sm_120, **1 refused**." in page.text


def test_a_build_that_was_made_again_counts_once(page: Page) -> None:
    page.of([CPU, built("_attend", 90, failure="spills"), built("_attend", 90)])
    assert "**Nothing measured**; 1 kernel build for sm_90." in page.text
