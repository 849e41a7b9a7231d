"""A GPU for the control flow of timing: it captures, replays and counts, and computes on this CPU.

Its time is what it says: `CALL_S` for each call of an implementation that is enqueued while it is
timed, and 1 s for anything else. What a real GPU does is not shown by it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from kernels._capture import Captured, CaptureFailed

T = TypeVar("T")
CALL_S = 2.0**-20


@dataclass
class FakeGpu:
    """Set `capturable` or `capture_error` to see what becomes of an op that cannot be captured."""

    l2_bytes: int
    memory_bytes: int = 2**40
    capturable: str | None = None
    capture_error: str | None = None
    loses_work: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    calls: int = 0
    log: list[str] = field(default_factory=list)

    def counted(self, call: Callable[[], T], name: str = "call") -> Callable[[], T]:
        """Return `call`, which this GPU sees from now on."""

        def seen() -> T:
            self.calls += 1
            self.log.append(name)
            return call()

        return seen

    def free_bytes(self) -> int:
        return self.memory_bytes

    def allocated_bytes(self) -> int:
        return 0

    def empty_cache(self) -> None:
        self.log.append("empty_cache")

    def synchronize(self) -> None:
        pass

    def stopwatch(self) -> "FakeGpu":
        return self

    def seconds(self, timed: Callable[[], object], *, before: Callable[[], object]) -> float:
        before()
        self.log.append("start")
        calls = self.calls
        timed()
        self.log.append("end")
        return (self.calls - calls) * CALL_S or 1.0

    def why_not_capturable(self, call: Callable[[], object]) -> str | None:
        call()
        return self.capturable

    def capture(self, body: Callable[[], T]) -> Captured[T]:
        if self.capture_error is not None:
            raise CaptureFailed(f"capture failed: {self.capture_error}")
        outputs = body()
        graph: Any = _Graph(self, body, outputs)
        return Captured(graph=graph, outputs=outputs, node_count=7)


class _Graph:
    """Runs the body again and copies into the outputs of the capture: a graph overwrites them."""

    def __init__(self, gpu: FakeGpu, body: Callable[[], Any], outputs: Any) -> None:
        self._gpu, self._body, self._outputs = gpu, body, outputs

    def replay(self) -> None:
        if self._gpu.loses_work:
            return
        for old, new in zip(self._outputs, self._body(), strict=True):
            for name, value in new.items():
                old[name].copy_(value)
