"""Tables of nccl-tests become measurements, two a row, and findings on what looks wrong in them.

A printed time is the mean over back-to-back calls; it carries no interval. Wrong values make a row
`corrupt` and withhold its time: a count above 0 in the new form, in the old form an `error` above
ROUNDING units of the type's rounding (1e-07 on float is rounding, 1e+00 is not).
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ingest import nccl_findings, nccl_tests
from ingest.log import Log
from ingest.nccl_tests import TYPE_BYTES, Row, Table, Timing
from verifyscope import bandwidth
from verifyscope.parts import PARTS
from verifyscope.records import Finding, Measurement, Origin, Value

ROUNDING = 128
_HALF_UNITS = {"half": 2.0**-11, "bfloat16": 2.0**-8, "float": 2.0**-24, "double": 2.0**-53}
_DTYPES = {"half": "float16", "float": "float32", "double": "float64", "int": "int32"}
_NAMES = {"alltoall": "all_to_all", "alltoallv": "all_to_all_v", "sendrecv": "send_recv"}


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is output of nccl-tests or of NCCL."""
    return nccl_tests.SIGNS.search(head) is not None


def read(log: Log) -> Iterator[Measurement | Finding]:
    """Yield the measurements of each table, then the findings on it."""
    for table in nccl_tests.tables(log.lines):
        yield from told(table, log)


def told(
    table: Table, log: Log, *, medians: Mapping[tuple[int, bool], tuple[float, float | None]] = {}
) -> Iterator[Measurement | Finding]:
    """Yield the measurements of one table, then the findings on it.

    medians: median and 99th percentile of a row's calls in microseconds, by the row's number and
    whether it is in place, where the source has each call.
    """
    measurements = list(_measurements(table, log, medians))
    yield from measurements
    for found in nccl_findings.suspicions(table, measurements):
        yield nccl_findings.finding(
            found, file=log.file, environment=log.environment, command=log.command
        )


def collective(table: Table) -> str:
    """Return the collective that was timed, "unknown" where neither text nor numbers show it.

    The ratio busbw / algbw is the bus factor: above 1 only an all-reduce has one. At 1 (two ranks)
    and without a ratio, a reduction over whole buffers and without a root is an all-reduce.
    """
    if table.name is not None:
        name = re.sub(r"_perf(_mpi)?$", "", table.name)
        return _NAMES.get(name, name)
    first = next(iter(table.rows), None)
    if first is None:
        return "unknown"
    reduces = first.redop not in (None, "none")
    whole = first.elements * TYPE_BYTES[first.dtype] == first.size_bytes
    rooted = first.root is not None and first.root >= 0
    ratio = _ratio(table.rows)
    if ratio is not None and ratio > 1.02:
        return "all_reduce"
    if reduces and rooted:
        return "reduce"
    if reduces:
        return "all_reduce" if whole else "reduce_scatter"
    return "broadcast" if rooted and whole else "unknown"


def _ratio(rows: Sequence[Row]) -> float | None:
    """Return busbw / algbw of the largest algbw, where the two printed decimals matter least."""
    timings = [timing for row in rows for timing in (row.out_of_place, row.in_place) if timing]
    pairs = [
        (timing.algorithm_gb_s, timing.bus_gb_s)
        for timing in timings
        if timing.algorithm_gb_s and timing.bus_gb_s is not None
    ]
    if not pairs:
        return None
    algorithm, bus = max(pairs)
    return bus / algorithm if algorithm >= 0.5 else None


def _measurements(
    table: Table, log: Log, medians: Mapping[tuple[int, bool], tuple[float, float | None]]
) -> Iterator[Measurement]:
    op = collective(table)
    general = _general_flags(table)
    dropped = {in_place: dropped_rows(table, in_place=in_place) for in_place in (False, True)}
    for at, row in enumerate(table.rows):
        for in_place, timing in ((False, row.out_of_place), (True, row.in_place)):
            if timing is None or (timing.time_us is None and not _wrong(row, timing)):
                continue
            flags = [*general]
            if at in dropped[in_place]:
                flags.append("non-monotone")
            if timing.wrong is None and timing.error is None:
                flags.append("not-checked")
            made = _measurement(table, log, row, in_place=in_place, op=op, flags=tuple(flags))
            calls = medians.get((at, in_place))
            yield made if calls is None else _with_calls(made, *calls)


