"""Run a CUDA C++ kernel on the CPU: the source and the call of `RawKernel`, unchanged.

    kernel = HostKernel(SOURCE, "row_softmax")
    kernel((rows,), (128,), (x, y, cols), shared_mem=0)

x, y: NumPy arrays or torch CPU tensors, written in place. A kernel that breaks a rule of CUDA
raises `KernelFault`, with the thread and the line of the source. Watched are
- races on shared memory, even where the result happens to be right; shared indices out of bounds;
- deadlocks, barriers in divergent code, a shuffle from a lane that takes no part (NaN or -1);
- memory that nobody wrote: shared memory is NaN or 0xCD in even orders and 3.4e38 in odd ones;
- writes out of an array argument (up to 256 bytes away; a read gives NaN); misaligned accesses;
- thread orders: each launch runs with threads upwards and downwards, and must leave equal bytes;
- arguments that a GPU would misread, such as a Python float for a `float`: `TypeError`;
- tensor cores through `nvcuda::wmma` (mma.h) in 16 x 16 x 16, __half or __nv_bfloat16 to float:
  lanes that take no part or disagree, alignment, bounds and races, elements taken by their place;
- tensor cores through `mma_16x8x16` (`_mma_cuda`), in registers: lanes that take no part;
- cp.async through cuda_pipeline_primitives.h: what is read before the wait for it, refilled while
  others read it, misaligned or out of the bounds of shared memory.

Not there: inline PTX, other fragments, TMA, clusters, cooperative groups, textures.
Blocks run one after another, and a thread keeps the CPU until it waits: a loop that polls never
ends. Races are seen through `SHARED_ARRAY`, `DYNAMIC_SHARED` and `SHARED_AS`, and in what wmma
loads and stores; else not behind a bare pointer, and not on global memory. Minus infinity is
`__int_as_float(0xff800000)`: NVRTC has no `INFINITY`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernels import _host_cuda_build
from kernels._raw import Launch

_GUARD_BYTES = 256
_ALIGNMENT = 64


class KernelFault(RuntimeError):
    """The kernel broke a rule: a race, a deadlock, a bad index, a result that depends on order."""


def why_not() -> str | None:
    """Say why kernels cannot be run on this CPU, fit for a skip; None if they can."""
    return _host_cuda_build.why_not()


def run(launch: Launch) -> None:
    """Do on this CPU what `launch` asks of a GPU."""
    kernel = HostKernel(launch.source, launch.name, options=launch.options)
    kernel(launch.grid, launch.block, launch.args, shared_mem=launch.shared_bytes)


class HostKernel:
    """A `__global__` function that runs on this CPU, called as `cupy.RawKernel` is."""

    def __init__(self, source: str, name: str, *, options: tuple[str, ...] = ()) -> None:
        self.source, self.name, self._options = source, name, options

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        orders: Sequence[int] = (0, 1),
    ) -> None:
        """Run once for each thread order, each time on fresh copies; keep the first order's result.

        Order 0 runs threads upwards, 1 downwards, any other is the seed of a random one. If two
        orders give different bytes, raise. A kernel that adds floats atomically may: give one
        order at a time, and hold each to the reference.
        """
        if not orders:
            raise ValueError("orders is empty; give at least one")
        first: list[_Storage] = []
        for order in orders:
            storages = self._run(grid, block, args, shared_mem, order)
            if order == orders[0]:
                first = storages
            for one, other in zip(first, storages, strict=True):
                if (at := one.first_difference(other)) is not None:
                    raise KernelFault(
                        f"{self.name}: thread orders {orders[0]} and {order} leave different bytes "
                        f"in {one.owners}, first at byte {at}: a barrier is missing, or memory "
                        f"is read that nobody wrote"
                    )
        for storage in first:
            storage.copy_back()

    def _run(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        shared_mem: int,
        order: int,
    ) -> list[_Storage]:
        codes = self._parameter_codes
        if len(args) != len(codes):
            raise TypeError(f"{self.name} has {len(codes)} parameters, got {len(args)} arguments")
        spans = {
            n: _Span.of(n, arg, code)
            for n, (arg, code) in enumerate(zip(args, codes, strict=True))
            if code[0] in "rw"
        }
        storages = list(_merged(spans.values()))
        values = [
            _pointer(spans[n], storages) if n in spans else _scalar(n, arg, code)
            for n, (arg, code) in enumerate(zip(args, codes, strict=True))
        ]
        launch = _Launch(
            _three("grid", grid, 2**31 - 1),
            _three("block", block, 1024),
            shared_mem,
            order,
            (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values)),
        )
        if fault := self._library.host_cuda_launch(ctypes.byref(launch)).decode():
            raise KernelFault(f"{self.name}, thread order {order}: {self._quoted(fault)}")
        for storage in storages:
            storage.check_guards(self.name)
        return storages

    def _quoted(self, fault: str) -> str:
        lines = self.source.splitlines()

        def quote(match: re.Match[str]) -> str:
            number = int(match[1])
            return f"{match[0]} `{lines[number - 1].strip()}`" if number <= len(lines) else match[0]

        return re.sub(r"at line (\d+)", quote, fault)

    @cached_property
    def _library(self) -> ctypes.PyDLL:
        # PyDLL holds the interpreter lock: a library runs one block at a time, in static variables.
        path = _host_cuda_build.built(self.source, self.name, options=self._options)
        library = ctypes.PyDLL(str(path))
        library.host_cuda_launch.restype = ctypes.c_char_p
        library.host_cuda_parameters.restype = ctypes.c_char_p
        return library

    @cached_property
    def _parameter_codes(self) -> list[str]:
        codes: bytes = self._library.host_cuda_parameters()
        return codes.decode().split()


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("order", ctypes.c_uint64),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
    )

    def __init__(
        self,
        grid: ctypes.Array[ctypes.c_uint],
        block: ctypes.Array[ctypes.c_uint],
        shared_bytes: int,
        order: int,
        arguments: ctypes.Array[ctypes.c_void_p],
    ) -> None:
        super().__init__(
            grid,
            block,
            shared_bytes,
            order,
            ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p)),
        )


def _three(what: str, given: tuple[int, ...], most: int) -> ctypes.Array[ctypes.c_uint]:
    sizes = (*given, 1, 1)[:3]
    if not 1 <= len(given) <= 3 or min(sizes) < 1 or sizes[0] * sizes[1] * sizes[2] > most:
        # CuPy launches one block for a grid of 0, so an empty grid is the caller's to avoid.
        raise ValueError(f"{what} {given!r}: give 1 to 3 sizes above zero, at most {most} together")
    return (ctypes.c_uint * 3)(*sizes)


@dataclass(frozen=True)
class _Span:
    """The bytes of the caller's memory that one array argument covers."""

    number: int
    start: int
    stop: int
    writable: bool

    @classmethod
    def of(cls, number: int, array: Any, code: str) -> _Span:
        where = f"argument {number}"
        if isinstance(array, np.ndarray):
            start, item = array.ctypes.data, array.itemsize
            strides, writable = array.strides, array.flags.writeable
        elif hasattr(array, "data_ptr") and array.device.type == "cpu":
            start, item = array.data_ptr(), array.element_size()
            strides, writable = tuple(item * step for step in array.stride()), True
        else:
            raise TypeError(f"{where} is a pointer; give a NumPy array or a torch CPU tensor")
        if int(code[1:]) not in (0, item):
            raise TypeError(f"{where} has elements of {item} bytes, the kernel's have {code[1:]}")
        if code[0] == "w" and not writable:
            raise TypeError(f"{where} is read-only, and the kernel's pointer is not const")
        if any(step < 0 for step in strides):
            raise TypeError(f"{where} has a negative stride; copy it first")
        sizes = tuple(array.shape)
        reach = sum((size - 1) * step for size, step in zip(sizes, strides, strict=True)) + item
        return cls(number, start, start + (0 if 0 in sizes else reach), code[0] == "w")


