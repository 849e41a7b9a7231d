"""What `python -m ingest` prints: the verdict in one line, the times, then every finding.

A terminal gets aligned tables, and findings one below the other; anything else tab-separated rows.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ingest.conclusions import Conclusion
from ingest.formats import FORMATS
from ingest.trace_printing import CLASS_HEADER, KERNEL_HEADER, class_rows, kernel_rows
from ingest.verdict import verdict
from verifyscope import cli, units
from verifyscope.parts import class_of
from verifyscope.records import TRACE_OPS, Finding, Measurement

MOST_SHOWN = 100
_COLLECTIVES = ("all_reduce", "other_collective")


@dataclass(slots=True)
class Shown:
    """What one file gave: the lines and times of each collective, other times, first findings."""

    file: str
    format: str = ""
    lines: Counter[tuple[str, str]] = field(default_factory=Counter)
    times: Counter[tuple[str, str]] = field(default_factory=Counter)
    corrupt: Counter[tuple[str, str]] = field(default_factory=Counter)
    others: list[Measurement] = field(default_factory=list)
    traces: list[Measurement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    hidden_findings: int = 0
    hidden_times: int = 0
    last_line: int | None = None

    def add(self, record: Measurement | Finding) -> None:
        """Count `record`."""
        if isinstance(record, Finding):
            if len(self.findings) < MOST_SHOWN:
                self.findings.append(record)
            else:
                self.hidden_findings += 1
        elif record.op in TRACE_OPS:
            self.traces.append(record)
        elif is_collective(record):
            key = (record.op, "?" if record.ranks is None else str(record.ranks))
            line = record.origin.line if record.origin else None
            self.lines[key] += line != self.last_line
            self.last_line = line
            self.times[key] += record.status == "ok"
            self.corrupt[key] += record.status == "corrupt"
        elif len(self.others) < MOST_SHOWN:
            self.others.append(record)
        else:
            self.hidden_times += 1

    def collectives(self) -> Iterator[tuple[str, ...]]:
        """Yield a line for each collective and rank count."""
        for op, ranks in self.lines:
            counts = (found[op, ranks] for found in (self.lines, self.times, self.corrupt))
            yield (self.file, self.format, op, ranks, *map(str, counts))

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a line for each other time."""
        for one in self.others:
            time = one.reason or "" if one.median_s is None else units.seconds(one.median_s)
            count = "" if one.count is None else f"{one.count:,}"
            flags = ", ".join(one.flags)
            by = one.implementation
            file = self.file if one.origin is None else one.origin.file
            yield (file, one.op, by, one.case, time, _interval(one), count, flags)


def report(shown: Sequence[Shown], concluded: Sequence[Conclusion]) -> None:
    """Print what was read: verdict, times, findings."""
    findings = [finding for found in shown for finding in found.findings]
    others = [one for found in shown for one in found.others]
    collectives = [row for found in shown for row in found.collectives()]
    print(
        verdict(
            concluded,
            findings,
            others,
            counted=_counted(shown, others),
            several=len(shown) > 1,
        )
    )
    _table(collectives, ("file", "format", "collective", "ranks", "rows", "times", "corrupt"))
    traced = [row for found in shown for row in class_rows(found.file, found.traces)]
    _table(traced, CLASS_HEADER)
    top = [row for found in shown for row in kernel_rows(found.file, found.traces)]
    _table(top[:MOST_SHOWN], KERNEL_HEADER)
    times = [row for found in shown for row in found.rows()]
    _table(times, ("file", "what", "by", "case", "median", "interval", "count", "flags"))
    _findings(shown, concluded)
    for found in shown:
        if found.hidden_times or found.hidden_findings:
            cli.note(
                f"{found.file}: {found.hidden_times} more times and {found.hidden_findings} more "
                f"findings are in the records"
            )


def _findings(shown: Sequence[Shown], concluded: Sequence[Conclusion]) -> None:
    """Print all findings: one below the other for a person, as rows for a program."""
    said: list[tuple[str, Conclusion | Finding]] = [(_place(one), one) for one in concluded]
    said += [(_where(one, found.file), one) for found in shown for one in found.findings]
    if not cli.is_terminal(sys.stdout):
        rows = [(at, one.name, one.sentence, one.next_action or "") for at, one in said]
        _table(rows, ("where", "finding", "what it says", "what to do"))
        return
    if said:
        print()
    for at, one in said:
        cli.print_finding(
            f"found {one.name} ({one.confidence}), {at}",
            one.sentence,
            f"next: {one.next_action}" if one.next_action else "",
        )


def formats() -> None:
    """Print every format with an example line of each of its grammars."""
    rows = [(known.name, line) for known in FORMATS for line in known.example]
    cli.print_rows(rows, ("format", "a line of it"))


def is_collective(measured: Measurement) -> bool:
    """Say whether several ranks took part."""
    return "in_place" in measured.dims or class_of(measured.part) in _COLLECTIVES


def _counted(shown: Sequence[Shown], others: Sequence[Measurement]) -> str:
    """Return how many times of what were read."""
    counts = Counter(one.op for one in others)
    for found in shown:
        for (op, ranks), times in found.times.items():
            counts[f"{op} on {ranks} ranks"] += times
    words = [
        f"{times:,} {'time' if times == 1 else 'times'} of {op}"
        for op, times in counts.items()
        if times
    ]
    return ", ".join(words[:4]) or "no time was read"


def _table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    if rows:
        print()
        cli.print_rows(rows, header)


def _interval(one: Measurement) -> str:
    if one.low_s is None or one.high_s is None:
        return ""
    return f"{units.seconds(one.low_s)} to {units.seconds(one.high_s)}"


def _place(conclusion: Conclusion) -> str:
    first = next(iter(conclusion.seen), None)
    if first is None:
        return ""
    return first.file if first.line is None else f"{first.file}:{first.line}"


def _where(finding: Finding, file: str) -> str:
    first = next(iter(finding.evidence), None)
    if first is None:
        return file
    return first.file if first.at is None else f"{first.file}:{first.at}"
