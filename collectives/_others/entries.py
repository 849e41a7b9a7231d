"""The all-reduces beside NCCL that a sweep measures, by name: a new one is an entry and a file.

Each is a backend, whose name is the label of its one combination. What a plan can know without a
GPU and without torch is said here (`why_not`): a package that is absent, ranks and dtypes that it
does not take. What only a rank can know (an operation that this torch lacks, no access between
GPUs) it says when it is probed, by `Unsupported`.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from collectives._others import cupy_nccl, flashinfer_pcie, symmetric_memory
from collectives._sweep.backend import Backend
from collectives._sweep.combination import Combination
from verifyscope.errors import choose

ALL, NONE = "all", "none"
_SINCE_FLASHINFER = (0, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a plan knows. on_device: the sweep's own backend runs on GPUs."""

    on_device: bool
    dtype: str
    ranks: int
    local_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """An implementation of all-reduce beside the sweep's own backend; worth: why it is run."""

    backend: Backend
    worth: str
    why_not: Callable[[Setting], str | None]


def _symmetric_memory(setting: Setting) -> str | None:
    if setting.dtype not in symmetric_memory.DTYPES:
        return f"torch's symmetric memory sums {' and '.join(symmetric_memory.DTYPES)} only"
    if setting.ranks == 1:
        return "one rank has nobody to share memory with"
    return _one_machine(setting)


def _two_shot(setting: Setting) -> str | None:
    if setting.ranks not in symmetric_memory.TWO_SHOT_RANKS:
        return f"torch has a two-shot for {_listed(symmetric_memory.TWO_SHOT_RANKS)} ranks"
    return _symmetric_memory(setting)


def _flashinfer(setting: Setting) -> str | None:
    version = _installed("flashinfer-python")
    if version is None:
        return "FlashInfer is not installed"
    if _release(version) < _SINCE_FLASHINFER:
        return f"FlashInfer {version} has no {flashinfer_pcie.WORKSPACE}; 0.7 has"
    if setting.dtype not in flashinfer_pcie.DTYPES:
        return f"FlashInfer's PCIe all-reduce takes {' and '.join(flashinfer_pcie.DTYPES)} only"
    if setting.ranks not in flashinfer_pcie.RANKS:
        return f"FlashInfer's PCIe all-reduce is for {_listed(flashinfer_pcie.RANKS)} ranks"
    return _one_machine(setting)


def _cupy(setting: Setting) -> str | None:
    return None if importlib.util.find_spec("cupy") else "CuPy is not installed"


def _one_machine(setting: Setting) -> str | None:
    several = setting.local_ranks < setting.ranks
    return "it reaches the GPUs of one machine only" if several else None


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" or {numbers[-1]}"


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


_OTHERS = {
    known.backend.name: known
    for known in (
        Other(
            backend=symmetric_memory.ONE_SHOT,
            worth="every rank reads all others at once: few steps, n times the bytes",
            why_not=_symmetric_memory,
        ),
        Other(
            backend=symmetric_memory.TWO_SHOT,
            worth="each rank sums a part of all others, then reads their parts",
            why_not=_two_shot,
        ),
        Other(
            backend=flashinfer_pcie.BACKEND,
            worth="made for PCIe; as tuned in its cache, else its seed",
            why_not=_flashinfer,
        ),
        Other(
            backend=cupy_nccl.BACKEND,
            worth="NCCL's own choice again, called without torch's process group",
            why_not=_cupy,
        ),
    )
}


def register(other: Other) -> None:
    """Take `other` in place of the one of its name: this is for tests."""
    _OTHERS[other.backend.name] = other


def planned(words: str, setting: Setting) -> Iterator[Combination]:
    """Yield a combination for each implementation that is named: all, none, or names."""
    names = list(_OTHERS) if words == ALL else [] if words == NONE else words.split(",")
    for name in dict.fromkeys(name.strip() for name in names):
        other = _OTHERS[choose("other all-reduce", name, [*_OTHERS, ALL, NONE])]
        why_not = other.why_not(setting)
        if other.backend.on_device and not setting.on_device:
            why_not = "it needs GPUs; --backend nccl measures it beside NCCL"
        yield Combination(
            backend=name,
            verdict="run" if why_not is None else "unsupported",
            reason=why_not or other.worth,
        )


def moves(combination: Combination, own: Backend) -> Backend:
    """Return what moves the data of a combination; `own` is the sweep's backend."""
    other = _OTHERS.get(combination.backend)
    return own if other is None else other.backend
