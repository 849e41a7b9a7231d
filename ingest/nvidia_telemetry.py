"""CSV of `nvidia-smi --query-gpu=... --format=csv -l 1`: medians a GPU over the whole file.

Columns are told by their names (`utilization.gpu [%]`, `power.draw [W]`, `clocks.sm [MHz]`, ...);
GPUs by index, else by bus id. Memory is bounded: a sample of each GPU's rows is kept.
`utilization.gpu` is itself an average over a sixth of a second to a second: rows closer together
repeat it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from ingest import gpu_findings
from ingest.conclusions import Conclusion, Seen
from ingest.facts import Read
from ingest.gpu_findings import MOST_GPUS, Gpu, Readings
from ingest.log import Log
from ingest.number import number
from ingest.reading_faults import Fault, findings_on
from ingest.series import Series

SHORTEST_INTERVAL_S = 1 / 6
_COLUMNS = {
    "utilization.gpu [%]": "use",
    "power.draw [w]": "power",
    "power.draw.instant [w]": "power",
    "power.draw.average [w]": "power",
    "power.limit [w]": "limit",
    "enforced.power.limit [w]": "limit",
    "clocks.current.sm [mhz]": "clock",
    "clocks.sm [mhz]": "clock",
    "clocks.current.graphics [mhz]": "clock",
}
_KEYS = ("index", "pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid")
_SIGN = re.compile(
    rb"^[^\n]*(?:utilization\.gpu \[%\]|power\.draw(?:\.\w+)? \[W\])[^\n]*$", re.MULTILINE
)
_TIME = re.compile(r"\d{4}/\d\d/\d\d (\d\d):(\d\d):(\d\d)\.(\d{3})")
_UNIT = re.compile(r"([\d.]{1,16}) ?(?:%|W|MHz|MiB)?")


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is such CSV, with its header."""
    return _SIGN.search(head) is not None


def read(log: Log) -> Iterator[Read]:
    """Yield the findings on the GPUs of the file."""
    reader = _Reader()
    for line, text in log.lines:
        reader.take(line, text)
    yield from gpu_findings.findings(reader.gpus(), log)
    unread = Fault.unread("telemetry rows", reader.unread, count=reader.unread_count)
    yield from findings_on([unread] if unread.count else [], log)
    for one in reader.too_often(log.file):
        yield one.finding(environment=log.environment, command=log.command)


@dataclass(slots=True)
class _One:
    line: int
    name: str | None
    rows: Series = field(default_factory=lambda: Series(columns=4))
    times: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    """Reads rows; `columns` is what the last header names."""

    columns: list[str] = field(default_factory=list)
    found: dict[str, _One] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)
    unread_count: int = 0

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        cells = [cell.strip() for cell in text.split(",")]
        lower = [cell.lower() for cell in cells]
        if any(cell in _COLUMNS for cell in lower):
            self.columns = lower
        elif self.columns and text.strip():
            if len(cells) != len(self.columns):
                self.unread_count += 1
                self.unread = [*self.unread, line][:10]
                return
            self._row(line, dict(zip(self.columns, cells, strict=True)))

    def _row(self, line: int, row: dict[str, str]) -> None:
        key = next((row[name] for name in _KEYS if name in row), "0")
        one = self.found.get(key)
        if one is None:
            if len(self.found) >= MOST_GPUS:
                return
            one = self.found[key] = _One(line, row.get("name"))
        values = {_COLUMNS[name]: _value(cell) for name, cell in row.items() if name in _COLUMNS}
        one.rows.add(
            *(values.get(name, float("nan")) for name in ("use", "power", "limit", "clock"))
        )
        stamp = _TIME.search(row.get("timestamp", ""))
        if stamp and len(one.times) < 1000:
            hours, minutes, seconds, thousandths = (int(part) for part in stamp.groups())
            one.times.append(hours * 3600 + minutes * 60 + seconds + thousandths / 1000)

    def gpus(self) -> list[Gpu]:
        """Return each GPU with the medians of its readings."""
        found = []
        for at, (key, one) in enumerate(self.found.items()):
            use, power, limit, clock = (_median(one.rows.column(column)) for column in range(4))
            readings = Readings(
                use=use, power_w=power, limit_w=limit, clock_mhz=clock, count=one.rows.count
            )
            index = int(key) if re.fullmatch(r"\d{1,4}", key) else at
            found.append(Gpu(index=index, line=one.line, name=one.name, readings=readings))
        return found

    def too_often(self, file: str) -> Iterator[Conclusion]:
        """Say where rows are closer together than what they average over."""
        for one in list(self.found.values())[:1]:
            gaps = [b - a for a, b in zip(one.times, one.times[1:], strict=False) if b > a]
            if len(gaps) >= 5 and median(gaps) < SHORTEST_INTERVAL_S:
                yield Conclusion(
                    name="interval-too-small",
                    sentence=f"a row every {median(gaps) * 1e3:.0f} ms: utilization is itself an "
                    f"average "
                    f"over at least a sixth of a second, so rows repeat each other",
                    seen=(Seen(file, one.line, f"{median(gaps) * 1e3:.0f} ms between rows"),),
                    next_action="sample once in 200 ms or more, and longer",
                    verdict=False,
                )


def _value(cell: str) -> float:
    found = _UNIT.fullmatch(cell)
    value = number(found[1]) if found else None
    return float("nan") if value is None else value


def _median(values: list[float]) -> float | None:
    known = [value for value in values if value == value]
    return median(known) if known else None
