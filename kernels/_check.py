"""Holding an implementation to its reference.

    error of a row = |got - want| / max(|want|, sqrt(mean over rows of |want|^2))

norms over the last dimension, in float64. An output named in `Tolerance.absolute` is compared
element by element instead, |got - want|; integers must be equal. Equal infinities (the log-sum-exp
of an empty row) agree. NaN, a missing output, one too many, and another shape are infinite errors.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels._registry import Case, Implementation, Inputs, Outputs, Tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """The largest error of one output, what is allowed, and in words where and of what kind."""

    output: str
    error: float
    allowed: float
    problem: str

    @property
    def passed(self) -> bool:
        """Say whether the output is within its tolerance."""
        return self.error <= self.allowed

    @property
    def share(self) -> float:
        """Return the error as a share of what is allowed; above 1 fails."""
        return self.error / self.allowed if self.allowed else math.inf if self.error else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What came of running an implementation once on fresh inputs."""

    name: str
    outputs: tuple[OutputError, ...]
    changed_inputs: tuple[str, ...]

    @property
    def worst(self) -> OutputError:
        """Return the output that is nearest to its bound, or furthest beyond it."""
        return max(self.outputs, key=lambda one: one.share)

    @property
    def problems(self) -> str | None:
        """Say what is wrong, in one line; None if nothing is."""
        found = [f"{one.output}: {one.problem}" for one in self.outputs if not one.passed]
        found += [f"input {name!r} was written to" for name in self.changed_inputs]
        return "; ".join(found) or None

    @property
    def failure(self) -> str | None:
        """Say what is wrong with which implementation on which case; None if nothing is."""
        return f"{self.name}: {self.problems}" if self.problems else None


def check(implementation: Implementation, case: Case, *, device: torch.device) -> Check:
    """Run once on fresh inputs, with poisoned memory, and compare with the reference."""
    inputs = implementation.op.inputs(case, device)
    kept = _copy(inputs)
    with poisoned():
        got = implementation.run(inputs)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Check(
        name=f"{implementation.id} on {case.name}",
        outputs=compare(
            got, reference(implementation, kept), tolerance=implementation.op.tolerance
        ),
        changed_inputs=tuple(changed(kept, inputs)),
    )


def reference(implementation: Implementation, inputs: Inputs) -> Outputs:
    """Return what `implementation` is held to: the reference's outputs but those that it omits."""
    want = implementation.op.reference(**inputs)
    if unknown := set(implementation.omits) - set(want):
        raise ValueError(f"{implementation.id} omits {sorted(unknown)}; known: {', '.join(want)}")
    return {name: value for name, value in want.items() if name not in implementation.omits}


def compare(got: Outputs, want: Outputs, *, tolerance: Tolerance) -> tuple[OutputError, ...]:
    """Return the largest error of every output, in the reference's order."""
    errors = [_worst(name, got.get(name), wanted, tolerance) for name, wanted in want.items()]
    unknown = [name for name in got if name not in want]
    return (*errors, *(_beyond(name, "the reference has no such output") for name in unknown))


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Within the block memory that torch allocates is NaN, integers their largest value."""
    settings: Any = torch.utils.deterministic  # its switch is a property that no stub names
    mode, filled = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    # Not use_deterministic_algorithms, which imports all of torch's compiler.
    torch.set_deterministic_debug_mode("warn")
    settings.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*deterministic")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        settings.fill_uninitialized_memory = filled


def changed(before: Inputs, after: Inputs) -> list[str]:
    """Return the names of the inputs that differ, tensors by their bytes: a NaN equals itself."""

    def same(one: object, other: object) -> bool:
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return one == other
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        a, b = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other))
        return torch.equal(a, b)

    return [name for name in before if not same(before[name], after[name])]


def _copy(inputs: Inputs) -> Inputs:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }


def _beyond(output: str, problem: str, allowed: float = 0.0) -> OutputError:
    return OutputError(output=output, error=math.inf, allowed=allowed, problem=problem)


def _worst(
    name: str, got: torch.Tensor | None, want: torch.Tensor, tolerance: Tolerance
) -> OutputError:
    by_element = name in tolerance.absolute
    exact = not want.is_floating_point()
    allowed = 0.0 if exact else tolerance.absolute.get(name, tolerance.row)
    if got is None:
        return _beyond(name, "is missing, and not among what it `omits`", allowed)
    if got.shape != want.shape:
        return _beyond(name, f"has shape {[*got.shape]}, wanted {[*want.shape]}", allowed)
    if want.isnan().any():
        return _beyond(name, f"the reference is NaN at {_first(want.isnan())}", allowed)
    if got.isnan().any():
        where = _first(got.isnan())
        return _beyond(name, f"NaN at {where}: never written, or computed from such", allowed)
    if not want.numel():
        return OutputError(output=name, error=0.0, allowed=allowed, problem="")
    difference = torch.where(got == want, 0.0, (got.double() - want.double()).abs())
    errors = difference if by_element or exact else _by_row(difference, want)
    error = float(errors.max())
    what = "element" if errors.shape == want.shape else "row"
    problem = f"{what} {_first(errors == error)} is off by {error:.3g}, allowed {allowed:.3g}"
    return OutputError(output=name, error=error, allowed=allowed, problem=problem)


def _by_row(difference: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    wide = torch.where(want.isfinite(), want.double(), 0.0)
    if not want.dim():
        difference, wide = difference[None], wide[None]
    norms = wide.norm(dim=-1)
    scale = norms.clamp(min=float(norms.square().mean().sqrt()))
    off = difference.norm(dim=-1)
    return torch.where(off == 0, 0.0, off / scale)


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    """Return where the first true element is."""
    return tuple(int(index) for index in mask.nonzero()[0])