class _Storage:
    """A guarded copy of memory that arguments share; their pointers lead into it."""

    def __init__(self, spans: list[_Span]) -> None:
        self.start, self.stop = min(s.start for s in spans), max(s.stop for s in spans)
        self.owners = "argument " + " and ".join(str(s.number) for s in spans)
        self._writable = any(s.writable for s in spans)
        size = self.stop - self.start
        # All ones are NaN in every float format.
        memory = np.full(size + 2 * _GUARD_BYTES + _ALIGNMENT, 0xFF, np.uint8)
        # As aligned as the caller's memory, so that a misaligned view stays one.
        first = _GUARD_BYTES + (self.start - memory.ctypes.data - _GUARD_BYTES) % _ALIGNMENT
        self._before, self._bytes, self._after = np.split(memory, [first, first + size])
        self.address = memory.ctypes.data + first
        ctypes.memmove(self.address, self.start, size)

    def check_guards(self, kernel: str) -> None:
        """Raise if a byte around the copy has changed."""
        for side, guard in (("before", self._before), ("after", self._after)):
            if (guard != 0xFF).any():
                raise KernelFault(f"{kernel}: wrote out of bounds, shortly {side} {self.owners}")

    def first_difference(self, other: _Storage) -> int | None:
        """Return the number of the first byte that differs."""
        different = np.flatnonzero(self._bytes != other._bytes)
        return int(different[0]) if different.size else None

    def copy_back(self) -> None:
        """Give the caller's arrays what the kernel wrote."""
        if self._writable:
            ctypes.memmove(self.start, self.address, self.stop - self.start)


def _merged(spans: Iterable[_Span]) -> Iterator[_Storage]:
    """Yield one storage for each group of spans that overlap, as views of one array do."""
    group: list[_Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if group and span.start >= max(one.stop for one in group):
            yield _Storage(group)
            group = []
        group.append(span)
    if group:
        yield _Storage(group)


def _pointer(span: _Span, storages: list[_Storage]) -> Any:
    storage = next(s for s in storages if s.start <= span.start and span.stop <= s.stop)
    return ctypes.c_void_p(storage.address + span.start - storage.start)


def _scalar(number: int, value: Any, code: str) -> Any:
    # CuPy passes a Python int as 8 bytes, a Python float as a double, a NumPy scalar as it is.
    where = f"argument {number}, value {value!r},"
    given = np.asarray(np.int64(value) if type(value) is int else value)
    kind, size = code[0], int(code[1:])
    if kind == "x":
        raise TypeError(f"{where} would be a struct by value; pass its fields")
    if given.ndim or {"b": "i", "u": "i", "i": "i", "f": "f"}.get(given.dtype.kind) != kind:
        raise TypeError(f"{where} does not fit the kernel's parameter of kind {code!r}")
    if type(value) is int and size == 4 and -(2**31) <= value < 2**32:
        given = given.astype(np.uint32)  # the low half is what a GPU reads
    if given.itemsize != size:
        raise TypeError(
            f"{where} is passed as {given.itemsize} bytes, the parameter has {size}; on a GPU that "
            f"is a wrong value without an error: wrap it, as in numpy.float32(value)"
        )
    return ctypes.create_string_buffer(given.tobytes(), size)
