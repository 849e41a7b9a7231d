"""How a product of few rows by a large weight is cut: tiles, and parts of the inputs.

    out [rows, outputs] = x [rows, inputs] x weight [outputs, inputs]^T

Every weight is read once, and bytes of weights are all there is to it: 2 flops a row and weight,
so that 16 rows are 16 flops a byte, of some 300 that a GPU has. A block takes `outputs` of them (of
gated products as many of either half) and all rows, up to 64; more rows are several blocks side by
side, which find the weights in L2. Where that leaves SMs without a block, the inputs are cut
into parts. A part's sums go to memory as float32; the block that arrives last for its outputs adds
them up, in the order of the parts and not of arrival: the same bytes each time, no second launch,
and no float is added atomically. Who is last is counted by `arrivals`, which that block sets back
to 0. They are shared by all products of a device, as an engine's layers would share them: products
must not run side by side on two streams.

What a GPU needs in flight (latency x bandwidth / SMs): 25 KB an SM on H200, 7 KB on RTX PRO 6000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from kernels._splits import split_count
from kernels._target import listed
from verifyscope.hardware import SHARED_BYTES_PER_MULTIPROCESSOR
from verifyscope.occupancy import most_registers

# Parts are only made where blocks are fewer than places for them; GPUs have some hundred SMs.
_MOST_COUNTED = 4096
_SMALL_SHARED_BYTES = 102_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """What a block takes: rows, outputs, inputs of a chunk, warps, stages, and blocks an SM holds.

    step: the inputs that keep all of its warps, or stages, busy once; a part is whole steps.
    """

    rows: int
    outputs: int
    inputs: int
    step: int
    warps: int
    blocks_per_sm: int
    stages: int = 1

    @property
    def registers(self) -> int:
        """Return what a thread may have so that an SM holds this many blocks."""
        return most_registers(warps=self.warps, blocks=self.blocks_per_sm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The grid of a launch: blocks by rows and by outputs, parts, and the inputs of each part."""

    row_blocks: int
    output_blocks: int
    parts: int
    part_inputs: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Return it with the rows first: neighbours read the same weights."""
        return self.row_blocks, self.output_blocks, self.parts


def plan_for(*, rows: int, inputs: int, outputs: int, tile: Tile, sms: int) -> Plan:
    """Fill the SMs once, with parts of whole steps; the last one may be shorter."""
    row_blocks, output_blocks = -(-rows // tile.rows), -(-outputs // tile.outputs)
    parts = split_count(
        blocks=row_blocks * output_blocks,
        most_keys=inputs,
        least_keys=tile.step,
        slots=sms * tile.blocks_per_sm,
    )
    steps = -(-inputs // tile.step)
    of_a_part = -(-steps // parts)
    plan = Plan(
        row_blocks=row_blocks,
        output_blocks=output_blocks,
        parts=-(-steps // of_a_part),
        part_inputs=of_a_part * tile.step,
    )
    if plan.parts > 1 and row_blocks * output_blocks > _MOST_COUNTED:
        raise ValueError(
            f"{row_blocks * output_blocks} blocks in {plan.parts} parts: at most {_MOST_COUNTED} "
            f"are counted; use larger tiles"
        )
    return plan


def choose(
    tiles: Sequence[Tile], *, rows: int, inputs: int, outputs: int, sms: int
) -> tuple[Tile, Plan]:
    """Return the first of `tiles` (the fewest outputs first) whose blocks all run at once.

    What all runs at once ends at once, since memory serves each block alike; a last block alone
    would wait for its own loads. If none does, the last of them.
    """
    for tile in tiles:
        plan = plan_for(rows=rows, inputs=inputs, outputs=outputs, tile=tile, sms=sms)
        if plan.row_blocks * plan.output_blocks <= sms * tile.blocks_per_sm:
            break
    return tile, plan


def is_large(capability: int) -> bool:
    """Say whether an SM has more shared memory than the 100 KB of sm_89 and sm_120."""
    return SHARED_BYTES_PER_MULTIPROCESSOR[listed(capability)] > _SMALL_SHARED_BYTES


@cache
def arrivals(device: torch.device) -> torch.Tensor:
    """Return the counters of `device`, int32, 0 whenever no product is under way."""
    return torch.zeros(_MOST_COUNTED, dtype=torch.int32, device=device)
