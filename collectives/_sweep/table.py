"""A combination in the words of nccl-tests, line by line, so that readers of its output read ours.

Bytes, elements, microseconds, GB/s (10**9 bytes a second). The time is the isolated eager one: the
median over the samples of all starts, each the slowest rank's. `N/A` stands for what has no time.
Host names are not printed: ranks are on `node`, or on `node0` and so on.
"""

import importlib.metadata
from collections.abc import Iterator, Sequence

from collectives._sweep.backend import Backend
from collectives._sweep.collective import Collective
from collectives._sweep.combination import Combination
from collectives._sweep.journal import Device, ProbeDone
from collectives._sweep.points import Point
from collectives._sweep.spec import Spec
from collectives._sweep.state import Row
from verifyscope import bandwidth

TYPE_NAMES = {
    "bfloat16": "bfloat16",
    "float16": "half",
    "float32": "float",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
NOT_RUN = ("N/A", "N/A", "N/A", "N/A")

_COLUMNS = (
    "#                                                              out-of-place"
    "                       in-place          ",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
    "     time   algbw   busbw  #wrong ",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
    "     (us)  (GB/s)  (GB/s)         ",
)


class Table:
    """Makes the lines of one sweep's combinations."""

    def __init__(self, spec: Spec, *, backend: Backend, collective: Collective) -> None:
        self.spec, self.backend, self.collective = spec, backend, collective
        self.test = f"{collective.name}_perf"

    def header(self, combination: Combination, probe: ProbeDone) -> Iterator[str]:
        """Yield the lines before the rows."""
        spec = self.spec
        sizes = [point.size_bytes for point in spec.points]
        library = self._library(probe.loaded_version)
        name, _, words = combination.label.partition(" ")
        named = f' combination="{words}"' if words else ""
        yield f"# verifyscope version {version()} backend={name}{named} {library}"
        yield f"# Collective test starting: {self.test}"
        yield (
            f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: 2(factor) "
            f"warmup iters: {spec.warmup} iters: {spec.iterations * spec.starts} agg iters: 1 "
            f"validation: 1 graph: 0"
        )
        for line in _model_lines(spec.points):
            yield f"# {line}"
        yield "# time: median over calls and starts of the slowest rank's; every call is checked"
        yield "#"
        yield "# Using devices"
        for device in probe.devices:
            node = f"node{device.node}" if spec.nodes > 1 else "node"
            yield (
                f"#  Rank {device.rank:2d} Group  0 Pid {device.pid:6d} on {node:>8} "
                f"device {device.device:2d} [{device.bus}] {device.name}"
            )
        yield "#"
        yield from _COLUMNS

    def _library(self, version_text: str) -> str:
        """Return NCCL's version as the number that nccl-tests prints, or the torch of gloo."""
        if not self.backend.on_device:
            return f"torch={version_text}"
        parts = [*version_text.partition("+")[0].split("."), "0", "0"][:3]
        numbers = [int(part) if part.isdigit() else 0 for part in parts]
        return f"nccl-library={numbers[0] * 10000 + numbers[1] * 100 + numbers[2]}"

    def rows(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield a line for each size that has a time or wrong values in one direction."""
        by_size: dict[int, dict[bool, Row]] = {}
        for row in rows:
            if row.timing.depth == 1 and row.timing.launch == "eager":
                by_size.setdefault(row.point.size_bytes, {})[row.point.in_place] = row
        for pair in by_size.values():
            if any(row.status == "ok" or row.wrong for row in pair.values()):
                yield self.row(pair.get(False), pair.get(True))

    def row(self, out_of_place: Row | None, in_place: Row | None) -> str:
        """Return one line: a size in both directions; None is a direction that was not run."""
        either = out_of_place or in_place
        if either is None:
            raise ValueError("a row has at least one direction")
        point = either.point
        head = (
            f"{point.size_bytes:12d}  {self.count(point):12d}  {TYPE_NAMES[self.spec.dtype]:>8}"
            f"  {self.collective.redop:>6}  {-1:6d}"
        )
        cells = (self._cells(out_of_place), self._cells(in_place))
        return head + "".join(f"  {t:>7}  {a:>6}  {b:>6}  {w:>6}" for t, a, b, w in cells)

    def count(self, point: Point) -> int:
        """Return the elements that nccl-tests counts: those of one rank's part."""
        return self.collective.counted(point.elements, self.spec.ranks)

    def _cells(self, row: Row | None) -> tuple[str, str, str, str]:
        if row is None:
            return NOT_RUN
        figures = self.measured(row)
        if figures is None:
            return ("N/A", "N/A", "N/A", str(row.wrong) if row.wrong else "N/A")
        seconds, algorithm, bus = figures
        return (_microseconds(seconds * 1e6), f"{algorithm:.2f}", f"{bus:.2f}", "0")

    def measured(self, row: Row) -> tuple[float, float, float] | None:
        """Return the median in seconds, and both bandwidths in GB/s; None without a time."""
        summary = row.summary
        if summary is None:
            return None
        seconds = summary.median
        algorithm = bandwidth.algorithm_bandwidth(row.point.size_bytes, seconds) / 1e9
        factor = bandwidth.bus_factor(self.collective.name, self.spec.ranks)
        if factor is None:
            raise ValueError(f"no bus factor for {self.collective.name} in verifyscope/bandwidth")
        return seconds, algorithm, algorithm * factor

    def footer(self, rows: Sequence[Row], *, concluded: bool) -> Iterator[str]:
        """Yield the lines after the rows: the sum of wrong values, and the mean of all busbw."""
        plain = [row for row in rows if row.timing.depth == 1 and row.timing.launch == "eager"]
        wrong = sum(row.wrong for row in rows)
        yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
        yield f"# Avg bus bandwidth    : {self.average(plain):g} "
        yield "#"
        if concluded:
            yield f"# Collective test concluded: {self.test}"

    def average(self, rows: Sequence[Row]) -> float:
        """Return the mean bus bandwidth in GB/s of what was measured right; 0 where none was."""
        found = [figures[2] for row in rows if (figures := self.measured(row)) is not None]
        return sum(found) / len(found) if found else 0.0


def version() -> str:
    """Return the version of this project, or "unknown" where it is not installed."""
    try:
        return importlib.metadata.version("verifyscope")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def device_of(device: Device) -> dict[str, object]:
    """Return a device with the keys of the JSON."""
    return {
        "rank": device.rank,
        "device": device.device,
        "bus": device.bus,
        "name": device.name,
    }


def _model_lines(points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        if point.tokens is not None and not point.in_place:
            plural = "" if point.tokens == 1 else "s"
            yield f"{point.size_bytes} B is {point.tokens} token{plural} of {point.model}"


def _microseconds(value: float) -> str:
    """Return seven characters at most, with as many decimals as nccl-tests prints."""
    decimals = 2 if value < 9999.995 else 1 if value < 99999.95 else 0
    return f"{value:.{decimals}f}"
