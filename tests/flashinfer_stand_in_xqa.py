"""FlashInfer's `xqa` as 0.6.18 and 0.7.4 have it, computed in torch: bits of the draft block."""

from typing import Any

import torch

from tests.flashinfer_softmax import attend

_PAGE_SIZES = (16, 32, 64, 128)


def xqa(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
    output: torch.Tensor,
    workspace_buffer: torch.Tensor,
    semaphores: torch.Tensor,
    num_kv_heads: int,
    page_size: int,
    sinks: Any = None,
    q_scale: Any = 1.0,
    kv_scale: Any = 1.0,
    sliding_win_size: int = 0,
    kv_layout: str = "NHD",
    sm_count: Any = None,
    enable_pdl: Any = None,
    rcp_out_scale: float = 1.0,
    q_seq_len: int = 1,
    mask: Any = None,
    *,
    q_cu_seq_lens: Any = None,
    k_sf_cache: Any = None,
    v_sf_cache: Any = None,
) -> None:
    """Write `output`; the mask has one row of bits a token, padded to 32."""
    batch, heads, dim = q.shape[0], q.shape[-2], q.shape[-1]
    tokens = (q_seq_len,) if q_seq_len > 1 else ()
    if q.shape != (batch, 1, *tokens, heads, dim) or output.shape != q.shape:
        raise ValueError(f"q is {tuple(q.shape)}")
    if seq_lens.dtype != torch.uint32 or seq_lens.shape != (batch, 1):
        raise ValueError("seq_lens is uint32 [batch, 1]")
    if page_size not in _PAGE_SIZES or page_table.dtype != torch.int32:
        raise ValueError("pages hold 16, 32, 64 or 128 keys, and int32 names them")
    if semaphores.dtype != torch.uint32 or semaphores.view(torch.int32).any():
        raise ValueError("semaphores begin as zero")
    if q_seq_len > 1 and (
        mask.dtype != torch.uint16 or mask.shape != (batch, q_seq_len, (q_seq_len + 31) // 32 * 2)
    ):
        raise ValueError("mask is uint16 [batch, tokens, words]")
    quantised = k_cache.dtype == torch.float8_e4m3fn
    cache_scale = kv_scale if quantised else 1.0
    for request, (kv_len,) in enumerate(seq_lens.view(torch.int32).tolist()):
        pages = page_table[request, : -(-kv_len // page_size)].long()
        k, v = (cache[pages].flatten(0, 1)[:kv_len].double() for cache in (k_cache, v_cache))
        rows = q[request].reshape(q_seq_len, heads, dim)
        visible = torch.ones(q_seq_len, kv_len, dtype=torch.bool)
        if mask is not None:
            words = mask[request].contiguous().view(torch.int32).long()[:, 0]
            visible[:, kv_len - q_seq_len :] = (
                (words[:, None] >> torch.arange(q_seq_len)) & 1
            ).bool()
        group = heads // num_kv_heads
        out, _ = attend(
            rows,
            k.repeat_interleave(group, dim=1),
            v.repeat_interleave(group, dim=1) * cache_scale,
            visible=visible,
            scale=q_scale * cache_scale * dim**-0.5,
        )
        output[request] = out.view(output[request].shape)
