"""How the CUDA C++ of `fused_moe` is launched: a table a GPU, and the rule behind it.

Weights are read once and tokens are few, so bytes decide, and what a thread does for each of them.
By reasoning, and by what the compile gate says, for nobody has timed it:
- Under way: DRAM is busy when an SM keeps latency x bandwidth / SMs of bytes on their way, 29 KB on
  H200 and 8 KB on RTX PRO 6000 (0.8 us). A ring of 8 warps has STAGES - 1 steps of 1 KB a tile on
  their way: with 3 stages 16 KB a tile and block. More lets a block go on while others end.
- Tiles: 16 rows of weights are a tile. An SM of H200 gets 21 bytes a clock, and 128 lanes have 6
  instructions for each; the loop over int4 has 6 to 7 with one tile and 4.7 with two, which share
  what is done for tokens. An SM of RTX PRO 6000 gets 4 bytes a clock and has 99 KB: one tile, and
  three blocks. A grid of two tiles that would leave SMs idle takes one.
- Columns: 8 tokens are what one instruction takes, 16 the most of the direct path; beyond 8 a loop
  skips what is not there. Sorted, an expert should be one block: 16 where it has 8 tokens on
  average or fewer, else 64.
- Warps: 8, that share K, or experts and where these are few K as well, so that no launch adds up
  parts of K; no more than there are steps of K. 4 warps, in more blocks, where a thread of 8 would
  need more registers than there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kernels._target import listed
from kernels.moe._formats import FormatName
from kernels.moe._paths import Path
from kernels.moe.fused_moe import Shape

STEPS: Mapping[FormatName, int] = MappingProxyType(
    {"bf16": 32, "fp8": 64, "int4": 128}
)  # k of a step
TILE_ROWS = 16
RUN = 4  # ranges of columns of a warp, sorted: what begins a block is paid for once in so many
WARP = 32
_TILE_BYTES = 64 * TILE_ROWS  # of a step
_MOST_WARPS = 8
_FEW_A_BLOCK = 8  # tokens of an expert on average


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Tokens and 16-row tiles of weights of a warp, stages of its ring, and blocks an SM.

    warps: the most of a block.
    """

    columns: int
    tiles: int
    stages: int
    blocks_per_sm: int
    warps: int = _MOST_WARPS

    @property
    def rows(self) -> int:
        """Return how many rows of weights a warp multiplies at a time."""
        return TILE_ROWS * self.tiles

    def for_grid(self, blocks: int, *, sms: int) -> Tile:
        """Return one of a single tile where so many blocks of this one would leave SMs idle."""
        return replace(self, tiles=1) if blocks < sms else self

    def for_choices(self, choices: int) -> Tile:
        """Return one with a lane for each of these, in fewer blocks where it takes more warps."""
        tile = self
        while WARP * tile.warps < choices:
            blocks = max(1, tile.blocks_per_sm // 2)
            tile = replace(tile, warps=2 * tile.warps, blocks_per_sm=blocks)
        return tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One of the two products: which kernel, format, k in all, tile, and warps of a block.

    part_bits: the direct second product leaves 2**part_bits parts of K to different warps.
    """

    kernel: str
    form: FormatName
    depth: int
    tile: Tile
    warps: int
    shared: bool
    part_bits: int = 0

    @property
    def whole_steps(self) -> bool:
        """Say that no step goes past the last k, and that rows of scales are whole words."""
        return self.depth % STEPS[self.form] == 0

    @property
    def ring_bytes(self) -> int:
        """Return what the ring of a warp takes: its stages, or in the end its sums."""
        of_int4 = TILE_ROWS * (8 if self.whole_steps else 16)
        scale_bytes: dict[FormatName, int] = {"bf16": 0, "fp8": 16, "int4": of_int4}
        stage = self.tile.tiles * (_TILE_BYTES + scale_bytes[self.form])
        return max(self.tile.stages * stage, 4 * self.tile.rows * self.tile.columns)

    def shared_bytes(self, choices: int) -> int:
        """Return the shared memory of a block in a call of so many choices."""
        tile, columns = self.tile, 4 * self.tile.columns
        if self.kernel != "down_direct":
            return self.warps * (self.ring_bytes + columns)
        headers, out = tile.stages * (columns + 16), 4 * (choices << self.part_bits) * tile.rows
        return self.warps * (self.ring_bytes + headers) + out


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a call is launched; a matter of shapes alone."""

    path: Path
    gate_up: Product
    down: Product

    @property
    def facts(self) -> dict[str, str]:
        """Return what was chosen, for the record: rows of weights x tokens, parts of K."""
        one, other = self.gate_up.tile, self.down.tile
        return {
            "path": self.path,
            "tile": f"{one.rows}x{one.columns}, {other.rows}x{other.columns}",
            "splits": f"{self.gate_up.warps}, {1 << self.down.part_bits}",
        }


def _tile(columns: int, tiles: int, *, stages: int, blocks: int, warps: int = _MOST_WARPS) -> Tile:
    return Tile(columns=columns, tiles=tiles, stages=stages, blocks_per_sm=blocks, warps=warps)


_SMALL = (
    _tile(8, 1, stages=3, blocks=3),
    _tile(16, 1, stages=3, blocks=2),
    _tile(64, 1, stages=3, blocks=3, warps=4),
)
_LARGE = (
    _tile(8, 2, stages=4, blocks=2),
    _tile(16, 2, stages=4, blocks=3, warps=4),
    _tile(64, 1, stages=4, blocks=3, warps=4),
)
_A100 = (
    _tile(8, 2, stages=3, blocks=2),
    _tile(16, 2, stages=3, blocks=3, warps=4),
    _tile(64, 1, stages=4, blocks=3, warps=4),
)
# By capability; 89 stands for 86 too, which runs sm_80's code in as little shared memory.
TABLES: Mapping[int, tuple[Tile, ...]] = MappingProxyType(
    {80: _A100, 89: _SMALL, 90: _LARGE, 100: _LARGE, 120: _SMALL}
)


def tile_for(columns: int, *, capability: int) -> Tile:
    """Return the smallest tile of so many columns, or the largest there is."""
    table = TABLES[listed(capability)]
    return next((tile for tile in table if tile.columns >= columns), table[-1])


def plan_for(shape: Shape, form: FormatName, path: Path, *, capability: int, sms: int) -> Plan:
    """Choose by the rule in this module's docstring."""
    choose = _direct if path == "direct" else _sorted
    return choose(shape, form, capability=capability, sms=sms)


def _direct(shape: Shape, form: FormatName, *, capability: int, sms: int) -> Plan:
    tile = tile_for(shape.tokens, capability=capability)
    slices = shape.intermediate // (tile.rows // 2)
    parts = min(_steps(form, shape.intermediate), max(1, tile.warps // shape.choices))
    part_bits = parts.bit_length() - 1
    shares = max(shape.choices << part_bits, _steps("bf16", shape.shared))
    down = tile.for_grid(shape.hidden // tile.rows, sms=sms).for_choices(shape.choices)
    return Plan(
        path="direct",
        gate_up=_gate_up(shape, form, tile.for_grid(shape.choices * slices, sms=sms)),
        down=Product(
            kernel="down_direct",
            form=form,
            depth=shape.intermediate,
            tile=down,
            warps=_warps(down, shares),
            shared=shape.shared > 0,
            part_bits=part_bits,
        ),
    )


def _sorted(shape: Shape, form: FormatName, *, capability: int, sms: int) -> Plan:
    columns = 16 if shape.choices <= _FEW_A_BLOCK * shape.experts else 64
    tile = tile_for(columns, capability=capability)
    return Plan(
        path="sorted",
        gate_up=_gate_up(shape, form, tile),
        down=Product(
            kernel="down_sorted",
            form=form,
            depth=shape.intermediate,
            tile=tile,
            warps=_warps(tile, shape.hidden // tile.rows),
            shared=shape.shared > 0,
        ),
    )


def _gate_up(shape: Shape, form: FormatName, tile: Tile) -> Product:
    deepest: FormatName = "bf16" if shape.shared else form
    return Product(
        kernel="gate_up",
        form=form,
        depth=shape.hidden,
        tile=tile,
        warps=_warps(tile, _steps(deepest, shape.hidden)),
        shared=shape.shared > 0,
    )


def _steps(form: FormatName, depth: int) -> int:
    return -(-depth // STEPS[form])


def _warps(tile: Tile, shares: int) -> int:
    """Return a power of two that is no more than there are shares of work, one at least."""
    return min(tile.warps, 1 << (shares.bit_length() - 1))
