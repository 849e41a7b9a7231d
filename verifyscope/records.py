"""What a run leaves behind: JSON lines of `Environment`, `Measurement`, `Compiled` and `Finding`.

A line holds `type` and `schema`; a field that is absent is null, never 0. Durations are seconds
(`_s`), sizes bytes. The first line of a file is the environment; every measurement names it by id.
`Samples` are the raw times behind a measurement, in `samples.jsonl` beside it.

A record is appended and flushed at once: a killed run loses at most the one in flight.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from verifyscope.errors import Failure, UsageError
from verifyscope.parts import PARTS

SCHEMA = 1
SAMPLES_FILE = "samples.jsonl"
_LONGEST_LINE_BYTES = 16 * 2**20

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
Seconds = Annotated[float, msgspec.Meta(ge=0)]


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
    declared: tuple[str, ...]
    found: tuple[str, ...]
    failure: str | None
    environment: str
    command: str
    commit: str | None


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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Any)
_head = msgspec.json.Decoder(_Head)


def new_id() -> str:
    """Return an id that no other record has."""
    return uuid.uuid4().hex[:16]


class Appender:
    """An open file of lines. Each `append` is one write: whole, or not there at all.

    An incomplete last line, which a killed run leaves, is cut off when the file is opened again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._cut_incomplete_line()

    def append(self, line: _Any) -> None:
        """Write `line` now; `Failure` if the disk took only a part of it, which is removed."""
        data = _encoder.encode(line) + b"\n"
        end = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise Failure(
                f"cannot write {self.path}: {error.strerror}; what is there is kept"
            ) from error
        if written != len(data):
            os.ftruncate(self._file, end)
            raise Failure(f"no space left for {self.path}; what was there is kept")

    def close(self) -> None:
        """Close the file; nothing was held back."""
        os.close(self._file)

    def _cut_incomplete_line(self) -> None:
        size = os.fstat(self._file).st_size
        if not size or os.pread(self._file, 1, size - 1) == b"\n":
            return
        tail = os.pread(self._file, _LONGEST_LINE_BYTES, max(0, size - _LONGEST_LINE_BYTES))
        start = tail.rfind(b"\n") + 1
        try:
            _decoder.decode(tail[start:])
        except msgspec.MsgspecError:
            if start or size <= _LONGEST_LINE_BYTES:
                self._require_records(tail[start:], size)
                os.ftruncate(self._file, size - (len(tail) - start))
                return
            raise UsageError(f"{self.path} is no records file; name another one") from None
        os.write(self._file, b"\n")

    def _require_records(self, last: bytes, size: int) -> None:
        # A file that is one foreign line (a text, an image) is not ours to cut.
        if len(last) == size and not last.startswith(b'{"type":'):
            raise UsageError(f"{self.path} is no records file; name another one")


class Reader:
    """Read lines from `path`, in order, one at a time; `warnings` grows as the file is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []

    def __iter__(self) -> Iterator[Record]:
        for line in self._lines():
            if not isinstance(line, Samples):
                yield line

    def samples(self) -> Iterator[Samples]:
        """Yield the raw samples that a `samples.jsonl` holds."""
        for line in self._lines():
            if isinstance(line, Samples):
                yield line

    def _lines(self) -> Iterator[_Any]:
        with self.path.open("rb") as file:
            number = 0
            while data := file.readline(_LONGEST_LINE_BYTES + 1):
                number += 1
                if not data.strip():
                    continue
                complete = data.endswith(b"\n")
                if not complete and len(data) > _LONGEST_LINE_BYTES:
                    raise UsageError(
                        f"{self.path}:{number}: a line of over 16 MiB; this is no records file"
                    )
                try:
                    yield _decoded(data, f"{self.path}:{number}")
                except UsageError:
                    if complete or not data.startswith(b"{") or _whole(data):
                        raise
                    self.warnings.append(
                        f"{self.path}:{number}: the last line is incomplete (a run was ended); "
                        f"all before it is read"
                    )


def read(paths: Sequence[Path], warnings: list[str] | None = None) -> Iterator[Record]:
    """Yield the records of files and of every `*.jsonl` in folders, except `samples.jsonl`."""
    for path in paths:
        for file in files(path):
            reader = Reader(file)
            yield from reader
            if warnings is not None:
                warnings += reader.warnings


def files(path: Path) -> list[Path]:
    """Return `path`, or the records files in the folder `path`; `UsageError` if there are none."""
    if not path.exists():
        raise UsageError(f"{path} does not exist; give a records file or the folder of a run")
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.glob("*.jsonl")) if file.name != SAMPLES_FILE]
    if not found:
        raise UsageError(f"{path} holds no *.jsonl; give a records file or the folder of a run")
    return found


def _decoded(data: bytes, place: str) -> _Any:
    try:
        line = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse_other_schema(data, place)
        raise UsageError(
            f"{place}: not a record ({error}); remove the line, or give another file"
        ) from None
    if line.schema != SCHEMA:
        _refuse_other_schema(data, place)
    return line


def _refuse_other_schema(data: bytes, place: str) -> None:
    try:
        schema = _head.decode(data).schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if schema != SCHEMA:
        raise UsageError(
            f"{place}: record schema {schema}, this version reads {SCHEMA}; "
            f"use the verifyscope that wrote it, or a newer one"
        )


def _whole(data: bytes) -> bool:
    """Say whether `data` is one whole JSON value, whatever it means."""
    try:
        msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True
