"""Where a command puts its records: the file of `--records`, or a new folder under `runs/`."""

import datetime
from pathlib import Path
from types import TracebackType

import msgspec

from verifyscope import environment
from verifyscope.errors import UsageError
from verifyscope.records import (
    SAMPLES_FILE,
    Appender,
    Compiled,
    Environment,
    Finding,
    Measurement,
    Samples,
)

RUNS = Path("runs")


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

    records: the file that `--records` names; its folder is made; an existing file is added to.
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
