"""y[t] = sum_j weights[t, j] x W2_e (silu(W1_e x[t]) * (W3_e x[t])), e = ids[t, j]: routed experts.

x [T, H] bfloat16, contiguous; ids [T, top_k] int32, in any order: a duplicate counts twice, and one
below 0 or from E on counts nothing. weights [T, top_k] float32. gate_up [E, 2 I, H], the rows of W1
before those of W3; down [E, H, I]: bfloat16, float8 e4m3 or int4, with scales, as `_formats.py`
says; all contiguous. I is the intermediate size of one rank. y [T, H] bfloat16.

Sums are float32; silu(..) * .. is rounded to bfloat16 once, and the choices of a token are added in
float32 in the order of j: two runs give the same bits.

shared_gate_up [2 S, H], shared_down [H, S], bfloat16, are the shared expert's, S its intermediate
size a rank: where they are given, y[t] has its output as well, with weight 1.

Errors: ValueError for shapes, dtypes or strides that are not those, and for sizes that a format
cannot hold.
Source: DeepSeek-V3 (arXiv 2412.19437) 2.1.2; the order [gate, up] is that of checkpoints in
transformers, vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels._inputs import must_be
from kernels.moe import _formats, _routings
from kernels.moe._baselines import Baseline
from kernels.moe._formats import Format, format_of
from kernels.moe._fused_moe_cases import gate_cases, long_gate_cases, measured_cases, tiny_cases
from verifyscope.records import Value

REACHABLE_SHARE = 0.80  # of the roof, by a good kernel whose weights need unpacking
_SCALING = 2.827  # what the weights of a token add up to (Kimi-K2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of one call; `shared` is the shared expert's intermediate size, 0 without one."""

    tokens: int
    top_k: int
    experts: int
    hidden: int
    intermediate: int
    shared: int

    @property
    def choices(self) -> int:
        """Return how many pairs of token and expert there are."""
        return self.tokens * self.top_k


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of one call, checked: `Given(**inputs)` raises ValueError if they do not fit."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    gate_up: torch.Tensor
    gate_up_scales: torch.Tensor
    down: torch.Tensor
    down_scales: torch.Tensor
    shared_gate_up: torch.Tensor | None = None
    shared_down: torch.Tensor | None = None

    def __post_init__(self) -> None:
        must_be(self.x, "x", (None, None), dtype=torch.bfloat16)
        must_be(self.ids, "ids", (len(self.x), None), dtype=torch.int32)
        must_be(self.weights, "weights", tuple(self.ids.shape), dtype=torch.float32)
        if not self.ids.numel():
            raise ValueError(f"ids is {tuple(self.ids.shape)}: give at least one choice")
        hidden, given = self.x.shape[1], format_of(self.gate_up)
        if self.down.dim() != 3 or self.gate_up.dim() != 3:
            raise ValueError(
                f"gate_up is {tuple(self.gate_up.shape)}, down {tuple(self.down.shape)}: give "
                f"[E, 2 I, H] and [E, H, I]"
            )
        experts, rows = self.gate_up.shape[:2]
        if rows % 2:
            raise ValueError(f"gate_up has {rows} rows: give those of gate, then those of up")
        if not (experts and rows and hidden):
            raise ValueError(
                f"{experts} experts, {rows // 2} wide, of {hidden} numbers a token: give at least "
                f"one of each"
            )
        if why := _formats.why_not_sizes(given.name, hidden=hidden, intermediate=rows // 2):
            raise ValueError(why)
        self._check_experts("gate_up", given, experts, rows, hidden)
        self._check_experts("down", given, experts, hidden, rows // 2)
        self._check_shared(hidden)

    def _check_experts(
        self, name: str, given: Format, experts: int, rows: int, columns: int
    ) -> None:
        weights, scales = getattr(self, name), getattr(self, f"{name}_scales")
        must_be(weights, name, (experts, rows, given.packed(columns)), dtype=given.dtype)
        if given.scale_dtype is not None:
            sizes = (experts, *given.scale_sizes(rows, columns))
            must_be(scales, f"{name}_scales", sizes, dtype=given.scale_dtype)
        elif scales.numel():
            raise ValueError(
                f"{name}_scales is {tuple(scales.shape)}, and {given.name} has no scales: give an "
                f"empty tensor"
            )

    def _check_shared(self, hidden: int) -> None:
        up, down = self.shared_gate_up, self.shared_down
        if up is None and down is None:
            return
        if up is None or down is None:
            raise ValueError("shared_gate_up and shared_down: give both, or neither")
        must_be(down, "shared_down", (hidden, None), dtype=torch.bfloat16)
        must_be(up, "shared_gate_up", (2 * down.shape[1], hidden), dtype=torch.bfloat16)
        multiple = _formats.FORMATS["bf16"].multiple
        if not down.shape[1] or down.shape[1] % multiple:
            raise ValueError(
                f"the shared expert's intermediate size a rank is {down.shape[1]}; give one that "
                f"{multiple} divides"
            )

    @property
    def format(self) -> Format:
        """Return the format of the routed experts."""
        return format_of(self.gate_up)

    @property
    def expert_bytes(self) -> int:
        """Return what one routed expert takes, its scales included."""
        stored = (self.gate_up, self.gate_up_scales, self.down, self.down_scales)
        return sum(tensor.nbytes for tensor in stored if tensor.numel()) // len(self.gate_up)

    @property
    def shape(self) -> Shape:
        """Return the sizes."""
        return Shape(
            tokens=len(self.x),
            top_k=self.ids.shape[1],
            experts=len(self.gate_up),
            hidden=self.x.shape[1],
            intermediate=self.gate_up.shape[1] // 2,
            shared=0 if self.shared_down is None else self.shared_down.shape[1],
        )


def reference(**inputs: Any) -> Outputs:
    """Compute in float64 from the rounded inputs, expert after expert, and do not round."""

    def wide(weights: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return _formats.widened(weights, scales)

    return {"y": _looped(Given(**inputs), unpack=wide, dtype=torch.float64, sums=torch.float64)}


def _looped(
    given: Given,
    *,
    unpack: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    dtype: torch.dtype,
    sums: torch.dtype,
) -> torch.Tensor:
    """Loop over the experts that were chosen, each unpacked and multiplied in `dtype`.

    The host waits to learn which experts those are, as often however many they are: their rows are
    sorted on the device, and each expert takes its piece.
    """
    x = given.x.to(dtype)
    y = torch.zeros(x.shape, dtype=sums, device=x.device)
    flat, weights = given.ids.flatten(), given.weights.flatten().to(sums)
    order = flat.argsort(stable=True)
    found, counts = torch.unique_consecutive(flat[order], return_counts=True)
    pieces = torch.tensor_split(order, counts.cumsum(0)[:-1].cpu())
    for expert, choices in zip(found.tolist(), pieces, strict=True):
        if 0 <= expert < given.shape.experts:
            token = choices // given.shape.top_k
            gate_up = unpack(*_of(given.gate_up, given.gate_up_scales, expert))
            down = unpack(*_of(given.down, given.down_scales, expert))
            y.index_add_(
                0, token, _expert(x[token], gate_up, down).to(sums) * weights[choices, None]
            )
    if given.shared_gate_up is not None and given.shared_down is not None:
        y += _expert(x, given.shared_gate_up.to(dtype), given.shared_down.to(dtype)).to(sums)
    return y


def _of(
    weights: torch.Tensor, scales: torch.Tensor, expert: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return weights[expert], scales[expert] if scales.numel() else scales


def _expert(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up) @ down.T


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw tokens, experts and routing of a case; see `draw`."""
    generator = torch.Generator().manual_seed(case.seed)
    ids = _routings.routed_ids(
        str(case.dims["routing"]),
        tokens=case.number("rows"),
        experts=case.number("experts"),
        top_k=case.number("top_k"),
        generator=generator,
    )
    return draw(
        ids=ids.to(device),
        weights=_routings.routed_weights(ids, generator=generator, scaling=_SCALING).to(device),
        name=str(case.dims["format"]),
        experts=case.number("experts"),
        hidden=case.number("hidden"),
        intermediate=case.number("intermediate"),
        shared=case.number("shared"),
        seed=case.seed,
    )


def draw(
    *,
    ids: torch.Tensor,
    weights: torch.Tensor,
    name: str,
    experts: int,
    hidden: int,
    intermediate: int,
    shared: int = 0,
    seed: int = 0,
) -> Inputs:
    """Draw tokens and experts in format `name` for this routing, on its device.

    Tokens are so small that gate and up vary by about 1, as they do in a model. Another seed gives
    other values to the same routing.
    """
    device = ids.device
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=torch.bfloat16)

    def experts_of(*sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _formats.drawn(name, (experts, *sizes), generator=generator, device=device)

    x = normal(len(ids), hidden) * (1 / (_formats.FORMATS[name].rms * hidden**0.5))
    gate_up, gate_up_scales = experts_of(2 * intermediate, hidden)
    down, down_scales = experts_of(hidden, intermediate)
    given = {
        "x": x,
        "ids": ids,
        "weights": weights,
        "gate_up": gate_up,
        "gate_up_scales": gate_up_scales,
        "down": down,
        "down_scales": down_scales,
    }
    if shared:
        given |= {
            "shared_gate_up": normal(2 * shared, hidden),
            "shared_down": normal(hidden, shared),
        }
    return given


def cost(inputs: Inputs) -> Cost:
    """Return what these inputs must cost: each expert that a token chose is read once.

    Waits for the device, for it counts them.
    """
    unchecked: Any = inputs
    given = Given(**unchecked)
    shape = given.shape
    some = int(((given.ids >= 0) & (given.ids < shape.experts)).sum())
    shared = (given.shared_gate_up, given.shared_down)
    small = (given.x, given.ids, given.weights, *(one for one in shared if one is not None))
    products = some * shape.intermediate + shape.tokens * shape.shared
    return Cost(
        flops=6 * shape.hidden * products,
        read_bytes=_routings.distinct(given.ids, shape.experts) * given.expert_bytes
        + sum(tensor.nbytes for tensor in small),
        written_bytes=given.x.nbytes,
    )


def counts(inputs: Inputs) -> dict[str, Value]:
    """Return the distinct experts, of which the bytes are counted; waits for the device."""
    unchecked: Any = inputs
    given = Given(**unchecked)
    return {"distinct_experts": _routings.distinct(given.ids, given.shape.experts)}


OP = Op(
    name="fused_moe",
    part="routed_experts",
    reference=reference,
    inputs=inputs,
    cost=cost,
    counts=counts,
    reachable_share=REACHABLE_SHARE,
    cases=(*tiny_cases(), *measured_cases()),
    gate_cases=gate_cases(),
    long_gate_cases=long_gate_cases(),
    tolerance=Tolerance(
        row=1e-2,
        why="the product of gate and up, and the result, are rounded to bfloat16 once, 2**-8 of an "
        "element at most each, and what unpacks to bfloat16 rounds each weight as well: measured "
        "3.6e-3 of a row in CUDA C++, 5.9e-3 in Triton, 7.7e-3 by torch, which rounds gate and up",
    ),
)


def refuses(case: Case) -> str | None:
    """Say why the format of a case cannot hold experts of its sizes; None if it can."""
    return _formats.why_not_sizes(
        str(case.dims["format"]),
        hidden=case.number("hidden"),
        intermediate=case.number("intermediate"),
    )


LOOP = Baseline(
    name="torch",
    kind="baseline-composed",
    what="the loop in torch",
    why="a loop over the experts that were chosen, which asks the host for them: no graph",
    formats=("bf16", "fp8", "int4"),
    capabilities=(),
    shared=True,
)


@OP.implementation(LOOP.name, kind=LOOP.kind, needs=LOOP.needs())
def torch_loop(**inputs: Any) -> Outputs:
    """Loop over the experts that were chosen: unpack one to bfloat16, and multiply.

    The host asks the device which they are, so this cannot be captured into a graph. Unpacking is
    part of the call: it reads what any implementation reads, and writes four (int4) or two times
    (fp8) that for its own products.
    """
    return {
        "y": _looped(
            Given(**inputs), unpack=_formats.unpacked, dtype=torch.bfloat16, sums=torch.float32
        ).bfloat16()
    }
