"""A timeline is exact where a closed form is known, and its trace says what ran when."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import chrome_trace, timeline
from graphs.timeline import Rank, Step, Timeline

US = 1e-6


def kernels(count: int, us: float, part: str = "attention") -> list[Step]:
    return [Step(name=f"k{n}", part=part, device_s=us * US, layer=n) for n in range(count)]


def all_reduce(us: float) -> Step:
    return Step(name="all_reduce", part="all_reduce", device_s=us * US, collective=True)


def eager(steps: list[Step], launch_us: float, **more: object) -> Timeline:
    launches = timeline.eager(steps, launch_s=launch_us * US)
    run = timeline.run
    return run(launches, **more)  # type: ignore[arg-type]  # whatever a test gives


def test_a_pass_that_launches_bound_takes_n_launches_and_one_kernel() -> None:
    found = eager(kernels(100, 2.0), 5.0)
    assert found.pass_s == pytest.approx((100 * 5 + 2) * US)
    assert found.busy_s == pytest.approx(200 * US)
    assert found.idle_s == pytest.approx(302 * US)
    assert found.host_s == pytest.approx(500 * US)


def test_a_pass_that_the_device_bounds_takes_a_launch_and_all_kernels() -> None:
    found = eager(kernels(100, 20.0), 5.0, gap_s=1 * US)
    assert found.pass_s == pytest.approx((5 + 100 * 20 + 99 * 1) * US)
    assert found.idle_s == pytest.approx((5 + 99) * US)


def test_a_graph_is_one_launch_and_its_nodes_follow_each_other() -> None:
    launches = timeline.one_graph(kernels(100, 2.0), launch_s=15 * US)
    found = timeline.run(launches, gap_s=1.3 * US)
    assert found.pass_s == pytest.approx((15 + 200 + 99 * 1.3) * US)


def test_piecewise_graphs_leave_attention_out() -> None:
    steps = [*kernels(3, 2.0, "norms"), *kernels(1, 9.0), *kernels(4, 2.0, "norms")]
    launches = timeline.piecewise(
        steps, graph_launch_s=10 * US, launch_s=5 * US, outside=("attention",)
    )
    assert [(launch.name, len(launch.steps)) for launch in launches] == [
        ("graph", 3),
        ("k0", 1),
        ("graph", 4),
    ]
    # The host has launched all by 25 us; the device ends the first graph at 16, attention at 25.
    assert timeline.run(launches).pass_s == pytest.approx((25 + 8) * US)


def test_one_slow_rank_is_waited_for_in_each_collective() -> None:
    steps = [step for n in range(10) for step in (*kernels(1, 10.0), all_reduce(30.0))]
    launches = timeline.one_graph(steps, launch_s=0.0)
    alike = timeline.run(launches, ranks=[Rank()] * 8)
    assert alike.pass_s == pytest.approx(400 * US)
    assert alike.skew_s == 0
    slow = timeline.run(launches, ranks=[*[Rank()] * 7, Rank(speed=1.5)])
    assert slow.pass_s == pytest.approx(450 * US)
    assert slow.skew_s == pytest.approx(50 * US)
    ends = {event.end_s for event in slow.events if event.part == "all_reduce"}
    assert len(ends) == 10


def test_a_late_host_is_waited_for_once() -> None:
    steps = [step for n in range(4) for step in (*kernels(1, 10.0), all_reduce(5.0))]
    launches = timeline.one_graph(steps, launch_s=1 * US)
    found = timeline.run(launches, ranks=[Rank(), Rank(late_s=7 * US)])
    assert found.pass_s == pytest.approx((7 + 1 + 4 * 15) * US)
    waits = [event.waited_s for event in found.events if event.part == "all_reduce"]
    assert sorted(waits)[-1] == pytest.approx(7 * US)
    assert sum(waits) == pytest.approx(7 * US)


def test_jitter_is_the_same_for_a_seed_and_costs_what_the_slowest_rank_draws() -> None:
    steps = [step for n in range(200) for step in (*kernels(1, 10.0), all_reduce(5.0))]
    launches = timeline.one_graph(steps, launch_s=0.0)
    one, again, other = (
        timeline.run(launches, ranks=[Rank()] * 8, jitter_s=1 * US, seed=seed).pass_s
        for seed in (1, 1, 2)
    )
    assert one == again != other
    # The mean of the largest of 8 exponential delays of mean 1 is 1 + 1/2 + ... + 1/8 = 2.718.
    assert one == pytest.approx(200 * (15 + 2.718) * US, rel=0.02)
    assert timeline.run(launches, ranks=[Rank()] * 8).skew_s == 0


@given(
    st.lists(st.tuples(st.floats(0, 50), st.booleans()), min_size=1, max_size=20),
    st.floats(0, 20),
    st.floats(0, 3),
    st.integers(1, 4),
)
def test_nothing_overlaps_on_a_rank_and_no_pass_is_shorter_than_its_kernels(
    drawn: list[tuple[float, bool]], launch_us: float, gap_us: float, ranks: int
) -> None:
    steps = [
        Step(name=str(n), part="attention", device_s=us * US, collective=together)
        for n, (us, together) in enumerate(drawn)
    ]
    found = eager(steps, launch_us, ranks=[Rank()] * ranks, gap_s=gap_us * US)
    least = max(sum(us for us, _ in drawn), len(drawn) * launch_us)
    assert found.pass_s >= least * US * (1 - 1e-12)
    for rank in range(ranks):
        for on in ("host", "device"):
            mine = [event for event in found.events if (event.rank, event.on) == (rank, on)]
            assert len(mine) == len(steps)
            assert all(a.end_s <= b.start_s + 1e-15 for a, b in pairwise(mine))


def test_time_by_part_adds_up_to_the_busy_time() -> None:
    found = eager([*kernels(3, 2.0, "norms"), *kernels(2, 9.0)], 1.0)
    assert timeline.by_part(found) == pytest.approx({"norms": 6 * US, "attention": 18 * US})


def test_a_trace_holds_each_launch_and_kernel_of_each_rank() -> None:
    found = eager([*kernels(2, 4.0), all_reduce(30.0)], 5.0, ranks=[Rank(), Rank(late_s=2 * US)])
    trace = json.loads(chrome_trace.encoded(found, title="predicted, eager"))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == 2 * (3 + 3)
    assert {(e["pid"], e["tid"]) for e in events} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    meets = [e for e in events if e["args"]["part"] == "all_reduce" and e["tid"] == 2]
    assert meets[0]["ts"] + meets[0]["dur"] == pytest.approx(meets[1]["ts"] + meets[1]["dur"])
    assert meets[0]["args"]["waited_us"] == pytest.approx(2)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {"rank 0: predicted, eager", "rank 1: predicted, eager"}


def test_what_is_no_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="s is no duration; give 0 or more"):
        Step(name="k", part="norms", device_s=-1.0)
    with pytest.raises(ValueError, match="a launch and a rank"):
        timeline.run([])
    with pytest.raises(ValueError, match="launches nothing"):
        timeline.one_graph([], launch_s=0.0)
