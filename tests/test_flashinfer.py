"""How FlashInfer is called whatever its version, when it is refused, and what plans are made of."""

import importlib.util
import math
import re
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Case, _flashinfer, _trees
from kernels._flashinfer import Call
from kernels.attention import _flashinfer_lists, _paged
from kernels.attention import tree_attention_flashinfer as adapter
from kernels.drafts import _mask_layout
from kernels.drafts.mask_expand import expand_with_torch
from tests import flashinfer_stand_in as stand_in
from tests.flashinfer_cases import VERSIONS, case, drawn, use

TOUCHED = "flashinfer" in sys.modules


# What is called.


def test_importing_an_adapter_imports_no_flashinfer() -> None:
    assert not TOUCHED


def test_an_argument_that_is_dropped_is_named() -> None:
    call = Call(function="segment_packbits", needed=("x", "indptr"), offered=("bitorder", "speed"))
    accepted = call.accepted(stand_in.made("0.7.4"), x=1, indptr=2, bitorder="little", speed="high")
    assert accepted.kwargs == {"x": 1, "indptr": 2, "bitorder": "little"}
    assert accepted.dropped == ("speed",)


def test_an_argument_that_was_not_declared_cannot_slip_past_the_guard() -> None:
    call = Call(function="segment_packbits", needed=("x", "indptr"))
    with pytest.raises(TypeError, match="bitorder"):
        call.accepted(stand_in.made("0.7.4"), x=1, indptr=2, bitorder="little")


def test_a_call_that_takes_any_keyword_drops_none() -> None:
    library = ModuleType("flashinfer")
    vars(library)["decode"] = lambda q, **more: (q, more)
    call = Call(function="decode", needed=("q",), offered=("lse_base",))
    assert call.accepted(library, q=1, lse_base="ln").kwargs == {"q": 1, "lse_base": "ln"}


@pytest.mark.parametrize(
    ("found", "wanted", "older"),
    [
        ("0.6.18.post1", (0, 7), True),
        ("0.7.4", (0, 7), False),
        ("0.6.9", (0, 6, 11), True),
        ("0.6.11", (0, 6, 11), False),
        ("1.0", (0, 7), False),
        ("of unknown version", (0, 7), False),
    ],
)
def test_versions_are_compared_as_numbers(found: str, wanted: tuple[int, ...], older: bool) -> None:
    library = ModuleType("flashinfer")
    vars(library)["__version__"] = found
    assert _flashinfer.is_before(library, wanted) == older


# What is refused.


@pytest.mark.parametrize(
    ("library", "names"),
    [
        (stand_in.made("0.8.0", without=["custom_mask"]), ["plan", "'custom_mask'"]),
        (stand_in.made("0.8.0", without=["lse", "out"]), ["run", "'out', 'lse'"]),
        (stand_in.made("0.8.0", without=["lse_base"]), ["run", "'lse_base'"]),
        (stand_in.made("0.8.0", asks_for=["kv_split"]), ["plan", "'kv_split'"]),
    ],
)
def test_a_version_that_cannot_be_called_is_refused_with_its_name(
    library: ModuleType, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, library)
    reason = adapter.refuses(case(4, 100))
    assert reason is not None
    assert all(name in reason for name in ["FlashInfer 0.8.0", *names])


def test_preparing_for_such_a_version_raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.8.0", without=["custom_mask"]))
    with pytest.raises(RuntimeError, match=r"plan of FlashInfer 0\.8\.0 does not take"):
        adapter.flashinfer_attention(**drawn(case(4, 20)))


def test_a_function_that_is_gone_is_named() -> None:
    library = stand_in.made("0.8.0")
    del library.BatchPrefillWithPagedKVCacheWrapper
    reason = adapter.PLAN.why_not(library)
    assert reason == "FlashInfer 0.8.0 has no BatchPrefillWithPagedKVCacheWrapper.plan"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_known_version_is_not_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made(version))
    assert adapter.refuses(case(4, 100)) is None


