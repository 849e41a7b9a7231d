"""Tiles and parts of the keys for `mla_verify` in Triton: a table a GPU, and the rule behind it.

With one request and 8 heads the number of SMs decides: 132 or 188 blocks each stream a part of the
latents, and DRAM is busy when each keeps enough bytes in flight: latency x bandwidth / SMs, or
0.7 us x 4.8 TB/s / 132 = 25 KB an SM on H200, 0.7 us x 1.8 TB/s / 188 = 7 KB on RTX PRO 6000. A
latent is 1152 bytes, in fp8 576. So, by reasoning and by what the compile gate says, for nobody
has timed them:
- Stages: with five, two tiles of latents lie in shared memory, and while one is multiplied the
  other is in flight: page ids are loaded two stages before the latents they lead to. Seven are
  three tiles. With three, Triton loads a tile only after it has finished the one before.
- Keys: 32, which is a piece of 8 scores for each of four warps; more warps compute pieces twice,
  but share the sums. 32 rows take 16 keys and seven stages: with 32 keys a thread of four warps
  would need more than 255 registers, and eight warps would leave no room for a second block.
- Rows: the sums are 512 float32 a row in registers; 64 rows take eight warps and all of these. On
  sm_90 they are multiplied by wgmma, on sm_100 in tensor memory. On GPUs of 99 KB the queries of
  64 rows (74 KB) would leave one tile of 16 keys and nothing in flight: there, more than 32 rows
  are several tiles, which run side by side and find each other's latents in L2.
- Blocks: two an SM where shared memory and registers let them: one multiplies, the other waits.
- fp8: each number is widened in registers, twice, in about 5 instructions, which costs more time
  than DRAM: so eight warps, and no tile of 64 rows, whose registers are full.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kernels._target import listed
from kernels.attention._split_plan import Plan, fill_once
from kernels.attention._tiles import Tile
from kernels.attention.mla_verify import Shape
from verifyscope.records import Mode

_SUM_BYTES = 4
Key = tuple[int, int]  # bytes of an element of the cache, rows


def _tile(rows: int, keys: int, *, warps: int, stages: int = 5, blocks: int = 1) -> Tile:
    return Tile(rows=rows, keys=keys, warps=warps, stages=stages, blocks_per_sm=blocks)


_FP8: Mapping[Key, Tile] = {
    (1, 16): _tile(16, 64, warps=8),
    (1, 32): _tile(32, 32, warps=8),
}
_SMALL: Mapping[Key, Tile] = {
    (2, 16): _tile(16, 32, warps=4),
    (2, 32): _tile(32, 16, warps=4, stages=7),
    **_FP8,
}
_LARGE: Mapping[Key, Tile] = {
    (2, 16): _tile(16, 32, warps=4, blocks=2),
    (2, 32): _tile(32, 16, warps=4, stages=7, blocks=2),
    (2, 64): _tile(64, 32, warps=8),
    **_FP8,
}
# Of sm_80 only one block fits, of any tile: eight warps, then, and 32 keys.
_A100: Mapping[Key, Tile] = {
    (2, 16): _tile(16, 32, warps=8),
    (2, 32): _tile(32, 32, warps=8),
    (2, 64): _tile(64, 32, warps=8),
    **_FP8,
}
# By capability; 89 stands for 86 too, which runs sm_80's code in as little shared memory.
TABLES: Mapping[int, Mapping[Key, Tile]] = MappingProxyType(
    {80: _A100, 89: _SMALL, 90: _LARGE, 100: _LARGE, 120: _SMALL}
)


def tile_for(*, rows: int, element_bytes: int, capability: int) -> Tile:
    """Return the smallest tile that holds `rows`, or the largest there is, which several share."""
    table = TABLES[listed(capability)]
    fitting = sorted(size for width, size in table if width == element_bytes)
    return table[element_bytes, next((size for size in fitting if rows <= size), fitting[-1])]


def plan_for(shape: Shape, mode: Mode, *, tile: Tile, element_bytes: int, sms: int) -> Plan:
    """Fill the SMs once, with parts that cost no more to merge than to read.

    A part of n keys reads n * (latent + rope) elements from DRAM; its sums are 4 * latent * rows,
    written and read once more, but through L2 at two to three times that speed: so they may be as
    many bytes as the keys, about 14 keys for 8 rows and 114 for 64.
    """
    form = shape.form(mode)
    a_key = (shape.latent + shape.rope) * element_bytes
    worth = -(-_SUM_BYTES * shape.latent * form.rows // a_key)
    return fill_once(
        form,
        tile=tile,
        requests=shape.requests,
        most_keys=shape.most_keys,
        least_keys=max(64, tile.keys, worth),
        sms=sms,
    )
