"""How `fused_moe` in Triton is launched: tiles, parts of the columns, and what is told of it."""

import dataclasses

import pytest
import torch

from kernels import _cubin
from kernels._check import poisoned
from kernels._registry import find_case
from kernels._target import compiling_for, multiprocessors_of
from kernels._workers import Conditions, work
from kernels.moe import fused_moe as op
from kernels.moe import fused_moe_triton as in_triton
from kernels.moe._fused_moe_tiles import TABLES, Plan, Tile, distinct_of, plan_for, tiles_for
from kernels.moe._paths import PATHS, Path, path_for
from kernels.moe.fused_moe import Given, Shape
from tests.fused_moe_problems import FORMS, assert_matches, problem, skip_if_it_cannot_run
from verifyscope.hardware import SHARED_BYTES_PER_BLOCK

KIMI = Shape(tokens=1, top_k=8, experts=384, hidden=7168, intermediate=256, shared=0)
KIMI_BYTES = 3_096_576  # of an expert of a rank in int4, with its scales


def planned(
    shape: Shape = KIMI,
    path: Path = "direct",
    *,
    form: str = "int4",
    expert_bytes: int = KIMI_BYTES,
    capability: int = 120,
) -> Plan:
    return plan_for(
        shape,
        path,
        name=form,
        expert_bytes=expert_bytes,
        capability=capability,
        sms=multiprocessors_of(capability),
    )


# ---- The plan ----


def test_all_experts_columns_are_one_part_where_the_rows_fill_the_sms() -> None:
    for capability in TABLES:
        for tokens in (1, 2, 4, 8, 16):
            plan = planned(dataclasses.replace(KIMI, tokens=tokens), capability=capability)
            assert plan.parts == 1
            assert plan.launches == 3


def test_columns_are_parts_where_most_sms_had_nothing_to_do() -> None:
    # Qwen3-30B under TP 8, bfloat16: 8 experts of 12 tiles, each of 64 KB, are programs enough.
    narrow = Shape(tokens=1, top_k=8, experts=128, hidden=2048, intermediate=96, shared=0)
    assert planned(narrow, form="bf16", expert_bytes=6 * 2048 * 96).parts == 1
    # One expert of 32 tiles, of which each is 229 KB of bfloat16: three parts of four SMs.
    single = Shape(tokens=1, top_k=1, experts=8, hidden=7168, intermediate=256, shared=0)
    plan = planned(single, form="bf16", expert_bytes=6 * 7168 * 256)
    assert plan.parts == 3
    assert plan.launches == 4
    # A part of less than 64 KB is not worth its sums.
    small = dataclasses.replace(single, hidden=1024)
    assert planned(small, form="bf16", expert_bytes=6 * 1024 * 256).parts == 1


