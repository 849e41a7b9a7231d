"""What FlashInfer's routed experts share: the order of their rows, and how a plan tunes them.

All of them want the rows of up before those of gate, and nibbles in two's complement; the plan
converts, once. They choose a tactic by timing when they are called within `autotune`, else a fixed
one: a plan calls once within it, as an engine does when it starts. What was tuned is kept by
FlashInfer for this process, by shape.

Source: fused_moe/, autotuner/ in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from collections.abc import Callable, Sequence
from types import ModuleType

import torch

from kernels import _flashinfer
from kernels._flashinfer import Call
from kernels.moe import _formats
from kernels.moe._baselines import Baseline

AUTOTUNE = Call(function="autotune", needed=("tune_mode",))


def tune(library: ModuleType, call: Callable[[], object]) -> None:
    """Call once while FlashInfer times its tactics, and compiles what it has not compiled yet."""
    with (
        _flashinfer.advice(),
        AUTOTUNE.find(library)(**AUTOTUNE.accepted(library, tune_mode=True).kwargs),
    ):
        call()


def up_first(rows: torch.Tensor) -> torch.Tensor:
    """Return [up, gate] of [gate, up], weights or scales; a copy."""
    return _formats.halves_swapped(rows)


def output(x: torch.Tensor) -> torch.Tensor:
    """Return where y goes: NaN, so that what a version no longer writes is no result."""
    return torch.full_like(x, float("nan"))


def facts_of(
    library: ModuleType, baseline: Baseline, *, backend: str, dropped: Sequence[str] = ()
) -> dict[str, str]:
    """Return the version, the backend, what makes it of its kind and what was not taken."""
    facts = {
        "flashinfer": _flashinfer.version(library),
        "backend": backend,
        "work": baseline.why,
        "tactics": "tuned in the plan",
    }
    if dropped:
        facts["not_taken"] = ", ".join(dropped)
    return facts
