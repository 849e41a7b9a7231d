"""Tiles and parts of the keys for `mla_verify` in Triton: a table a GPU, and the rule behind it.

With one request and 8 heads the number of SMs decides: 132 or 188 blocks each stream a part of the
latents, and DRAM is busy when each keeps enough bytes in flight: latency x bandwidth / SMs (Little),
0.7 us x 4.8 TB/s / 132 = 25 KB an SM on H200, 0.7 us x 1.8 TB/s / 188 = 7 KB on RTX PRO 6000. A
key is 1152 bytes (576 in fp8), of which a tile of 32 is 36 KB. So, by reasoning and by what the
compile gate says, for nobody has timed them:
- Stages: five are two tiles of latents in shared memory, one multiplied and one in flight, and both
  in flight while a block waits: page ids are loaded two stages before the latents they lead to. Nine
  would be four; seven are three. With three Triton loads a tile only after it has finished the last.
- Keys: 32, which gives each of four warps one 8-column piece of the scores; more warps would
  compute pieces twice. Half of that where the queries leave no room for two tiles of 32, then three.
- Rows: the sums are rows x 512 float32 in registers, 64 of them a thread of four warps for 16 rows;
  64 rows take eight warps and all 255 registers. On sm_90 64 rows go through wgmma, on sm_100
  through tensor memory, where four warps would not even hold the scores. On GPUs of 99 KB, 64 rows
  of queries (74 KB) would leave one tile of 16 keys and nothing in flight: there more than 32 rows
  are several tiles, which run side by side and find each other's latents in L2.
- Blocks: two an SM where shared memory and registers let them: one multiplies while the other waits.
- fp8: half the bytes a key, but each is widened in registers, twice, by about 5 instructions: that
  and not DRAM is what two warps an SM's quarter would wait for. So 64 keys and eight warps where
  one block has the SM, and no tile of 64 rows, whose registers are full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernels._forms import Form
from kernels._splits import split_count
from kernels._tiles import Tile
from kernels.mla_verify import Shape
from verifyscope.records import Mode

_FP8_BYTES = 1
_SUM_BYTES = 4
Key = tuple[int, int]  # bytes of an element of the cache, rows


def _tile(rows: int, keys: int, *, warps: int, stages: int = 5, blocks: int = 1) -> Tile:
    return Tile(rows=rows, keys=keys, warps=warps, stages=stages, blocks_per_sm=blocks)


_FP8_ALONE: Mapping[Key, Tile] = {
    (1, 16): _tile(16, 64, warps=8),
    (1, 32): _tile(32, 32, warps=8),
}
_FP8_TWO: Mapping[Key, Tile] = {
    (1, 16): _tile(16, 32, warps=4, blocks=2),
    (1, 32): _tile(32, 32, warps=8),
}
# 89 stands for 86 as well: sm_80's code with its own shared memory.
TABLES: Mapping[int, Mapping[Key, Tile]] = MappingProxyType(
    {
        80: {
            (2, 16): _tile(16, 32, warps=8),
            (2, 32): _tile(32, 32, warps=8),
            (2, 64): _tile(64, 32, warps=8),
            **_FP8_ALONE,
        },
        89: {
            (2, 16): _tile(16, 32, warps=4),
            (2, 32): _tile(32, 16, warps=4, stages=7),
            **_FP8_ALONE,
        },
        90: {
            (2, 16): _tile(16, 32, warps=4, blocks=2),
            (2, 32): _tile(32, 32, warps=4, blocks=2),
            (2, 64): _tile(64, 32, warps=8),
            **_FP8_TWO,
        },
        100: {
            (2, 16): _tile(16, 32, warps=4, blocks=2),
            (2, 32): _tile(32, 32, warps=8),
            (2, 64): _tile(64, 32, warps=8),
            **_FP8_TWO,
        },
        120: {
            (2, 16): _tile(16, 32, warps=4),
            (2, 32): _tile(32, 16, warps=4, stages=7),
            **_FP8_ALONE,
        },
    }
)


def tile_for(*, rows: int, element_bytes: int, capability: int) -> Tile:
    """Return the smallest tile that holds `rows`, or the largest there is, which several share."""
    table = TABLES[_listed(capability)]
    fitting = sorted(size for width, size in table if width == element_bytes)
    return table[element_bytes, next((size for size in fitting if rows <= size), fitting[-1])]


def _listed(capability: int) -> int:
    return 89 if capability == 86 else max(one for one in TABLES if one <= capability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a call is launched: form, tile, parts of the keys, and the least keys of a part."""

    form: Form
    tile: Tile
    splits: int
    least_keys: int

    @property
    def blocks(self) -> int:
        """Return the blocks that one part of one request's keys takes."""
        return -(-self.form.rows // self.tile.rows) * self.form.units


def plan_for(shape: Shape, mode: Mode, *, tile: Tile, element_bytes: int, sms: int) -> Plan:
    """Fill the SMs once, with parts that cost no more to merge than to read.

    A part of n keys reads n * (latent + rope) elements from DRAM; its sums are 4 * latent * rows,
    written and read once more, but through L2 at two to three times that speed: so they may be as
    many bytes as the keys, about 14 keys for 8 rows and 114 for 64.
    """
    form = shape.form(mode)
    a_key = (shape.latent + shape.rope) * element_bytes
    worth = -(-_SUM_BYTES * shape.latent * form.rows // a_key)
    once = Plan(form=form, tile=tile, splits=1, least_keys=max(64, tile.keys, worth))
    if not form.split:
        return once
    splits = split_count(
        blocks=shape.requests * once.blocks,
        most_keys=shape.most_keys,
        least_keys=once.least_keys,
        slots=sms * tile.blocks_per_sm,
    )
    return Plan(form=form, tile=tile, splits=splits, least_keys=once.least_keys)
