// cp.async for this CPU, by the functions of cuda_pipeline_primitives.h.
//
// A kernel gets this file for its `#include <cuda_pipeline_primitives.h>`. A copy may happen at any
// time from its start to the wait for it: here at the wait in even thread orders, at the start in
// odd ones, so that a kernel that reads too early, or refills what others still read, leaves other
// bytes or races. As on a GPU a thread waits for its own copies alone; a barrier shows them to
// others. Sizes, alignment and the bounds of shared memory are checked. A copy that nobody waits
// for never happens in even orders.
#pragma once

#include <deque>
#include <vector>

#include "_host_cuda.h"

namespace host_cuda {

struct AsyncCopy {
  void* to;
  const void* from;
  size_t size, zeros;  // the last `zeros` bytes become 0, and are not read
  int line;
  void happen() const {
    touch(to, size, line);
    memcpy(to, from, size - zeros);
    memset(static_cast<char*>(to) + size - zeros, 0, zeros);
  }
};

// What one thread has under way.
struct AsyncCopies {
  uint64_t block = 0;  // that they belong to
  std::vector<AsyncCopy> started;
  std::deque<std::vector<AsyncCopy>> committed;
};

inline AsyncCopies& my_copies() {
  static std::vector<AsyncCopies> of_threads(1024);
  AsyncCopies& mine =
      of_threads[(threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x];
  if (mine.block != this_block()) mine = AsyncCopies{this_block(), {}, {}};
  return mine;
}
}  // namespace host_cuda

template <class T>
void __pipeline_memcpy_async(const host_cuda::Shared<T>& to, const void* from, size_t size,
                             size_t zfill = 0, int line = __builtin_LINE()) {
  constexpr const char* what = "__pipeline_memcpy_async";
  if ((size != 4 && size != 8 && size != 16) || zfill > size)
    host_cuda::fail_here(line, "%s of %zu bytes, %zu of them 0: copy 4, 8 or 16", what, size,
                         zfill);
  const host_cuda::AsyncCopy copy{to.reach(size, line), from, size, zfill, line};
  for (const void* address : {static_cast<const void*>(copy.to), from})
    if (const unsigned past = reinterpret_cast<uintptr_t>(address) % size)
      host_cuda::fail_here(line, "%s %s an address %u bytes past a multiple of %zu", what,
                           address == from ? "from" : "to", past, size);
  if (host_cuda::launched().order % 2) copy.happen();
  else host_cuda::my_copies().started.push_back(copy);
}

inline void __pipeline_commit() {
  host_cuda::AsyncCopies& mine = host_cuda::my_copies();
  mine.committed.push_back(std::move(mine.started));
  mine.started.clear();
}

inline void __pipeline_wait_prior(size_t prior) {
  host_cuda::AsyncCopies& mine = host_cuda::my_copies();
  for (; mine.committed.size() > prior; mine.committed.pop_front())
    for (const host_cuda::AsyncCopy& copy : mine.committed.front()) copy.happen();
}
