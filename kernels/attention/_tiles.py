"""What one block of an attention kernel takes at a time, and with how many registers a thread."""

from __future__ import annotations

from dataclasses import dataclass

from verifyscope.occupancy import most_registers


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Rows and keys of a tile, warps, pipeline stages, and the blocks an SM should hold."""

    rows: int
    keys: int
    warps: int
    blocks_per_sm: int
    stages: int = 1

    @property
    def registers(self) -> int:
        """Return what a thread may have so that an SM holds this many blocks."""
        return most_registers(warps=self.warps, blocks=self.blocks_per_sm)
