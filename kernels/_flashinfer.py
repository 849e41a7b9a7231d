"""What every FlashInfer baseline shares: one way to call it, whatever version is installed.

An adapter writes each call down as a `Call`: the arguments without which the result would be
another one (`needed`), and those given where the version takes them (`offered`). It calls by
keyword only, names what was not taken, and gives a reason instead of a wrong number where a needed
argument is gone. Nothing here imports FlashInfer before a baseline is asked for.

Read in the wheels of 0.6.18.post1 and 0.7.4:
- LSE is float32 in base 2; `run(lse_base=)` came with 0.7, and its "ln" is a kernel of its own
  after the attention. A baseline asks for base 2 and converts after what is timed: `natural_log`.
- Until 0.6 infinity was 5e4: a row that sees no key has an LSE near -5e4 (the MLA wrapper's is
  -inf from 0.6.11 on), and one whose true logits are below that is lost: `has_finite_infinity`.
- Merging takes base 2, and does not know what it is given: `State` does.
- Index lists and masks: `kernels/attention/_flashinfer_lists.py`.
"""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch

Reason = str

# A call splits the KV over all SMs and parks float32 partials of 128 packed rows for each of two
# blocks an SM: 2 * SMs * group * 128 * (head_dim + 1) * 4 B. The 128 MB that FlashInfer's pages
# recommend overflow at group 8 and head_dim 128 (137 MB on 132 SMs, 197 MB on 188).
WORKSPACE_BYTES = 512 * 2**20
# Holds what plan() computes, 13 B a block and 4 B a row; the constructor's own takes 8 MB a case.
PLAN_BYTES = 2**20
# log2 of a sum over at most 2^32 keys, each exp2(-5e4 - -5e4).
_FINITE_INFINITY_ENDS = -5e4 + 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The keyword arguments of a call, and the names of those that the version does not take."""

    kwargs: Mapping[str, Any]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function of FlashInfer as an adapter calls it: by keyword only.

    function: its dotted name within `flashinfer`; a class stands for its constructor.
    needed: without these it is another computation. offered: given where the version takes them.
    """

    function: str
    needed: tuple[str, ...]
    offered: tuple[str, ...] = ()

    def find(self, library: ModuleType) -> Callable[..., Any]:
        """Return the function; AttributeError if `library` has none of that name.

        A module that `library` does not import by itself is imported.
        """
        found: Any = library
        for name in self.function.split("."):
            if isinstance(found, ModuleType) and not hasattr(found, name):
                with contextlib.suppress(ImportError), advice():
                    importlib.import_module(f"{found.__name__}.{name}")
            found = getattr(found, name)
        return cast("Callable[..., Any]", found)

    def why_not(self, library: ModuleType) -> Reason | None:
        """Say why this version cannot be called so, with its version and the names; else None."""
        try:
            parameters = _keywords(self.find(library))
        except AttributeError:
            return f"FlashInfer {version(library)} has no {self.function}"
        if gone := [name for name in self.needed if not _takes(parameters, name)]:
            return f"{self.function} of FlashInfer {version(library)} does not take {_list(gone)}"
        known = {*self.needed, *self.offered}
        if new := [
            name
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_KEYWORD
            and name not in known
        ]:
            return (
                f"{self.function} of FlashInfer {version(library)} asks for {_list(new)}, "
                f"which this adapter does not know"
            )
        return None

    def accepted(self, library: ModuleType, **given: object) -> Accepted:
        """Return what of `given` this version takes; `given` must be all that was declared.

        RuntimeError with `why_not`'s reason where the call is impossible.
        """
        if set(given) != {*self.needed, *self.offered}:
            raise TypeError(
                f"{self.function}: declared {_list([*self.needed, *self.offered])}, "
                f"given {_list(given)}; declare each argument, so that it can be checked"
            )
        if (reason := self.why_not(library)) is not None:
            raise RuntimeError(reason)
        dropped = self.dropped(library)
        return Accepted(
            kwargs={name: value for name, value in given.items() if name not in dropped},
            dropped=dropped,
        )

    def dropped(self, library: ModuleType) -> tuple[str, ...]:
        """Return what is offered and not taken by this version."""
        parameters = _keywords(self.find(library))
        return tuple(name for name in self.offered if not _takes(parameters, name))


def installed() -> ModuleType:
    """Import FlashInfer and return it; its warnings stay warnings where ours are errors."""
    with advice():
        return importlib.import_module("flashinfer")


def version(package: ModuleType) -> str:
    """Return the version of the FlashInfer that was imported."""
    return str(getattr(package, "__version__", "of unknown version"))


def why_not(calls: Sequence[Call], *, compiles: bool = True) -> Reason | None:
    """Say why the FlashInfer here cannot serve `calls`; None if it can.

    compiles: they need kernels that FlashInfer compiles with nvcc.
    """
    if (reason := _import_failure() or (cannot_build() if compiles else None)) is not None:
        return reason
    package = installed()
    return next((reason for call in calls if (reason := call.why_not(package))), None)


