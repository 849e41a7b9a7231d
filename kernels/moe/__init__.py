"""Experts of a verify pass: which a token chooses, in which order, and what they compute."""

from kernels.moe._formats import (
    FORMATS,
    FP8_BLOCK,
    INT4_GROUP,
    FormatName,
    drawn,
    why_not_sizes,
)

__all__ = ["FORMATS", "FP8_BLOCK", "INT4_GROUP", "FormatName", "drawn", "why_not_sizes"]
