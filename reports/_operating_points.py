"""Where speculation stands in the records: cycles, what they yield, and the plain step beside each.

    serving logs      a cycle at a load and its acceptance; plain steps at a load
    component tables  verify and its share: cycle = verify / share; the acceptance that the runs of
                      the same file imply, their prompts included
    measured passes   a verify of several rows, of which the cycle is at least as long; the pass of
                      one row is the plain step
    the calculator    what was given on a command line (python -m reports.speculation --records)

A plain step is taken from the same file or pass at the same number of requests, else from a file of
the same engine that was read by the same command: logs of other systems are not put together.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from reports._collected import Collected
from verifyscope import passes, speculation
from verifyscope.records import Measurement

_TABLE = "component table"
_PASS_DIMS = ("model", "tp", "context", "layers", "all_reduce", "outside")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """A step of plain decoding of `requests`; None where the record does not say.

    is_of_two: the command that read it read one other file and no more.
    """

    seconds: float
    requests: int | None
    group: tuple[object, ...]
    is_of_two: bool
    record: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """One cycle, or a verify whose cycle is not known (`is_cycle`).

    accepted: tokens a request and cycle; `is_implied` by the rate of its runs, not printed.
    """

    name: str
    seconds: float
    is_cycle: bool
    requests: int | None
    rows: int | None
    accepted: float | None
    is_implied: bool
    plain: PlainStep | None
    record: Measurement

    @property
    def plain_file(self) -> str | None:
        """Return the file of its plain step, where that is another one than its own."""
        of_plain = None if self.plain is None else self.plain.record.origin
        own = self.record.origin
        return None if of_plain is None or of_plain.file == (own and own.file) else of_plain.file

    @property
    def break_even(self) -> float | None:
        """Return the acceptance that equals plain decoding: of a verify alone at least that."""
        if self.plain is None:
            return None
        return speculation.break_even_accepted(self.seconds, plain_token_s=self.plain.seconds)

    @property
    def tokens_per_s(self) -> float | None:
        """Return the rate of all requests: at most that, where only the verify is known."""
        if self.accepted is None:
            return None
        each = speculation.tokens_per_s(self.accepted, cycle_s=self.seconds)
        return (self.requests or 1) * each

    @property
    def speedup(self) -> float | None:
        """Return the rate over that of plain decoding."""
        even = self.break_even
        return None if even is None or self.accepted is None else self.accepted / even


def points(found: Collected) -> list[OperatingPoint]:
    """Return every operating point, by file or pass and then by requests."""
    records = [one for one in (*found.kernels, *found.passes) if one.median_s]
    plains = list(plain_steps(records))
    made = [*_cycles(records, plains), *_tables(records, plains), *_passes(found, records, plains)]
    return sorted(made, key=lambda one: (one.name, one.requests or 0, one.rows or 0))


def plain_steps(records: Iterable[Measurement]) -> Iterator[PlainStep]:
    """Yield the plain steps: of logs, of runs without speculation, of a pass of one row."""
    known = list(records)
    files: dict[str, set[str]] = {}
    for one in known:
        files.setdefault(one.command, set()).add(_place(one))
    for one in known:
        seconds, requests = one.median_s or 0.0, _whole(one, "requests")
        served = one.part in ("cycle", "forward", "generation") and one.mode == "decode"
        served = served and "upper-bound" not in one.flags
        if served or (one.op == passes.FORWARD and _whole(one, "rows") == 1):
            yield PlainStep(
                seconds=seconds,
                requests=requests if served else requests or 1,
                group=_file(one) if served else _pass(one),
                is_of_two=len(files[one.command]) <= 2,
                record=one,
            )


def plain_for(
    record: Measurement,
    requests: int | None,
    group: tuple[object, ...],
    plains: Sequence[PlainStep],
) -> PlainStep | None:
    """Return the plain step to hold a cycle against: its own group's, else one read with it.

    A table that names no load is held against one that names none, else against a single request.
    """
    loads: tuple[int | None, ...] = (None, 1) if requests is None else (requests,)
    if requests == 1:
        loads = (1, None)
    usable = [
        one
        for one in plains
        if one.requests in loads
        and one.seconds > 0
        and (one.group == group or _together(one, record, requests))
    ]
    return min(
        usable, key=lambda one: (one.group != group, loads.index(one.requests)), default=None
    )


def _together(plain: PlainStep, other: Measurement, requests: int | None) -> bool:
    """Say whether two records were read by one command, which names its files, of one engine.

    Where the load is not said, the command must have read these two files alone.
    """
    one = plain.record
    if requests is None and not plain.is_of_two:
        return False
    if not one.source == other.source == "imported":
        return False
    if one.part == other.part == "cycle" and one.implementation != other.implementation:
        return False
    if None not in (one.ranks, other.ranks) and one.ranks != other.ranks:
        return False
    return (one.command, one.environment) == (other.command, other.environment)


def _cycles(
    records: Sequence[Measurement], plains: Sequence[PlainStep]
) -> Iterator[OperatingPoint]:
    for one in records:
        if one.part != "cycle" or one.mode != "verify" or one.implementation == _TABLE:
            continue
        requests, accepted = _whole(one, "requests"), one.dims.get("acceptance")
        yield OperatingPoint(
            name=f"{_place(one)}, {one.case}",
            seconds=one.median_s or 0.0,
            is_cycle=True,
            requests=requests,
            rows=_whole(one, "rows"),
            accepted=_acceptance(accepted),
            is_implied=False,
            plain=plain_for(one, requests, _file(one), plains),
            record=one,
        )


def _tables(
    records: Sequence[Measurement], plains: Sequence[PlainStep]
) -> Iterator[OperatingPoint]:
    """Yield the cycle of each component table: of a file the verify that is longest."""
    verifies: dict[tuple[object, ...], Measurement] = {}
    for one in records:
        if one.implementation == _TABLE and one.part == "forward" and one.mode == "verify":
            known = verifies.get(_file(one))
            if known is None or (known.median_s or 0) < (one.median_s or 0):
                verifies[_file(one)] = one
    for file, verify in verifies.items():
        seconds, is_cycle = _cycle_s(verify, file, records)
        accepted = _implied(file, records, seconds) if is_cycle else None
        yield OperatingPoint(
            name=f"{_place(verify)}, {verify.case}",
            seconds=seconds,
            is_cycle=is_cycle,
            requests=None,
            rows=None,
            accepted=accepted,
            is_implied=accepted is not None,
            plain=plain_for(verify, None, file, plains),
            record=verify,
        )


def _passes(
    found: Collected, records: Sequence[Measurement], plains: Sequence[PlainStep]
) -> Iterator[OperatingPoint]:
    for one in records:
        rows = _whole(one, "rows")
        if one.op != passes.FORWARD or rows is None or rows < 2:
            continue
        requests = _whole(one, "requests") or 1
        yield OperatingPoint(
            name=", ".join(
                word
                for word in ("measured pass", one.case, one.launch, found.on_cpu(one) and "CPU")
                if word
            ),
            seconds=one.median_s or 0.0,
            is_cycle=False,
            requests=requests,
            rows=rows,
            accepted=None,
            is_implied=False,
            plain=plain_for(one, requests, _pass(one), plains),
            record=one,
        )


def _cycle_s(
    verify: Measurement, file: tuple[object, ...], records: Sequence[Measurement]
) -> tuple[float, bool]:
    """Return the cycle of a table: its own line, else verify / share; else the verify alone."""
    verify_s, share = verify.median_s or 0.0, verify.method.get("share")
    lines = [
        one.median_s or 0.0
        for one in records
        if one.implementation == _TABLE and one.part == "cycle" and _file(one) == file
    ]
    if lines and max(lines) >= verify_s:
        return max(lines), True
    if isinstance(share, int | float) and 0 < share <= 1:
        return speculation.cycle_s(verify_s, share=share), True
    return verify_s, False


def _implied(
    file: tuple[object, ...], records: Sequence[Measurement], cycle_s: float
) -> float | None:
    """Return the tokens a cycle that the runs of the same file imply."""
    rates = [
        one.method.get("by_token_tok_s")
        for one in records
        if one.part == "generation" and one.mode != "decode" and _file(one) == file
    ]
    known = [rate for rate in rates if isinstance(rate, int | float) and rate > 0]
    return _acceptance(max(known) * cycle_s) if known else None


def _acceptance(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value >= 1 else None


def _whole(one: Measurement, name: str) -> int | None:
    value = one.dims.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _place(one: Measurement) -> str:
    return one.implementation if one.origin is None else one.origin.file


def _file(one: Measurement) -> tuple[object, ...]:
    return ("log", _place(one), one.environment)


def _pass(one: Measurement) -> tuple[object, ...]:
    dims = tuple(one.dims.get(name) for name in _PASS_DIMS)
    return ("pass", one.implementation, one.launch, one.environment, dims)
