// The machine behind _host_cuda.h: shared memory, fibers, and the order in which they run.
//
// Each thread of a block is a fiber on one OS thread. It runs alone until it waits at a barrier or
// in a warp intrinsic. What it sees of the others depends only on the order in which fibers run,
// so comparing two orders shows a missing barrier.
#include "_host_cuda_block.h"

#include <ucontext.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#include "_host_cuda_races.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace host_cuda {

Region dynamic_region;

constexpr size_t stack_bytes = 256 * 1024;
// The macros for GPUs promise 32 bytes (kernels/_raw.py), so between these guards it is no more.
constexpr size_t alignment = 64, guard_bytes = 4 * alignment + 32;
constexpr unsigned char guard_pattern = 0xA5;

enum class At { ready, block_barrier, warp_intrinsic, whole_warp, returned };

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
  const void* given_to_warp;
  WarpAct act;
};

static Launch how_launched;
static std::vector<Fiber> fibers;  // by linear thread number
static int current;                // the running one
static ucontext_t scheduler;
static void (*kernel_call)();
static Races races;
static uint64_t random_state;
static std::string failure;

const Launch& launched() { return how_launched; }
int lane() { return current % warpSize; }

// ---- Faults of the kernel ----

static std::string formatted(const char* format, va_list values) {
  char buffer[512];
  vsnprintf(buffer, sizeof buffer, format, values);
  return buffer;
}

[[gnu::format(printf, 1, 2)]] static std::string text(const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::string result = formatted(format, values);
  va_end(values);
  return result;
}

