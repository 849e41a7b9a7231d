"""A pass on the timeline: eager, as piecewise graphs and as one graph; alike ranks and uneven ones.

Each call of an op is its kernels (`launches.Launches`), which share its component's time evenly;
a collective is one kernel of all ranks. An op whose time is not known is left out, and the pass is
then "at least". Piecewise leaves attention outside of the graphs, as engines do that cannot capture
it.

Uneven ranks: one of them takes `slow_rank` times as long for its own kernels, and each kernel of
each rank waits an exponential delay of mean jitter_s. Alike ranks are one rank; without jitter, all
but the slow one are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphs import timeline
from graphs._predicted.components import Component
from graphs._predicted.launches import Costs, Launches
from graphs.layers import Section
from graphs.timeline import Rank, Step, Timeline
from verifyscope.records import Launch

MODES: tuple[Launch, ...] = ("eager", "piecewise", "graph")
OUTSIDE = ("attention",)
ASSUMED_SLOW_RANK = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """How ranks differ; `assumed` says that nobody asked for it and it is an example."""

    ranks: int
    slow_rank: float = 1.0
    jitter_s: float = 0.0
    seed: int = 0
    assumed: bool = False

    @property
    def is_there(self) -> bool:
        """Say whether ranks can be waited for at all, and any is."""
        return self.ranks > 1 and (self.slow_rank != 1 or self.jitter_s > 0)

    def all_ranks(self) -> list[Rank]:
        """Return every rank, the slow one last."""
        return [*[Rank()] * (self.ranks - 1), Rank(speed=self.slow_rank)]

    def different_ranks(self) -> list[Rank]:
        """Return one rank of each kind; all of them where each draws its own delays."""
        return self.all_ranks() if self.jitter_s else [Rank(), Rank(speed=self.slow_rank)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A pass launched in one way. `uneven_s` is None where ranks cannot be uneven.

    left_out: the parts whose time is not known; they are not in any of the sums.
    """

    launch: Launch
    launches: int
    kernels: int
    pass_s: float
    host_s: float
    busy_s: float
    idle_s: float
    uneven_s: float | None
    left_out: tuple[str, ...] = ()

    @property
    def idle_share(self) -> float:
        """Return the share of the pass in which the device ran nothing."""
        return self.idle_s / self.pass_s if self.pass_s else 0.0

    @property
    def skew_s(self) -> float | None:
        """Return what uneven ranks cost."""
        return None if self.uneven_s is None else self.uneven_s - self.pass_s


def steps(components: Sequence[Component], launches: Launches) -> list[Step]:
    """Return the kernels of a pass in order; what is not known is not among them."""
    found: list[Step] = []
    layer = 0
    for section, ops in _by_section(components):
        for _ in range(section.count):
            at = layer if section.is_layer else None
            found += (step for one in ops for step in _kernels(one, launches, layer=at))
            layer += section.is_layer
    return found


def launched(steps: Sequence[Step], launch: Launch, costs: Costs) -> list[timeline.Launch]:
    """Return what the host launches in this mode."""
    if launch == "eager":
        return timeline.eager(steps, launch_s=costs.launch.seconds)
    if launch == "graph":
        return timeline.one_graph(steps, launch_s=costs.graph.seconds)
    return timeline.piecewise(
        steps,
        graph_launch_s=costs.graph.seconds,
        launch_s=costs.launch.seconds,
        outside=OUTSIDE,
    )


def play(
    components: Sequence[Component],
    launch: Launch,
    *,
    costs: Costs,
    launches: Launches,
    uneven: Uneven,
) -> Played:
    """Return the pass in one mode, with alike ranks and with uneven ones."""
    kernels = steps(components, launches)
    made = launched(kernels, launch, costs)
    alike = timeline.run(made, gap_s=costs.node.seconds)
    uneven_s = None
    if uneven.is_there:
        uneven_s = run_uneven(made, costs, uneven, ranks=uneven.different_ranks()).pass_s
    unknown = dict.fromkeys(one.line.op.part for one in components if one.seconds is None)
    return Played(
        launch=launch,
        launches=len(made),
        kernels=len(kernels),
        pass_s=alike.pass_s,
        host_s=alike.host_s,
        busy_s=alike.busy_s,
        idle_s=alike.idle_s,
        uneven_s=uneven_s,
        left_out=tuple(unknown),
    )


def run_uneven(
    made: Sequence[timeline.Launch], costs: Costs, uneven: Uneven, *, ranks: Sequence[Rank]
) -> Timeline:
    """Return the timeline of `ranks`, each with its own delays."""
    return timeline.run(
        made,
        ranks=ranks,
        gap_s=costs.node.seconds,
        jitter_s=uneven.jitter_s,
        seed=uneven.seed,
    )


def host_bound_above_s(played: Played) -> float:
    """Return the seconds a launch above which an eager host is slower than the device."""
    return played.busy_s / played.launches


def _by_section(
    components: Sequence[Component],
) -> Iterator[tuple[Section, list[Component]]]:
    sections: dict[str, list[Component]] = {}
    for one in components:
        sections.setdefault(one.line.section.name, []).append(one)
    for ops in sections.values():
        yield ops[0].line.section, ops


def _kernels(one: Component, launches: Launches, *, layer: int | None) -> Iterator[Step]:
    if one.seconds is None:
        return
    op = one.line.op
    collective = op.message_bytes is not None
    count = 1 if collective else launches.of(op)
    for number in range(count):
        yield Step(
            name=op.name if count == 1 else f"{op.name} {number + 1}/{count}",
            part=op.part,
            device_s=one.seconds / count,
            layer=layer,
            collective=collective,
        )
