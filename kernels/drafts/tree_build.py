"""What a verify step needs to know of its draft trees, from their parents alone.

For request b and node i, with p = parents[b], A(i) = {i, p[i], p[p[i]], ..., 0}:
    positions[b, i]    = prefix_lens[b] + |A(i)| - 1     by parents, never by the flat index
    mask_words[b, i]   = sum over j in A(i) of 2^j       bit j: node i sees node j
    first_child[b, i]  = the smallest j with p[j] = i, else -1
    next_sibling[b, i] = the smallest j > i with p[j] = p[i], else -1

parents int32 [batch, T]: p[0] = -1 (the root is the last accepted token), 0 <= p[i] < i. All four
outputs are int32 [batch, T], exact; a mask word holds the bits of an unsigned number, so T is at
most 32. prefix_lens int32 [batch], read on the device like the parents.

A parent that is no earlier node is never used as an index: its node is a root of its own, at
depth 0, and the requests beside it do not notice (engines leave anything in padded requests).

Errors: ValueError for shapes and dtypes that are not those; the reference also for such a parent.
Source: the lists that SGLang calls positions, retrieve_next_token and retrieve_next_sibling, and
its bit-packed tree mask (QLEN_ONLY_BITPACKING).
"""

from __future__ import annotations

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance, _trees
from kernels._inputs import tensor
from kernels.attention import _paged
from kernels.drafts import _drafts

OUTPUTS = ("positions", "mask_words", "first_child", "next_sibling")


def must_fit(*, parents: torch.Tensor, prefix_lens: torch.Tensor) -> tuple[int, int]:
    """Return batch and T; ValueError for inputs that do not fit each other."""
    _drafts.must_be_int32(parents, "parents", (None, None))
    _drafts.must_be_int32(prefix_lens, "prefix_lens", (len(parents),))
    requests, tokens = parents.shape
    _drafts.must_be_block(requests, tokens)
    return requests, tokens


def reference(*, parents: torch.Tensor, prefix_lens: torch.Tensor) -> Outputs:
    """Walk each tree in plain Python; ValueError for parents that are no tree."""
    trees = [*zip(parents.tolist(), prefix_lens.tolist(), strict=True)]
    built = {
        "positions": [_trees.positions(tree, committed) for tree, committed in trees],
        "mask_words": [_trees.mask_words(tree) for tree, _ in trees],
        "first_child": [_trees.first_children(tree) for tree, _ in trees],
        "next_sibling": [_trees.next_siblings(tree) for tree, _ in trees],
    }
    return {name: _drafts.int32(built[name], parents.device) for name in OUTPUTS}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw the trees of a case and its lengths."""
    return {
        "parents": _drafts.int32(_drafts.parents_of(case), device),
        "prefix_lens": _drafts.int32(_paged.prefix_lengths(case), device),
    }


def cost(given: Inputs) -> Cost:
    """Read parents and lengths, write the four lists."""
    parents, prefix_lens = tensor(given, "parents"), tensor(given, "prefix_lens")
    return Cost(
        flops=0,
        read_bytes=parents.nbytes + prefix_lens.nbytes,
        written_bytes=len(OUTPUTS) * parents.nbytes,
    )


def _case(rows: int, tree: str, *, requests: int = 1, context: int = 8192, **more: bool) -> Case:
    dims = _drafts.dims_of(rows, context, tree=tree, requests=requests)
    return Case(name=_drafts.name_of(dims), dims=dims, dtype=torch.int32, mode="verify", **more)


def _measured_cases() -> tuple[Case, ...]:
    """Vary the tokens, then the batch, then the shape of the tree; the length is only added."""
    tree_of = _drafts.TREE_OF_TOKENS
    return (
        *(_case(tokens, tree, cpu=tokens in (1, 8)) for tokens, tree in tree_of.items()),
        *(_case(t, tree_of[t], requests=b) for b in (2, 4, 8, 16, 64) for t in (1, 4, 16)),
        *(_case(8, tree) for tree in ("chain", "star", "binary")),
        _case(8, "mixed", requests=16),
    )


OP = Op(
    name="tree_build",
    part="metadata",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(7, "random", requests=3, context=11, tiny=True),
        _case(1, "chain", context=5, tiny=True),
        _case(32, "mixed", requests=5, context=2**20, tiny=True),
        *_measured_cases(),
    ),
    tolerance=Tolerance(row=0.0, why="whole numbers, which have no rounding"),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_build(*, parents: torch.Tensor, prefix_lens: torch.Tensor) -> Outputs:
    """Square the reachability matrix five times; compare all pairs of nodes for the lists."""
    _, tokens = must_fit(parents=parents, prefix_lens=prefix_lens)
    node = torch.arange(tokens, device=parents.device)
    some = (parents >= 0) & (parents < node)
    up = torch.where(some, parents, -1)
    sees = (up[:, :, None] == node) | (node[:, None] == node)  # [batch, T, T]
    reach = sees.float()
    for _ in range((_trees.MOST_TOKENS - 1).bit_length()):
        reach = (reach @ reach).clamp_(max=1.0)
    seen = reach.long()
    child = torch.where(up[:, None, :] == node[:, None], node, tokens).amin(-1)
    later = (up[:, None, :] == up[:, :, None]) & some[:, :, None] & (node > node[:, None])
    sibling = torch.where(later, node, tokens).amin(-1)
    return {
        "positions": (prefix_lens[:, None] + seen.sum(-1) - 1).to(torch.int32),
        "mask_words": (seen << node).sum(-1).to(torch.int32),
        "first_child": torch.where(child < tokens, child, -1).to(torch.int32),
        "next_sibling": torch.where(sibling < tokens, sibling, -1).to(torch.int32),
    }
