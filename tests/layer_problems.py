"""What the tests of a layer's small ops share: which implementations there are, and numbers."""

import torch

from kernels import all_ops
from tests.op_runs import DEVICE

ALL = ("torch", "triton", "cupy")
OWN = ("triton", "cupy")

all_ops()  # adds the implementations of every file


def normal(*sizes: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Return the same normal numbers on every call."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(sizes, generator=generator, device=DEVICE, dtype=dtype)
