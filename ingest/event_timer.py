"""Event-timer tables: a label's time on the GPU beside its time on the host.

    label   n   gpu_total   gpu_avg   cpu_total   cpu_avg        milliseconds, averages an iteration

Labels nest: a label's time is part of another's, and they are never added up.
"""

import re
from dataclasses import dataclass, field

from ingest.facts import Timer
from ingest.number import NUMBER

SIGNS = (b"gpu_avg",)
_MOST_LABELS = 1000

_HEADER = re.compile(r"\blabel\s+n\s+gpu_total\s+gpu_avg\s+cpu_total\s+cpu_avg\s*$")
_ROW = re.compile(
    rf"(?P<label>[A-Za-z_][\w./:-]{{0,80}})\s+(?P<n>\d{{1,9}})\s+(?P<gpu_total>{NUMBER})\s+"
    rf"(?P<gpu>{NUMBER})\s+(?P<host_total>{NUMBER})\s+(?P<host>{NUMBER})\s*$"
)
AGREES_WITHIN = 0.02


@dataclass(slots=True)
class Reader:
    """Reads a log line by line; `timers` holds what it found, each label's last row."""

    timers: dict[str, Timer] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)
    unread_count: int = 0
    _inside: bool = False

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if "gpu_avg" in text:
            self._inside = _HEADER.search(text) is not None
            return
        if not self._inside:
            return
        found = _ROW.search(text)
        if found is None:
            if text.strip() and re.search(r"\d\s*$", text):
                self._miss(line)
            self._inside = bool(text.strip())
            return
        self._row(line, found)

    def _row(self, line: int, found: re.Match[str]) -> None:
        n = int(found["n"])
        pairs = (("gpu_total", "gpu"), ("host_total", "host"))
        # Three digits after the point: a total of 0.2 over 50 calls is 0.004 each.
        if n and all(
            abs(float(found[total]) - n * float(found[each]))
            <= AGREES_WITHIN * float(found[total]) + 0.0005 * n + 0.05
            for total, each in pairs
        ):
            if len(self.timers) < _MOST_LABELS or found["label"] in self.timers:
                self.timers[found["label"]] = Timer(
                    line=line,
                    label=found["label"],
                    iterations=n,
                    gpu_s=float(found["gpu"]) * 1e-3,
                    host_s=float(found["host"]) * 1e-3,
                )
        else:
            self._miss(line)

    def _miss(self, line: int) -> None:
        self.unread_count += 1
        self.unread = [*self.unread, line][:10]
