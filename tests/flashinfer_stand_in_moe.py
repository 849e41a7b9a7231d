"""FlashInfer's routing and sorting as 0.6.18 and 0.7.4 declare them, computed in plain Python.

Each does what its kernel does and its documentation may not say: weights in the dtype of the logits
or bfloat16, the slots of an expert in no order, entries behind the last block left as they are.
"""

import inspect
import math
from types import ModuleType
from typing import Any, NamedTuple

import torch


class Routed(NamedTuple):
    """What `trtllm_gen_routing` returns, those fields that are used."""

    topk_ids: torch.Tensor
    topk_weights: torch.Tensor


def module(version: str) -> ModuleType:
    """Return `flashinfer.fused_moe` with what these versions have in it."""
    found = ModuleType("fused_moe")
    utils = ModuleType("moe_utils")
    vars(utils).update(moe_sort=moe_sort, allocate_moe_sort_buffers=allocate_moe_sort_buffers)
    cute_dsl = ModuleType("cute_dsl")
    vars(cute_dsl).update(moe_utils=utils)
    vars(found).update(cute_dsl=cute_dsl, fused_topk_deepseek=_fused_topk_deepseek(version))
    if not version.startswith("0.6"):
        vars(found).update(trtllm_gen_routing=trtllm_gen_routing)
    return found


