"""What measuring a stub asks of a GPU: the one seam between its rules and torch.cuda."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from graphs import capture, class_times
from graphs.capture import Recorder
from ingest.trace import Trace
from kernels import CudaGpu, Stopwatch
from verifyscope.conditions import Sampler
from verifyscope.records import Value


class Conditions(Protocol):
    """What is sampled while passes are timed."""

    def summary(self) -> dict[str, Value]:
        """Return it for a record's conditions."""

    def throttled(self) -> tuple[str, ...]:
        """Return the reasons for which a clock was held down."""


class Device(Protocol):
    """What measuring asks of a GPU: the one seam between this file and torch.cuda."""

    device: torch.device
    l2_bytes: int

    def free_bytes(self) -> int:
        """Return what can still be allocated."""

    def synchronize(self) -> None:
        """Wait for all that is enqueued."""

    def stopwatch(self) -> Stopwatch:
        """Return what takes device time."""

    def recorder(self) -> Recorder:
        """Return what captures."""

    def conditions(self) -> AbstractContextManager[Conditions]:
        """Sample clocks, power and temperature within the block."""

    def profile(self, run: Callable[[], object], *, passes: int) -> Trace:
        """Profile some passes."""


class CudaDevice(CudaGpu):
    """The current CUDA device through torch."""

    def recorder(self) -> Recorder:
        """Capture through torch."""
        return capture.CudaRecorder()

    def conditions(self) -> AbstractContextManager[Conditions]:
        """Sample through NVML."""
        return Sampler(str(torch.cuda.get_device_properties(self.device).uuid))

    def profile(self, run: Callable[[], object], *, passes: int) -> Trace:
        """Let torch's profiler see them."""
        return class_times.record(run, passes=passes, synchronize=self.synchronize)
