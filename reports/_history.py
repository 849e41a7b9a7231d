"""One row over all runs of one machine: its medians in time, and what changed between the runs.

A row is named by a label such as "tree_attention/triton t4-l8k, graph, cold"; a machine by its GPUs
and processor. Each run gives one median; against the run before it is faster, slower, the same or
unsure, judged together over the whole history (reports/_comparison/verdicts.py).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from reports import _environments, _text
from reports._comparison import runs, verdicts
from reports._comparison.runs import Row
from reports._comparison.verdicts import Change
from verifyscope import environment
from verifyscope.errors import UsageError
from verifyscope.records import SAMPLES_FILE, Environment, Measurement
from verifyscope.stats import SAME_WITHIN

IMPORTED = "imported, its machine is not known"
_GPU = re.compile(r"gpus\[\d+\]\.")
_COMMIT = ("commit", "dirty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A row in one run: where and when."""

    run: Path
    begun: str
    label: str
    machine: str
    row: Row
    environment: Environment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A row in one run, against the run before.

    change: None in the first run. commit, differences: what is not as in the run before; the
    commit is that of the checkout that measured.
    """

    seen: Seen
    change: Change | None
    commit: str | None
    commit_changed: bool
    differences: tuple[str, ...]

    @property
    def median_s(self) -> float:
        """Return the median of the row."""
        return self.seen.row.median_s or 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the printed interval, where it has one."""
        last = self.seen.row.last
        if last.low_s is None or last.high_s is None:
            return None
        return last.low_s, last.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One row on one machine over time."""

    label: str
    machine: str
    points: tuple[Point, ...]

    @property
    def moved(self) -> list[Point]:
        """Return the points that are faster or slower than the run before."""
        return [
            one for one in self.points if one.change and one.change.verdict in ("faster", "slower")
        ]


def read(folder: Path, warnings: list[str]) -> list[Seen]:
    """Return every row with a time of every run in `folder`; what cannot be read is a warning.

    A run is a records file in it, or a folder in it that holds some.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give one that holds runs, such as runs/")
    found: list[Seen] = []
    places = list(_places(folder))
    for place in places:
        try:
            found += _seen(runs.read("", place, warnings))
        except UsageError as error:
            warnings.append(f"left out: {error}")
    if not found:
        raise UsageError(
            f"{folder} holds no row with a time in {_text.plural(len(places), 'run')}; give a "
            f"folder of runs that measured something"
        )
    return sorted(found, key=lambda one: one.begun)


def labels(seen: Iterable[Seen]) -> dict[tuple[str, str], list[Seen]]:
    """Return the rows by label and machine, those of most runs first."""
    groups: dict[tuple[str, str], list[Seen]] = {}
    for one in seen:
        groups.setdefault((one.label, one.machine), []).append(one)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def chosen(
    groups: dict[tuple[str, str], list[Seen]], *, row: str | None, machine: str | None
) -> tuple[str, str]:
    """Return the label and machine that all given words name; `UsageError` if it is not one."""
    fitting = [
        key
        for key in groups
        if _holds(key[0], row or "") and (machine is None or _holds(key[1], machine))
    ]
    exact = [key for key in fitting if key[0] == row]
    names = dict.fromkeys(label for label, _ in exact or fitting)
    if len(names) != 1:
        found = "no row holds" if not names else f"{_text.plural(len(names), 'row')} hold"
        examples = "; ".join(list(names)[:4])
        hint = f": {examples}" if examples else ""
        where = "" if machine is None else f" on a machine of --machine {machine!r}"
        raise UsageError(
            f"{found} all words of --row {row or ''!r}{where}{hint}; name one of "
            "those that the command lists without --row"
        )
    return max(exact or fitting, key=lambda key: len(groups[key]))


def history(key: tuple[str, str], seen: Sequence[Seen]) -> History:
    """Return the points of one row on one machine, in time."""
    levels = [one.row.level for one in seen]
    pairs = [(old, new) for old, new in pairwise(levels) if old and new]
    changes = [None, *verdicts.changes(pairs, same_within=SAME_WITHIN)]
    points = []
    before: Environment | None = None
    for one, change in zip(seen, changes, strict=True):
        differences = list(_differences(before, one.environment))
        points.append(
            Point(
                seen=one,
                change=change,
                commit=None if one.environment is None else one.environment.commit,
                commit_changed=any(name in _COMMIT for name, _ in differences),
                differences=tuple(words for name, words in differences if name not in _COMMIT),
            )
        )
        before = one.environment or before
    return History(label=key[0], machine=key[1], points=tuple(points))


def label(one: Measurement) -> str:
    """Return what a row is called."""
    words = [f"{one.op}/{one.implementation} {one.case}"]
    words += [one.part] if one.op.startswith("forward_") else []
    words += [word for word in (one.mode, one.launch, one.cache) if word is not None]
    words += [f"{one.depth} in a row"] if one.depth and one.ranks is not None else []
    words += [_text.plural(one.ranks, "rank")] if one.ranks is not None else []
    words += [f"{name}={value}" for name, value in sorted(one.requested.items())]
    return " ".join(", ".join(words).split())


def _holds(name: str, words: str) -> bool:
    return all(word in name for word in words.split())


def _places(folder: Path) -> Iterator[Path]:
    for place in sorted(folder.iterdir()):
        is_file = place.is_file() and place.suffix == ".jsonl" and place.name != SAMPLES_FILE
        if is_file or (place.is_dir() and any(place.glob("*.jsonl"))):
            yield place


def _seen(run: runs.Run) -> Iterator[Seen]:
    begun = min((one.created for one in run.environments.values()), default="")
    for row in run.rows:
        if row.level is None:
            continue
        where = run.environment(row)
        machine = IMPORTED if row.last.source == "imported" else "not recorded"
        yield Seen(
            run=run.path,
            begun=begun if where is None else where.created,
            label=label(row.last),
            machine=machine if where is None else _environments.machine(where),
            row=row,
            environment=where,
        )


def _differences(before: Environment | None, now: Environment | None) -> Iterator[tuple[str, str]]:
    """Yield the field and the words of each difference; GPUs that are alike count once."""
    if before is None or now is None or before.id == now.id:
        return
    said: dict[tuple[str, str, str], None] = {}
    for one in environment.difference(before, now):
        said[_GPU.sub("gpus.", one.field), one.old, one.new] = None
    for field, old, new in said:
        name = field.removeprefix("settings.").removeprefix("versions.").removeprefix("gpus.")
        yield field, f"{name} {old} to {new}"
