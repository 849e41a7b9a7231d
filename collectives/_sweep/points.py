"""size = tokens x hidden x bytes of the dtype, and powers of two: what a sweep measures, in order.

Sizes are bytes as nccl-tests counts them: of the buffer that one rank reduces, and of all ranks'
parts together where each has a part. Each is a whole number of elements. A part is a multiple of
PART_BYTES: a size that is no multiple of all parts is rounded down, as nccl-tests rounds it, and is
then no longer that of a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from verifyscope.errors import UsageError
from verifyscope.models import find_model

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}
)
# Up to here whole numbers and their sums stay exact: 8 bits of bfloat16, 4 and 3 of float8.
MOST_EXACT: Mapping[str, int] = MappingProxyType(
    {"bfloat16": 256, "float16": 256, "float32": 256, "float8_e4m3fn": 16, "float8_e5m2": 8}
)
MOST_RANKS = 256
PART_BYTES = 16

DEFAULT_MODEL = "kimi-k2.5"
DEFAULT_TOKENS = (1, 2, 4, 8, 16)
# CPU processes are slow and say nothing about a link: only the sizes of a verify pass by default.
DEFAULT_RANGE: Mapping[bool, tuple[int, int]] = MappingProxyType(
    {False: (8 * 2**10, 2**20), True: (2**10, 64 * 2**20)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size in one direction; `tokens` and `model` where the size comes from a model."""

    size_bytes: int
    elements: int
    in_place: bool
    tokens: int | None = None
    model: str | None = None


def points(
    *,
    on_device: bool,
    dtype: str,
    model: str | None,
    tokens: Sequence[int] | None,
    min_bytes: int | None,
    max_bytes: int | None,
    parts: int = 1,
    in_place: bool = True,
) -> tuple[Point, ...]:
    """Return the points by ascending size, out of place before in place.

    on_device: GPUs are measured, not CPU processes. With a model, its sizes; with a bound, the
    powers of two; with both, both; with neither the default of each. parts: into how many a size
    is cut. in_place: whether there is that direction.
    """
    ranged = min_bytes is not None or max_bytes is not None
    if tokens is not None and model is None:
        raise UsageError("--rows needs --model, whose hidden size makes bytes of them")
    if model is None and not ranged:
        model, ranged = DEFAULT_MODEL, True
    by_size: dict[int, tuple[int | None, str | None]] = {}
    if ranged:
        for size in _powers_of_two(on_device, dtype, min_bytes, max_bytes):
            by_size[size] = (None, None)
    if model is not None:
        known = find_model(model)
        for count in tokens or DEFAULT_TOKENS:
            by_size[count * known.hidden * DTYPE_BYTES[dtype]] = (count, known.name)
    if parts > 1:
        by_size = _rounded(by_size, parts * PART_BYTES)
    return tuple(
        Point(
            size_bytes=size,
            elements=size // DTYPE_BYTES[dtype],
            in_place=direction,
            tokens=by_size[size][0],
            model=by_size[size][1],
        )
        for size in sorted(by_size)
        for direction in ((False, True) if in_place else (False,))
    )


def _rounded(
    by_size: Mapping[int, tuple[int | None, str | None]], multiple: int
) -> dict[int, tuple[int | None, str | None]]:
    found: dict[int, tuple[int | None, str | None]] = {}
    for size, origin in by_size.items():
        if size % multiple == 0:
            found[size] = origin
        elif size > multiple:
            found.setdefault(size // multiple * multiple, (None, None))
    if not found:
        raise UsageError(
            f"no size holds a part for each rank, {multiple} B for all; give a larger --max-bytes"
        )
    return found


def _powers_of_two(
    on_device: bool, dtype: str, min_bytes: int | None, max_bytes: int | None
) -> list[int]:
    default_min, default_max = DEFAULT_RANGE[on_device]
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


def calls_in_a_pass(model: str | None) -> int:
    """Return the all-reduces of a verify pass: two a layer."""
    return 2 * find_model(model or DEFAULT_MODEL).layers
