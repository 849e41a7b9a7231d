"""What machine code consists of: instruction classes, and what the main loop does a loaded byte.

An unpacked weight costs instructions: those of the main loop over the bytes that it loads say how
many. A thread that loads 16 bytes of bfloat16 feeds them to tensor cores as they are; of int4 it
makes 32 numbers of them first. The main loop is the one, of those without a loop inside, whose
loads bring most bytes from global memory, of registers (LDG) or shared memory (LDGSTS). All of its
instructions count, whatever they are for: addresses, barriers, products, and loads of what is no
weight. A loop that loads in bulk (UBLKCP, UTMALDG) has no count: its bytes are not in the code.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

# What an implementation may declare, as it stands in a disassembly. Matrix products are HMMA, IMMA,
# QMMA, ... a warp, HGMMA, ... a warpgroup (sm_90) and UTCHMMA, ... in tensor memory (sm_100); wide
# loads bring 16 bytes or more a thread to a register, to shared memory (LDGSTS), or go in bulk.
INSTRUCTIONS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "tensor_core": re.compile(r"\b(?:[HIBDQO]MMA|[HIBQ]GMMA|UTC[A-Z]?MMA)\b"),
        "wide_load": re.compile(
            r"\b(?:(?:LDG|LDGSTS)\.[A-Z0-9_.]*\b(?:128|256)\b|UBLKCP\b|UTMALDG\b)"
        ),
    }
)

_LOAD = re.compile(r"\b(?:LDG|LDGSTS)\.([A-Z0-9_.]+)")
_IN_BULK = re.compile(r"\b(?:UBLKCP|UTMALDG)\b")
_BRANCH = re.compile(r"\bBRA(?:\.[A-Z]+)*\b.*?0x([0-9a-f]+)")
_NARROW = {"U8": 1, "S8": 1, "U16": 2, "S16": 2}
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction and its address in bytes."""

    address: int
    text: str


@dataclass(frozen=True, slots=True)
class Loop:
    """A turn of a loop: its instructions, and the bytes that a thread loads from global memory."""

    instructions: int
    loaded_bytes: int


def classes(code: Sequence[Instruction]) -> tuple[str, ...]:
    """Return which of `INSTRUCTIONS` occur in `code`."""
    return tuple(
        name
        for name, pattern in INSTRUCTIONS.items()
        if any(pattern.search(one.text) for one in code)
    )


def main_loop(code: Sequence[Instruction]) -> Loop | None:
    """Return the loop that loads most; None if none loads, or if one loads in bulk."""
    found = []
    for first, last in _innermost(code):
        body = [one.text for one in code if first <= one.address <= last]
        if any(_IN_BULK.search(text) for text in body):
            return None
        found.append(Loop(instructions=len(body), loaded_bytes=sum(map(_loaded_bytes, body))))
    most = max(found, key=lambda loop: loop.loaded_bytes, default=None)
    return most if most is not None and most.loaded_bytes else None


def _innermost(code: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last address of each loop that has no loop inside."""
    loops = []
    for one in code:
        branch = _BRANCH.search(one.text)
        # A branch to itself only fills the end of a kernel.
        if branch and int(branch[1], 16) < one.address:
            loops.append((int(branch[1], 16), one.address))
    for first, last in loops:
        if not any((first, last) != other and _within(other, (first, last)) for other in loops):
            yield first, last


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _loaded_bytes(text: str) -> int:
    load = _LOAD.search(text)
    if load is None:
        return 0
    marks = load[1].split(".")
    bits = [int(mark) for mark in marks if mark in ("64", "128", "256")]
    if bits:
        return bits[0] // 8
    return next((_NARROW[mark] for mark in marks if mark in _NARROW), _WORD_BYTES)
