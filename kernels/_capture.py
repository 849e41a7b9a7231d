"""Capture calls into a CUDA graph that is ready to be replayed and timed.

The graph is warmed up on the stream that captures, proven not to be empty, instantiated and
uploaded: the first replay pays for none of that. What the calls returned is overwritten by each
replay, so compare or clone it before the next. Needs torch >= 2.8 and a GPU.

A capture that fails leaves the thread on the capturing stream, and up to torch 2.13 the allocator
in doubt; `capture` goes back to the caller's stream and raises `CaptureFailed` with the cause.
"""

import gc
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch

from verifyscope.errors import reason_of

T = TypeVar("T")
ErrorMode = Literal["global", "thread_local", "relaxed"]


class CaptureFailed(RuntimeError):
    """The calls could not be captured; the message names what broke it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured(Generic[T]):
    """An instantiated graph, what its calls returned, and its nodes (None: cannot be counted)."""

    graph: torch.cuda.CUDAGraph
    outputs: T
    node_count: int | None

    def replay(self) -> None:
        """Run the graph once on the current stream."""
        self.graph.replay()


def capture(
    body: Callable[[], T],
    *,
    warmup_calls: int = 3,
    pool: Any = None,
    error_mode: ErrorMode = "global",
) -> Captured[T]:
    """Capture one call of `body` after `warmup_calls` on the same stream."""
    caller = torch.cuda.current_stream()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(caller)
    with torch.cuda.stream(side):
        for _ in range(warmup_calls):
            body()
    caller.wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    collecting = gc.isenabled()
    # A collected kernel unloads its module, which would invalidate the capture.
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode=error_mode):
            outputs = body()
    except Exception as error:
        torch.cuda.set_stream(caller)
        # When an op breaks a capture, the error that arrives is that of ending it.
        raise CaptureFailed(f"capture failed: {reason_of(error.__context__ or error)}") from error
    finally:
        if collecting:
            gc.enable()
    count = _node_count(graph.raw_cuda_graph())
    if count == 0:
        raise CaptureFailed("capture failed: it recorded nothing; the calls ran on another stream")
    graph.instantiate()
    upload(graph, caller)
    return Captured(graph=graph, outputs=outputs, node_count=count)


def why_not_capturable(call: Callable[[], object]) -> str | None:
    """Run `call` eagerly and say which synchronizing operation of torch would break a capture.

    It sees torch's own operations only, and unlike a capture it leaves nothing broken behind.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # torch says that this mode does not see everything; so does the docstring.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            return reason_of(error)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return None


def _node_count(raw_graph: int) -> int | None:
    runtime = _runtime()
    if runtime is None:
        return None
    error, _, count = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(raw_graph))
    # Errors are returned, never raised.
    return None if int(error) else int(count)


def upload(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> bool:
    """Move an instantiated graph to the device ahead of its first launch; say whether that went."""
    runtime = _runtime()
    if runtime is None or not hasattr(graph, "raw_cuda_graph_exec"):
        return False
    (error,) = runtime.cudaGraphUpload(
        runtime.cudaGraphExec_t(graph.raw_cuda_graph_exec()),
        runtime.cudaStream_t(stream.cuda_stream),
    )
    return not int(error)


def _runtime() -> Any:
    if importlib.util.find_spec("cuda") is None:
        return None
    try:
        from cuda.bindings import runtime
    except ImportError:
        return None
    return runtime
