"""What all the stand-ins of FlashInfer compute in the end: softmax attention, LSE to base 2."""

import math

import torch


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    visible: torch.Tensor,
    scale: float,
    infinity: float = math.inf,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and LSE of q [rows, heads, dim] over k, v [keys, heads, dim].

    visible: bool [rows, keys], or [rows, heads, keys]. A row that sees nothing has out 0 and the
    LSE of keys whose scores are -`infinity`: a finite one is what FlashInfer had before 0.7.
    """
    score = torch.einsum("thd,nhd->thn", q.double(), k.double()) * scale
    score = score.masked_fill(~(visible if visible.dim() == 3 else visible[:, None]), -math.inf)
    lse = score.logsumexp(-1) if k.shape[0] else score.new_full(score.shape[:2], -math.inf)
    weight = torch.where(lse[..., None] == -math.inf, 0.0, torch.exp(score - lse[..., None]))
    out = torch.einsum("thn,nhd->thd", weight, v.double())
    finite = -infinity + math.log2(max(1, len(k))) if infinity < math.inf else -math.inf
    lse = torch.where(lse == -math.inf, finite, lse / math.log(2))
    return out.to(q.dtype), lse.float()


def causal(rows: int, keys: int) -> torch.Tensor:
    """Return which keys each row sees when the last row sees all: bool [rows, keys]."""
    return torch.arange(keys) <= torch.arange(rows)[:, None] + keys - rows
