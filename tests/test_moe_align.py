"""Slots sorted by expert and padded to blocks, on every implementation that runs here."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Outputs, _execute
from kernels.moe import _align_cupy, _align_triton
from kernels.moe import moe_align as op
from kernels.moe import moe_align_cupy as _cupy  # noqa: F401  # adds an implementation
from kernels.moe import moe_align_triton as _triton  # noqa: F401  # adds an implementation
from kernels.moe._align_layout import BLOCKS, capacity_of, empty_outputs
from tests import op_runs

ALL = ("torch", "triton", "cupy")
OWN = {"triton": _align_triton.align, "cupy": _align_cupy.align}
DEVICE = _execute.device()


def run(name: str, ids: Any, *, experts: int, block: int) -> Outputs:
    """Run on `ids`; the outputs' memory is poisoned before."""
    given_ids = torch.as_tensor(ids, dtype=torch.int32, device=DEVICE)
    return op_runs.run(op.OP, name, {"ids": given_ids, "experts": experts, "block": block})


def by_stable_sort(ids: Any, *, experts: int, block: int) -> dict[str, list[int]]:
    """Sort all slots once, by NumPy, and cut what is sorted into blocks: no loop over experts."""
    flat = np.asarray(ids).reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[(flat[order] >= 0) & (flat[order] < experts)]
    slots: list[int] = []
    owners: list[int] = []
    for expert, group in itertools.groupby(order.tolist(), key=lambda slot: int(flat[slot])):
        mine = list(group)
        for first in range(0, len(mine), block):
            part = mine[first : first + block]
            slots += part + [flat.size] * (block - len(part))
            owners.append(expert)
    blocks = min(flat.size, experts) + flat.size // block
    used = len(slots)
    return {
        "sorted_slots": slots + [flat.size] * (blocks * block - used),
        "block_experts": owners + [-1] * (blocks - len(owners)),
        "padded_count": [used],
    }


def listed(outputs: Outputs) -> dict[str, list[int]]:
    assert {one.dtype for one in outputs.values()} == {torch.int32}
    return {name: one.tolist() for name, one in outputs.items()}


def drawn(tokens: int, top_k: int, *, experts: int, seed: int = 0) -> torch.Tensor:
    """Draw ids, some of them no expert's and some of them twice in a row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, experts + 2, (tokens, top_k), generator=generator).int()


@pytest.mark.parametrize("name", [*ALL, "reference"])
def test_any_number_of_tokens_up_to_64_gives_what_a_stable_sort_gives(name: str) -> None:
    for tokens in range(1, 65):
        ids = drawn(tokens, 2, experts=12, seed=tokens)
        if name == "reference":
            got = op.reference(ids=ids, experts=12, block=4)
        else:
            got = run(name, ids, experts=12, block=4)
        assert listed(got) == by_stable_sort(ids, experts=12, block=4), tokens


@pytest.mark.parametrize("name", ALL)
def test_an_example_by_hand(name: str) -> None:
    got = run(name, [[2, 0, 5], [0, 2, -1], [2, 6, 0]], experts=6, block=2)
    n = 9  # what is no slot
    assert listed(got) == {
        #                  expert 0     | expert 2     | 5   | unused
        "sorted_slots": [1, 3, 8, n, 0, 4, 6, n, 2, n, *[n] * 10],
        "block_experts": [0, 0, 2, 2, 5, *[-1] * 5],
        "padded_count": [10],
    }


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([[3]], id="one-slot"),
        pytest.param([[7, 0]], id="one-token"),
        pytest.param([[5, 5, 5, 5]] * 9, id="one-expert"),
        pytest.param([[7, 6], [6, 7], [7, 6]], id="experts-without-a-token"),
        pytest.param([[0, -1], [1, 0]], id="one-absent"),
        pytest.param([[0, 1], [-1, -1], [1, 0]], id="a-row-absent"),
        pytest.param([[-1, -1]] * 3, id="all-absent"),
        pytest.param([[8, 0], [2**31 - 1, 7]], id="beyond-the-experts"),
        pytest.param([[-(2**31), 0], [1, -7]], id="far-below-zero"),
        pytest.param([[4, 4, 1], [1, 4, 4]], id="twice-in-a-row"),
        pytest.param([[7, 6, 5, 4, 3, 2, 1, 0]] * 2, id="descending"),
        # 17 rows fall to two programs: the second has one slot.
        pytest.param([[n % 8] for n in range(17)], id="one-slot-for-the-last-program"),
    ],
)
def test_edges(name: str, ids: list[list[int]]) -> None:
    for block in (1, 4, 16):
        got = run(name, ids, experts=8, block=block)
        assert listed(got) == by_stable_sort(ids, experts=8, block=block)


@pytest.mark.parametrize("name", ALL)
def test_a_block_without_an_expert_names_none(name: str) -> None:
    """vllm#35161: 0 there ran expert 0 once more for each of them."""
    got = run(name, [[1, 1, 1]], experts=4, block=2)
    used = int(got["padded_count"]) // 2
    assert used == 2
    assert got["block_experts"].tolist() == [1] * used + [-1] * (len(got["block_experts"]) - used)
    assert (got["sorted_slots"][2 * used :] == 3).all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("experts", [1, 31, 33, 384, 512])
def test_any_number_of_experts(name: str, experts: int) -> None:
    ids = drawn(9, 4, experts=experts, seed=experts)
    ids[0, 0], ids[8, 3] = experts - 1, 0
    got = run(name, ids, experts=experts, block=8)
    assert listed(got) == by_stable_sort(ids, experts=experts, block=8)


