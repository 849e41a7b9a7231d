"""A paged cache as a verify pass meets it: drawn with poison, checked, gathered and counted.

Request b has L_b committed keys and T draft tokens, whose keys lie behind them: key n of
0 .. L_b + T - 1 is in page page_table[b, n // page_size], slot n % page_size. Draft i sees the
whole prefix, and draft j where bit j of mask_words[b, i] is set.

page_table int32 [batch, max_pages]: cells past a request's keys may hold anything, and are never
followed. prefix_lens int32 [batch]: L, read on the device. mask_words int32 [batch, T]: the bits of
an unsigned number, T at most 32. The lengths are not checked: that would wait for the device. They
are held to what the page table has room for. Errors: ValueError for sizes that do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import Case, _trees
from kernels._inputs import must_be

FP8 = torch.float8_e4m3fn
QUERY_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_INDEX_BYTES = 4
_FP8_SCALES = (0.75, 1.375)  # no powers of two, and not each other
_NO_PAGES = (-1, None, 2**31 - 1)  # None: one past the last page


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which pages each request owns: `table` int32 [batch, width] on the CPU, of `pages` pages.

    dead: pages and the first slot in each that holds no key; the table's other cells name no page.
    """

    table: torch.Tensor
    pages: int
    dead: tuple[tuple[int, int], ...]

    def poison(self, cache: torch.Tensor) -> None:
        """Write NaN into all that holds no key of a [pages, page_size, ...] cache."""
        for page, first in self.dead:
            cache[page, first:] = float("nan")


def lay_out(*, lengths: Sequence[int], tokens: int, page_size: int) -> Layout:
    """Give each request pages in shuffled order, and the table two cells more than are needed."""
    needed = [-(-(length + tokens) // page_size) for length in lengths]
    pages = sum(needed) + len(_NO_PAGES)
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(pages)).tolist()
    cells = [pages if cell is None else cell for cell in _NO_PAGES]
    width = max(needed) + 2
    poison = torch.tensor(cells, dtype=torch.int32)
    table = poison.repeat(len(lengths), width // len(cells) + 1)[:, :width].contiguous()
    dead = []
    for request, count in enumerate(needed):
        mine, order = order[:count], order[count:]
        table[request, :count] = torch.tensor(mine, dtype=torch.int32)
        filled = lengths[request] + tokens - (count - 1) * page_size
        dead.append((mine[-1], filled))
    return Layout(table=table, pages=pages, dead=(*dead, *((page, 0) for page in order)))


def prefix_lengths(case: Case) -> list[int]:
    """Return L of each request: `context` for the first, evenly less for the others if ragged."""
    requests, context = case.number("requests"), case.number("context")
    if case.dims["lengths"] == "equal":
        return [context] * requests
    return [context * (requests - request) // requests for request in range(requests)]


def context_name(tokens: int) -> str:
    """Return a number of committed tokens as cases are named: 127, 8k, 1M."""
    for unit, name in ((1024 * 1024, "M"), (1024, "k")):
        if tokens and tokens % unit == 0:
            return f"{tokens // unit}{name}"
    return str(tokens)


def trees(case: Case) -> list[list[int]]:
    """Return the parents of each request's tree; "mixed" goes through all shapes."""
    name, tokens = str(case.dims["tree"]), case.number("rows")
    names = _trees.TREES if name == "mixed" else (name,)
    return [_trees.tree(names[n % len(names)], tokens) for n in range(case.number("requests"))]


def words_of(case: Case) -> list[list[int]]:
    """Return the unsigned mask words of each request's tree."""
    return [_trees.mask_words(tree) for tree in trees(case)]


def signed_words(words: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return unsigned words as int32: the top bit is the sign here."""
    return torch.tensor(words).to(torch.int32)


def drawn_scales(cache_dtype: torch.dtype | None) -> tuple[float, float]:
    """Return the two scales that a cache is drawn with: 1, but of fp8."""
    return _FP8_SCALES if cache_dtype == FP8 else (1.0, 1.0)


def check_paging(
    *,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    draft_tokens: int,
) -> None:
    """Raise ValueError unless table, lengths and words are int32 and fit each other."""
    if not 1 <= draft_tokens <= _trees.MOST_TOKENS:
        raise ValueError(
            f"draft_tokens is {draft_tokens}: give 1 to {_trees.MOST_TOKENS}, the bits of a mask "
            f"word; verify fewer tokens at once"
        )
    requests = len(page_table)
    if requests < 1:
        raise ValueError("page_table has no request: give at least one row")
    for name, tensor, sizes in (
        ("page_table", page_table, (requests, None)),
        ("prefix_lens", prefix_lens, (requests,)),
        ("mask_words", mask_words, (requests, draft_tokens)),
    ):
        must_be(tensor, name, sizes, dtype=torch.int32)


def check_cache_dtype(
    q: torch.Tensor, *, caches: Sequence[torch.Tensor], scales: tuple[float, float]
) -> None:
    """Raise ValueError unless the caches are all of q's dtype with scales of 1, or all fp8."""
    given = ", ".join(str(tensor.dtype) for tensor in (q, *caches))
    found = {cache.dtype for cache in caches}
    if q.dtype not in QUERY_DTYPES or found not in ({q.dtype}, {FP8}):
        raise ValueError(
            f"q and caches are {given}: give all bfloat16, all float16, or caches of float8_e4m3fn"
        )
    if found != {FP8} and scales != (1.0, 1.0):
        raise ValueError(f"scales {scales} of a cache that is not fp8: give 1.0")
    if 0 in scales:
        raise ValueError(f"scales {scales}: give what keys and values were divided by, not 0")


def keys_of(
    cache: torch.Tensor, *, page_table: torch.Tensor, request: int, keys: int
) -> torch.Tensor:
    """Copy a request's first `keys` keys out of a [pages, page_size, ...] cache, as float64."""
    key = torch.arange(keys, device=cache.device)
    page = page_table[request].long()[key // cache.shape[1]]
    return cache[page, key % cache.shape[1]].double()


def softmax_over_tree(
    score: torch.Tensor, *, words: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and natural log-sum-exp of scores [T, heads..., keys]; hides by `words` [T].

    A row that sees no key has weights 0 and -inf. `score` is changed.
    """
    tokens = len(words)
    bit = torch.arange(tokens, device=words.device)
    block = (words.long()[:, None] >> bit) & 1  # [T, T]
    drafts = score[..., length:]
    drafts.masked_fill_(block.view(tokens, *[1] * (score.dim() - 2), tokens) == 0, float("-inf"))
    lse = score.logsumexp(-1)
    weight = torch.exp(score - lse[..., None])
    return torch.where(lse[..., None] == float("-inf"), 0.0, weight), lse


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Keys of all requests together, pairs of a row and a key that it sees, and bytes of indices.

    pairs are of one query head. Index bytes: the words, the lengths, the table's followed cells.
    """

    keys: int
    pairs: int
    index_bytes: int


def count(
    *,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    draft_tokens: int,
    page_size: int,
) -> Counted:
    """Count what these lengths and trees touch; waits for the device."""
    lengths = prefix_lens.tolist()
    keys = [length + draft_tokens for length in lengths]
    cells = sum(-(-one // page_size) for one in keys)
    pairs = sum(
        length + (word & 0xFFFFFFFF).bit_count()
        for length, words in zip(lengths, mask_words.tolist(), strict=True)
        for word in words
    )
    index_bytes = mask_words.nbytes + prefix_lens.nbytes + cells * _INDEX_BYTES
    return Counted(keys=sum(keys), pairs=pairs, index_bytes=index_bytes)
