// nvcuda::wmma for this CPU: 16 x 16 x 16, products of __half or __nv_bfloat16 summed in float.
//
// A kernel gets this file for its `#include <mma.h>`. What CUDA leaves undefined is a fault here:
// a lane that takes no part or gives other arguments, an address that is no multiple of 32 bytes,
// a leading dimension that is none of 16 bytes or below 16 (the least stride of PTX's wmma.load),
// shared memory left or raced on. CUDA does not say which lane holds which element; here that
// changes with the thread order, so that a kernel that relies on it leaves other bytes. Products
// are exact; each sum is rounded to float, by rising k, where a GPU may keep other bits and add in
// another order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "_host_cuda.h"

namespace host_cuda {

constexpr int tile = 16;

// The line of a call: no number that a kernel gives turns into one.
struct Line {
  int number;
  explicit Line(int line) : number(line) {}
};

// The elements that a lane holds; poisoned as shared memory is, until they are filled or loaded.
template <class T, int size, int number>
struct Fragment {
  using element_type = T;
  using storage_element_type = T;
  enum { num_elements = size, num_storage_elements = size };
  static constexpr int kind = number;
  T x[size];
  Fragment() { memset(static_cast<void*>(x), launched().order % 2 ? 0x7F : 0xFF, sizeof x); }
};

// A `T*`, bare or into shared memory; `origin` lies in the memory that it must not leave.
template <class T>
struct Pointer {
  T* to;
  const void* origin;
  Pointer(T* pointer) : to(pointer), origin(pointer) {}
  Pointer(const Shared<std::remove_const_t<T>>& shared) : to(shared), origin(shared.origin()) {}
};

template <class T>
struct Given {  // keeps T from being deduced here, so that a conversion to it is found
  using type = T;
};

// The element of the tile that a lane holds as x[i]: another one in each order and kind.
inline int element_of(int kind, int lane, int i, int count) {
  const int order = launched().order % 16;
  const int step = 2 * (order * 45 + kind * 22) + 77;  // odd, so that each element has a place
  return ((lane * count + i) * step + order * 89 + kind * 57) % (tile * tile);
}

// What one lane gives to a load or a store.
struct Transfer {
  void *elements, *memory;
  const void* origin;
  unsigned ldm;
  bool rows;  // elements of a row lie side by side
};

template <class Frag, bool store>
void transfer(const char* what, int line, const void* const* given) {
  using T = typename Frag::element_type;
  const auto of_lane = [=](int lane) { return *static_cast<const Transfer*>(given[lane]); };
  const Transfer first = of_lane(0);
  for (int lane = 1; lane < warpSize; lane++) {
    const Transfer other = of_lane(lane);
    const char* different = other.memory != first.memory ? "addresses"
                            : other.ldm != first.ldm     ? "leading dimensions"
                            : other.rows != first.rows   ? "layouts"
                                                         : nullptr;
    if (different) fail_here(line, "%s: lanes 0 and %d give different %s", what, lane, different);
  }
  if (const unsigned past = reinterpret_cast<uintptr_t>(first.memory) % 32)
    fail_here(line, "%s at an address %u bytes past a multiple of 32", what, past);
  if (first.ldm * sizeof(T) % 16 || first.ldm < tile)
    fail_here(line, "%s with a leading dimension of %u: give a multiple of %zu, at least %d", what,
              first.ldm, 16 / sizeof(T), tile);
  T* const memory = static_cast<T*>(first.memory);
  for (int n = 0; n < tile; n++)
    touch_by_warp(what, line, memory + size_t(n) * first.ldm, tile * sizeof(T), first.origin,
                  store);
  for (int lane = 0; lane < warpSize; lane++) {
    T* const x = static_cast<T*>(of_lane(lane).elements);
    for (int i = 0; i < Frag::num_elements; i++) {
      const int element = element_of(Frag::kind, lane, i, Frag::num_elements);
      const size_t row = element / tile, column = element % tile;
      T& there = memory[first.rows ? row * first.ldm + column : column * first.ldm + row];
      store ? there = x[i] : x[i] = there;
    }
  }
}

// Puts together what the lanes hold. Elements held twice must be equal to the bit.
template <class Frag>
void gather(const char* what, int line, const Frag* const (&lanes)[warpSize], float* values) {
  bool held[tile * tile] = {};
  for (int lane = 0; lane < warpSize; lane++)
    for (int i = 0; i < Frag::num_elements; i++) {
      const int element = element_of(Frag::kind, lane, i, Frag::num_elements);
      const float value = lanes[lane]->x[i];
      if (held[element] && memcmp(&values[element], &value, sizeof value) != 0)
        fail_here(line, "%s: a fragment holds %g and %g as one element; treat all x[i] alike", what,
                  values[element], value);
      values[element] = value, held[element] = true;
    }
}

// What one lane gives to a product.
template <class D, class A, class B>
struct Factors {
  D* d;
  const A* a;
  const B* b;
  const D* c;
};

template <class D, class A, class B>
void multiply(const char* what, int line, const void* const* given) {
  const A* as[warpSize];
  const B* bs[warpSize];
  const D* cs[warpSize];
  for (int lane = 0; lane < warpSize; lane++) {
    const auto* mine = static_cast<const Factors<D, A, B>*>(given[lane]);
    as[lane] = mine->a, bs[lane] = mine->b, cs[lane] = mine->c;
  }
  float a[tile * tile], b[tile * tile], sum[tile * tile];
  gather(what, line, as, a), gather(what, line, bs, b), gather(what, line, cs, sum);
  for (int row = 0; row < tile; row++)
    for (int k = 0; k < tile; k++)
      for (int column = 0; column < tile; column++)
        sum[row * tile + column] += a[row * tile + k] * b[k * tile + column];
  for (int lane = 0; lane < warpSize; lane++)
    for (int i = 0; i < D::num_elements; i++)
      static_cast<const Factors<D, A, B>*>(given[lane])->d->x[i] =
          sum[element_of(D::kind, lane, i, D::num_elements)];
}

// Filling waits for nobody in CUDA, but a tile with two constants has no meaning.
template <class Frag>
void fill(const char* what, int line, const void* const* given) {
  using T = typename Frag::element_type;
  for (int lane = 1; lane < warpSize; lane++)
    if (memcmp(given[lane], given[0], sizeof(T)) != 0)
      fail_here(line, "%s: lanes 0 and %d give different values", what, lane);
}
}  // namespace host_cuda

