"""How many blocks of a kernel a multiprocessor holds at once, and how often a grid fills a GPU.

    blocks    = min over what runs out first: registers, shared memory, warps, blocks
    occupancy = blocks x warps of a block / warps that a multiprocessor can hold
    waves     = blocks of the grid / (multiprocessors x blocks)

Registers are allotted a warp at a time, in units of 256, out of the quarter of them that each of
four partitions has. Shared memory is rounded up to 128 bytes, with the 1,024 that CUDA keeps of
each block. Named barriers and clusters are not looked at. This is theory, of the compiled kernel
and the architecture: how much of it is reached, only a GPU shows.

Source: the CUDA programming guide's table of capabilities; held to NVIDIA's cuda_occupancy.h by
tests/test_occupancy.py.
"""

from dataclasses import dataclass
from typing import Literal

from verifyscope.hardware import (
    BLOCKS_PER_MULTIPROCESSOR,
    REGISTERS_PER_MULTIPROCESSOR,
    RESERVED_SHARED_BYTES,
    SHARED_BYTES_PER_MULTIPROCESSOR,
    WARPS_PER_MULTIPROCESSOR,
)

Limit = Literal["registers", "shared", "warps", "blocks"]

_WARP = 32
_PARTITIONS = 4
_REGISTER_UNIT = 256  # of a warp
_MOST_REGISTERS = 255  # of a thread
_SHARED_UNIT_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Blocks that a multiprocessor holds, their share of its warps, and what runs out first.

    No block at all means that the kernel cannot be launched. Of several that run out together,
    `limited_by` is the first of warps, blocks, shared, registers.
    """

    blocks: int
    share: float
    limited_by: Limit


def occupancy(*, capability: int, registers: int, shared_bytes: int, threads: int) -> Occupancy:
    """Return the occupancy of a kernel: registers a thread, shared bytes and threads a block.

    KeyError for a capability that `verifyscope.hardware` does not list, ValueError for a block of
    no thread.
    """
    if threads < 1:
        raise ValueError(f"a block has {threads} threads: give at least 1")
    warps = -(-threads // _WARP)
    most_warps = WARPS_PER_MULTIPROCESSOR[capability]
    limits: dict[Limit, int] = {
        "warps": most_warps // warps,
        "blocks": BLOCKS_PER_MULTIPROCESSOR[capability],
        "shared": _by_shared(shared_bytes, capability=capability),
        "registers": _by_registers(registers, warps=warps),
    }
    limited_by = min(limits, key=lambda name: limits[name])
    blocks = limits[limited_by]
    return Occupancy(blocks=blocks, share=blocks * warps / most_warps, limited_by=limited_by)


def most_registers(*, warps: int, blocks: int) -> int:
    """Return the registers a thread may have so that `blocks` of these warps share them.

    Left alone, ptxas aims at more blocks than shared memory lets in, and spills for them.
    """
    of_a_warp = REGISTERS_PER_MULTIPROCESSOR // (warps * blocks) // _REGISTER_UNIT * _REGISTER_UNIT
    return min(_MOST_REGISTERS, of_a_warp // _WARP)


def waves(*, grid_blocks: int, blocks: int, multiprocessors: int) -> float | None:
    """Return how many times a grid fills the GPU; None for a kernel that cannot be launched."""
    return grid_blocks / (blocks * multiprocessors) if blocks else None


def _by_registers(registers: int, *, warps: int) -> int:
    a_warp = _rounded_up(registers * _WARP, _REGISTER_UNIT)
    # A launch is refused as if each partition took a whole number of the block's warps.
    if a_warp * _rounded_up(warps, _PARTITIONS) > REGISTERS_PER_MULTIPROCESSOR:
        return 0
    in_a_partition = REGISTERS_PER_MULTIPROCESSOR // _PARTITIONS // max(a_warp, 1)
    return in_a_partition * _PARTITIONS // warps


def _by_shared(shared_bytes: int, *, capability: int) -> int:
    a_block = _rounded_up(shared_bytes + RESERVED_SHARED_BYTES, _SHARED_UNIT_BYTES)
    return SHARED_BYTES_PER_MULTIPROCESSOR[capability] // a_block


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
