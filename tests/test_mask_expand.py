"""Full tree masks, unpacked and packed, on every implementation that can be executed here."""

import dataclasses
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Inputs, Op, _execute, _trees, find_op
from kernels.drafts import _drafts, _mask_layout
from kernels.drafts import mask_expand_packed_flashinfer as _expand_packed_flashinfer  # noqa: F401
from kernels.drafts import mask_pack_flashinfer as adapter
from tests import flashinfer_stand_in as stand_in
from tests import op_runs
from tests.flashinfer_cases import use

ALL = ("torch", "triton", "cupy")
OWN = ("triton", "cupy")
OPS = ("mask_expand", "mask_pack", "mask_expand_packed")
DEVICE = _execute.device()
EXAMPLE = [-1, 0, 0, 1, 1, 2, 3]


def visible(tree: Sequence[int], length: int) -> npt.NDArray[np.bool_]:
    """Return [T, L + T] from the parents alone."""
    mask = np.zeros((len(tree), length + len(tree)), dtype=bool)
    mask[:, :length] = True
    for node in range(len(tree)):
        at = node
        while at != _trees.NONE:
            mask[node, length + at] = True
            at = tree[at]
    return mask


def given_to(op: str, trees: Sequence[Sequence[int]], lengths: Sequence[int]) -> dict[str, Any]:
    """Return the inputs of `op` for these trees and lengths."""
    tokens = len(trees[0])
    inputs: dict[str, Any] = {"prefix_lens": _drafts.int32(lengths, DEVICE)}
    if op == "mask_pack":
        masks = [visible(*one).reshape(-1) for one in zip(trees, lengths, strict=True)]
        inputs["mask"] = torch.from_numpy(np.concatenate(masks)).to(DEVICE)
        inputs["draft_tokens"] = tokens
    else:
        inputs["mask_words"] = _drafts.int32([_trees.mask_words(tree) for tree in trees], DEVICE)
    if op == "mask_expand":
        return inputs | {"mask_bits": sum(_mask_layout.bits_of(lengths, tokens))}
    return inputs | {"packed_bytes": sum(_mask_layout.bytes_of(lengths, tokens))}


def wanted(op: str, trees: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    """Return the bytes that come out, by NumPy."""
    masks = [visible(*one).reshape(-1) for one in zip(trees, lengths, strict=True)]
    if op == "mask_expand":
        return [int(bit) for bit in np.concatenate(masks)]
    return [int(byte) for mask in masks for byte in np.packbits(mask, bitorder="little")]


def run(op: str, name: str, inputs: Inputs) -> list[int]:
    """Run and return the bytes; the output's memory is 255 before."""
    (got,) = op_runs.run(find_op(op), name, inputs).values()
    assert got.dtype == (torch.bool if op == "mask_expand" else torch.uint8)
    return [int(byte) for byte in got.view(torch.uint8).tolist()]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("length", [0, 1, 7, 50, 64])
def test_the_worked_example_comes_out_bit_for_bit(op: str, name: str, length: int) -> None:
    assert (length + len(EXAMPLE)) % 8 != 0 or length == 1  # rows that begin within a byte
    got = run(op, name, given_to(op, [EXAMPLE], [length]))
    assert got == wanted(op, [EXAMPLE], [length])


@pytest.mark.parametrize("name", ALL)
def test_the_star_hides_siblings_and_the_chain_is_causal(name: str) -> None:
    chain = run("mask_expand", name, given_to("mask_expand", [_trees.tree("chain", 4)], [2]))
    assert np.array_equal(np.reshape(chain, (4, 6)), np.tri(4, 6, 2))
    star = run("mask_expand", name, given_to("mask_expand", [_trees.tree("star", 4)], [2]))
    assert np.array_equal(np.reshape(star, (4, 6))[:, 3:], np.eye(4)[:, 1:])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ALL)
def test_a_request_begins_on_a_byte_and_its_padding_is_zero(op: str, name: str) -> None:
    trees, lengths = [_trees.tree("chain", 3)] * 3, [0, 2, 5]
    got = run(op, name, given_to(op, trees, lengths))
    assert got == wanted(op, trees, lengths)
    if op != "mask_expand":
        # 9, 15 and 24 bits: two, two and three bytes.
        assert [len(got), got[1] >> 1, got[3] >> 7] == [7, 0, 0]


@pytest.mark.parametrize("op", ["mask_pack", "mask_expand_packed"])
def test_the_default_bit_order_of_numpy_and_flashinfer_would_be_another_mask(op: str) -> None:
    mask = visible(EXAMPLE, 50)
    right = run(op, "torch", given_to(op, [EXAMPLE], [50]))
    flat = torch.from_numpy(mask.reshape(-1))
    offsets = torch.tensor([0, mask.size], dtype=torch.int32)
    by_default = stand_in.segment_packbits(flat, offsets)[0].tolist()
    assert by_default == np.packbits(mask.reshape(-1)).tolist()
    assert by_default != right
    # As a kernel reads it, lowest bit first, it shows other keys, and the size does not tell.
    read = np.unpackbits(np.array(by_default, dtype=np.uint8), bitorder="little")
    assert len(by_default) == len(right)
    assert (read[: mask.size].reshape(mask.shape) != mask).any()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", OWN)
