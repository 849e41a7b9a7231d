"""The pass on the timeline: closed forms by hand, launch costs with a source, agreement."""

import msgspec
import pytest

from graphs import agreement
from graphs._predicted import components, fits, launches, played
from graphs._predicted.components import Component
from graphs._predicted.launches import FIELD, Launches
from graphs._predicted.played import Played, Uneven
from graphs._predicted.points import Point
from graphs.agreement import Agreement
from graphs.layers import forward
from tests.test_components import PUBLIC, predicted
from verifyscope.errors import UsageError
from verifyscope.models import TABLE
from verifyscope.records import Launch, Measurement, Value

US = 1e-6
ALIKE = Uneven(ranks=8)
ONE_EACH = Launches()
FOUND = components.components(predicted(4), PUBLIC)
TOTAL_S = components.total(FOUND).seconds
KERNELS = 1402


def costs(launch_us: float, graph_us: float = 15.0, node_us: float = 0.58) -> launches.Costs:
    return launches.costs(
        launch_s=launch_us * US, graph_launch_s=graph_us * US, node_s=node_us * US
    )


def play(
    launch: Launch,
    launch_us: float = 6.4,
    *,
    uneven: Uneven = ALIKE,
    found: tuple[Component, ...] = FOUND,
    how: Launches = ONE_EACH,
) -> Played:
    return played.play(found, launch, costs=costs(launch_us), launches=how, uneven=uneven)


def test_every_kernel_of_all_61_layers_is_played_in_order() -> None:
    steps = played.steps(FOUND, ONE_EACH)
    assert len(steps) == KERNELS
    assert {step.layer for step in steps} == {None, *range(61)}
    assert [step.layer for step in steps if step.layer is not None] == sorted(
        step.layer for step in steps if step.layer is not None
    )
    assert sum(step.collective for step in steps) == 124
    assert sum(step.device_s for step in steps) == pytest.approx(TOTAL_S)
    dense = [step.name for step in steps if step.layer == 0]
    assert "dense_mlp_down" in dense
    assert "experts_down" not in dense


def test_a_device_bound_pass_is_a_launch_its_kernels_and_the_gaps_between_them() -> None:
    hosts: dict[Launch, float] = {"eager": 6.4, "graph": 15.0}
    for launch, host_us in hosts.items():
        found = play(launch)
        expected_s = host_us * US + TOTAL_S + (KERNELS - 1) * 0.58 * US
        assert found.pass_s == pytest.approx(expected_s, rel=1e-3)
        assert found.busy_s == pytest.approx(TOTAL_S)
    assert play("graph").launches == 1
    assert play("piecewise").launches == 61 * 2 + 1


def test_a_launch_bound_pass_is_its_launches_and_a_graph_takes_them_away() -> None:
    slow = play("eager", 40.0)
    assert slow.host_s == pytest.approx(KERNELS * 40 * US)
    # lm_head, launched last but one, outlasts the launch of the gather that follows it.
    head_s, gather_s = ((one.seconds or 0.0) for one in FOUND[-2:])
    assert slow.pass_s == pytest.approx(slow.host_s - 40 * US + head_s + 0.58 * US + gather_s)
    assert slow.idle_share > 0.7
    assert play("graph", 40.0).pass_s == pytest.approx(14.9e-3, rel=2e-3)


def test_the_host_is_slower_than_the_device_from_busy_over_launches_on() -> None:
    bound_s = played.host_bound_above_s(play("eager"))
    assert bound_s == pytest.approx(TOTAL_S / KERNELS)
    eager, graph = play("eager", 20.0).pass_s, play("graph", 20.0).pass_s
    assert eager > 1.8 * graph


def test_a_slow_rank_costs_its_share_of_all_that_is_no_collective() -> None:
    collectives_s = sum(one.pass_s or 0 for one in FOUND if one.line.op.message_bytes is not None)
    found = play("graph", uneven=Uneven(ranks=8, slow_rank=1.1))
    assert found.skew_s == pytest.approx(0.1 * (TOTAL_S - collectives_s), rel=1e-6)
    assert play("graph").skew_s is None
    assert play("graph", uneven=Uneven(ranks=1, slow_rank=1.1)).uneven_s is None
    drawn = play("graph", uneven=Uneven(ranks=8, jitter_s=1 * US))
    again = play("graph", uneven=Uneven(ranks=8, jitter_s=1 * US))
    assert drawn.skew_s == again.skew_s
    # 124 meetings at which the latest of 8 ranks is waited for; each draws some ten delays.
    assert (drawn.skew_s or 0) > 1402 * US


def test_two_ranks_stand_for_eight_of_which_one_is_slow() -> None:
    uneven = Uneven(ranks=8, slow_rank=1.3)
    made = played.launched(played.steps(FOUND, ONE_EACH), "graph", costs(6.4))
    few, all_ = (
        played.run_uneven(made, costs(6.4), uneven, ranks=ranks).pass_s
        for ranks in (uneven.different_ranks(), uneven.all_ranks())
    )
    assert few == pytest.approx(all_)


def test_an_op_may_be_several_kernels_of_its_time() -> None:
    how = launches.parse("attention=3,routing=2", [one.line.op for one in FOUND])
    steps = played.steps(FOUND, how)
    assert len(steps) == KERNELS + 2 * 61 + 60
    assert sum(step.device_s for step in steps) == pytest.approx(TOTAL_S)
    assert launches.parse("2", ()).of(FOUND[0].line.op) == 2
    # A collective stays one kernel of all ranks.
    assert len(played.steps(FOUND, Launches(usual=2))) == 2 * KERNELS - 124


