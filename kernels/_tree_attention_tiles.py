"""Tiles of the Triton kernel of `tree_attention`: one rule, and what it gives for each GPU.

By reasoning, for nobody has timed them:
- Bytes in flight hide DRAM's latency: 25 KB an SM on H200 (4.8 TB/s / 132 SMs x 0.7 us), 7 KB on
  RTX PRO 6000. Five stages keep two tiles of keys and values in flight: page ids are loaded two
  stages before the keys they lead to, and with three stages Triton issues the loads of a tile only
  after it has finished the one before. A tile is as large as shared memory lets it be, up to 128
  keys, so that all of these have 32 KB an SM in flight or more; an fp8 cache, of half the bytes,
  takes the same tiles, for it is widened in registers.
- Two blocks share an SM, so that one multiplies while the other waits, as long as each can have
  tiles of 32 keys; else one block has the SM, and eight warps if there are rows enough for them.
- Registers: four warps of two blocks may have 255 a thread, and so may eight of one.

What a block takes of shared memory: two tiles of keys and values; the queries, or later the result
in their place; the weights on their way from one product to the next. 64 rows on sm_90 and sm_100
are multiplied from shared memory: queries and result do not share a place, nor do their copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from verifyscope.hardware import RESERVED_SHARED_BYTES, SHARED_BYTES_PER_MULTIPROCESSOR

ROWS = (16, 32, 64)
HEAD_DIMS = (64, 128, 256)  # smaller ones take the first's
_STAGES, _IN_FLIGHT = 5, 2
_KEYS = (128, 64, 32, 16)
_LEAST_KEYS = {2: 32, 1: 16}  # by blocks an SM
_ELEMENT_BYTES = 2
_SCRATCH_BYTES = 3072  # maxima and sums on their way between warps, page ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Rows and keys of a tile, warps, pipeline stages, and the blocks an SM should hold."""

    rows: int
    keys: int
    warps: int
    stages: int
    blocks_per_sm: int

    @property
    def registers(self) -> int:
        """Return what a thread may have so that this many blocks share an SM's 65,536.

        Left alone, ptxas aims at more blocks than shared memory lets in, and spills for them.
        """
        return min(255, 65536 // (32 * self.warps * self.blocks_per_sm) // 8 * 8)


def tile_for(*, rows: int, head_dim: int, capability: int) -> Tile:
    """Return the tile of a GPU for this many packed rows; more than 64 take several tiles."""
    covering = next((one for one in ROWS if rows <= one), ROWS[-1])
    return table(_listed(capability))[max(HEAD_DIMS[0], head_dim), covering]


@cache
def table(capability: int) -> Mapping[tuple[int, int], Tile]:
    """Return the tiles of a GPU, one of `SHARED_BYTES_PER_MULTIPROCESSOR`, by head dim and rows."""
    return MappingProxyType(
        {(dim, rows): _chosen(rows, dim, capability) for dim in HEAD_DIMS for rows in ROWS}
    )


def _listed(capability: int) -> int:
    if capability == 86:  # it runs sm_80's code with sm_89's shared memory
        return 89
    return max(one for one in SHARED_BYTES_PER_MULTIPROCESSOR if one <= capability)


def _chosen(rows: int, head_dim: int, capability: int) -> Tile:
    for blocks, least_keys in _LEAST_KEYS.items():
        room = SHARED_BYTES_PER_MULTIPROCESSOR[capability] // blocks - RESERVED_SHARED_BYTES
        for keys in _KEYS:
            if keys >= least_keys and _shared_bytes(rows, keys, head_dim, capability) <= room:
                warps = 8 if blocks == 1 and rows > ROWS[0] else 4
                return Tile(rows=rows, keys=keys, warps=warps, stages=_STAGES, blocks_per_sm=blocks)
    raise ValueError(f"sm_{capability} has no room for {rows} rows of {head_dim}")


def _shared_bytes(rows: int, keys: int, head_dim: int, capability: int) -> int:
    copies = 3 if rows >= 64 and capability in (90, 100) else 1
    elements = _IN_FLIGHT * 2 * keys * head_dim + rows * (copies * head_dim + keys)
    return elements * _ELEMENT_BYTES + _SCRATCH_BYTES