def _measurement(
    table: Table, log: Log, row: Row, *, in_place: bool, op: str, flags: tuple[str, ...]
) -> Measurement:
    timing = row.in_place if in_place and row.in_place else row.out_of_place
    wrong = _wrong(row, timing)
    dtype = _DTYPES.get(row.dtype, row.dtype)
    direction = "in-place" if in_place else "out-of-place"
    graph = dict(table.options).get("graph")
    seconds = None if wrong or timing.time_us is None else timing.time_us / 1e6
    return Measurement(
        source="imported",
        part=_part(op),
        op=op,
        implementation=table.backend or ("rccl" if "rccl" in (table.tool or "") else "nccl"),
        kind="baseline-direct",
        case=f"{row.size_bytes}B-{dtype}-{direction}",
        status="corrupt" if wrong else "ok",
        reason=wrong,
        dims=_dims(table, row, in_place=in_place, dtype=dtype),
        launch=None if graph is None else "graph" if graph else "eager",
        flags=flags,
        median_s=seconds,
        ranks=table.ranks,
        method=_method(table),
        environment=log.environment,
        command=log.command,
        origin=Origin(log.file, row.line),
    )


def _with_calls(made: Measurement, median_us: float, p99_us: float | None) -> Measurement:
    """Take the median of single calls for the mean over all of them; a withheld time stays so."""
    if made.median_s is None:
        return made
    return msgspec.structs.replace(
        made,
        median_s=median_us / 1e6,
        p99_s=None if p99_us is None else p99_us / 1e6,
        method=made.method | {"sample": "median of single calls"},
    )


def _part(op: str) -> str:
    """Return the part of a collective: its own where the list has one."""
    if op in PARTS:
        return op
    return "unclassified" if op == "unknown" else "other_collective"


def _dims(table: Table, row: Row, *, in_place: bool, dtype: str) -> dict[str, Value]:
    known = {"redop": row.redop, "root": row.root, "nodes": table.nodes}
    return {
        "bytes": row.size_bytes,
        "elements": row.elements,
        "dtype": dtype,
        "in_place": in_place,
        **{name: value for name, value in known.items() if value is not None},
    }


def _method(table: Table) -> dict[str, Value]:
    """Return how the file says it was timed, and with what."""
    options = dict(table.options)
    names = {"iters": "iterations", "warmup iters": "warmup", "agg iters": "aggregated"}
    devices = sorted({device.name for device in table.devices})
    known = {
        "tool": table.tool,
        "nccl_version": table.nccl_version,
        "device": ", ".join(devices) or None,
        **{names[name]: value for name, value in options.items() if name in names},
        "op_from": "the file" if table.name else "the numbers",
    }
    own = (table.tool or "").startswith("verifyscope")
    known["sample"] = "median of the slowest rank's" if own else "mean over back-to-back calls"
    return {name: value for name, value in known.items() if value is not None}


def _wrong(row: Row, timing: Timing) -> str | None:
    """Return what is wrong with the values, or None."""
    if timing.wrong:
        return f"{timing.wrong} wrong values in what the file checked"
    if timing.error is None:
        return None
    limit = ROUNDING * _HALF_UNITS.get(row.dtype, 0.0)
    if timing.error <= limit:
        return None
    return f"relative error {timing.error:.0e}, rounding explains at most {limit:.0e}"


def dropped_rows(table: Table, *, in_place: bool) -> set[int]:
    """Return the rows whose time in one direction is over 10 % below that of the size before."""
    timed = [
        (at, timing.time_us)
        for at, row in enumerate(table.rows)
        if (timing := row.in_place if in_place else row.out_of_place) and timing.time_us is not None
    ]
    return {timed[position][0] for position in bandwidth.drops([time for _, time in timed])}


def _general_flags(table: Table) -> list[str]:
    flags = {
        "single-rank": table.ranks == 1,
        "shared-gpu": nccl_findings.shared_gpu(table) is not None,
    }
    return [name for name, set_ in flags.items() if set_]
