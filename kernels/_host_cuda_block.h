// The machine that a kernel runs on, as its translation unit sees it; see _host_cuda_block.cpp.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace host_cuda {

constexpr int ballot = -1;  // in place of a source lane

struct Launch {
  unsigned grid[3], block[3];
  uint64_t shared_bytes, order;
  void** arguments;
};

// Shared memory that one declaration names, between two guards.
struct Region {
  const char* name;
  unsigned char* memory = nullptr;
  size_t size = 0;
  uint64_t block = 0;  // that it was poisoned for
};

extern Region dynamic_region;

// Runs all threads of all blocks; returns the first fault, or an empty text.
const char* run_grid(const Launch& how, void (*call)());
const Launch& launched();
uint64_t this_block();  // a number that no other block has, of this launch or another
int lane();

// Ends the running thread, and with it the launch.
[[noreturn, gnu::format(printf, 2, 3)]] void fail_here(int line, const char* format, ...);

// Returns the memory of `region`, poisoned if no thread of this block has opened it before.
void* opened(Region& region, size_t size, bool integer);
void touch(const void* element, size_t size, int line);
void touch_is_atomic(const void* element, size_t size);

// Waits for the lanes in `mask`; returns what `source` gave there, or with `ballot` the votes.
uint64_t exchange(const char* what, int line, unsigned mask, uint64_t given, int source);

// Waits for all lanes of the warp at one line, where the last one to come calls `act` with what
// each lane gave. A lane that never comes is a deadlock.
using WarpAct = void (*)(const char* what, int line, const void* const* given);
void whole_warp(const char* what, int line, const void* given, WarpAct act);

// Within `act`: the warp reads or writes `size` bytes, which must be inside the shared memory that
// holds `origin`, if any does.
void touch_by_warp(const char* what, int line, const void* at, size_t size, const void* origin,
                   bool wrote);

// Waits for all threads of the block; returns how many are there and how many of them gave true.
struct Votes {
  int threads, yes;
};
Votes block_barrier(const char* what, int line, bool given);

}  // namespace host_cuda
