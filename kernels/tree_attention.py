"""Grouped-query attention of T draft tokens over a paged KV cache and a tree-masked draft block.

For request b, query head h, its key head g = h // (q_heads / kv_heads) and draft token i:
    s[n]        = scale * <q[b*T + i, h], k[n]>     over keys n = 0 .. L_b + T - 1 of head g
    s[L_b + j]  = -inf unless bit j of mask_words[b, i] is set: the committed prefix is always seen,
                  a draft only by itself and its descendants
    out[b*T + i, h] = sum_n softmax(s)[n] v[n],    lse[b*T + i, h] = ln sum_n exp(s[n])
Key n lies in page page_table[b, n // page_size], slot n % page_size. The drafts' own keys and
values are there already, at n = L_b .. L_b + T - 1. A row that sees no key gives out 0, lse -inf.

q [batch*T, q_heads, head_dim]; k_cache, v_cache [pages, page_size, kv_heads, head_dim], any strides
but 1 for head_dim, so that FlashInfer's paged wrappers take (k_cache, v_cache) as they are (layout
NHD); all bfloat16 or all float16. page_table int32 [batch, max_pages]: cells past a request's keys
may hold anything, and are never followed. prefix_lens int32 [batch]: L, read on the device.
mask_words int32 [batch, T]: the bits of an unsigned number; T = draft_tokens, 1 to 32.
out as q; lse float32 [batch*T, q_heads], natural logarithm.

Errors: ValueError for shapes, dtypes or strides that are not those. The lengths are not checked:
that would wait for the device. They are held to what the page table has room for.
Source: the verify step of speculative decoding as SGLang, vLLM and FlashInfer define it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Prepared, Tolerance, _trees
from kernels._gathered import gather, pack, unpack
from kernels._tree_attention_cases import (
    DTYPES,
    gate_cases,
    long_gate_cases,
    measured_cases,
    tiny_cases,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of one call, checked. `width` is the page table's, in pages."""

    requests: int
    tokens: int
    q_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    width: int

    @property
    def group(self) -> int:
        """Return how many query heads share a key head."""
        return self.q_heads // self.kv_heads

    @property
    def packed_rows(self) -> int:
        """Return the rows that share each key: tokens x group."""
        return self.tokens * self.group

    @property
    def most_keys(self) -> int:
        """Return how many keys a request can have at most."""
        return self.width * self.page_size


def shape_of(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    draft_tokens: int,
) -> Shape:
    """Return the sizes, or raise ValueError for inputs that do not fit each other."""
    if not 1 <= draft_tokens <= _trees.MOST_TOKENS:
        raise ValueError(f"draft_tokens is {draft_tokens}: give 1 to {_trees.MOST_TOKENS}")
    if q.dtype not in DTYPES or not q.dtype == k_cache.dtype == v_cache.dtype:
        given = f"{q.dtype}, {k_cache.dtype}, {v_cache.dtype}"
        raise ValueError(f"q, k_cache, v_cache are {given}: give all bfloat16 or all float16")
    _must_be(q, "q", (None, None, None))
    _must_be(k_cache, "k_cache", (None, None, None, q.shape[2]))
    _must_be(v_cache, "v_cache", tuple(k_cache.shape))
    requests, kv_heads = len(page_table), k_cache.shape[2]
    for name, tensor, sizes in (
        ("page_table", page_table, (requests, None)),
        ("prefix_lens", prefix_lens, (requests,)),
        ("mask_words", mask_words, (requests, draft_tokens)),
    ):
        _must_be(tensor, name, sizes)
        if tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tensor.dtype}, strides {tensor.stride()}: give a "
                             f"contiguous int32 tensor")  # fmt: skip
    if requests < 1 or len(q) != requests * draft_tokens or not q.is_contiguous():
        raise ValueError(
            f"q is {tuple(q.shape)}, strides {q.stride()}: give a contiguous tensor of "
            f"{requests} requests x {draft_tokens} tokens"
        )
    if not kv_heads or q.shape[1] % kv_heads:
        raise ValueError(f"{q.shape[1]} query heads do not share {kv_heads} key heads evenly")
    if k_cache.stride(3) != 1 or v_cache.stride(3) != 1:
        raise ValueError("k_cache and v_cache need a stride of 1 along head_dim")
    return Shape(
        requests=requests,
        tokens=draft_tokens,
        q_heads=q.shape[1],
        kv_heads=kv_heads,
        head_dim=q.shape[2],
        page_size=k_cache.shape[1],
        width=page_table.shape[1],
    )


