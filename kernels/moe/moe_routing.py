"""Router logits to each token's experts and their weights, highest key first.

    sigmoid   s = sigmoid(logits), key = s + bias; with groups, the experts of the top_groups groups
              whose two best keys have the largest sum, otherwise all; of them the top_k of highest
              key;  w = s of each, without bias   (Kimi-K2.5, DeepSeek-V3)
    softmax   p = softmax(logits), key = logits;  w = p of the top_k largest   (Qwen3)
    weights   = scaling * w, with `renormalise` scaling * w / (sum of the top_k w + 1e-20)

logits float32 or bfloat16 [T, E], contiguous; bias float32 [E], whose presence says sigmoid; top_k
1 to 16, E up to 512; groups divide E into parts of two experts and more. ids int32 [T, top_k],
weights float32 [T, top_k]. Keys, scores and sums are float32. Of equal keys the lower id comes
first, of equal groups the lower group.

A key is held within +-1e38; one that is NaN or -inf (so is its logit, or its bias) counts as -1e38
and means: excluded. An excluded expert is chosen only where too few others are left, by lower id,
and has weight 0; no row has an expert twice, whatever the numbers (vllm-omni#7175). A sigmoid of
-inf is 0, which excludes nothing. All weights of a row may be 0, and are then not renormalised.

Errors: ValueError for shapes, dtypes and numbers that are not those.
Source: DeepSeek-V3 (arXiv 2412.19437) 2.1.2 and its modeling_deepseek.py, whose 1e-20 it is; Qwen3
in transformers. Ties: vllm#54403, #52679 (384 experts in bfloat16 tie often).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels.moe import _routing_cases

LOGIT_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
MOST_EXPERTS = 512
MOST_TOP_K = 16
MOST_GROUPS = 32
EXCLUDED = -1e38
MOST_KEY = 1e38
EPSILON = 1e-20
NEAREST_KEYS = 1e-5  # of what is drawn; hundreds of times what float32 rounds a key by
_BIAS_SPREAD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of one call, checked: `Given(**inputs)` raises ValueError if they do not fit."""

    logits: torch.Tensor
    top_k: int
    renormalise: bool
    scaling: float = 1.0
    bias: torch.Tensor | None = None
    groups: int = 1
    top_groups: int = 1

    def __post_init__(self) -> None:
        logits, bias = self.logits, self.bias
        if logits.dtype not in LOGIT_DTYPES or logits.dim() != 2 or not logits.is_contiguous():
            raise ValueError(
                f"logits are {logits.dtype} of {tuple(logits.shape)}, strides {logits.stride()}: "
                f"give contiguous float32 or bfloat16, [tokens, experts]"
            )
        if not len(logits) or not 1 <= self.experts <= MOST_EXPERTS:
            raise ValueError(
                f"logits are of {tuple(logits.shape)}: give at least one token, and 1 to "
                f"{MOST_EXPERTS} experts"
            )
        if bias is not None and (
            bias.dtype != torch.float32 or bias.shape != (self.experts,) or not bias.is_contiguous()
        ):
            raise ValueError(
                f"bias is {bias.dtype} of {tuple(bias.shape)}: give contiguous float32 of "
                f"[{self.experts}]"
            )
        self._check_choice()

    def _check_choice(self) -> None:
        if self.groups != 1 and self.bias is None:
            raise ValueError(f"{self.groups} groups of softmax: only sigmoid scores have groups")
        if not 1 <= self.groups <= MOST_GROUPS or self.experts % self.groups:
            raise ValueError(
                f"{self.groups} groups of {self.experts} experts: give 1 to {MOST_GROUPS}, which "
                f"divide the experts"
            )
        each = self.experts // self.groups
        if self.groups > 1 and each < 2:
            raise ValueError(f"{self.groups} groups of one expert: a group needs two best keys")
        if not 1 <= self.top_groups <= self.groups:
            raise ValueError(f"top_groups is {self.top_groups}; give 1 to {self.groups}")
        most = min(MOST_TOP_K, self.top_groups * each)
        if not 1 <= self.top_k <= most:
            raise ValueError(f"top_k is {self.top_k}; give 1 to {most}")

    @property
    def experts(self) -> int:
        """Return how many experts there are."""
        return int(self.logits.shape[1])

    def empty_outputs(self) -> dict[str, torch.Tensor]:
        """Allocate `ids` and `weights`."""
        sizes, device = (len(self.logits), self.top_k), self.logits.device
        return {
            "ids": torch.empty(sizes, dtype=torch.int32, device=device),
            "weights": torch.empty(sizes, dtype=torch.float32, device=device),
        }


def reference(**inputs: Any) -> Outputs:
    """Compute in float64, and do not round: near keys are told apart, equal ones stay equal."""
    return _routed(Given(**inputs), torch.float64)


