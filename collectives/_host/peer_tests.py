"""What is tried on the GPUs of a machine: links under load, writes into each other, rates.

`run` says each result as soon as it is known, and before each step which one it is, so that a step
that never comes back can be named. What touches a GPU is behind `Gpus`; this is what is done with
it:

1. Each link while idle, then while a copy from the host runs over it; the copies are timed.
2. Writes from each GPU into the memory of each other one that the driver lets it reach, by the copy
   engine and by a kernel's stores: the target was poisoned, and is compared there, bit by bit.
3. The rates of pairs that passed: alone, in both ways at once, as a ring over all GPUs, and all to
   all, each compared again afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Protocol

from collectives._host.facts import Access, Check, HostCopy, Link, Rate, Together, Visible, Way

# One row of Kimi-K2.5, four of them, what is far below and far above them: 8 x words.
SIZES_BYTES = (4096, 14_336, 57_344, 2**20, 2**26)
ROUNDS = 3
WAYS: tuple[Way, ...] = ("copy engine", "kernel")
RATE_BYTES = 2**27
SAMPLES = 5
_Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is tried next; `writes` are the pairs that it is about."""

    name: str
    writes: tuple[_Pair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Differed:
    """Words of 8 bytes that did not arrive: still as they were before, or something else."""

    lost: int
    wrong: int


Message = Step | Visible | Link | HostCopy | Access | Check | Rate
Say = Callable[[Message], None]


class Gpus(Protocol):
    """GPUs by their place, counted from 0; `numbers` are NVML's numbers of them."""

    numbers: tuple[int, ...]

    def link(self, gpu: int) -> tuple[int | None, int | None]:
        """Return generation and width of a link as they are now."""
        ...

    def link_under_load(self, gpu: int) -> tuple[int | None, int | None] | None:
        """Return the same, read while a copy surely ran; None where none outlasted the reading."""
        ...

    def host_copy(self, gpu: int, *, to_gpu: bool, size_bytes: int) -> float:
        """Return the seconds of a copy between pinned memory of the host and a GPU."""
        ...

    def can_reach(self, writer: int, target: int) -> bool:
        """Say whether CUDA lets `writer` reach the memory of `target`."""
        ...

    def write(self, writer: int, target: int, *, way: Way, size_bytes: int, seed: int) -> Differed:
        """Poison memory of `target`, write into it from `writer`, and compare it there."""
        ...

    def write_together(self, writes: Sequence[_Pair], *, size_bytes: int) -> tuple[float, Differed]:
        """Return the seconds until all writes that ran at once had arrived, and compare them."""
        ...


def run(gpus: Gpus, say: Say) -> None:
    """Try all of it, and say what came of each step."""
    say(Visible(gpus.numbers))
    places = range(len(gpus.numbers))
    for place in places:
        _links(gpus, place, say)
    reachable = [pair for pair in permutations(places, 2) if _reaches(gpus, pair, say)]
    right = [pair for pair in reachable if _right(gpus, pair, say)]
    for kind, writes in _together(len(places), right):
        _rate(gpus, kind, writes, say)


def _links(gpus: Gpus, place: int, say: Say) -> None:
    number = gpus.numbers[place]
    say(Step(name=f"the link of GPU {number}"))
    generation, width = gpus.link(place)
    say(Link(gpu=number, loaded=False, generation=generation, width=width))
    loaded = gpus.link_under_load(place)
    if loaded is not None:
        say(Link(gpu=number, loaded=True, generation=loaded[0], width=loaded[1]))
    for to_gpu in (True, False):
        seconds = [
            gpus.host_copy(place, to_gpu=to_gpu, size_bytes=RATE_BYTES) for _ in range(SAMPLES)
        ]
        say(HostCopy(gpu=number, to_gpu=to_gpu, size_bytes=RATE_BYTES, seconds=tuple(seconds)))


def _reaches(gpus: Gpus, pair: _Pair, say: Say) -> bool:
    able = gpus.can_reach(*pair)
    writer, target = _named(gpus, pair)
    say(Access(writer=writer, target=target, able=able))
    return able


def _right(gpus: Gpus, pair: _Pair, say: Say) -> bool:
    """Write in each way, each size, each round; say whether all of it arrived."""
    writer, target = _named(gpus, pair)
    right = True
    for way in WAYS:
        say(Step(name=f"writes from GPU {writer} to {target}, {way}", writes=((writer, target),)))
        differed = [
            gpus.write(*pair, way=way, size_bytes=size, seed=1 + at * ROUNDS + turn)
            for at, size in enumerate(SIZES_BYTES)
            for turn in range(ROUNDS)
        ]
        check = Check(
            writer=writer,
            target=target,
            way=way,
            size_bytes=SIZES_BYTES,
            words=ROUNDS * sum(SIZES_BYTES) // 8,
            lost=sum(one.lost for one in differed),
            wrong=sum(one.wrong for one in differed),
        )
        say(check)
        right = right and check.right
    return right


def _together(count: int, right: Sequence[_Pair]) -> Iterator[tuple[Together, tuple[_Pair, ...]]]:
    """Yield what is timed: only pairs that passed, and what all take part in only if all did."""
    passed = set(right)
    for pair in right:
        yield "alone", (pair,)
    for first, second in right:
        if first < second and (second, first) in passed:
            yield "both ways", ((first, second), (second, first))
    if count < 3:
        return
    ring = tuple((place, (place + 1) % count) for place in range(count))
    if passed.issuperset(ring):
        yield "ring", ring
    if len(passed) == count * (count - 1):
        yield "all to all", tuple(right)


def _rate(gpus: Gpus, kind: Together, writes: tuple[_Pair, ...], say: Say) -> None:
    named = tuple(_named(gpus, pair) for pair in writes)
    say(Step(name=_what(kind, named), writes=named))
    size = RATE_BYTES if len(writes) <= len(gpus.numbers) else RATE_BYTES // 8
    samples, wrong = [], 0
    for _ in range(SAMPLES):
        seconds, differed = gpus.write_together(writes, size_bytes=size)
        samples.append(seconds)
        wrong += differed.lost + differed.wrong
    say(Rate(kind=kind, writes=named, size_bytes=size, seconds=tuple(samples), wrong=wrong))


def _what(kind: Together, named: Sequence[_Pair]) -> str:
    if kind in ("alone", "both ways"):
        return f"the rate from GPU {named[0][0]} to {named[0][1]}, {kind}"
    return f"the rate of all GPUs at once, {kind}"


def _named(gpus: Gpus, pair: _Pair) -> _Pair:
    return gpus.numbers[pair[0]], gpus.numbers[pair[1]]
