"""What the mask kernels in CUDA C++ share: sums over the requests before, and a wide fill.

Each warp adds up the requests before its own for itself, by shuffles; no barrier is needed. Most of
a mask is the prefix, which is all ones: 16 bytes a thread between two edges of single bytes.
"""

DEVICE_CODE = """
__device__ inline long long columns(const int* prefix_lens, const int request, const int tokens) {
  return (long long)max(0, prefix_lens[request]) + tokens;
}

// The bits of the requests before this one, each rounded up to a multiple of `unit`, in units.
__device__ inline long long units_before(
    const int* prefix_lens, const int request, const int tokens, const int unit) {
  long long sum = 0;
  for (int before = threadIdx.x % 32; before < request; before += 32)
    sum += (tokens * columns(prefix_lens, before, tokens) + unit - 1) / unit;
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// Sets bytes [first, last) to `value`, by this block; `bytes` lies on 16 bytes.
__device__ inline void fill(
    unsigned char* bytes, const long long first, const long long last, const unsigned value) {
  const unsigned four = value * 0x01010101u;
  const long long wide = min(last, (first + 15) / 16 * 16), end = max(wide, last / 16 * 16);
  for (long long at = first + threadIdx.x; at < wide; at += blockDim.x) bytes[at] = value;
  for (long long at = wide + 16 * threadIdx.x; at < end; at += 16 * blockDim.x)
    *reinterpret_cast<uint4*>(bytes + at) = make_uint4(four, four, four, four);
  for (long long at = end + threadIdx.x; at < last; at += blockDim.x) bytes[at] = value;
}

// The share of block `blockIdx.x` of gridDim.x in the bytes [first, last): fills it.
__device__ inline void fill_share(
    unsigned char* bytes, const long long first, const long long last, const unsigned value) {
  const long long share = ((last - first + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
  const long long mine = first + blockIdx.x * share;
  fill(bytes, mine, min(last, mine + share), value);
}
"""
THREADS = 128
