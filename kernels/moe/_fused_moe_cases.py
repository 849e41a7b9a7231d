"""The named points of `fused_moe`: tiny, measured, and those that the compile gate builds.

A name says every dim: t (rows), the model and its tensor parallelism or e, k, h, i (experts, top-k,
hidden, intermediate a rank), the format, the routing, and s (the shared expert's intermediate size
a rank) where it is computed as well.
"""

import dataclasses

import torch

from kernels import Case
from verifyscope.models import TABLE
from verifyscope.records import Value

MOST_TOKENS = 256
_VERIFY = (1, 2, 3, 4, 6, 8, 12, 16)
_FEW = (1, 4, 16)


def _case(
    rows: int,
    *,
    experts: int,
    top_k: int,
    hidden: int,
    intermediate: int,
    form: str,
    routing: str = "uniform",
    shared: int = 0,
    rank: tuple[str, int] | None = None,
    tiny: bool = False,
    cpu: bool = False,
) -> Case:
    """Name a point by all of its dims; `rank` is the model and the TP that they come from."""
    dims: dict[str, Value] = {
        "rows": rows,
        "experts": experts,
        "top_k": top_k,
        "hidden": hidden,
        "intermediate": intermediate,
        "format": form,
        "routing": routing,
        "shared": shared,
    }
    who = f"e{experts}k{top_k}-h{hidden}-i{intermediate}"
    if rank is not None:
        dims |= {"model": rank[0], "tp": rank[1]}
        who = f"{rank[0]}-tp{rank[1]}"
    name = f"t{rows}-{who}-{form}-{routing}" + (f"-s{shared}" if shared else "")
    return Case(name=name, dims=dims, dtype=torch.bfloat16, mode="verify", tiny=tiny, cpu=cpu)


def of_model(
    rows: int,
    model: str = "kimi-k2.5",
    tp: int = 8,
    *,
    form: str | None = None,
    routing: str = "uniform",
    shared: bool = False,
) -> Case:
    """Return the point of one rank of a model, in its own format unless another is named."""
    known = TABLE[model]
    if known.moe is None:
        raise ValueError(f"{model} has no experts")
    own = known.formats.routed_experts.name.split()[0]
    width = known.moe.intermediate // tp
    return _case(
        rows,
        experts=known.moe.experts,
        top_k=known.moe.top_k,
        hidden=known.hidden,
        intermediate=width,
        form=form or own,
        routing=routing,
        shared=width * known.moe.shared_experts if shared else 0,
        rank=(model, tp),
    )


def measured_cases() -> tuple[Case, ...]:
    """Vary one axis at a time around one rank of Kimi-K2.5 under TP 8, int4, uniform routing.

    T = 1 stands beside every other T: time(T) / time(1) decides whether speculation pays.
    """
    return (
        *(of_model(t) for t in (*_VERIFY, 32, 64, 128, MOST_TOKENS)),
        # How much the experts of a tree overlap.
        *(of_model(t, routing=r) for r in ("zipf", "tree50", "tree80") for t in (1, 4, 8, 16)),
        *(of_model(t, shared=True) for t in (1, 4, 8, 16)),
        *(of_model(t, tp=tp) for tp in (4, 2, 1) for t in _FEW),
        # The formats; bf16 is what a baseline may be compared with.
        *(of_model(t, form="bf16") for t in (1, 4, 8, 16)),
        *(of_model(t, "kimi-k2") for t in _FEW),
        *(of_model(t, "deepseek-v3") for t in (1, 4, 8, 16)),
        *(of_model(t, "deepseek-v3", tp) for tp in (4, 2, 1) for t in (1, 4)),
        *(of_model(t, "qwen3-235b-a22b", tp) for tp in (8, 4) for t in _FEW),
        *(of_model(t, "qwen3-235b-a22b", tp) for tp in (2, 1) for t in (1, 4)),
        *(of_model(t, "qwen3-235b-a22b", 4, form="fp8") for t in (1, 4)),
        *(of_model(t, "qwen3-235b-a22b", 8, form="fp8") for t in (1,)),  # 192: refused, and why
        *(of_model(t, "qwen3-235b-a22b", 8, form="int4") for t in (1, 4)),
        *(of_model(t, "qwen3-30b-a3b", tp) for tp in (8, 4, 2, 1) for t in (1, 4)),
        # The ends of the range: 8 experts of the width of Mixtral's under TP 8, 512 narrow ones.
        *(
            _case(t, experts=8, top_k=2, hidden=4096, intermediate=1792, form=form)
            for form in ("bf16", "int4")
            for t in (1, 4, 16)
        ),
        *(
            _case(t, experts=512, top_k=k, hidden=2048, intermediate=512, form="int4")
            for k in (1, 10, 16)
            for t in (1, 4, 16)
        ),
        # What a CPU can time.
        *(
            _case(t, experts=16, top_k=4, hidden=1024, intermediate=128, form=form, cpu=True)
            for form in ("bf16", "int4")
            for t in (1, 4)
        ),
    )


