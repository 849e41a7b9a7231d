"""What the kernels of this folder share in CUDA C++; wants the macros of `_elements_cuda` before.

VECTORS: 16 bytes of memory as eight floats, and back. GATED: silu(gate) * up.
"""

VECTOR = 8  # elements of 16 bits
VECTOR_BYTES = 16

VECTORS = """
struct Eight { float at[8]; };

__device__ inline Eight widened(const uint4 bits) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
  Eight wide;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 two = WIDEN(reinterpret_cast<const PAIR&>(words[i]));
    wide.at[2 * i] = two.x;
    wide.at[2 * i + 1] = two.y;
  }
  return wide;
}

// Rounded to nearest, ties to even.
__device__ inline uint4 narrowed(const Eight& wide) {
  alignas(16) ELEMENT out[8];
#pragma unroll
  for (int i = 0; i < 8; i++) out[i] = NARROW(wide.at[i]);
  return *reinterpret_cast<const uint4*>(out);
}

__device__ inline uint4 load_vector(const ELEMENT* from) {
  return *reinterpret_cast<const uint4*>(from);
}

__device__ inline void store_vector(ELEMENT* to, const uint4 bits) {
  *reinterpret_cast<uint4*>(to) = bits;
}
"""

GATED = """
__device__ inline float gated(const float gate, const float up) {
  return gate / (1.f + __expf(-gate)) * up;
}
"""


def why_not_width(width: int) -> str | None:
    """Say why rows of this width cannot be read 16 bytes at a time; None if they can."""
    if width % VECTOR == 0:
        return None
    return f"a width of {width} is no multiple of {VECTOR}, the {VECTOR_BYTES} bytes of a load"
