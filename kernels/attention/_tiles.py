"""What one block of an attention kernel takes at a time, and with how many registers a thread."""

from __future__ import annotations

from dataclasses import dataclass


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
        """Return what a thread may have so that this many blocks share an SM's 65,536.

        Left alone, ptxas aims at more blocks than shared memory lets in, and spills for them.
        """
        return min(255, 65536 // (32 * self.warps * self.blocks_per_sm) // 8 * 8)
