"""The named points of `tree_attention`: tiny, measured, and those that the compile gate builds.

A name says every dim: t (tokens a request), b (requests), l (committed tokens of the longest),
the tree, p (page), h (query heads x key heads), d (head dim), dtype, and kv
(the cache's, where it is another one). Several requests are ragged.
"""

import dataclasses

import torch

from kernels import Case
from kernels.attention._paged import QUERY_DTYPES, context_name
from verifyscope.records import Value


def _case(
    rows: int,
    context: int,
    tree: str = "chain",
    *,
    requests: int = 1,
    heads: tuple[int, int] = (8, 1),
    dim: int = 128,
    page: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    kv: str = "",
    **more: bool,
) -> Case:
    """Name a point by all of its dims."""
    q_heads, kv_heads = heads
    dims: dict[str, Value] = {
        "rows": rows,
        "requests": requests,
        "context": context,
        "lengths": "ragged" if requests > 1 else "equal",
        "tree": tree,
        "page": page,
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "head_dim": dim,
        "kv": kv or QUERY_DTYPES[dtype],
    }
    name = (
        f"t{rows}-b{requests}-l{context_name(context)}-{tree}-p{page}-h{q_heads}x{kv_heads}-d{dim}"
    )
    name += f"-{QUERY_DTYPES[dtype]}" + (f"-kv{kv}" if kv else "")
    return Case(name=name, dims=dims, dtype=dtype, mode="verify", **more)


_ONE_AND_FOUR = ((1, "chain"), (4, "eagle4"))


def measured_cases() -> tuple[Case, ...]:
    """Vary one axis at a time around one request of 8k tokens on one rank of llama-3.1-70b, TP 8.

    T = 1 stands beside every other T: time(T) / time(1) decides whether speculation pays.
    """
    eight_k = 8192
    return (
        *(_case(t, eight_k, cpu=True) for t in (1, 2, 3)),
        *(_case(t, eight_k, "eagle4", cpu=True) for t in (4, 6, 8)),
        *(_case(t, eight_k, "eagle8", cpu=True) for t in (12, 16)),
        # The context, from nothing committed to a million tokens: what is read grows, what is
        # merged does not.
        *(_case(t, 0, tree, cpu=True) for t, tree in ((1, "chain"), (8, "eagle4"))),
        *(_case(t, 1, tree, cpu=True) for t, tree in _ONE_AND_FOUR),
        *(_case(t, 127, tree, cpu=True) for t, tree in _ONE_AND_FOUR),
        *(
            _case(t, context, tree, page=16 if context == 1024 else 64, cpu=context == 1024)
            for context in (1024, 32768, 131072)
            for t, tree in (*_ONE_AND_FOUR, (8, "eagle4"), (16, "eagle8"))
        ),
        *(_case(t, 1048576, tree, page=64) for t, tree in _ONE_AND_FOUR),
        # The batch, with ragged lengths.
        *(
            _case(t, eight_k, tree, requests=requests)
            for requests in (2, 4, 8, 16, 32, 64)
            for t, tree in _ONE_AND_FOUR
        ),
        # The shape of the tree at one T, and a tree for each request.
        *(_case(8, 1024, tree, cpu=True) for tree in ("chain", "star", "binary", "eagle8")),
        _case(8, eight_k, "mixed", requests=8),
        # The page: 1 as in token-granular caches, 64 as in large blocks.
        *(_case(t, eight_k, tree, page=page) for page in (1, 64) for t, tree in _ONE_AND_FOUR),
        *(_case(t, eight_k, tree, dtype=torch.float16) for t, tree in _ONE_AND_FOUR),
        *(
            _case(t, context, tree, page=page, kv="fp8")
            for context, page in ((eight_k, 16), (131072, 64))
            for t, tree in _ONE_AND_FOUR
        ),
        # Heads: no group at all, groups 4, 8 and 16, groups 5 and 7 (Qwen2.5 32B and 7B), which
        # divide no tile, all heads of one GPU, and the two other head dims in use.
        *(
            _case(t, eight_k, tree, heads=heads, dim=dim)
            for heads, dim in (
                *(((1, 1), 128), ((32, 8), 128), ((16, 1), 128), ((20, 4), 128), ((28, 4), 128)),
                *(((128, 8), 128), ((64, 8), 64), ((16, 8), 256)),
            )
            for t, tree in _ONE_AND_FOUR
        ),
    )


def tiny_cases() -> tuple[Case, ...]:
    """Stay small enough for Triton's interpreter, and meet odd sizes: groups of 3, T = 5 and 17."""
    half, mixed = torch.float16, "mixed"
    return (
        _case(1, 5, heads=(2, 2), dim=16, page=1, tiny=True),
        _case(3, 40, heads=(6, 2), dim=16, page=4, requests=2, tree="star", tiny=True),
        _case(5, 90, mixed, heads=(3, 1), dim=32, requests=3, dtype=half, kv="fp8", tiny=True),
        _case(17, 63, heads=(1, 1), dim=64, page=64, tree="binary", tiny=True),
    )


# Tokens and query heads on one key head: 8, 32 and 64 packed rows, each of which has its own tile.
_GATE_ROWS = ((1, 8), (4, 8), (8, 8))


def gate_cases() -> tuple[Case, ...]:
    """Name each entry of the tile tables once; pages and dtypes take turns.

    fp8 beside the most rows of the widest heads, which leave the fewest registers to widen in, and
    beside the few rows that need no tensor cores. The decode and extend forms choose the same tile
    for any T: one of them is enough for those.
    """
    bf16, fp16 = QUERY_DTYPES
    places = ((64, 1, bf16), (128, 16, bf16), (256, 64, fp16))  # head dim, page, dtype
    return _gate(
        "gate",
        *(
            _gate_case(rows, dim, page, dtype, "")
            for dim, page, dtype in places
            for rows in _GATE_ROWS
        ),
        _gate_case((8, 8), 256, 64, fp16, "fp8"),
        _gate_case((1, 4), 128, 16, bf16, ""),
        _gate_case((1, 8), 128, 16, bf16, "fp8"),
    )


def long_gate_cases() -> tuple[Case, ...]:
    """Name every combination of what is compiled in."""
    return _gate(
        "long",
        *(
            _gate_case(rows, dim, page, dtype, kv)
            for rows in ((1, 4), *_GATE_ROWS, (17, 8))
            for dim in (64, 128, 256)
            for page in (1, 16, 64)
            for dtype in QUERY_DTYPES
            for kv in ("", "fp8")
        ),
    )


def _gate_case(rows: tuple[int, int], dim: int, page: int, dtype: torch.dtype, kv: str) -> Case:
    # 600 keys are few to draw and enough to be split.
    tokens, heads = rows
    return _case(tokens, 600, heads=(heads, 1), dim=dim, page=page, dtype=dtype, kv=kv)


def _gate(prefix: str, *cases: Case) -> tuple[Case, ...]:
    return tuple(
        dataclasses.replace(
            case, name=f"{prefix}-{case.name}", mode=None if case.dims["rows"] == 1 else "verify"
        )
        for case in cases
    )
