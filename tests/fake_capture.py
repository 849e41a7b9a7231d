"""CUDA graphs on a CPU, at the level of ATen: what is captured is run again on the same memory.

A `Tape` notes each operation with aliases of its tensors as they lie at that moment; `replay` runs
them again and writes what they give over what they gave. So, as with a real graph, a replay reads
the addresses of the capture and no Python; a number that the host took out of a tensor is stale,
and taking one out (`.item()`, `.tolist()`) breaks the capture. Kernels and their times it has none.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from graphs.capture import Graph
from graphs.nodes import Nodes

_BREAKS = ("_local_scalar_dense", "nonzero", "unique_consecutive", "unique")
_NO_KERNEL = ("empty", "set_", "detach", "alias", "_record_function", "lift_fresh")


def is_kernel(func: Any, given: Any, out: Any) -> bool:
    """Say whether an operation would launch something: one that makes or changes memory.

    Allocations do not, nor do views: what those give lies where something that was given does.
    """
    name = func._schema.name.partition("::")[2]
    if name.startswith(_NO_KERNEL):
        return False
    known = {one.untyped_storage().data_ptr() for one in _tensors(given)}
    made = any(one.untyped_storage().data_ptr() not in known for one in _tensors(out))
    return made or bool(func._schema.is_mutable)


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, found.append, value)
    return found


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Notes what runs within `with tape:`; not nested."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self._ops: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if name in _BREAKS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        out = func(*args, **kwargs)
        if is_kernel(func, (args, kwargs), out):
            noted = tree_map_only(torch.Tensor, _alias, (args, kwargs, out))
            self._ops.append((func, *noted))
        return out

    @property
    def names(self) -> list[str]:
        """Return the operations that would be kernels."""
        return [func._schema.name.partition("::")[2] for func, *_ in self._ops]

    def replay(self) -> None:
        """Run them again, on the memory of the first time."""
        for func, args, kwargs, out in self._ops:
            for old, new in zip(_tensors(out), _tensors(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage()
    return found.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


Launched = Callable[[list[str]], contextlib.AbstractContextManager[None]]


class FakeGraph:
    """A tape as a graph; `launched` is told of each replay, which runs in its block."""

    def __init__(self, tape: Tape, launched: Launched) -> None:
        self.instantiate_s = 0.25
        self.upload_s: float | None = 0.125
        self._tape, self._launched = tape, launched

    def replay(self) -> None:
        with self._launched(self._tape.names):
            self._tape.replay()

    def opened(self) -> Nodes:
        names = self._tape.names
        kernels = {name: names.count(name) for name in dict.fromkeys(names)}
        return Nodes(kinds={"kernel": len(names)} if names else {}, kernels=kernels)


class FakeRecorder:
    """Captures onto tapes.

    breaks_at: an operation that is not permitted in a capture; invalidated_by: one that breaks it
    in silence. forgets: what is captured runs elsewhere, and the graph stays empty.
    """

    def __init__(self, launched: Launched = lambda nodes: contextlib.nullcontext()) -> None:
        self._launched = launched
        self.breaks_at: str | None = None
        self.invalidated_by: str | None = None
        self.forgets = False
        self.recorded = 0
        self._tape: Tape | None = None

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        yield

    def warm_up(self, body: Callable[[], object]) -> None:
        body()

    def record(self, body: Callable[[], object]) -> Graph:
        self._tape = Tape()
        with self._tape:
            body()
        if self.breaks_at is not None and self.breaks_at in self._tape.names:
            raise RuntimeError(f"{self.breaks_at} cannot be captured")
        self.recorded += 1
        return FakeGraph(Tape() if self.forgets else self._tape, self._launched)

    def is_broken(self) -> bool:
        tape = self._tape
        return (
            self.invalidated_by is not None
            and tape is not None
            and (self.invalidated_by in tape.names)
        )
