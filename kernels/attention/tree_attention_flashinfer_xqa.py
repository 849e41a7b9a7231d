"""`tree_attention` by FlashInfer's XQA: the draft block's mask as bits, for trees and chains.

XQA sees the whole prefix and asks for the draft block alone: uint16 [batch, T, 2] for T up to 32,
bit j of row i for draft j. Those are the op's int32 mask words, looked at as pairs of uint16, so
there is no mask to make: what an engine makes for each step are the lengths L_b + T. The page table
goes in as it is; how far a request is split follows from the table's width, not from its length.

    scores = q_scale * kv_scale / sqrt(head_dim) * <q, k>,   out = kv_scale * sum of weights * v
with one kv_scale for keys and values (of an fp8 cache; 1 for others). So kv_scale = v_scale, and
q_scale = scale * sqrt(head_dim) * k_scale / v_scale.

XQA returns no LSE. Its pages hold 16, 32, 64 or 128 keys, its head_dim is a multiple of 16 up to
256. fp8 caches are widened to q's dtype, but for those that capability 9.0 gives to a kernel of
their own, which also rounds queries and weights to fp8: other work, refused.

Errors: ValueError for inputs that `Given` refuses.
Source: xqa.py, csrc/xqa/mha.cu and mha_sm90.cu in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

import functools
from typing import Any

import torch

from kernels import Case, Needs, Outputs, Prepared, Stage, _flashinfer
from kernels._flashinfer import Call
from kernels.attention.tree_attention import OP, Given

_PAGE_SIZES = (16, 32, 64, 128)
_HEAD_DIM_STEP, _MOST_HEAD_DIM = 16, 256
_DTYPES = (torch.bfloat16, torch.float16)
# One for each block of rows of each key head of each request; the kernels leave them zero.
_SEMAPHORES = 2**18
_FEWEST_ROWS_OF_FP8_KERNEL = 33  # fewer, with a mask, go to the kernel that widens

XQA = Call(
    function="xqa",
    needed=(
        "q",
        "k_cache",
        "v_cache",
        "page_table",
        "seq_lens",
        "output",
        "workspace_buffer",
        "semaphores",
        "num_kv_heads",
        "page_size",
        "q_scale",
        "kv_scale",
        "kv_layout",
        "q_seq_len",
        "mask",
    ),
)
CALLS = (XQA,)


def refuses(case: Case) -> str | None:
    """Say why XQA, or the version that is installed, cannot compute `case`."""
    if (page := case.number("page")) not in _PAGE_SIZES:
        return f"XQA takes pages of {_PAGE_SIZES}, not {page}"
    dim = case.number("head_dim")
    if dim % _HEAD_DIM_STEP or dim > _MOST_HEAD_DIM:
        return f"XQA takes a head_dim of {_HEAD_DIM_STEP} x n up to {_MOST_HEAD_DIM}, not {dim}"
    if case.dtype not in _DTYPES:
        return f"XQA takes float16 and bfloat16 queries, not {case.dtype}"
    if case.dims["kv"] == "fp8" and _rounds_to_fp8(case):
        return (
            "XQA on capability 9.0 computes with queries and weights rounded to fp8 where it has "
            "no mask or more than 32 rows a key head: other work than attention to an fp8 cache"
        )
    return _flashinfer.why_not(CALLS)


def _rounds_to_fp8(case: Case) -> bool:
    capability = _flashinfer.device_capability()
    if capability is None or capability // 10 != 9:
        return False
    tokens = case.number("rows")
    rows = tokens * case.number("q_heads") // case.number("kv_heads")
    return tokens == 1 or rows >= _FEWEST_ROWS_OF_FP8_KERNEL


@functools.cache
def semaphores(device: torch.device) -> torch.Tensor:
    """Return zeroed semaphores, apart from the scratch memory that other wrappers write over."""
    return torch.zeros(_SEMAPHORES, dtype=torch.int32, device=device).view(torch.uint32)


@OP.prepared_implementation(
    "flashinfer_xqa",
    kind="baseline-direct",
    needs=Needs(capabilities=(90, 100, 120), packages=("flashinfer",), refuses=refuses),
    omits=("lse",),
)
def flashinfer_xqa_attention(**inputs: Any) -> Prepared:
    """Lay q and the mask words out as XQA reads them: both are views."""
    given = Given(**inputs)
    shape, library = given.shape, _flashinfer.installed()

    def lengths() -> torch.Tensor:
        return (given.prefix_lens + shape.tokens)[:, None].view(torch.uint32)

    # NaN, so that a buffer that a version no longer writes cannot pass for a result.
    out = torch.full_like(given.q, float("nan"))
    one, several = (shape.requests, 1), (shape.requests, 1, shape.tokens)
    sizes = (*(several if shape.tokens > 1 else one), shape.q_heads, shape.head_dim)
    words = given.mask_words.view(torch.uint16).view(shape.requests, shape.tokens, 2)
    accepted = XQA.accepted(
        library,
        q=given.q.view(sizes),
        k_cache=given.k_cache,
        v_cache=given.v_cache,
        page_table=given.page_table,
        seq_lens=lengths(),
        output=out.view(sizes),
        workspace_buffer=_flashinfer.workspace(given.q.device),
        semaphores=semaphores(given.q.device),
        num_kv_heads=shape.kv_heads,
        page_size=shape.page_size,
        q_scale=given.scale * shape.head_dim**0.5 * given.k_scale / given.v_scale,
        kv_scale=given.v_scale,
        kv_layout="NHD",
        q_seq_len=shape.tokens,
        mask=words if shape.tokens > 1 else None,
    )
    xqa = XQA.find(library)

    def call() -> Outputs:
        xqa(**accepted.kwargs)
        return {"out": out}

    facts = {
        "flashinfer": _flashinfer.version(library),
        "backend": "xqa",
        "splits_for_keys": str(shape.most_keys),
    }
    return Prepared(call=call, facts=facts, stages=(Stage(name="lengths", run=lengths),))
