// What a CUDA C++ kernel sees when it is compiled for this CPU.
//
// Shared memory is poisoned for each block, its indices are checked, and races on it are reported.
// kernels/_host_cuda.py says what is watched and what is not there.
#pragma once

#include <vector_functions.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "_host_cuda_block.h"

#define SHARED_ARRAY(type, name, count)          \
  static host_cuda::Region name##_region{#name}; \
  const auto name = host_cuda::open<type>(name##_region, count)
#define DYNAMIC_SHARED(type, name) const auto name = host_cuda::open_dynamic<type>(#name)
#define SHARED_AS(type, part) host_cuda::seen_as<type>(part)
#undef __shared__  // would be a local variable here: each thread would have its own
#define __shared__ use_SHARED_ARRAY_or_DYNAMIC_SHARED_instead
#undef __launch_bounds__
#define __launch_bounds__(...)

namespace host_cuda {

// Any integer, and the line of the expression that it stands in.
struct Index {
  int64_t value;
  int line;
  template <class I>
  Index(I integer, int call_line = __builtin_LINE()) : value(integer), line(call_line) {}
};

// Stands for a `T*` into shared memory. As a bare `T*` it is held only by the guards around it.
template <class T>
class Shared {
 public:
  Shared(const char* name, T* begin, T* end, T* here)
      : name_(name), begin_(begin), end_(end), here_(here) {}

  T& operator[](Index at) const {
    T* const element = here_ + at.value;
    if (element < begin_ || element >= end_)
      fail_here(at.line, "%s[%td] is out of bounds: it has %td elements", name_, element - begin_,
                end_ - begin_);
    touch(element, sizeof(T), at.line);
    return *element;
  }
  Shared operator+(int64_t count) const { return {name_, begin_, end_, here_ + count}; }
  Shared operator-(int64_t count) const { return *this + -count; }
  template <class U, class = std::enable_if_t<std::is_convertible_v<T*, U*>>>
  operator U*() const { return here_; }
  const void* origin() const { return begin_; }

  // The address of `size` bytes from here on, all of them in bounds; touches nothing.
  T* reach(size_t size, int line) const {
    const ptrdiff_t first = (here_ - begin_) * ptrdiff_t(sizeof(T));
    const ptrdiff_t all = (end_ - begin_) * ptrdiff_t(sizeof(T));
    if (first < 0 || first + ptrdiff_t(size) > all)
      fail_here(line, "bytes %td to %td of %s are out of bounds: it has %td", first,
                first + ptrdiff_t(size) - 1, name_, all);
    return here_;
  }

  // The same memory as elements of another type, from here on.
  template <class U>
  Shared<U> as() const {
    U* const first = reinterpret_cast<U*>(here_);
    return {name_, first, first + (end_ - here_) * sizeof(T) / sizeof(U), first};
  }

 private:
  const char* name_;
  T *begin_, *end_, *here_;
};

template <class T>
Shared<T> open(Region& region, size_t count) {
  constexpr bool integer = std::is_integral_v<T> && sizeof(T) > 1;
  T* const begin = static_cast<T*>(opened(region, count * sizeof(T), integer));
  return {region.name, begin, begin + count, begin};
}

template <class T>
Shared<T> open_dynamic(const char* name) {
  dynamic_region.name = name;
  return open<T>(dynamic_region, launched().shared_bytes / sizeof(T));
}

template <class U, class T>
Shared<U> seen_as(const Shared<T>& part) { return part.template as<U>(); }

template <class T>
T shuffle(const char* what, int line, unsigned mask, T value, int source) {
  static_assert(sizeof value <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = exchange(what, line, mask, bits, source);
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T, class Join>
T reduced(const char* what, int line, unsigned mask, T value, Join join) {
  T result = value;
  bool first = true;
  for (int source = 0; source < warpSize; source++) {
    if (!(mask >> source & 1)) continue;
    const T other = shuffle(what, line, mask, value, source);
    result = first ? other : join(result, other);
    first = false;
  }
  return result;
}

template <class T, class Change>
T atomic(T* at, Change change) {
  touch_is_atomic(at, sizeof(T));
  const T old = *at;
  *at = change(old);
  return old;
}

template <class To, class From>
To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
}  // namespace host_cuda

// ---- Barriers and warp intrinsics: CUDA's, plus the line of the call ----

static void __syncthreads(int line = __builtin_LINE()) {
  host_cuda::block_barrier("__syncthreads", line, false);
}

static int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  return host_cuda::block_barrier("__syncthreads_count", line, predicate != 0).yes;
}

static int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return host_cuda::block_barrier("__syncthreads_or", line, predicate != 0).yes > 0;
}

static int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  const auto votes = host_cuda::block_barrier("__syncthreads_and", line, predicate != 0);
  return votes.yes == votes.threads;
}

