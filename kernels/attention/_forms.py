"""The three forms in which engines compute the attention of a verify pass, as ways to pack rows.

T draft tokens x `group` query heads share the keys of one key head. A unit is what reads them on
its own: `tokens` x `heads` of those rows.
    verify  one unit, T x group rows; the keys are split over the GPU and read once
    decode  T units of one token: each a decode request of its own, split; keys are read T times
            (vLLM's TRITON_MLA and flattened verify)
    extend  `group` units of one head, as in prefill: one block a unit and row tile walks the whole
            prefix, unsplit; keys are read `group` times (SGLang's Triton extend)
Same inputs, same outputs, three costs. Row r of unit u is token (u // (group / heads)) * tokens +
r // heads and, of the group, head (u % (group / heads)) * heads + r % heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from verifyscope.records import Mode

FORMS: tuple[Mode, ...] = ("verify", "decode", "extend")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How the rows of one key head are packed into units, and whether their keys are split."""

    mode: Mode
    tokens: int
    heads: int
    units: int
    split: bool

    @property
    def rows(self) -> int:
        """Return the rows of a unit."""
        return self.tokens * self.heads


def form_of(mode: Mode, *, tokens: int, group: int) -> Form:
    """Return the form `mode` of `tokens` draft tokens and `group` query heads a key head."""
    if mode == "verify":
        return Form(mode=mode, tokens=tokens, heads=group, units=1, split=True)
    if mode == "decode":
        return Form(mode=mode, tokens=1, heads=group, units=tokens, split=True)
    return Form(mode=mode, tokens=tokens, heads=1, units=group, split=False)
