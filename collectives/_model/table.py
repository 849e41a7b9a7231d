"""A prediction as rows: what they are, then their values; bytes as whole numbers.

Latency and bandwidth of a cell are printed as NCCL prints them, us / GB/s with one decimal, so that
they can be held against its own table.
"""

from collections.abc import Iterator, Sequence

from collectives._model.cost import Graph, Topology
from collectives._model.fit import BAD_FIT
from collectives._model.measured import Row
from collectives._model.prediction import Fitted, Prediction
from verifyscope import cli, units

_NONE = "-"
_Row = tuple[str, ...]


def show(found: Prediction) -> None:
    """Print all that is known, the model first."""
    sections: tuple[tuple[_Row, list[_Row]], ...] = (
        (("", "what", "how"), list(_model(found))),
        (("", "combination", "us / GB/s", "state"), list(_cells(found))),
        (("", "from bytes", "NCCL takes", "believes"), list(_ranges(found))),
        (
            (
                "",
                "bytes",
                "tokens",
                "NCCL takes",
                "believes",
                "the log",
                "fastest measured",
                "took",
            ),
            list(_sizes(found)),
        ),
        (
            ("", "bytes", "launch", "combination", "NCCL believes", "measured", "ratio"),
            list(_measured(found)),
        ),
        (
            ("", "combination", "launch", "ranks", "alpha", "beta", "rows", "worst"),
            list(_fits(found)),
        ),
        (("", "bytes", "combination", "launch", "time", "95 %"), list(_fitted(found))),
    )
    cli.print_tables(sections)
    for note in _notes(found):
        cli.note(note)


def _model(found: Prediction) -> Iterator[_Row]:
    version = found.version or "2.30 (not given; --nccl names another)"
    if found.unverified:
        version += ": unverified for this version, the constants of 2.30 are used"
    yield "model", "NCCL", version
    topology = found.topology
    if topology is None:
        yield "model", "cells", "as the log prints them, with one decimal"
    else:
        yield "model", "ranks", f"{topology.ranks}{_nodes(topology)}"
        yield "model", "ring", _graph(topology.ring)
        yield "model", "tree", _graph(topology.tree) + (", plain" * topology.tree.plain_tree)
        yield "model", "GPU", f"compute capability {topology.capability / 10:.1f}"
    for name, value in found.settings:
        yield "model", name, value
    if found.checked:
        agree = found.checked - len(found.disagreements)
        yield "model", "the log's table", f"{agree} of {found.checked} cells as the model says"
    for one in found.disagreements:
        yield "model", "differs", one


def _nodes(topology: Topology) -> str:
    return " on one node" if topology.nodes == 1 else f" on {topology.nodes} nodes"


def _graph(graph: Graph) -> str:
    text = f"{graph.channels} x {graph.channel_gb_s:g} GB/s over {graph.path}"
    return text + (", simple order: the search failed" if graph.simple_order else "")


def _cells(found: Prediction) -> Iterator[_Row]:
    for cell in found.cells:
        printed = f"{cell.latency_us:.1f}/{cell.bandwidth_gb_s:.1f}"
        yield "cell", cell.name, printed, "on" if cell.off is None else f"off: {cell.off}"


def _ranges(found: Prediction) -> Iterator[_Row]:
    for one in found.ranges:
        yield "range", str(one.start), one.cell.name, units.seconds(one.cell.seconds(one.start))


def _sizes(found: Prediction) -> Iterator[_Row]:
    for size in found.sizes:
        best, fastest = found.best(size.size_bytes), found.fastest(size.size_bytes)
        yield (
            "size",
            str(size.size_bytes),
            _NONE if size.tokens is None else str(size.tokens),
            best.name,
            units.seconds(best.seconds(size.size_bytes)),
            _chosen(found, size.size_bytes),
            _NONE if fastest is None else fastest.combination,
            _NONE if fastest is None else units.seconds(fastest.seconds),
        )


