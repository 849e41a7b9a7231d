"""The named points of `mla_verify`: tiny, measured, and those that the compile gate builds.

A name says every dim: t (tokens a request), b (requests), l (committed tokens of the longest), the
tree, p (page), h (heads of a rank), dtype, and kv (the cache's, where it is another one); tiny
cases of small heads also d (latent + rope). Several requests are ragged.
"""

import dataclasses

import torch

from kernels import Case
from kernels.attention._paged import QUERY_DTYPES, context_name
from verifyscope.records import Value

DEEPSEEK_DIMS = (512, 64)  # latent and rope of every published MLA model


def _case(
    rows: int,
    context: int,
    tree: str = "chain",
    *,
    requests: int = 1,
    heads: int = 8,
    page: int = 64,
    dims: tuple[int, int] = DEEPSEEK_DIMS,
    dtype: torch.dtype = torch.bfloat16,
    kv: str = "",
    **more: bool,
) -> Case:
    """Name a point by all of its dims."""
    latent, rope = dims
    named: dict[str, Value] = {
        "rows": rows,
        "requests": requests,
        "context": context,
        "lengths": "ragged" if requests > 1 else "equal",
        "tree": tree,
        "page": page,
        "heads": heads,
        "latent": latent,
        "rope": rope,
        "kv": kv or QUERY_DTYPES[dtype],
    }
    name = f"t{rows}-b{requests}-l{context_name(context)}-{tree}-p{page}-h{heads}"
    name += f"-{QUERY_DTYPES[dtype]}" + (f"-kv{kv}" if kv else "")
    name += f"-d{latent}+{rope}" if dims != DEEPSEEK_DIMS else ""
    return Case(name=name, dims=named, dtype=dtype, mode="verify", **more)


_ONE_AND_FOUR = ((1, "chain"), (4, "eagle4"))


def measured_cases() -> tuple[Case, ...]:
    """Vary one axis at a time around one request of 8k tokens on one rank of Kimi-K2.5, TP 8.

    T = 1 stands beside every other T: time(T) / time(1) decides whether speculation pays.
    """
    eight_k = 8192
    return (
        *(_case(t, eight_k, cpu=True) for t in (1, 2, 3)),
        *(_case(t, eight_k, "eagle4", cpu=True) for t in (4, 6, 8)),
        *(_case(t, eight_k, "eagle8", cpu=True) for t in (12, 16)),
        # The context, from nothing committed to a million tokens.
        *(_case(t, 0, tree, cpu=True) for t, tree in ((1, "chain"), (8, "eagle4"))),
        *(_case(t, 1, tree, cpu=True) for t, tree in _ONE_AND_FOUR),
        *(_case(t, 127, tree, cpu=True) for t, tree in _ONE_AND_FOUR),
        *(
            _case(t, context, tree, cpu=context == 1024)
            for context in (1024, 32768, 131072)
            for t, tree in (*_ONE_AND_FOUR, (8, "eagle4"), (16, "eagle8"))
        ),
        *(_case(t, 1048576, tree) for t, tree in _ONE_AND_FOUR),
        # The batch, with ragged lengths.
        *(
            _case(t, eight_k, tree, requests=requests)
            for requests in (2, 4, 8, 16, 32, 64)
            for t, tree in _ONE_AND_FOUR
        ),
        # The shape of the tree at one T, and a tree for each request.
        *(_case(8, 1024, tree, cpu=True) for tree in ("chain", "star", "binary", "eagle8")),
        _case(8, eight_k, "mixed", requests=8),
        *(_case(t, eight_k, tree, page=page) for page in (1, 16) for t, tree in _ONE_AND_FOUR),
        *(_case(t, eight_k, tree, dtype=torch.float16) for t, tree in _ONE_AND_FOUR),
        *(
            _case(t, context, tree, kv="fp8")
            for context in (eight_k, 131072)
            for t, tree in _ONE_AND_FOUR
        ),
        # Heads of a rank: 64 and 128 heads over 64 ranks to 1, and 20, which divides no tile.
        *(
            _case(t, eight_k, tree, heads=heads)
            for heads in (1, 16, 20, 64, 128)
            for t, tree in _ONE_AND_FOUR
        ),
    )


def tiny_cases() -> tuple[Case, ...]:
    """Stay small enough for Triton's interpreter, and meet odd sizes: 3 heads, T = 5 and 17."""
    small, half = (32, 16), torch.float16
    return (
        _case(1, 5, heads=2, dims=small, page=1, tiny=True),
        _case(3, 40, "star", heads=3, dims=small, page=4, requests=2, tiny=True),
        _case(5, 31, "mixed", heads=3, dims=small, page=16, requests=3, dtype=half, tiny=True),
        _case(17, 63, "binary", heads=2, dims=small, page=64, tiny=True),
        _case(4, 37, "eagle4", heads=2, dims=(32, 32), page=16, kv="fp8", tiny=True),
        _case(3, 70, heads=8, page=64, tiny=True),
    )


# Tokens and heads: 8, 32 and 64 packed rows, one for each size of the tile tables.
_GATE_ROWS = ((1, 8), (4, 8), (8, 8))


def gate_cases() -> tuple[Case, ...]:
    """Name each entry of the tile tables once; pages and dtypes take turns.

    The decode and extend forms choose the same tile for any T: one of them is enough for those.
    """
    pages, dtypes = (64, 16, 1), tuple(QUERY_DTYPES)
    named = (
        _case(t, 600, heads=heads, page=pages[n % 3], dtype=dtypes[n % 2], kv=kv)
        for n, (t, heads) in enumerate(_GATE_ROWS)
        for kv in ("", "fp8")
    )
    return tuple(
        dataclasses.replace(
            case, name=f"gate-{case.name}", mode=None if case.dims["rows"] == 1 else "verify"
        )
        for case in named
    )


def long_gate_cases() -> tuple[Case, ...]:
    """Name every combination of what is compiled in."""
    named = (
        _case(t, 600, heads=heads, page=page, dtype=dtype, kv=kv)
        for t, heads in _GATE_ROWS
        for page in (1, 16, 64)
        for dtype in QUERY_DTYPES
        for kv in ("", "fp8")
    )
    return tuple(dataclasses.replace(case, name=f"long-{case.name}") for case in named)
