"""What is read from a trace stands in a section of its own, not among what was measured."""

from pathlib import Path

import pytest

from ingest import kineto
from tests.report_page import Page
from tests.report_sample import whole_run
from tests.trace_files import LAYER, Kineto, log_of
from verifyscope.records import Environment, Measurement, Record


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def trace() -> list[Record]:
    made = Kineto()
    made.annotation("ProfilerStep#1", 0, 5000)
    made.eager(LAYER * 8, 0, dur=10, every=40)
    made.gpu("Memcpy DtoD (Device -> Device)", 4000, 20, cat="gpu_memcpy", correlation=999)
    return [one for one in kineto.read(log_of(made.bytes())) if isinstance(one, Measurement)]


def environment() -> Environment:
    return next(one for one in whole_run() if isinstance(one, Environment))


def test_a_trace_is_told_as_a_whole_by_class_and_by_kernel(page: Page) -> None:
    page.of([environment(), *trace()])
    assert "### GPU 0, from `t.json`" in page.text
    assert (
        "4.02 ms, busy 12.5 %; 48 kernels, 48 launches of a kernel, 0 of a graph. "
        "1 step of 8 layers, found by annotation: 1.89 ms, 48 kernels, 16 all-reduces."
    ) in page.text
    reduces = page.row("## Traces", "all_reduce")
    assert reduces == {
        "class": "all_reduce",
        "time": "160 us",
        "of busy": "32.0 %",
        "of kernel sum": "33.3 %",
        "alone": "160 us",
        "calls": "16",
    }
    assert page.row("## Traces", "copy")["of kernel sum"] == "–"
    top = page.rows("The kernels that took most")[0]
    assert (top["kernel"], top["a call"], top["calls"]) == (
        "`multimem_all_reduce_kernel`",
        "10.0 us",
        "16",
    )


def test_a_trace_is_no_measured_kernel_and_no_sweep(page: Page) -> None:
    page.of([environment(), *trace()])
    assert "## Kernels" not in page.text
    assert "**Nothing measured**; 14 imported from `t.json`." in page.text
    assert "imported from `t.json`" in page.text