def _chosen(found: Prediction, size_bytes: int) -> str:
    """Return what the log says that NCCL took for a size."""
    names = [known.name for known in found.chosen if known.size_bytes == size_bytes]
    return ", ".join(dict.fromkeys(names)) or _NONE


def _measured(found: Prediction) -> Iterator[_Row]:
    for row in sorted(found.rows, key=lambda one: (one.size_bytes, one.launch, one.seconds)):
        if row.ranks != found.ranks:
            continue
        believed = _believed(found, row)
        ratio = _NONE if believed is None else f"{row.seconds / believed:.2f}"
        yield (
            "measured",
            str(row.size_bytes),
            row.launch,
            row.combination + ("" if row.proven else " (requested)"),
            _NONE if believed is None else units.seconds(believed),
            units.seconds(row.seconds),
            ratio,
        )


def _believed(found: Prediction, row: Row) -> float | None:
    """Return what NCCL believes of the combination of a row, or of its own choice."""
    cell = found.cell(row.combination)
    if cell is None and row.combination == "default":
        cell = found.best(row.size_bytes)
    return cell.seconds(row.size_bytes) if cell is not None and cell.bandwidth_gb_s else None


def _fits(found: Prediction) -> Iterator[_Row]:
    for one in found.fits:
        line = one.line
        yield (
            "fit",
            one.combination,
            one.launch,
            _ranks(found, one),
            f"{units.seconds(line.alpha_s)} +- {units.seconds(line.alpha_error_s)}",
            _rate(one),
            str(line.rows),
            f"{units.percent(line.worst)} at {line.worst_bytes}",
        )
    for (combination, launch, ranks), why in found.without_fit:
        yield "no fit", combination, launch, str(ranks), why, _NONE, _NONE, _NONE


def _ranks(found: Prediction, one: Fitted) -> str:
    carried = found.ranks is not None and found.ranks != one.ranks
    return f"{one.ranks} to {found.ranks}" if carried else str(one.ranks)


def _rate(one: Fitted) -> str:
    rate, (low, high) = one.line.bytes_per_s, one.line.bandwidth_interval()
    if rate is None:
        return "more bytes took no longer"
    lower = "?" if low is None else units.rate(low)
    upper = "no bound" if high is None else units.rate(high)
    return f"{units.rate(rate)} ({lower} to {upper})"


def _fitted(found: Prediction) -> Iterator[_Row]:
    for size in found.sizes:
        for one in found.fits:
            low, high = one.line.interval(size.size_bytes)
            yield (
                "fitted",
                str(size.size_bytes),
                one.combination,
                one.launch,
                units.seconds(one.line.seconds(size.size_bytes)),
                f"{units.seconds(low)} to {units.seconds(high)}",
            )


def _notes(found: Prediction) -> Iterator[str]:
    yield "predicted, not measured" + (", but for the rows that say so" if found.rows else "")
    if found.failed_search:
        yield "the search for a graph failed: NCCL's choice is as shown, its times mean nothing"
    if found.topology is not None and found.topology.nvls is None and _nvlink(found.topology):
        yield "NVLS is not in the model without a `Pattern 5` line"
    for one in found.fits:
        if one.line.worst > BAD_FIT:
            yield f"{one.combination}, {one.launch}: no straight line; measure more sizes"
    if found.past_gate:
        yield "LL128 is on past its safety gate: over PCIe values may be wrong without an error"
    if found.otherwise:
        first = found.otherwise[0]
        taken = f"{first.size_bytes} B: {first.name}, not {found.best(first.size_bytes).name}"
        yield f"the log has another choice at {len(found.otherwise)} sizes, first at {taken}"
    yield from _unused(found)


def _nvlink(topology: Topology) -> bool:
    return topology.ring.path == "NVL"


def _unused(found: Prediction) -> Iterator[str]:
    others: Sequence[int] = sorted({row.ranks for row in found.rows if row.ranks != found.ranks})
    if others and found.ranks is not None:
        named = ", ".join(map(str, others))
        yield f"measured rows of {named} ranks count for the fit alone"
