"""size = tokens x hidden x bytes of the dtype, and powers of two: what a sweep measures, in order.

Sizes are bytes of the buffer that one rank reduces; each is a whole number of elements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from collectives._sweep.collective import Collective
from verifyscope.errors import UsageError
from verifyscope.models import find_model

DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"bfloat16": 2, "float16": 2, "float32": 4})
BACKENDS = ("gloo", "nccl")
# Sums of whole numbers stay exact in bfloat16 (8 bits) up to 256.
MOST_RANKS = 256

DEFAULT_MODEL = "kimi-k2.5"
DEFAULT_TOKENS = (1, 2, 4, 8, 16)
# CPU processes are slow and say nothing about a link: only the sizes of a verify pass by default.
DEFAULT_RANGE: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"gloo": (8 * 2**10, 2**20), "nccl": (2**10, 64 * 2**20)}
)
DEFAULT_ITERATIONS: Mapping[str, int] = MappingProxyType({"gloo": 10, "nccl": 20})


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size in one direction; `tokens` and `model` where the size comes from a model."""

    size_bytes: int
    elements: int
    in_place: bool
    tokens: int | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all ranks do. `timeout_s` is the longest time in which no rank gets any further."""

    collective: Collective
    backend: str
    ranks: int
    dtype: str
    points: tuple[Point, ...]
    iterations: int
    warmup: int
    timeout_s: float

    @property
    def calls(self) -> int:
        """Return how often each rank calls the collective, warm-up included."""
        return len(self.points) * (self.iterations + self.warmup)


def points(
    *,
    backend: str,
    dtype: str,
    model: str | None,
    tokens: Sequence[int] | None,
    min_bytes: int | None,
    max_bytes: int | None,
) -> tuple[Point, ...]:
    """Return the points by ascending size, out of place before in place.

    With a model, its sizes; with a bound, the powers of two; with both, both; with neither the
    default of each.
    """
    ranged = min_bytes is not None or max_bytes is not None
    if tokens is not None and model is None:
        raise UsageError("--tokens needs --model, whose hidden size makes bytes of them")
    if model is None and not ranged:
        model, ranged = DEFAULT_MODEL, True
    by_size: dict[int, tuple[int | None, str | None]] = {}
    if ranged:
        for size in _powers_of_two(backend, dtype, min_bytes, max_bytes):
            by_size[size] = (None, None)
    if model is not None:
        known = find_model(model)
        for count in tokens or DEFAULT_TOKENS:
            by_size[count * known.hidden * DTYPE_BYTES[dtype]] = (count, known.name)
    return tuple(
        Point(
            size_bytes=size,
            elements=size // DTYPE_BYTES[dtype],
            in_place=in_place,
            tokens=by_size[size][0],
            model=by_size[size][1],
        )
        for size in sorted(by_size)
        for in_place in (False, True)
    )


def _powers_of_two(
    backend: str, dtype: str, min_bytes: int | None, max_bytes: int | None
) -> list[int]:
    default_min, default_max = DEFAULT_RANGE[backend]
    low = min_bytes if min_bytes is not None else min(default_min, max_bytes or default_min)
    high = max_bytes if max_bytes is not None else max(default_max, low)
    if low > high:
        raise UsageError(f"--min-bytes {low} is above --max-bytes {high}; give the smaller first")
    if low < DTYPE_BYTES[dtype]:
        raise UsageError(
            f"--min-bytes {low} holds no element of {dtype}; give {DTYPE_BYTES[dtype]} or more"
        )
    found = [2**power for power in range(high.bit_length()) if low <= 2**power <= high]
    if not found:
        raise UsageError(
            f"no power of two lies between --min-bytes {low} and --max-bytes {high}; widen them, "
            f"or give --model and --tokens for other sizes"
        )
    return found
