"""The replay of a captured CUDA graph, held to the reference and to an eager run.

Floating-point inputs are changed in place between capture and replay: a graph that remembers values
instead of addresses, or misses a kernel that went to another stream, gives old numbers or NaN.
Integers (page tables, masks) stay as they are, since `prepare` may have packed them.
"""

import dataclasses

import torch

from kernels._capture import capture
from kernels._check import Check, compare, reference
from kernels._registry import Case, Implementation, Inputs, Outputs


def check_replay(implementation: Implementation, case: Case, *, device: torch.device) -> Check:
    """Capture one call, change its inputs, replay, compare. Needs a CUDA device.

    After a failed capture the process is not to be trusted any more: end it.
    """
    op = implementation.op
    inputs = op.inputs(case, device)
    prepared = implementation.prepare(inputs)
    captured = capture(prepared.call)
    renew(inputs, op.inputs(dataclasses.replace(case, seed=case.seed + 1), device))
    eager = {name: value.clone() for name, value in prepared.outputs().items()}
    poison(captured.outputs)
    if prepared.restore is not None:
        prepared.restore()
    captured.replay()
    replayed = prepared.convert(captured.outputs)
    torch.cuda.synchronize(device)
    want = reference(implementation, inputs)
    return Check(
        name=f"{implementation.id} on {case.name}, replayed",
        outputs=(
            *compare(replayed, want, tolerance=op.tolerance),
            *compare(replayed, eager, tolerance=op.tolerance),
        ),
        changed_inputs=(),
    )


def renew(inputs: Inputs, others: Inputs) -> None:
    """Copy the floating-point tensors of `others` over those of `inputs`, in place.

    What is NaN in either stays as it is: which cells hold no value is said by tensors that stay.
    """
    for name, value in inputs.items():
        other = others[name]
        if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
            continue
        if value.is_floating_point():
            value.copy_(torch.where(value.isnan() | other.isnan(), value, other))


def poison(outputs: Outputs) -> None:
    """Fill with NaN, integers with their largest value."""
    for value in outputs.values():
        if value.is_floating_point():
            value.fill_(torch.nan)
        else:
            value.fill_(True if value.dtype is torch.bool else torch.iinfo(value.dtype).max)