@pytest.mark.parametrize("name", ALL)
def test_many_tokens_of_many_choices(name: str) -> None:
    """66 tokens x 16 choices: more slots than Triton counts at once, and than it ranks at once."""
    ids = torch.arange(1056).remainder(5).view(66, 16)
    got = run(name, ids, experts=5, block=64)
    assert listed(got) == by_stable_sort(ids, experts=5, block=64)


@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 20),
    top_k=st.integers(1, 16),
    experts=st.integers(1, 40),
    block=st.sampled_from(BLOCKS),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("name", ALL)
def test_any_ids_give_what_a_stable_sort_gives(
    name: str, tokens: int, top_k: int, experts: int, block: int, seed: int
) -> None:
    ids = drawn(tokens, top_k, experts=experts, seed=seed)
    got = run(name, ids, experts=experts, block=block)
    assert listed(got) == by_stable_sort(ids, experts=experts, block=block)


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    block=st.sampled_from(BLOCKS),
    absent=st.integers(0, 5),
)
def test_no_ids_exceed_the_capacity(counts: list[int], block: int, absent: int) -> None:
    slots = sum(counts) + absent
    needed = sum(-(-count // block) for count in counts) * block
    assert needed <= capacity_of(slots=slots, experts=len(counts), block=block)


def test_some_ids_need_all_of_the_capacity() -> None:
    ids = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2]]).int()  # three blocks of two, one slot more
    found = op.reference(ids=ids, experts=4, block=3)
    assert found["padded_count"].tolist() == [9]
    ids = torch.tensor([[0, 0, 0, 0, 1, 2, 3]]).int()
    found = op.reference(ids=ids, experts=4, block=2)
    assert found["padded_count"].tolist() == [10]
    assert capacity_of(slots=7, experts=4, block=2) == 14
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 2]]).int()
    found = op.reference(ids=ids, experts=3, block=2)
    assert found["padded_count"].tolist() == [10]
    assert capacity_of(slots=5, experts=8, block=4) == 24  # five experts and one block more


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_written_beside_the_given_tensors(name: str) -> None:
    op_runs.skip_if_it_cannot_run(op.OP, name)
    ids = drawn(9, 3, experts=10).to(DEVICE)
    with _execute.stand_ins():
        room = {
            key: torch.full((len(one) + 64,), 77, dtype=torch.int32, device=DEVICE)
            for key, one in empty_outputs(ids, experts=10, block=4).items()
        }
        inside = {key: one[32:-32] for key, one in room.items()}
        OWN[name](ids, experts=10, block=4, **inside)
    assert listed(inside) == by_stable_sort(ids.cpu(), experts=10, block=4)
    for one in room.values():
        assert (one[:32] == 77).all()
        assert (one[-32:] == 77).all()


@pytest.mark.parametrize("name", OWN)
def test_a_second_call_with_other_ids_leaves_nothing_of_the_first(name: str) -> None:
    op_runs.skip_if_it_cannot_run(op.OP, name)
    ids = drawn(9, 3, experts=10, seed=1).to(DEVICE)
    prepared = op.OP.implementations[name].prepare({"ids": ids, "experts": 10, "block": 4})
    with _execute.stand_ins():
        prepared.call()
        ids.copy_(torch.full_like(ids, 9))
        got = prepared.call()
    assert listed(got) == by_stable_sort(ids.cpu(), experts=10, block=4)
    assert prepared.launches == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ids": torch.zeros(2, 3)}, "give a contiguous int32 tensor"),
        ({"ids": torch.zeros(6, dtype=torch.int32)}, r"of \(6,\)"),
        ({"ids": torch.zeros(3, 2, dtype=torch.int32).T}, "contiguous"),
        ({"ids": torch.zeros(0, 2, dtype=torch.int32)}, "at least one token"),
        ({"ids": torch.zeros(2, 17, dtype=torch.int32)}, "1 to 16 a token"),
        ({"experts": 0}, "0 experts: give 1 to 512"),
        ({"experts": 513}, "513 experts"),
        ({"block": 12}, "a block of 12: give one of 1, 2, 4"),
        ({"block": 512}, "a block of 512"),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_what_does_not_fit_is_named(name: str, changed: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"ids": torch.zeros(2, 3, dtype=torch.int32), "experts": 4, "block": 8}
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].run({**good, **changed})


def test_cost_counts_each_cell_once() -> None:
    found = op.cost({"ids": torch.zeros(4, 8, dtype=torch.int32), "experts": 384, "block": 16})
    assert found.read_bytes == 4 * 32
    # 32 experts at most, and two blocks more: 34 blocks of 16 cells with an expert each, a count.
    assert found.written_bytes == 4 * (34 * 16 + 34 + 1)
    assert found.flops == 0


def test_counts_are_those_of_what_is_used() -> None:
    ids = torch.tensor([[3, 1], [3, -1], [3, 9]]).int()
    assert op.counts({"ids": ids, "experts": 9, "block": 2}) == {
        "distinct_experts": 2,
        "blocks": 3,
    }


def test_one_token_stands_beside_every_other_number_of_tokens() -> None:
    def rest(dims: Any) -> tuple[object, ...]:
        return tuple((name, value) for name, value in dims.items() if name != "rows")

    measured = [case for case in op.OP.cases if not case.tiny]
    single = {rest(case.dims) for case in measured if case.dims["rows"] == 1}
    assert [case.name for case in measured if rest(case.dims) not in single] == []
