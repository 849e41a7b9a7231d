"""Tables by load of benchmark scripts: `conc  no_mtp  mtp3` and a row of numbers a load.

The first column is requests (conc, bs, ...), context (ctx, ...) or bytes. What the others hold is
told by their names (`_us`, `_ms`, `_tok_s`), else by a line above that names one unit (tok/s);
without either the table is not read. A column is called by its name without the unit. `mtp3`, `k3`
or `spec3` is 3 drafted tokens; `no_mtp`, `plain` none.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from ingest.benchmark_runs import PLAIN
from ingest.facts import Column
from ingest.number import NUMBER

AXES = {
    "conc": "requests",
    "concurrency": "requests",
    "bs": "requests",
    "batch": "requests",
    "batch_size": "requests",
    "requests": "requests",
    "ctx": "context",
    "context": "context",
    "ctx_len": "context",
    "bytes": "bytes",
}
SIGN = re.compile(
    rb"^[# \t]*(?:"
    + b"|".join(name.encode() for name in AXES)
    + rb")(?:[ \t]+[A-Za-z][\w.+-]*)+[ \t]*\r?$",
    re.MULTILINE,
)
_HEADER = re.compile(rf"[#\s]*({'|'.join(AXES)})((?:\s+[A-Za-z][\w.+-]{{0,40}}){{1,12}})\s*")
_ROW = re.compile(rf"\s*(\d{{1,12}})((?:\s+{NUMBER})+)\s*")
_UNITS: tuple[tuple[str, Literal["s", "tok/s"], float], ...] = (
    ("_us", "s", 1e-6),
    ("_ms", "s", 1e-3),
    ("_s", "s", 1.0),
    ("_tok_s", "tok/s", 1.0),
    ("_tps", "tok/s", 1.0),
)
_DRAFTED = re.compile(r"(?:mtp|spec|k|draft)[_=-]?(\d{1,2})$", re.IGNORECASE)
_K = re.compile(r"\bk\s?=\s?(\d{1,2})\b")
_LINES_ABOVE = 4
_MOST_ROWS = 1000
_MOST_TABLES = 64


@dataclass(slots=True)
class _Open:
    line: int
    axis: str
    names: list[str]
    unit: Literal["s", "tok/s"] | None
    drafted: int | None
    rows: dict[int, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Reader:
    """Reads a log line by line; `columns` holds what it found after `end`."""

    columns: list[Column] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    unread_count: int = 0
    about: str = ""
    _above: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_ABOVE))
    _open: _Open | None = None

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if len(text) > 300:
            self.end()
            return
        header = _HEADER.fullmatch(text)
        if header is not None and len(self.columns) < _MOST_TABLES:
            self.end()
            above = " ".join(self._above)
            k = _K.search(above)
            self._open = _Open(
                line,
                AXES[header[1]],
                header[2].split(),
                "tok/s" if re.search(r"\btok(?:ens)?/s\b", above) else None,
                int(k[1]) if k else None,
            )
            self.about = above
        elif self._open is not None:
            self._row(line, text, self._open)
        self._above.append(text)

    def end(self) -> None:
        """Close the table that is open."""
        table, self._open = self._open, None
        if table is None or not table.rows:
            return
        for at, name in enumerate(table.names):
            suffix, unit = next(
                ((end, (u, s)) for end, u, s in _UNITS if name.endswith(end) and name != end),
                ("", None),
            )
            name = name.removesuffix(suffix)
            if unit is None and table.unit is not None:
                unit = (table.unit, 1.0)
            if unit is None:
                self._miss(table.line)
                continue
            drafted = _DRAFTED.search(name)
            plain = PLAIN.search(name.replace("_", " ")) is not None or name.endswith("mtp0")
            self.columns.append(
                Column(
                    line=table.line,
                    name=name,
                    axis=table.axis,
                    unit=unit[0],
                    values={load: row[at] * unit[1] for load, row in table.rows.items()},
                    plain=plain,
                    drafted=0 if plain else int(drafted[1]) if drafted else table.drafted,
                )
            )

    def _row(self, line: int, text: str, table: _Open) -> None:
        row = _ROW.fullmatch(text)
        values = [float(value) for value in row[2].split()] if row else []
        if row and len(values) == len(table.names) and int(row[1]) and all(values):
            if len(table.rows) < _MOST_ROWS:
                table.rows[int(row[1])] = values
            return
        if row or re.match(r"\s*\d+\s", text):
            self._miss(line)
        else:
            self.end()

    def _miss(self, line: int) -> None:
        self.unread_count += 1
        self.unread = [*self.unread, line][:10]
