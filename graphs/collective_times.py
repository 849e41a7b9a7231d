"""Where a collective's time comes from: a number that was given, or a sweep's records.

Between two measured sizes the time is interpolated, linear in bytes; outside of them, or for
another number of ranks, it is not known. A collective's time is never taken as 0.

From a sweep only measured or imported records with status ok count, of part all_reduce or
all_gather, whose `ranks` are those asked for and whose dims hold `bytes` (nccl-tests' size).
Several times of one size give their median. Records of default settings are preferred, and of the
four times of a sweep's row those of a graph with the most calls in a row: that is what a pass is.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphs._predicted import interpolation
from graphs.ops import Op
from verifyscope import cli, records, units
from verifyscope.errors import UsageError
from verifyscope.records import Measurement

_MEASURED_AS = {
    "all_reduce": "all_reduce",
    "embedding_all_reduce": "all_reduce",
    "logits_all_gather": "all_gather",
}
# What moves data for an engine; a sweep has other all-reduces beside it.
_BACKENDS = ("nccl", "rccl", "gloo")
_WHAT_TO_GIVE = {
    "all_reduce": "give --all-reduce-us, --sweep or --measured",
    "all_gather": "give a --sweep or --measured that has all_gather",
}


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds a call, or None; `how` says where it comes from or why it is not known."""

    seconds: float | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What is known. `points` holds, by measured part, seconds by bytes; empty without a sweep."""

    all_reduce_s: float | None = None
    points: Mapping[str, Mapping[int, float]] | None = None
    origin: str = ""

    def of(self, op: Op) -> Time:
        """Return the time of one call of the collective `op`."""
        measured_as, size = _MEASURED_AS[op.part], op.message_bytes or 0
        if self.all_reduce_s is not None and measured_as == "all_reduce":
            return Time(self.all_reduce_s, "given by --all-reduce-us")
        if self.points is None:
            return Time(None, _WHAT_TO_GIVE[measured_as])
        points = self.points.get(measured_as)
        if not points:
            return Time(None, f"{self.origin} has no {measured_as}")
        return _between(points, size, self.origin)


def from_sweep(path: Path, *, ranks: int) -> Times:
    """Read the collectives of `ranks` ranks from a records file, or from the folder of a run."""
    warnings: list[str] = []
    found = [
        record
        for record in records.read([path], warnings)
        if isinstance(record, Measurement) and record.part in _MEASURED_AS.values()
    ]
    for warning in warnings:
        cli.note(warning)
    usable = [record for record in found if _is_usable(record) and record.ranks == ranks]
    if not usable:
        others = sorted({record.ranks for record in found if _is_usable(record) and record.ranks})
        instead = f"only of {', '.join(map(str, others))} ranks" if others else "none that ran"
        raise UsageError(
            f"--sweep {path} holds no all-reduce of {ranks} ranks ({instead}); "
            f"give a sweep of {ranks} ranks"
        )
    name, chosen = _one_setting(usable, path)
    by_part: dict[str, list[Measurement]] = defaultdict(list)
    for record in chosen:
        by_part[record.part].append(record)
    return Times(
        points={part: interpolation.medians(_as_in_a_pass(rows)) for part, rows in by_part.items()},
        origin=f"{path.name} ({name}, {ranks} ranks)",
    )


def _is_usable(record: Measurement) -> bool:
    size = record.dims.get("bytes")
    measured = record.source != "predicted" and record.status == "ok"
    return measured and isinstance(size, int) and not isinstance(size, bool) and size > 0


def _one_setting(found: Iterable[Measurement], path: Path) -> tuple[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = defaultdict(list)
    default: set[str] = set()
    bare: set[str] = set()  # what leaves the choice to the backend, whatever is set
    every = list(found)
    for record in [one for one in every if one.implementation.split()[0] in _BACKENDS] or every:
        settings = ", ".join(f"{key}={value}" for key, value in sorted(record.requested.items()))
        name = " ".join(filter(None, (record.implementation, settings)))
        groups[name].append(record)
        if not settings:
            default.add(name)
        if " " not in record.implementation:
            bare.add(name)
    names = sorted(default or bare or groups)
    if len(names) > 1:
        raise UsageError(
            f"--sweep {path} holds several ways ({'; '.join(names)}); give a file with one of them"
        )
    return names[0], groups[names[0]]


def _as_in_a_pass(found: Sequence[Measurement]) -> list[tuple[int, float]]:
    """Return bytes and seconds of the rows timed most like a pass: a graph of many calls."""
    most = max((record.launch == "graph", record.depth or 1) for record in found)
    return [
        (int(record.dims["bytes"]), record.median_s)
        for record in found
        if record.median_s is not None and (record.launch == "graph", record.depth or 1) == most
    ]


def _between(points: Mapping[int, float], size: int, origin: str) -> Time:
    found = interpolation.at(size, points)
    if found is None:
        low, high = units.bytes_(min(points)), units.bytes_(max(points))
        return Time(None, f"{origin} measured {low} to {high} only")
    if found.below == found.above:
        return Time(found.seconds, f"measured in {origin}")
    return Time(found.seconds, f"between {found.below:,} and {found.above:,} B of {origin}")
