"""Measured rows of a run, as the model is held against them: bytes, time, and what NCCL ran.

A combination is "ring/ll" and the like where a record proves it (`effective`, or dims that name
algorithm and protocol); where only `requested` names one of each it is that, marked as requested;
and else "default": NCCL's own choice, which may change with the size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collectives._model.fit import Line, fit
from ingest.nccl_names import ALGORITHMS, PROTOCOLS
from verifyscope.records import Measurement, Record, Value

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured point. `proven` says that the combination is what ran, not what was asked for.

    launch: eager or graph, with the calls of a graph where they are more than one.
    """

    size_bytes: int
    seconds: float
    low_s: float | None
    high_s: float | None
    ranks: int
    combination: str
    proven: bool
    launch: str
    record: str


Key = tuple[str, str, int]


def rows(records: Iterable[Record], op: str) -> Iterator[Row]:
    """Yield the measured and imported rows of NCCL's collective `op` that have a time."""
    for known in records:
        if not isinstance(known, Measurement) or known.source == "predicted":
            continue
        size = known.dims.get("bytes")
        ours = known.op == op and known.status == "ok" and _is_nccl(known.implementation)
        if not ours or not isinstance(size, int) or known.ranks is None or not known.median_s:
            continue
        combination, proven = _combination(known)
        yield Row(
            size_bytes=size,
            seconds=known.median_s,
            low_s=known.low_s,
            high_s=known.high_s,
            ranks=known.ranks,
            combination=combination,
            proven=proven,
            launch=_launch(known),
            record=known.id,
        )


def _is_nccl(implementation: str) -> bool:
    """Say whether a name is NCCL's own, or of a combination of it, and not of others."""
    return implementation.partition(" ")[0] == "nccl"


def _launch(known: Measurement) -> str:
    name = known.launch or "unknown"
    return f"{name} x {known.depth}" if known.depth and known.depth > 1 else name


def _combination(known: Measurement) -> tuple[str, bool]:
    for said, proven in ((known.dims, True), (known.effective, True), (known.requested, False)):
        algorithm = _word(said, ("algorithm", "NCCL_ALGO"), ALGORITHMS)
        protocol = _word(said, ("protocol", "NCCL_PROTO"), PROTOCOLS)
        if algorithm and protocol:
            return f"{algorithm}/{protocol}", proven
    return DEFAULT, True


def _word(
    said: Mapping[str, Value] | Mapping[str, str], keys: Sequence[str], known: Sequence[str]
) -> str | None:
    """Return the one word of `known` that `said` holds under one of `keys`."""
    for key in keys:
        word = str(said.get(key, "")).lower().replace("_", "")
        if word in known:
            return word
    return None


def grouped(found: Iterable[Row]) -> dict[Key, list[Row]]:
    """Return the rows by combination, launch and ranks."""
    groups: dict[Key, list[Row]] = {}
    for row in found:
        groups.setdefault((row.combination, row.launch, row.ranks), []).append(row)
    return groups


def lines(groups: Mapping[Key, Sequence[Row]]) -> tuple[dict[Key, Line], dict[Key, str]]:
    """Return the line of each combination, and why the others have none."""
    fitted: dict[Key, Line] = {}
    why_not: dict[Key, str] = {}
    for key, found in groups.items():
        if key[0] == DEFAULT:
            why_not[key] = "NCCL's own choice changes with the size: no one line"
            continue
        try:
            fitted[key] = fit([(row.size_bytes, row.seconds) for row in found])
        except ValueError as error:
            why_not[key] = str(error)
    return fitted, why_not