static void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
  host_cuda::exchange("__syncwarp", line, mask, 0, host_cuda::ballot);
}

static unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return host_cuda::exchange("__ballot_sync", line, mask, predicate != 0, host_cuda::ballot);
}

static int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return host_cuda::exchange("__any_sync", line, mask, predicate != 0, host_cuda::ballot) != 0;
}

static int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return host_cuda::exchange("__all_sync", line, mask, predicate == 0, host_cuda::ballot) == 0;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              int line = __builtin_LINE()) {
  const int first = host_cuda::lane() & -width;
  return host_cuda::shuffle("__shfl_sync", line, mask, value, first + (source & (width - 1)));
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 int line = __builtin_LINE()) {
  const int lane = host_cuda::lane(), source = lane - int(delta);
  const bool inside = source >= (lane & -width);
  return host_cuda::shuffle("__shfl_up_sync", line, mask, value, inside ? source : lane);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   int line = __builtin_LINE()) {
  const int lane = host_cuda::lane(), source = lane + int(delta);
  const bool inside = source < (lane & -width) + width;
  return host_cuda::shuffle("__shfl_down_sync", line, mask, value, inside ? source : lane);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize,
                  int line = __builtin_LINE()) {
  const int lane = host_cuda::lane(), source = lane ^ lanes;
  const bool inside = source < (lane & -width) + width;
  return host_cuda::shuffle("__shfl_xor_sync", line, mask, value, inside ? source : lane);
}

