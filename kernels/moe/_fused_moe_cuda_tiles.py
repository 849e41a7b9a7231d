"""PLACEHOLDER"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernels._target import listed

STEP_BYTES = 64
_TILE_BYTES = 16 * STEP_BYTES
_WARPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Tokens (columns) and 16-row tiles of weights of a warp, steps in its ring, blocks an SM."""

    columns: int
    tiles: int
    stages: int
    blocks_per_sm: int
    warps: int = _WARPS

    def ring_bytes(self, scale_bytes: int) -> int:
        """Return what a warp's ring takes: its stages, or its sums in the end."""
        step = self.tiles * (_TILE_BYTES + scale_bytes)
        return max(self.stages * step, 64 * self.tiles * self.columns)


def _tile(columns: int, tiles: int, stages: int, blocks: int) -> Tile:
    return Tile(columns=columns, tiles=tiles, stages=stages, blocks_per_sm=blocks)


_SMALL = (_tile(8, 1, 3, 3), _tile(16, 1, 3, 2), _tile(64, 1, 3, 2))
_LARGE = (_tile(8, 1, 4, 3), _tile(16, 2, 4, 2), _tile(64, 1, 4, 2))
TABLES: Mapping[int, tuple[Tile, ...]] = MappingProxyType(
    {80: _LARGE, 89: _SMALL, 90: _LARGE, 100: _LARGE, 120: _SMALL}
)


def tile_for(columns: int, *, capability: int) -> Tile:
    """Return the smallest tile of so many columns, or the largest there is."""
    table = TABLES[listed(capability)]
    return next((tile for tile in table if tile.columns >= columns), table[-1])
