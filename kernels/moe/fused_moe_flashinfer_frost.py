"""`fused_moe` by FlashInfer's Frost layer for few tokens: int4 as it is, in one call or in two.

    flashinfer_frost         1 to 8 tokens: the op itself, two kernels
    flashinfer_frost_twice   9 to 16 tokens: two calls of half of them, and one copy that puts the
                             halves of y together, which is timed

`FrostLowLatencyConfig` (MXINT4 weights, bfloat16 tokens), the one backend of a `MoELayer`, reads an
expert's weights once a choice and rounds where the op does. `max_num_tokens` is its most, 8 (2 by
default). Routing is given as ids and float32 weights, unpacked: the packed form would round the
weights to bfloat16. Nibbles are in two's complement, even k in the low one, the rows of up first;
scales stay as they are, one for each 32 k; an intermediate size a rank that 128 does not divide is
padded by the library.

It computes where its rows lie, so the ids must name experts. It is compiled by nvidia-cutlass-dsl,
4.8 or newer, without nvcc; capability 8.0 has none of its 4-bit kernels.

Errors: ValueError for inputs that `Given` or the baseline refuses.
Source: fused_moe/api.py, layer.py and backends/frost_low_latency/ in the wheel of FlashInfer 0.7.4;
it came with 0.7.
"""

import dataclasses
import importlib.metadata
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from kernels import Case, Cost, Inputs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.moe import _flashinfer_experts, _formats, _routings
from kernels.moe._baselines import Baseline
from kernels.moe._flashinfer_experts import AUTOTUNE
from kernels.moe.fused_moe import OP, Given

MOST_IN_A_CALL = 8
_COMPILER, _SINCE = "nvidia-cutlass-dsl", (4, 8)
_CAPABILITIES = (90, 100, 103, 107, 120)
_KEY = "frost_low_latency"

DIRECT = Baseline(
    name="flashinfer_frost",
    kind="baseline-direct",
    what="FlashInfer's Frost layer",
    why="the same experts in the same format",
    formats=("int4",),
    capabilities=_CAPABILITIES,
    rows=(1, MOST_IN_A_CALL),
    elsewhere="; flashinfer_frost_twice takes 9 to 16",
    multiples=(128, 32),
    most_top_k=32,
    absent=False,
)
TWICE = Baseline(
    name="flashinfer_frost_twice",
    kind="baseline-composed",
    what="FlashInfer's Frost layer in two calls",
    why="two calls of half of the tokens each, and a copy that puts y together",
    formats=("int4",),
    capabilities=_CAPABILITIES,
    rows=(MOST_IN_A_CALL + 1, 2 * MOST_IN_A_CALL),
    elsewhere="; flashinfer_frost takes up to 8",
    multiples=(128, 32),
    most_top_k=32,
    absent=False,
)

_CONFIG = "fused_moe.FrostLowLatencyConfig"
WEIGHTS = Call(
    function=f"{_CONFIG}.prepare_mxint4_weight_only_weights",
    needed=("w1", "w1_block_scale", "w2", "w2_block_scale"),
)
BACKEND = Call(function=_CONFIG, needed=("max_num_tokens",))
BACKENDS = Call(function="fused_moe.BackendOptions", needed=("candidates",))
ROUTING = Call(function="fused_moe.RoutingConfig", needed=("num_experts", "top_k"))
QUANT = Call(function="fused_moe.QuantConfig", needed=("weight", "activation", "output"))
EXPERTS = Call(function="fused_moe.ExpertConfig", needed=("intermediate_size",))
CONFIG = Call(function="fused_moe.MoEConfig", needed=("routing", "quant", "experts", "backend"))
LAYER = Call(function="fused_moe.MoELayer", needed=("config", "device"))
PACK = Call(function="fused_moe.MoEWeightPack", needed=())
PREPARE = Call(function="fused_moe.MoEWeightPack.prepare_for", needed=("backend_key", "view"))
TOKENS = Call(
    function="fused_moe.MoEActivationPack",
    needed=(
        "hidden_states_q",
        "hidden_states_scale",
        "topk_ids",
        "topk_weights",
        "routing_input_mode",
    ),
)
RUN = Call(function="fused_moe.MoELayer.__call__", needed=("act_pack", "weight_pack"))
CALLS = (
    WEIGHTS,
    BACKEND,
    BACKENDS,
    ROUTING,
    QUANT,
    EXPERTS,
    CONFIG,
    LAYER,
    PACK,
    PREPARE,
    TOKENS,
    RUN,
    AUTOTUNE,
)
SINCE = (0, 7)


def form_cost(inputs: Inputs) -> Cost:
    """Return what this form moves: an expert is read once a choice, not once. Waits for ids."""
    unchecked: Any = inputs
    given, least = Given(**unchecked), OP.cost(inputs)
    again = given.shape.choices - _routings.distinct(given.ids, given.shape.experts)
    return dataclasses.replace(least, read_bytes=least.read_bytes + again * given.expert_bytes)


