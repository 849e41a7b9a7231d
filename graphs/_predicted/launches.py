"""What the host pays to launch a kernel or a graph, and the device between two kernels.

Each cost is given, or from `empty_kernel` records (a graph's node: of launch "graph"; a launch:
back to back, of launch "eager" and cache "warm"), or from the field: one report of one machine, so
a place to start from and no measurement of this one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphs._predicted.points import Point
from graphs.ops import Op
from verifyscope.errors import UsageError
from verifyscope.parts import PARTS

FIELD = "ahrefs/ocannl#488: graph replay 15 us + 0.58 us a node, 6.4 us a launch; another machine"
_FIELD_LAUNCH_S, _FIELD_GRAPH_S, _FIELD_NODE_S = 6.4e-6, 15e-6, 0.58e-6
_MOST_LAUNCHES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds and whose they are."""

    seconds: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Host seconds of a kernel's launch and of a graph's, device seconds between two kernels."""

    launch: Cost
    graph: Cost
    node: Cost

    @property
    def sources(self) -> Mapping[str, str]:
        """Return whose each cost is, by the name of its option."""
        return {
            "launch_us": self.launch.source,
            "graph_launch_us": self.graph.source,
            "node_us": self.node.source,
        }


def costs(
    *,
    launch_s: float | None = None,
    graph_launch_s: float | None = None,
    node_s: float | None = None,
    points: Iterable[Point] = (),
) -> Costs:
    """Return the costs: given ones first, then the least of `empty_kernel` points, then FIELD."""
    empty = [point for point in points if point.part == "empty_kernel"]
    nodes = [point for point in empty if point.launch == "graph"]
    launches = [point for point in empty if point.launch == "eager" and _is_back_to_back(point)]
    return Costs(
        launch=_cost(launch_s, "--launch-us", launches, _FIELD_LAUNCH_S),
        graph=_cost(graph_launch_s, "--graph-launch-us", (), _FIELD_GRAPH_S),
        node=_cost(node_s, "--node-us", nodes, _FIELD_NODE_S),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """How many kernels an op is launched as: by its name, else by its part, else `usual`."""

    usual: int = 1
    by_name: Mapping[str, int] | None = None

    def of(self, op: Op) -> int:
        """Return the kernels of one call of `op`."""
        named = self.by_name or {}
        return named.get(op.name, named.get(op.part, self.usual))


def parse(text: str, ops: Iterable[Op]) -> Launches:
    """Return what `--launches 2` or `--launches attention=3,routing=2` says."""
    known = {op.name for op in ops}
    usual, named = 1, dict[str, int]()
    for item in text.split(","):
        name, equals, count = item.strip().rpartition("=")
        launches = _whole(count, text)
        if not equals:
            usual = launches
        elif name in known or name in PARTS:
            named[name] = launches
        else:
            raise UsageError(
                f"--launches names {name!r}, which is no part and no op of this pass; "
                f"ops: {', '.join(sorted(known))}"
            )
    return Launches(usual=usual, by_name=named)


def _whole(text: str, given: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_LAUNCHES:
        raise UsageError(
            f"--launches {given!r} is no count of 1 to {_MOST_LAUNCHES} kernels; give 1, or "
            f"attention=2,routing=3"
        )
    return int(text)


def _cost(given_s: float | None, option: str, points: Iterable[Point], field_s: float) -> Cost:
    if given_s is not None:
        return Cost(seconds=given_s, source=f"given by {option}")
    best = min(points, key=lambda point: point.seconds, default=None)
    if best is not None:
        return Cost(seconds=best.seconds, source=f"empty_kernel of {best.origin}")
    return Cost(seconds=field_s, source=FIELD)


def _is_back_to_back(point: Point) -> bool:
    return point.cache == "warm"
