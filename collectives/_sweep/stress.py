"""The integrity stress: many sizes, many calls, random data, the bits of all ranks compared.

LL128 trusts that 128 bytes which one GPU stores are seen in order by another; on PCIe nothing
promises that, and a fault shows at some sizes and once in many calls. Each call takes normal random
numbers that no call before it had and gives a poisoned output. What is only moved must have the
bits that were sent. A sum may be no further from the exact one than rounding explains: n u sum |x|
for n ranks and u half a unit of the dtype; and where all ranks get the same, they must hold the
same bits. Those are compared as two sums of their words, exchanged through the store and not
through the protocol under test, once a size.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator

import torch

from collectives._sweep.backend import Store
from collectives._sweep.calls import Seat
from collectives._sweep.data import mismatches
from collectives._sweep.job import Job
from collectives._sweep.messages import Stressed
from collectives._sweep.points import PART_BYTES

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


_Compare = Callable[[torch.Tensor], torch.Tensor]


def sizes(job: Job) -> list[int]:
    """Return the bytes of each size: powers of two up to the largest point, odd ones between."""
    element = torch.empty((), dtype=getattr(torch, job.dtype)).element_size()
    most = max(task.point.size_bytes for task in job.tasks)
    powers = [2**p for p in range(most.bit_length()) if _FIRST_BYTES <= 2**p <= most]
    # A ring cuts a buffer into equal parts; what does not divide takes another way through it.
    between = [(power + power // 2) // element * element + element for power in powers]
    own = [task.point.size_bytes for task in job.tasks]
    found = {*powers, *own, *(size for size in between if size <= most)}
    multiple = PART_BYTES * job.ranks if job.collective.split else 1
    return sorted({size // multiple * multiple for size in found} - {0})


def run(seat: Seat, store: Store, step: Callable[[], None]) -> Iterator[Stressed]:
    """Yield what this rank found at each size."""
    collective = seat.job.collective
    for size in sizes(seat.job):
        sums: list[tuple[int, int]] = []
        off = 0
        for call in range(seat.job.stress_calls):
            output, wrong = _called(seat, size, call, step)
            off += wrong
            sums.append(digest(output))
        yield Stressed(
            rank=seat.rank,
            size_bytes=size,
            calls=len(sums),
            differing=_differing(seat, store, size, sums) if collective.alike else 0,
            off=off,
        )
        step()


def _called(seat: Seat, size: int, call: int, step: Callable[[], None]) -> tuple[torch.Tensor, int]:
    """Return the output of one call, and how many of its values are off."""
    collective, ranks = seat.job.collective, seat.job.ranks
    elements = size // seat.data.numbers.element_size()
    held = collective.input_elements(elements, ranks)
    drawn = (
        _drawn(seat, held, _SEED + (size * 1_000_003 + call) * ranks + r) for r in range(ranks)
    )
    compare, own = (
        _moved(seat, elements, drawn) if collective.redop == "none" else _summed(seat, drawn)
    )
    output = own.new_full((collective.output_elements(elements, ranks),), math.nan)
    step()
    seat.run(output, own)
    step()
    return output, int(compare(output).item())


def _drawn(seat: Seat, elements: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(seat.device)
    generator.manual_seed(seed)
    drawn = torch.randn(elements, generator=generator, device=seat.device)
    return drawn.to(seat.data.numbers.dtype)


def _moved(
    seat: Seat, elements: int, drawn: Iterable[torch.Tensor]
) -> tuple[_Compare, torch.Tensor]:
    """Return how to count other bits than those that were sent, and what this rank sends."""
    every = torch.stack([*drawn])
    right = seat.job.collective.expected(every, seat.rank, elements)

    def compare(output: torch.Tensor) -> torch.Tensor:
        parts = zip(output.view(len(right), -1), right, strict=True)
        return torch.stack([mismatches(part, expected) for part, expected in parts]).sum()

    return compare, every[seat.rank]


def _summed(seat: Seat, drawn: Iterable[torch.Tensor]) -> tuple[_Compare, torch.Tensor]:
    """Return how to count values further from the exact sum than rounding explains, and the own."""
    exact = absolute = torch.zeros((), dtype=torch.float64, device=seat.device)
    own = exact
    for rank, each in enumerate(drawn):
        exact, absolute = exact + each.double(), absolute + each.double().abs()
        own = each if rank == seat.rank else own
    unit, least = _HALF_UNITS[seat.job.dtype], _LEAST[seat.job.dtype]

    def compare(output: torch.Tensor) -> torch.Tensor:
        first = seat.rank * len(output) if len(output) < len(exact) else 0
        place = slice(first, first + len(output))
        allowed = seat.job.ranks * unit * (absolute[place] + least)
        away = (output.double() - exact[place]).abs()
        return (~(away <= allowed)).sum()  # NaN is no <=

    return compare, own


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
