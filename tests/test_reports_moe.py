"""The section MoE: distinct experts, path, cold beside warm, growth, and claims that are warm."""

from pathlib import Path

import pytest

from tests.report_page import Page
from tests.report_sample import CPU, GPU, US, built, kernel
from verifyscope.records import Compiled, Measurement, Origin, Value

EXPERT_BYTES = 3_096_576  # int4 of Kimi-K2.5, a rank of TP 8
DISTINCT = {1: 8, 4: 31, 16: 112}


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def dims(rows: int, routing: str = "uniform", **more: Value) -> dict[str, Value]:
    sizes: dict[str, Value] = {"experts": 384, "top_k": 8, "hidden": 7168, "intermediate": 256}
    who: dict[str, Value] = {"format": "int4", "shared": 0, "model": "kimi-k2.5", "tp": 8}
    return {"rows": rows, "routing": routing, **sizes, **who, **more}


def experts(
    rows: int, us: float, *, floor_us: float, implementation: str = "triton", **changes: object
) -> Measurement:
    """Return an own row of `rows` tokens, of 8 choices each."""
    fields: dict[str, object] = {
        "op": "fused_moe",
        "part": "routed_experts",
        "case": f"t{rows}-kimi-k2.5-tp8-int4-uniform",
        "dims": dims(rows, distinct_experts=DISTINCT[rows]),
        "touched_bytes": float(DISTINCT[rows] * EXPERT_BYTES),
        "floor_s": floor_us * US,
        "effective": {"path": "direct"},
        "method": {"roof_s": floor_us * US, "nodes": 3, "node_s": 1e-6},
    }
    return kernel(implementation, us, **(fields | changes))


def claim(rows: int, us: float, *, distinct: int, gpu: str = "rtx-pro-6000-server") -> Measurement:
    """Return a row that others measured, of balanced routing."""
    return kernel(
        "sglang-marlin",
        us,
        op="fused_moe",
        part="routed_experts",
        source="imported",
        kind="baseline-direct",
        case=f"{gpu}-{rows}",
        dims=dims(rows, "balanced", gpu=gpu, distinct_experts=distinct),
        touched_bytes=float(distinct * EXPERT_BYTES),
        floor_s=None,
        launch=None,
        depth=None,
        cache=None,
        method={},
        origin=Origin(file="moe.csv", line=rows),
    )


def test_distinct_experts_path_cold_and_warm_stand_beside_the_time(page: Page) -> None:
    page.of(
        [
            GPU,
            experts(4, 90.0, floor_us=60.0),
            experts(4, 40.0, floor_us=60.0, cache="warm"),
            experts(4, 100.0, floor_us=60.0, implementation="frost", kind="baseline-direct"),
        ]
    )
    first, second = page.rows("### Time by T")
    assert first == {
        "T": "4",
        "routing": "uniform",
        "distinct experts": "31 of 384",
        "touches": "96.0 MB",
        "floor": "60.0 us",
        "implementation": "`triton`",
        "path": "direct",
        "cold": "90.0 us",
        "warm": "40.0 us",
        "of floor": "67 %",
        "to baseline": "0.90 faster",
    }
    # The case is said once.
    assert (second["T"], second["distinct experts"], second["cold"]) == ("", "", "100 us")
    assert "**kimi-k2.5, TP 8, int4**" in page.text
    assert "## Kernels" not in page.text.partition("### `fused_moe`")[2]


def test_growth_is_held_to_that_of_the_distinct_experts(page: Page) -> None:
    floors = {1: 15.0, 4: 60.0, 16: 216.0}
    page.of([GPU, *(experts(t, 1.25 * f + 3, floor_us=f) for t, f in floors.items())])
    (row,) = page.rows("### How the experts grow with T")
    assert (row["T=4"], row["T=16"]) == ("3.59", "12.6")
    # (273 / 21.75) / (219 / 18) is the worst.
    assert row["growth over the roofline's"] == "1.03 at T=16, within 1.2"
    slow = [experts(t, f * (1 if t == 1 else 2) + 3, floor_us=f) for t, f in floors.items()]
    (row,) = page.of([GPU, *slow]).rows("### How the experts grow with T")
    assert row["growth over the roofline's"] == "**1.99 at T=16, above 1.2**"


def test_what_is_predicted_is_in_italics_and_names_its_path(page: Page) -> None:
    guess = experts(
        4,
        60.2,
        floor_us=60.2,
        source="predicted",
        launch=None,
        depth=None,
        cache=None,
        effective={},
        environment="cpu",
        method={"gpu": "rtx-pro-6000-server", "limited_by": "bytes", "nodes": 3, "path": "direct"},
    )
    page.of([CPU, guess])
    (row,) = page.rows("### Time by T")
    assert row["cold"] == "*60.2 us + 3 launches*"
    assert row["path"] == "direct"
    assert row["on"] == "*predicted: rtx-pro-6000-server*"
    assert "What is in italics was not measured" in page.text
    assert "no own kernel of the experts was timed" in page.text


def test_a_time_below_the_cold_floor_is_said_to_be_warm(page: Page) -> None:
    # Balanced: 8 experts a token, none shared. 99 MB at 1,597 GB/s take 62.0 us.
    page.of(
        [
            CPU,
            claim(4, 39.0, distinct=32),
            claim(16, 286.2, distinct=128),
            claim(1, 23.1, distinct=8),
            claim(4, 30.0, distinct=32, gpu="a-gpu-that-nobody-knows"),
        ]
    )
    where = "### What others measured"
    (wrong,) = page.rows(where)
    assert (wrong["T"], wrong["distinct experts"], wrong["touches"]) == (
        "4",
        "32 of 384",
        "99.1 MB",
    )
    assert (wrong["they measured"], wrong["cold floor"]) == ("39.0 us", "62.0 us")
    # Products of 500 MB and more of weights reach 1.50 TB/s there (verifyscope/published.csv).
    assert wrong["as reached"] == "66.1 us"
    assert wrong["would be"] == "2.54 TB/s"
    assert wrong["so"] == "**not cold**: it fits in the L2"
    assert [(row["T"], row["so"]) for row in page.rows(where, number=1)] == [
        ("1", "may be cold"),
        ("16", "may be cold"),
    ]
    assert (
        "Of 3 rows that others measured, 1 cannot have been cold; of these, 1 touch no more "
        "experts than fit in the L2."
    ) in page.text


def test_unpacking_is_instructions_of_the_loop_that_loads_most(page: Page) -> None:
    def build(case: str, name: str, *, instructions: int, loaded: int) -> Compiled:
        return built(
            name,
            120,
            op="fused_moe",
            implementation="triton",
            case=case,
            loop_instructions=instructions,
            loop_loaded_bytes=loaded,
        )

    page.of(
        [
            GPU,
            experts(4, 90.0, floor_us=60.0),
            build("gate-t4-e4k2-h7168-i256-int4-uniform", "gate_up", instructions=400, loaded=64),
            build("gate-t4-e4k2-h7168-i256-int4-uniform", "combine", instructions=9, loaded=16),
            build("gate-t4-e4k2-h7168-i256-bf16-uniform", "gate_up", instructions=96, loaded=128),
        ]
    )
    rows = {row["format"]: row["sm_120"] for row in page.rows("### What unpacking costs")}
    assert rows == {"int4": "6.25", "bf16": "0.75"}
