"""Tiles for `fused_moe` in Triton: a table a GPU and format, and the rules that make a plan of one.

A block keeps a tile of weights or two in flight while it multiplies one. DRAM is busy when an SM
keeps latency x bandwidth / SMs in flight: 0.7 us x 4.8 TB/s / 132 = 25 KB on H200, 13 KB on A100,
7 KB on RTX PRO 6000. And unpacking must keep up with it: of int4 an SM of H200 gets 64 weights a
ns, for which its 128 lanes have 3.5 instructions each, on B200 2.5, on RTX PRO 6000 20. So, by
reasoning and by what the compile gate says, for nobody has timed them:
- int4: 32 rows of the first product are 3.2 instructions a weight, 64 rows 2.8, for x is taken
  apart once for more of them. So 64 on sm_90 and sm_100, if they fill the SMs all the same; the
  second product has 3.6. fp8 has 4 a byte. bfloat16 is not unpacked: 16 rows of it are as many
  bytes as 64 of int4.
- A step is 512 columns of the first product, 128 of the second, whose columns are few: 64 bytes of
  a row or more. All models' sizes are whole steps, but for I of 96 and 192.
- Two blocks an SM, or three of four warps: one starts, which waits for ids, then for weights, while
  the others stream. On GPUs of 100 KB an SM that leaves each 49 KB (33 KB): fewer stages, and half
  the columns a step for more than 8 tokens, whose x takes twice the space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernels._target import listed
from kernels.moe._align_layout import capacity_of
from kernels.moe._experts_triton import ROWS
from kernels.moe._paths import Path
from kernels.moe.fused_moe import Shape
from verifyscope.occupancy import most_registers

_PART_BYTES = 65_536  # of weights; a part that reads less saves less than its sums and launch cost
_PART_STEPS = 2  # of the second product, whose parts cost no launch
_MOST_PARTS = 4  # of it: rows of `out` that `combine` reads for one
_WAVES = 4  # of programs of the second product: few enough to start, enough to even out


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """What a block takes at a step, its warps, and the stages of its loop.

    rows, columns: of weights. Of the first product a warp has all rows and its share of the
    columns, of the second all columns and its share of the rows. full_columns, full_stages: those
    for more than 8 tokens. blocks: those that an SM should hold.
    """

    rows: int
    columns: int
    full_columns: int
    warps: int
    stages: int
    full_stages: int
    blocks: int

    @property
    def registers(self) -> int:
        """Return what a thread may have so that an SM holds this many blocks."""
        return most_registers(warps=self.warps, blocks=self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tiles of the first product, the widest first, and of the second."""

    gate_up: tuple[Tile, ...]
    down: Tile


def _gate_up(rows: int, stages: int, full_stages: int, *, small: bool = False) -> Tile:
    return Tile(
        rows=rows,
        columns=512,
        full_columns=256 if small else 512,
        warps=8,
        stages=stages,
        full_stages=full_stages,
        blocks=2,
    )


def _down(rows: int, stages: int, *, small: bool = False, blocks: int = 2) -> Tile:
    return Tile(
        rows=rows,
        columns=128,
        full_columns=64 if small else 128,
        warps=4,
        stages=stages,
        full_stages=stages,
        blocks=blocks,
    )


_SMALL: Mapping[str, Tiles] = {
    "bf16": Tiles(gate_up=(_gate_up(16, 3, 3, small=True),), down=_down(64, 3, small=True)),
    "fp8": Tiles(gate_up=(_gate_up(32, 3, 3, small=True),), down=_down(128, 3, small=True)),
    "int4": Tiles(
        gate_up=(_gate_up(32, 3, 3, small=True),), down=_down(128, 3, small=True, blocks=3)
    ),
}
_A100: Mapping[str, Tiles] = {
    "bf16": Tiles(gate_up=(_gate_up(16, 4, 3),), down=_down(64, 4)),
    "fp8": Tiles(gate_up=(_gate_up(32, 4, 3),), down=_down(128, 4)),
    "int4": Tiles(gate_up=(_gate_up(32, 4, 3),), down=_down(128, 4, blocks=3)),
}
_LARGE: Mapping[str, Tiles] = {
    "bf16": Tiles(gate_up=(_gate_up(16, 5, 4),), down=_down(64, 5)),
    "fp8": Tiles(gate_up=(_gate_up(32, 4, 4),), down=_down(128, 5)),
    "int4": Tiles(gate_up=(_gate_up(64, 4, 4), _gate_up(32, 5, 5)), down=_down(128, 5, blocks=3)),
}
# By capability; 89 stands for 86 too, which runs sm_80's code in as little shared memory.
TABLES: Mapping[int, Mapping[str, Tiles]] = MappingProxyType(
    {80: _A100, 89: _SMALL, 90: _LARGE, 100: _LARGE, 120: _SMALL}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a call is launched.

    units: choices, or blocks of sorted ones. parts, down_parts: of the columns of the first and the
    second product, in the grid. each: neighbouring tiles of the second that a program computes.
    shared: tiles of the shared expert, which is bfloat16 whatever the others are.
    """

    path: Path
    gate_up: Tile
    down: Tile
    units: int
    parts: int
    down_parts: int
    each: int
    shared: Tiles

    @property
    def launches(self) -> int:
        """Return how many kernels wait for one another."""
        return 3 + (self.path == "sorted") + (self.parts > 1)


def plan_for(
    shape: Shape, path: Path, *, name: str, expert_bytes: int, capability: int, sms: int
) -> Plan:
    """Choose by the shapes, as if routing were uniform: what is chosen is not known to the host.

    name: the format. expert_bytes: of one expert, with its scales.
    """
    tiles, units = tiles_for(name, capability=capability), shape.choices
    active = distinct_of(shape)
    if path == "sorted":
        units = capacity_of(slots=units, experts=shape.experts, block=ROWS) // ROWS
        active = min(active + shape.choices // ROWS, units)

    def programs(tile: Tile) -> int:
        return active * (2 * shape.intermediate // tile.rows)

    gate_up = next((one for one in tiles.gate_up if programs(one) >= sms), tiles.gate_up[-1])
    a_program = 2 * expert_bytes // 3 * gate_up.rows // (2 * shape.intermediate)
    steps = -(-shape.hidden // gate_up.columns)
    parts = min(sms // programs(gate_up), a_program // _PART_BYTES, steps)
    down_tiles, slots = -(-shape.hidden // tiles.down.rows), sms * tiles.down.blocks
    down_steps = -(-shape.intermediate // tiles.down.columns)
    down_parts = min(slots // (active * down_tiles), down_steps // _PART_STEPS, _MOST_PARTS)
    fair = max(1, active * down_tiles // (slots * _WAVES))
    return Plan(
        path=path,
        gate_up=gate_up,
        down=tiles.down,
        units=units,
        parts=_filled(parts, steps),
        down_parts=_filled(down_parts, down_steps),
        each=max(one for one in range(1, fair + 1) if down_tiles % one == 0),
        shared=tiles_for("bf16", capability=capability),
    )


def _filled(parts: int, steps: int) -> int:
    """Return as many parts as asked for, at least one, or fewer, so that none of them is empty."""
    return -(-steps // -(-steps // max(1, parts)))


def distinct_of(shape: Shape) -> int:
    """Return how many experts uniform routing makes the tokens choose, on average, rounded."""
    missed = (1 - min(shape.top_k / shape.experts, 1)) ** shape.tokens
    return max(1, round(shape.experts * (1 - missed)))


def tiles_for(name: str, *, capability: int) -> Tiles:
    """Return the tiles of format `name` on this GPU."""
    return TABLES[listed(capability)][name]
