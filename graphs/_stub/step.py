"""One step of a pass: a part's call, which reads and writes tensors by name.

`Flow` holds what flows from step to step; nothing else does, so that no step can be skipped without
the result showing it. A step that is taken out hands on what it gave in a full pass: no launch, and
the others find values like those they know.

`Bound` is an implementation of kernels/ that was prepared once. Its inputs are tensors that stay;
before a call they are made to lie on what flows in (`Tensor.set_`, which moves no byte), or, for
one that has looked at their memory while it was prepared, the values are copied: `how` says which.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from graphs.ops import Op
from kernels import Implementation, Inputs, Outputs, Prepared, compare
from verifyscope.errors import UsageError

Flow = dict[str, torch.Tensor]
How = Literal["in place", "copied"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call of a pass. `run` reads and writes the flow; `writes` are the names that it sets.

    covers: the ops of graphs/layers.py that it computes. in_place: what it changes without a new
    tensor. layer: None outside of layers.
    """

    name: str
    part: str
    layer: int | None
    covers: tuple[str, ...]
    writes: tuple[str, ...]
    run: Callable[[Flow], None]
    in_place: tuple[str, ...] = ()


class Bound:
    """A prepared implementation; `live` are the tensors of its inputs that flow.

    `renewed` prepares it anew for a block, as for another step of serving.
    """

    def __init__(
        self,
        implementation: Implementation,
        inputs: Inputs,
        live: Mapping[str, torch.Tensor],
        how: How,
    ) -> None:
        self.implementation, self.live, self.how = implementation, live, how
        self._inputs: Inputs = {**inputs, **live}
        self.prepared: Prepared = implementation.prepare(self._inputs)

    def __call__(self, given: Mapping[str, torch.Tensor]) -> Outputs:
        """Compute on `given`, one tensor for each name of `live`."""
        for name, own in self.live.items():
            if self.how == "in place":
                own.set_(given[name])  # type: ignore[call-overload]  # torch's stub wants a storage
            else:
                own.copy_(given[name])
        return self.prepared.call()

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Within the block it is another one, planned for the lengths that now stand there."""
        before = self.prepared
        self.prepared = self.implementation.prepare(self._inputs)
        try:
            yield
        finally:
            self.prepared = before


def follows(
    implementation: Implementation, inputs: Inputs, live: Mapping[str, torch.Tensor]
) -> How:
    """Find out how an implementation follows inputs that change; `UsageError` if it does not.

    It is prepared on `live`, then given other values: at their own place, and copied over the first
    ones. What it must give is what it gives when it is prepared on those others.
    """
    others = {name: _other(tensor) for name, tensor in live.items()}
    want = _kept(implementation.prepare({**inputs, **others}).outputs())
    ways: tuple[How, ...] = ("in place", "copied")
    for how in ways:
        # Copies of its own, because set_ would leave the tensors of the caller elsewhere.
        own = {name: _copy(tensor) for name, tensor in live.items()}
        bound = Bound(implementation, inputs, own, how)
        bound.prepared.call()
        got = bound.prepared.convert(bound(others))
        if all(one.passed for one in compare(got, want, tolerance=implementation.op.tolerance)):
            return how
    raise UsageError(
        f"{implementation.id} works on copies of its inputs, which a pass does not renew; choose "
        f"another with --impl"
    )


def _kept(outputs: Outputs) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in outputs.items()}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values with the same strides, elsewhere."""
    found = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return found.copy_(tensor)


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """Return other values of the same kind: turned round and longer, whole numbers mirrored."""
    found = _copy(tensor)
    if tensor.is_floating_point():
        return found.copy_(tensor.flip(-1) * 1.25)
    return found.copy_(tensor.max() + tensor.min() - tensor)


def step(
    op: Op,
    run: Callable[[Flow], None],
    *,
    writes: tuple[str, ...],
    in_place: tuple[str, ...] = (),
    covers: tuple[str, ...] = (),
) -> Step:
    """Return the step of one op of a layer; `covers` where it computes more than that op."""
    return Step(
        name=op.name,
        part=op.part,
        layer=None,
        covers=covers or (op.name,),
        writes=writes,
        run=run,
        in_place=in_place,
    )


def simple(
    op: Op, source: str, target: str, compute: Callable[[torch.Tensor], torch.Tensor]
) -> Step:
    """Return a step that computes one tensor from one other."""

    def run(flow: Flow) -> None:
        flow[target] = compute(flow[source])

    return step(op, run, writes=(target,))
