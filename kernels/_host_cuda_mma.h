// PTX's mma.sync.m16n8k16 of bfloat16, summed in float, for this CPU: see _mma_cuda.py.
//
// All lanes of a warp take part, at one line. Which lane holds which element is what PTX says.
// Products are exact; each sum is rounded to float, by rising k, where a GPU may keep other bits
// and add in another order.
#pragma once

#include "_host_cuda.h"

namespace host_cuda {

struct MmaOfLane {
  float* d;
  const unsigned* a;
  unsigned b[2];
  const float* c;
};

// Element `which` of the two in a register.
inline float bfloat16_of(unsigned pair, int which) {
  return bits_as<float>(which ? pair & 0xFFFF0000u : pair << 16);
}

inline void mma_of_warp(const char*, int, const void* const* given) {
  const auto of = [=](int lane) { return *static_cast<const MmaOfLane*>(given[lane]); };
  float a[16][16], b[16][8], sum[16][8];
  for (int lane = 0; lane < warpSize; lane++) {
    const int group = lane / 4, place = lane % 4 * 2;
    for (int which = 0; which < 2; which++) {
      for (int i = 0; i < 4; i++)
        a[group + i % 2 * 8][place + i / 2 * 8 + which] = bfloat16_of(of(lane).a[i], which);
      for (int i = 0; i < 2; i++)
        b[place + i * 8 + which][group] = bfloat16_of(of(lane).b[i], which);
    }
    for (int i = 0; i < 4; i++) sum[group + i / 2 * 8][place + i % 2] = of(lane).c[i];
  }
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++)
      for (int column = 0; column < 8; column++) sum[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < warpSize; lane++)
    for (int i = 0; i < 4; i++)
      of(lane).d[i] = sum[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}
}  // namespace host_cuda

inline void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                        const float (&c)[4], int line = __builtin_LINE()) {
  const host_cuda::MmaOfLane given{d, a, {b0, b1}, c};
  host_cuda::whole_warp("mma_16x8x16", line, &given, host_cuda::mma_of_warp);
}

inline unsigned masked_or(unsigned word, unsigned mask, unsigned with) { return (word & mask) | with; }
