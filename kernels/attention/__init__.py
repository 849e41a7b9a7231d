"""Attention of draft tokens over a paged cache, and what merges its parts."""

from kernels.attention._paged import Layout, lay_out, signed_words

__all__ = ["Layout", "lay_out", "signed_words"]