#define HOST_CUDA_REDUCE(name, expression)                                                  \
  template <class T>                                                                        \
  T name(unsigned mask, T value, int line = __builtin_LINE()) {                             \
    static_assert(std::is_integral_v<T> && sizeof(T) == 4, #name " takes 32-bit integers"); \
    return host_cuda::reduced(#name, line, mask, value,                                     \
                              [](T a, T b) { return expression; });                         \
  }
HOST_CUDA_REDUCE(__reduce_add_sync, a + b)
HOST_CUDA_REDUCE(__reduce_min_sync, a < b ? a : b)
HOST_CUDA_REDUCE(__reduce_max_sync, a < b ? b : a)
HOST_CUDA_REDUCE(__reduce_and_sync, a & b)
HOST_CUDA_REDUCE(__reduce_or_sync, a | b)
HOST_CUDA_REDUCE(__reduce_xor_sync, a ^ b)

// ---- Memory: cache hints change nothing here ----

#define HOST_CUDA_LOAD(name) \
  template <class T>         \
  T name(const T* at) { return *at; }
HOST_CUDA_LOAD(__ldg)
HOST_CUDA_LOAD(__ldca)
HOST_CUDA_LOAD(__ldcg)
HOST_CUDA_LOAD(__ldcs)
HOST_CUDA_LOAD(__ldlu)
HOST_CUDA_LOAD(__ldcv)

#define HOST_CUDA_STORE(name) \
  template <class T>          \
  void name(T* at, std::common_type_t<T> value) { *at = value; }
HOST_CUDA_STORE(__stwb)
HOST_CUDA_STORE(__stcg)
HOST_CUDA_STORE(__stcs)
HOST_CUDA_STORE(__stwt)

static void __threadfence() {}
static void __threadfence_block() {}

#define HOST_CUDA_ATOMIC(name, expression)                                 \
  template <class T>                                                       \
  T name(T* at, std::common_type_t<T> value) {                             \
    return host_cuda::atomic(at, [=](T old) { return T(expression); });    \
  }
HOST_CUDA_ATOMIC(atomicAdd, old + value)
HOST_CUDA_ATOMIC(atomicSub, old - value)
HOST_CUDA_ATOMIC(atomicMin, value < old ? value : old)
HOST_CUDA_ATOMIC(atomicMax, old < value ? value : old)
HOST_CUDA_ATOMIC(atomicAnd, old & value)
HOST_CUDA_ATOMIC(atomicOr, old | value)
HOST_CUDA_ATOMIC(atomicXor, old ^ value)
HOST_CUDA_ATOMIC(atomicExch, ((void)old, value))
HOST_CUDA_ATOMIC(atomicInc, old >= value ? 0 : old + 1)

template <class T>
T atomicCAS(T* at, std::common_type_t<T> expected, std::common_type_t<T> value) {
  return host_cuda::atomic(at, [=](T old) { return old == expected ? value : old; });
}

// ---- Arithmetic. Macros where the C library declares, or may come to declare, the same name ----

#define rsqrtf(x) (1.0f / sqrtf(x))
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __fdividef(x, y) ((x) / (y))
#define __frcp_rn(x) (1.0f / (x))
#define __fsqrt_rn(x) sqrtf(x)
#define __fadd_rn(x, y) ((x) + (y))
#define __fmul_rn(x, y) ((x) * (y))
#define __fmaf_rn(x, y, z) fmaf(x, y, z)
#define __saturatef(x) fminf(fmaxf(x, 0.0f), 1.0f)
#define __float2int_rn(x) int(nearbyintf(x))
#define __float2int_rz(x) int(x)
#define __float2int_rd(x) int(floorf(x))
#define __float2int_ru(x) int(ceilf(x))
#define __int2float_rn(x) float(int(x))
#define __uint2float_rn(x) float(unsigned(x))
#define __popc(x) __builtin_popcount(x)
#define __popcll(x) __builtin_popcountll(x)
#define __ffs(x) __builtin_ffs(x)
#define __ffsll(x) __builtin_ffsll(x)
#define __trap() host_cuda::fail_here(__LINE__, "__trap")

static int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
static int __clzll(long long bits) { return bits ? __builtin_clzll(bits) : 64; }

static float __int_as_float(int bits) { return host_cuda::bits_as<float>(bits); }
static float __uint_as_float(unsigned bits) { return host_cuda::bits_as<float>(bits); }
static int __float_as_int(float value) { return host_cuda::bits_as<int>(value); }
static unsigned __float_as_uint(float value) { return host_cuda::bits_as<unsigned>(value); }

// Four bytes of the eight in `low` and `high`, chosen by the nibbles of `selector`.
static unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned result = 0;
  for (int n = 0; n < 4; n++) {
    const unsigned nibble = selector >> 4 * n & 0xF;
    unsigned byte = bytes >> 8 * (nibble & 7) & 0xFF;
    if (nibble & 8) byte = byte & 0x80 ? 0xFF : 0;  // its sign, repeated
    result |= byte << 8 * n;
  }
  return result;
}

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }

template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

// ---- What the loader calls ----

namespace host_cuda {
template <class T>
constexpr char kind_of() {
  if constexpr (std::is_pointer_v<T>) return std::is_const_v<std::remove_pointer_t<T>> ? 'r' : 'w';
  return std::is_floating_point_v<T> ? 'f' : std::is_integral_v<T> ? 'i' : 'x';
}

template <class T>
constexpr int size_of() {
  using Element = std::remove_pointer_t<T>;
  if constexpr (std::is_void_v<Element>) return 0;
  else return sizeof(Element);
}

template <class... Parameters>
const char* parameters(void (*)(Parameters...)) {
  static char codes[16 * sizeof...(Parameters) + 1];
  char* end = codes;
  ((end += snprintf(end, 16, "%c%d ", kind_of<Parameters>(), size_of<Parameters>())), ...);
  return codes;
}

template <class... Parameters, size_t... I>
void call(void (*kernel)(Parameters...), std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<Parameters>*>(launched().arguments[I])...);
}

template <auto kernel, class... Parameters>
const char* launch(void (*)(Parameters...), const Launch& how) {
  return run_grid(how, [] { call(kernel, std::index_sequence_for<Parameters...>()); });
}
}  // namespace host_cuda

#define HOST_CUDA_EXPORT extern "C" __attribute__((visibility("default")))
#define HOST_CUDA_ENTRY(...)                                                     \
  HOST_CUDA_EXPORT const char* host_cuda_launch(const host_cuda::Launch* how) {  \
    return host_cuda::launch<(__VA_ARGS__)>(__VA_ARGS__, *how);                  \
  }                                                                              \
  HOST_CUDA_EXPORT const char* host_cuda_parameters() {                          \
    return host_cuda::parameters(__VA_ARGS__);                                   \
  }