def tiny_cases() -> tuple[Case, ...]:
    """Return small points of every format, path and routing."""

    def tiny(
        rows: int, form: str, routing: str = "uniform", top_k: int = 2, *, shared: int = 0
    ) -> Case:
        hidden, intermediate = (128, 128) if form == "fp8" else (96, 32)
        return _case(
            rows,
            experts=6,
            top_k=top_k,
            hidden=hidden,
            intermediate=intermediate,
            form=form,
            routing=routing,
            shared=shared,
            tiny=True,
        )

    return (
        *(tiny(rows, form) for form in ("bf16", "fp8", "int4") for rows in (1, 3)),
        tiny(5, "int4", "tree50", 3),
        tiny(4, "int4", "holes", 3),
        tiny(4, "bf16", "one"),
        tiny(3, "bf16", "twice", 3),
        tiny(3, "int4", shared=32),
        tiny(2, "fp8", shared=64),
        # More rows than the direct path takes.
        *(tiny(rows, form, "zipf") for rows, form in ((20, "int4"), (17, "bf16"), (18, "fp8"))),
        tiny(20, "int4", "holes", 3, shared=32),
    )


def gate_cases() -> tuple[Case, ...]:
    """Return small points that build each entry of the tile tables, for each format and path.

    What is compiled depends on no size but whether a step divides it: those of Kimi-K2.5 under TP 8
    but for fewer experts and a smaller hidden size. Two more: so many rows that the widest tile
    fills the SMs, and so few that the columns are split.
    """

    def gate(
        rows: int,
        form: str,
        *,
        experts: int = 4,
        top_k: int = 2,
        hidden: int = 1024,
        intermediate: int = 256,
        shared: int = 0,
    ) -> Case:
        found = _case(
            rows,
            experts=experts,
            top_k=top_k,
            hidden=hidden,
            intermediate=intermediate,
            form=form,
            shared=shared,
        )
        return dataclasses.replace(found, name=f"gate-{found.name}")

    formats = ("bf16", "fp8", "int4")
    return (
        *(gate(t, form) for form in formats for t in (4, 64)),
        gate(4, "int4", shared=256),
        gate(64, "int4", hidden=512, intermediate=2048),
        gate(1, "bf16", experts=2, hidden=7168, intermediate=128),
        # As many choices and columns as it takes for the largest tiles of CUDA C++.
        *(gate(t, form, experts=2, hidden=4864) for form in formats for t in (8, 16)),
    )


def long_gate_cases() -> tuple[Case, ...]:
    """Return one expert of all models, TP and formats that fit, for both paths, and shared ones."""
    found = []
    for model, known in TABLE.items():
        for tp in (1, 2, 4, 8) if known.moe is not None else ():
            for form in ("bf16", "fp8", "int4"):
                for rows in (4, 64):
                    case = of_model(rows, model, tp, form=form)
                    dims = {**case.dims, "experts": 2, "top_k": 1}
                    found.append(dataclasses.replace(case, name=f"long-{case.name}", dims=dims))
    for form in ("bf16", "fp8"):  # int4 is among those that are built each time
        case = of_model(4, "kimi-k2", form=form, shared=True)
        dims = {**case.dims, "experts": 2, "top_k": 1}
        found.append(dataclasses.replace(case, name=f"long-{case.name}", dims=dims))
    return tuple(found)
