"""Where speculation stands in the records: cycles, what they yield, and the plain step beside each.

    serving logs      a cycle at a load and its acceptance; plain steps at a load
    component tables  verify and its share: cycle = verify / share; the acceptance that the runs of
                      the same file imply, their prompts included
    measured passes   a verify of several rows, of which the cycle is at least as long; the pass of
                      one row is the plain step
    the calculator    what was given on a command line (python -m reports.speculation --records)

A plain step is the one that its command was given (--plain-ms); else of the same file or pass at
the same number of requests; else of a file that was read by the same command and is of the same
system (`reports._systems`): logs of several are not put together.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from reports import _systems
from reports._collected import Collected
from reports._systems import Systems
from verifyscope import passes, speculation, systems
from verifyscope.records import Measurement

_TABLE = "component table"
_PASS_DIMS = ("model", "tp", "context", "layers", "all_reduce", "outside")
_GIVEN = "given"
_SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """A step of plain decoding of `requests`; None where the record does not say.

    is_given: a person said it of the command, whatever the load.
    """

    seconds: float
    requests: int | None
    group: tuple[object, ...]
    is_given: bool
    record: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """One cycle, or a verify whose cycle is not known (`is_cycle`).

    accepted: tokens a request and cycle; `is_implied` by the rate of its runs, not printed.
    system: what its files name of it, "" where they name nothing; points of one `group` are of one.
    """

    name: str
    system: str
    group: Hashable
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
    known = _known([one for one in (*found.kernels, *found.passes) if one.median_s])
    made = [*_cycles(known), *_tables(known), *_passes(found, known)]
    return sorted(
        made,
        key=lambda one: (
            one.system,
            _systems.place(one.record),
            one.requests or 0,
            one.rows or 0,
            one.name,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """All records, the plain steps among them, and the systems of their files.

    plains: the first of each group, and of each system, at each load; given: those of a person.
    """

    records: Sequence[Measurement]
    plains: Mapping[Hashable, PlainStep]
    given: Sequence[PlainStep]
    systems: Systems


def _known(records: Sequence[Measurement]) -> _Known:
    systems, every = _systems.of(records), list(plain_steps(records))
    plains: dict[Hashable, PlainStep] = {}
    for one in every:
        plains.setdefault((one.group, one.requests), one)
        if one.record.source == "imported" and not one.is_given:
            plains.setdefault((_SYSTEM, systems.first_file(one.record), one.requests), one)
    given = [one for one in every if one.is_given]
    return _Known(records=records, plains=plains, given=given, systems=systems)


def plain_steps(records: Iterable[Measurement]) -> Iterator[PlainStep]:
    """Yield the plain steps: of logs, of runs without speculation, of a pass of one row."""
    for one in records:
        seconds, requests = one.median_s or 0.0, _whole(one, "requests")
        served = one.part in ("cycle", "forward", "generation") and one.mode == "decode"
        served = served and "upper-bound" not in one.flags
        if served or (one.op == passes.FORWARD and _whole(one, "rows") == 1):
            yield PlainStep(
                seconds=seconds,
                requests=requests if served else requests or 1,
                group=_systems.file(one) if served else _pass(one),
                is_given=one.implementation == _GIVEN and requests is None,
                record=one,
            )


def plain_for(
    record: Measurement,
    requests: int | None,
    group: tuple[object, ...],
    known: _Known,
) -> PlainStep | None:
    """Return the plain step to hold a cycle against: given, its own group's, else one read with it.

    A table that names no load is held against one that names none, else against a single request.
    """
    loads: tuple[int | None, ...] = (None, 1) if requests is None else (requests,)
    if requests == 1:
        loads = (1, None)
    given = next((one for one in known.given if _is_given(one, record, known.systems)), None)
    if given is not None:
        return given
    keys: list[Hashable] = [(group, load) for load in loads]
    if _may_be_of_others(record, requests, known.systems):
        keys += [(_SYSTEM, known.systems.first_file(record), load) for load in loads]
    return next((known.plains[key] for key in keys if key in known.plains), None)


def _is_given(plain: PlainStep, other: Measurement, systems: Systems) -> bool:
    """Say whether a plain step was given to the command that read a cycle, of one system alone."""
    one = plain.record
    same = (one.command, one.environment) == (other.command, other.environment)
    return plain.is_given and same and systems.speculating(other) < 2


def _may_be_of_others(one: Measurement, requests: int | None, systems: Systems) -> bool:
    """Say whether the plain step of a record may be of another file of its system and command.

    Where the load is not said, these must be just two files.
    """
    if one.source != "imported":
        return False
    return requests is not None or len(systems.files_with(one)) <= 2


def _cycles(known: _Known) -> Iterator[OperatingPoint]:
    for one in known.records:
        if one.part != "cycle" or one.mode != "verify" or one.implementation == _TABLE:
            continue
        requests, accepted = _whole(one, "requests"), one.dims.get("acceptance")
        yield OperatingPoint(
            name=f"{_systems.place(one)}, {one.case}",
            system=known.systems.words(one),
            group=known.systems.first_file(one),
            seconds=one.median_s or 0.0,
            is_cycle=True,
            requests=requests,
            rows=_whole(one, "rows"),
            accepted=_acceptance(accepted),
            is_implied=False,
            plain=plain_for(one, requests, _systems.file(one), known),
            record=one,
        )


@dataclass(slots=True)
class _Table:
    """What a file with a component table says: its longest verify and cycle, its fastest run."""

    verify: Measurement | None = None
    cycle_s: float = 0.0
    tokens_per_s: float = 0.0

    def take(self, one: Measurement) -> None:
        seconds, rate = one.median_s or 0.0, one.method.get("by_token_tok_s")
        if one.part == "generation":
            if one.mode != "decode" and isinstance(rate, int | float):
                self.tokens_per_s = max(self.tokens_per_s, rate)
        elif one.implementation == _TABLE and one.part == "cycle":
            self.cycle_s = max(self.cycle_s, seconds)
        elif one.implementation == _TABLE and one.part == "forward" and one.mode == "verify":
            self.verify = max(self.verify or one, one, key=lambda row: row.median_s or 0.0)


def _tables(known: _Known) -> Iterator[OperatingPoint]:
    """Yield the cycle of each component table."""
    tables: dict[tuple[object, ...], _Table] = {}
    for one in known.records:
        tables.setdefault(_systems.file(one), _Table()).take(one)
    for file, table in tables.items():
        verify = table.verify
        if verify is None:
            continue
        seconds, is_cycle = _cycle_s(table, verify)
        stated = _acceptance(verify.dims.get("acceptance"))
        implied = _acceptance(table.tokens_per_s * seconds) if is_cycle else None
        yield OperatingPoint(
            name=f"{_systems.place(verify)}, {verify.case}",
            system=known.systems.words(verify),
            group=known.systems.first_file(verify),
            seconds=seconds,
            is_cycle=is_cycle,
            requests=None,
            rows=None,
            accepted=stated or implied,
            is_implied=stated is None and implied is not None,
            plain=plain_for(verify, None, file, known),
            record=verify,
        )


def _passes(found: Collected, known: _Known) -> Iterator[OperatingPoint]:
    for one in known.records:
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
            system=systems.of_record(one).words(),
            group=("pass", one.environment, one.dims.get("model"), one.dims.get("tp")),
            seconds=one.median_s or 0.0,
            is_cycle=False,
            requests=requests,
            rows=rows,
            accepted=None,
            is_implied=False,
            plain=plain_for(one, requests, _pass(one), known),
            record=one,
        )


def _cycle_s(table: _Table, verify: Measurement) -> tuple[float, bool]:
    """Return the cycle of a table: its own line, else verify / share; else the verify alone."""
    verify_s, share = verify.median_s or 0.0, verify.method.get("share")
    if table.cycle_s >= verify_s:
        return table.cycle_s, True
    if isinstance(share, int | float) and 0 < share <= 1:
        return speculation.cycle_s(verify_s, share=share), True
    return verify_s, False


def _acceptance(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value >= 1 else None


def _whole(one: Measurement, name: str) -> int | None:
    value = one.dims.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _pass(one: Measurement) -> tuple[object, ...]:
    dims = tuple(one.dims.get(name) for name in _PASS_DIMS)
    return ("pass", one.implementation, one.launch, one.environment, dims)