def _must_be(tensor: torch.Tensor, name: str, sizes: tuple[int | None, ...]) -> None:
    given = tuple(tensor.shape)
    if len(given) != len(sizes) or any(
        size not in (None, at) for at, size in zip(given, sizes, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"{name} is {given}: give [{wanted}]")


def reference(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    scale: float,
    draft_tokens: int,
) -> Outputs:
    """Compute in float64 from the rounded inputs, request after request, and do not round."""
    heads, group = k_cache.shape[2], q.shape[1] // k_cache.shape[2]
    token = torch.arange(draft_tokens, device=q.device)
    outs, lses = [], []
    for request, length in enumerate(prefix_lens.tolist()):
        key = torch.arange(length + draft_tokens, device=q.device)
        page = page_table[request].long()[key // k_cache.shape[1]]
        slot = key % k_cache.shape[1]
        k, v = k_cache[page, slot].double(), v_cache[page, slot].double()  # [keys, heads, dim]
        rows = q[request * draft_tokens : (request + 1) * draft_tokens].double()
        score = scale * torch.einsum("thgd,nhd->thgn", rows.view(draft_tokens, heads, group, -1), k)
        block = (mask_words[request].long()[:, None] >> token) & 1  # [T, T]
        score[..., length:].masked_fill_(block[:, None, None, :] == 0, float("-inf"))
        lse = score.logsumexp(-1)
        weight = torch.exp(score - lse[..., None])
        weight = torch.where(lse[..., None] == float("-inf"), 0.0, weight)
        outs.append(torch.einsum("thgn,nhd->thgd", weight, v).flatten(1, 2))
        lses.append(lse.flatten(1, 2))
    return {"out": torch.cat(outs), "lse": torch.cat(lses)}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw the lengths' keys and the trees' drafts of a case; see `draw`."""
    return draw(
        lengths=prefix_lengths(case),
        words=[_trees.mask_words(tree) for tree in trees(case)],
        page_size=case.number("page"),
        heads=(case.number("q_heads"), case.number("kv_heads")),
        head_dim=case.number("head_dim"),
        dtype=case.dtype,
        seed=case.seed,
        device=device,
    )


def draw(
    *,
    lengths: Sequence[int],
    words: Sequence[Sequence[int]],
    page_size: int,
    heads: tuple[int, int],
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
) -> Inputs:
    """Draw normal q, keys and values into a shuffled page table; NaN is wherever no key is.

    lengths, words: L and T unsigned mask words of each request. The page table has two cells more
    than the longest request needs, and what lies past a request's last page is poisoned with -1 and
    with ids of no page. Another seed gives other values in the same places, so that they can be
    copied over the first ones.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=dtype)

    requests, tokens = len(lengths), len(words[0])
    needed = [-(-(length + tokens) // page_size) for length in lengths]
    pages = sum(needed) + 3
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(pages)).tolist()
    poison = torch.tensor([-1, pages, 2**31 - 1], dtype=torch.int32)
    width = max(needed) + 2
    table = poison.repeat(requests, width // 3 + 1)[:, :width].contiguous()
    k_cache, v_cache = (normal(pages, page_size, heads[1], head_dim) for _ in "kv")
    for request, count in enumerate(needed):
        mine, order = order[:count], order[count:]
        table[request, :count] = torch.tensor(mine, dtype=torch.int32)
        filled = lengths[request] + tokens - (count - 1) * page_size
        k_cache[mine[-1], filled:] = v_cache[mine[-1], filled:] = float("nan")
    k_cache[order] = v_cache[order] = float("nan")
    return {
        "q": normal(requests * tokens, heads[0], head_dim),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "page_table": table.to(device),
        "prefix_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
        # The bits of an unsigned word: the top one is the sign here.
        "mask_words": torch.tensor(words).to(torch.int32).to(device),
        "scale": head_dim**-0.5,
        "draft_tokens": tokens,
    }


def prefix_lengths(case: Case) -> list[int]:
    """Return L of each request: `context` for the first, evenly less for the others if ragged."""
    requests, context = case.number("requests"), case.number("context")
    if case.dims["lengths"] == "equal":
        return [context] * requests
    return [context * (requests - request) // requests for request in range(requests)]


def trees(case: Case) -> list[list[int]]:
    """Return the parents of each request's tree; "mixed" goes through all shapes."""
    name, tokens = str(case.dims["tree"]), case.number("rows")
    names = _trees.TREES if name == "mixed" else (name,)
    return [_trees.tree(names[n % len(names)], tokens) for n in range(case.number("requests"))]


def _counted(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    draft_tokens: int,
    **_others: object,
) -> Cost:
    """Count the keys and values of each request once, and the products that the mask lets through.

    Also read: q, the mask words, the lengths and the cells of the page table that are followed.
    """
    _, q_heads, dim = q.shape
    _, page_size, kv_heads, _ = k_cache.shape
    lengths = prefix_lens.tolist()
    keys = [length + draft_tokens for length in lengths]
    cells = sum(-(-count // page_size) for count in keys)
    seen = sum(
        length + (word & 0xFFFFFFFF).bit_count()
        for length, words in zip(lengths, mask_words.tolist(), strict=True)
        for word in words
    )
    cache_bytes = 2 * sum(keys) * kv_heads * dim * q.element_size()
    return Cost(
        flops=4 * seen * q_heads * dim,
        read_bytes=cache_bytes
        + q.nbytes
        + mask_words.nbytes
        + prefix_lens.nbytes
        + cells * page_table.element_size(),
        written_bytes=q.nbytes + 4 * len(q) * q_heads,
    )


_count: Callable[..., Cost] = _counted


def cost(given: Inputs) -> Cost:
    """Return what any implementation must spend on these inputs; waits for the device."""
    return _count(**given)


OP = Op(
    name="tree_attention",
    part="attention",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(*tiny_cases(), *measured_cases()),
    gate_cases=gate_cases(),
    long_gate_cases=long_gate_cases(),
    tolerance=Tolerance(
        row=6e-3,
        absolute={"lse": 1e-4},
        why="weights and result are each rounded to bfloat16 once, 2**-9 of an element at most: "
        "3.9e-3 together; measured 2.3e-3 for the result alone and 3.3e-3 for both, float16 an "
        "eighth. One wrong key in 8192 is about 7e-3. The LSE is never rounded: measured 1e-6",
    ),
)


@OP.prepared_implementation("torch", kind="baseline-composed")
def torch_attention(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    scale: float,
    draft_tokens: int,
) -> Prepared:
    """Use nothing but plain torch in float32: gather, product, softmax, product.

    Gathering and widening the keys is timed, for no engine keeps a second cache; the index and the
    mask are the plan, and are not.
    """
    shape = shape_of(
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        page_table=page_table,
        prefix_lens=prefix_lens,
        mask_words=mask_words,
        draft_tokens=draft_tokens,
    )
    plan = gather(
        page_table=page_table,
        prefix_lens=prefix_lens,
        mask_words=mask_words,
        page_size=shape.page_size,
        group=shape.group,
    )
    hidden = ~plan.visible[:, None]  # [batch, 1, rows, keys]

    def call() -> Outputs:
        rows = pack(q, tokens=draft_tokens, kv_heads=shape.kv_heads).float() * scale
        score = rows @ plan.keys(k_cache).float().transpose(2, 3)  # [batch, heads, rows, keys]
        lse = score.masked_fill_(hidden, float("-inf")).logsumexp(-1)
        # A row that sees nothing has an LSE of -inf; a shift of 0 keeps its weights 0.
        shift = lse.masked_fill(lse == float("-inf"), 0.0)
        weight = torch.exp(score - shift[..., None])
        out = unpack(weight @ plan.keys(v_cache).float(), tokens=draft_tokens)
        return {"out": out.to(q.dtype), "lse": unpack(lse, tokens=draft_tokens)}

    return Prepared(call=call)
