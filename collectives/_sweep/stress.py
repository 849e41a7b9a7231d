"""The integrity stress: many sizes, many calls, random data, the bits of all ranks compared.

LL128 trusts that 128 bytes which one GPU stores are seen in order by another; on PCIe nothing
promises that, and a fault shows at some sizes and once in many calls. Each call sums normal random
numbers that no call before it had into a poisoned output. All ranks must hold the same bits, and no
value may be further from the exact sum than rounding explains: n u sum |x| for n ranks and u half a
unit of the dtype. Bits are compared as two sums of their words, exchanged through the store and
not through the protocol under test, once a size.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from collectives._sweep.calls import Seat
from collectives._sweep.job import Job
from collectives._sweep.messages import Stressed

_SEED = 20_261_130
_FIRST_BYTES = 8
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
# Half a unit in the last place of a number around 1.
_HALF_UNITS = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float32": 2.0**-24,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
# Below this a value has fewer bits: the smallest normal number of the dtype.
_LEAST = {
    "bfloat16": 2.0**-126,
    "float16": 2.0**-14,
    "float32": 2.0**-126,
    "float8_e4m3fn": 2.0**-6,
    "float8_e5m2": 2.0**-14,
}


class Store(Protocol):
    """Where ranks leave words for each other."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


def sizes(job: Job) -> list[int]:
    """Return the bytes of each size: powers of two up to the largest point, odd ones between."""
    element = torch.empty((), dtype=getattr(torch, job.dtype)).element_size()
    most = max(task.point.size_bytes for task in job.tasks)
    powers = [2**p for p in range(most.bit_length()) if _FIRST_BYTES <= 2**p <= most]
    # A ring cuts a buffer into equal parts; what does not divide takes another way through it.
    between = [(power + power // 2) // element * element + element for power in powers]
    own = [task.point.size_bytes for task in job.tasks]
    return sorted({*powers, *own, *(size for size in between if size <= most)})


def run(seat: Seat, store: Store, step: Callable[[], None]) -> Iterator[Stressed]:
    """Yield what this rank found at each size."""
    for size in sizes(seat.job):
        sums: list[tuple[int, int]] = []
        off = 0
        for call in range(seat.job.stress_calls):
            output, allowed, exact = _called(seat, size, call, step)
            away = (output.double() - exact).abs()
            off += int((~(away <= allowed)).sum().item())  # NaN is no <=
            sums.append(digest(output))
        yield Stressed(
            rank=seat.rank,
            size_bytes=size,
            calls=len(sums),
            differing=_differing(seat, store, size, sums),
            off=off,
        )
        step()


def _called(
    seat: Seat, size: int, call: int, step: Callable[[], None]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output of one call, how far off a value may be, and the exact sum."""
    job = seat.job
    dtype = seat.data.numbers.dtype
    elements = size // seat.data.numbers.element_size()
    exact = torch.zeros(elements, dtype=torch.float64, device=seat.device)
    absolute = torch.zeros_like(exact)
    own = torch.empty(elements, dtype=dtype, device=seat.device)
    for rank in range(job.ranks):
        generator = torch.Generator(seat.device)
        generator.manual_seed(_SEED + (size * 1_000_003 + call) * job.ranks + rank)
        drawn = torch.randn(elements, generator=generator, device=seat.device).to(dtype)
        exact += drawn.double()
        absolute += drawn.double().abs()
        if rank == seat.rank:
            own = drawn
    output = torch.full_like(own, math.nan)
    step()
    seat.run(output, own)
    step()
    unit = _HALF_UNITS[job.dtype]
    return output, job.ranks * (unit * absolute + unit * _LEAST[job.dtype]), exact


def digest(output: torch.Tensor) -> tuple[int, int]:
    """Return two sums of the bits: as they are, and each word times an odd number of its own."""
    words = output.view(_WORDS[output.element_size()]).to(torch.int64)
    places = torch.arange(len(words), dtype=torch.int64, device=words.device)
    return int(words.sum().item()), int((words * (2 * places + 1)).sum().item())


def _differing(seat: Seat, store: Store, size: int, sums: list[tuple[int, int]]) -> int:
    """Return in how many calls this rank's bits are not those of rank 0."""
    name = f"stress-{size}"
    if seat.rank == 0:
        store.set(name, json.dumps(sums))
        return 0
    first = json.loads(store.get(name))
    return sum(tuple(theirs) != ours for theirs, ours in zip(first, sums, strict=True))
