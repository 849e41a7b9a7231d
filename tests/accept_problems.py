"""Problems for the accept ops, and how tests run them; used by the tests of all three."""

from collections.abc import Sequence
from typing import Any

import torch

from kernels import Inputs, _trees, find_op
from kernels.drafts import _drafts
from tests import op_runs
from tests.op_runs import DEVICE

ALL = ("torch", "triton", "cupy")


def run(op: str, name: str, inputs: Inputs) -> dict[str, Any]:
    """Run on `inputs`; the outputs' memory holds the largest number before."""
    got = op_runs.run(find_op(op), name, inputs)
    assert {value.dtype for value in got.values()} == {torch.int32}
    return {key: value.tolist() for key, value in got.items()}


def wanted(op: str, inputs: Inputs) -> dict[str, Any]:
    return {key: value.tolist() for key, value in find_op(op).reference(**inputs).items()}


def lists(trees: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    return {
        "first_child": _drafts.int32([_trees.first_children(tree) for tree in trees], DEVICE),
        "next_sibling": _drafts.int32([_trees.next_siblings(tree) for tree in trees], DEVICE),
    }


def tokens_of(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return _drafts.int32(rows, DEVICE)


def coin_grid(count: int) -> list[float]:
    """Return the middles of `count` equal parts of [0, 1): each stands for its part."""
    return [(n + 0.5) / count for n in range(count)]


def fixed(
    trees: Sequence[Sequence[int]],
    drafts: Sequence[Sequence[int]],
    *,
    vocabulary: int,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Return drafts of `trees` with random targets and coins."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    sizes = len(trees), len(trees[0])
    return {
        "draft_ids": tokens_of(drafts),
        **lists(trees),
        "target_probs": torch.randn(*sizes, vocabulary, generator=generator, device=DEVICE)
        .mul_(2)
        .softmax(-1),
        "coins": torch.rand(sizes, generator=generator, device=DEVICE),
        "bonus_coins": torch.rand(sizes[0], generator=generator, device=DEVICE),
    }


def emitted(got: dict[str, Any], drafts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the tokens of each request: those accepted, then the bonus."""
    return [
        (*(ids[node] for node in path[1 : 1 + count]), bonus)
        for path, count, bonus, ids in zip(
            got["path"], got["accepted"], got["bonus"], drafts, strict=True
        )
    ]
