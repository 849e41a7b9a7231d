"""The drafts of a pass and the paged caches that they see: lengths, trees, pages, positions, slots.

Draft j of request b has position L_b + depth(j) and its key lies at index L_b + j, in page
page_table[b, index // page_size]: as in kernels/attention/_paged.py, whose layout this is. What a
step of serving works out anew stays on the device (`Metadata.step`): a captured graph follows other
lengths, trees and page tables that are written into the same tensors.

mla: one pool [pages, page_size, latent + rope] a layer; else keys and values [pages, page_size,
kv_heads, head_dim] each; bf16, normal, all of it: other page tables make keys of every page.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from graphs._stub.asked import Case
from graphs._stub.linear import normal
from kernels import attention
from kernels.drafts import depths, mask_words
from kernels.drafts import tree as tree_named
from verifyscope.models import Gqa, Mla


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Lengths and trees of one step, on the host, and where their keys lie."""

    lengths: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]
    layout: attention.Layout

    @property
    def words(self) -> list[list[int]]:
        """Return the unsigned mask words of each request."""
        return [mask_words(tree) for tree in self.parents]


def drafts(case: Case) -> Drafts:
    """Return the step that is measured: every request with `context` tokens, and the tree."""
    lengths = [case.context] * case.requests
    tree = tuple(tree_named(case.tree, case.rows))
    return Drafts(
        lengths=tuple(lengths), parents=(tree,) * case.requests, layout=_lay_out(case, lengths)
    )


def others(case: Case) -> list[tuple[str, Drafts]]:
    """Return further steps that fit the same tensors, by what differs from `drafts`.

    Shorter lengths (each request another one), another tree, and the pages in another order.
    """
    given = drafts(case)
    shorter = [case.context * (n + 1) // (case.requests + 2) for n in range(case.requests)]
    name = "chain" if case.tree == "star" else "star"
    tree = tuple(tree_named(name, case.rows))
    found = [
        ("lengths", Drafts(lengths=tuple(shorter), parents=given.parents, layout=given.layout)),
        ("page table", Drafts(lengths=given.lengths, parents=given.parents, layout=_turned(given))),
    ]
    if tree != given.parents[0]:
        parents = (tree,) * case.requests
        other = Drafts(lengths=given.lengths, parents=parents, layout=given.layout)
        found.insert(1, ("tree", other))
    return found


def _lay_out(case: Case, lengths: Sequence[int]) -> attention.Layout:
    return attention.lay_out(lengths=lengths, tokens=case.rows, page_size=case.page_size)


def _turned(given: Drafts) -> attention.Layout:
    """Return the same pages for the requests in the opposite order, each list turned round."""
    table = given.layout.table.clone()
    used = (table >= 0) & (table < given.layout.pages)
    table[used] = table[used].flip(0)
    return attention.Layout(table=table, pages=given.layout.pages, dead=())


class Metadata:
    """What a step of serving tells the kernels: tensors that stay, filled anew for each step."""

    def __init__(self, case: Case, given: Drafts, device: torch.device) -> None:
        rows, requests, page = case.rows, case.requests, case.page_size
        self.page_table = given.layout.table.to(device)
        self.prefix_lens = torch.empty(requests, dtype=torch.int32, device=device)
        self.mask_words = torch.empty(requests, rows, dtype=torch.int32, device=device)
        self.positions = torch.empty(requests * rows, dtype=torch.int64, device=device)
        self.slots = torch.empty(requests * rows, dtype=torch.int64, device=device)
        self._depths = torch.empty(requests, rows, dtype=torch.int64, device=device)
        self._row = torch.arange(rows, device=device)
        self._page_size = page
        self.fill(given)
        self.step()

    def fill(self, given: Drafts) -> None:
        """Write lengths, trees and pages of a step, as the scheduler of an engine does."""
        self.page_table.copy_(given.layout.table)
        self.prefix_lens.copy_(torch.tensor(given.lengths, dtype=torch.int32))
        self.mask_words.copy_(attention.signed_words(given.words))
        self._depths.copy_(torch.tensor([depths(tree) for tree in given.parents]))

    def step(self) -> None:
        """Work out the positions and the slots of the drafts from what `fill` wrote."""
        lengths = self.prefix_lens[:, None]
        torch.add(self._depths, lengths, out=self.positions.view_as(self._depths))
        index = lengths + self._row  # [requests, rows]
        page = self.page_table.gather(1, index // self._page_size)
        torch.add(
            page * self._page_size, index % self._page_size, out=self.slots.view_as(self._depths)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The cache of one layer: what attention reads, and the same memory as rows that are written.

    first, second: latents and rotated keys of latent attention, else keys and values.
    """

    first: torch.Tensor
    second: torch.Tensor

    def store(self, slots: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
        """Write the drafts' entries at their slots."""
        for pages, new in ((self.first, first), (self.second, second)):
            # A slice of the pool has rows with a gap between: flatten keeps it a view.
            rows = pages.view(-1, *pages.shape[2:]) if pages.is_contiguous() else _rows(pages)
            rows.index_copy_(0, slots, new.view(len(new), *rows.shape[1:]))


def _rows(pages: torch.Tensor) -> torch.Tensor:
    count = pages.shape[0] * pages.shape[1]
    return pages.as_strided((count, pages.shape[2]), (pages.stride(1), 1), pages.storage_offset())


def pages(
    attention: Mla | Gqa,
    given: Drafts,
    *,
    page_size: int,
    kv_heads: int,
    generator: torch.Generator,
    device: torch.device,
) -> Pages:
    """Draw the cache of one layer."""
    count = given.layout.pages

    def drawn(*sizes: int) -> torch.Tensor:
        return normal(count, page_size, *sizes, generator=generator, device=device)

    if isinstance(attention, Mla):
        pool = drawn(attention.latent_dim)
        cut = attention.kv_lora_rank
        return Pages(first=pool[..., :cut], second=pool[..., cut:])
    return Pages(
        first=drawn(kv_heads, attention.head_dim), second=drawn(kv_heads, attention.head_dim)
    )
