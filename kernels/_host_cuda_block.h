// The machine behind host_cuda.h: shared memory, fibers, and the order in which they run.
#pragma once

#include <ucontext.h>
#include <vector_types.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "_host_cuda_races.h"

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace host_cuda {

constexpr size_t stack_bytes = 256 * 1024, guard_bytes = 256;
constexpr unsigned char guard_pattern = 0xA5;
constexpr int ballot = -1;  // in place of a source lane

enum class At { ready, block_barrier, warp_intrinsic, returned };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[stack_bytes]};  // not zeroed: untouched pages cost nothing
  uint3 index;
  At at;
  const char* what;  // the intrinsic that it waits in
  int line;
  unsigned mask;  // the lanes that it waits for
  int source;     // the lane whose value it wants
  uint64_t given, taken;
};

struct Launch {
  unsigned grid[3], block[3];
  uint64_t shared_bytes, order;
  void** arguments;
};

static Launch launched;
static std::vector<Fiber> fibers;  // by linear thread number
static int current;                // the running one
static ucontext_t scheduler;
static void (*kernel_call)();
static Races races;
static uint64_t random_state;
static std::string failure;

// ---- Faults of the kernel ----

[[gnu::format(printf, 1, 2)]] static std::string text(const char* format, ...) {
  char buffer[512];
  va_list values;
  va_start(values, format);
  vsnprintf(buffer, sizeof buffer, format, values);
  va_end(values);
  return buffer;
}

static void fail(const std::string& message) {
  if (!message.empty() && failure.empty())
    failure = text("block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z) + message;
}

[[noreturn]] static void fail_here(int line, const std::string& message) {
  fail(text("thread %d at line %d: ", current, line) + message);
  swapcontext(&fibers[current].context, &scheduler);  // for good
  abort();
}

static std::string where_threads_are() {
  std::string report;
  const int count = fibers.size();
  for (int first = 0, last; first < count; first = last + 1) {
    const auto place = [](int n) {
      const Fiber& it = fibers[n];
      if (it.at == At::returned) return std::string("returned");
      const std::string lanes = it.at == At::warp_intrinsic ? text(" for lanes %08x", it.mask) : "";
      return text("wait in %s at line %d", it.what, it.line) + lanes;
    };
    for (last = first; last + 1 < count && place(last + 1) == place(first);) last++;
    report += text("\n  threads %d-%d ", first, last) + place(first);
  }
  return report;
}

// ---- Shared memory ----

struct Region {
  const char* name;
  std::vector<unsigned char> bytes{};
  uint64_t block = 0;  // that it was poisoned for
};
static Region dynamic_region;
static std::vector<Region*> open_regions;
static uint64_t block_number;  // never repeats

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
      fail_here(at.line, text("%s[%td] is out of bounds: it has %td elements", name_,
                              element - begin_, end_ - begin_));
    if (races.full()) fail(races.settle(current));
    races.touch(element, sizeof(T), at.line);
    return *element;
  }
  Shared operator+(int64_t count) const { return {name_, begin_, end_, here_ + count}; }
  template <class U, class = std::enable_if_t<std::is_convertible_v<T*, U*>>>
  operator U*() const { return here_; }

 private:
  const char* name_;
  T *begin_, *end_, *here_;
};

template <class T>
Shared<T> open(Region& region, size_t count) {
  const size_t size = count * sizeof(T);
  if (region.block != block_number) {
    region.block = block_number;
    region.bytes.assign(size + 2 * guard_bytes, guard_pattern);
    // All ones are NaN in every float format. fmaxf swallows NaN, so odd orders get 3.4e38.
    constexpr bool integer = std::is_integral_v<T> && sizeof(T) > 1;
    const int poison = launched.order % 2 ? 0x7F : integer ? 0xCD : 0xFF;
    memset(&region.bytes[guard_bytes], poison, size);
    open_regions.push_back(&region);
  }
  T* const begin = reinterpret_cast<T*>(&region.bytes[guard_bytes]);
  return {region.name, begin, begin + count, begin};
}

template <class T>
Shared<T> open_dynamic(const char* name) {
  dynamic_region.name = name;
  return open<T>(dynamic_region, launched.shared_bytes / sizeof(T));
}

static void check_guards() {
  for (const Region* region : open_regions)
    for (size_t i = 0; i < guard_bytes; i++)
      if (region->bytes[i] != guard_pattern || region->bytes.rbegin()[i] != guard_pattern)
        return fail(text("a pointer wrote outside the shared memory %s", region->name));
}

// ---- Fibers ----

static void wait(At at, const char* what, int line) {
  Fiber& me = fibers[current];
  fail(races.settle(current));
  me.at = at, me.what = what, me.line = line;
  swapcontext(&me.context, &scheduler);
}

