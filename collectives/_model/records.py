"""A prediction becomes records: source "predicted", never "measured", one for each size and way.

NCCL's own belief has `method["from"]` "NCCL's cost model", and the flag `chosen` where NCCL takes
it; a line through measured rows has "a fit of measured rows", with alpha, the time a byte and their
intervals.
"""

from collections.abc import Iterator

from collectives._model.cost import Cell
from collectives._model.prediction import Fitted, Prediction, Size
from verifyscope.parts import PARTS
from verifyscope.records import Environment, Measurement, Value


def records(found: Prediction, environment: Environment) -> Iterator[Measurement]:
    """Yield the records of what NCCL believes and of what the fits say, by size."""
    for size in found.sizes:
        best = found.best(size.size_bytes)
        for cell in found.cells:
            if cell.off is None:
                yield _believed(found, size, cell, chosen=cell is best, environment=environment)
        for fitted in found.fits:
            yield _fitted(found, size, fitted, environment)


def _believed(
    found: Prediction, size: Size, cell: Cell, *, chosen: bool, environment: Environment
) -> Measurement:
    method: dict[str, Value] = {
        "from": "NCCL's cost model" if found.topology else "the cost table of a log",
        "nccl_version": found.version or "not given",
        "unverified": found.unverified,
        "latency_us": round(cell.latency_us, 3),
        "bandwidth_gb_s": round(cell.bandwidth_gb_s, 6),
        **_graphs(found),
    }
    flags = ("chosen",) if chosen else ()
    if found.failed_search:
        flags = (*flags, "graph-simple-order")
    return Measurement(
        source="predicted",
        part=_part(found.function),
        op=found.function,
        implementation="nccl",
        kind="baseline-direct",
        case=f"{size.size_bytes}B-{cell.name.replace('/', '-')}",
        status="ok",
        dims=_dims(size, cell.algorithm, cell.protocol),
        flags=flags,
        requested=dict(found.settings),
        median_s=cell.seconds(size.size_bytes),
        ranks=found.ranks,
        method=method,
        environment=environment.id,
        command=environment.command,
        commit=environment.commit,
    )


def _fitted(found: Prediction, size: Size, fitted: Fitted, environment: Environment) -> Measurement:
    line = fitted.line
    low, high = line.interval(size.size_bytes)
    algorithm, _, protocol = fitted.combination.partition("/")
    method: dict[str, Value] = {
        "from": "a fit of measured rows",
        "launch": fitted.launch,
        "measured_ranks": fitted.ranks,
        "rows": line.rows,
        "measured_from_bytes": line.low_bytes,
        "measured_to_bytes": line.high_bytes,
        "alpha_s": line.alpha_s,
        "alpha_error_s": line.alpha_error_s,
        "seconds_a_byte": line.slope_s,
        "seconds_a_byte_error": line.slope_error_s,
        "worst_residual": line.worst,
    }
    outside = not line.low_bytes <= size.size_bytes <= line.high_bytes
    return Measurement(
        source="predicted",
        part=_part(found.function),
        op=found.function,
        implementation="nccl",
        kind="baseline-direct",
        case=f"{size.size_bytes}B-{algorithm}-{protocol}-fit-{fitted.launch.replace(' ', '')}",
        status="ok",
        dims=_dims(size, algorithm, protocol),
        flags=("extrapolated",) if outside or fitted.ranks != found.ranks else (),
        median_s=line.seconds(size.size_bytes),
        low_s=low,
        high_s=high,
        ranks=found.ranks or fitted.ranks,
        method=method,
        environment=environment.id,
        command=environment.command,
        commit=environment.commit,
    )


def _dims(size: Size, algorithm: str, protocol: str) -> dict[str, Value]:
    dims: dict[str, Value] = {
        "bytes": size.size_bytes,
        "algorithm": algorithm,
        "protocol": protocol,
    }
    if size.tokens is not None and size.model is not None:
        dims |= {"tokens": size.tokens, "model": size.model}
    return dims


def _graphs(found: Prediction) -> dict[str, Value]:
    topology = found.topology
    if topology is None:
        return {}
    return {
        "ring_gb_s": topology.ring.channel_gb_s,
        "ring_channels": topology.ring.channels,
        "tree_gb_s": topology.tree.channel_gb_s,
        "tree_channels": topology.tree.channels,
        "path": topology.ring.path,
        "nodes": topology.nodes,
        "capability": topology.capability,
    }


def _part(function: str) -> str:
    return function if function in PARTS else "other_collective"