def _refuses(case: Case) -> str | None:
    if (reason := _flashinfer.why_not((), compiles=False)) is not None:
        return reason
    library = _flashinfer.installed()
    if _flashinfer.is_before(library, SINCE):
        since, found = ".".join(map(str, SINCE)), _flashinfer.version(library)
        return f"FlashInfer's Frost layer came with {since}; {found} is installed"
    return _flashinfer.why_not(CALLS, compiles=False) or _no_compiler()


def _no_compiler() -> str | None:
    found = compiler_version()
    if found is not None and not _flashinfer.is_older(found, _SINCE):
        return None
    wanted = f"{_COMPILER} {'.'.join(map(str, _SINCE))} or newer"
    return f"FlashInfer's Frost layer needs {wanted}; {found or 'none'} is installed"


def compiler_version() -> str | None:
    """Return the version of what compiles these kernels; None if it is not installed."""
    try:
        return importlib.metadata.version(_COMPILER)
    except importlib.metadata.PackageNotFoundError:
        return None


@OP.prepared_implementation(
    DIRECT.name,
    kind=DIRECT.kind,
    needs=DIRECT.needs("flashinfer", more=_refuses),
    form_cost=form_cost,
)
def frost_experts(**inputs: Any) -> Prepared:
    """Turn the weights into the layer's, and tune it for these tokens."""
    given = Given(**inputs)
    DIRECT.check(given)
    library = _flashinfer.installed()
    run = _layer(library, given)
    tokens = _tokens(library, given, slice(None))

    def call() -> Outputs:
        return {"y": run(tokens)}

    return _prepared(library, DIRECT, call, launches=2)


@OP.prepared_implementation(
    TWICE.name,
    kind=TWICE.kind,
    needs=TWICE.needs("flashinfer", more=_refuses),
    form_cost=form_cost,
)
def frost_experts_twice(**inputs: Any) -> Prepared:
    """Turn the weights into the layer's, and tune it for both halves of the tokens."""
    given = Given(**inputs)
    TWICE.check(given)
    library = _flashinfer.installed()
    run, y = _layer(library, given), _flashinfer_experts.output(given.x)
    half = -(-given.shape.tokens // 2)
    first, second = (
        _tokens(library, given, part) for part in (slice(None, half), slice(half, None))
    )

    def call() -> Outputs:
        return {"y": torch.cat([run(first), run(second)], out=y)}

    return _prepared(library, TWICE, call, launches=5)


def _layer(library: ModuleType, given: Given) -> Callable[[Any], torch.Tensor]:
    """Return what takes the tokens of a call to y, by a layer that has these experts."""
    moe, shape = library.fused_moe, given.shape
    quant = _made(
        library,
        QUANT,
        weight=moe.QuantFormat.MXINT4,
        activation=moe.QuantFormat.BF16,
        output=moe.QuantFormat.BF16,
    )
    backend = _made(library, BACKEND, max_num_tokens=MOST_IN_A_CALL)
    config = _made(
        library,
        CONFIG,
        routing=_made(library, ROUTING, num_experts=shape.experts, top_k=shape.top_k),
        quant=quant,
        experts=_made(library, EXPERTS, intermediate_size=shape.intermediate),
        backend=_made(library, BACKENDS, candidates=(backend,)),
    )
    view = _made(
        library,
        WEIGHTS,
        w1=_formats.flipped(_flashinfer_experts.up_first(given.gate_up)),
        w1_block_scale=_flashinfer_experts.up_first(given.gate_up_scales),
        w2=_formats.flipped(given.down),
        w2_block_scale=given.down_scales,
    )
    weights = _made(library, PACK)
    weights.prepare_for(**PREPARE.accepted(library, backend_key=_KEY, view=view).kwargs)
    layer = _made(library, LAYER, config=config, device=given.x.device)

    def run(tokens: Any) -> torch.Tensor:
        y: torch.Tensor = layer(act_pack=tokens, weight_pack=weights)
        return y

    return run


def _tokens(library: ModuleType, given: Given, part: slice) -> Any:
    return _made(
        library,
        TOKENS,
        hidden_states_q=given.x[part],
        hidden_states_scale=None,
        topk_ids=given.ids[part],
        topk_weights=given.weights[part],
        routing_input_mode=library.fused_moe.RoutingInputMode.UnpackedPrecomputed,
    )


def _made(library: ModuleType, call: Call, **given: object) -> Any:
    return call.find(library)(**call.accepted(library, **given).kwargs)


def _prepared(
    library: ModuleType, baseline: Baseline, call: Callable[[], Outputs], *, launches: int
) -> Prepared:
    _flashinfer_experts.tune(library, call)
    facts = _flashinfer_experts.facts_of(library, baseline, backend=_KEY)
    compiler = f"{_COMPILER} {compiler_version()}"
    return Prepared(call=call, facts={**facts, "compiler": compiler}, launches=launches)
