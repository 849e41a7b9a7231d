"""Where the bits of a full tree mask lie, unpacked and packed: what three mask ops share.

Request b has T rows of n_b = L_b + T columns: column c < L_b is the committed prefix, which every
draft sees; column L_b + j is draft j, seen by row i where bit j of mask_words[b, i] is set.

    unpacked  one byte 0 or 1 a bit, request after request, each [T, n_b] row-major:
              request b begins at sum over a < b of T n_a
    packed    the same bits, lowest bit of a byte first; each request begins on a byte and is padded
              with zeros: it begins at byte sum over a < b of ceil(T n_a / 8). Rows follow each
              other without padding: row i begins at bit i n_b of its request, seldom on a byte

Offsets are int64: 32 requests of 32 drafts at 1 M tokens are 2^30 bits and more. A length below 0
counts as 0. A buffer that is larger than these lengths need keeps what lies behind the last
request; one that is too small is filled to its end, and never written beyond.

Source: FULL_MASK of SGLang 0.5.23, custom_mask and packed_custom_mask of FlashInfer 0.6 and 0.7.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels import Case, _trees
from kernels._splits import sm_count, split_count
from kernels.attention import _paged
from kernels.drafts import _drafts

_LEAST_BYTES = 4096  # of a block: 128 threads, two stores of 16 bytes each
_BLOCKS_PER_SM = 4


def bits_of(lengths: Sequence[int], tokens: int) -> list[int]:
    """Return how many bits the mask of each request has."""
    return [tokens * (max(0, length) + tokens) for length in lengths]


def bytes_of(lengths: Sequence[int], tokens: int) -> list[int]:
    """Return how many bytes the packed mask of each request has."""
    return [-(-bits // 8) for bits in bits_of(lengths, tokens)]


def mixed_bytes(tokens: int) -> int:
    """Return at most how many bytes of a row hold drafts, beside prefix or the next rows."""
    return tokens // 8 + 2


def must_fit(
    *, mask_words: torch.Tensor, prefix_lens: torch.Tensor, room: int, name: str
) -> tuple[int, int]:
    """Return batch and T; ValueError for inputs that do not fit each other."""
    _drafts.must_be_int32(mask_words, "mask_words", (None, None))
    requests, tokens = mask_words.shape
    _drafts.must_be_block(requests, tokens)
    must_have_room(prefix_lens, requests=requests, room=room, name=name)
    return requests, tokens


def must_have_room(prefix_lens: torch.Tensor, *, requests: int, room: int, name: str) -> None:
    """Raise ValueError unless the lengths are one a request, and the output has a size."""
    _drafts.must_be_int32(prefix_lens, "prefix_lens", (requests,))
    if room < 1:
        raise ValueError(f"{name} is {room}: give the size of the output, which is at least 1")


def parts_of_a_row(*, room_bytes: int, rows: int, device: torch.device) -> int:
    """Return into how many blocks the bytes of a row are cut, by what the host knows: the room."""
    return split_count(
        blocks=rows,
        most_keys=room_bytes // rows,
        least_keys=_LEAST_BYTES,
        slots=sm_count(device) * _BLOCKS_PER_SM,
    )


def expanded(words: torch.Tensor, length: int) -> torch.Tensor:
    """Return the mask of one request, bool [T, n], from its words [T]."""
    tokens = len(words)
    draft = (words.long()[:, None] >> torch.arange(tokens, device=words.device)) & 1
    seen = torch.ones(tokens, max(0, length), dtype=torch.bool, device=words.device)
    return torch.cat([seen, draft != 0], dim=1)


def packed(bits: torch.Tensor) -> torch.Tensor:
    """Return flat bools as uint8 bytes, lowest bit first, padded with zeros."""
    padded = torch.nn.functional.pad(bits.to(torch.int32), (0, -len(bits) % 8))
    worth = 1 << torch.arange(8, dtype=torch.int32, device=bits.device)
    return (padded.view(-1, 8) * worth).sum(1).to(torch.uint8)


def words_and_lengths(case: Case, device: torch.device) -> dict[str, torch.Tensor]:
    """Draw the trees and lengths of a case."""
    words = [_trees.mask_words(tree) for tree in _drafts.parents_of(case)]
    return {
        "mask_words": _drafts.int32(words, device),
        "prefix_lens": _drafts.int32(_paged.prefix_lengths(case), device),
    }


def _case(rows: int, context: int, tree: str, *, requests: int = 1, **more: bool) -> Case:
    dims = _drafts.dims_of(rows, context, tree=tree, requests=requests)
    return Case(name=_drafts.name_of(dims), dims=dims, dtype=torch.int32, mode="verify", **more)


def tiny_cases() -> tuple[Case, ...]:
    """Meet lengths and rows that fill no byte, a request of less than a byte, and 32 drafts."""
    return (
        _case(3, 13, "random", requests=3, tiny=True),
        _case(1, 0, "chain", requests=2, tiny=True),
        _case(2, 1, "chain", requests=2, tiny=True),
        _case(32, 99, "mixed", requests=2, tiny=True),
        _case(5, 9001, "star", tiny=True),  # longer than one block's share
    )


def measured_cases() -> tuple[Case, ...]:
    """Vary the tokens at 8k and 128k, then the context, then the batch; odd lengths beside."""
    tree_of = _drafts.TREE_OF_TOKENS
    long = 131072
    return (
        *(_case(t, 8192, tree, cpu=t in (1, 8)) for t, tree in tree_of.items()),
        *(_case(t, long, tree_of[t]) for t in (1, 4, 8, 16)),
        *(_case(t, n, tree_of[t]) for n in (0, 127, 1024, 32768, 131071) for t in (1, 16)),
        *(_case(t, 8191, tree_of[t], requests=b) for b in (4, 16, 64) for t in (1, 4, 16)),
    )
