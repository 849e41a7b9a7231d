"""What looks wrong in a table of nccl-tests, each with the lines that show it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingest.nccl_tests import Row, Table, Timing
from verifyscope import units
from verifyscope.records import Confidence, Evidence, Finding, Measurement

MOST_EVIDENCE = 10
AGREES_WITHIN = 0.01
PRINTED_WITHIN_GB_S = 0.005  # rows have two decimals, so their mean is off by half the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A finding before it is bound to a file: `evidence` pairs a line number with a value."""

    name: str
    sentence: str
    evidence: tuple[tuple[int | None, str], ...]
    next_action: str | None = None
    confidence: Confidence = "sure"


def suspicions(table: Table, measurements: Sequence[Measurement]) -> Iterator[Suspicion]:
    """Yield what looks wrong: in the values, the ranks, the times, and the text itself."""
    yield from _about_values(table, measurements)
    yield from _about_ranks(table)
    yield from _about_times(table, measurements)
    yield from _about_text(table)


def finding(found: Suspicion, *, file: str, environment: str, command: str) -> Finding:
    """Return the record of `found` in `file`."""
    return Finding(
        name=found.name,
        sentence=found.sentence,
        evidence=tuple(Evidence(file, at, value) for at, value in found.evidence[:MOST_EVIDENCE]),
        next_action=found.next_action,
        confidence=found.confidence,
        environment=environment,
        command=command,
    )


def shared_gpu(table: Table) -> str | None:
    """Return the bus id of a GPU that two ranks of one node use; a placeholder is no node."""
    seats = [
        (device.host, device.bus)
        for device in table.devices
        if not device.host.startswith("<") and device.bus != "cpu"
    ]
    return next((bus for host, bus in seats if seats.count((host, bus)) > 1), None)


def _about_values(table: Table, measurements: Sequence[Measurement]) -> Iterator[Suspicion]:
    corrupt = [known for known in measurements if known.status == "corrupt"]
    if corrupt or table.out_of_bounds:
        where = ", ".join(known.case for known in corrupt[:3]) or "rows that the file does not hold"
        more = f" and {len(corrupt) - 3} more" if len(corrupt) > 3 else ""
        rows: list[tuple[int | None, str]] = [
            (_line(known), known.reason or "") for known in corrupt
        ]
        footer: list[tuple[int | None, str]] = [
            (table.line, f"Out of bounds values : {table.out_of_bounds}")
        ]
        yield Suspicion(
            name="corrupt-values",
            sentence=f"values are wrong in {where}{more}: no time of such a row counts",
            evidence=tuple(rows + footer if table.out_of_bounds else rows),
            next_action="look for LL128 on PCIe (NCCL_PROTO), patched peer-to-peer or a bad link",
        )
    if table.rows and all(not _checked(row) for row in table.rows):
        yield Suspicion(
            name="not-checked",
            sentence="no value was checked: a fast wrong result looks like a fast one",
            evidence=((table.rows[0].line, "#wrong N/A"),),
            next_action="run again with -c 1",
        )


def _checked(row: Row) -> bool:
    timings = (row.out_of_place, row.in_place)
    return any(_has_verdict(timing) for timing in timings if timing is not None)


def _has_verdict(timing: Timing) -> bool:
    return timing.wrong is not None or timing.error is not None


def _about_ranks(table: Table) -> Iterator[Suspicion]:
    if table.ranks == 1 and table.rows:
        yield Suspicion(
            name="single-rank",
            sentence="busbw is 0: one rank, no communication",
            evidence=((table.line, "1 rank"),),
            next_action="give every GPU a rank (-g N, or nccl-tests built with MPI=1)",
        )
    bus = shared_gpu(table)
    if bus is not None:
        yield Suspicion(
            name="shared-gpu",
            sentence=f"ranks share the GPU {bus}: this is no bandwidth of a link",
            evidence=((table.line, f"{table.ranks} ranks, one bus id {bus}"),),
            next_action="give every rank a GPU of its own",
        )


def _about_times(table: Table, measurements: Sequence[Measurement]) -> Iterator[Suspicion]:
    odd = [known for known in measurements if "non-monotone" in known.flags]
    if odd:
        yield Suspicion(
            name="non-monotone",
            sentence="more bytes took over 10 % less time at " + ", ".join(k.case for k in odd[:5]),
            evidence=tuple((_line(known), _time(known)) for known in odd),
            next_action="measure these sizes and the ones before again; a protocol may change here",
        )
    rows = average(table)
    printed = table.average_gb_s
    if rows is None or printed is None:
        return
    if abs(rows - printed) > AGREES_WITHIN * max(rows, printed) + PRINTED_WITHIN_GB_S:
        yield Suspicion(
            name="average-disagrees",
            sentence=f"the rows average {rows:.3f} GB/s, the footer says {printed:g}: rows are "
            f"missing or changed",
            evidence=((table.line, f"Avg bus bandwidth : {printed:g}"),),
            next_action="give the whole output",
        )


def average(table: Table) -> float | None:
    """Return the mean busbw of all timed rows and directions in GB/s, as the footer has it."""
    timings = [timing for row in table.rows for timing in (row.out_of_place, row.in_place)]
    found = [timing.bus_gb_s for timing in timings if timing and timing.bus_gb_s is not None]
    return sum(found) / len(found) if found else None


def _about_text(table: Table) -> Iterator[Suspicion]:
    if table.failure is not None:
        line, text = table.failure
        yield Suspicion(
            name="test-failed",
            sentence=f"the test failed after {len(table.rows)} sizes: {text}",
            evidence=((line, text),),
        )
    if table.torn:
        yield Suspicion(
            name="torn-rows",
            sentence=f"rows that break off before their end, not read whole: {len(table.torn)}",
            evidence=tuple((line, "row without its end") for line in table.torn),
            next_action="keep NCCL's log apart from the table with NCCL_DEBUG_FILE",
        )
    ended = table.average_gb_s is not None or table.concluded or table.failure
    if table.started and not ended:
        last = f" after {units.binary_size(table.rows[-1].size_bytes)}" if table.rows else ""
        yield Suspicion(
            name="table-breaks-off",
            sentence=f"the table has no footer: the test or the file breaks off{last}",
            evidence=((table.rows[-1].line if table.rows else table.line, "the last line of it"),),
        )


def _line(known: Measurement) -> int | None:
    return known.origin.line if known.origin else None


def _time(known: Measurement) -> str:
    return "no time" if known.median_s is None else units.seconds(known.median_s)