def test_what_is_not_known_is_left_out_and_named() -> None:
    found = play("eager", found=components.components(predicted(4), ()))
    assert set(found.left_out) == {"all_reduce", "embedding_all_reduce", "logits_all_gather"}
    assert found.kernels == KERNELS - 124


def empty(us: float, launch: Launch, cache: str) -> Point:
    return Point(
        part="empty_kernel",
        op="empty_kernel",
        implementation="triton",
        dims={},
        seconds=us * US,
        basis="measured",
        origin="mine.jsonl",
        launch=launch,
        cache=cache,  # type: ignore[arg-type]  # one of them
    )


def test_launch_costs_come_from_empty_kernels_where_nobody_gave_them() -> None:
    known = [empty(1.3, "graph", "warm"), empty(4.1, "eager", "warm"), empty(9, "eager", "flushed")]
    found = launches.costs(points=known)
    assert (found.node.seconds, found.launch.seconds) == (1.3 * US, 4.1 * US)
    assert found.node.source == "empty_kernel of mine.jsonl"
    assert (found.graph.seconds, found.graph.source) == (15e-6, FIELD)
    given = launches.costs(node_s=2e-6, points=known)
    assert (given.node.seconds, given.node.source) == (2e-6, "given by --node-us")


def test_a_wrong_number_of_kernels_is_refused() -> None:
    for text, message in (
        ("0", "is no count of 1 to 64 kernels"),
        ("attention=65", "is no count of 1 to 64"),
        ("attention=", "is no count of 1 to 64"),
        ("attentoin=2", "names 'attentoin', which is no part and no op of this pass"),
    ):
        with pytest.raises(UsageError, match=message):
            launches.parse(text, [one.line.op for one in FOUND])


def test_a_line_through_times_has_base_slope_and_its_farthest_point() -> None:
    line = fits.fit("floor", "rows", other=8192, seconds={1: 5e-3, 2: 7e-3, 4: 11e-3})
    assert line is not None
    assert [line.base_s, line.slope_s] == pytest.approx([3e-3, 2e-3])
    assert line.worst_s == pytest.approx(0, abs=1e-12)
    assert line.mean_s == pytest.approx(23e-3 / 3)
    bent = fits.fit("floor", "rows", other=8192, seconds={1: 0.0, 2: 3.0, 3: 0.0})
    assert bent is not None
    assert (bent.base_s, bent.slope_s, bent.worst_s) == pytest.approx((1.0, 0.0, 2.0))
    assert fits.fit("floor", "rows", other=8192, seconds={1: 5e-3}) is None


def measured(ms: float, launch: Launch, **changes: Value) -> Measurement:
    dims: dict[str, Value] = {"model": "kimi-k2.5", "tp": 8, "rows": 4, "context": 8192}
    return Measurement(
        source="measured",
        part="forward",
        op="forward",
        implementation="stub",
        case="c",
        status="ok",
        dims=dims | changes,
        launch=launch,
        median_s=ms / 1e3,
        low_s=ms / 1e3 * 0.99,
        high_s=ms / 1e3 * 1.01,
        environment="e",
        command="c",
    )


def held(*passes: Measurement, found: tuple[Component, ...] = FOUND) -> list[Agreement]:
    modes = [play(mode, found=found) for mode in played.MODES]
    asked = forward(TABLE["kimi-k2.5"], tp=8, rows=4, context=8192).asked
    return agreement.compare(passes, modes, asked)


def test_a_measured_pass_is_held_to_the_prediction_of_its_own_mode_and_case() -> None:
    eager_ms = play("eager").pass_s * 1e3
    near, far, short = held(
        measured(eager_ms * 1.05, "eager"),
        measured(29.49, "eager"),
        measured(7.0, "graph"),
        measured(29.49, "eager", rows=3),
        measured(29.49, "eager", model="kimi-k2"),
        measured(29.49, "eager", requests=2),
    )
    assert near.verdict == "agrees"
    assert near.off == pytest.approx(1 / 1.05 - 1)
    assert far.verdict == "too short"
    assert far.off == pytest.approx(eager_ms / 29.49 - 1)
    assert (short.verdict, short.launch) == ("too long", "graph")


def test_a_stub_with_parts_taken_out_or_without_all_reduces_is_no_such_pass() -> None:
    whole = measured(20.0, "eager", all_reduce="delay:33us")
    assert len(held(whole)) == 1
    replace = msgspec.structs.replace
    for op in ("forward_account", "forward_without", "forward_only", "forward_busy"):
        assert held(replace(whole, op=op)) == []
    assert held(measured(20.0, "piecewise", outside="collectives")) == []
    assert len(held(measured(20.0, "piecewise", outside="attention"))) == 1
    assert held(measured(20.0, "eager", all_reduce="none")) == []
    without = components.components(predicted(4), ())
    assert len(held(measured(20.0, "eager", all_reduce="none"), found=without)) == 1


def test_an_interval_that_holds_the_prediction_agrees_however_wide() -> None:
    wide = msgspec.structs.replace(measured(20.0, "eager"), low_s=10e-3, high_s=30e-3)
    (one,) = held(wide)
    assert one.verdict == "agrees"


def test_a_prediction_that_lacks_a_part_cannot_be_called_too_short() -> None:
    (one,) = held(measured(29.49, "eager"), found=components.components(predicted(4), ()))
    assert (one.verdict, bool(one.left_out)) == ("unsure", True)
