"""A run as one side of a comparison: its rows, each with what is known of its median.

A row is what was measured or imported of one part, op, implementation, case, mode, launch, depth,
cache, ranks and requested settings. A row that was measured several times counts once: its medians
are starts. Of a row that several machines measured, that of the machine of most rows counts, which
is told. Predictions are no rows; nor is what a sweep itself took, nor a total of a trace.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from reports._comparison import verdicts
from reports._comparison.verdicts import Level
from verifyscope import fresh_starts, passes, records
from verifyscope.contests import latest
from verifyscope.records import TRACE_OPS, Environment, Finding, Measurement

_TRACE_STEP = TRACE_OPS[1]
_TRACE_TOTALS = (TRACE_OPS[0], TRACE_OPS[2])
_SWEEP_OPS = ("process_start", "sweep")
_NOISY = 75  # the percentile of the rows' noise that a single number is taken to have

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a run. last: its last measurement; level: None where it has no time."""

    last: Measurement
    level: Level | None

    @property
    def median_s(self) -> float | None:
        """Return the median over all times that it was measured."""
        return None if self.level is None else self.level.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One side: `name` is what it is called, A or B."""

    name: str
    path: Path
    rows: Sequence[Row]
    environments: Mapping[str, Environment] = field(default_factory=dict)
    predicted: Sequence[Measurement] = ()
    traced: Sequence[Measurement] = ()
    findings: Sequence[Finding] = ()

    def environment(self, row: Row) -> Environment | None:
        """Return where a row was measured; what was imported was measured elsewhere."""
        if row.last.source != "measured":
            return None
        return self.environments.get(row.last.environment)

    @property
    def measured_in(self) -> Sequence[Environment]:
        """Return where its rows were measured; all that there is of a run that has no rows."""
        ids = {row.last.environment for row in self.rows if row.last.source == "measured"}
        return [one for one in self.environments.values() if one.id in ids or not self.rows]


def read(name: str, path: Path, warnings: list[str]) -> Run:
    """Read the records and raw samples of `path`; `UsageError` where there are none."""
    found = list(records.read([path], warnings))
    measured = latest(found)
    rows = [one for one in measured if is_row(one)]
    kept = records.samples([path], {one.id for one in rows}, warnings=warnings)
    environments = {one.id: one for one in found if isinstance(one, Environment)}
    groups, left_out = _of_one_machine(rows, environments)
    if left_out:
        warnings.append(
            f"{name} ({path}) holds rows of several machines: {left_out:,} that another measured, "
            f"too, are left out; compare runs of one machine"
        )
    return Run(
        name=name,
        path=path,
        rows=_rows(groups, kept),
        environments=environments,
        predicted=[one for one in measured if one.source == "predicted"],
        traced=[one for one in measured if one.op in TRACE_OPS],
        findings=[one for one in found if isinstance(one, Finding)],
    )


def _of_one_machine(
    rows: Iterable[Measurement], environments: Mapping[str, Environment]
) -> tuple[list[list[Measurement]], int]:
    """Return the measurements of each row, of one machine each, and how many rows that left out."""
    groups: dict[tuple[Key, Key], list[Measurement]] = {}
    for one in rows:
        groups.setdefault((identity(one), _machine(one, environments)), []).append(one)
    counts = Counter(machine for _, machine in groups)
    chosen: dict[Key, Key] = {}
    for key, machine in groups:
        if key not in chosen or counts[machine] > counts[chosen[key]]:
            chosen[key] = machine
    kept = [group for (key, machine), group in groups.items() if chosen[key] == machine]
    return kept, len(groups) - len(kept)


def _machine(one: Measurement, environments: Mapping[str, Environment]) -> Key:
    """Return what measured a row: GPUs, else the processor; nothing is known of what was read."""
    known = environments.get(one.environment) if one.source == "measured" else None
    if known is None:
        return ()
    return tuple(gpu.name for gpu in known.gpus) or (known.processor,)


def is_row(one: Measurement) -> bool:
    """Say whether a measurement can be compared by itself."""
    if one.source == "predicted" or one.op in _TRACE_TOTALS or one.op == passes.FIT:
        return False
    return not (one.part == "host" and one.op in _SWEEP_OPS)


def is_whole(one: Measurement) -> bool:
    """Say whether a row holds the time of others: a cycle, a pass, a step, a token."""
    return one.part in ("cycle", "forward", "generation") or one.op == _TRACE_STEP


def identity(one: Measurement) -> Key:
    """Return what makes two measurements the same row."""
    file = None if one.origin is None else one.origin.file
    return (*_fixed(one), one.case, one.launch, tuple(sorted(one.requested.items())), file)


def without_file(one: Measurement) -> Key | None:
    """Return what two rows share that differ in the name of an imported file."""
    return (*_fixed(one), one.case, one.launch, tuple(sorted(one.requested.items())))


def without_request(one: Measurement) -> Key | None:
    """Return what two rows share that differ in what was requested, too."""
    return (*_fixed(one), one.case, one.launch)


def without_launch(one: Measurement) -> Key | None:
    """Return what two whole cycles or passes share that differ in how they were launched.

    Their case says so, too; instead of it their load must be the same. None of other rows.
    """
    if not is_whole(one):
        return None
    load = tuple(one.dims.get(name) for name in ("model", "tp", "requests", "rows"))
    context = one.dims.get("context") if one.part == "forward" else None  # a served one drifts
    return (*_fixed(one), *load, context)


LOOSER = (without_file, without_request, without_launch)


def _fixed(one: Measurement) -> Key:
    how = (one.mode, one.depth, one.cache, one.ranks)
    return (one.source, one.part, one.op, one.implementation, *how)


def _rows(groups: Iterable[list[Measurement]], kept: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return a row of each group; those of few starts borrow from others of their op."""
    by_op: dict[tuple[str, str], list[tuple[Measurement, Level]]] = {}
    found = []
    for group in groups:
        known = level_of(group, kept)
        if known is None:
            found.append(Row(last=group[-1], level=None))
        else:
            by_op.setdefault((group[-1].op, group[-1].implementation), []).append(
                (group[-1], known)
            )
    for pairs in by_op.values():
        levels = verdicts.borrowed([level for _, level in pairs])
        found += [
            Row(last=last, level=level) for (last, _), level in zip(pairs, levels, strict=True)
        ]
    return _as_noisy_as_others(found)


