"""The section Attention: T axis, forms, bounds, predictions and occupancy are what records hold."""

from pathlib import Path

import pytest

from tests.report_page import Page
from tests.report_sample import CPU, GPU, US, built, kernel
from verifyscope.records import Measurement, Mode, Record, Value

NODE_S = 1.5e-6
FORMS: tuple[tuple[str, Mode, float], ...] = (
    ("triton", "verify", 1.0),
    ("triton_decode", "decode", 4.0),
    ("triton_extend", "extend", 8.0),
)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def dims(rows: int, context: int = 8192) -> dict[str, Value]:
    return {"rows": rows, "context": context, "tree": f"tree{rows}"}


def held(
    us: float, *, roof_us: float = 20.0, nodes: int = 2, rows: int = 4, **changes: object
) -> Measurement:
    """Return an own row that is held to a roof and `nodes` launches of 1.5 us."""
    bound_s = roof_us * US / 0.85 + nodes * NODE_S
    method: dict[str, Value] = {
        "roof_s": roof_us * US,
        "moved_bytes": 30e6,
        "nodes": nodes,
        "node_s": NODE_S,
        "limited_by": "bytes",
        "bound_s": bound_s,
        "within_bound": us * US <= bound_s,
    }
    name = str(changes.pop("implementation", "triton"))
    moved = changes.pop("moved", None)
    if isinstance(moved, float):
        method["moved_bytes"] = moved
    fields: dict[str, object] = {"case": f"t{rows}-l8k", "dims": dims(rows), "method": method}
    return kernel(name, us, **(fields | changes))


def guessed(
    name: str, us: float, *, rows: int = 4, mode: Mode = "verify", **more: object
) -> Measurement:
    """Return a prediction of one kernel for the founding case's GPU."""
    method: dict[str, Value] = {"gpu": "rtx-pro-6000-server", "limited_by": "bytes", "nodes": 2}
    moved = more.pop("moved", 30e6)
    assert isinstance(moved, float)
    fields: dict[str, object] = {
        "source": "predicted",
        "op": "mla_verify",
        "case": f"t{rows}-l8k",
        "dims": dims(rows),
        "mode": mode,
        "launch": None,
        "depth": None,
        "cache": None,
        "method": method | {"moved_bytes": moved},
        "environment": "cpu",
    }
    return kernel(name, us, **(fields | more))


def _two_forms(rows: int) -> tuple[tuple[str, Mode, int], ...]:
    return (("", "verify", 1), ("_decode", "decode", rows))


def test_the_t_axis_has_base_slope_floor_and_growth_over_the_roofline(page: Page) -> None:
    # time = 20 + 2 T; the roof grows from 20 to 24 us, and two nodes of 1.5 us stay: at T = 8 the
    # time has grown by 36 / 22 and the roofline by 27 / 23.
    page.of(
        [
            GPU,
            *(
                held(20 + 2.0 * t, rows=t, roof_us=roof, floor_s=roof * US)
                for t, roof in ((1, 20.0), (2, 20.5), (4, 21.5), (8, 24.0))
            ),
        ]
    )
    (row,) = page.rows("### How a verify grows with T")
    assert row == {
        "implementation": "`triton`",
        "T=1": "22.0 us",
        "T=2": "1.09",
        "T=4": "1.27",
        "T=8": "1.64",
        "base": "20.0 us",
        "slope": "2.00 us",
        "floor": "20.0 us to 24.0 us",
        "growth over the roofline's": "**1.39 at T=8, above 1.3**",
    }


def test_growth_as_steep_as_the_roofline_is_within(page: Page) -> None:
    rows = ((1, 20.0), (2, 40.0), (4, 80.0))
    page.of([GPU, *(held(1.5 * roof, rows=t, roof_us=roof, nodes=0) for t, roof in rows)])
    (row,) = page.rows("### How a verify grows with T")
    assert row["T=4"] == "4.00"
    assert row["growth over the roofline's"] == "1.00 at T=2, within 1.3"


