"""What the paged wrappers of FlashInfer share, for `tree_attention`: its caches go in as they are.

Caches are (k_cache, v_cache), layout NHD. An fp8 cache is widened in the kernel; k_scale goes into
the softmax scale, and v_scale is multiplied in by a small kernel of its own, which is timed, for
the library does it so. Outputs are allocated once and begin as NaN, so that one that a version no
longer writes cannot pass for a result. The LSE comes to base 2 and is made natural by `convert`,
after what is timed.

Source: signatures and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from kernels import Case, Outputs, Prepared, Stage, _flashinfer
from kernels._flashinfer import Call
from kernels.attention.tree_attention import Given

Reason = str
CAPABILITIES = (80, 90, 100, 110, 120)
_HEAD_DIMS = (64, 128, 256)  # those that its own builds hold; wider ones are for MLA
_DTYPES = (torch.bfloat16, torch.float16)
_FP8_HEAD_DIMS = (128, 256)  # "for fp8, this function doesn't work for head_dim = 64" (prefill.cuh)


def refuses(case: Case) -> Reason | None:
    """Say why FlashInfer's paged kernels cannot compute `case`, whatever the version."""
    if (dim := case.number("head_dim")) not in _HEAD_DIMS:
        return f"FlashInfer's paged kernels take a head_dim of {_HEAD_DIMS}, not {dim}"
    if case.dtype not in _DTYPES:
        return f"FlashInfer's paged kernels take float16 and bfloat16 queries, not {case.dtype}"
    if case.dims["kv"] == "fp8" and dim not in _FP8_HEAD_DIMS:
        return f"FlashInfer's paged kernels take fp8 caches of head_dim {_FP8_HEAD_DIMS}, not {dim}"
    return None


def new_wrapper(
    library: ModuleType, *, wrapper: Call, reset: Call, given: Mapping[str, object]
) -> Any:
    """Return a wrapper that is not planned yet, with a plan's memory and not the 8 MB it takes."""
    scratch: Any = given["float_workspace_buffer"]
    with _flashinfer.advice():
        made = wrapper.find(library)(**wrapper.accepted(library, **given).kwargs)
    plan = torch.empty(_flashinfer.PLAN_BYTES, dtype=torch.uint8, device=scratch.device)
    smaller = reset.accepted(library, float_workspace_buffer=scratch, int_workspace_buffer=plan)
    made.reset_workspace_buffer(**smaller.kwargs)
    return made


def prepared(
    library: ModuleType,
    wrapper: Any,
    *,
    run: Call,
    given: Given,
    facts: Mapping[str, str],
    stages: Sequence[Stage],
) -> Prepared:
    """Return a planned `wrapper` with its outputs; `run` may be offered `lse_base`."""
    q = given.q
    out = torch.full_like(q, float("nan"))
    lse = torch.full(q.shape[:2], float("nan"), dtype=torch.float32, device=q.device)
    base: dict[str, object] = {"lse_base": "log2"} if "lse_base" in run.offered else {}
    accepted = run.accepted(
        library,
        q=q,
        paged_kv_cache=(given.k_cache, given.v_cache),
        k_scale=given.k_scale,
        v_scale=given.v_scale,
        out=out,
        lse=lse,
        return_lse=True,
        **base,
    )
    finite_infinity = _flashinfer.has_finite_infinity(library)

    def call() -> Outputs:
        wrapper.run(**accepted.kwargs)
        return {"out": out, "lse": lse}

    def convert(got: Outputs) -> Outputs:
        natural = _flashinfer.natural_log(got["lse"], finite_infinity=finite_infinity)
        return {"out": got["out"], "lse": natural}

    scaled = {"v_scale": "multiplied in after the kernel"} if given.v_scale != 1.0 else {}
    return Prepared(call=call, convert=convert, facts={**facts, **scaled}, stages=tuple(stages))


def facts_of(library: ModuleType, wrapper: Any, *, dropped: Sequence[str] = ()) -> dict[str, str]:
    """Return the version, the backend that the plan resolved, the LSE and what was not taken."""
    backend = getattr(wrapper, "resolved_backend", None) or getattr(wrapper, "_backend", "unknown")
    facts = {
        "flashinfer": _flashinfer.version(library),
        "backend": str(backend),
        "lse": "base 2, made natural after the timed call",
    }
    if dropped:
        facts["not_taken"] = ", ".join(dropped)
    return facts
