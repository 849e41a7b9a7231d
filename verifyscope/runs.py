"""Where a command puts its records: the file of `--records`, or a new folder under `runs/`."""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from verifyscope import environment
from verifyscope.errors import Failure, UsageError
from verifyscope.records import (
    LONGEST_LINE_BYTES,
    SAMPLES_FILE,
    Compiled,
    Environment,
    Finding,
    Measurement,
    Record,
    Samples,
    encoded,
    is_whole,
    refuse_other,
)

try:
    import fcntl
except ImportError:  # Windows, where reports are read and nothing is measured
    fcntl = None  # type: ignore[assignment]

RUNS = Path("runs")


class Appender:
    """An open file of lines. Each `append` is one write: whole, or not there at all.

    An incomplete last line, which a killed run leaves, is cut off when the file is opened again.
    A file that is not ours, or of another schema, is refused and left as it is. Several processes
    may add to one file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            with _locked(self._file):
                self._continue()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, line: Record | Samples) -> None:
        """Write `line` now; `Failure` if the disk took none or a part of it, which is removed."""
        data = encoded(line)
        with _locked(self._file):
            try:
                written = os.write(self._file, data)
            except OSError as error:
                raise self._failure(error.strerror) from error
            if written != len(data):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise self._failure("no space left on the device")

    def close(self) -> None:
        """Close the file; nothing was held back."""
        os.close(self._file)

    def _failure(self, cause: str | None) -> Failure:
        return Failure(f"cannot write {self.path}: {cause}; what it holds already is kept")

    def _continue(self) -> None:
        """Refuse a file that is not ours; end its last line, or cut off a part of one."""
        size = os.fstat(self._file).st_size
        if not size:
            return
        refuse_other(os.pread(self._file, 256, 0), self.path)
        if os.pread(self._file, 1, size - 1) == b"\n":
            return
        tail = os.pread(self._file, LONGEST_LINE_BYTES, max(0, size - LONGEST_LINE_BYTES))
        last = tail[tail.rfind(b"\n") + 1 :]
        if len(last) == LONGEST_LINE_BYTES:
            raise UsageError(f"{self.path} ends in a line of over 16 MiB; name another file")
        if is_whole(last):
            os.write(self._file, b"\n")
        else:
            os.ftruncate(self._file, size - len(last))


class Run:
    """An open run: `environment` stands in its file already, and `append` adds to it.

    Use it as a context manager, or `close` it. With a `samples` argument the raw times go to
    `samples.jsonl` beside the records.
    """

    def __init__(self, path: Path, environment: Environment) -> None:
        self.path, self.environment = path, environment
        self._records = Appender(path)
        self._records.append(environment)
        self._samples: Appender | None = None

    def append(
        self, record: Measurement | Compiled | Finding, samples: tuple[float, ...] | None = None
    ) -> None:
        """Write `record` now; `samples` are its raw times in seconds per call."""
        self._records.append(record)
        if samples and isinstance(record, Measurement):
            if self._samples is None:
                self._samples = Appender(self.path.with_name(SAMPLES_FILE))
            self._samples.append(Samples(id=record.id, seconds=samples))

    def close(self) -> None:
        """Close the files; nothing was held back."""
        self._records.close()
        if self._samples is not None:
            self._samples.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def start(records: Path | None, name: str) -> Run:
    """Begin a run. Without `records`, in a new folder `runs/<time>-<name>` with environment.json.

    records: the file that `--records` names; its folder is made; an existing file is added to;
    `UsageError` for a folder, and for the name of the raw samples.
    """
    here = environment.current()
    if records is not None:
        if records.is_dir():
            raise UsageError(f"--records {records} is a folder; name a file in it")
        if records.name == SAMPLES_FILE:
            raise UsageError(
                f"--records {SAMPLES_FILE} is the name of the raw samples; use another"
            )
        return Run(records, here)
    folder = _new_folder(name)
    copy = msgspec.json.format(msgspec.json.encode(here), indent=2)
    (folder / "environment.json").write_bytes(copy + b"\n")
    return Run(folder / "records.jsonl", here)


@contextmanager
def _locked(file: int) -> Iterator[None]:
    """Keep other writers of the file away for a moment."""
    if fcntl is None:
        yield
        return
    with suppress(OSError):  # a file system without locks: one writer at a time
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _new_folder(name: str) -> Path:
    now = datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        folder = RUNS / f"{now}-{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise UsageError(f"{RUNS} holds 99 runs of this second; name a file with --records")
