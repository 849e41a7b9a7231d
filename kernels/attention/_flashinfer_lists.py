"""The lists and masks that FlashInfer's wrappers are planned with, made of what the ops are given.

Lengths are known on the host, as an engine knows them; everything else stays on the device of the
page table and waits for nothing. Indices are int32.

- Pages are a list for each request: `page_lists`, `page_indices`.
- A mask is that of `drafts/_mask_layout.py`. `plan(packed_custom_mask=)` keeps offsets that count
  bits where the kernel wants bytes, wrong from the second request on, and the functions that pack
  are big-endian by default: give `plan(custom_mask=)`, which packs rightly.
- Bits are counted in int32 before packing: `mask_too_large`.
- What has no mask sees a chain, in the order of the tokens: `not_a_chain`, `check_chain`.

Source: signatures and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import Case, _trees
from kernels.attention import _paged
from kernels.drafts import _mask_layout

Reason = str
_MOST_MASK_BITS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLists:
    """Which pages each request reads, on the device of the table.

    indptr [batch + 1] and indices [indptr[-1]]: request b reads pages indices[indptr[b] :
    indptr[b + 1]]; last_page_len [batch]: how much of the last one, 1 to the page size.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor


def page_lists(page_table: torch.Tensor, *, kv_lens: Sequence[int], page_size: int) -> PageLists:
    """List the pages that hold each request's keys, as `page_indices` does; none may be empty."""
    if min(kv_lens) < 1:
        raise ValueError(f"kv_lens {list(kv_lens)}: a last page holds at least one key")
    starts, indices = page_indices(page_table, kv_lens=kv_lens, page_size=page_size)
    return PageLists(
        indptr=starts,
        indices=indices,
        last_page_len=int32([(n - 1) % page_size + 1 for n in kv_lens], page_table.device),
    )


def page_indices(
    page_table: torch.Tensor, *, kv_lens: Sequence[int], page_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut rows of an int32 [batch, max_pages] table to the pages that hold their kv_lens keys.

    kv_lens may have several entries a row of the table, one after another: the tokens of a request
    as requests of their own. Returns indptr and indices.
    """
    counts = [-(-kv_len // page_size) for kv_len in kv_lens]
    if min(kv_lens) < 0 or max(counts) > page_table.shape[1]:
        raise ValueError(
            f"kv_lens {list(kv_lens)} in pages of {page_size}: give at most "
            f"{page_table.shape[1] * page_size}, what the page table holds"
        )
    device, total = page_table.device, sum(counts)
    starts = indptr(counts, device)
    entry = torch.repeat_interleave(
        torch.arange(len(counts), device=device), int32(counts, device), output_size=total
    )
    nth = torch.arange(total, device=device) - starts[entry]
    return starts, page_table[entry // (len(counts) // len(page_table)), nth]


def indptr(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return int32 [0, l0, l0 + l1, ...]."""
    sums = [0]
    for length in lengths:
        sums.append(sums[-1] + length)
    return int32(sums, device)


def int32(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    """Copy numbers to the device."""
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def countable_bits(prefix_lens: Sequence[int], tokens: int) -> list[int]:
    """Return the bits of each request's mask; ValueError where FlashInfer cannot count them."""
    bits = _mask_layout.bits_of(prefix_lens, tokens)
    if (reason := mask_too_large(sum(bits))) is not None:
        raise ValueError(reason)
    return bits


def mask_too_large(bits: int) -> Reason | None:
    """Say so where a mask has more bits than FlashInfer can count."""
    if bits <= _MOST_MASK_BITS:
        return None
    return (
        f"a mask of {bits} bits: FlashInfer counts them in int32, at most {_MOST_MASK_BITS}; "
        f"take fewer requests, tokens or keys"
    )


def not_a_chain(case: Case) -> Reason | None:
    """Say so where a request of `case` drafts a tree that branches: there is no mask to say it."""
    chain = _trees.tree("chain", case.number("rows"))
    if all(tree == chain for tree in _paged.trees(case)):
        return None
    return f"it takes no tree mask and so serves chains alone: {case.dims['tree']} branches"


def check_chain(mask_words: torch.Tensor) -> None:
    """Raise ValueError unless each token sees exactly itself and those before; waits for it."""
    chain = _trees.mask_words(_trees.tree("chain", mask_words.shape[1]))
    wanted = _paged.signed_words([chain]).to(mask_words.device)
    if not bool((mask_words == wanted).all()):
        raise ValueError("mask_words are no chain, and this takes no tree mask: give a chain")
