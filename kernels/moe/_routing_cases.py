"""The named points of `moe_routing`: tiny, measured, and those that the compile gate builds.

A name says t (rows), the model whose sizes they are or e, k, g (experts, top-k, top groups of
groups) and the scoring, "raw" where weights are not renormalised, the dtype of the logits, and
"ties" where many keys are equal. Models with the same routing are one point, named by the first of
`verifyscope/models.py`: Kimi-K2 for K2.5 as well, Qwen3-235B for 30B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from kernels import Case
from verifyscope.models import TABLE, Moe
from verifyscope.records import Value

_VERIFY = (1, 2, 3, 4, 6, 8, 12, 16)
_MORE = (32, 64, 128, 256)
_FEW = (1, 4, 16)
_FLOAT, _HALF = torch.float32, torch.bfloat16
_SHORT = {_FLOAT: "fp32", _HALF: "bf16"}


def routings() -> Mapping[str, Moe]:
    """Return the routing of each model that has one, without those that another has as well."""
    found: dict[str, Moe] = {}
    for name, model in TABLE.items():
        if model.moe is None:
            continue
        routing = replace(model.moe, intermediate=0, shared_experts=0)
        if routing not in found.values():
            found[name] = routing
    return found


def _case(
    rows: int, moe: Moe, dtype: torch.dtype, *, who: str = "", ties: bool = False, **more: bool
) -> Case:
    """Name a point by all of its dims; `who` is the model that they come from."""
    dims: dict[str, Value] = {
        "rows": rows,
        "experts": moe.experts,
        "top_k": moe.top_k,
        "groups": moe.groups,
        "top_groups": moe.top_groups,
        "scoring": moe.scoring,
        "renormalise": "yes" if moe.norm_top_k else "no",
        "scaling": moe.routed_scaling,
        "drawn": "ties" if ties else "normal",
    }
    if who:
        dims["model"] = who
    groups = f"-g{moe.top_groups}of{moe.groups}" if moe.groups > 1 else ""
    sizes = who or f"e{moe.experts}-k{moe.top_k}{groups}-{moe.scoring}"
    raw = "" if moe.norm_top_k else "-raw"
    name = f"t{rows}-{sizes}{raw}-{_SHORT[dtype]}" + ("-ties" if ties else "")
    return Case(name=name, dims=dims, dtype=dtype, mode="verify", **more)


def _sigmoid(experts: int, top_k: int, *, top_groups: int = 1, groups: int = 1) -> Moe:
    return Moe(
        experts=experts,
        top_k=top_k,
        intermediate=0,
        groups=groups,
        top_groups=top_groups,
        scoring="sigmoid",
        correction_bias=True,
        routed_scaling=2.5,
    )


def _softmax(experts: int, top_k: int, *, renormalise: bool = True) -> Moe:
    return Moe(experts=experts, top_k=top_k, intermediate=0, norm_top_k=renormalise)


def _raw(moe: Moe) -> Moe:
    return replace(moe, norm_top_k=False)


def of_model(rows: int, model: str, dtype: torch.dtype, *, raw: bool = False) -> Case:
    """Return the point of a model's routing; raw: without renormalisation."""
    moe = routings()[model]
    return _case(rows, _raw(moe) if raw else moe, dtype, who=model)


def measured_cases() -> tuple[Case, ...]:
    """Vary one axis at a time around Kimi-K2.5 with float32 logits, T = 1 beside every other T."""
    kimi = routings()["kimi-k2"]
    return (
        *(_case(t, kimi, _FLOAT, who="kimi-k2", cpu=t in (1, 8)) for t in (*_VERIFY, *_MORE)),
        *(of_model(t, "kimi-k2", _HALF) for t in _FEW),
        *(of_model(t, "deepseek-v3", _FLOAT) for t in (1, 4, 8, 16, 256)),
        *(of_model(t, "deepseek-v3", _HALF) for t in _FEW),
        *(of_model(t, "qwen3-235b-a22b", _HALF) for t in (1, 4, 8, 16, 256)),
        *(of_model(t, "qwen3-235b-a22b", _FLOAT) for t in _FEW),
        *(of_model(t, "qwen3-235b-a22b", _HALF, raw=True) for t in _FEW),
        # The ends of the range.
        *(_case(t, _softmax(8, 2), _HALF) for t in (1, 16)),
        *(_case(t, _softmax(512, 16), _HALF) for t in (1, 16)),
        *(_case(t, _sigmoid(512, 1), _FLOAT) for t in (1, 16)),
    )


def tiny_cases() -> tuple[Case, ...]:
    """Return small points of every scoring, and ties of Kimi-K2.5's 384 experts."""
    kimi = replace(routings()["kimi-k2"])
    return (
        _case(1, _sigmoid(8, 2), _FLOAT, tiny=True),
        _case(3, kimi, _HALF, ties=True, tiny=True),
        _case(3, _sigmoid(64, 6, groups=8, top_groups=3), _FLOAT, tiny=True),
        _case(3, _sigmoid(36, 5, groups=4, top_groups=2), _HALF, ties=True, tiny=True),
        _case(3, _softmax(40, 16), _HALF, tiny=True),
        _case(2, _softmax(128, 8, renormalise=False), _HALF, ties=True, tiny=True),
        _case(2, _raw(_sigmoid(8, 3)), _FLOAT, tiny=True),
    )


def gate_cases() -> tuple[Case, ...]:
    """Return one for each model's routing, in the dtype that its router gives."""
    found = (
        of_model(1, "kimi-k2", _FLOAT),
        of_model(1, "deepseek-v3", _FLOAT),
        of_model(1, "qwen3-235b-a22b", _HALF),
    )
    return tuple(replace(case, name=f"gate-{case.name}") for case in found)


def long_gate_cases() -> tuple[Case, ...]:
    """Return the other dtypes, weights that are not renormalised, and the most of everything."""
    found = (
        *(of_model(1, "kimi-k2", _HALF, raw=raw) for raw in (False, True)),
        of_model(1, "deepseek-v3", _HALF),
        of_model(1, "qwen3-235b-a22b", _FLOAT),
        of_model(1, "qwen3-235b-a22b", _HALF, raw=True),
        _case(1, _sigmoid(512, 16), _FLOAT),
        _case(1, _sigmoid(512, 16, groups=32, top_groups=16), _HALF),
    )
    return tuple(replace(case, name=f"long-{case.name}") for case in found)
