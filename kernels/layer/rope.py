"""Rotary positions: each pair of dims of a query or key turns by an angle that its token has.

    (a, b) -> (a c - b s, b c + a s),  c = cos_sin[p, i], s = cos_sin[p, half + i], p = positions[t]
    for i < half = rotated / 2, and a, b of each head: dims i and half + i, or, interleaved, dims
    2 i and 2 i + 1; dims from `rotated` on are copied

q [tokens, q_heads, dim], k [tokens, k_heads, dim]: bfloat16 or float16, any strides but 1 along the
last dim (they are slices of what a projection gave); q_out, k_out as they, but contiguous. cos_sin
float32 [positions, rotated], contiguous, from `_rope_tables`, which has the scalings. positions
int32 or int64 [tokens]: of a draft tree L + depth, by parents. They must lie in the table; that is
not checked, for it would wait for the device. float32 inside, rounded once.

Halves (GPT-NeoX) are what Llama and Qwen rotate, interleaved (GPT-J) pairs DeepSeek and Kimi, of
each query the last 64 dims and one key for all heads. Engines rotate in place; here q and k stay,
and as many bytes are moved, but for dims that are only copied.

Errors: ValueError for shapes, dtypes or strides that are not those.
Source: RoFormer (arXiv 2104.09864); table and order as in vLLM, SGLang and FlashInfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance, _trees
from kernels.layer import _ranks
from kernels.layer._rope_tables import cos_sin_table
from verifyscope.models import TABLE, Mla
from verifyscope.records import Value

_FLOPS = 3  # an element, as in graphs/ops.py: two products and a sum
_POSITIONS = {torch.int64: "int64", torch.int32: "int32"}
_DRAFTS = 16  # of a request at most; more tokens are more requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of one call, checked: `Given(**inputs)` raises ValueError if they do not fit."""

    q: torch.Tensor
    k: torch.Tensor
    cos_sin: torch.Tensor
    positions: torch.Tensor
    interleaved: bool

    def __post_init__(self) -> None:
        for name, x in (("q", self.q), ("k", self.k)):
            if x.dim() != 3 or x.dtype not in _ranks.DTYPES or not x.numel():
                raise ValueError(
                    f"{name} is {x.dtype} of {tuple(x.shape)}: give bfloat16 or float16, "
                    f"[tokens, heads, dim]"
                )
            if x.stride(2) != 1:
                raise ValueError(
                    f"{name} has strides {x.stride()}: copy it, to be 1 along the last dim"
                )
        q, k = self.q, self.k
        if q.dtype != k.dtype or q.shape[::2] != k.shape[::2]:
            raise ValueError(
                f"q is {q.dtype} of {tuple(q.shape)}, k {k.dtype} of {tuple(k.shape)}: give one "
                f"dtype, as many tokens and the same dim"
            )
        table = self.cos_sin
        if table.dtype != torch.float32 or table.dim() != 2 or not table.is_contiguous():
            raise ValueError(
                f"cos_sin is {table.dtype} of {tuple(table.shape)}: give a contiguous float32 "
                f"[positions, rotated]"
            )
        if not 2 <= table.shape[1] <= q.shape[2] or table.shape[1] % 2:
            raise ValueError(
                f"cos_sin rotates {table.shape[1]} dims of {q.shape[2]}: give an even number, 2 to "
                f"all of them"
            )
        if (
            self.positions.dtype not in _POSITIONS
            or self.positions.shape != q.shape[:1]
            or not self.positions.is_contiguous()
        ):
            raise ValueError(
                f"positions are {self.positions.dtype} of {tuple(self.positions.shape)}: give "
                f"contiguous int32 or int64, one for each of {len(q)} tokens"
            )

    @property
    def rotated(self) -> int:
        """Return how many dims of a head turn."""
        return self.cos_sin.shape[1]

    @property
    def dim(self) -> int:
        """Return the dims of a head."""
        return self.q.shape[2]

    def empty_outputs(self) -> dict[str, torch.Tensor]:
        """Allocate what a call returns."""
        return {
            "q_out": self.q.new_empty(self.q.shape),
            "k_out": self.k.new_empty(self.k.shape),
        }


