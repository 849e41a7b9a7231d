"""Builds a report from given records, and reads its tables back."""

import re
from collections.abc import Sequence
from pathlib import Path

from reports import _page
from reports._collected import collect
from tests.report_sample import write
from verifyscope.records import Record, Samples

Row = dict[str, str]


class Page:
    """Builds reports in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = ""

    def of(self, lines: Sequence[Record], samples: Sequence[Samples] = ()) -> "Page":
        """Build a report without plots, and keep its text."""
        path = write(self.folder / "run" / "records.jsonl", lines)
        if samples:
            write(path.with_name("samples.jsonl"), samples)
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        _page.write(collect([path]), out, command="python -m reports.build run", plots=False)
        self.text = (out / "report.md").read_text()
        return self

    def rows(self, after: str, *, number: int = 0) -> list[Row]:
        """Return the rows of a table behind the words `after`, each by its column's header."""
        behind = self.text[self.text.index(after) :]
        tables = re.findall(r"(?:^\|.*\n)+", behind, re.MULTILINE)
        header, _, *lines = (_split(line) for line in tables[number].splitlines())
        return [dict(zip(header, line, strict=True)) for line in lines]

    def row(self, after: str, first: str, *, number: int = 0) -> Row:
        """Return the row whose first cell is `first`."""
        found = [
            row for row in self.rows(after, number=number) if next(iter(row.values())) == first
        ]
        assert len(found) == 1, (first, found)
        return found[0]


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