// Lets one group of lanes go on: all that its mask names wait in the same intrinsic.
static bool release_lanes(int warp) {
  Fiber* const lane = &fibers[warp * warpSize];
  const int lanes = std::min<int>(warpSize, fibers.size() - warp * warpSize);
  for (int i = 0; i < lanes; i++) {
    const Fiber& me = lane[i];
    if (me.at != At::warp_intrinsic) continue;
    unsigned group = 0, missing = 0, votes = 0;
    for (int j = 0; j < lanes; j++) {
      const bool here = lane[j].at == At::warp_intrinsic && lane[j].mask == me.mask &&
                        strcmp(lane[j].what, me.what) == 0;
      if ((me.mask >> j & 1) && lane[j].at != At::returned) (here ? group : missing) |= 1u << j;
      votes |= (lane[j].given ? 1u : 0u) << j;
    }
    if (missing) continue;
    for (int j = 0; j < lanes; j++) {
      if (!(group >> j & 1)) continue;
      const int source = lane[j].source;
      const bool defined = source >= 0 && source < lanes && (group >> source & 1);
      lane[j].taken = source == ballot ? votes & group : defined ? lane[source].given : ~0ull;
    }
    if (strcmp(me.what, "__syncwarp") == 0) races.warp_synced(warp);
    for (int j = 0; j < lanes; j++)
      if (group >> j & 1) lane[j].at = At::ready;
    return true;
  }
  return false;
}

// Threads that have returned are not waited for, as since Volta.
static bool release_block() {
  const Fiber* first = nullptr;
  for (const Fiber& fiber : fibers) {
    if (fiber.at == At::returned) continue;
    if (!first) first = &fiber;
    if (fiber.at != At::block_barrier || fiber.line != first->line) return false;
  }
  for (Fiber& fiber : fibers)
    if (fiber.at != At::returned) fiber.at = At::ready;
  races.block_synced();
  return true;
}

static void enter() {
  kernel_call();
  wait(At::returned, "", 0);
}

static unsigned draw(unsigned below) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (random_state >> 33) % below;
}

// 0 .. count-1: ascending in order 0, descending in order 1, else shuffled.
static std::vector<int> in_order(int count) {
  std::vector<int> numbers(count);
  for (int i = 0; i < count; i++) numbers[i] = launched.order == 1 ? count - 1 - i : i;
  if (launched.order > 1)
    for (int i = count; i > 1; i--) std::swap(numbers[i - 1], numbers[draw(i)]);
  return numbers;
}

static bool run_warp(int warp) {
  bool ran = false;
  for (int lane : in_order(std::min<int>(warpSize, fibers.size() - warp * warpSize))) {
    current = warp * warpSize + lane;
    if (fibers[current].at != At::ready || !failure.empty()) continue;
    threadIdx = fibers[current].index;
    swapcontext(&scheduler, &fibers[current].context);
    ran = true;
  }
  return ran;
}

// In orders 0 and 1 a warp runs as far as it can before the next one starts.
static void run_block() {
  for (Fiber& fiber : fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.at = At::ready;
    makecontext(&fiber.context, enter, 0);
  }
  block_number++;
  open_regions.clear();
  races = Races();
  const int warps = (fibers.size() + warpSize - 1) / warpSize;
  const auto returned = [](const Fiber& fiber) { return fiber.at == At::returned; };
  while (failure.empty() && !std::all_of(fibers.begin(), fibers.end(), returned)) {
    bool progress = false;
    for (int warp : in_order(warps))
      while (failure.empty() && (run_warp(warp) || release_lanes(warp))) {
        progress = true;
        if (launched.order > 1 && draw(2)) break;
      }
    if (!progress && !release_block())
      fail("deadlock, or one barrier reached at two places:" + where_threads_are());
  }
  check_guards();
}

static const char* run_grid(const Launch& how, void (*call)()) {
  launched = how, kernel_call = call, random_state = how.order;
  failure.clear();
  gridDim = dim3(how.grid[0], how.grid[1], how.grid[2]);
  blockDim = dim3(how.block[0], how.block[1], how.block[2]);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  if (fibers.size() != threads) fibers = std::vector<Fiber>(threads);
  for (unsigned n = 0; n < threads; n++)
    fibers[n].index = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
  for (unsigned n : in_order(gridDim.x * gridDim.y * gridDim.z)) {
    blockIdx = {n % gridDim.x, n / gridDim.x % gridDim.y, n / gridDim.x / gridDim.y};
    run_block();
    if (!failure.empty()) break;
  }
  return failure.c_str();
}

}  // namespace host_cuda