def turned(
    x: torch.Tensor, *, cosines: torch.Tensor, sines: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Rotate [tokens, heads, dim] by [tokens, half]; the result has the dtype of the cosines."""
    half = cosines.shape[1]
    c, s, x = cosines[:, None], sines[:, None], x.to(cosines.dtype)
    front, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = front.view(*front.shape[:-1], half, 2).unbind(-1)
        pairs = torch.stack([a * c - b * s, b * c + a * s], dim=-1).flatten(-2)
        return torch.cat([pairs, rest], dim=-1)
    a, b = front.chunk(2, dim=-1)
    return torch.cat([a * c - b * s, b * c + a * s, rest], dim=-1)


def _both_turned(given: Given, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    cosines, sines = given.cos_sin[given.positions.long()].to(dtype).chunk(2, dim=-1)
    q, k = (
        turned(x, cosines=cosines, sines=sines, interleaved=given.interleaved)
        for x in (given.q, given.k)
    )
    return q, k


def reference(**inputs: Any) -> Outputs:
    """Compute in float64 from the rounded inputs, and do not round."""
    q, k = _both_turned(Given(**inputs), torch.float64)
    return {"q_out": q, "k_out": k}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw q and k normal, where a projection leaves them, and the positions of draft trees.

    Layout "latent": q is the end of each head's query and k the end of the latent row; "qkv": both
    are the front of a row that ends with the values; "apart": tensors of their own.
    """
    generator = torch.Generator(device).manual_seed(case.seed)
    model = TABLE[str(case.dims["model"])]
    tokens, q_heads, k_heads = (case.number(dim) for dim in ("rows", "q_heads", "k_heads"))
    dim, layout, attention = case.number("head_dim"), case.dims["layout"], model.attention

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=case.dtype)

    if layout == "latent" and isinstance(attention, Mla):
        q = normal(tokens, q_heads, attention.nope_dim + dim)[..., attention.nope_dim :]
        k = normal(tokens, k_heads, attention.kv_lora_rank + dim)[..., attention.kv_lora_rank :]
    elif layout == "qkv":
        qkv = normal(tokens, q_heads + 2 * k_heads, dim)
        q, k = qkv[:, :q_heads], qkv[:, q_heads : q_heads + k_heads]
    else:
        q, k = normal(tokens, q_heads, dim), normal(tokens, k_heads, dim)
    dtype = torch.int32 if case.dims["positions"] == "int32" else torch.int64
    return {
        "q": q,
        "k": k,
        "cos_sin": cos_sin_table(
            model.rope,
            dims=case.number("rotated"),
            positions=case.number("table"),
            device=device,
        ),
        "positions": torch.tensor(_drafted(case), dtype=dtype, device=device),
        "interleaved": case.dims["style"] == "interleaved",
    }


