"""Cosines and sines of rotary positions, as the attention of a model looks them up.

    table[p, i] = m cos(p f_i), table[p, half + i] = m sin(p f_i),   half = dims / 2, i < half
    f_i = theta^(-2i / dims)                                                        no scaling
    yarn: f_i / factor where a dim turns fewer than beta_slow times within the original positions,
        f_i where it turns more than beta_fast times, and a linear mix of both between
    llama3: f_i / 8 (`factor`) for wavelengths above the original positions / 1, f_i below the
        original positions / 4, and a mix that is linear in 1 / wavelength between

table float32 [positions, dims], cosines first: the layout that vLLM, SGLang and FlashInfer share.
m is 1 but for yarn, where a config that names no mscale_all_dim puts 0.1 ln(factor) + 1 here; one
that does (DeepSeek, Kimi) has it in the softmax scale, and the ratio that is left is 1.

Angles are float64 and rounded after cos and sin. Engines round p f_i to float32 first, which is off
by up to 0.016 at position 262,143; a table is an input, so that nothing measured depends on it.

Source: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071) as in modeling_deepseek.py; the factors
1 and 4 of llama3 are those of every Llama 3.1 to 3.3 config.json; beta_fast 32 and beta_slow 1 are
yarn's own where a config names none.
"""

from __future__ import annotations

import math

import torch

from verifyscope.models import Rope

_LOW_FREQUENCY_FACTOR, _HIGH_FREQUENCY_FACTOR = 1.0, 4.0  # of llama3
_BETA_FAST, _BETA_SLOW = 32.0, 1.0  # of yarn


def frequencies(rope: Rope, dims: int) -> torch.Tensor:
    """Return f_i, float64 [dims / 2]: what a position is multiplied by to become an angle."""
    if dims < 2 or dims % 2:
        raise ValueError(f"{dims} rotated dims: give an even number, for they turn in pairs")
    plain = rope.theta ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    if rope.scaling == "none":
        return plain
    if rope.original_positions is None:
        raise ValueError(f"{rope.scaling} scaling needs the original positions")
    if rope.scaling == "llama3":
        turned = rope.original_positions * plain / (2 * math.pi)  # in all original positions
        kept = (turned - _LOW_FREQUENCY_FACTOR) / (_HIGH_FREQUENCY_FACTOR - _LOW_FREQUENCY_FACTOR)
    else:
        kept = 1 - _yarn_ramp(rope, dims)
    kept = kept.clamp(0, 1)
    return kept * plain + (1 - kept) * plain / rope.factor


def _yarn_ramp(rope: Rope, dims: int) -> torch.Tensor:
    """Return 0 for dims that turn often, rising to 1 for those that turn seldom."""
    original = rope.original_positions or 0

    def dim_that_turns(times: float) -> float:
        return dims * math.log(original / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(dim_that_turns(rope.beta_fast or _BETA_FAST)), 0)
    high = min(math.ceil(dim_that_turns(rope.beta_slow or _BETA_SLOW)), dims - 1)
    width = high - low or 0.001  # a step, where both betas are one
    return (torch.arange(dims // 2, dtype=torch.float64) - low) / width


def cos_sin_table(
    rope: Rope, *, dims: int, positions: int, device: torch.device | None = None
) -> torch.Tensor:
    """Return the table for positions 0 .. positions - 1."""
    scale = 1.0
    if rope.scaling == "yarn" and rope.mscale_all_dim is None:
        scale += 0.1 * math.log(rope.factor)
    turn = frequencies(rope, dims).to(device)
    angle = torch.arange(positions, dtype=torch.float64, device=device)[:, None] * turn
    table = torch.empty(positions, dims, device=device)
    torch.mul(angle.cos(), scale, out=table[:, : dims // 2])
    torch.mul(angle.sin(), scale, out=table[:, dims // 2 :])
    return table
