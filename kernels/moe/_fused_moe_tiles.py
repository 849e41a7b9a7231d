"""Tiles for `fused_moe` in Triton: a table a GPU and format, and the rules that make a plan of one.

A block keeps a tile of weights or two in flight while it multiplies one. DRAM is busy when an SM
keeps latency x bandwidth / SMs in flight: 0.7 us x 4.8 TB/s / 132 = 25 KB on H200, 13 KB on A100,
7 KB on RTX PRO 6000. Unpacking must keep up with it: of int4 an SM gets 64 GB/s x 2 weights on
H200, for which its 4 x 32 lanes have 3.5 instructions a weight, on B200 2.5, on RTX PRO 6000 20. So,
by reasoning and by what the compile gate says, for nobody has timed them:
- int4: 32 rows of the first product are 3.2 instructions a weight, 64 rows 2.7, for x is taken
  apart once for more of them. So 64 on sm_90 and sm_100, where the SMs are filled all the same.
- fp8 unpacks one weight a byte, bfloat16 nothing: 16 rows make more, and shorter, programs of the
  same number of bytes. fp8 has 32 where two blocks of them fit.
- A step is 512 columns of the first product, 128 of the second, whose columns are few. A row of a
  step is 64 bytes or more then, and all models' sizes are whole steps, but for I of 96 and 192.
- Two blocks an SM, or three of four warps: one starts, which waits for ids, then for weights, while
  the others stream. On GPUs of 100 KB an SM that leaves each 49 KB (33 KB): fewer stages, and a
  tile for more than 8 tokens, whose x takes twice the space, has one less still.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernels._target import listed
from kernels.moe._align_layout import capacity_of
from kernels.moe._experts_triton import ROWS
from kernels.moe._paths import Path
from kernels.moe.fused_moe import Shape

_PART_BYTES = 65_536  # of weights; a part that reads less saves less than its sums and launch cost
_WAVES = 4  # of programs of the second product: few enough to start, enough to even out


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """What a block takes at a step, its warps, and the stages of its loop.

    rows, columns: of weights. Of the first product a warp has all rows and its share of the
    columns, of the second all columns and its share of the rows. full_stages: those for more than
    8 tokens. blocks: those that an SM should hold.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    full_stages: int
    blocks: int

    @property
    def registers(self) -> int:
        """Return what a thread may have so that this many blocks share an SM's 65,536."""
        return min(255, 65_536 // (32 * self.warps * self.blocks) // 8 * 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tiles of the first product, the widest first, and of the second."""

    gate_up: tuple[Tile, ...]
    down: Tile


def _gate_up(rows: int, stages: int, full_stages: int) -> Tile:
    return Tile(
        rows=rows, columns=512, warps=8, stages=stages, full_stages=full_stages, blocks=2
    )


def _down(rows: int, stages: int, *, blocks: int = 2) -> Tile:
    return Tile(
        rows=4 * rows, columns=128, warps=4, stages=stages, full_stages=stages, blocks=blocks
    )


_SMALL: Mapping[str, Tiles] = {
    "bf16": Tiles(gate_up=(_gate_up(16, 3, 2),), down=_down(16, 3)),
    "fp8": Tiles(gate_up=(_gate_up(16, 3, 2),), down=_down(32, 3)),
    "int4": Tiles(gate_up=(_gate_up(32, 3, 2),), down=_down(32, 3, blocks=3)),
}
_A100: Mapping[str, Tiles] = {
    "bf16": Tiles(gate_up=(_gate_up(16, 4, 3),), down=_down(16, 4)),
    "fp8": Tiles(gate_up=(_gate_up(32, 4, 3),), down=_down(32, 4)),
    "int4": Tiles(gate_up=(_gate_up(32, 5, 4),), down=_down(32, 4, blocks=3)),
}
_LARGE: Mapping[str, Tiles] = {
    "bf16": Tiles(gate_up=(_gate_up(16, 5, 4),), down=_down(16, 5)),
    "fp8": Tiles(gate_up=(_gate_up(32, 4, 3),), down=_down(32, 5)),
    "int4": Tiles(
        gate_up=(_gate_up(64, 4, 3), _gate_up(32, 5, 4)), down=_down(32, 5, blocks=3)
    ),
}
# By capability; 89 stands for 86 too, which runs sm_80's code in as little shared memory.
TABLES: Mapping[int, Mapping[str, Tiles]] = MappingProxyType(
    {80: _A100, 89: _SMALL, 90: _LARGE, 100: _LARGE, 120: _SMALL}
)
# The shared expert's weights are bfloat16 whatever the others': as many rows as bfloat16 has.
SHARED_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a call is launched.

    units: choices, or blocks of sorted ones. parts: of the first product's columns, in the grid.
    each: neighbouring tiles of the second product that a program computes.
    """

    path: Path
    gate_up: Tile
    down: Tile
    units: int
    parts: int
    each: int

    @property
    def launches(self) -> int:
        """Return how many kernels wait for one another."""
        return 3 + (self.path == "sorted") + (self.parts > 1)


def plan_for(shape: Shape, path: Path, *, tiles: Tiles, expert_bytes: int, sms: int) -> Plan:
    """Choose by the shapes, as if routing were uniform: what is chosen is not known to the host."""
    units = shape.choices
    active = distinct_of(shape)
    if path == "sorted":
        units = capacity_of(slots=units, experts=shape.experts, block=ROWS) // ROWS
        active = min(active + shape.choices // ROWS, units)

    def programs(tile: Tile) -> int:
        return active * (2 * shape.intermediate // tile.rows)

    gate_up = next((one for one in tiles.gate_up if programs(one) >= sms), tiles.gate_up[-1])
    a_program = 2 * expert_bytes // 3 * gate_up.rows // (2 * shape.intermediate)
    steps = -(-shape.hidden // gate_up.columns)
    parts = max(1, min(sms // programs(gate_up), a_program // _PART_BYTES, steps))
    down_tiles = -(-shape.hidden // tiles.down.rows)
    fair = active * down_tiles // (sms * tiles.down.blocks * _WAVES)
    return Plan(
        path=path,
        gate_up=gate_up,
        down=tiles.down,
        units=units,
        parts=-(-steps // -(-steps // parts)),  # none of them empty
        each=max(one for one in range(1, max(1, fair) + 1) if down_tiles % one == 0),
    )


def distinct_of(shape: Shape) -> int:
    """Return how many experts uniform routing makes the tokens choose, on average, rounded up."""
    missed = (1 - min(shape.top_k / shape.experts, 1)) ** shape.tokens
    return max(1, math.ceil(shape.experts * (1 - missed)))


def tiles_for(name: str, *, capability: int) -> Tiles:
    """Return the tiles of format `name` on this GPU."""
    return TABLES[listed(capability)][name]
