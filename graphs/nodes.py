"""A captured graph, opened: its nodes by kind and, of kernels, by name.

    found = opened(graph.raw_cuda_graph())        torch's graph, kept with keep_graph=True

Through cuda.bindings of 12.x or 13.x, which differ in nothing that is called here. Names come from
the driver, for the runtime that cuda.bindings carries knows no kernel that another one registered;
a kernel node holds a function or a kernel handle, whichever is set. Child graphs are entered, the
bodies of conditional nodes are not, and count as one node.

Errors: `NotOpened` with what cuda.bindings answered, or that it is not installed.
Source: headers of CUDA 12.9 and 13.0; return shapes of cuda-bindings 12.9.10 and 13.5.0.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PREFIX = "cudaGraphNodeType"
_UNNAMED = "(a kernel without a name)"
_DEEPEST = 8


class NotOpened(Exception):
    """A graph could not be looked into; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """How many nodes of each kind (kernel, memcpy, memset, ...), and calls of each kernel."""

    kinds: Mapping[str, int]
    kernels: Mapping[str, int]

    @property
    def count(self) -> int:
        """Return how many nodes there are."""
        return sum(self.kinds.values())

    def __add__(self, other: "Nodes") -> "Nodes":
        return Nodes(
            kinds=dict(Counter(self.kinds) + Counter(other.kinds)),
            kernels=dict(Counter(self.kernels) + Counter(other.kernels)),
        )


NONE = Nodes(kinds={}, kernels={})


def opened(raw_graph: int) -> Nodes:
    """Return the nodes of a graph, child graphs included."""
    try:
        from cuda.bindings import driver, runtime
    except ImportError as error:
        raise NotOpened(f"needs cuda-python (cuda.bindings): {error}") from None
    kinds: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    for kind, name in _nodes(driver, runtime, runtime.cudaGraph_t(raw_graph), depth=0):
        kinds[kind] += 1
        if name is not None:
            kernels[name] += 1
    return Nodes(kinds=dict(kinds.most_common()), kernels=dict(kernels.most_common()))


def broke(stream: int) -> bool:
    """Say whether the capture that a stream is in has been invalidated; False if nobody can say."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return False
    error, status = runtime.cudaStreamIsCapturing(runtime.cudaStream_t(stream))
    invalid = runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusInvalidated
    return not int(error) and status == invalid


def _nodes(
    driver: Any, runtime: Any, graph: Any, *, depth: int
) -> Iterator[tuple[str, str | None]]:
    _, count = _value(runtime.cudaGraphGetNodes(graph))
    # The first call tells how many there are, the second lists them, and pads what is too long.
    found = _value(runtime.cudaGraphGetNodes(graph, count))[0][:count] if count else []
    kinds = runtime.cudaGraphNodeType
    for node in found:
        kind = _value(runtime.cudaGraphNodeGetType(node))
        if kind == kinds.cudaGraphNodeTypeGraph and depth < _DEEPEST:
            child = _value(runtime.cudaGraphChildGraphNodeGetGraph(node))
            yield from _nodes(driver, runtime, child, depth=depth + 1)
        elif kind == kinds.cudaGraphNodeTypeKernel:
            yield "kernel", _kernel_name(driver, node)
        else:
            yield kind.name.removeprefix(_PREFIX).lower(), None


def _kernel_name(driver: Any, node: Any) -> str:
    params = _value(driver.cuGraphKernelNodeGetParams(driver.CUgraphNode(int(node))))
    if int(params.func):
        return _text(_value(driver.cuFuncGetName(params.func)))
    if int(params.kern):
        return _text(_value(driver.cuKernelGetName(params.kern)))
    return _UNNAMED


def _value(result: tuple[Any, ...]) -> Any:
    """Return what a call gave: errors come first in its answer, and are never raised."""
    error, *values = result
    if int(error):
        raise NotOpened(f"cuda.bindings answers {error.name} ({int(error)})")
    return values[0] if len(values) == 1 else tuple(values)


def _text(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name
