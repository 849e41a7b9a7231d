"""One prediction: NCCL's model of a topology, beside what a log chose and what a run measured.

Everything is computed here and nothing printed; `predict` shows it, `records` keeps it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collectives._model import fit
from collectives._model.cost import Cell, Range, Topology, choose, cost_table, ranges, unverified
from collectives._model.fit import Line
from collectives._model.measured import Key, Row, grouped, lines
from collectives._model.topology import printed_cells, restricted
from ingest.nccl_facts import NVLINK_PATHS, Choice, NcclLog

SMALLEST_BYTES, LARGEST_BYTES = 1, 2**33


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size of interest, with the tokens of a model where it comes from one."""

    size_bytes: int
    tokens: int | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A measured combination as a line; `ranks` are those measured, `line` is for those asked."""

    combination: str
    launch: str
    ranks: int
    line: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What NCCL would take, by size, and what is held against it.

    topology: None where only a printed cost table is known. version: as given; None where unknown,
    then the newest model that is verified. settings: NCCL_ALGO and NCCL_PROTO that were applied.
    disagreements: cells of the log's table that are not what the model says.
    """

    function: str
    ranks: int | None
    topology: Topology | None
    version: str | None
    unverified: bool
    settings: tuple[tuple[str, str], ...]
    cells: tuple[Cell, ...]
    ranges: tuple[Range, ...]
    sizes: tuple[Size, ...]
    chosen: tuple[Choice, ...] = ()
    checked: int = 0
    disagreements: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    fits: tuple[Fitted, ...] = ()
    without_fit: tuple[tuple[Key, str], ...] = ()

    @property
    def failed_search(self) -> bool:
        """Say whether the graph is what a failed search leaves: its times mean nothing."""
        return self.topology is not None and self.topology.ring.simple_order

    def best(self, size_bytes: int) -> Cell:
        """Return what NCCL takes for a size."""
        return choose(self.cells, size_bytes)

    def cell(self, name: str) -> Cell | None:
        """Return the cell of a combination such as "ring/ll"."""
        return next((known for known in self.cells if known.name == name), None)

    @property
    def otherwise(self) -> list[Choice]:
        """Return the choices of the log that are not the model's."""
        return [known for known in self.chosen if known.name != self.best(known.size_bytes).name]

    @property
    def past_gate(self) -> bool:
        """Say whether LL128 is on only because a setting asks for it, where NCCL keeps it off."""
        asked = any(name == "NCCL_PROTO" for name, _ in self.settings)
        on = any(cell.protocol == "ll128" and cell.off is None for cell in self.cells)
        return (
            asked
            and on
            and self.topology is not None
            and self.topology.ring.path not in NVLINK_PATHS
        )

    def fastest(self, size_bytes: int) -> Row | None:
        """Return the fastest measured row of a size, on the ranks that were asked for."""
        at = [row for row in self.rows if row.size_bytes == size_bytes and row.ranks == self.ranks]
        return min(at, key=lambda row: row.seconds, default=None)


def predict(
    *,
    function: str,
    topology: Topology | None,
    version: tuple[int, ...],
    version_text: str | None,
    settings: Sequence[tuple[str, str]],
    sizes: Sequence[Size],
    ranks: int | None = None,
    log: NcclLog | None = None,
    rows: Sequence[Row] = (),
) -> Prediction:
    """Return the prediction for a topology; without one, from the cost table that the log prints.

    ranks: those of the measured rows to hold against it, where no topology says them. ValueError
    where the settings leave nothing, or name what NCCL does not know.
    """
    if topology is not None:
        known = cost_table(topology, version, function)
        given = dict(settings)
        cells = restricted(known, algo=given.get("NCCL_ALGO"), proto=given.get("NCCL_PROTO"))
    else:
        cells = _printed(log, function)
    chosen = [] if log is None else [c for c in log.choices if c.function in (function, None)]
    checked, wrong = _checked(cells, log, function) if topology is not None else (0, ())
    if topology is not None:
        ranks = topology.ranks
    elif ranks is None and log is not None and log.largest is not None:
        ranks = log.largest.ranks
    found = Prediction(
        function=function,
        ranks=ranks,
        topology=topology,
        version=version_text,
        unverified=unverified(version),
        settings=tuple(settings),
        cells=tuple(cells),
        ranges=tuple(ranges(cells, low=SMALLEST_BYTES, high=LARGEST_BYTES)),
        sizes=_with_chosen(sizes, chosen),
        chosen=tuple(sorted(chosen, key=lambda known: known.size_bytes)),
        checked=checked,
        disagreements=wrong,
    )
    return _with_measured(found, rows, version)


