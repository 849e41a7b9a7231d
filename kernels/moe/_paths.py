"""The two ways to compute experts, and the rule between them.

    direct   for few rows: nothing is sorted. A block belongs to one choice (t, j) and a slice of
             its expert's weights; the first choice of an expert computes all rows that chose it,
             the others end at once. The weight is read once a distinct expert.
    sorted   choices are sorted by expert and padded to blocks of rows (`moe_align`), and a grouped
             product walks the blocks. The weight is read once for each block of an expert.

direct, as long as the rows of an expert are never more than one tile of a tensor-core product (16)
and all ids fit in the registers of a block: up to 16 tokens. There it saves the launches that sort,
which cost more than what they order. Beyond that an expert may have several tiles of rows, which
would take turns in one block; sorted, they are blocks of their own. By reasoning: a GPU decides.
"""

from typing import Literal

from kernels.moe._align_layout import MOST_EXPERTS, MOST_TOP_K

Path = Literal["direct", "sorted"]
PATHS: tuple[Path, ...] = ("direct", "sorted")
MOST_DIRECT_TOKENS = 16


def path_for(tokens: int) -> Path:
    """Return the path of a call of so many tokens."""
    return "direct" if tokens <= MOST_DIRECT_TOKENS else "sorted"


def why_not(path: Path, *, tokens: int, top_k: int, experts: int) -> str | None:
    """Say why our kernels cannot take this path with so many of each; None if they can."""
    if top_k > MOST_TOP_K:
        return f"top_k is {top_k}; these kernels take 1 to {MOST_TOP_K} experts a token"
    if experts > MOST_EXPERTS:
        return f"{experts} experts; these kernels take 1 to {MOST_EXPERTS}"
    if path == "direct" and tokens > MOST_DIRECT_TOKENS:
        return (
            f"{tokens} tokens; the direct path takes 1 to {MOST_DIRECT_TOKENS}, one tile of rows: "
            f"use the sorted one"
        )
    return None
