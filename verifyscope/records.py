"""What a run leaves behind: JSON lines of `Environment`, `Measurement`, `Compiled` and `Finding`.

A line holds `type` and `schema`; a field that is absent is null, never 0. Durations are seconds
(`_s`), sizes bytes. The first line of a file is the environment; every measurement names it by id.
`Samples` are the raw times behind a measurement, in `samples.jsonl` beside it.

`runs.Appender` writes each at once: a killed run loses at most the one in flight.
"""

import re
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from verifyscope import record_files
from verifyscope.errors import UsageError
from verifyscope.parts import PARTS

SCHEMA = 1
SAMPLES_FILE = "samples.jsonl"
LONGEST_LINE_BYTES = 16 * 2**20
# What is imported from a trace: the whole, a step, a class of kernels, a kernel. Its collectives
# are kernels among others and no rows of a sweep: a trace knows no message size.
TRACE_OPS = ("trace", "trace step", "trace class", "trace kernel")
_START = b'{"type":"'

Source = Literal["measured", "imported", "predicted"]
Mode = Literal["verify", "decode", "extend"]
Launch = Literal["eager", "graph", "piecewise"]
Cache = Literal["cold", "warm", "flushed"]
Kind = Literal["own", "baseline-direct", "baseline-composed", "baseline-different-work"]
Status = Literal[
    "ok", "skipped", "failed", "void", "ignored", "unsupported", "error", "hang", "corrupt"
]
Confidence = Literal["sure", "likely", "hint"]
Value = str | int | float | bool
# Two times of a trace with a broken clock lie up to 2 x 2^53 us apart; more is no time at all.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """A line; `schema` is always written."""

    schema: int = msgspec.field(default_factory=lambda: SCHEMA)


class GpuState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU as the driver describes it. Bytes, MHz, watts; `pcie_*` is the link's maximum."""

    index: int
    name: str
    memory_bytes: int | None = None
    capability: str | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    sm_max_mhz: int | None = None
    memory_max_mhz: int | None = None
    power_limit_w: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    ecc: bool | None = None
    mig: bool | None = None


class Environment(_Line, tag="environment", frozen=True, kw_only=True):
    """The machine, software and settings of a run; never a host, user, folder or unlisted variable.

    `id` is a digest of everything but `created` and `command`, so equal environments share it.
    """

    id: str
    created: str
    command: str
    commit: str | None = None
    dirty: bool | None = None
    system: str
    processor: str
    cores: int
    memory_bytes: int | None = None
    python: str
    governor: str | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    gpus: tuple[GpuState, ...] = ()
    versions: dict[str, str] = {}
    settings: dict[str, str] = {}


class Origin(msgspec.Struct, frozen=True):
    """Where an imported or derived number was read: a file's name and a line, counted from 1."""

    file: str
    line: int | None = None


class Measurement(_Line, tag="measurement", frozen=True, kw_only=True):
    """What became of one implementation on one case: a time with its interval, or a reason.

    `median_s` and its 95 % interval `low_s` .. `high_s` are per call (a graph of `depth` calls
    counts its time / depth). `floor_s` is bytes and flops only. `dims` are the case's numbers
    (rows, context, bytes, ...), `method` how it was timed (clock, input sets, stop rule and why it
    stopped), `conditions` what was sampled meanwhile (clock, power, temperature).
    """

    id: str = msgspec.field(default_factory=lambda: new_id())
    source: Source
    part: str
    op: str
    implementation: str
    case: str
    status: Status
    kind: Kind = "own"
    reason: str | None = None
    dims: dict[str, Value] = {}
    mode: Mode | None = None
    launch: Launch | None = None
    depth: int | None = None
    cache: Cache | None = None
    flags: tuple[str, ...] = ()
    requested: dict[str, str] = {}
    effective: dict[str, str] = {}
    proof: str | None = None
    median_s: Seconds | None = None
    low_s: Seconds | None = None
    high_s: Seconds | None = None
    p90_s: Seconds | None = None
    p99_s: Seconds | None = None
    count: int | None = None
    touched_bytes: float | None = None
    flops: float | None = None
    floor_s: Seconds | None = None
    ranks: int | None = None
    method: dict[str, Value] = {}
    conditions: dict[str, Value] = {}
    environment: str
    command: str
    commit: str | None = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ValueError(f"unknown part {self.part!r}; parts: {', '.join(PARTS)}")
        if self.low_s is not None and self.high_s is not None and self.low_s > self.high_s:
            raise ValueError(f"{self.op}/{self.implementation}: low_s is above high_s")
        if self.status == "ok":
            if self.median_s is None:
                raise ValueError(f"{self.op}/{self.implementation}: status ok needs median_s")
        elif self.median_s is not None:
            raise ValueError(f"{self.op}/{self.implementation}: {self.status} may carry no time")
        elif not self.reason:
            raise ValueError(f"{self.op}/{self.implementation}: {self.status} needs a reason")


