"""How the own kernels of `tree_attention` are launched: tiles by one rule, parts of the keys.

A tile is so many packed rows and keys at a time. The rule, by reasoning, for nobody has timed it:
- Bytes in flight hide DRAM's latency: 25 KB an SM on H200 (4.8 TB/s / 132 SMs x 0.7 us), 7 KB on
  RTX PRO 6000. So a tile has as many keys as shared memory and registers let it have, up to what
  each kernel can use: 32 KB an SM or more in flight, in CUDA C++ 16 KB where a block has 99 KB. An
  fp8 cache, of half the bytes, takes the same tiles, for it is widened in registers.
- Two blocks share an SM, so that one multiplies while the other waits, as long as each can have
  tiles of 32 keys; else one block has the SM, and eight warps if there are rows enough for them.
- Up to 64 rows are one tile; more take several, which run side by side and find the keys in L2.

Triton keeps two tiles of keys and values in flight in shared memory; the queries, or later the
result, lie beside them, and the weights on their way from one product to the next. 64 rows on sm_90
and sm_100 are multiplied from shared memory: queries and result do not share a place, nor do their
copies. CUDA C++ keeps the sums and the tile in flight in registers, 96 a thread at most, and in
shared memory queries, keys, values, scores, weights and a factor a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Literal

from kernels import Outputs, Prepared
from kernels._splits import sm_count
from kernels._target import capability, listed
from kernels.attention._split_plan import Plan, fill_once
from kernels.attention._tiles import Tile
from kernels.attention.tree_attention import Given, Shape
from verifyscope.hardware import RESERVED_SHARED_BYTES, SHARED_BYTES_PER_MULTIPROCESSOR
from verifyscope.records import Mode

Language = Literal["triton", "cuda"]

ROWS = (16, 32, 64)
HEAD_DIMS = (64, 128, 256)  # smaller ones take the first's
_KEYS: Mapping[Language, tuple[int, ...]] = MappingProxyType(
    {"triton": (128, 64, 32, 16), "cuda": (64, 32)}
)
_LEAST_KEYS = {2: 32, 1: 16}  # by blocks an SM
_MOST_KEPT = 96  # registers a thread of the CUDA kernel for sums and loads; 128 were seen to spill
# Page ids are loaded two stages before the keys they lead to, so five stages are two tiles in
# flight. With three, Triton issues the loads of a tile only after it has finished the one before.
_STAGES, _IN_FLIGHT = 5, 2
_ELEMENT_BYTES, _SUM_BYTES = 2, 4
_SCRATCH_BYTES = 3072  # of Triton's reductions between warps, and page ids


def tile_for(language: Language, *, rows: int, head_dim: int) -> Tile:
    """Return the tile for this many packed rows on the device that `kernels._target` names."""
    covering = next((one for one in ROWS if rows <= one), ROWS[-1])
    return table(language, listed(capability()))[max(HEAD_DIMS[0], head_dim), covering]


@cache
def table(language: Language, capability: int) -> Mapping[tuple[int, int], Tile]:
    """Return the tiles of a GPU, one of `SHARED_BYTES_PER_MULTIPROCESSOR`, by head dim and rows."""
    return MappingProxyType(
        {
            (head_dim, rows): _chosen(language, rows, head_dim, capability)
            for head_dim in HEAD_DIMS
            for rows in ROWS
        }
    )


def shared_bytes(tile: Tile, *, head_dim: int) -> int:
    """Return what the CUDA kernel takes for this tile."""
    wide = head_dim + 8  # rows start in different banks
    elements = (tile.rows + 2 * tile.keys) * wide + tile.rows * (tile.keys + 8)
    return _ELEMENT_BYTES * elements + _SUM_BYTES * tile.rows * (tile.keys + 4 + 16)


def _chosen(language: Language, rows: int, head_dim: int, capability: int) -> Tile:
    for blocks, least_keys in _LEAST_KEYS.items():
        room = SHARED_BYTES_PER_MULTIPROCESSOR[capability] // blocks - RESERVED_SHARED_BYTES
        warps = 8 if blocks == 1 and rows > ROWS[0] else 4
        for keys in _KEYS[language]:
            tile = Tile(
                rows=rows,
                keys=keys,
                warps=warps,
                blocks_per_sm=blocks,
                stages=_STAGES if language == "triton" else 1,
            )
            if keys >= least_keys and _fits(language, tile, head_dim, capability, room):
                return tile
    raise ValueError(f"sm_{capability} has no room for {rows} rows of {head_dim}")


def _fits(language: Language, tile: Tile, head_dim: int, capability: int, room: int) -> bool:
    if language == "cuda":
        kept = (tile.rows + tile.keys) * head_dim // (32 * tile.warps)
        return kept <= _MOST_KEPT and shared_bytes(tile, head_dim=head_dim) <= room
    copies = 3 if tile.rows >= 64 and capability in (90, 100) else 1
    elements = _IN_FLIGHT * 2 * tile.keys * head_dim + tile.rows * (copies * head_dim + tile.keys)
    return elements * _ELEMENT_BYTES + _SCRATCH_BYTES <= room


def plan_for(shape: Shape, mode: Mode, *, tile: Tile, sms: int) -> Plan:
    """Fill the SMs once, with parts that cost no more to merge than to read.

    A part of n keys reads 4 * n * head_dim bytes from DRAM; its sums are 4 * rows * head_dim,
    written and read once more, but through L2 at two to three times that speed: hence n >= rows.
    """
    form = shape.form(mode)
    return fill_once(
        form,
        tile=tile,
        requests=shape.requests,
        most_keys=shape.most_keys,
        least_keys=max(64, form.rows, tile.keys),
        sms=sms,
        key_heads=shape.kv_heads,
    )


def prepare(
    given: Given, mode: Mode, *, tile: Tile, attend: Callable[[Given, Plan], Outputs]
) -> Prepared:
    """Choose the parts by the shapes; a call is `attend` with the plan that came of it."""
    plan = plan_for(given.shape, mode, tile=tile, sms=sm_count(given.q.device))
    return plan.prepared(lambda: attend(given, plan))