def _routed(given: Given, dtype: torch.dtype) -> Outputs:
    score, key, kept = _scored(given, dtype)
    # A stable sort leaves equal keys in the order of their ids.
    top = kept.sort(dim=1, descending=True, stable=True)
    chosen, ids = top.values[:, : given.top_k], top.indices[:, : given.top_k]
    if given.bias is None:
        largest = chosen[:, :1]
        weights = torch.where(chosen > EXCLUDED, (chosen - largest).exp(), 0.0)
        total = torch.where(key > EXCLUDED, (key - largest).exp(), 0.0).sum(1, keepdim=True)
    else:
        weights = torch.where(chosen > EXCLUDED, score.gather(1, ids), 0.0)
        total = torch.ones_like(weights[:, :1])
    if given.renormalise:
        total = weights.sum(1, keepdim=True)
    return {"ids": ids.int(), "weights": weights / (total + EPSILON) * given.scaling}


def _scored(given: Given, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scores, keys, and the keys with -inf outside of the top groups: [T, E]."""
    logits = given.logits.to(dtype)
    score = logits if given.bias is None else logits.sigmoid()
    key = score if given.bias is None else score + given.bias.to(dtype)
    key = torch.where(key > EXCLUDED, key, EXCLUDED).clamp(max=MOST_KEY)  # NaN is no greater
    if given.groups == 1:
        return score, key, key
    top = _group_scores(given, key).sort(dim=1, descending=True, stable=True).indices
    of_group = torch.full((len(key), given.groups), -torch.inf, dtype=dtype, device=key.device)
    of_group.scatter_(1, top[:, : given.top_groups], torch.inf)
    return score, key, key.minimum(of_group.repeat_interleave(given.experts // given.groups, 1))


def _group_scores(given: Given, key: torch.Tensor) -> torch.Tensor:
    """Return the sum of the two best keys of each group, [T, groups]."""
    return key.view(len(key), given.groups, -1).topk(2).values.sum(-1)


def in_order(given: Given, found: Outputs) -> Outputs:
    """Return each row in the order of its keys, and of equal ones in that of their ids."""
    by_id = found["ids"].long().sort(dim=1)
    _, key, _ = _scored(given, torch.float64)
    order = key.gather(1, by_id.values).sort(dim=1, descending=True, stable=True).indices
    place = by_id.indices.gather(1, order)
    return {name: one.gather(1, place) for name, one in found.items()}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw logits, and for sigmoid a bias, on the CPU: the same for every device.

    "drawn" is "ties": of few values, so that many keys and groups are equal. "normal": no choice
    hangs on less than NEAREST_KEYS, so that rounding decides none; rows where one does are drawn
    again. Equal keys may be there, as they are in bfloat16.
    """
    by = torch.Generator().manual_seed(case.seed)
    rows, experts = case.number("rows"), case.number("experts")
    ties = case.dims["drawn"] == "ties"

    def drawn(*sizes: int) -> torch.Tensor:
        few = torch.randint(-2, 3, sizes, generator=by) / 2
        return few if ties else torch.randn(sizes, generator=by)

    given: dict[str, torch.Tensor | int | float] = {
        "top_k": case.number("top_k"),
        "renormalise": case.dims["renormalise"] == "yes",
        "scaling": _number(case.dims["scaling"]),
    }
    if case.dims["scoring"] == "sigmoid":
        given |= {"groups": case.number("groups"), "top_groups": case.number("top_groups")}
        given["bias"] = drawn(experts) * (1 if ties else _BIAS_SPREAD)
    logits = drawn(rows, experts).to(case.dtype)
    while (near := _near(logits, given)).any():
        logits[near] = drawn(int(near.sum()), experts).to(case.dtype)
    given["logits"] = logits
    return {
        name: one.to(device) if isinstance(one, torch.Tensor) else one
        for name, one in given.items()
    }


def _number(value: object) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _near(logits: torch.Tensor, rest: Mapping[str, Any]) -> torch.Tensor:
    """Say of each row whether a choice hangs on less than NEAREST_KEYS."""
    given = Given(logits=logits, **rest)
    _, key, kept = _scored(given, torch.float64)
    near = _close(kept, given.top_k)
    if given.groups > 1:
        near |= _close(_group_scores(given, key), given.top_groups)
    return near


def _close(key: torch.Tensor, count: int) -> torch.Tensor:
    gap = -key.sort(dim=1, descending=True).values[:, : count + 1].diff(dim=1)
    return ((gap > 0) & (gap < NEAREST_KEYS)).any(1)


def cost(inputs: Inputs) -> Cost:
    """Read logits and bias, write an id and a weight a choice; exp, add, divide, add, compare."""
    unchecked: Any = inputs
    given = Given(**unchecked)
    bias_bytes = 0 if given.bias is None else given.bias.nbytes
    return Cost(
        flops=5 * given.logits.numel(),
        read_bytes=given.logits.nbytes + bias_bytes,
        written_bytes=8 * len(given.logits) * given.top_k,
    )


OP = Op(
    name="moe_routing",
    part="routing",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(*_routing_cases.tiny_cases(), *_routing_cases.measured_cases()),
    gate_cases=_routing_cases.gate_cases(),
    long_gate_cases=_routing_cases.long_gate_cases(),
    tolerance=Tolerance(
        row=4e-3,
        why="FlashInfer rounds weights to the dtype of the logits, 2**-8 in bfloat16; ours are "
        "float32, and held to 1e-5 in tests/test_moe_routing.py",
    ),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_routing(**inputs: Any) -> Outputs:
    """Score, sort, gather and divide in float32; none of these kernels waits for the device."""
    return _routed(Given(**inputs), torch.float32)
