"""Attention of draft tokens over a paged cache, and what merges its parts."""
