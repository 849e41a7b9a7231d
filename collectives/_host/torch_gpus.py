"""`peer_tests.Gpus` by torch: what touches the devices, and nothing else.

torch's copy between two GPUs enables peer access where the driver offers it, runs on the stream of
the source, and makes it and the stream of the target wait for one another. So each write gets a
stream of its own on either side; on the default streams a ring would run one write after the other.
A contiguous copy is the copy engine's; a strided one is a kernel on the writer whose stores go to
the target. Patterns are made on both sides from a seed and are never sent to be compared.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch

from collectives._host.facts import Way
from collectives._host.peer_tests import Differed
from verifyscope import nvml

_WORD_BYTES = 8
_LOAD_BYTES = 2**28
_FEWEST_COPIES, _MOST_COPIES = 8, 512
# A link trains up within milliseconds of the first packet; NVML is asked well after that.
_TRAINING_S = 0.05
# Odd numbers with well mixed bits, below 2**63: multiplication wraps, on a GPU and on a CPU.
_MULTIPLIER, _STEP = 0x2545F4914F6CDD1D, 0x61C8864680B583EB


class Cuda(Protocol):
    """The part of the module torch.cuda that is used."""

    def device_count(self) -> int: ...

    def synchronize(self, device: Any = ...) -> None: ...

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool: ...

    def get_device_properties(self, device: Any) -> Any: ...

    def Stream(self, device: Any) -> Any: ...

    def stream(self, stream: Any) -> Any: ...

    def Event(self) -> Any: ...


class TorchGpus:
    """All GPUs that torch sees; `device` makes the device of a place, a CPU's in tests."""

    def __init__(
        self,
        cuda: Cuda,
        driver: nvml.Driver,
        *,
        device: Callable[[int], torch.device] = lambda place: torch.device("cuda", place),
        pinned: bool = True,
    ) -> None:
        self._cuda, self._pinned = cuda, pinned
        count = cuda.device_count()
        self._devices = [device(place) for place in range(count)]
        self._known = [_of_nvml(cuda, driver, place) for place in range(count)]
        self.numbers = tuple(
            place if known is None else known.index for place, known in enumerate(self._known)
        )

    def link(self, gpu: int) -> tuple[int | None, int | None]:
        """Return generation and width of a link as NVML has them now."""
        known = self._known[gpu]
        if known is None:
            return None, None
        return (
            known.number("nvmlDeviceGetCurrPcieLinkGeneration"),
            known.number("nvmlDeviceGetCurrPcieLinkWidth"),
        )

    def link_under_load(self, gpu: int) -> tuple[int | None, int | None] | None:
        """Read the link between two copies of which the later has not ended; more, if need be."""
        source = self._host_memory(_LOAD_BYTES)
        target = torch.empty_like(source, device=self._devices[gpu])
        copies = _FEWEST_COPIES
        while copies <= _MOST_COPIES:
            stream = self._cuda.Stream(self._devices[gpu])
            with self._cuda.stream(stream):
                for _ in range(copies):
                    target.copy_(source, non_blocking=True)
                end = self._cuda.Event()
                end.record(stream)
            time.sleep(_TRAINING_S)
            found = self.link(gpu)
            ran = not end.query()
            self._cuda.synchronize(self._devices[gpu])
            if ran:
                return found
            copies *= 4
        return None

    def host_copy(self, gpu: int, *, to_gpu: bool, size_bytes: int) -> float:
        """Return the seconds of a copy between pinned memory of the host and a GPU."""
        host = self._host_memory(size_bytes)
        device = torch.empty_like(host, device=self._devices[gpu])
        target, source = (device, host) if to_gpu else (host, device)
        target.copy_(source, non_blocking=True)
        self._cuda.synchronize(self._devices[gpu])
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        self._cuda.synchronize(self._devices[gpu])
        return time.perf_counter() - began

    def can_reach(self, writer: int, target: int) -> bool:
        """Say whether CUDA lets `writer` reach the memory of `target`."""
        return self._cuda.can_device_access_peer(writer, target)

    def write(self, writer: int, target: int, *, way: Way, size_bytes: int, seed: int) -> Differed:
        """Poison memory of `target`, write into it from `writer`, and compare it there."""
        words = size_bytes // _WORD_BYTES
        source = pattern(words, seed, self._devices[writer])
        wanted = pattern(words, seed, self._devices[target])
        landing = ~wanted
        self._wait_for((writer, target))
        if way == "copy engine":
            landing.copy_(source, non_blocking=True)
        else:
            for half in (0, 1):  # every second word: no copy engine does that
                landing[half::2].copy_(source[half::2], non_blocking=True)
        self._wait_for((writer, target))
        return differences(landing, wanted)

    def write_together(
        self, writes: Sequence[tuple[int, int]], *, size_bytes: int
    ) -> tuple[float, Differed]:
        """Return the seconds until all writes that ran at once had arrived, and compare them."""
        words = size_bytes // _WORD_BYTES
        places = sorted({place for pair in writes for place in pair})
        sources = [pattern(words, at, self._devices[w]) for at, (w, _) in enumerate(writes)]
        wanted = [pattern(words, at, self._devices[t]) for at, (_, t) in enumerate(writes)]
        landings = [torch.empty_like(one) for one in wanted]
        streams = [
            (self._cuda.Stream(self._devices[w]), self._cuda.Stream(self._devices[t]))
            for w, t in writes
        ]
        self._write_all(sources, landings, streams)  # peer access is set up by the first
        for landing, one in zip(landings, wanted, strict=True):
            landing.copy_(~one)
        self._wait_for(places)
        began = time.perf_counter()
        self._write_all(sources, landings, streams)
        self._wait_for(places)
        seconds = time.perf_counter() - began
        found = [differences(a, b) for a, b in zip(landings, wanted, strict=True)]
        return seconds, Differed(
            lost=sum(one.lost for one in found), wrong=sum(one.wrong for one in found)
        )

    def _write_all(
        self,
        sources: Sequence[torch.Tensor],
        landings: Sequence[torch.Tensor],
        streams: Sequence[tuple[Any, Any]],
    ) -> None:
        for source, landing, (leaving, arriving) in zip(sources, landings, streams, strict=True):
            with ExitStack() as stack:
                stack.enter_context(self._cuda.stream(arriving))
                stack.enter_context(self._cuda.stream(leaving))
                landing.copy_(source, non_blocking=True)

    def _host_memory(self, size_bytes: int) -> torch.Tensor:
        words = size_bytes // _WORD_BYTES
        memory = torch.empty(words, dtype=torch.int64, pin_memory=self._pinned)
        return memory.copy_(torch.arange(words))

    def _wait_for(self, places: Sequence[int]) -> None:
        for place in places:
            self._cuda.synchronize(self._devices[place])


def pattern(words: int, seed: int, device: torch.device) -> torch.Tensor:
    """Return `words` int64 that depend on their place and on the seed alone, on any device."""
    value = torch.arange(words, dtype=torch.int64, device=device)
    value = (value + (seed * _STEP) % 2**62) * _MULTIPLIER
    return (value ^ (value >> 29)) * _MULTIPLIER


def differences(landing: torch.Tensor, wanted: torch.Tensor) -> Differed:
    """Count the words that differ: those that still hold the poison (~wanted), and others."""
    differ = landing != wanted
    lost = differ & (landing == ~wanted)
    return Differed(lost=int(lost.sum()), wrong=int((differ & ~lost).sum()))


def _of_nvml(cuda: Cuda, driver: nvml.Driver, place: int) -> nvml.Gpu | None:
    """Return the GPU of NVML that CUDA calls `place`: CUDA_VISIBLE_DEVICES renumbers."""
    uuid = getattr(cuda.get_device_properties(place), "uuid", None)
    return driver.find(str(uuid) if uuid is not None else place)
