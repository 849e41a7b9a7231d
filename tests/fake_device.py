"""A GPU for measuring stubs: it captures onto tapes, counts operations, and tells their time.

An eager operation takes the host EAGER_S, a graph LAUNCH_S to launch and NODE_S for each node: so
an eager pass is as long as its launches, and a captured one as its nodes. Its profiler writes the
trace of a GPU on which just that happened. It computes on this CPU; what a real GPU does is not
shown by it.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphs._stub.device import Conditions
from ingest.trace import Trace
from tests import trace_files
from tests.fake_capture import FakeRecorder, is_kernel
from verifyscope.records import Value

EAGER_S, NODE_S, LAUNCH_S = 2.0**-16, 2.0**-18, 2.0**-14
_KERNELS = {
    "mm": "nvjet_tst_64x64",
    "bmm": "nvjet_tst_batched",
    "exp": "fmha_of_a_fake",
    "index_copy_": "reshape_and_cache_of_a_fake",
    "_fused_rms_norm": "rms_norm_kernel",
}


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Hands each operation that would be a kernel to `seen`, and the spans of a profiler."""

    def __init__(self, seen: Callable[[str], None], span: Callable[[str | None], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self._seen, self._span = seen, span

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if name.startswith("_record_function_enter"):
            self._span(str(args[0]))
        elif name.startswith("_record_function_exit"):
            self._span(None)
        elif is_kernel(func, (args, kwargs), out):
            self._seen(name)
        return out


class FakeDevice:
    """Set `memory_bytes`, or what `recorder_` cannot do, to see what becomes of a job."""

    def __init__(self, *, l2_bytes: int = 2**18, memory_bytes: int = 2**34) -> None:
        self.device = torch.device("cpu")
        self.l2_bytes, self._memory_bytes = l2_bytes, memory_bytes
        self.recorder_ = FakeRecorder(self._launched)
        self.eager: list[str] = []
        self.graphs: list[int] = []
        self._counts = True
        self.throttle: tuple[str, ...] = ()

    def free_bytes(self) -> int:
        return self._memory_bytes

    def synchronize(self) -> None:
        pass

    def stopwatch(self) -> "FakeDevice":
        return self

    def seconds(self, timed: Callable[[], object], *, before: Callable[[], object]) -> float:
        before()
        self._count(timed)
        graphs = sum(LAUNCH_S + NODE_S * nodes for nodes in self.graphs)
        return EAGER_S * len(self.eager) + graphs

    def recorder(self) -> FakeRecorder:
        return self.recorder_

    @contextlib.contextmanager
    def _conditions(self) -> Iterator["FakeDevice"]:
        yield self

    def conditions(self) -> AbstractContextManager[Conditions]:
        return self._conditions()

    def summary(self) -> dict[str, Value]:
        return {"sm_mhz_median": 1980}

    def throttled(self) -> tuple[str, ...]:
        return self.throttle

    def profile(self, run: Callable[[], object], *, passes: int) -> Trace:
        """Write what ran as the trace of a GPU: eager kernels 10 us apart, nodes 5 us."""
        made, ts = trace_files.Kineto(), 100.0
        for number in range(passes):
            begin, spans = ts, _Spans(ts)
            self._count(run, spans)
            ts = spans.write(made, self.graphs)
            made.annotation(f"forward pass {number}", begin - 1, ts - begin + 20)
            ts += 1000
        (trace,), _ = trace_files.read(made.bytes())
        return trace

    def _launched(self, nodes: list[str]) -> contextlib.AbstractContextManager[None]:
        self.graphs.append(len(nodes))
        self.nodes = nodes
        return self._uncounted()

    @contextlib.contextmanager
    def _uncounted(self) -> Iterator[None]:
        self._counts = False
        yield
        self._counts = True

    def _count(self, run: Callable[[], object], spans: "_Spans | None" = None) -> None:
        self.eager, self.graphs = [], []

        def seen(name: str) -> None:
            if self._counts:
                self.eager.append(name)
                if spans is not None:
                    spans.ops.append((spans.now, name))

        def span(name: str | None) -> None:
            if spans is not None:
                spans.now = name

        with _Counting(seen, span):
            run()
        if spans is not None and self.graphs:
            spans.nodes = self.nodes


class _Spans:
    """What ran in one pass, and in which span."""

    def __init__(self, ts: float) -> None:
        self.ts = ts
        self.now: str | None = None
        self.ops: list[tuple[str | None, str]] = []
        self.nodes: list[str] = []

    def write(self, made: trace_files.Kineto, graphs: list[int]) -> float:
        """Write kernels of 4 us, with their launches and spans; return the time after them."""
        ts = self.ts
        for span, name in self.ops:
            if span is not None:
                made.annotation(span, ts, 9)
            made.call("cudaLaunchKernel", ts + 1, 2)
            made.gpu(_KERNELS.get(name, "elementwise_kernel"), ts + 4, 4)
            ts += 10
        if graphs:
            ts = made.graph([_KERNELS.get(n, "elementwise_kernel") for n in self.nodes], ts, dur=4)
        return ts