def _printed(log: NcclLog | None, function: str) -> list[Cell]:
    cells = [] if log is None else printed_cells(log, function)
    if not cells:
        raise ValueError(f"the log's cost table has nothing for {function}")
    return cells


def _with_chosen(sizes: Sequence[Size], chosen: Sequence[Choice]) -> tuple[Size, ...]:
    """Return the sizes with those that the log has, by size."""
    by_size = {known.size_bytes: known for known in sizes}
    for choice in chosen:
        by_size.setdefault(choice.size_bytes, Size(size_bytes=choice.size_bytes))
    return tuple(by_size[size] for size in sorted(by_size) if size > 0)


def _checked(
    cells: Sequence[Cell], log: NcclLog | None, function: str
) -> tuple[int, tuple[str, ...]]:
    """Hold the cells that NCCL printed against the model, at the decimals that it prints."""
    printed = [] if log is None else [e for e in log.entries if e.function == function]
    modelled = {(cell.algorithm, cell.protocol): cell for cell in cells}
    wrong, checked = [], 0
    for entry in printed:
        cell = modelled.get((entry.algorithm, entry.protocol))
        if cell is None:
            continue
        checked += 1
        bandwidth = 0.0 if cell.off else cell.bandwidth_gb_s
        here = f"{cell.latency_us:.1f}/{bandwidth:.1f}"
        there = f"{entry.latency_us:.1f}/{entry.bandwidth_gb_s:.1f}"
        if here != there:
            wrong.append(f"{cell.name} {here}, printed {there}")
    return checked, tuple(wrong)


def _with_measured(found: Prediction, rows: Sequence[Row], version: tuple[int, ...]) -> Prediction:
    """Fit a line to each combination; one of another rank count is scaled by the model."""
    groups = grouped(rows)
    fitted, why_not = lines(groups)
    best: dict[tuple[str, str], Fitted] = {}
    for (combination, launch, ranks), line in fitted.items():
        here = _carried(
            found, version, Fitted(combination=combination, launch=launch, ranks=ranks, line=line)
        )
        known = best.get((combination, launch))
        if here is not None and (
            known is None or _closeness(found, here) < _closeness(found, known)
        ):
            best[combination, launch] = here
    return replace(
        found, rows=tuple(rows), fits=tuple(best.values()), without_fit=tuple(why_not.items())
    )


def _closeness(found: Prediction, fitted: Fitted) -> tuple[int, int]:
    """Order fits of one combination: the rank count that is nearest, then the most rows."""
    return abs(fitted.ranks - (found.ranks or fitted.ranks)), -fitted.line.rows


def _carried(found: Prediction, version: tuple[int, ...], fitted: Fitted) -> Fitted | None:
    """Return the fit for the ranks that are asked for; None where the model cannot carry it."""
    topology = found.topology
    if found.ranks is None or fitted.ranks == found.ranks:
        return fitted
    if topology is None or topology.nodes > 1 or fitted.ranks < 2:
        return None
    there = cost_table(replace(topology, ranks=fitted.ranks), version, found.function)
    ours, theirs = found.cell(fitted.combination), _named(there, fitted.combination)
    if ours is None or theirs is None or not ours.bandwidth_gb_s * theirs.latency_us:
        return None
    line = fit.scaled(
        fitted.line,
        latency=ours.latency_us / theirs.latency_us,
        slope=theirs.bandwidth_gb_s / ours.bandwidth_gb_s,
    )
    return replace(fitted, line=line)


def _named(cells: Sequence[Cell], name: str) -> Cell | None:
    return next((known for known in cells if known.name == name), None)