def test_long_rows_are_filled_by_several_blocks_without_a_gap(op: str, name: str) -> None:
    trees, lengths = [_trees.tree("eagle4", 2)] * 2, [20_003, 9_998]
    assert run(op, name, given_to(op, trees, lengths)) == wanted(op, trees, lengths)


@pytest.mark.parametrize("op", ["mask_expand", "mask_expand_packed"])
@pytest.mark.parametrize("name", ALL)
def test_a_length_below_zero_counts_as_zero(op: str, name: str) -> None:
    trees = [_trees.tree("star", 5)] * 2
    inputs = given_to(op, trees, [0, 3])
    inputs["prefix_lens"][0] = -7
    assert run(op, name, inputs) == wanted(op, trees, [0, 3])


@pytest.mark.parametrize("op", ["mask_expand", "mask_expand_packed"])
@pytest.mark.parametrize("name", OWN)
def test_offsets_beyond_32_bits_do_not_wrap_into_the_mask(op: str, name: str) -> None:
    # 2 rows of 2^31 columns: the second request begins at bit 2^32, which is 0 in 32 bits.
    room = "mask_bits" if op == "mask_expand" else "packed_bytes"
    inputs = given_to(op, [_trees.tree("star", 2)] * 2, [0, 0]) | {room: 1000}
    inputs["prefix_lens"][0] = 2**31 - 2
    assert set(run(op, name, inputs)) == {1 if op == "mask_expand" else 255}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("change", [-30, -1, 40])
def test_a_room_that_does_not_fit_is_never_written_beyond_nor_touched_behind(
    op: str, name: str, change: int
) -> None:
    trees, lengths = [_trees.tree("star", 3)] * 3, [130, 40, 9]
    inputs, want = given_to(op, trees, lengths), wanted(op, trees, lengths)
    room = "mask_bits" if op == "mask_expand" else "packed_bytes"
    inputs[room] += change
    got = run(op, name, inputs)
    assert got == (want + [255] * max(0, change))[: inputs[room]]


Forest = tuple[list[list[int]], list[int]]


@st.composite
def forests(draw: st.DrawFn, most_tokens: int) -> Forest:
    tokens = draw(st.integers(1, most_tokens))
    trees = [
        [-1, *(draw(st.integers(0, node - 1)) for node in range(1, tokens))]
        for _ in range(draw(st.integers(1, 3)))
    ]
    lengths = st.integers(0, 70) | st.integers(2040, 2060)
    return trees, draw(st.lists(lengths, min_size=len(trees), max_size=len(trees)))


@settings(max_examples=10, deadline=None)
@given(forests(most_tokens=32))
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_any_trees_and_ragged_lengths_match_numpy(op: str, name: str, drawn: Forest) -> None:
    assert run(op, name, given_to(op, *drawn)) == wanted(op, *drawn)


@settings(max_examples=5, deadline=None)
@given(forests(most_tokens=3))
@pytest.mark.parametrize("op", OPS)
def test_small_trees_and_ragged_lengths_match_numpy_in_triton(op: str, drawn: Forest) -> None:
    assert run(op, "triton", given_to(op, *drawn)) == wanted(op, *drawn)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(forests(most_tokens=32))
@pytest.mark.parametrize("op", OPS)
def test_any_trees_and_ragged_lengths_match_numpy_in_triton(op: str, drawn: Forest) -> None:
    assert run(op, "triton", given_to(op, *drawn)) == wanted(op, *drawn)


@pytest.mark.parametrize("op", OPS)
def test_the_reference_equals_numpy_and_refuses_another_size(op: str) -> None:
    trees, lengths = [EXAMPLE, _trees.tree("star", 7)], [9, 0]
    inputs, found = given_to(op, trees, lengths), find_op(op)
    (got,) = found.reference(**inputs).values()
    assert got.to(torch.uint8).tolist() == wanted(op, trees, lengths)
    room = "mask_bits" if op == "mask_expand" else "packed_bytes"
    with pytest.raises(ValueError, match=f"{room} is {inputs[room] + 1}, but these lengths have"):
        found.reference(**inputs | {room: inputs[room] + 1})


