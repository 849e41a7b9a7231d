"""How the weights of experts are stored, [.., N, K] in rows of K, and what they mean.

    bf16   w[n, k], bfloat16
    fp8    w[n, k] x scales[n // 128, k // 128], float8 e4m3 and float32; N and K in whole blocks
    int4   (nibble - 8) x scales[n, k // 32], uint8 [.., N, K / 2], bfloat16: biased nibbles, even k
           in the low one, as compressed-tensors checkpoints (Kimi-K2.5), vLLM and SGLang hold them

The format is known by the dtype of the weights. FlashInfer (Frost, cutlass) and TensorRT-LLM take
signed nibbles, two's complement: `flipped`. Their first product is [up, gate], that of checkpoints
[gate, up]: `halves_swapped`. Both conversions are their own inverse.

Source: facts of the formats in vLLM's and SGLang's wna16 kernels and FlashInfer's MXINT4 layer;
DeepSeek-V3's technical report (arXiv 2412.19437) for fp8 blocks.
"""

from dataclasses import dataclass
from typing import Literal

import torch

FormatName = Literal["bf16", "fp8", "int4"]
FP8_BLOCK = 128
INT4_GROUP = 32
INT4_BIAS = 8
_INT4_RMS = 4.637  # of whole numbers uniform from -8 to 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format: what N and K must be multiples of, and why; the RMS of what `drawn` means."""

    name: FormatName
    dtype: torch.dtype
    scale_dtype: torch.dtype | None
    multiple: int
    why: str
    rms: float

    def packed(self, columns: int) -> int:
        """Return the elements of `dtype` that `columns` weights take."""
        return columns // 2 if self.name == "int4" else columns

    def scale_sizes(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the sizes of the scales of [rows, columns] weights; (0,) where there are none."""
        if self.name == "fp8":
            return rows // FP8_BLOCK, columns // FP8_BLOCK
        return (rows, columns // INT4_GROUP) if self.name == "int4" else (0,)


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format(
            name="bf16",
            dtype=torch.bfloat16,
            scale_dtype=None,
            multiple=32,
            why="two of its loads",
            rms=1.0,
        ),
        Format(
            name="fp8",
            dtype=torch.float8_e4m3fn,
            scale_dtype=torch.float32,
            multiple=FP8_BLOCK,
            why="the side of a block of one scale",
            rms=1.0,
        ),
        Format(
            name="int4",
            dtype=torch.uint8,
            scale_dtype=torch.bfloat16,
            multiple=INT4_GROUP,
            why="a group of one scale",
            rms=_INT4_RMS,
        ),
    )
}


def format_of(weights: torch.Tensor) -> Format:
    """Return the format of these weights by their dtype; ValueError if there is none."""
    for one in FORMATS.values():
        if weights.dtype == one.dtype:
            return one
    known = ", ".join(f"{one.dtype} ({one.name})" for one in FORMATS.values())
    raise ValueError(f"experts of {weights.dtype} are not known; give {known}")


def why_not_sizes(name: str, *, hidden: int, intermediate: int) -> str | None:
    """Say why experts of these sizes a rank cannot be held in format `name`; None if they can.

    Both products have both sizes, one as rows and one as columns.
    """
    given = FORMATS[name]
    for size, what in ((hidden, "a hidden size"), (intermediate, "an intermediate size a rank")):
        if size % given.multiple:
            return f"{name} needs {what} that {given.multiple} divides, {given.why}; got {size}"
    return None


def drawn(
    name: str, sizes: tuple[int, ...], *, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random weights of `sizes` [.., N, K] in format `name`, and their scales.

    Normal, of int4 the nibbles uniform; scales uniform from 0.5 to 1.5, so that one in the wrong
    place shows. The RMS of what they mean is about `Format.rms`.
    """
    given, (*before, rows, columns) = FORMATS[name], sizes
    if name == "int4":
        shape = (*before, rows, given.packed(columns))
        weights = torch.randint(
            0, 256, shape, generator=generator, device=device, dtype=torch.uint8
        )
    else:
        weights = torch.randn(sizes, generator=generator, device=device, dtype=torch.bfloat16)
        weights = weights.to(given.dtype)
    scale_sizes = given.scale_sizes(rows, columns)
    if given.scale_dtype is None:
        return weights, torch.empty(scale_sizes, device=device)
    scales = torch.empty((*before, *scale_sizes), device=device, dtype=given.scale_dtype)
    return weights, scales.uniform_(0.5, 1.5, generator=generator)


def widened(weights: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what the weights mean, float64 [.., N, K]."""
    name = format_of(weights).name
    if name == "bf16":
        return weights.double()
    if name == "fp8":
        wide = scales.double().repeat_interleave(FP8_BLOCK, -1).repeat_interleave(FP8_BLOCK, -2)
        return weights.double() * wide
    nibbles = torch.stack([weights & 0xF, weights >> 4], dim=-1).flatten(-2)
    return (nibbles.double() - INT4_BIAS) * scales.double().repeat_interleave(INT4_GROUP, -1)


def unpacked(weights: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what the weights mean, rounded to bfloat16 once: [.., N, K]; bf16 as they are.

    This is what a baseline does in a call; `widened` is exact and moves eight times the bytes.
    """
    name = format_of(weights).name
    if name == "bf16":
        return weights
    if name == "fp8":
        *before, rows, columns = scales.shape
        blocks = weights.float().view(*before, rows, FP8_BLOCK, columns, FP8_BLOCK)
        return (blocks * scales[..., :, None, :, None]).bfloat16().view(weights.shape)
    nibbles = torch.stack([weights & 0xF, weights >> 4], dim=-1)
    groups = nibbles.bfloat16().view(*scales.shape, INT4_GROUP) - INT4_BIAS
    return (groups * scales[..., None]).flatten(-2)


def packed_int4(values: torch.Tensor) -> torch.Tensor:
    """Pack whole numbers from -8 to 7, [.., N, K], into biased nibbles, uint8 [.., N, K / 2]."""
    if values.numel() and (int(values.min()) < -8 or int(values.max()) > 7):
        raise ValueError("int4 holds whole numbers from -8 to 7; quantise first")
    biased = (values + INT4_BIAS).to(torch.uint8)
    return biased[..., 0::2] | (biased[..., 1::2] << 4)


def flipped(packed: torch.Tensor) -> torch.Tensor:
    """Turn biased nibbles into signed ones (two's complement), or back: the upper bit of each."""
    if packed.dtype != torch.uint8:
        raise ValueError(f"packed nibbles are uint8, not {packed.dtype}")
    return packed ^ 0x88


def halves_swapped(gate_up: torch.Tensor) -> torch.Tensor:
    """Turn [gate, up] into [up, gate], or back: weights or scales, [.., 2 rows, columns]."""
    if gate_up.dim() < 2 or gate_up.shape[-2] % 2:
        raise ValueError(f"{tuple(gate_up.shape)} has no two halves of rows: give [.., 2 I, K]")
    first, second = gate_up.chunk(2, dim=-2)
    return torch.cat([second, first], dim=-2)
