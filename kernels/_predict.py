"""What a point takes on a GPU that need not be here: bytes, flops, launches, and their time.

    roof      = max(bytes / bandwidth, flops / peak)      of the form that is computed
    predicted = roof + launches x an empty graph node     where that is known

Bytes and flops are counted from the case's own lengths and masks. What a form reads again is
counted again, at the bandwidth of DRAM: the L2 may be quicker. Launches and their grids are those
that the implementation makes. How much of a GPU a grid fills (waves) needs the compiled
kernel, and is looked at where it can be compiled. Predicted, never measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

import torch
from msgspec.structs import replace

from kernels import _cubin, _launches
from kernels._compile import is_compiled
from kernels._launches import Code, Launch
from kernels._points import Asked, Grid, Predicted, reason_from
from kernels._registry import Case, Implementation, Inputs, find_case, find_op
from kernels._undrawn import sizes_suffice, undrawn
from verifyscope.errors import UsageError
from verifyscope.hardware import Gpu, find_gpu
from verifyscope.occupancy import occupancy, waves
from verifyscope.records import Measurement, Value
from verifyscope.roofline import floor_s, roof

# The GPU of the case that this project began with.
FOUNDING_GPU = "rtx-pro-6000-server"


@dataclass(slots=True)
class _Compiler:
    """Compiles launches for one GPU; those of equal likeness once."""

    gpu: Gpu
    known: dict[tuple[object, ...], Code] = field(default_factory=dict)

    def grid(self, launch: Launch) -> Grid:
        """Return the launch with how much of the GPU it fills."""
        if launch.likeness not in self.known:
            self.known[launch.likeness] = launch.compile()
        code, capability = self.known[launch.likeness], _capability(self.gpu)
        held = occupancy(
            capability=capability,
            registers=code.registers,
            shared_bytes=code.shared_bytes,
            threads=code.threads,
        )
        filled = waves(
            grid_blocks=launch.blocks,
            blocks=held.blocks,
            multiprocessors=_multiprocessors(self.gpu),
        )
        return Grid(kernel=launch.kernel, blocks=launch.blocks, waves=filled)


def predict_point(asked: Asked) -> Predicted:
    """Predict one point; what its launches compile to is kept for those that follow."""
    op = find_op(asked.op)
    return predicted(
        op.implementations[asked.implementation],
        find_case(op, asked.case),
        gpu=find_gpu(asked.gpu),
        node_s=asked.node_s,
        compiler=_compiler(asked.gpu) if _cubin.why_not() is None else None,
    )


@cache
def _compiler(gpu: str) -> _Compiler:
    return _Compiler(find_gpu(gpu))


def predicted(
    implementation: Implementation,
    case: Case,
    *,
    gpu: Gpu,
    node_s: float | None = None,
    compiler: _Compiler | None = None,
) -> Predicted:
    """Return what `case` takes on `gpu`, or the reason why that cannot be said.

    node_s: the time of an empty node of a CUDA graph there, where somebody has measured it.
    """
    row = Predicted(
        part=implementation.op.part,
        op=implementation.op.name,
        implementation=implementation.name,
        kind=implementation.kind,
        case=case.name,
        mode=implementation.mode or case.mode,
        gpu=gpu.name,
    )
    reason = _why_not(implementation, case, gpu)
    if reason is not None:
        return replace(row, reason=reason)
    try:
        return _filled(row, implementation, case, gpu=gpu, node_s=node_s, compiler=compiler)
    except Exception as error:  # whatever a planner or a compiler raises is this row's result
        return replace(row, reason=f"cannot be predicted: {reason_from(error)}")


def _filled(
    row: Predicted,
    implementation: Implementation,
    case: Case,
    *,
    gpu: Gpu,
    node_s: float | None,
    compiler: _Compiler | None,
) -> Predicted:
    inputs = _inputs(implementation.op.name, case.name)
    cost = implementation.op.cost(inputs)
    form = implementation.form_cost(inputs) if implementation.form_cost else cost
    nodes, grids, facts = _launched(implementation, inputs, gpu=gpu, compiler=compiler)
    bytes_per_s, flops_per_s = gpu.dram_bytes_per_s, peak(gpu, case.dtype)
    if bytes_per_s is None:
        return replace(row, reason=f"the bandwidth of {gpu.name} is not known")
    of_form = roof(
        form, bytes_per_s=bytes_per_s, flops_per_s=flops_per_s, nodes=nodes, node_s=node_s
    )
    return replace(
        row,
        counts=dict(implementation.op.counts(inputs)),
        facts=dict(facts),
        touched_bytes=cost.touched_bytes,
        moved_bytes=form.touched_bytes,
        flops=form.flops,
        floor_s=floor_s(cost, bytes_per_s=bytes_per_s, flops_per_s=flops_per_s),
        roof_s=of_form.roof_s,
        predicted_s=of_form.least_s,
        limited_by=of_form.limited_by,
        nodes=nodes,
        node_s=node_s,
        grids=grids,
    )


def predicted_measurement(row: Predicted) -> Measurement:
    """Return the record of a prediction, without where and how it was made."""
    case = find_case(find_op(row.op), row.case)
    return Measurement(
        source="predicted",
        part=row.part,
        op=row.op,
        implementation=row.implementation,
        kind=row.kind,
        case=row.case,
        dims={**case.dims, **row.counts},
        mode=row.mode,
        status="skipped" if row.predicted_s is None else "ok",
        reason=row.reason,
        median_s=row.predicted_s,
        floor_s=row.floor_s,
        touched_bytes=row.touched_bytes,
        flops=row.flops,
        method=_method(row),
        environment="",
        command="",
    )


def _method(row: Predicted) -> dict[str, Value]:
    gpu = find_gpu(row.gpu)
    told: dict[str, Value | None] = {
        "gpu": gpu.name,
        "bytes_per_s": gpu.dram_bytes_per_s,
        "bandwidth": f"{gpu.name}, {gpu.source_of('dram_bytes_per_s')}",
        "moved_bytes": row.moved_bytes,
        "roof_s": row.roof_s,
        "nodes": row.nodes,
        "node_s": row.node_s,
        "limited_by": row.limited_by,
    }
    return {**row.facts, **{name: value for name, value in told.items() if value is not None}}


def peak(gpu: Gpu, dtype: torch.dtype) -> float | None:
    """Return the flop/s of the matrix units for queries of this dtype; None if not known."""
    half = dtype in (torch.bfloat16, torch.float16)
    return gpu.peak_flops_per_s.get("bf16") if half else None


def _launched(
    implementation: Implementation, inputs: Inputs, *, gpu: Gpu, compiler: _Compiler | None
) -> tuple[int | None, tuple[Grid, ...], Mapping[str, str]]:
    """Return how many kernels wait for one another in a call, the grid of each, and the plan."""
    if not is_compiled(implementation):
        return None, (), {}
    grids: list[Grid] = []

    def tell(launch: Launch) -> None:
        if compiler is None:
            grids.append(Grid(kernel=launch.kernel, blocks=launch.blocks))
        else:
            grids.append(compiler.grid(launch))

    with _launches.caught(
        capability=_capability(gpu), multiprocessors=_multiprocessors(gpu), tell=tell
    ):
        prepared = implementation.prepare(inputs)
        prepared.call()
    return prepared.launches or len(grids), tuple(grids), prepared.facts


def _why_not(implementation: Implementation, case: Case, gpu: Gpu) -> str | None:
    if not implementation.serves(_capability(gpu)):
        return f"is not built for {gpu.name}, capability {_capability(gpu)}"
    if not _sizes_suffice(implementation.op.name):
        return "its cost depends on the values that are drawn, not on sizes alone"
    return implementation.needs.refuses(case)


def _capability(gpu: Gpu) -> int:
    if gpu.capability is None:
        raise UsageError(f"the capability of {gpu.name} is not known; name another GPU")
    return gpu.capability


def _multiprocessors(gpu: Gpu) -> int:
    if gpu.multiprocessors is None:
        raise UsageError(f"the multiprocessors of {gpu.name} are not known; name another GPU")
    return gpu.multiprocessors


@lru_cache(maxsize=1)
def _inputs(op: str, case: str) -> Inputs:
    # One at a time: the implementations of a case come one after the other.
    found = find_op(op)
    return undrawn(found, find_case(found, case))


@cache
def _sizes_suffice(op: str) -> bool:
    return sizes_suffice(find_op(op))