namespace nvcuda {
namespace wmma {

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k, class T, class Layout = void>
class fragment;  // what is not defined here is not there, or is not in CUDA

#define HOST_CUDA_FRAGMENT(use, T, layout, size, kind) \
  template <>                                          \
  class fragment<use, 16, 16, 16, T, layout> : public host_cuda::Fragment<T, size, kind> {};
// As on a GPU, a __half of a factor is held twice.
HOST_CUDA_FRAGMENT(matrix_a, __half, row_major, 16, 0)
HOST_CUDA_FRAGMENT(matrix_a, __half, col_major, 16, 1)
HOST_CUDA_FRAGMENT(matrix_b, __half, row_major, 16, 2)
HOST_CUDA_FRAGMENT(matrix_b, __half, col_major, 16, 3)
HOST_CUDA_FRAGMENT(matrix_a, __nv_bfloat16, row_major, 8, 4)
HOST_CUDA_FRAGMENT(matrix_a, __nv_bfloat16, col_major, 8, 5)
HOST_CUDA_FRAGMENT(matrix_b, __nv_bfloat16, row_major, 8, 6)
HOST_CUDA_FRAGMENT(matrix_b, __nv_bfloat16, col_major, 8, 7)
HOST_CUDA_FRAGMENT(accumulator, float, void, 8, 8)

template <class Use, class T, class Layout>
void fill_fragment(fragment<Use, 16, 16, 16, T, Layout>& it,
                   const typename host_cuda::Given<T>::type& value,
                   host_cuda::Line line = host_cuda::Line(__builtin_LINE())) {
  host_cuda::whole_warp("fill_fragment", line.number, &value,
                        host_cuda::fill<fragment<Use, 16, 16, 16, T, Layout>>);
  for (T& element : it.x) element = value;
}

template <class Use, class T, class Layout, class = std::enable_if_t<!std::is_void_v<Layout>>>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& it,
                      typename host_cuda::Given<host_cuda::Pointer<const T>>::type from,
                      unsigned ldm, host_cuda::Line line = host_cuda::Line(__builtin_LINE())) {
  const host_cuda::Transfer given{it.x, const_cast<T*>(from.to), from.origin, ldm,
                                  std::is_same_v<Layout, row_major>};
  host_cuda::whole_warp("load_matrix_sync", line.number, &given,
                        host_cuda::transfer<fragment<Use, 16, 16, 16, T, Layout>, false>);
}

template <class T>
void load_matrix_sync(fragment<accumulator, 16, 16, 16, T>& it,
                      typename host_cuda::Given<host_cuda::Pointer<const T>>::type from,
                      unsigned ldm, layout_t layout,
                      host_cuda::Line line = host_cuda::Line(__builtin_LINE())) {
  const host_cuda::Transfer given{it.x, const_cast<T*>(from.to), from.origin, ldm,
                                  layout == mem_row_major};
  host_cuda::whole_warp("load_matrix_sync", line.number, &given,
                        host_cuda::transfer<fragment<accumulator, 16, 16, 16, T>, false>);
}

template <class T>
void store_matrix_sync(typename host_cuda::Given<host_cuda::Pointer<T>>::type to,
                       const fragment<accumulator, 16, 16, 16, T>& it, unsigned ldm,
                       layout_t layout, host_cuda::Line line = host_cuda::Line(__builtin_LINE())) {
  const host_cuda::Transfer given{const_cast<T*>(it.x), to.to, to.origin, ldm,
                                  layout == mem_row_major};
  host_cuda::whole_warp("store_matrix_sync", line.number, &given,
                        host_cuda::transfer<fragment<accumulator, 16, 16, 16, T>, true>);
}

template <class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d,
              const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b,
              const fragment<accumulator, 16, 16, 16, float>& c,
              host_cuda::Line line = host_cuda::Line(__builtin_LINE())) {
  using A = fragment<matrix_a, 16, 16, 16, T, LayoutA>;
  using B = fragment<matrix_b, 16, 16, 16, T, LayoutB>;
  using D = fragment<accumulator, 16, 16, 16, float>;
  const host_cuda::Factors<D, A, B> given{&d, &a, &b, &c};
  host_cuda::whole_warp("mma_sync", line.number, &given, host_cuda::multiply<D, A, B>);
}
}  // namespace wmma
}  // namespace nvcuda