def test_the_three_forms_stand_side_by_side_with_time_bytes_and_ratio(page: Page) -> None:
    page.of(
        [
            GPU,
            *(
                held(25.0 * times, mode=mode, implementation=name, moved=30e6 * times)
                for name, mode, times in FORMS
            ),
            held(24.0, implementation="cupy", mode="verify"),  # has no other form
            kernel("flashinfer", 28.0, kind="baseline-direct", dims=dims(4)),
        ]
    )
    assert page.rows("### The three forms side by side") == [
        {
            "case": "`t4-l8k`",
            "kernels": "`triton`",
            "verify": "25.0 us, 30.0 MB",
            "decode": "100 us, 120 MB, 4.00 x",
            "extend": "200 us, 240 MB, 8.00 x",
        }
    ]
    # The other two are beside the verify form, and no opponents of a baseline by themselves.
    headline = page.text.partition("## Machine")[0]
    assert "`cupy` takes" in headline
    assert "`triton_decode` takes" not in headline


def test_a_row_says_what_limits_it_and_whether_it_keeps_its_bound(page: Page) -> None:
    direct = kernel("flashinfer", 28.0, kind="baseline-direct", dims=dims(4))
    page.of([GPU, held(26.0), held(27.0, implementation="cupy"), direct])
    rows = {row["implementation"]: row for row in page.rows("### `tree_attention`")}
    # 20 / 0.85 + 2 x 1.5
    assert (rows["`triton`"]["limited by"], rows["`triton`"]["bound"]) == (
        "bytes",
        "within 26.5 us",
    )
    assert rows["`cupy`"]["bound"] == "**above 26.5 us**"
    assert rows["`flashinfer`"]["bound"] == "–"
    assert (
        "- `tree_attention` `triton`: 1 of 1 row within roof / 0.85 + nodes; "
        "limited by bytes in 1.\n"
        "- `tree_attention` `cupy`: 0 of 1 row within roof / 0.85 + nodes; limited by bytes in 1.\n"
    ) in page.text
    methods = {row[""] for row in page.rows("How kernels were timed")}
    assert "node s" in methods
    assert not methods & {"roof s", "bound s", "within bound", "moved bytes"}


def test_cold_and_warm_stand_in_columns(page: Page) -> None:
    page.of([GPU, held(26.0), held(13.0, cache="warm")])
    (row,) = page.rows("### `tree_attention`")
    assert (row["time (95 %)"], row["warm"]) == ("26.0 us (25.7–26.3)", "13.0 us")


def test_what_a_step_does_beside_it_is_a_table_of_its_own(page: Page) -> None:
    metadata: list[Record] = [
        kernel(name, us, op=op, part=part, case=f"c{us}", dims={"rows": 1}, floor_s=None)
        for name, op, part, us in (
            ("triton", "tree_build", "metadata", 2.5),
            ("triton", "tree_build", "metadata", 4.5),
            ("flashinfer", "tree_attention_plan", "metadata", 80.0),
            ("cupy", "tree_accept", "sampling", 3.0),
        )
    ]
    page.of([GPU, held(26.0), *metadata])
    assert page.rows("### What a step does beside it") == [
        {
            "step": step,
            "implementation": name,
            "cases": cases,
            "quickest": quickest,
            "slowest": slowest,
            "slowest case": case,
        }
        for step, name, cases, quickest, slowest, case in (
            ("`tree_accept`", "`cupy`", "1", "3.00 us", "3.00 us", "`c3.0`"),
            ("`tree_build`", "`triton`", "2", "2.50 us", "4.50 us", "`c4.5`"),
            ("`tree_attention_plan`", "`flashinfer`", "1", "80.0 us", "80.0 us", "`c80.0`"),
        )
    ]
    kernels = page.text.partition("## Kernels")[2].partition("## Attention")[0]
    assert "tree_build" not in kernels


