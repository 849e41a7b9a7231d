"""What surrounds verify attention: trees, their masks, and which drafts are accepted."""

from kernels._trees import TREES, depths, mask_words, tree

__all__ = ["TREES", "depths", "mask_words", "tree"]