class Compiled(_Line, tag="compiled", frozen=True, kw_only=True):
    """One kernel built for one GPU that need not be present: what it takes, or why it may not run.

    `capability` is 10 * major + minor (90, 120). `declared` are the instruction classes that the
    implementation promises, `found` those in its machine code. `failure` is null where it passed.

    In theory a multiprocessor holds `resident_blocks` of `threads` threads at once, `occupancy` of
    its warps; `limited_by` is what runs out first. The case's launch has `grid_blocks`, which are
    `waves` times what the `multiprocessors` of that GPU hold. A turn of the main loop has
    `loop_instructions`, in which a thread loads `loop_loaded_bytes` from global memory.
    """

    op: str
    implementation: str
    kernel: str
    case: str
    capability: int
    registers: int | None
    spilled_bytes: int | None
    shared_bytes: int | None
    shared_limit_bytes: int
    threads: int | None = None
    resident_blocks: int | None = None
    occupancy: float | None = None
    limited_by: str | None = None
    grid_blocks: int | None = None
    multiprocessors: int | None = None
    waves: float | None = None
    loop_instructions: int | None = None
    loop_loaded_bytes: int | None = None
    declared: tuple[str, ...]
    found: tuple[str, ...]
    failure: str | None
    environment: str
    command: str
    commit: str | None

    @property
    def instructions_per_byte(self) -> float | None:
        """Return the main loop's instructions a byte that it loads: what unpacking costs shows."""
        if self.loop_instructions is None or not self.loop_loaded_bytes:
            return None
        return self.loop_instructions / self.loop_loaded_bytes


class Evidence(msgspec.Struct, frozen=True):
    """One observed value and where: a file's name, a line number or an event's name."""

    file: str
    at: int | str | None
    value: str


class Finding(_Line, tag="finding", frozen=True, kw_only=True):
    """A conclusion: one sentence, what it rests on, and what to do next."""

    name: str
    sentence: str
    evidence: tuple[Evidence, ...] = ()
    next_action: str | None = None
    worth_s: float | None = None
    confidence: Confidence = "hint"
    environment: str | None = None
    command: str | None = None


class Samples(_Line, tag="samples", frozen=True, kw_only=True):
    """All times of the measurement `id`, in seconds per call, in the order they were taken."""

    id: str
    seconds: tuple[float, ...]


Record = Environment | Measurement | Compiled | Finding
_Any = Environment | Measurement | Compiled | Finding | Samples


class _Head(msgspec.Struct):
    type: str
    schema: int


class _SampleHead(msgspec.Struct):
    id: str


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Any)
_head = msgspec.json.Decoder(_Head)
_sample_head = msgspec.json.Decoder(_SampleHead)


def new_id() -> str:
    """Return an id that no other record has."""
    return uuid.uuid4().hex[:16]


def encoded(line: Record | Samples) -> bytes:
    """Return `line` as it is written, ending in a newline.

    ValueError if it could not be read back: JSON has no NaN, and a struct checks no bounds.
    """
    data = _encoder.encode(line)
    try:
        _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{line} could not be read back: {error}") from None
    return data + b"\n"


def is_whole(data: bytes) -> bool:
    """Say whether `data` is one whole JSON value, whatever it means."""
    try:
        msgspec.json.decode(data)
    except _UNREADABLE:
        return False
    return True


def refuse_other(data: bytes, place: Path | str) -> None:
    """Raise `UsageError` if `data`, the start of a file at `place`, was written by another schema.

    A start that is no record is refused, too.
    """
    if not data.startswith(_START) and not _START.startswith(data):
        raise UsageError(f"{place} is no records file; name another one")
    schema = re.match(rb'\{"type":"\w+","schema":(\d+)', data)
    if schema and int(schema[1]) != SCHEMA:
        raise UsageError(f"{place}: {_other_schema(int(schema[1]))}")


