"""What a kernel is to the rest of the suite, and how the modules of this folder are found.

`Op`: a computation, with the reference that every implementation is held to. `Case`: a named point
of its shape space. `Implementation`: one way to compute it, and what that needs.

One file for an op (`silu_mul.py` declares `OP`), one for each further backend (`silu_mul_cupy.py`
adds to it), in a folder a family (`attention/`, `moe/`, ...) or beside this file. Importing a file
touches no device and no optional package but Triton, whose decorator it needs; where that is
missing, the file is `Absent` with the reason, and the rest is there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypedDict

import torch

from verifyscope.errors import UsageError
from verifyscope.parts import PARTS
from verifyscope.records import Kind, Mode, Value
from verifyscope.roofline import REACHABLE_SHARE
from verifyscope.roofline import Cost as Cost

if TYPE_CHECKING:
    from typing_extensions import Unpack

Argument = torch.Tensor | int | float | tuple[int, ...]
Inputs = Mapping[str, Argument]
Outputs = Mapping[str, torch.Tensor]
Run = Callable[..., Outputs]
Plan = Callable[..., "Prepared"]
CostOf = Callable[[Inputs], Cost]
Reason = str
DECLARABLE = ("tensor_core", "wide_load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One named point of an op's shape space.

    dims: the numbers and words that a record shows (rows, context, page, tree, ...).
    tiny: small enough for Triton's interpreter and the host CUDA runner, under a second.
    cpu: small enough for a CPU to time honestly with torch, under a few hundred MB.
    """

    name: str
    dims: Mapping[str, Value]
    dtype: torch.dtype = torch.bfloat16
    tiny: bool = False
    cpu: bool = False
    mode: Mode | None = None
    seed: int = 0

    def number(self, dim: str) -> int:
        """Return a dimension that is a whole number; TypeError if it is not."""
        value = self.dims[dim]
        if not isinstance(value, int):
            raise TypeError(f"case {self.name}: {dim} is {value!r}, not a whole number")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The largest relative error of a row, per output; `why` justifies it.

    The error of a row is |got - want| / max(|want|, the RMS row norm of want), both norms over the
    last dimension. `absolute` names outputs (such as an LSE) that are compared element by element
    with an absolute bound instead.
    """

    row: float
    why: str
    absolute: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of planning that an engine repeats for each step: index lists, a mask, a plan.

    `run` can be repeated and changes nothing but what it plans. within: the stage whose `run` does
    this one's work as well; it is timed alone, and is no part of the whole a second time.
    """

    name: str
    run: Callable[[], object]
    within: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An implementation ready to run: planned, packed and allocated, none of which is timed.

    facts: what was resolved meanwhile (a backend, a number of splits, a version), for the record.
    launches: kernels that one call launches, each waiting for the one before; None: not known.
    convert: makes the op's outputs of what `call` returned, where a library gives them in another
        form (an LSE to base 2). It is no part of the computation and is not timed; it changes
        nothing in place.
    restore: puts back what a call overwrites, for a library that computes in place, here on copies
        of the inputs. It is not timed either: a timed call starts from what the one before left.
    stages: what of the planning an engine repeats for each step, in its order, from lengths that it
        knows on the host. It is timed in rows of its own. Empty: nothing; what is allocated,
        compiled or packed once is no stage.
    """

    call: Callable[[], Outputs]
    facts: Mapping[str, str] = field(default_factory=dict)
    launches: int | None = None
    convert: Callable[[Outputs], Outputs] = lambda outputs: outputs
    restore: Callable[[], object] | None = None
    stages: tuple[Stage, ...] = ()

    def outputs(self) -> Outputs:
        """Compute once and return the op's outputs."""
        return self.convert(self.fresh())

    def fresh(self) -> Outputs:
        """Call once on what was given, whatever calls before have overwritten."""
        if self.restore is not None:
            self.restore()
        return self.call()

    def replan(self) -> None:
        """Plan again, as an engine does for each step."""
        for stage in self.stages:
            if stage.within is None:
                stage.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an implementation needs.

    capabilities: the CUDA capabilities (80, 90, ...) it is built for; empty means any device.
    packages: names to import. refuses: the reason why it cannot compute a case, or None.
    """

    capabilities: tuple[int, ...] = ()
    packages: tuple[str, ...] = ()
    refuses: Callable[[Case], Reason | None] = lambda case: None


class Traits(TypedDict, total=False):
    """What an implementation may say of itself when it is added; see `Implementation`."""

    kind: Kind
    needs: Needs
    declares: tuple[str, ...]
    omits: tuple[str, ...]
    mode: Mode | None
    form_cost: CostOf | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One way to compute an op, and the facts that decide where it can run.

    prepare: inputs -> `Prepared`; each call of that computes once and returns the outputs.
    declares: instruction classes ("tensor_core", "wide_load") that the compile gate must find.
    omits: outputs of the reference that it does not compute (a library that returns no LSE).
    mode: the form of the computation, where the op has several; None: the case's.
    form_cost: what that form moves and computes, where that is more than `Op.cost` (a key read once
        a token); None: the same. Floors and bandwidths are of `Op.cost` whatever the form.
    """

    op: Op
    name: str
    prepare: Callable[[Inputs], Prepared]
    kind: Kind = "own"
    needs: Needs = Needs()
    declares: tuple[str, ...] = ()
    omits: tuple[str, ...] = ()
    mode: Mode | None = None
    form_cost: CostOf | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.declares) - set(DECLARABLE):
            raise ValueError(
                f"{self.id} declares {sorted(unknown)}; known: {', '.join(DECLARABLE)}"
            )

    @property
    def id(self) -> str:
        """Return `op/implementation`: the name in test ids, records and reports."""
        return f"{self.op.name}/{self.name}"

    def run(self, inputs: Inputs) -> Outputs:
        """Prepare and run once."""
        return self.prepare(inputs).outputs()

    def serves(self, capability: int) -> bool:
        """Say whether it is built for `capability`: the same major number, not a later minor."""
        return not self.needs.capabilities or any(
            built // 10 == capability // 10 and built <= capability
            for built in self.needs.capabilities
        )

    def why_not(self, device: torch.device, case: Case) -> Reason | None:
        """Say why this cannot run `case` on `device`; None if it can."""
        for package in self.needs.packages:
            if importlib.util.find_spec(package) is None:
                return f"needs the package {package!r}, which is not installed"
        if self.needs.capabilities:
            wanted = "needs a CUDA device of capability " + ", ".join(
                f"{capability / 10:.1f}" for capability in self.needs.capabilities
            )
            if device.type != "cuda":
                return f"{wanted}; this machine has none"
            major, minor = torch.cuda.get_device_capability(device)
            if not self.serves(10 * major + minor):
                return f"{wanted}; this device has {major}.{minor}"
        return self.needs.refuses(case)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A computation with one reference, which every implementation is held to.

    reference: inputs as keywords -> outputs by name, computed in float32 or float64 from the same
        rounded inputs, without rounding the result.
    inputs: a case and a device -> fresh inputs, normal random, the same on every call.
    cost: what any implementation must spend on these inputs (bytes touched, not tensor sizes).
    counts: numbers counted from the inputs that a record shows among the dims (distinct experts).
    reachable_share: the share of the roof that a good kernel reaches; our own rows are held to it.
    gate_cases: small tensors of the real head dims and tile shapes, one for each entry of the
        configuration tables: what the compile gate builds, instead of the tiny cases. One that
        names a mode is built by implementations of that form alone.
    long_gate_cases: the full product of dtypes and page sizes, for `make test-long`.
    """

    name: str
    part: str
    reference: Run
    inputs: Callable[[Case, torch.device], Inputs]
    cost: Callable[[Inputs], Cost]
    cases: tuple[Case, ...]
    tolerance: Tolerance
    counts: Callable[[Inputs], Mapping[str, Value]] = lambda inputs: {}
    reachable_share: float = REACHABLE_SHARE
    gate_cases: tuple[Case, ...] = ()
    long_gate_cases: tuple[Case, ...] = ()
    _added: dict[str, Implementation] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ValueError(f"op {self.name!r}: unknown part {self.part!r} (verifyscope/parts.py)")
        names = [case.name for case in (*self.cases, *self.gate_cases, *self.long_gate_cases)]
        if len(set(names)) != len(names):
            raise ValueError(f"op {self.name!r} has two cases of one name: {names}")

    @property
    def implementations(self) -> Mapping[str, Implementation]:
        """Return what has been added so far, by name."""
        return MappingProxyType(self._added)

    def implementation(self, name: str, **traits: Unpack[Traits]) -> Callable[[Run], Run]:
        """Add the decorated function: inputs as keywords -> outputs. It stays that function."""

        def add(run: Run) -> Run:
            def prepare(inputs: Inputs) -> Prepared:
                return Prepared(call=lambda: run(**inputs))

            self._add(Implementation(op=self, name=name, prepare=prepare, **traits))
            return run

        return add

    def prepared_implementation(
        self, name: str, **traits: Unpack[Traits]
    ) -> Callable[[Plan], Plan]:
        """Add the decorated function: inputs as keywords -> `Prepared`, which is what is timed."""

        def add(plan: Plan) -> Plan:
            def prepare(inputs: Inputs) -> Prepared:
                return plan(**inputs)

            self._add(Implementation(op=self, name=name, prepare=prepare, **traits))
            return plan

        return add

    def _add(self, implementation: Implementation) -> None:
        if implementation.name in self._added:
            raise ValueError(f"{self.name!r} has two implementations named {implementation.name!r}")
        self._added[implementation.name] = implementation


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A file that cannot be imported here: whose implementation it would add, and why it cannot."""

    op: str
    name: str
    reason: Reason


