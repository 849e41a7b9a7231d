"""Each op takes the time that somebody measured for it, and says whose; else its floor, if any."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from graphs import prediction
from graphs._predicted import components, points
from graphs._predicted.components import Component
from graphs._predicted.points import Point
from graphs.collective_times import Times
from graphs.layers import forward
from graphs.prediction import Bandwidth, Prediction, summed
from verifyscope.hardware import find_gpu
from verifyscope.models import TABLE
from verifyscope.records import Value

GPU = find_gpu("rtx-pro-6000-server")
PUBLIC = tuple(points.public(GPU.name))
US = 1e-6


def predicted(
    rows: int, *, context: int = 8192, tp: int = 8, model: str = "kimi-k2.5", requests: int = 1
) -> Prediction:
    asked = forward(TABLE[model], tp=tp, rows=rows, context=context, requests=requests)
    bandwidth = Bandwidth(bytes_per_s=1.5e12, source="given")
    return prediction.predict(asked, gpu=GPU, bandwidth=bandwidth, times=Times())


def of(part: str, found: Sequence[Component]) -> Component:
    return next(one for one in found if one.line.op.part == part)


def point(part: str, us: float, **dims: Value) -> Point:
    return Point(
        part=part,
        op=part,
        implementation="own",
        dims=dims,
        seconds=us * US,
        basis="measured",
        origin="mine.jsonl",
    )


def mla(us: float, **dims: Value) -> Point:
    shape: dict[str, Value] = {"heads": 8, "latent": 512, "rope": 64, "kv": "bf16"}
    asked: dict[str, Value] = {"rows": 4, "requests": 1, "context": 8192}
    return point("attention", us, **shape | asked | dims)


def test_four_rows_take_122_x_33_us_and_61_x_49_us_and_14_ms_in_all() -> None:
    # 57,344 B lie 3/4 of the way from 32,768 B (29.36 us) to 65,536 B (34.21 us).
    found = components.components(predicted(4), PUBLIC)
    reduce, attention = of("all_reduce", found), of("attention", found)
    assert reduce.seconds == pytest.approx((29.36 + 0.75 * 4.85) * US)
    assert (reduce.basis, reduce.bound) == ("public", False)
    assert attention.seconds == pytest.approx(49.435 * US)
    assert attention.bound
    assert attention.how.startswith(
        "sglang 0.5.14 triton for 4 sequences, an upper bound for 4 rows; aiconfigurator-core"
    )
    floor_s = summed(predicted(4).lines).seconds
    read_s = sum(one.line.seconds or 0 for one in found if one.line.op.part == "attention") / 2
    gather_s = (75.26 + 0.25 * (116.88 - 75.26)) * US  # 1,310,720 B
    by_hand = floor_s - 61 * read_s + 61 * 49.435 * US + 123 * 32.9975 * US + gather_s
    total = components.total(found)
    assert total.complete
    assert total.seconds == pytest.approx(by_hand)
    assert total.seconds == pytest.approx(14.08e-3, rel=1e-3)


def test_a_plain_step_is_met_exactly_and_takes_11_8_ms() -> None:
    found = components.components(predicted(1), PUBLIC)
    assert of("attention", found).seconds == pytest.approx(71.985 * US)
    assert not of("attention", found).bound
    assert components.total(found).seconds == pytest.approx(11.8e-3, rel=1e-3)


def test_experts_of_few_rows_are_at_their_floor_and_those_of_many_are_somebodys() -> None:
    few = of("routed_experts", components.components(predicted(4), PUBLIC))
    assert (few.basis, few.seconds) == ("floor", few.line.seconds)
    found = [
        one
        for one in components.components(predicted(8), PUBLIC)
        if one.line.op.part == "routed_experts"
    ]
    assert [one.basis for one in found] == ["public", "public"]
    # One call of theirs does both products of a layer.
    assert sum(one.seconds or 0 for one in found) == pytest.approx(151.82 * US)


def test_another_gpu_or_number_of_ranks_has_no_public_component_and_is_not_known() -> None:
    for found in (
        components.components(predicted(4), ()),
        components.components(predicted(4, tp=16), PUBLIC),
    ):
        reduce = of("all_reduce", found)
        assert (reduce.seconds, reduce.basis, reduce.pass_s) == (None, "not known", None)
        total = components.total(found)
        assert not total.complete
        assert total.seconds > 4e-3
    assert of("attention", components.components(predicted(4), ())).basis == "floor"


def test_beyond_the_published_contexts_nothing_is_extrapolated() -> None:
    found = components.components(predicted(4, context=262_144), PUBLIC)
    assert of("attention", found).basis == "floor"
    between = of("attention", components.components(predicted(4, context=12_288), PUBLIC))
    assert between.how.startswith("sglang 0.5.14 triton between 8,192 and 16,384 context for 4")


def test_what_the_user_measured_goes_before_what_others_published() -> None:
    slow, quick = mla(40.0), mla(22.0)
    found = of("attention", components.components(predicted(4), [*PUBLIC, slow, quick]))
    assert found.seconds == pytest.approx(31.0 * US)  # the median of one implementation
    other = replace(quick, implementation="other")
    found = of("attention", components.components(predicted(4), [*PUBLIC, slow, other]))
    assert found.seconds == pytest.approx(22.0 * US)
    assert found.basis == "measured"
    assert found.how == "other; mine.jsonl"


@pytest.mark.parametrize(
    "wrong",
    [
        mla(22.0, heads=16),
        mla(22.0, latent=256),
        mla(22.0, kv="fp8"),
        mla(22.0, rows=2),
        mla(22.0, requests=2),
        mla(22.0, context=4096),
        point("attention", 22.0, rows=4, context=8192),
    ],
)
def test_a_point_of_another_case_is_not_taken(wrong: Point) -> None:
    assert of("attention", components.components(predicted(4), [wrong])).basis == "floor"


def test_a_time_below_the_floor_of_its_bytes_did_not_come_from_memory() -> None:
    # 9.44 MB of cache and 68 kB beside at 1,597 GB/s take 5.96 us.
    assert of("attention", components.components(predicted(4), [mla(5.9)])).basis == "floor"
    assert of("attention", components.components(predicted(4), [mla(6.0)])).basis == "measured"


def test_a_number_that_was_given_goes_before_all() -> None:
    given = predicted(4)
    lines = tuple(
        replace(line, seconds=20 * US, how="given by --all-reduce-us")
        if line.op.part == "all_reduce"
        else line
        for line in given.lines
    )
    found = of("all_reduce", components.components(replace(given, lines=lines), PUBLIC))
    assert (found.seconds, found.basis) == (20 * US, "given")


def test_the_very_op_of_the_very_pass_goes_before_a_kernel_on_its_shape() -> None:
    asked: dict[str, Value] = {"model": "kimi-k2.5", "tp": 8, "rows": 4, "requests": 1}
    own = replace(point("attention", 30.0, **asked, context=8192), op="attention")
    found = of("attention", components.components(predicted(4), [own, mla(22.0)]))
    assert found.seconds == pytest.approx(30 * US)
    projection = replace(point("attention_projections", 45.0, **asked, context=8192), op="o_proj")
    found_all = components.components(predicted(4), [projection])
    taken = {one.line.op.name: one.basis for one in found_all}
    assert taken["o_proj"] == "measured"
    assert taken["q_a_proj"] == "floor"


def test_grouped_attention_and_shared_experts_have_their_own_shapes() -> None:
    qwen = predicted(4, model="qwen3-235b-a22b", tp=4)
    shape: dict[str, Value] = {"q_heads": 16, "kv_heads": 1, "head_dim": 128, "kv": "bf16"}
    fits = point("attention", 50.0, rows=4, requests=1, context=8192, **shape)
    assert of("attention", components.components(qwen, [fits])).basis == "measured"
    shared = point("shared_expert", 20.0, rows=4, hidden=7168, intermediate=256, format="bf16")
    found = [
        one
        for one in components.components(predicted(4), [shared])
        if one.line.op.part == "shared_expert"
    ]
    assert sum(one.seconds or 0 for one in found) == pytest.approx(20 * US)


def test_a_setting_that_was_requested_is_no_component() -> None:
    tuned = Point(
        part="all_reduce",
        op="all_reduce",
        implementation="nccl",
        dims={"bytes": 57_344},
        seconds=9 * US,
        basis="measured",
        origin="sweep.jsonl",
        ranks=8,
        settings={"NCCL_PROTO": "LL"},
    )
    assert of("all_reduce", components.components(predicted(4), [tuned])).basis == "not known"
    usual = replace(tuned, settings={})
    found = of("all_reduce", components.components(predicted(4), [usual, *PUBLIC]))
    assert (found.seconds, found.basis) == (9 * US, "measured")
