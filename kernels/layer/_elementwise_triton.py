"""What the kernels of this folder share in Triton."""

import triton
import triton.language as tl


@triton.jit
def gated(gate, up):
    """Return silu(gate) * up, of float32."""
    return gate / (1.0 + tl.exp(-gate)) * up