class Reader:
    """Read lines from `path`, in order, one at a time; `warnings` grows as the file is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []

    def __iter__(self) -> Iterator[Record]:
        for number, data in self._lines():
            line = self._decoded(number, data)
            if line is not None and not isinstance(line, Samples):
                yield line

    def samples(self, ids: Collection[str] | None = None) -> Iterator[Samples]:
        """Yield the raw samples that a `samples.jsonl` holds: all, or those of `ids`."""
        for number, data in self._lines():
            name = None if ids is None else _id_of(data)
            if ids is not None and name is not None and name not in ids:
                continue
            line = self._decoded(number, data)
            if isinstance(line, Samples):
                yield line

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with record_files.opened(self.path) as file:
            number = 0
            while data := file.readline(LONGEST_LINE_BYTES + 1):
                number += 1
                if number == 1:
                    data = data.removeprefix(record_files.BYTE_ORDER_MARK)
                if len(data) > LONGEST_LINE_BYTES:
                    raise UsageError(
                        f"{self.path}:{number}: a line of over 16 MiB; this is no records file"
                    )
                if data != b"\n":
                    yield number, data

    def _decoded(self, number: int, data: bytes) -> _Any | None:
        """Return the line; None, with a warning, if it is the first part of a last one."""
        try:
            line = _decoder.decode(data)
        except _UNREADABLE as error:
            cause: str | None = _other_schema(_schema_of(data))
            if cause is None:
                cause = f"not a record{record_files.why_not(number, data, error)}"
        else:
            if line.schema == SCHEMA:
                return line
            cause = _other_schema(line.schema)
        place = f"{self.path}:{number}"
        if data.endswith(b"\n") or not data.startswith(b"{") or is_whole(data):
            raise UsageError(f"{place}: {cause}")
        self.warnings.append(
            f"{place}: the last line is incomplete (a run was ended); all before it is read"
        )
        return None


def read(paths: Sequence[Path], warnings: list[str] | None = None) -> Iterator[Record]:
    """Yield the records of files and of every `*.jsonl` in folders, except `samples.jsonl`.

    A file that is named twice is read once; `UsageError` for a path that holds no record.
    """
    seen: set[Path] = set()
    for path in paths:
        empty = True
        for file in files(path):
            if file.resolve() in seen:
                empty = False
                continue
            seen.add(file.resolve())
            reader = Reader(file)
            for record in reader:
                empty = False
                yield record
            if warnings is not None:
                warnings += reader.warnings
        if empty:
            raise UsageError(f"{path} holds no records; {record_files.WHAT_TO_GIVE}")


def samples(
    paths: Sequence[Path], ids: Collection[str], *, warnings: list[str] | None = None
) -> dict[str, tuple[float, ...]]:
    """Return the raw samples of the measurements `ids`, from each `samples.jsonl` beside records.

    Seconds per call, by id; what was not kept is not in the result.
    """
    found: dict[str, tuple[float, ...]] = {}
    folders = dict.fromkeys(file.parent for path in paths for file in files(path))
    for file in (folder / SAMPLES_FILE for folder in folders):
        if not ids or not file.is_file():
            continue
        reader = Reader(file)
        found.update((line.id, line.seconds) for line in reader.samples(ids))
        if warnings is not None:
            warnings += reader.warnings
    return found


def files(path: Path) -> list[Path]:
    """Return `path`, or the records files in the folder `path`; `UsageError` if there are none."""
    if not path.exists():
        raise UsageError(f"{path} does not exist; {record_files.WHAT_TO_GIVE}")
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.glob("*.jsonl")) if file.name != SAMPLES_FILE]
    if not found:
        inside = sorted(file.parent for file in path.glob("*/*.jsonl"))
        hint = (
            f"give the folders in it, such as {inside[0]}" if inside else record_files.WHAT_TO_GIVE
        )
        raise UsageError(f"{path} holds no *.jsonl; {hint}")
    return found


def _schema_of(data: bytes) -> int:
    """Return the schema that a line names; this one's where it names none."""
    try:
        return _head.decode(data).schema
    except _UNREADABLE:
        return SCHEMA


def _other_schema(schema: int) -> str | None:
    if schema == SCHEMA:
        return None
    return (
        f"record schema {schema}, this version has {SCHEMA}; "
        f"use the verifyscope that wrote it, or a newer one"
    )


def _id_of(data: bytes) -> str | None:
    """Return the id of a line of samples; None where only a full look can say what it is."""
    try:
        return _sample_head.decode(data).id
    except _UNREADABLE:
        return None
