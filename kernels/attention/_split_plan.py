"""How attention over keys that may be split is launched, and where its parts leave their sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels import Outputs, Prepared
from kernels._splits import split_count
from kernels.attention._forms import Form
from kernels.attention._tiles import Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a call is launched: its form, its tile, the parts of the keys, the least keys of one.

    key_heads: how many heads of keys there are, each with rows of its own.
    """

    form: Form
    tile: Tile
    splits: int
    least_keys: int
    key_heads: int = 1

    @property
    def blocks(self) -> int:
        """Return the blocks that read one part of one request's keys."""
        return -(-self.form.rows // self.tile.rows) * self.form.units * self.key_heads

    def prepared(self, call: Callable[[], Outputs]) -> Prepared:
        """Return `call`, which is launched by this plan, with what was chosen."""
        facts = {
            "splits": str(self.splits),
            "tile": f"{self.tile.rows}x{self.tile.keys}",
            "warps": str(self.tile.warps),
            "blocks_per_sm": str(self.tile.blocks_per_sm),
        }
        if self.tile.stages > 1:
            facts["stages"] = str(self.tile.stages)
        return Prepared(call=call, facts=facts, launches=1 if self.splits == 1 else 2)


def fill_once(
    form: Form,
    *,
    tile: Tile,
    requests: int,
    most_keys: int,
    least_keys: int,
    sms: int,
    key_heads: int = 1,
) -> Plan:
    """Split the keys so that the blocks fill the SMs once; the forms that do not split, do not."""
    once = Plan(form=form, tile=tile, splits=1, least_keys=least_keys, key_heads=key_heads)
    if not form.split:
        return once
    splits = split_count(
        blocks=requests * once.blocks,
        most_keys=most_keys,
        least_keys=least_keys,
        slots=sms * tile.blocks_per_sm,
    )
    return Plan(form=form, tile=tile, splits=splits, least_keys=least_keys, key_heads=key_heads)


def part_sums(
    out: torch.Tensor, lse: torch.Tensor, *, splits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where parts leave their sums and LSE: a part alone in the outputs themselves.

    To be allocated in the call: inside a capture torch then hands the same memory to every layer,
    as an engine does, and it stays in L2.
    """
    if splits == 1:
        return out, lse
    rows, dim = lse.numel(), out.shape[-1]
    return lse.new_empty(rows, splits, dim), lse.new_empty(rows, splits)
