"""Keys in a row for attention that knows no pages: where each key lies, and which rows see it.

`gather` is the plan: it reads the lengths on the host, so it is made again when they change, and it
is not timed. `Gathered.keys` copies a cache into a row, and is. `pack` puts the tokens and query
heads that share a key head into the rows of one matrix; `unpack` is its inverse.

page, slot: int64 [batch, keys]; visible: bool [batch, T * group, keys]; keys is the longest
request's L + T, rounded up to the 8 that fast kernels want. Behind a request's last key its first
is repeated, which no row sees: what lies in the cache there may be NaN, and a hidden NaN in V still
spoils a product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_KEYS_MULTIPLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Where the keys of each request lie, and which packed rows see them."""

    page: torch.Tensor
    slot: torch.Tensor
    visible: torch.Tensor

    def keys(self, cache: torch.Tensor) -> torch.Tensor:
        """Copy keys or values out of their pages: [batch, kv_heads, keys, head_dim]."""
        return cache[self.page, self.slot].transpose(1, 2)

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Return what is added to scores, 0 or -inf: [batch, 1, T * group, keys]."""
        mask = torch.zeros_like(self.visible, dtype=dtype)
        return mask.masked_fill_(~self.visible, float("-inf"))[:, None]


def gather(
    *,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    page_size: int,
    group: int,
) -> Gathered:
    """Plan the gather for these lengths and trees; waits for the device."""
    tokens = mask_words.shape[1]
    length = prefix_lens.long()[:, None]  # [batch, 1]
    keys = -(-(int(prefix_lens.max()) + tokens) // _KEYS_MULTIPLE) * _KEYS_MULTIPLE
    key = torch.arange(keys, device=page_table.device)
    at = torch.where(key < length + tokens, key, 0)  # [batch, keys]
    draft = key - length
    bit = draft.clamp(0, tokens - 1)[:, None, :]  # [batch, 1, keys]
    drawn = (mask_words.long()[:, :, None] >> bit) & 1 != 0  # [batch, T, keys]
    block = ((draft >= 0) & (draft < tokens))[:, None, :]
    visible = (draft < 0)[:, None, :] | (block & drawn)
    return Gathered(
        page=page_table.long().gather(1, at // page_size),
        slot=at % page_size,
        visible=visible.repeat_interleave(group, dim=1),
    )


def softmax(score: torch.Tensor, *, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and natural log-sum-exp of scores [..., keys], which are changed.

    A row that sees nothing has an LSE of -inf; a shift of 0 keeps its weights 0.
    """
    lse = score.masked_fill_(hidden, float("-inf")).logsumexp(-1)
    shift = lse.masked_fill(lse == float("-inf"), 0.0)
    return torch.exp(score - shift[..., None]), lse


def pack(q: torch.Tensor, *, tokens: int, kv_heads: int) -> torch.Tensor:
    """Turn q [batch*T, q_heads, head_dim] into [batch, kv_heads, T*group, head_dim]."""
    split = q.reshape(-1, tokens, kv_heads, q.shape[1] // kv_heads, q.shape[2])
    return split.transpose(1, 2).flatten(2, 3)


def unpack(rows: torch.Tensor, *, tokens: int) -> torch.Tensor:
    """Turn [batch, kv_heads, T*group, ...] into [batch*T, q_heads, ...]."""
    batch, kv_heads, packed, *rest = rows.shape
    split = rows.reshape(batch, kv_heads, tokens, packed // tokens, *rest)
    heads = kv_heads * packed // tokens
    return split.transpose(1, 2).reshape(batch * tokens, heads, *rest)
