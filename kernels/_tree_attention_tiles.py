"""Tiles of the Triton kernel of `tree_attention`: one rule, and what it gives for each GPU.

By reasoning, for nobody has timed them:
- Bytes in flight hide DRAM's latency: about 25 KB an SM on H200 (4.8 TB/s, 132 SMs, 0.7 us), 7 KB
  on RTX PRO 6000. Five stages keep two tiles of keys and values in flight: page ids are loaded two
  stages before the keys they lead to, and with three stages Triton issues the loads of a tile only
  after it has finished the one before. So a tile is as large as shared memory lets it be, up to
  128 keys: more would only cost registers.
- Two blocks share an SM, so that one multiplies while the other waits, as long as each can have
  tiles of 32 keys; else one block has the SM, and eight warps to keep it busy.
- Registers: four warps of two blocks may have 255 each, and eight of one.

What a block takes: two tiles of keys and values; the queries or the result, which lie there one
after the other, and the weights on their way from one product to the next; 64 rows on sm_90 and
sm_100 are multiplied from shared memory and need both at once. An fp8 tile is widened through
shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from verifyscope.hardware import RESERVED_SHARED_BYTES, SHARED_BYTES_PER_MULTIPROCESSOR

ROWS = (16, 32, 64)
HEAD_DIMS = (64, 128, 256)  # smaller ones take the first's
CACHE_BYTES = (2, 1)
_STAGES, _IN_FLIGHT = 5, 2
_KEYS = (128, 64, 32, 16)
_LEAST_KEYS_OF_TWO = 32
_ELEMENT_BYTES = 2  # of queries and weights
_SCRATCH_BYTES = 3072  # maxima and sums on their way between warps


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


def tile_for(*, rows: int, head_dim: int, cache_bytes: int, capability: int) -> Tile:
    """Return the tile of a GPU for this many packed rows; more than 64 take several tiles."""
    least = next((one for one in ROWS if rows <= one), ROWS[-1])
    return table(_listed(capability))[max(HEAD_DIMS[0], head_dim), least, cache_bytes]


@cache
def table(capability: int) -> Mapping[tuple[int, int, int], Tile]:
    """Return the tiles of a GPU by head dim, rows and bytes of a cache's element."""
    return MappingProxyType(
        {
            (dim, rows, size): _chosen(rows, dim, size, capability)
            for dim in HEAD_DIMS
            for rows in ROWS
            for size in CACHE_BYTES
        }
    )


def _listed(capability: int) -> int:
    if capability == 86:  # it runs sm_80's code with sm_89's shared memory
        return 89
    return max(one for one in SHARED_BYTES_PER_MULTIPROCESSOR if one <= capability)


def _chosen(rows: int, head_dim: int, cache_bytes: int, capability: int) -> Tile:
    for blocks in (2, 1):
        room = SHARED_BYTES_PER_MULTIPROCESSOR[capability] // blocks - RESERVED_SHARED_BYTES
        for keys in _KEYS:
            fits = _shared_bytes(rows, keys, head_dim, cache_bytes, capability) <= room
            if fits and keys >= (_LEAST_KEYS_OF_TWO if blocks == 2 else 16):
                warps = 8 if blocks == 1 and rows > ROWS[0] else 4
                return Tile(
                    rows=rows, keys=keys, warps=warps, stages=_STAGES, blocks_per_sm=blocks
                )
    raise ValueError(f"sm_{capability} has no room for {rows} rows of {head_dim}")


def _shared_bytes(
    rows: int, keys: int, head_dim: int, cache_bytes: int, capability: int
) -> int:
    in_flight = _IN_FLIGHT * 2 * keys * head_dim * cache_bytes
    from_shared = rows >= 64 and capability in (90, 100)
    of_rows = _ELEMENT_BYTES * rows * (head_dim * (2 if from_shared else 1) + keys)
    widened = _ELEMENT_BYTES * keys * head_dim if cache_bytes == 1 else 0
    return in_flight + of_rows + widened + _SCRATCH_BYTES
