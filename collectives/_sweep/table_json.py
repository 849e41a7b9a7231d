"""The sweep as JSON, with the keys of nccl-tests -J: times in us, bandwidths in GB/s.

`results` are the isolated eager times of the first combination, as nccl-tests has them; under
`combinations` stands each one with its status, what was asked for and is in effect, and the four
times of each size.
"""

from collections.abc import Iterator, Sequence

from collectives._sweep.state import Row, State
from collectives._sweep.table import TYPE_NAMES, Table, device_of, version


def document(state: State, table: Table, *, problem: str | None) -> dict[str, object]:
    """Return the whole sweep."""
    spec = state.spec
    rows = {at: list(state.rows(at)) for at in range(len(spec.combinations))}
    first = [row for row in rows[0] if _is_plain(row)]
    probe = next(iter(state.probes.values()), None)
    every = [row for known in rows.values() for row in known]
    return {
        "version": version(),
        "config": {
            "test": table.test,
            "backend": spec.backend,
            "ranks": spec.ranks,
            "nodes": spec.nodes,
            "warmup_iters": spec.warmup,
            "iters": spec.iterations,
            "starts": spec.starts,
            "depth": spec.depth,
        },
        "devices": [] if probe is None else [device_of(device) for device in probe.devices],
        "results": list(_plain_results(table, first)),
        "out_of_bounds": sum(row.wrong for row in every),
        "average_bus_bandwidth": table.average(first),
        "combinations": [_combination(state, table, at, rows[at]) for at in rows],
        "errors": [] if problem is None else [problem],
    }


def _is_plain(row: Row) -> bool:
    return row.timing.launch == "eager" and row.timing.depth == 1


def _plain_results(table: Table, rows: Sequence[Row]) -> Iterator[dict[str, object]]:
    pairs: dict[int, dict[bool, Row]] = {}
    for row in rows:
        pairs.setdefault(row.point.size_bytes, {})[row.point.in_place] = row
    for pair in pairs.values():
        point = next(iter(pair.values())).point
        yield {
            "size": point.size_bytes,
            "count": table.count(point),
            "type": TYPE_NAMES[table.spec.dtype],
            "redop": table.collective.redop,
            "root": -1,
            "out_of_place": _direction(table, pair.get(False)),
            "in_place": _direction(table, pair.get(True)),
        }


def _direction(table: Table, row: Row | None) -> dict[str, object] | None:
    if row is None:
        return None
    figures = table.measured(row)
    if figures is None:
        return {"time": None, "alg_bw": None, "bus_bw": None, "nwrong": row.wrong}
    seconds, algorithm, bus = figures
    return {"time": seconds * 1e6, "alg_bw": algorithm, "bus_bw": bus, "nwrong": 0}


def _combination(state: State, table: Table, at: int, rows: Sequence[Row]) -> dict[str, object]:
    known = state.spec.combinations[at]
    return {
        "name": known.label,
        "verdict": known.verdict,
        "reason": known.reason,
        "requested": known.requested(),
        "rows": [_row(table, row) for row in rows],
    }


def _row(table: Table, row: Row) -> dict[str, object]:
    summary, figures = row.summary, table.measured(row)
    return {
        "size": row.point.size_bytes,
        "in_place": row.point.in_place,
        "launch": row.timing.launch,
        "depth": row.timing.depth,
        "status": row.status,
        "reason": row.reason,
        "effective": dict(row.verdict.effective) if row.verdict else {},
        "flags": list(row.flags),
        "time": None if summary is None else summary.median * 1e6,
        "low": None if summary is None else summary.low * 1e6,
        "high": None if summary is None else summary.high * 1e6,
        "p90": None if summary is None else summary.p90 * 1e6,
        "p99": None if summary is None else summary.p99 * 1e6,
        "bus_bw": None if figures is None else figures[2],
    }
