"""The replay of a captured CUDA graph, held to the reference and to an eager run.

Floating-point inputs are changed in place between capture and replay: a graph that remembers values
instead of addresses, or misses a kernel that went to another stream, gives old numbers or NaN.
Integers (page tables, masks) stay as they are, since `prepare` may have packed them.
"""

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator

import torch

from kernels._check import Check, compare, reference
from kernels._registry import Case, Implementation, Inputs, Outputs

_WARM_UP_CALLS = 3


def check_replay(implementation: Implementation, case: Case, *, device: torch.device) -> Check:
    """Capture one call, change its inputs, replay, compare. Needs a CUDA device.

    After a failed capture the process is not to be trusted any more: end it.
    """
    op = implementation.op
    inputs = op.inputs(case, device)
    prepared = implementation.prepare(inputs)
    graph, captured = capture(prepared.call)
    renew(inputs, op.inputs(dataclasses.replace(case, seed=case.seed + 1), device))
    eager = {name: value.clone() for name, value in prepared.call().items()}
    poison(captured)
    graph.replay()
    torch.cuda.synchronize(device)
    want = reference(implementation, inputs)
    return Check(
        name=f"{implementation.id} on {case.name}, replayed",
        outputs=(
            *compare(captured, want, tolerance=op.tolerance),
            *compare(captured, eager, tolerance=op.tolerance),
        ),
        changed_inputs=(),
    )


def capture(call: Callable[[], Outputs]) -> tuple[torch.cuda.CUDAGraph, Outputs]:
    """Return a graph of one `call`, ready to replay, and the outputs that each replay fills."""
    caller = torch.cuda.current_stream()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types there
    side.wait_stream(caller)
    with torch.cuda.stream(side):  # handles, modules and pools are made on the capturing stream
        for _ in range(_WARM_UP_CALLS):
            call()
    caller.wait_stream(side)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    try:
        with _no_collection(), torch.cuda.graph(graph, stream=side):
            outputs = call()
    except Exception as error:
        # torch leaves the thread on the capturing stream, and names the cause only here.
        torch.cuda.set_stream(caller)
        cause = error.__context__ or error
        raise RuntimeError(f"it cannot be captured into a CUDA graph: {cause}") from error
    if not _nodes(graph):
        raise RuntimeError("the captured CUDA graph is empty: it launches on another stream")
    graph.instantiate()
    return graph, outputs


def renew(inputs: Inputs, others: Inputs) -> None:
    """Copy the floating-point tensors of `others` over those of `inputs`, in place."""
    for name, value in inputs.items():
        other = others[name]
        if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
            continue
        if value.is_floating_point():
            value.copy_(other)


def poison(outputs: Outputs) -> None:
    """Fill with NaN, integers with their largest value."""
    for value in outputs.values():
        if value.is_floating_point():
            value.fill_(torch.nan)
        else:
            value.fill_(True if value.dtype is torch.bool else torch.iinfo(value.dtype).max)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    # Collecting a Triton kernel unloads its module, which would break the capture.
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _nodes(graph: torch.cuda.CUDAGraph) -> int:
    from cuda.bindings import runtime

    handle = runtime.cudaGraph_t(graph.raw_cuda_graph())
    status, _, count = runtime.cudaGraphGetNodes(handle)
    if int(status):
        raise RuntimeError(f"cudaGraphGetNodes: {status.name}")
    return int(count)