def test_predictions_are_in_italics_once_for_all_kernels_that_they_are_equal_for(
    page: Page,
) -> None:
    page.of(
        [
            CPU,
            *(
                guessed(name + suffix, 5.0 * times * (1 + rows / 10), rows=rows, mode=mode)
                for rows in (1, 2, 4)
                for name in ("cupy", "triton")
                for suffix, mode, times in _two_forms(rows)
            ),
        ]
    )
    axis = page.rows("### How a verify grows with T")
    assert [(row["implementation"], row["on"]) for row in axis] == [
        ("`cupy`, `triton`", "*predicted: rtx-pro-6000-server*"),
        ("`cupy_decode`, `triton_decode`", "*predicted: rtx-pro-6000-server*"),
    ]
    assert (axis[0]["T=1"], axis[0]["T=4"]) == ("*5.50 us*", "*1.27*")
    assert axis[1]["T=4"] == "*5.09*"
    forms = page.rows("### The three forms side by side")
    assert [row["case"] for row in forms] == ["`t1-l8k`", "`t2-l8k`", "`t4-l8k`"]
    assert forms[2]["kernels"] == "`cupy`, `triton`"
    assert forms[2]["verify"] == "*7.00 us, 30.0 MB*"
    assert forms[2]["decode"] == "*28.0 us, 30.0 MB, 4.00 x*"
    assert "***What is in italics was not measured.**" in page.text
    assert (
        "- *`mla_verify`, predicted for rtx-pro-6000-server: of 3 cases limited by bytes in 3.*"
    ) in page.text
    assert "**Nothing measured**; 12 predicted for rtx-pro-6000-server." in page.text
    assert "## Predicted budget" not in page.text


def test_launches_of_a_prediction_come_on_top_unless_a_node_is_known(page: Page) -> None:
    page.of([CPU, guessed("triton", 0.5, op="lse_merge", dims={"rows": 1}, case="c")])
    (row,) = page.rows("### What a step does beside it")
    assert row["slowest"] == "*500 ns + 2 launches*"


def test_what_a_gpu_has_measured_is_not_predicted_beside_it(page: Page) -> None:
    op = "mla_verify"
    page.of([GPU, held(25.0, op=op), guessed("triton", 5.0), guessed("cupy", 6.0)])
    text = page.text.partition("## Attention")[2]
    assert "6.00 us" not in text.partition("### ")[0]
    assert "*`mla_verify`, predicted" in text
    page.of([GPU, held(25.0, op=op), guessed("triton", 5.0)])
    assert "predicted:" not in page.text.partition("## What did not run")[0]
    # A time on a CPU is no reason to leave it out.
    page.of(
        [
            CPU,
            kernel("triton", 900.0, environment="cpu", dims=dims(4), op=op),
            guessed("triton", 5.0),
        ]
    )
    assert "*`mla_verify`, predicted" in page.text


def test_compiled_attention_stands_here_with_its_occupancy_and_the_rest_below(page: Page) -> None:
    page.of(
        [
            GPU,
            held(25.0),
            built("_attend_part", 120, occupancy=8 / 48, resident_blocks=1, limited_by="registers"),
            built(
                "_attend_part", 120, case="b", occupancy=0.5, resident_blocks=2, limited_by="warps"
            ),
            built("_norm", 120, op="rms_norm"),
        ]
    )
    (row,) = page.rows("### Compiled, without such a GPU")
    assert row["kernel"] == "`_attend_part`"
    assert row["sm_120"] == "128 / 0 / 50 % / 17 %, 1 by registers"
    (other,) = page.rows("\n## Compiled, without such a GPU")
    assert (other["kernel"], other["sm_120"]) == ("`_norm`", "128 / 0 / 50 %")


def test_without_attention_there_is_no_section_and_compiled_kernels_stand_below(page: Page) -> None:
    page.of([GPU, built("_attend_part", 120, failure="spills 64 B", spilled_bytes=64)])
    assert "## Attention" not in page.text
    assert "### What the gate refused" in page.text


def test_what_is_missing_says_how_to_get_it(page: Page) -> None:
    page.of([CPU, kernel("torch", 900.0, environment="cpu", kind="baseline-direct", dims=dims(4))])
    missing = page.text.partition("### What is missing, and how")[2]
    assert "on a GPU, `pytest suites/ --benchmark-only -k tree_attention`" in missing
    assert "`python -m kernels --compile --records FILE`" in missing
    assert "planning, masks, trees and acceptance" in missing
    beside = kernel("triton", 2.0, op="tree_build", part="metadata", dims={"rows": 1})
    page.of([GPU, held(25.0), built("_attend_part", 120), beside])
    assert "**Attention**" not in page.text


def test_an_imported_event_of_attention_stays_among_the_kernels(page: Page) -> None:
    page.of([CPU, kernel("trace", 25.0, source="imported", op="fwd_kernel", environment="cpu")])
    assert "## Attention" not in page.text
    assert page.row("### What others measured", "`fwd_kernel`")["time"] == "25.0 us"