def cannot_build() -> Reason | None:
    """Say what FlashInfer lacks to compile its kernels at first use; None if it can."""
    if importlib.util.find_spec("flashinfer_jit_cache") is not None:
        return None
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = (os.environ.get("FLASHINFER_NVCC"), shutil.which("nvcc"), Path(home, "bin/nvcc"))
    if not any(path and Path(path).exists() for path in nvcc):
        return (
            "FlashInfer compiles its kernels at first use and finds no nvcc: "
            "set CUDA_HOME to a toolkit, or install flashinfer-jit-cache"
        )
    if shutil.which("ninja") is None:
        return (
            "FlashInfer compiles its kernels at first use and finds no ninja on PATH: "
            "install ninja and activate the environment that holds it"
        )
    return None


def takes_lse_base(package: ModuleType, run: Call) -> bool:
    """Return whether `run` can be told the base of its LSE."""
    return _takes(_keywords(run.find(package)), "lse_base")


def unknown_lse_base(
    package: ModuleType, run: Call, *, before: tuple[int, ...] = (0, 7)
) -> Reason | None:
    """Say so where neither the version nor an argument settles the base of an LSE.

    before: the first version in which nobody has read that it is 2.
    """
    if takes_lse_base(package, run) or is_before(package, before):
        return None
    return (
        f"{run.function} of FlashInfer {version(package)} does not take 'lse_base', "
        f"and the base of its LSE is only known to be 2 before {'.'.join(map(str, before))}"
    )


def is_before(package: ModuleType, wanted: tuple[int, ...]) -> bool:
    """Say whether the version is a known one, and older than `wanted`."""
    return is_older(version(package), wanted)


def is_older(found: str, wanted: tuple[int, ...]) -> bool:
    """Say whether the version `found` ("4.8.0") is one of numbers, and older than `wanted`."""
    parts = found.split(".")[: len(wanted)]
    known = len(parts) == len(wanted) and all(part.isdigit() for part in parts)
    return known and tuple(map(int, parts)) < wanted


def has_finite_infinity(package: ModuleType) -> bool:
    """Say whether this version's infinity is the number 5e4."""
    return is_before(package, (0, 7))


def natural_log(lse: torch.Tensor, *, finite_infinity: bool) -> torch.Tensor:
    """Turn a base-2 LSE into the natural one.

    finite_infinity: it is of a version before 0.7, whose empty rows lie near -5e4, as do rows that
    it lost because their logits are smaller: both become -inf.
    """
    natural = lse * math.log(2)
    if finite_infinity:
        natural = torch.where(lse <= _FINITE_INFINITY_ENDS, -math.inf, natural)
    return natural


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Attention over some of the keys: out [rows, heads, dim], lse float32 [rows, heads], its base.

    The base is part of it because a merge of two bases is wrong by some percent and looks right.
    """

    out: torch.Tensor
    lse: torch.Tensor
    base: float


MERGE = Call(function="merge_state_in_place", needed=("v", "s", "v_other", "s_other"))
_MOST_MERGED_HEADS = (
    32  # a block of `merge_state_in_place` is 32 threads a head of 512, 1024 at most
)


def merger(package: ModuleType, into: State, *, other: State) -> Callable[[], None]:
    """Return what merges `other` into `into`, in place; ValueError unless both are to base 2.

    Heads are rows here: 64 of them are given as twice as many rows of 32, which is only a view.
    """
    if (bases := (into.base, other.base)) != (2, 2):
        raise ValueError(
            f"merge_state_in_place of FlashInfer merges LSE to base 2, and these are to base "
            f"{bases[0]:.6g} and {bases[1]:.6g}: convert them first"
        )
    rows, heads, dim = into.out.shape
    block = max(n for n in range(1, _MOST_MERGED_HEADS + 1) if heads % n == 0)
    folded = rows * heads // block
    merged = MERGE.accepted(
        package,
        v=into.out.view(folded, block, dim),
        s=into.lse.view(folded, block),
        v_other=other.out.view(folded, block, dim),
        s_other=other.lse.view(folded, block),
    )
    merge = MERGE.find(package)
    return lambda: merge(**merged.kwargs)


def device_capability() -> int | None:
    """Return the capability (90) of the current device; None where there is none."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@contextlib.contextmanager
def advice() -> Iterator[None]:
    """Within the block, FlashInfer's advice on backends and names is a warning and no error."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


@functools.cache
def workspace(device: torch.device) -> torch.Tensor:
    """Return zeroed scratch memory that all wrappers of `device` share: they run one at a time."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _keywords(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be given by name, and **kwargs if it has them."""
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_POSITIONAL
    }


def _takes(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    return name in parameters and parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY


def _list(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in names)


@functools.cache
def _import_failure() -> Reason | None:
    try:
        installed()
    except Exception as error:  # a large package without its dependencies raises anything
        return f"FlashInfer is installed but does not import: {type(error).__name__}: {error}"
    return None