def _as_noisy_as_others(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, of which measured single numbers are as noisy as samples of the others."""
    noise = [
        verdicts.of_one_sample(row.level.behind)
        for row in rows
        if row.level is not None and row.level.basis == "samples" and row.last.source == "measured"
    ]
    most = float(np.percentile(noise, _NOISY)) if noise else 0.0
    return [
        replace(row, level=replace(row.level, spread=max(row.level.spread, most)))
        if row.level is not None and row.level.basis == "assumed" and row.last.source == "measured"
        else row
        for row in rows
    ]


def level_of(group: Sequence[Measurement], kept: Mapping[str, Sequence[float]]) -> Level | None:
    """Return what is known of the median of a row that was measured as often as `group` says.

    kept: raw samples by the ids of their measurements. None where the row has no time.
    """
    timed = [one for one in group if one.median_s]
    if not timed:
        return None
    medians = [one.median_s for one in timed if one.median_s]
    last = timed[-1]
    if len(timed) > 1:
        return verdicts.level(median(medians), starts=medians)
    # A server is several processes, too, whatever its log says of ranks.
    several = (last.ranks or 1) > 1 or (last.source == "imported" and is_whole(last))
    interval = None
    if last.low_s and last.high_s:
        interval = (last.low_s, last.high_s)
    starts = fresh_starts.medians(last)
    return verdicts.level(
        medians[-1],
        starts=starts if all(start > 0 for start in starts) else (),
        samples=kept.get(last.id, ()),
        interval=interval,
        count=last.count,
        p90_s=last.p90_s,
        several=several,
    )
