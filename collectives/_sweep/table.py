"""The sweep in the words of nccl-tests, line by line, so that readers of its output read ours.

Bytes, elements, microseconds, GB/s (10**9 bytes a second). The time is the median over iterations
of the slowest rank's. `N/A` stands for what was not run, and for the time of a row whose values are
wrong. Host names are not printed: every rank is on `node`.
"""

import importlib.metadata
from collections.abc import Iterator, Sequence

from collectives._sweep.launch import Group, Result
from collectives._sweep.messages import Joined
from collectives._sweep.plan import Job, Point
from verifyscope import bandwidth

TYPE_NAMES = {"bfloat16": "bfloat16", "float16": "half", "float32": "float"}
NOT_RUN = ("N/A", "N/A", "N/A", "N/A")

_COLUMNS = (
    "#                                                              out-of-place"
    "                       in-place          ",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
    "     time   algbw   busbw  #wrong ",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
    "     (us)  (GB/s)  (GB/s)         ",
)


def test_name(job: Job) -> str:
    """Return the name that nccl-tests has for this test."""
    return f"{job.collective.name}_perf"


def version() -> str:
    """Return the version of this project, or "unknown" where it is not installed."""
    try:
        return importlib.metadata.version("verifyscope")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def header(job: Job, group: Group) -> Iterator[str]:
    """Yield the lines before the rows."""
    sizes = [point.size_bytes for point in job.points]
    first = group.ranks[0]
    library = _library(job, first.library_version)
    yield f"# verifyscope version {version()} backend={job.backend} {library}"
    yield f"# Collective test starting: {test_name(job)}"
    yield (
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: 2(factor) "
        f"warmup iters: {job.warmup} iters: {job.iterations} agg iters: 1 validation: 1 graph: 0"
    )
    for line in _model_lines(job.points):
        yield f"# {line}"
    yield "# time: median over iterations of the slowest rank's; every call is checked"
    yield "#"
    yield "# Using devices"
    for rank in group.ranks:
        yield (
            f"#  Rank {rank.rank:2d} Group  0 Pid {rank.pid:6d} on {'node':>8} "
            f"device {rank.device:2d} [{rank.bus}] {rank.name}"
        )
    yield "#"
    yield from _COLUMNS


def _library(job: Job, version: str) -> str:
    """Return NCCL's version as the number that nccl-tests prints, or the torch that gloo is in."""
    if job.backend != "nccl":
        return f"torch={version}"
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return f"nccl-library={major * 10000 + minor * 100 + patch}"


def _model_lines(points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        if point.tokens is not None and not point.in_place:
            plural = "" if point.tokens == 1 else "s"
            yield f"{point.size_bytes} B is {point.tokens} token{plural} of {point.model}"


def row(job: Job, out_of_place: Result | None, in_place: Result | None) -> str:
    """Return one line: a size in both directions; None is a direction that was not run."""
    either = out_of_place or in_place
    if either is None:
        raise ValueError("a row has at least one direction")
    point = either.point
    head = (
        f"{point.size_bytes:12d}  {point.elements:12d}  {TYPE_NAMES[job.dtype]:>8}"
        f"  {job.collective.redop:>6}  {-1:6d}"
    )
    cells = (_cells(job, out_of_place), _cells(job, in_place))
    return head + "".join(f"  {t:>7}  {a:>6}  {b:>6}  {w:>6}" for t, a, b, w in cells)


def _cells(job: Job, result: Result | None) -> tuple[str, str, str, str]:
    if result is None:
        return NOT_RUN
    if result.wrong:
        return ("N/A", "N/A", "N/A", str(result.wrong))
    seconds, algorithm, bus = measured(job, result)
    return (_microseconds(seconds * 1e6), f"{algorithm:.2f}", f"{bus:.2f}", "0")


def measured(job: Job, result: Result) -> tuple[float, float, float]:
    """Return the median in seconds, and both bandwidths in GB/s."""
    seconds = result.summary.median
    algorithm = bandwidth.algorithm_bandwidth(result.point.size_bytes, seconds) / 1e9
    factor = bandwidth.bus_factor(job.collective.name, job.ranks)
    if factor is None:
        raise ValueError(f"no bus factor for {job.collective.name} in verifyscope/bandwidth.py")
    return seconds, algorithm, algorithm * factor


def _microseconds(value: float) -> str:
    """Return seven characters at most, with as many decimals as nccl-tests prints."""
    decimals = 2 if value < 9999.995 else 1 if value < 99999.95 else 0
    return f"{value:.{decimals}f}"


def footer(job: Job, results: Sequence[Result], *, concluded: bool) -> Iterator[str]:
    """Yield the lines after the rows: the sum of wrong values, and the mean of all busbw."""
    wrong = sum(result.wrong for result in results)
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {average(job, results):g} "
    yield "#"
    if concluded:
        yield f"# Collective test concluded: {test_name(job)}"


def average(job: Job, results: Sequence[Result]) -> float:
    """Return the mean bus bandwidth in GB/s of what was measured right; 0 where nothing was."""
    found = [measured(job, result)[2] for result in results if not result.wrong]
    return sum(found) / len(found) if found else 0.0


def as_json(
    job: Job, group: Group | None, results: Sequence[Result], *, problem: str | None
) -> dict[str, object]:
    """Return the table with the keys of nccl-tests -J: times in us, bandwidths in GB/s."""
    pairs: dict[int, dict[bool, Result]] = {}
    for result in results:
        pairs.setdefault(result.point.size_bytes, {})[result.point.in_place] = result
    return {
        "version": version(),
        "config": {
            "test": test_name(job),
            "backend": job.backend,
            "ranks": job.ranks,
            "warmup_iters": job.warmup,
            "iters": job.iterations,
        },
        "devices": [] if group is None else [_device_json(rank) for rank in group.ranks],
        "results": [_row_json(job, pair) for pair in pairs.values()],
        "out_of_bounds": sum(result.wrong for result in results),
        "average_bus_bandwidth": average(job, results),
        "errors": [] if problem is None else [problem],
    }


def _device_json(rank: Joined) -> dict[str, object]:
    return {"rank": rank.rank, "device": rank.device, "bus": rank.bus, "name": rank.name}


def _row_json(job: Job, pair: dict[bool, Result]) -> dict[str, object]:
    point = next(iter(pair.values())).point
    return {
        "size": point.size_bytes,
        "count": point.elements,
        "type": TYPE_NAMES[job.dtype],
        "redop": job.collective.redop,
        "root": -1,
        "out_of_place": _direction_json(job, pair.get(False)),
        "in_place": _direction_json(job, pair.get(True)),
    }


def _direction_json(job: Job, result: Result | None) -> dict[str, object] | None:
    if result is None:
        return None
    if result.wrong:
        return {"time": None, "alg_bw": None, "bus_bw": None, "nwrong": result.wrong}
    seconds, algorithm, bus = measured(job, result)
    return {"time": seconds * 1e6, "alg_bw": algorithm, "bus_bw": bus, "nwrong": 0}
