"""A pass as CUDA graphs: one of all of it, or several with the steps of some parts between, eager.

    recorder = CudaRecorder()
    graphed = capture(stub.full(), outside=frozenset({"attention"}), recorder=recorder)
    graphed.run()

A graph replays on the addresses that it was captured with. A step between two graphs reads what the
one before leaves there, and what it gives is copied to where the one behind looks for it: one copy
a tensor that it sets (`copies`), which an engine avoids by writing there at once.

What breaks a capture is named by its step: the one that raised, or behind which the capture was
found invalidated. After that these processes are to be ended: torch's allocator and stream are left
in doubt (torch up to 2.13). Instantiation and upload are done, and timed, once.

Errors: `CaptureBroke` with the step and the reason.
Source: torch.cuda.graphs of torch 2.8 to 2.14; docs.nvidia.com/dl-cuda-graph.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from graphs import nodes
from graphs._stub.step import Flow, Step
from graphs.nodes import Nodes
from graphs.stub import Call, Pass
from kernels import upload
from verifyscope.errors import reason_of


class CaptureBroke(Exception):
    """A capture failed at the step `op`."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op}: {reason}")
        self.op, self.reason = op, reason


class RecordedNothing(Exception):
    """A capture without a node: torch only warns of it, and a replay would do nothing."""


class Graph(Protocol):
    """A captured graph that was instantiated and uploaded; what that took, in seconds."""

    instantiate_s: float
    upload_s: float | None

    def replay(self) -> None:
        """Launch it on the current stream."""

    def opened(self) -> Nodes:
        """Return its nodes; `NotOpened` where they cannot be seen."""


class Recorder(Protocol):
    """Captures into graphs that share their memory; what cannot be captured raises."""

    def capturing(self) -> contextlib.AbstractContextManager[None]:
        """Let nothing come between while graphs are recorded in the block."""

    def warm_up(self, body: Callable[[], object]) -> None:
        """Run `body` where captures will run, so that nothing is compiled or tuned in one."""

    def record(self, body: Callable[[], object]) -> Graph:
        """Capture one run of `body`."""

    def is_broken(self) -> bool:
        """Say within a body whether its capture is already lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Between:
    """An eager step between two graphs: what flows into it, and where its results must lie."""

    step: Step
    before: Flow = field(repr=False)
    places: Flow = field(repr=False)

    def run(self) -> None:
        """Run it and copy what it gives to its place."""
        flow = dict(self.before)
        self.step.run(flow)
        for name, place in self.places.items():
            if flow[name].data_ptr() != place.data_ptr():
                place.copy_(flow[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphed:
    """A captured pass; `logits` are overwritten by each run."""

    pieces: tuple[Graph | _Between, ...]
    logits: torch.Tensor = field(repr=False)
    of: Pass = field(repr=False)

    @property
    def graphs(self) -> list[Graph]:
        """Return the graphs."""
        return [one for one in self.pieces if not isinstance(one, _Between)]

    @property
    def copies(self) -> int:
        """Return how many results of steps between graphs may be copied."""
        return sum(len(one.places) for one in self.pieces if isinstance(one, _Between))

    def run(self) -> torch.Tensor:
        """Launch the pass; return the logits."""
        for one in self.pieces:
            if isinstance(one, _Between):
                one.run()
            else:
                one.replay()
        return self.logits

    def restore(self) -> None:
        """Put back what passes before have changed in place."""
        self.of.restore()

    def require_nodes(self) -> None:
        """Raise `RecordedNothing` for a graph without nodes, as far as graphs can be opened."""
        with contextlib.suppress(nodes.NotOpened):
            for graph in self.graphs:
                if not graph.opened().count:
                    raise RecordedNothing("the capture recorded nothing")

    def opened(self) -> Nodes:
        """Return the nodes of all graphs together."""
        found = nodes.NONE
        for graph in self.graphs:
            found = found + graph.opened()
        return found


def capture(passed: Pass, *, outside: frozenset[str], recorder: Recorder) -> Graphed:
    """Capture a pass; steps of the parts `outside` stay eager. `CaptureBroke` names the step."""
    at = "the pass before the capture"
    try:
        for call in passed.calls:
            at = call.step.name
            recorder.warm_up(partial(call.run, passed.flow))
    except Exception as error:
        raise CaptureBroke(at, reason_of(error)) from error
    pieces: list[Graph | _Between] = []
    with recorder.capturing():
        for is_outside, calls in _runs(passed.calls, outside):
            if is_outside:
                pieces += [_between(call.step, passed.flow) for call in calls]
            elif any(call.computes for call in calls):
                pieces.append(_recorded(calls, passed.flow, recorder))
            else:
                for call in calls:
                    call.run(passed.flow)
    return Graphed(pieces=tuple(pieces), logits=passed.flow["logits"], of=passed)


def _runs(calls: Sequence[Call], outside: frozenset[str]) -> Iterator[tuple[bool, Sequence[Call]]]:
    """Yield what is outside and what is not, in turn; a step that is taken out can be anywhere."""
    run: list[Call] = []
    for call in calls:
        if call.computes and call.step.part in outside:
            if run:
                yield False, run
            yield True, [call]
            run = []
        else:
            run.append(call)
    if run:
        yield False, run


def _between(step: Step, flow: Flow) -> _Between:
    before = dict(flow)
    step.run(flow)
    return _Between(step=step, before=before, places={name: flow[name] for name in step.writes})


def _recorded(calls: Sequence[Call], flow: Flow, recorder: Recorder) -> Graph:
    at = calls[0].step.name

    def body() -> None:
        nonlocal at
        for call in calls:
            at = call.step.name
            call.run(flow)
            if call.computes and recorder.is_broken():
                raise RuntimeError("the capture was invalidated here")

    try:
        return recorder.record(body)
    except Exception as error:
        # When a step breaks a capture, the error that arrives may be that of ending it.
        raise CaptureBroke(at, reason_of(error.__context__ or error)) from error


class CudaRecorder:
    """Captures on a stream of its own of the current device; needs torch >= 2.8."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch.cuda
        self._pool: Any = torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Keep the collector away: a kernel that it unloads would invalidate the capture."""
        collecting = gc.isenabled()
        torch.cuda.synchronize()
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()

    def warm_up(self, body: Callable[[], object]) -> None:
        """Run `body` on the stream of captures."""
        caller = torch.cuda.current_stream()
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            body()
        caller.wait_stream(self._stream)

    def is_broken(self) -> bool:
        """Ask the runtime for the state of the capture."""
        return nodes.broke(self._stream.cuda_stream)

    def record(self, body: Callable[[], object]) -> "CudaGraph":
        """Capture `body`, instantiate and upload."""
        caller = torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                body()
        except Exception:
            torch.cuda.set_stream(caller)
            raise
        return CudaGraph(graph, caller)


class CudaGraph:
    """torch's graph, kept, so that it can be opened."""

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
        self._graph = graph
        start = time.perf_counter()
        graph.instantiate()
        self.instantiate_s = time.perf_counter() - start
        start = time.perf_counter()
        uploaded = upload(graph, stream)
        stream.synchronize()
        self.upload_s = time.perf_counter() - start if uploaded else None

    def replay(self) -> None:
        """Launch it on the current stream."""
        self._graph.replay()

    def opened(self) -> Nodes:
        """Open it through cuda.bindings."""
        return nodes.opened(self._graph.raw_cuda_graph())
