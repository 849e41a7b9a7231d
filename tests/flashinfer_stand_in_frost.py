"""FlashInfer's Frost layer as 0.7.4 declares it: few tokens, signed nibbles, up first.

A layer is made of a `MoEConfig` with one backend; tokens and weights come in packs. Its classes
have the fields of the wheel's.
"""

import enum
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch

from tests.flashinfer_experts import experts, signed

UNSET = object()
KEY = "frost_low_latency"
_TILE = 128


class QuantFormat(enum.Enum):
    """Formats of weights, tokens and results."""

    BF16 = 0
    MXINT4 = 7


class RoutingInputMode(enum.IntEnum):
    """How routing comes."""

    FromLogits = 0
    PackedPrecomputed = 1
    UnpackedPrecomputed = 2


@dataclass(frozen=True)
class RoutingConfig:
    """Experts and choices."""

    num_experts: int
    top_k: int
    method: int = 0
    n_group: int | None = None
    topk_group: int | None = None
    routed_scaling_factor: float | None = None


@dataclass(frozen=True)
class QuantConfig:
    """Formats."""

    weight: QuantFormat = QuantFormat.BF16
    activation: QuantFormat = QuantFormat.BF16
    output: QuantFormat = QuantFormat.BF16
    _: KW_ONLY
    swizzled_scale_factors: bool | None = None
    per_token_scale: bool | None = None
    nvfp4_4over6: Any = UNSET


@dataclass(frozen=True)
class ExpertConfig:
    """The intermediate size."""

    intermediate_size: int
    local_expert_offset: int = 0
    local_num_experts: int | None = None
    num_fused_shared_experts: int = 0


@dataclass(frozen=True)
class FrostLowLatencyConfig:
    """The backend, and what lays its weights out."""

    max_num_tokens: int = 2

    def __post_init__(self) -> None:
        """Hold `max_num_tokens` to its range."""
        if not 1 <= self.max_num_tokens <= 8:
            raise ValueError("max_num_tokens must be between 1 and 8")

    @staticmethod
    def prepare_mxint4_weight_only_weights(
        w1: torch.Tensor,
        w1_block_scale: torch.Tensor,
        w2: torch.Tensor,
        w2_block_scale: torch.Tensor,
        *,
        activation: Any = None,
    ) -> dict[str, torch.Tensor]:
        """Pad the intermediate size to 128; keep the nibbles and their scales."""
        count, hidden, half = w2.shape
        if w1.shape != (count, 4 * half, hidden // 2) or hidden % 128 or half % 16:
            raise ValueError(f"weights are {tuple(w1.shape)}, {tuple(w2.shape)}")
        more = -2 * half % _TILE
        rows = {"fc1_expert_weights": w1, "fc1_block_scales": w1_block_scale}
        columns = {"fc2_expert_weights": (w2, 2), "fc2_block_scales": (w2_block_scale, 32)}
        pad = torch.nn.functional.pad
        return {
            name: torch.cat([pad(part, (0, 0, 0, more)) for part in one.chunk(2, dim=1)], dim=1)
            for name, one in rows.items()
        } | {name: pad(one, (0, more // values)) for name, (one, values) in columns.items()}


@dataclass(frozen=True)
class BackendOptions:
    """The backends that compete."""

    candidates: tuple[Any, ...] = ()


@dataclass(frozen=True)
class MoEConfig:
    """A layer."""

    routing: RoutingConfig
    quant: QuantConfig
    experts: ExpertConfig
    activation: Any = field(default_factory=object)
    backend: BackendOptions = field(default_factory=BackendOptions)
    execution: Any = field(default_factory=object)
    finalize: Any = field(default_factory=object)


@dataclass
class MoEWeightPack:
    """Weights by backend."""

    native_views: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    def prepare_for(self, backend_key: str, view: dict[str, torch.Tensor]) -> None:
        """Keep the weights of a backend."""
        self.native_views[backend_key] = view


@dataclass
class MoEActivationPack:
    """Tokens and their routing."""

    hidden_states_q: torch.Tensor
    hidden_states_scale: torch.Tensor | None
    topk_ids: torch.Tensor | None = None
    topk_weights: torch.Tensor | None = None
    _: KW_ONLY
    per_token_scale: torch.Tensor | None = None
    routing_input_mode: RoutingInputMode = RoutingInputMode.PackedPrecomputed
    routing_logits: torch.Tensor | None = None
    routing_bias: torch.Tensor | None = None


def compute(
    x: torch.Tensor, ids: torch.Tensor, scores: torch.Tensor, view: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Compute what the kernels do, bfloat16, from weights that are padded to 128."""
    first, second = view["fc1_expert_weights"], view["fc2_expert_weights"]
    if not ((ids >= 0) & (ids < len(first))).all():
        raise IndexError("an illegal memory access was encountered")

    def unpack(expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            signed(first[expert], view["fc1_block_scales"][expert]),
            signed(second[expert], view["fc2_block_scales"][expert]),
        )

    return experts(x, ids, scores, count=len(first), unpack=unpack).bfloat16()


class MoELayer:
    """One backend behind the layer; `made` has all layers, `calls` the tokens of each call."""

    made: list["MoELayer"]

    def __init__(self, config: MoEConfig, device: torch.device | None = None) -> None:
        """Take a layer whose one backend serves these formats."""
        quant, (backend,) = config.quant, config.backend.candidates
        formats = (quant.weight, quant.activation, quant.output)
        if formats != (QuantFormat.MXINT4, QuantFormat.BF16, QuantFormat.BF16):
            raise RuntimeError(f"none of the configured backends takes {formats}")
        if config.routing.top_k > 32:
            raise RuntimeError("Frost NVFP4 requires top_k <= 32")
        self.config, self.most = config, backend.max_num_tokens
        self.calls: list[int] = []
        self.made.append(self)

    def __call__(self, act_pack: MoEActivationPack, weight_pack: MoEWeightPack) -> torch.Tensor:
        """Compute; a fresh tensor each time."""
        x, ids, scores = act_pack.hidden_states_q, act_pack.topk_ids, act_pack.topk_weights
        if not 1 <= len(x) <= self.most or x.shape[1] % 128:
            raise NotImplementedError("none of the usable backends takes these packs")
        routing = self.config.routing
        if ids is None or scores is None or ids.shape != (len(x), routing.top_k):
            raise ValueError("topk_ids and topk_weights are [tokens, top_k]")
        if act_pack.routing_input_mode == RoutingInputMode.PackedPrecomputed:
            scores = scores.bfloat16()
        self.calls.append(len(x))
        return compute(x, ids, scores, weight_pack.native_views[KEY])


def parts() -> dict[str, Any]:
    """Return what stands in `fused_moe`; the layers that are made are those of this module."""
    layer = type("MoELayer", (MoELayer,), {"made": []})
    classes = (
        *(QuantFormat, RoutingInputMode, RoutingConfig, QuantConfig, ExpertConfig),
        *(FrostLowLatencyConfig, BackendOptions, MoEConfig, MoEWeightPack, MoEActivationPack),
    )
    return {one.__name__: one for one in classes} | {"MoELayer": layer}