def _drafted(case: Case) -> list[int]:
    """Return L + depth of each token; the contexts of several requests are ragged."""
    tokens, context = case.number("rows"), case.number("context")
    requests = -(-tokens // _DRAFTS)
    parents = _trees.tree(str(case.dims["tree"]), min(tokens, _DRAFTS))
    return [
        position
        for request in range(requests)
        for position in _trees.positions(parents, context * (requests - request) // requests)
    ][:tokens]


def cost(inputs: Inputs) -> Cost:
    """Read q, k, positions and the rows of the table that they name once, write as many q and k."""
    unchecked: Any = inputs
    given = Given(**unchecked)
    elements = given.q.numel() + given.k.numel()
    each = elements * given.q.element_size()
    rows = len(set(given.positions.tolist()))
    return Cost(
        flops=_FLOPS * elements * given.rotated / given.dim,
        read_bytes=each + given.positions.nbytes + 4 * rows * given.rotated,
        written_bytes=each,
    )


def _case(
    rows: int,
    heads: tuple[int, int],
    dim: int,
    *,
    style: str = "halves",
    layout: str = "qkv",
    model: str = "llama-3.1-70b",
    rotated: int = 0,
    context: int = 8192,
    table: int = 0,
    tree: str = "",
    positions: str = "int64",
    dtype: torch.dtype = torch.bfloat16,
    prefix: str = "",
    tiny: bool = False,
    cpu: bool = False,
) -> Case:
    """Name a point: t (tokens), h (heads of queries x keys), d (dim), r (dims that turn)."""
    dims: dict[str, Value] = {
        "rows": rows,
        "q_heads": heads[0],
        "k_heads": heads[1],
        "head_dim": dim,
        "rotated": rotated or dim,
        "style": style,
        "layout": layout,
        "model": model,
        "context": context,
        "table": table or TABLE[model].max_positions,
        "tree": tree or ("chain" if rows < 4 else "eagle4"),
        "positions": positions,
    }
    name = f"{prefix}t{rows}-h{heads[0]}x{heads[1]}-d{dim}" + (f"-r{rotated}" if rotated else "")
    name += f"-{style}-{_ranks.DTYPES[dtype]}" + ("" if positions == "int64" else f"-{positions}")
    return Case(name=name, dims=dims, dtype=dtype, tiny=tiny, cpu=cpu, mode="verify")


def _shapes() -> dict[tuple[int, int, int, str], str]:
    """Return heads, dim and layout that a rank can have, each once, with a model that has them."""
    found: dict[tuple[int, int, int, str], str] = {}
    for model in sorted(TABLE.values(), key=lambda model: model.name != "kimi-k2.5"):
        attention = model.attention
        for heads in (model.heads // tp for tp in _ranks.TP):
            if isinstance(attention, Mla):
                shape = (heads, 1, attention.rope_dim, "latent")
            else:
                keys = max(1, attention.kv_heads * heads // model.heads)
                shape = (heads, keys, attention.head_dim, "qkv")
            found.setdefault(shape, model.name)
    return found


def _of(shape: tuple[int, int, int, str], rows: int, model: str, **more: Any) -> Case:
    q_heads, k_heads, dim, layout = shape
    style = "interleaved" if layout == "latent" else "halves"
    return _case(rows, (q_heads, k_heads), dim, style=style, layout=layout, model=model, **more)


_KIMI_TP8 = (8, 1, 64, "latent")


def _measured_cases() -> tuple[Case, ...]:
    """Vary the tokens for Kimi-K2.5 under TP 8, then all shapes that ranks have."""
    shapes, few = _shapes(), _ranks.FEW_AND_MANY
    kimi = shapes.pop(_KIMI_TP8)
    return (
        *(_of(_KIMI_TP8, t, kimi, cpu=t in (1, 16)) for t in _ranks.ROWS),
        *(_of(shape, t, model) for shape, model in shapes.items() for t in few),
        *(_of(_KIMI_TP8, t, kimi, positions="int32") for t in few),
        *(_of(_KIMI_TP8, t, kimi, dtype=torch.float16) for t in few),
    )


def _tiny_cases() -> tuple[Case, ...]:
    """Meet all layouts, styles and trees, a table whose last row is used, and dims that stay."""
    return (
        _case(
            3,
            (3, 1),
            64,
            style="interleaved",
            layout="latent",
            model="deepseek-v3",
            context=500,
            table=512,
            tiny=True,
        ),
        _case(5, (4, 2), 32, context=9, table=16, tree="star", positions="int32", tiny=True),
        _case(
            2,
            (2, 1),
            80,
            rotated=48,
            layout="apart",
            context=0,
            table=2,
            dtype=torch.float16,
            tiny=True,
        ),
        _case(
            18,
            (2, 1),
            32,
            style="interleaved",
            rotated=24,
            layout="apart",
            context=40,
            table=64,
            tree="binary",
            model="qwen3-30b-a3b",
            tiny=True,
        ),
    )


OP = Op(
    name="rope",
    part="rope",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        *_tiny_cases(),
        *_measured_cases(),
    ),
    gate_cases=(
        _of(_KIMI_TP8, 1, "kimi-k2.5", table=8200, prefix="gate-"),
        _case(2, (8, 1), 128, table=8200, prefix="gate-"),
        _case(
            2,
            (8, 1),
            128,
            rotated=64,
            table=8200,
            positions="int32",
            dtype=torch.float16,
            prefix="gate-",
        ),
    ),
    tolerance=Tolerance(
        row=4e-3,
        why="rounded to bfloat16 once, 2**-8 of an element at most; all else is float32",
    ),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_rope(**inputs: Any) -> Outputs:
    """Use nothing but plain torch in float32: look up, multiply, add, put together."""
    given = Given(**inputs)
    q, k = _both_turned(given, torch.float32)
    return {"q_out": q.to(given.q.dtype), "k_out": k.to(given.k.dtype)}