def all_ops() -> Mapping[str, Op]:
    """Import every public module of this folder, once; return the ops by name."""
    import kernels

    return _discovered(tuple(kernels.__path__))[0]


def absent() -> tuple[Absent, ...]:
    """Return what cannot even be declared on this machine, with the reasons."""
    import kernels

    return _discovered(tuple(kernels.__path__))[1]


def find_op(name: str) -> Op:
    """Return the op `name`; `UsageError` that lists the known ones if there is none."""
    if name in all_ops():
        return all_ops()[name]
    reasons = [missing.reason for missing in absent() if missing.op == name]
    if reasons:
        raise UsageError(f"op {name!r} cannot be loaded: {reasons[0]}")
    raise UsageError(f"unknown op {name!r}; known: {', '.join(all_ops()) or 'none'}")


def find_case(op: Op, name: str) -> Case:
    """Return the case `name` of `op`, gate cases included; `UsageError` if there is none."""
    cases = {case.name: case for case in (*op.cases, *op.gate_cases, *op.long_gate_cases)}
    if name not in cases:
        raise UsageError(f"unknown case {name!r} of op {op.name!r}; known: {', '.join(cases)}")
    return cases[name]


def implementations() -> Iterator[Implementation]:
    """Yield every implementation of every op."""
    for op in all_ops().values():
        yield from op.implementations.values()


