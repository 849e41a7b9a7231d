"""Times of single calls, whoever measured them: published ones, and those of a user's files.

A point is an op on a case: `dims` as in records (rows, context, heads, bytes, ...). `basis` says
whose it is: "public" (verifyscope.published) or "measured" (a file that --measured names, measured
or imported there). Predicted records are no points.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from verifyscope import published
from verifyscope.records import Cache, Launch, Measurement, Mode, Value

Basis = Literal["public", "measured"]
_LAUNCHES: Mapping[str, Launch] = {"graph": "graph", "eager": "eager"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Seconds of one call. `origin` is a file or a publication; `settings` what was requested."""

    part: str
    op: str
    implementation: str
    dims: Mapping[str, Value]
    seconds: float
    basis: Basis
    origin: str
    ranks: int | None = None
    launch: Launch | None = None
    mode: Mode | None = None
    cache: Cache | None = None
    touched_bytes: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def dim(self, name: str) -> Value | None:
        """Return a dim; None where the point does not say."""
        return self.dims.get(name)

    def whole(self, name: str) -> int | None:
        """Return a dim that is a count."""
        value = self.dims.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def public(gpu: str) -> Iterator[Point]:
    """Yield the published times of a GPU of verifyscope.hardware."""
    for row in published.rows():
        if row.gpu == gpu:
            yield Point(
                part=row.part,
                op=row.part,
                implementation=row.implementation,
                dims=row.dims,
                seconds=row.median_s,
                basis="public",
                origin=row.source,
                ranks=row.ranks,
                launch=_LAUNCHES.get(row.launch or ""),
                touched_bytes=row.touched_bytes,
            )


def measured(records: Iterable[Measurement], origin: str) -> Iterator[Point]:
    """Yield the points of records that have a time; `origin` is the name of their file."""
    for one in records:
        if one.median_s is not None:
            yield Point(
                part=one.part,
                op=one.op,
                implementation=one.implementation,
                dims=one.dims,
                seconds=one.median_s,
                basis="measured",
                origin=origin,
                ranks=one.ranks,
                launch=one.launch,
                mode=one.mode,
                cache=one.cache,
                touched_bytes=one.touched_bytes,
                settings=one.requested,
            )