BAD = [
    ("mask_expand", {"mask_bits": 0}, "mask_bits is 0: give the size of the output"),
    ("mask_expand", {"mask_words": torch.ones(1, 33, dtype=torch.int32)}, "33 draft tokens"),
    ("mask_expand", {"prefix_lens": torch.ones(2, dtype=torch.int32)}, r"give \[1\]"),
    ("mask_expand_packed", {"packed_bytes": -1}, "packed_bytes is -1"),
    ("mask_expand_packed", {"mask_words": torch.ones(1, 2)}, r"mask_words is torch\.float32"),
    ("mask_pack", {"mask": torch.ones(20)}, r"mask is torch\.float32 of \(20,\)"),
    ("mask_pack", {"mask": torch.ones(4, 5).bool()}, r"give a flat contiguous bool"),
    ("mask_pack", {"draft_tokens": 0}, "0 draft tokens: give"),
    ("mask_pack", {"prefix_lens": torch.ones(1)}, r"prefix_lens is torch\.float32"),
]


@pytest.mark.parametrize(("op", "changed", "message"), BAD)
@pytest.mark.parametrize("name", ALL)
def test_inputs_that_do_not_fit_are_named(
    op: str, name: str, changed: dict[str, Any], message: str
) -> None:
    inputs = given_to(op, [_trees.tree("star", 4)], [1]) | changed
    with pytest.raises(ValueError, match=message):
        find_op(op).implementations[name].run(inputs)


def test_cost_counts_a_byte_a_bit_unpacked_and_a_bit_packed() -> None:
    trees, lengths = [EXAMPLE] * 2, [50, 9]
    bits = 7 * 57 + 7 * 16
    words = 4 * (14 + 2)
    cost = {op: find_op(op).cost(given_to(op, trees, lengths)) for op in OPS}
    assert (cost["mask_expand"].read_bytes, cost["mask_expand"].written_bytes) == (words, bits)
    assert (cost["mask_pack"].read_bytes, cost["mask_pack"].written_bytes) == (bits + 8, 50 + 14)
    packed = cost["mask_expand_packed"]
    assert (packed.read_bytes, packed.written_bytes) == (words, 50 + 14)


@pytest.mark.parametrize("op", [find_op(op) for op in OPS], ids=OPS)
def test_long_contexts_and_lengths_that_fill_no_byte_are_measured(op: Op) -> None:
    measured = [case for case in op.cases if not case.tiny]
    longest = next(case for case in measured if case.name == "t16-b1-l128k-eagle8")
    lengths = [longest.number("context")]
    assert sum(_mask_layout.bits_of(lengths, 16)) == 2_097_408  # 2.1 MB
    assert {case.dims["requests"] for case in measured} == {1, 4, 16, 64}
    assert any(case.number("context") % 8 for case in measured)
    assert {1, 16} <= {case.dims["rows"] for case in measured if case.dims["context"] == 131071}


# --- FlashInfer ---


@pytest.fixture(params=["0.6.18", "0.7.4"])
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return use(monkeypatch, stand_in.made(request.param))


@pytest.mark.parametrize("op", ["mask_pack", "mask_expand_packed"])
def test_flashinfer_is_told_the_bit_order_and_gives_the_same_bytes(
    op: str, library: ModuleType
) -> None:
    trees, lengths = [_trees.tree("binary", 6), _trees.tree("star", 6)], [13, 4]
    prepared = find_op(op).implementations["flashinfer"].prepare(given_to(op, trees, lengths))
    assert prepared.outputs()["packed"].tolist() == wanted(op, trees, lengths)
    assert prepared.facts == {"flashinfer": library.__version__, "bitorder": "little"}


def test_a_mask_whose_bits_flashinfer_cannot_count_is_refused(library: ModuleType) -> None:
    case = find_op("mask_pack").cases[0]
    assert adapter.refuses(case) is None
    huge = dataclasses.replace(
        case, dims={**case.dims, "rows": 32, "requests": 64, "context": 2**20, "lengths": "equal"}
    )
    assert "int32" in str(adapter.refuses(huge))
    with pytest.raises(ValueError, match="int32"):
        adapter.offsets_of(torch.tensor([2**30], dtype=torch.int32), 2)


# --- CUDA graphs ---


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="a CUDA graph needs an NVIDIA GPU")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ALL)
def test_a_replay_follows_lengths_and_trees(op: str, name: str) -> None:
    from kernels._capture import capture
    from kernels._graph import poison

    trees, lengths = [_trees.tree(tree, 8) for tree in ("chain", "star", "binary")], [130, 9, 64]
    inputs = given_to(op, trees, lengths)
    captured = capture(find_op(op).implementations[name].prepare(inputs).call)
    for turn in (1, 2):  # the same lengths in another order need the same room
        turned = trees[turn:] + trees[:turn], lengths[turn:] + lengths[:turn]
        for key, value in given_to(op, *turned).items():
            if isinstance(value, torch.Tensor):
                inputs[key].copy_(value)
        poison(captured.outputs)
        captured.replay()
        torch.cuda.synchronize()
        (got,) = captured.outputs.values()
        assert got.view(torch.uint8).tolist() == wanted(op, *turned)