@cache
def _discovered(folders: tuple[str, ...]) -> tuple[Mapping[str, Op], tuple[Absent, ...]]:
    ops: dict[str, Op] = {}
    failed: dict[str, Reason] = {}
    for name in modules(folders):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            failed[name.rpartition(".")[2]] = _missing_package(error)
            continue
        found = [value for value in vars(module).values() if isinstance(value, Op)]
        if not found:
            raise TypeError(
                f"{_file(name)} neither declares an Op nor adds to one; "
                f"if it is no op, start its name with an underscore"
            )
        for op in found:
            if ops.setdefault(op.name, op) is not op:
                raise ValueError(f"{_file(name)} declares a second op named {op.name!r}")
    known = [*ops, *failed]
    return MappingProxyType(ops), tuple(_absent(*item, known=known) for item in failed.items())


def modules(folders: Iterable[str], package: str = "kernels") -> list[str]:
    """Return the names of all public modules in these folders, families included, sorted."""
    found = []
    for info in pkgutil.iter_modules(folders):
        if info.name.startswith("_"):
            continue
        name = f"{package}.{info.name}"
        if info.ispkg:
            inside = [str(Path(folder, info.name)) for folder in folders]
            found += modules(inside, name)
        else:
            found.append(name)
    return sorted(found)


def _file(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def _missing_package(error: ModuleNotFoundError) -> Reason:
    package = (error.name or "").partition(".")[0]
    if not package or importlib.util.find_spec(package) is not None:
        raise error  # a part of something that is installed, ours included: a mistake
    return f"needs the package {package!r}, which is not installed"


def _absent(file: str, reason: Reason, *, known: Sequence[str]) -> Absent:
    """Split the file's name into op and implementation: the longest op that it starts with."""
    op = max((name for name in known if file.startswith(f"{name}_")), key=len, default=file)
    return Absent(op=op, name=file[len(op) + 1 :] or "*", reason=reason)
