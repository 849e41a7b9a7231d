// Runs a CUDA C++ kernel on a CPU: block after block, each thread a fiber on one OS thread.
//
// A fiber runs alone until it waits at a barrier or in a warp intrinsic. What it sees of the others
// depends only on the order in which fibers run, so comparing two orders shows a missing barrier.
// Shared memory is poisoned for each block, its indices are checked, and races on it are reported.
// On a GPU this file is only two macros. README.md says what is not covered.
#pragma once

#ifdef __CUDACC__

#define SHARED_ARRAY(type, name, count) __shared__ type name[count]
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]

#else

#include <vector_functions.h>

#include <cmath>
#include <utility>

#include "_host_cuda_block.h"

#define SHARED_ARRAY(type, name, count)          \
  static host_cuda::Region name##_region{#name}; \
  const auto name = host_cuda::open<type>(name##_region, count)
#define DYNAMIC_SHARED(type, name) const auto name = host_cuda::open_dynamic<type>(#name)
#undef __shared__  // would be a local variable here: each thread would have its own
#define __shared__ use_SHARED_ARRAY_or_DYNAMIC_SHARED_instead
#undef __launch_bounds__
#define __launch_bounds__(...)

namespace host_cuda {
static uint64_t exchange(const char* what, int line, unsigned mask, uint64_t given, int source) {
  Fiber& me = fibers[current];
  if (!(mask >> current % warpSize & 1))
    fail_here(line, text("%s without its own lane in mask %08x", what, mask));
  me.mask = mask, me.given = given, me.source = source;
  wait(At::warp_intrinsic, what, line);
  return me.taken;
}

static int lane() { return current % warpSize; }

template <class T>
T shuffle(const char* what, int line, unsigned mask, T value, int source) {
  static_assert(sizeof value <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = exchange(what, line, mask, bits, source);
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T, class Change>
T atomic(T* at, Change change) {
  races.touch_is_atomic(at);
  const T old = *at;
  *at = change(old);
  return old;
}
}  // namespace host_cuda

// ---- Barriers and warp intrinsics: CUDA's, plus the line of the call ----

static void __syncthreads(int line = __builtin_LINE()) {
  host_cuda::wait(host_cuda::At::block_barrier, "__syncthreads", line);
}

static void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
  host_cuda::exchange("__syncwarp", line, mask, 0, host_cuda::ballot);
}

static unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return host_cuda::exchange("__ballot_sync", line, mask, predicate != 0, host_cuda::ballot);
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

// ---- Memory ----

template <class T>
T __ldg(const T* at) { return *at; }

static void __threadfence() {}
static void __threadfence_block() {}

template <class T>
T atomicAdd(T* at, std::common_type_t<T> value) {
  return host_cuda::atomic(at, [=](T old) { return old + value; });
}

template <class T>
T atomicMax(T* at, std::common_type_t<T> value) {
  return host_cuda::atomic(at, [=](T old) { return old < value ? value : old; });
}

template <class T>
T atomicExch(T* at, std::common_type_t<T> value) {
  return host_cuda::atomic(at, [=](T) { return value; });
}

template <class T>
T atomicCAS(T* at, std::common_type_t<T> expected, std::common_type_t<T> value) {
  return host_cuda::atomic(at, [=](T old) { return old == expected ? value : old; });
}

// ---- Arithmetic. Macros where the C library declares, or may come to declare, the same name ----

#define rsqrtf(x) (1.0f / sqrtf(x))
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __fdividef(x, y) ((x) / (y))
#define __popc(x) __builtin_popcount(x)
#define __ffs(x) __builtin_ffs(x)

template <class To, class From>
To host_cuda_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
static float __int_as_float(int bits) { return host_cuda_bits<float>(bits); }
static float __uint_as_float(unsigned bits) { return host_cuda_bits<float>(bits); }
static int __float_as_int(float value) { return host_cuda_bits<int>(value); }
static unsigned __float_as_uint(float value) { return host_cuda_bits<unsigned>(value); }

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }

template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

// ---- What the loader calls ----

namespace host_cuda {
template <class T>
std::string parameter_code() {
  if constexpr (std::is_pointer_v<T>) {
    using Element = std::remove_pointer_t<T>;
    size_t size = 0;
    if constexpr (!std::is_void_v<Element>) size = sizeof(Element);
    return (std::is_const_v<Element> ? "r" : "w") + std::to_string(size);
  }
  return (std::is_floating_point_v<T> ? "f" : std::is_integral_v<T> ? "i" : "x") +
         std::to_string(sizeof(T));
}

template <class... Parameters>
const char* parameters(void (*)(Parameters...)) {
  static std::string codes;
  codes.clear();
  ((codes += parameter_code<Parameters>() + " "), ...);
  return codes.c_str();
}

template <class... Parameters, size_t... I>
void call(void (*kernel)(Parameters...), std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<Parameters>*>(launched.arguments[I])...);
}

template <auto kernel, class... Parameters>
const char* launch(void (*)(Parameters...), const Launch& how) {
  return run_grid(how, [] { call(kernel, std::index_sequence_for<Parameters...>()); });
}
}  // namespace host_cuda

#define HOST_CUDA_ENTRY(...)                                                \
  extern "C" const char* host_cuda_launch(const host_cuda::Launch* how) {   \
    return host_cuda::launch<(__VA_ARGS__)>(__VA_ARGS__, *how);             \
  }                                                                         \
  extern "C" const char* host_cuda_parameters() { return host_cuda::parameters(__VA_ARGS__); }

#endif
