"""Rows of a sweep that were measured alike and differ in their combination alone.

A contest holds one collective in one direction and timing mode (eager or graph, one call or many
in a row), by combination and size. A combination is an `implementation`: its first word is the
backend ("nccl"), which alone is the backend's own choice, the default; "nccl ring/ll" and the like
are its combinations, and what begins with another word does the same in another way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verifyscope.records import Launch, Measurement, Record

_BACKEND = "nccl"
UNSAFE = "unsafe"
_LAUNCH_ORDER = ("graph", "piecewise", "eager", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What may be compared: `rows` by implementation and bytes, with a time or with a reason.

    depth: the calls in a row, whose time is divided by them; in_place: None where nobody said it.
    """

    op: str
    ranks: int | None
    nodes: int
    dtype: str | None
    in_place: bool | None
    launch: Launch | None
    depth: int
    environment: str
    rows: Mapping[str, Mapping[int, Measurement]]

    @property
    def default(self) -> str | None:
        """Return the implementation that leaves every choice to the backend."""
        bare = [name for name in self.rows if " " not in name]
        several = [name for name in bare if any(one.startswith(f"{name} ") for one in self.rows)]
        return _BACKEND if _BACKEND in bare else next(iter((*several, *bare)), None)

    @property
    def combinations(self) -> tuple[str, ...]:
        """Return the default's own combinations, without it."""
        return tuple(name for name in self.rows if name.startswith(f"{self.default} "))

    @property
    def others(self) -> tuple[str, ...]:
        """Return what does the same in another way."""
        ours = {self.default, *self.combinations}
        return tuple(name for name in self.rows if name not in ours)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes at which anything has a time, ascending."""
        return tuple(sorted({size for rows in self.rows.values() for size in timed(rows)}))

    @property
    def mode(self) -> str:
        """Return how it was timed, such as "graph x 122"; "timed" where nobody said how."""
        launch = self.launch or "timed"
        return f"{launch} x {self.depth}" if self.depth > 1 else launch

    def times(self, implementation: str | None) -> dict[int, Measurement]:
        """Return the rows of an implementation that have a time, by bytes."""
        return timed(self.rows.get(implementation or "", {}))


def contests(records: Iterable[Record]) -> list[Contest]:
    """Return the contests among measured and imported rows of collectives, in order of interest.

    A pass is replayed from a graph, call after call, in place: that mode comes first.
    """
    groups: dict[tuple[object, ...], dict[str, dict[int, Measurement]]] = {}
    for one in latest(records):
        size = one.dims.get("bytes")
        if one.source == "predicted" or not isinstance(size, int) or "in_place" not in one.dims:
            continue
        by_size = groups.setdefault(_alike(one), {}).setdefault(one.implementation, {})
        if one.median_s is not None or size not in by_size:
            by_size[size] = one
    return sorted(map(_contest, groups.values()), key=_nearness)


def latest(records: Iterable[Record]) -> list[Measurement]:
    """Return the measurements; of two lines with one id, as a resumed run leaves, the later one."""
    found = {one.id: one for one in records if isinstance(one, Measurement)}
    return list(found.values())


def timed(rows: Mapping[int, Measurement]) -> dict[int, Measurement]:
    """Return the rows that have a time, by ascending bytes."""
    return {size: rows[size] for size in sorted(rows) if rows[size].median_s is not None}


def is_unsafe(rows: Mapping[int, Measurement]) -> bool:
    """Say whether a combination may give wrong values: LL128 past its gate."""
    return any(UNSAFE in one.flags for one in rows.values())


def asked_for(contest: Contest, implementation: str) -> dict[str, str]:
    """Return what a combination asks for beyond what the default is run with."""
    first = next(iter(contest.rows[implementation].values()))
    inherited = next(iter(contest.rows.get(contest.default or "", {}).values()), None)
    given = {} if inherited is None else inherited.requested
    return {name: value for name, value in first.requested.items() if given.get(name) != value}


def _alike(one: Measurement) -> tuple[object, ...]:
    origin = None if one.origin is None else one.origin.file
    dims = tuple(one.dims.get(name) for name in ("dtype", "redop", "in_place", "nodes"))
    timing = (one.launch, one.depth or 1)
    return (one.source, one.op, one.ranks, dims, timing, one.environment, origin)


def _contest(rows: Mapping[str, Mapping[int, Measurement]]) -> Contest:
    first = next(one for by_size in rows.values() for one in by_size.values())
    nodes, in_place, dtype = (first.dims.get(name) for name in ("nodes", "in_place", "dtype"))
    return Contest(
        op=first.op,
        ranks=first.ranks,
        nodes=nodes if isinstance(nodes, int) else 1,
        dtype=dtype if isinstance(dtype, str) else None,
        in_place=in_place if isinstance(in_place, bool) else None,
        launch=first.launch,
        depth=first.depth or 1,
        environment=first.environment,
        rows=rows,
    )


def _nearness(one: Contest) -> tuple[bool, int, bool, bool]:
    return (
        one.op != "all_reduce",
        _LAUNCH_ORDER.index(one.launch),
        one.depth == 1,
        one.in_place is not True,
    )