def test_a_flashinfer_that_does_not_import_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))

    def fail() -> ModuleType:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(_flashinfer, "installed", fail)
    reason = adapter.refuses(case(4, 100))
    assert reason is not None
    assert "does not import: OSError: libcudart.so.13" in reason


def test_a_machine_that_cannot_compile_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("CUDA_HOME", str(empty))
    monkeypatch.delenv("FLASHINFER_NVCC", raising=False)
    assert "finds no nvcc" in str(_flashinfer.cannot_build())
    (empty / "bin").mkdir()
    (empty / "bin" / "nvcc").touch()
    assert "finds no ninja" in str(_flashinfer.cannot_build())
    (empty / "ninja").touch(mode=0o755)
    assert _flashinfer.cannot_build() is None


@pytest.mark.parametrize(
    ("head_dim", "kv", "taken"),
    [
        (32, "bf16", False),
        (64, "bf16", True),
        (96, "bf16", False),
        (256, "bf16", True),
        (64, "fp8", False),
        (128, "fp8", True),
    ],
)
def test_a_head_dim_that_fa2_lacks_is_refused(
    head_dim: int, kv: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    reason = adapter.refuses(case(4, 100, dim=head_dim, kv=kv))
    assert (reason is None) == taken
    assert taken or str(head_dim) in str(reason)


def test_float32_is_refused() -> None:
    dims = case(4, 100).dims
    assert "float32" in str(adapter.refuses(Case(name="wide", dims=dims, dtype=torch.float32)))


def test_a_mask_whose_bits_do_not_fit_int32_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    assert _flashinfer_lists.mask_too_large(2**31 - 1) is None
    assert str(2**31) in str(_flashinfer_lists.mask_too_large(2**31))
    assert "int32" in str(adapter.refuses(case(32, 2**26)))
    inputs = {**drawn(case(2, 20)), "prefix_lens": torch.tensor([2**30]).int()}
    with pytest.raises(ValueError, match="int32"):
        adapter.flashinfer_attention(**inputs)


@pytest.mark.parametrize(
    ("tree", "rows", "chain"),
    [("chain", 5, True), ("star", 2, True), ("eagle4", 1, True), ("star", 3, False)],
)
def test_a_tree_that_does_not_branch_is_a_chain_whatever_its_name(
    tree: str, rows: int, chain: bool
) -> None:
    assert (_flashinfer_lists.not_a_chain(case(rows, 9, tree=tree)) is None) == chain


def test_mask_words_that_branch_are_no_chain() -> None:
    _flashinfer_lists.check_chain(
        _paged.signed_words([_trees.mask_words(_trees.tree("chain", 32))])
    )
    with pytest.raises(ValueError, match="no chain"):
        _flashinfer_lists.check_chain(torch.tensor([[1, 3, 7], [1, 3, 5]], dtype=torch.int32))


# The base of an LSE.


def test_base_2_becomes_natural_and_only_old_versions_have_a_finite_infinity() -> None:
    lse = torch.tensor([10.0, -3.0, -49_990.0, -math.inf])
    new = _flashinfer.natural_log(lse, finite_infinity=False)
    assert new.tolist() == pytest.approx([6.931472, -2.0794415, -34_650.43, -math.inf])
    old = _flashinfer.natural_log(lse, finite_infinity=True)
    assert old.tolist() == pytest.approx([6.931472, -2.0794415, -math.inf, -math.inf])
    assert _flashinfer.has_finite_infinity(stand_in.made("0.6.18"))
    assert not _flashinfer.has_finite_infinity(stand_in.made("0.7.4"))


def state(base: float, rows: int = 3, heads: int = 2) -> _flashinfer.State:
    return _flashinfer.State(
        out=torch.ones(rows, heads, 512), lse=torch.zeros(rows, heads), base=base
    )


@pytest.mark.parametrize("bases", [(2, math.e), (math.e, 2), (math.e, math.e)])
def test_states_of_another_base_or_of_two_are_not_merged(bases: tuple[float, float]) -> None:
    into, other = (state(base) for base in bases)
    with pytest.raises(ValueError, match=r"2\.71828.*: convert them first"):
        _flashinfer.merger(stand_in.made("0.7.4"), into, other=other)


@pytest.mark.parametrize("heads", [1, 20, 32, 33, 64, 128])
def test_a_merge_takes_any_number_of_heads(heads: int) -> None:
    into, other = state(2, heads=heads), state(2, heads=heads)
    into.lse.copy_(torch.arange(3 * heads).view(3, heads))
    other.out.fill_(5.0)
    _flashinfer.merger(stand_in.made("0.7.4"), into, other=other)()
    lse = torch.arange(3 * heads, dtype=torch.float64).view(3, heads)
    weight = 1 / (1 + torch.exp2(lse))
    torch.testing.assert_close(into.lse, torch.log2(torch.exp2(lse) + 1).float())
    want = 1 + 4 * weight[..., None].expand(-1, -1, 512)
    torch.testing.assert_close(into.out, want.float())


# What is laid out.

lengths = st.lists(st.integers(0, 70), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(committed=lengths, tokens=st.integers(1, 32), name=st.sampled_from(_trees.TREES))
def test_mask_bits_are_little_endian_and_each_request_begins_on_a_byte(
    committed: list[int], tokens: int, name: str
) -> None:
    words = _trees.mask_words(_trees.tree(name, tokens))
    bits = _flashinfer_lists.countable_bits(committed, tokens)
    mask = expand_with_torch(
        _paged.signed_words([words] * len(committed)),
        torch.tensor(committed),
        mask_bits=sum(bits),
    )
    packed = adapter.pack_mask(stand_in.made("0.6.18"), mask, bits=bits)
    expected = []
    for length in committed:
        rows = [[True] * length + [bool(word >> j & 1) for j in range(tokens)] for word in words]
        expected.append(np.packbits(np.array(rows).reshape(-1), bitorder="little"))
    np.testing.assert_array_equal(packed.numpy(), np.concatenate(expected))
    assert len(packed) == sum(_mask_layout.bytes_of(committed, tokens))


@settings(max_examples=60, deadline=None)
@given(kv_lens=st.lists(st.integers(1, 200), min_size=1, max_size=5), page=st.integers(1, 70))
def test_page_lists_name_each_request_s_pages_and_no_cell_beyond(
    kv_lens: list[int], page: int
) -> None:
    table = numbered_table([math.ceil(kv_len / page) for kv_len in kv_lens])
    lists = _flashinfer_lists.page_lists(table, kv_lens=kv_lens, page_size=page)
    assert lists.indices.min() >= 0
    assert lists.indices.dtype == lists.indptr.dtype == lists.last_page_len.dtype == torch.int32
    ends = lists.indptr.tolist()
    for request, kv_len in enumerate(kv_lens):
        mine = lists.indices[ends[request] : ends[request + 1]].tolist()
        assert mine == [1000 * request + n for n in range(math.ceil(kv_len / page))]
        last = int(lists.last_page_len[request])
        assert 1 <= last <= page
        assert (len(mine) - 1) * page + last == kv_len


def test_tokens_as_requests_of_their_own_read_the_pages_of_their_request() -> None:
    starts, indices = _flashinfer_lists.page_indices(
        numbered_table([2, 3]), kv_lens=[4, 5, 0, 9], page_size=4
    )
    assert starts.tolist() == [0, 1, 3, 3, 6]
    assert indices.tolist() == [0, 0, 1, 1000, 1001, 1002]


def numbered_table(counts: list[int]) -> torch.Tensor:
    table = torch.full((len(counts), max(counts) + 2), -1, dtype=torch.int32)
    for request, count in enumerate(counts):
        table[request, :count] = torch.arange(count) + 1000 * request
    return table


@pytest.mark.parametrize(
    ("kv_len", "said"), [(0, "at least one key"), (33, "[33] in pages of 16: give at most 32")]
)
def test_lengths_that_the_page_table_does_not_hold_are_refused(kv_len: int, said: str) -> None:
    table = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=re.escape(said)):
        _flashinfer_lists.page_lists(table, kv_lens=[kv_len], page_size=16)
