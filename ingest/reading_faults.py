"""What of a log was dropped or could not be read: never in silence, with the lines of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingest.benchmark_runs import Reader as RunsReader
from ingest.facts import Setting
from ingest.log import Log
from ingest.windows import Windows
from verifyscope import units
from verifyscope.records import Confidence, Evidence, Finding


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was not read as it stands: how often, and the lines of the first ones."""

    name: str
    count: int
    sentence: str
    evidence: tuple[tuple[int, str], ...]
    next_action: str | None = None
    confidence: Confidence = "sure"

    @staticmethod
    def windows(engine: str, windows: Windows) -> "Fault":
        """Return the windows that do not show the load they name."""
        count = windows.dropped_count
        reasons = list(dict.fromkeys(one.reason.partition(":")[0] for one in windows.dropped))
        return Fault(
            "windows-dropped",
            count,
            f"{count} {engine} {'window does' if count == 1 else 'windows do'} not count: "
            f"{'; '.join(reasons[:3])}",
            tuple((one.line, _with_time(one.reason, one.cycle_s)) for one in windows.dropped),
        )

    @staticmethod
    def duplicates(engine: str, count: int) -> "Fault":
        """Return the lines that repeat the one before."""
        sentence = f"{count} {engine} lines repeat the line before, to the second; each counts once"
        return Fault("duplicate-lines", count, sentence, ())

    @staticmethod
    def unread(what: str, lines: Sequence[int], *, count: int) -> "Fault":
        """Return the lines that have a known beginning and cannot be read whole."""
        return Fault(
            "lines-not-read",
            count,
            f"{what} that are cut, or hold what is no number: {count}; nothing of them is used",
            tuple((line, "not read") for line in lines),
            "give the log whole",
        )

    @staticmethod
    def left_out(what: str, count: int) -> "Fault":
        """Return what was too much to keep."""
        return Fault("left-out", count, f"{count} lines with further {what} are left out", ())

    @staticmethod
    def changed(settings: Mapping[str, Setting]) -> "Fault":
        """Return the settings that a file names with several values."""
        names = ", ".join(list(settings)[:5])
        return Fault(
            "settings-changed",
            len(settings),
            f"{names}: named with several values, as by several servers in one file; the first of "
            f"each is taken for all of it",
            tuple((one.line, f"{name}={one.value}") for name, one in settings.items()),
            "give the log of each server as a file of its own",
            "likely",
        )

    @staticmethod
    def runs(reader: RunsReader) -> list["Fault"]:
        """Return what is wrong with the lines of runs."""
        missing = [runs for runs in reader.runs if len(runs.runs) < runs.announced]
        lines = len(reader.cut)
        return [
            Fault(
                "cut-line",
                lines,
                f"{lines} {'line breaks' if lines == 1 else 'lines break'} off before the rate: "
                f"a run or a summary is missing",
                tuple((line, "breaks off") for line in reader.cut),
                "give the log whole",
            ),
            Fault(
                "rate-disagrees",
                len(reader.disagreeing),
                "runs whose printed rate is not their tokens / seconds are not used",
                tuple((line, "rate is not tokens / seconds") for line in reader.disagreeing),
            ),
            Fault(
                "runs-missing",
                len(missing),
                "; ".join(
                    f"{len(runs.runs)} of the {runs.announced} announced runs are there"
                    for runs in missing[:3]
                ),
                tuple(
                    (runs.line, f"{len(runs.runs)} of {runs.announced}") for runs in missing[:10]
                ),
                "a mean over fewer runs is of those alone",
            ),
            Fault.duplicates("run", reader.duplicates),
        ]


def findings_on(faults: Sequence[Fault], log: Log) -> Iterator[Finding]:
    """Yield the findings that say what was not read."""
    for fault in faults:
        yield Finding(
            name=fault.name,
            sentence=fault.sentence,
            evidence=tuple(Evidence(log.file, line, value) for line, value in fault.evidence),
            next_action=fault.next_action,
            confidence=fault.confidence,
            environment=log.environment,
            command=log.command,
        )


def _with_time(reason: str, cycle_s: float | None) -> str:
    return reason if cycle_s is None else f"{units.seconds(cycle_s)} a cycle: {reason}"