static void fail(const std::string& message) {
  if (!message.empty() && failure.empty())
    failure = text("block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z) + message;
}

void fail_here(int line, const char* format, ...) {
  va_list values;
  va_start(values, format);
  fail(text("thread %d at line %d: ", current, line) + formatted(format, values));
  va_end(values);
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

static std::vector<Region*> open_regions;
static uint64_t block_number;  // never repeats

uint64_t this_block() { return block_number; }

void* opened(Region& region, size_t size, bool integer) {
  if (region.block != block_number) {
    region.block = block_number;
    region.size = size + 2 * guard_bytes;
    free(region.memory);
    const size_t whole = (region.size + alignment - 1) / alignment * alignment;
    region.memory = static_cast<unsigned char*>(aligned_alloc(alignment, whole));
    memset(region.memory, guard_pattern, region.size);
    // All ones are NaN in every float format. fmaxf swallows NaN, so odd orders get 3.4e38.
    const int poison = how_launched.order % 2 ? 0x7F : integer ? 0xCD : 0xFF;
    memset(region.memory + guard_bytes, poison, size);
    open_regions.push_back(&region);
  }
  return region.memory + guard_bytes;
}

void touch(const void* element, size_t size, int line) {
  if (races.full()) fail(races.settle(current));
  races.touch(element, size, line);
}

void touch_is_atomic(const void* element, size_t size) {
  races.touch_is_atomic(element, size);
}

void touch_by_warp(const char* what, int line, const void* at, size_t size, const void* origin,
                   bool wrote) {
  for (const Region* region : open_regions) {
    if (!std::less_equal<>()(region->memory, origin) ||
        !std::less<>()(origin, region->memory + region->size))
      continue;
    const intptr_t first = intptr_t(at) - intptr_t(region->memory + guard_bytes);
    const intptr_t bytes = region->size - 2 * guard_bytes;
    if (first < 0 || first + intptr_t(size) > bytes)
      fail_here(line, "%s goes out of bounds of %s: bytes %td to %td of %td", what, region->name,
                first, first + intptr_t(size) - 1, bytes);
    return fail(races.touch_by_warp(current / warpSize, at, size, line, wrote));
  }
}

static void check_guards() {
  for (const Region* region : open_regions)
    for (size_t i = 0; i < guard_bytes; i++)
      if (region->memory[i] != guard_pattern || region->memory[region->size - 1 - i] != guard_pattern)
        return fail(text("a pointer wrote outside the shared memory %s", region->name));
}

// ---- Fibers ----

static void wait(At at, const char* what, int line) {
  Fiber& me = fibers[current];
  fail(races.settle(current));
  me.at = at, me.what = what, me.line = line;
  swapcontext(&me.context, &scheduler);
}

uint64_t exchange(const char* what, int line, unsigned mask, uint64_t given, int source) {
  Fiber& me = fibers[current];
  if (!(mask >> lane() & 1)) fail_here(line, "%s without its own lane in mask %08x", what, mask);
  me.mask = mask, me.given = given, me.source = source;
  wait(At::warp_intrinsic, what, line);
  return me.taken;
}

void whole_warp(const char* what, int line, const void* given, WarpAct act) {
  const int first = current / warpSize * warpSize, lanes = int(fibers.size()) - first;
  if (lanes < warpSize)
    fail_here(line, "%s needs a whole warp, this one has %d lanes", what, lanes);
  Fiber& me = fibers[current];
  fail(races.settle(current));
  me.at = At::whole_warp, me.what = what, me.line = line, me.given_to_warp = given, me.act = act;
  const void* all[warpSize];
  bool complete = true;
  for (int n = 0; n < warpSize; n++) {
    const Fiber& lane = fibers[first + n];
    complete &= lane.at == At::whole_warp && lane.line == line && lane.act == act;
    all[n] = lane.given_to_warp;
  }
  if (!complete) return wait(At::whole_warp, what, line);
  for (int n = 0; n < warpSize; n++) fibers[first + n].at = At::ready;
  act(what, line, all);
  swapcontext(&me.context, &scheduler);  // the lanes go on in their order
}

Votes block_barrier(const char* what, int line, bool given) {
  Fiber& me = fibers[current];
  me.given = given;
  wait(At::block_barrier, what, line);
  return {int(me.taken >> 32), int(me.taken & 0xFFFFFFFF)};
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
  uint64_t threads = 0, yes = 0;
  for (const Fiber& fiber : fibers) {
    if (fiber.at == At::returned) continue;
    if (!first) first = &fiber;
    if (fiber.at != At::block_barrier || fiber.line != first->line) return false;
    threads++, yes += fiber.given;
  }
  for (Fiber& fiber : fibers)
    if (fiber.at != At::returned) fiber.at = At::ready, fiber.taken = threads << 32 | yes;
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
  for (int i = 0; i < count; i++) numbers[i] = how_launched.order == 1 ? count - 1 - i : i;
  if (how_launched.order > 1)
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
        if (how_launched.order > 1 && draw(2)) break;
      }
    if (!progress && !release_block())
      fail("deadlock, or one barrier reached at two places:" + where_threads_are());
  }
  check_guards();
}

const char* run_grid(const Launch& how, void (*call)()) {
  how_launched = how, kernel_call = call, random_state = how.order;
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

// ---- What the compiler's checks of alignment and of array bounds call ----

namespace {
struct Place {
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind, info;
  char name[1];
};
struct Misaligned {
  Place at;
  const Type* type;
  unsigned char log_of_alignment, access;
};
struct OutOfBounds {
  Place at;
  const Type *array, *index;
};
}  // namespace

extern "C" void __ubsan_handle_type_mismatch_v1(const Misaligned* found, uintptr_t address) {
  const unsigned alignment = 1u << found->log_of_alignment;
  host_cuda::fail_here(found->at.line, "%s is accessed at an address %u bytes past a multiple of %u",
                       found->type->name, unsigned(address % alignment), alignment);
}

extern "C" void __ubsan_handle_out_of_bounds(const OutOfBounds* found, uintptr_t index) {
  host_cuda::fail_here(found->at.line, "index %td is out of bounds of %s", intptr_t(index),
                       found->array->name);
}
