"""A product on tensor cores whose fragments lie in known registers, for CUDA C++.

    mma_16x8x16(d, a, b0, b1, c)    d [16, 8] = a [16, 16] x b [16, 8] + c, by a warp

a and b are bfloat16, two a register, the lower half first; c and d are float, and may be one array.
Lane 4 g + p holds, as PTX says of mma.sync.m16n8k16,

    a[0..3]  rows g, g + 8, g, g + 8; of k 2 p and 2 p + 1, in a[2] and a[3] 8 further
    b0, b1   column g, of k 2 p and 2 p + 1, and 8 further
    c, d     row g, columns 2 p and 2 p + 1; in [2] and [3] row g + 8

so a weight can be unpacked in the registers that multiply it, where `nvcuda::wmma` takes factors
from memory alone. Which k a lane holds is the caller's to choose: any order that a and b share.


    masked_or(word, mask, with)     word & mask | with, in one instruction: of two constants the
                                    compiler makes two

There is no CUDA C++ for these, so they are PTX on a GPU, and `_host_cuda_mma.h` on the host runner.
"""

MMA = r"""
#ifdef __CUDA_ARCH__
__device__ inline void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned b0,
                                   const unsigned b1, const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}
__device__ inline unsigned masked_or(const unsigned word, const unsigned mask,
                                     const unsigned with) {
  unsigned joined;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(joined) : "r"(word), "r"(mask), "r"(with));
  return joined;
}
#else
#include "_host_cuda_mma.h"
#endif
"""
