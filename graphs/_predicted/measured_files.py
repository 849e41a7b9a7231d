"""What the files of --measured hold: points for components, and whole passes to compare with.

A file is records of ours (a file, or the folder of a run), else whatever `python -m ingest` reads.
What does not count is left out and said: what was predicted, timed on a CPU, warm in the cache,
of another GPU, of experts whose weights fit the L2, or of a baseline that does different work.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphs._predicted import points
from graphs._predicted.points import Point
from verifyscope import cli, environment, hardware, records
from verifyscope.errors import UsageError
from verifyscope.hardware import Gpu
from verifyscope.parts import class_of
from verifyscope.predictions import WHOLE
from verifyscope.privacy import redacted
from verifyscope.records import Environment, Measurement, Record

_RECORDS = b'{"type":"'
_NAMES_A_PASS = ("model", "tp", "rows", "context")


@dataclass(frozen=True, slots=True)
class Measured:
    """Points of single calls, and measured passes of a model's layers."""

    points: tuple[Point, ...] = ()
    passes: tuple[Measurement, ...] = ()


def read(paths: Sequence[Path], *, gpu: Gpu) -> Measured:
    """Return what counts for `gpu`; `UsageError` for a file in which nothing does."""
    found: list[Point] = []
    passes: list[Measurement] = []
    for path in paths:
        usable, left_out = _usable(_records(path), gpu)
        if left_out:
            words = ", ".join(f"{count:,} {why}" for why, count in left_out.items())
            cli.note(f"--measured {path}: left out: {words}")
        if not usable:
            raise UsageError(
                f"--measured {path} holds no time that counts for {gpu.name}; give records, a "
                f"sweep or tables of that GPU"
            )
        passes += [one for one in usable if is_pass(one)]
        others = (one for one in usable if not is_pass(one))
        found += points.measured(others, redacted(path.name))
    return Measured(tuple(found), tuple(passes))


def is_pass(one: Measurement) -> bool:
    """Say whether a record is the time of a whole pass of a model's layers."""
    return one.part == WHOLE and all(name in one.dims for name in _NAMES_A_PASS)


def _records(path: Path) -> Iterator[Record]:
    if path.is_dir() or _begins(path).startswith(_RECORDS):
        warnings: list[str] = []
        yield from records.read([path], warnings)
        for warning in warnings:
            cli.note(warning)
        return
    from ingest import reading  # here, because it loads numpy, which --help must not

    here = environment.current()
    yield here
    yield from reading.measurements(path, here)


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_RECORDS))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {(error.strerror or '').lower()}; give records or tables"
        ) from error


def _usable(found: Iterable[Record], gpu: Gpu) -> tuple[list[Measurement], Counter[str]]:
    """Return the measurements that count, and how many do not, by reason."""
    environments: dict[str, Environment] = {}
    usable: list[Measurement] = []
    left_out: Counter[str] = Counter()
    for one in found:
        if isinstance(one, Environment):
            environments[one.id] = one
        elif isinstance(one, Measurement) and one.source != "predicted":
            why = _why_not(one, gpu, environments.get(one.environment))
            if why is None:
                usable.append(one)
            else:
                left_out[why] += 1
    return usable, left_out


def _why_not(one: Measurement, gpu: Gpu, where: Environment | None) -> str | None:
    if one.median_s is None:
        return f"{one.status}"
    if "gloo" in (one.implementation, one.method.get("backend")):
        return "of a CPU"
    if one.source == "measured" and where is not None:
        if not where.gpus:
            return "of a CPU"
        known = hardware.match(where.gpus[0].name)
        if known is not None and known.name != gpu.name:
            return f"of {known.name}"
    told = one.dims.get("gpu")
    if told is not None and told != gpu.name:
        return f"of {told}"
    # Times of experts that include their choice do more work and not less: they stay.
    if one.kind == "baseline-different-work" and one.part != "routed_experts":
        return "of different work"
    return _why_warm(one, gpu)


def _why_warm(one: Measurement, gpu: Gpu) -> str | None:
    """Say why a time did not come from memory; an empty kernel and attention need not."""
    if one.part == "empty_kernel":
        return None
    if one.cache == "warm":
        return "warm in the cache"
    weights = class_of(one.part) in ("moe", "dense_gemm") and one.source == "imported"
    if weights and one.touched_bytes is not None and gpu.l2_bytes is not None:
        return "small enough for the L2" if one.touched_bytes <= gpu.l2_bytes else None
    return None
