"""What NCCL believes of a call beside what was measured: its choice, its time, and the difference.

NCCL believes = latency + bytes / bandwidth by its own cost model (`python -m collectives.predict`),
never a measurement; its times mean nothing where its search for a graph failed, its choice does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reports import _text
from reports._collected import Collected
from reports._effect import ran
from reports._markdown import code, table, text
from reports._text import NOT_KNOWN
from verifyscope.contests import UNSAFE
from verifyscope.records import Measurement
from verifyscope.sweep_conclusion import SweepConclusion

_FAILED = "graph-simple-order"
_CHOSEN = "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """The predicted rows for one sweep, by bytes and combination, such as "ring/ll"."""

    rows: dict[int, dict[str, Measurement]]

    @property
    def every(self) -> list[Measurement]:
        """Return all of them."""
        return [row for by_name in self.rows.values() for row in by_name.values()]


def believed(one: SweepConclusion, found: Collected) -> Believed:
    """Return what NCCL's model says of the sizes of a sweep; what was predicted last counts."""
    rows: dict[int, dict[str, Measurement]] = {}
    for row in found.believed:
        size = row.dims.get("bytes")
        fitted = "fit" in str(row.method.get("from", ""))
        if (row.op, row.ranks) == (one.contest.op, one.contest.ranks) and not fitted:
            name = f"{row.dims['algorithm']}/{row.dims['protocol']}"
            if isinstance(size, int) and size in one.contest.sizes:
                rows.setdefault(size, {})[name] = row
    return Believed(rows=dict(sorted(rows.items())))


def chosen(known: Believed) -> dict[int, Measurement]:
    """Return the predicted row of what NCCL would take, by bytes."""
    return {
        size: row
        for size, by_name in known.rows.items()
        for row in by_name.values()
        if _CHOSEN in row.flags
    }


def facts(known: Believed) -> str:
    """Return for which NCCL and which graph it was predicted, and what to beware of."""
    first = known.every[0]
    words = [f"NCCL {text(str(first.method.get('nccl_version', 'of unknown version')))}"]
    for graph in ("ring", "tree"):
        channels, gb_s = (first.method.get(f"{graph}_{what}") for what in ("channels", "gb_s"))
        if channels is not None and gb_s is not None:
            words.append(f"{graph} {channels} x {gb_s:g} GB/s")
    if first.method.get("unverified"):
        words.append("**unverified for this version**")
    if any(_FAILED in row.flags for row in known.every):
        words.append("**its search for a graph failed: its times mean nothing, its choice does**")
    return ", ".join(words)


def believed_table(one: SweepConclusion, known: Believed) -> str:
    """Return NCCL's choice and time by size beside the default and the fastest measured row."""
    contest = one.contest
    default = contest.times(contest.default)
    lines, taken = [], chosen(known)
    for size in known.rows:
        its, own, fastest = taken.get(size), default.get(size), _fastest(one, size)
        lines.append(
            (
                f"{size:,}",
                NOT_KNOWN if its is None else code(_name(its)),
                NOT_KNOWN if its is None else _italic(_text.median(its)),
                NOT_KNOWN if own is None else text(ran(own)) or NOT_KNOWN,
                _text.median(own),
                _ratio(own, its),
                NOT_KNOWN if fastest is None else code(fastest.implementation),
                _text.median(fastest),
            )
        )
    header = (
        "bytes",
        "NCCL would take",
        "believes",
        "it ran",
        "measured",
        "measured / believed",
        "fastest",
        "its time",
    )
    return table(header, lines, align="rlrlrrlr")


def combinations_table(one: SweepConclusion, known: Believed) -> str:
    """Return measured over believed for each combination that was measured, by size."""
    names = [each for each in one.contest.combinations if _choice(each) in _names(known)]
    lines = [
        (
            f"{size:,}",
            *(
                _ratio(one.contest.times(each).get(size), by_name.get(_choice(each)))
                for each in names
            ),
        )
        for size, by_name in known.rows.items()
    ]
    return table(("bytes", *map(code, names)), lines, align="r" * (len(names) + 1)) if names else ""


def _names(known: Believed) -> set[str]:
    return {name for by_name in known.rows.values() for name in by_name}


def _choice(implementation: str) -> str:
    """Return the algorithm and protocol of a combination that asks for nothing else."""
    words = implementation.split()
    return words[1] if len(words) == 2 else ""


def _name(row: Measurement) -> str:
    return f"{row.dims['algorithm']}/{row.dims['protocol']}"


def _fastest(one: SweepConclusion, size: int) -> Measurement | None:
    """Return the fastest safe row of the backend itself at a size."""
    names: Sequence[str] = [one.contest.default or "", *one.contest.combinations]
    found = (one.contest.times(name).get(size) for name in names)
    rows = [row for row in found if row is not None and UNSAFE not in row.flags]
    return min(rows, key=lambda row: row.median_s or 0.0, default=None)


def _ratio(measured: Measurement | None, predicted: Measurement | None) -> str:
    if measured is None or predicted is None:
        return NOT_KNOWN
    return _text.quotient(measured, predicted, "measured / believed")


def _italic(words: str) -> str:
    return f"*{words}*"
