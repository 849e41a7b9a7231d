"""The draft blocks that the metadata and sampling ops are measured on: a tree for each request.

A case's dims say "rows" (T, tokens a request), "requests", "context" (committed tokens of the
longest), "lengths" (equal or ragged) and "tree": one of `_trees.TREES`, "mixed" for a different one
a request, or "random", where each node's parent is any earlier node, drawn by the case's seed.

Errors: ValueError for what is no such tree or more than 32 tokens.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch

from kernels import Case, _trees
from kernels._inputs import must_be
from kernels.attention import _paged
from verifyscope.records import Value

# How wide EAGLE drafts at each T (as in kernels/attention/_tree_attention_cases.py).
TREE_OF_TOKENS: Mapping[int, str] = {
    **dict.fromkeys((1, 2, 3), "chain"),
    **dict.fromkeys((4, 6, 8), "eagle4"),
    **dict.fromkeys((12, 16, 32), "eagle8"),
}


def dims_of(rows: int, context: int, *, tree: str, requests: int) -> dict[str, Value]:
    """Return the dims of a draft block; several requests are ragged."""
    return {
        "rows": rows,
        "requests": requests,
        "context": context,
        "lengths": "ragged" if requests > 1 else "equal",
        "tree": tree,
    }


def name_of(dims: Mapping[str, Value]) -> str:
    """Name a draft block: t (tokens a request), b (requests), l (committed tokens), the tree."""
    context = dims["context"]
    short = f"{context // 1024}k" if isinstance(context, int) and _whole_k(context) else context
    return f"t{dims['rows']}-b{dims['requests']}-l{short}-{dims['tree']}"


def _whole_k(number: int) -> bool:
    return number > 0 and number % 1024 == 0


def parents_of(case: Case) -> list[list[int]]:
    """Return the parents of each request's tree."""
    if case.dims["tree"] != "random":
        return _paged.trees(case)
    drawn = random.Random(case.seed)
    tokens = range(1, case.number("rows"))
    return [
        [_trees.NONE, *(drawn.randrange(node) for node in tokens)]
        for _ in range(case.number("requests"))
    ]


def int32(rows: object, device: torch.device) -> torch.Tensor:
    """Return whole numbers as an int32 tensor; unsigned words keep their bits."""
    return torch.tensor(rows).to(torch.int32).to(device)


def must_be_int32(tensor: torch.Tensor, name: str, sizes: tuple[int | None, ...]) -> None:
    """Raise ValueError unless `tensor` is a contiguous int32 of these sizes; None is any."""
    must_be(tensor, name, sizes, dtype=torch.int32)


def must_be_block(requests: int, tokens: int) -> None:
    """Raise ValueError for a block of no request, or of tokens that no mask word holds."""
    if requests < 1 or not 1 <= tokens <= _trees.MOST_TOKENS:
        raise ValueError(
            f"{requests} requests of {tokens} draft tokens: give at least one request and 1 to "
            f"{_trees.MOST_TOKENS} tokens, the bits of a mask word; verify fewer at once"
        )