def test_the_second_products_columns_are_parts_where_its_rows_fill_no_sm() -> None:
    assert [planned(dataclasses.replace(KIMI, tokens=t)).down_parts for t in (1, 4)] == [1, 1]
    # Two experts of 32 tiles of 14 steps: 64 programs, and room for three an SM.
    few = Shape(tokens=1, top_k=2, experts=8, hidden=4096, intermediate=1792, shared=0)
    for capability in (90, 120):
        plan = planned(few, expert_bytes=3 * 4096 * 1792 * 9 // 16, capability=capability)
        assert plan.down_parts == 4
        assert plan.launches == 3


def test_no_part_is_empty_and_none_is_left_out() -> None:
    def fill(parts: int, columns: int, tile: Tile) -> bool:
        steps = -(-columns // tile.columns)
        each = -(-steps // parts)
        return (parts - 1) * each < steps <= parts * each

    for size in (512, 2048, 4096, 7168, 18_432):
        for capability in TABLES:
            shape = dataclasses.replace(KIMI, top_k=1, hidden=size, intermediate=size)
            plan = planned(shape, expert_bytes=2 * size * size, capability=capability)
            assert fill(plan.parts, size, plan.gate_up)
            assert fill(plan.down_parts, size, plan.down)


def test_the_widest_tile_that_fills_the_sms_is_taken() -> None:
    wide, narrow = tiles_for("int4", capability=90).gate_up
    assert wide.rows > narrow.rows
    rows = [
        planned(dataclasses.replace(KIMI, tokens=tokens), capability=90).gate_up.rows
        for tokens in (1, 2, 3, 16)
    ]
    assert rows == [narrow.rows, narrow.rows, wide.rows, wide.rows]


@pytest.mark.parametrize("capability", TABLES)
def test_the_shared_experts_tiles_take_the_warps_and_steps_of_the_others(capability: int) -> None:
    def launched(tile: Tile) -> tuple[int, int]:
        return tile.warps, tile.full_columns

    table = TABLES[capability]
    for tiles in table.values():
        assert {*map(launched, tiles.gate_up)} == {launched(table["bf16"].gate_up[-1])}
        assert launched(tiles.down) == launched(table["bf16"].down)


def test_uniform_routing_touches_as_many_experts_as_chance_says() -> None:
    found = [distinct_of(dataclasses.replace(KIMI, tokens=t)) for t in (1, 2, 4, 8, 16)]
    assert found == [8, 16, 31, 60, 110]
    assert distinct_of(dataclasses.replace(KIMI, tokens=256, experts=8)) == 8


def test_programs_of_the_second_product_share_its_tiles_evenly() -> None:
    for tokens in (1, 4, 16):
        plan = planned(dataclasses.replace(KIMI, tokens=tokens), capability=90)
        assert (KIMI.hidden // plan.down.rows) % plan.each == 0
    assert planned(capability=90).each == 1
    assert planned(dataclasses.replace(KIMI, tokens=16), capability=90).each > 1


def test_sorted_units_are_the_blocks_that_no_ids_exceed() -> None:
    plan = planned(dataclasses.replace(KIMI, tokens=64), "sorted")
    assert plan.units == 384 + 64 * 8 // 16
    assert plan.launches == 4
    assert planned(dataclasses.replace(KIMI, tokens=16)).units == 128


def test_the_rule_between_the_paths_is_the_number_of_tokens() -> None:
    assert [path_for(tokens) for tokens in (1, 16, 17, 256)] == [PATHS[0]] * 2 + [PATHS[1]] * 2


@pytest.mark.parametrize("capability", TABLES)
def test_gate_cases_build_every_entry_of_the_tables(capability: int) -> None:
    built: set[tuple[str, Tile]] = set()
    paths = set()
    with compiling_for(capability):
        for case in op.OP.gate_cases:
            inputs = op.OP.inputs(case, torch.device("cpu"))
            given = Given(**inputs)  # type: ignore[arg-type]  # as the op draws them
            path = path_for(given.shape.tokens)
            name = given.format.name
            plan = planned(
                given.shape,
                path,
                form=name,
                expert_bytes=given.expert_bytes,
                capability=capability,
            )
            built |= {(name, plan.gate_up), (name, plan.down)}
            paths |= {(path, plan.parts > 1, given.shape.shared > 0)}
    wanted = {
        (name, tile)
        for name, tiles in TABLES[capability].items()
        for tile in (*tiles.gate_up, tiles.down)
    }
    assert built == wanted
    assert {("direct", True, False), ("direct", False, True), ("sorted", False, False)} <= paths


def test_what_is_in_flight_is_enough_for_dram_and_fits_an_sm() -> None:
    # Latency x bandwidth / SMs, by data sheet. One stage computes, one is computed: others fly.
    needed = {80: 13_000, 89: 4_500, 90: 25_500, 100: 38_000, 120: 7_000}
    for capability, table in TABLES.items():
        for form, tiles in table.items():
            bits = {"bf16": 16, "fp8": 8, "int4": 4}[form]
            for tile in (*tiles.gate_up, tiles.down):
                for columns, stages in (
                    (tile.columns, tile.stages),
                    (tile.full_columns, tile.full_stages),
                ):
                    step = tile.rows * columns * bits // 8
                    flying = tile.blocks * step * (stages - 2)
                    assert flying >= needed[capability], (capability, form, tile)
                    assert step * (stages - 1) < SHARED_BYTES_PER_BLOCK[capability]


# ---- What a plan computes ----


@pytest.mark.parametrize(("name", "parts"), [("triton_direct", 2), ("triton_sorted", 3)])
def test_parts_of_the_columns_are_added_in_their_order(name: str, parts: int) -> None:
    skip_if_it_cannot_run(name)
    inputs = problem([[0, 3], [3, -1]], sizes=(1056, 32))  # three steps
    given = Given(**inputs)
    path: Path = "direct" if name.endswith("direct") else "sorted"
    plan = dataclasses.replace(planned(given.shape, path), parts=parts)
    with poisoned():
        one, other = (in_triton.compute(given, plan)["y"] for _ in range(2))
    assert_matches(inputs, one)
    assert torch.equal(one, other)


@pytest.mark.parametrize("shared", [0, 32])
def test_parts_of_the_second_product_are_added_with_the_choices(shared: int) -> None:
    skip_if_it_cannot_run("triton_direct")
    inputs = problem([[0, 3], [3, -1]], sizes=(32, 288), shared=shared)  # three steps, in two parts
    given = Given(**inputs)
    plan = dataclasses.replace(planned(given.shape), down_parts=2)
    with poisoned():
        assert_matches(inputs, in_triton.compute(given, plan)["y"])


@pytest.mark.parametrize("each", [1, 3])
def test_a_program_may_compute_several_tiles_of_the_second_product(each: int) -> None:
    skip_if_it_cannot_run("triton_direct")
    inputs = problem([[0], [1]], "bf16", experts=2, sizes=(320, 64))  # five tiles of 64 rows
    given = Given(**inputs)
    plan = dataclasses.replace(planned(given.shape, form="bf16"), each=each)
    with poisoned():
        assert_matches(inputs, in_triton.compute(given, plan)["y"])


def test_records_are_told_the_path_the_tiles_and_the_splits() -> None:
    skip_if_it_cannot_run("triton")
    by_rule, direct, ordered = (
        op.OP.implementations[name].prepare(problem())
        for name in ("triton", "triton_direct", "triton_sorted")
    )
    assert by_rule.facts == direct.facts
    assert direct.facts["path"] == "direct"
    assert direct.facts["splits"] == "1, 1"
    assert direct.facts["tile"] == "32x512, 128x128"
    assert ordered.facts["path"] == "sorted"
    assert (direct.launches, ordered.launches) == (3, 4)
    many = op.OP.implementations["triton"].prepare(problem([[0]] * 17))
    assert many.facts["path"] == "sorted"


def test_a_case_that_a_path_cannot_compute_is_refused_before_it_is_drawn() -> None:
    refused = {
        name: op.OP.implementations[name].needs.refuses(
            find_case(op.OP, "t32-kimi-k2.5-tp8-int4-uniform")
        )
        for name in ("triton", "triton_direct", "triton_sorted")
    }
    assert refused == {
        "triton": None,
        "triton_direct": "32 tokens; the direct path takes 1 to 16, one tile of rows: use the "
        "sorted one",
        "triton_sorted": None,
    }
    narrow = find_case(op.OP, "t1-qwen3-235b-a22b-tp8-fp8-uniform")
    reason = op.OP.implementations["triton"].needs.refuses(narrow)
    assert reason is not None
    assert "128 divides" in reason


def test_tokens_at_an_odd_address_are_refused_in_words() -> None:
    skip_if_it_cannot_run("triton")
    inputs = problem()
    flat = torch.zeros(inputs["x"].numel() + 1, dtype=torch.bfloat16, device=inputs["x"].device)
    inputs["x"] = flat[1:].view_as(inputs["x"])
    with pytest.raises(ValueError, match="x starts at an address that 4 does not divide: copy it"):
        op.OP.implementations["triton"].run(inputs)


# ---- What is compiled ----


@pytest.mark.skipif(_cubin.why_not() is not None, reason=str(_cubin.why_not()))
def test_loads_are_issued_before_the_steps_that_need_them() -> None:
    # A loop that waits for all it has issued has nothing in flight while it multiplies: so it was
    # when the place of the next load came out of a branch.
    first = {one.dims["format"]: one.name for one in reversed(op.OP.gate_cases)}
    items = [(first[form], 120) for form in FORMS]
    conditions = Conditions(processes=1, timeout_s=300, environment={"TRITON_INTERPRET": "0"})
    with work("tests.fused_moe_pipelines:waits", items, conditions=conditions) as results:
        for form, found in zip(FORMS, results, strict=True):
            assert set(found) == {"gate_up", "down"}
            for kernel, left in found.items():
                assert len(left) == 2, (form, kernel)  # for up to 8 tokens, and for more
                assert min(left) > 0, (form, kernel)