def top_k(
    input: torch.Tensor,
    k: int,
    sorted: bool = False,
    deterministic: bool = False,
    tie_break: int = 0,
    dsa_graph_safe: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose as asked; equal values come out by falling index."""
    if not (sorted and deterministic and tie_break == 1):
        raise ValueError("only the lower index of equal values, in order, can be held to anything")
    chosen = input.sort(dim=1, descending=True, stable=True).indices[:, :k].flip(1)
    order = input.gather(1, chosen).sort(dim=1, descending=True, stable=True).indices
    ids = chosen.gather(1, order)
    return input.gather(1, ids), ids


def _fused_topk_deepseek(version: str) -> Any:
    def fused_topk_deepseek(
        scores: torch.Tensor,
        bias: torch.Tensor,
        n_group: int,
        topk_group: int,
        topk: int,
        routed_scaling_factor: float,
        topk_values: torch.Tensor,
        topk_indices: torch.Tensor,
        launch_with_pdl: bool = True,
        routing_replay_out: torch.Tensor | None = None,
        **backend: str,
    ) -> None:
        """Write both outputs, one row after another; what it does not hold raises."""
        experts = scores.shape[1]
        each = experts // n_group
        if topk > 8 or (experts > 384 if n_group == 1 else each > 32 or experts > 256):
            raise ValueError(f"topk {topk} of {experts} in {n_group}")
        if topk_values.dtype != scores.dtype or topk_indices.dtype != torch.int32:
            raise ValueError("topk_values is of the dtype of scores, topk_indices int32")
        _by_sigmoid(
            scores,
            bias,
            groups=(n_group, topk_group),
            scaling=routed_scaling_factor,
            values=topk_values,
            ids=topk_indices,
        )

    signature = inspect.signature(fused_topk_deepseek)
    parameters = [one for name, one in signature.parameters.items() if name != "backend"]
    if not version.startswith("0.6"):
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter("backend", kind, default="default"))
    vars(fused_topk_deepseek)["__signature__"] = signature.replace(parameters=parameters)
    return fused_topk_deepseek


def _by_sigmoid(
    logits: torch.Tensor,
    bias: torch.Tensor,
    *,
    groups: tuple[int, int],
    scaling: float,
    values: torch.Tensor,
    ids: torch.Tensor,
) -> None:
    """Write one row after another; groups: how many there are, and how many are on top."""
    each, count = logits.shape[1] // groups[0], ids.shape[1]
    for row, of_row in enumerate(logits.float().tolist()):
        score = [0.5 * math.tanh(0.5 * logit) + 0.5 for logit in of_row]
        key = [a + b for a, b in zip(score, bias.tolist(), strict=True)]
        parts = [key[first : first + each] for first in range(0, len(key), each)]
        kept = _best([sum(part[n] for n in _best(part, 2)) for part in parts], groups[1])
        chosen = _best([k if e // each in kept else -math.inf for e, k in enumerate(key)], count)
        total = sum(score[e] for e in chosen) + 1e-20
        ids[row] = torch.tensor(chosen)
        values[row] = torch.tensor([score[e] * scaling / total for e in chosen]).to(values.dtype)


def _best(values: list[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda n: (-values[n], n))[:count]


def trtllm_gen_routing(
    routing_logits: torch.Tensor,
    routing_bias: torch.Tensor | None,
    routing_method: int,
    top_k: int,
    *,
    num_fused_shared_experts: int = 0,
    n_group: int = 0,
    topk_group: int = 0,
    local_expert_offset: int = 0,
    local_num_experts: int | None = None,
    routed_scaling_factor: float = 1.0,
    tile_tokens_dim: int = 8,
    norm_topk_prob: bool = True,
    enable_pdl: bool | None = None,
) -> Routed:
    """Route as methods 0 (softmax), 1 (softmax of the chosen) and 2 (DeepSeek-V3) do."""
    logits = routing_logits.float()
    if routing_method == 2:
        if routing_bias is None:
            raise ValueError("DeepSeek-V3's routing adds a bias")
        ids = torch.empty(len(logits), top_k, dtype=torch.int32)
        weights = torch.empty(len(logits), top_k)
        groups = (n_group or 1, topk_group or 1)
        _by_sigmoid(
            logits,
            routing_bias,
            groups=groups,
            scaling=routed_scaling_factor,
            values=weights,
            ids=ids,
        )
    else:
        ids = logits.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
        chosen = logits.gather(1, ids)
        weights = logits.softmax(1).gather(1, ids) if routing_method == 0 else chosen.softmax(1)
    # From the last choice to the first: no order of a row is promised.
    return Routed(ids.int().flip(1), weights.bfloat16().flip(1))


def allocate_moe_sort_buffers(
    num_tokens: int,
    num_experts: int,
    top_k: int,
    num_local_experts: int | None = None,
    tile_tokens_dim: int = 128,
    device: str = "cuda",
) -> dict[str, torch.Tensor]:
    """Allocate what `moe_sort` fills."""
    slots, tile = num_tokens * top_k, tile_tokens_dim
    tiles = slots if slots <= num_experts else (slots + (tile - 1) * num_experts) // tile

    def room(*sizes: int) -> torch.Tensor:
        return torch.full(sizes, 77, dtype=torch.int32, device=device)

    return {
        "out_tile_idx_to_expert_idx": room(tiles),
        "out_tile_idx_to_mn_limit": room(tiles),
        "out_expanded_idx_to_permuted_idx": room(num_tokens, top_k),
        "out_permuted_idx_to_expanded_idx": room(tiles * tile),
        "out_total_num_padded_tokens": room(1),
        "out_num_non_exiting_tiles": room(1),
    }


def moe_sort(
    token_selected_experts: torch.Tensor,
    token_final_scales: torch.Tensor,
    num_experts: int,
    top_k: int,
    local_expert_offset: int = 0,
    num_local_experts: int | None = None,
    tile_tokens_dim: int = 128,
    enable_pdl: bool = False,
    out_tile_idx_to_expert_idx: torch.Tensor | None = None,
    out_tile_idx_to_mn_limit: torch.Tensor | None = None,
    out_expanded_idx_to_permuted_idx: torch.Tensor | None = None,
    out_permuted_idx_to_expanded_idx: torch.Tensor | None = None,
    out_total_num_padded_tokens: torch.Tensor | None = None,
    out_num_non_exiting_tiles: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Sort by expert; the slots of one stand in falling order, as atomics might bring them."""
    owners, limits = out_tile_idx_to_expert_idx, out_tile_idx_to_mn_limit
    places, slots_of = out_expanded_idx_to_permuted_idx, out_permuted_idx_to_expanded_idx
    count, tiles = out_total_num_padded_tokens, out_num_non_exiting_tiles
    if owners is None or limits is None or places is None or slots_of is None:
        raise ValueError("without buffers it cannot be captured")
    if count is None or tiles is None or token_final_scales.shape != token_selected_experts.shape:
        raise ValueError("without buffers it cannot be captured; scales are those of the experts")
    owners.zero_()
    limits.zero_()
    flat, place, tile = token_selected_experts.flatten().tolist(), 0, tile_tokens_dim
    for expert in range(num_experts):
        mine = [slot for slot, one in enumerate(flat) if one == expert][::-1]
        for slot in mine:
            places.view(-1)[slot] = place
            slots_of[place] = slot
            place += 1
        first = (place - len(mine)) // tile
        place += -place % tile
        owners[first : place // tile] = expert
        limits[first : place // tile] = place
    count[0], tiles[0] = place, place // tile
    return owners, limits, places, slots_of, count, tiles
