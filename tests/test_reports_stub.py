"""Measured passes in the report: modes, the account that closes, classes beside it, graphs."""

from pathlib import Path

import pytest

from tests.report_page import Page
from tests.report_sample import GPU, US, kernel
from verifyscope import passes
from verifyscope.records import Measurement, Value

MS = 1000.0
DIMS: dict[str, Value] = {
    "model": "kimi-k2.5", "tp": 8, "rows": 4, "requests": 1, "context": 8192, "layers": 61,
    "all_reduce": "delay:33us", "weight_sets": 61,
}  # fmt: skip
CASE = "kimi-k2.5-tp8-rows4-context8192-layers61"


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def row(
    op: str,
    part: str,
    us: float,
    *,
    launch: str = "graph",
    outside: str | None = None,
    method: dict[str, Value] | None = None,
    **more: Value,
) -> Measurement:
    return kernel(
        passes.STUB,
        us,
        op=op,
        part=part,
        case=CASE,
        dims=DIMS if outside is None else {**DIMS, "outside": outside},
        launch=launch,
        depth=None,
        floor_s=7.3e-3 if op == passes.FORWARD else None,
        method={"pass": "one", "impl_moe": "triton", **more, **(method or {})},
    )


def a_run() -> list[Measurement]:
    closure: dict[str, Value] = {
        "marginal_sum_s": 14e-3,
        "marginal_unexplained_s": 1e-3,
        "marginal_unexplained_low_s": -0.5e-3,
        "marginal_unexplained_high_s": 2e-3,
        "isolated_sum_s": 16.5e-3,
        "isolated_unexplained_s": -1.5e-3,
    }
    cost: dict[str, Value] = {"cost_s": 4e-3, "cost_low_s": 3.9e-3, "cost_high_s": 4.1e-3}
    return [
        row(passes.FORWARD, "forward", 21 * MS, launch="eager", host_launch_s=20e-3, launches=1402),
        row(passes.FORWARD, "forward", 15 * MS, host_launch_s=15e-6, launches=1),
        row(passes.FORWARD, "forward", 17 * MS, launch="piecewise", outside="attention"),
        row(passes.ACCOUNT, "forward", 15 * MS, method=closure),
        row(passes.ONLY, "routed_experts", 4.5 * MS),
        row(passes.WITHOUT, "routed_experts", 11 * MS, method=cost),
        row(passes.IN_CONTEXT, "routed_experts", 4.2 * MS),
        row(passes.IN_CONTEXT, "attention", 3 * MS),
        row(passes.CLASS, "moe", 4.3 * MS, by="torch.profiler", kernels=120),
        row(passes.INSTANTIATE, "host", 900, graphs=1, nodes_kernel=1402),
    ]


def test_modes_stand_side_by_side_with_the_hosts_part(page: Page) -> None:
    page.of([GPU, *a_run()])
    assert "#### kimi-k2.5, TP 8, 4 rows, context 8192, 61 layers" in page.text
    rows = {one["launched"]: one for one in page.rows("### Measured: kimi-k2.5, TP 8")}
    assert set(rows) == {"eager", "graph", "piecewise, attention outside"}
    assert rows["eager"]["time (95 %)"] == "21.0 ms (20.8–21.2)"
    assert (rows["eager"]["host launch"], rows["eager"]["launches"]) == ("20.0 ms", "1402")
    assert rows["graph"]["of floor"] == "49 %"
    assert "takes 21.0 ms eager and 15.0 ms as one graph" in page.text.partition("## Machine")[0]
    # They are no kernels.
    assert "### `forward`" not in page.text


def test_the_account_closes_with_what_is_unexplained(page: Page) -> None:
    page.of([GPU, *a_run()])
    rows = {one["part"]: one for one in page.rows("### Measured passes")}
    assert rows["routed_experts"] == {
        "part": "routed_experts",
        "class": "moe",
        "isolated": "4.50 ms",
        "marginal (95 %)": "4.00 ms (3.90 ms to 4.10 ms)",
        "in context": "4.20 ms",
        "of the whole": "28 %",
    }
    assert rows["attention"]["isolated"] == "–"
    assert rows["**whole**"]["isolated"] == "15.0 ms"
    assert rows["**sum**"]["marginal (95 %)"] == "14.0 ms"
    assert rows["**unexplained**"]["isolated"] == "-1.50 ms (-10 %)"
    assert rows["**unexplained**"]["marginal (95 %)"] == "1.00 ms (+7 %)"
    assert rows["its 95 %"]["marginal (95 %)"] == "-500 us to 2.00 ms"
    assert rows["its 95 %"]["isolated"] == "–"


def test_a_profilers_classes_say_by_how_much_they_do_not_agree(page: Page) -> None:
    (seen,) = page.of([GPU, *a_run()]).rows("What a column's parts", number=1)
    assert seen == {
        "class": "moe",
        "launched": "graph",
        "seen by": "torch.profiler",
        "time": "4.30 ms",
        "its parts": "4.20 ms",
        "apart": "100 us",
        "kernels": "120",
    }
    (graph,) = page.rows("What a captured graph costs once")
    assert (graph["once"], graph["time"]) == ("instantiate", "900 us")
    assert graph["nodes"] == "1402 kernel"


def test_growth_over_rows_and_context_stands_with_its_verdict(page: Page) -> None:
    fit: dict[str, Value] = {
        "axis": "context", "other": 4, "sizes": "1024 131072", "base_s": 14e-3, "slope_s": 2e-9,
        "ratio": 1.01, "ratio_low": 1.0, "ratio_high": 1.02, "grows": "does not grow",
    }  # fmt: skip
    page.of([GPU, *a_run(), row(passes.FIT, "forward", 15 * MS, method=fit)])
    (line,) = page.rows("#### Measured time(T) and time(L)")
    assert (line["over"], line["at"], line["sizes"]) == ("context", "rows 4", "1024 131072")
    assert (line["base"], line["slope, each"]) == ("14.0 ms", "2.00 ns")
    assert line["largest against smallest (95 %)"] == "x 1.01 (1.00 to 1.02)"
    assert line["so"] == "does not grow"


def test_plans_and_waiting_ranks_stand_beside_the_passes(page: Page) -> None:
    skewed = row(passes.ACCOUNT, "forward", 15 * MS, all_reduce_skew_s=2e-3)
    page.of([GPU, *a_run()[:3], skewed, row(passes.PLAN, "metadata", 80, launch="eager")])
    assert (
        "Beside the passes: attention plans 80.0 us a step on the host; in all-reduces the rank "
        "that waits most spends 2.00 ms a pass more than the one that waits least." in page.text
    )


def test_what_was_shrunk_says_so(page: Page) -> None:
    one = row(passes.FORWARD, "forward", 21 * US, launch="eager")
    shrunk = kernel(
        passes.STUB,
        21.0,
        op=one.op,
        part=one.part,
        case=CASE,
        dims={**DIMS, "shrunk": True},
        launch="eager",
        depth=None,
        floor_s=None,
        method={"pass": "one"},
    )
    page.of([GPU, shrunk])
    assert "**shrunk to fit a CPU: no time of the real model**" in page.text
