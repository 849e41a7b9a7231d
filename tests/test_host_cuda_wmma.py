"""`nvcuda::wmma` on this CPU: products are right, and what CUDA leaves undefined is named."""

import re

import pytest
import torch

from kernels import _cubin, _sass
from kernels._host_cuda import HostKernel, KernelFault, why_not
from kernels._raw import Launch

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

DTYPES = {"__half": torch.float16, "__nv_bfloat16": torch.bfloat16}
TYPES = pytest.mark.parametrize("element", DTYPES)
ORDERS = (0, 1, 2, 3)

# c = a @ b + c by one warp: a from global memory, b through shared memory.
GEMM = """
#include <mma.h>
using namespace nvcuda::wmma;
extern "C" __global__ void gemm(const ELEMENT* a, const ELEMENT* b, float* c, int depth, int ldc) {
  SHARED_ARRAY(ELEMENT, part, 16 * 24);
  fragment<matrix_a, 16, 16, 16, ELEMENT, LAYOUT_A> left;
  fragment<matrix_b, 16, 16, 16, ELEMENT, LAYOUT_B> right;
  fragment<accumulator, 16, 16, 16, float> sum;
  load_matrix_sync(sum, c, ldc, LAYOUT_C);
  const bool rows_a = LD_A, rows_b = LD_B;
  for (int k = 0; k < depth; k += 16) {
    for (int n = threadIdx.x; n < 256; n += 32)
      part[n / 16 * 24 + n % 16] = b[rows_b ? k * 16 + n : n / 16 * depth + k + n % 16];
    __syncwarp();
    load_matrix_sync(left, a + (rows_a ? k : k * 16), rows_a ? depth : 16);
    load_matrix_sync(right, part, 24);
    mma_sync(sum, left, right, sum);
    __syncwarp();
  }
  store_matrix_sync(c, sum, ldc, LAYOUT_C);
}
"""


def gemm_source(element: str, layouts: tuple[str, str, str]) -> str:
    """Return GEMM for a, b and c stored by "row" or by "col"."""
    a, b, c = layouts
    words = {"ELEMENT": element, "LAYOUT_A": f"{a}_major", "LAYOUT_B": f"{b}_major",
             "LAYOUT_C": f"mem_{c}_major", "LD_A": str(a == "row").lower(),
             "LD_B": str(b == "row").lower()}  # fmt: skip
    return re.sub("|".join(words), lambda word: words[word[0]], GEMM)


def stored(matrix: torch.Tensor, layout: str) -> torch.Tensor:
    return matrix.contiguous() if layout == "row" else matrix.T.contiguous()


@TYPES
@pytest.mark.parametrize("layouts", [("row", "row", "row"), ("col", "col", "col")])
def test_a_product_is_the_sum_of_exact_products(
    element: str, layouts: tuple[str, str, str]
) -> None:
    generator = torch.Generator().manual_seed(0)
    dtype = DTYPES[element]
    a = torch.randn(16, 64, generator=generator).to(dtype)
    b = torch.randn(64, 16, generator=generator).to(dtype)
    c = torch.randn(16, 16, generator=generator)
    memory = torch.full((16, 20), 7.0)
    memory[:, :16] = stored(c, layouts[2])
    kernel = HostKernel(gemm_source(element, layouts), "gemm")
    given = (stored(a, layouts[0]), stored(b, layouts[1]), memory, 64, 20)
    kernel((1,), (32,), given, orders=ORDERS)
    want = c.clone()
    for k in range(64):  # products of such narrow numbers are exact in float
        want += a[:, k, None].float() * b[k].float()
    assert torch.equal(stored(memory[:, :16], layouts[2]), want)
    assert (memory[:, 16:] == 7.0).all()


@TYPES
def test_the_same_source_compiles_for_a_gpu(element: str) -> None:
    pytest.importorskip("cuda.bindings", reason="compiling for a GPU needs cuda-python")
    if reason := _cubin.why_not():
        pytest.skip(reason)
    launch = Launch(name="gemm", source=gemm_source(element, ("row", "col", "row")), grid=(1,),
                    block=(32,), args=(), shared_bytes=0)  # fmt: skip
    cubin = _cubin.compiled(launch, capability=80)
    (code,) = _cubin.disassembled([cubin], capability=80)
    assert _sass.classes(code) == ("tensor_core",)


# One warp; shared memory s (32 rows of 16 halves, two unit matrices) and x (0 .. 255). All bodies
# are compiled at once, each on lines of its own, and one of them runs.
PRELUDE = """
#include <mma.h>
using namespace nvcuda::wmma;
#define STORE store_matrix_sync(y, sum, 16, mem_row_major)
#define LOAD load_matrix_sync(sum, x, 16, mem_row_major)
extern "C" __global__ void k(float* y, int chosen, int sync) {
  SHARED_ARRAY(__half, s, 512);
  SHARED_ARRAY(float, x, 256);
  const int t = threadIdx.x;
  fragment<matrix_a, 16, 16, 16, __half, row_major> left;
  fragment<matrix_b, 16, 16, 16, __half, col_major> right;
  fragment<accumulator, 16, 16, 16, float> sum;
  for (int n = t; n < 512; n += blockDim.x) s[n] = __float2half(n % 256 / 16 == n % 16);
  for (int n = t; n < 256; n += blockDim.x) x[n] = n;
  if (sync) __syncthreads();
"""

BODIES = {
    "scaled": """
      load_matrix_sync(left, s, 16);
      load_matrix_sync(right, s, 16);
      fill_fragment(sum, 0.f);
      for (auto& element : left.x) element = __float2half(2.f * __half2float(element));
      fragment<accumulator, 16, 16, 16, float> other;
      load_matrix_sync(other, x, 16, mem_row_major);
      mma_sync(sum, left, right, sum);
      for (int i = 0; i < sum.num_elements; i++) sum.x[i] = 3 * sum.x[i] + other.x[i];
      STORE;""",
    "by place": "LOAD; if (t < 4) sum.x[0] = -1.f; STORE;",
    "one copy": """
      load_matrix_sync(left, s, 16);
      load_matrix_sync(right, s, 16);
      fill_fragment(sum, 0.f);
      if (t == 0) left.x[3] = __float2half(5.f);
      mma_sync(sum, left, right, sum);""",
    "not filled": "STORE;",
    "addresses": "load_matrix_sync(left, s + 16 * (t == 5), 16);",
    "strides": "load_matrix_sync(left, s, t < 9 ? 16 : 8);",
    "layouts": "fill_fragment(sum, 0.f);\nstore_matrix_sync(y, sum, 16, layout_t(t == 7));",
    "constants": "fill_fragment(sum, t == 3 ? 1.f : 0.f);",
    "misaligned": "load_matrix_sync(left, s + 8, 16);",
    "narrow stride": "load_matrix_sync(left, s, 20);",
    "wide stride": "load_matrix_sync(sum, x, 18, mem_row_major);",
    "behind": "load_matrix_sync(left, s + 272, 16);",
    "behind, bare": "__half* bare = s; load_matrix_sync(left, bare, 40);",
    "before": "load_matrix_sync(left, SHARED_AS(__half, x + 8) - 512, 16);",
    "fill by 31": "if (t < 31)\nfill_fragment(sum, 0.f);",
    "load by 31": "if (t < 31)\nload_matrix_sync(left, s, 16);",
    "mma by 31": "if (t < 31)\nmma_sync(sum, left, right, sum);",
    "store by 31": "if (t < 31)\nstore_matrix_sync(y, sum, 16, mem_row_major);",
    "two places": "if (t < 16)\nfill_fragment(sum, 0.f);\nelse\nfill_fragment(sum, 0.f);",
    "load": "load_matrix_sync(left, s, 16);",
    "store, write": "fill_fragment(sum, 1.f); store_matrix_sync(x, sum, 16, mem_row_major);\n"
                    "if (sync > 1) __syncwarp();\nx[t] = 2.f;",
    "store, read": "fill_fragment(sum, 1.f); store_matrix_sync(x, sum, 16, mem_row_major);\n"
                   "if (sync > 1) __syncwarp();\ny[t] = x[t];",
    "store, load": "fill_fragment(sum, 1.f); store_matrix_sync(x, sum, 16, mem_row_major);\n"
                   "if (sync > 1) __syncwarp();\nLOAD;",
    "load, write": "load_matrix_sync(left, s, 16);\n"
                   "if (sync > 1) __syncwarp();\ns[t] = __float2half(9.f); s[256 + t] = s[t];",
    "rows read again": "load_matrix_sync(left, s, 0);",
    "rows stored twice": "fill_fragment(sum, 1.f);\nstore_matrix_sync(x, sum, 8, mem_row_major);",
    "two warps": """
      fill_fragment(sum, 1.f);
      if (t < 32) store_matrix_sync(x, sum, 16, mem_row_major);
      if (sync > 1) __syncthreads();
      else __syncwarp();
      if (t >= 32) LOAD;""",
    "neighbours": "s[t] = __float2half(5.f);",
    "wide, narrow": "SHARED_AS(uint4, s)[t] = make_uint4(1, 2, 3, 4);\n"
                    "y[t] = __half2float(s[8 * ((t + 1) % 32) + 1]);",
}  # fmt: skip
SOURCE = PRELUDE + "".join(
    f"if (chosen == {number}) {{\n{body}\n}}\n" for number, body in enumerate(BODIES.values())
) + "}"  # fmt: skip
KERNEL = HostKernel(SOURCE, "k")


def run(body: str, *, sync: int = 1, threads: int = 32) -> torch.Tensor:
    """Run one body in several orders; sync: barriers of 0 none, 1 before it, 2 within it too."""
    y = torch.zeros(16, 16)
    given = (y, [*BODIES].index(body), sync)
    KERNEL((1,), (threads,), given, orders=ORDERS)
    return y


def test_what_treats_all_elements_alike_may_use_them() -> None:
    assert torch.equal(run("scaled"), 6 * torch.eye(16) + torch.arange(256.0).view(16, 16))


def test_what_relies_on_the_place_of_an_element_leaves_other_bytes_in_other_orders() -> None:
    with pytest.raises(KernelFault, match="thread orders 0 and 1 leave different bytes"):
        run("by place")


def test_a_fragment_that_nobody_filled_is_poisoned() -> None:
    with pytest.raises(KernelFault, match="thread orders 0 and 1 leave different bytes"):
        run("not filled")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("one copy", "mma_sync: a fragment holds .* as one element; treat all x"),
        ("addresses", "load_matrix_sync: lanes 0 and 5 give different addresses"),
        ("strides", "load_matrix_sync: lanes 0 and 9 give different leading dimensions"),
        ("layouts", "store_matrix_sync: lanes 0 and 7 give different layouts"),
        ("constants", "fill_fragment: lanes 0 and 3 give different values"),
        ("misaligned", "load_matrix_sync at an address 16 bytes past a multiple of 32"),
        ("narrow stride", "with a leading dimension of 20: give a multiple of 8"),
        ("rows read again", "with a leading dimension of 0: give a multiple of 8, at least 16"),
        ("rows stored twice", "with a leading dimension of 8: give a multiple of 4, at least 16"),
        ("wide stride", "with a leading dimension of 18: give a multiple of 4"),
        ("behind", "load_matrix_sync goes out of bounds of s: bytes 1024 to 1055 of 1024"),
        ("behind, bare", "load_matrix_sync goes out of bounds of s: bytes 1040 to 1071 of 1024"),
        ("before", "load_matrix_sync goes out of bounds of x: bytes -992 to -961 of 1024"),
    ],
)
def test_what_cuda_does_not_define_is_named_with_its_line(body: str, fault: str) -> None:
    line = BODIES[body].splitlines()[-1].strip()
    with pytest.raises(KernelFault, match=rf"at line \d+ `{re.escape(line)}`: .*{fault}"):
        run(body)


@pytest.mark.parametrize(
    ("body", "call"),
    [("fill by 31", "fill_fragment"), ("load by 31", "load_matrix_sync"), ("mma by 31", "mma_sync"),
     ("store by 31", "store_matrix_sync")],
)  # fmt: skip
def test_a_lane_that_takes_no_part_is_a_deadlock_at_that_line(body: str, call: str) -> None:
    with pytest.raises(KernelFault, match=rf"threads 0-30 wait in {call} .*\n +threads 31-31 ret"):
        run(body)


def test_one_call_at_two_places_is_a_deadlock() -> None:
    with pytest.raises(KernelFault, match=r"threads 0-15 wait in fill.*\n +threads 16-31 wait in"):
        run("two places")


def test_a_part_of_a_warp_is_refused() -> None:
    with pytest.raises(KernelFault, match="load_matrix_sync needs a whole warp, this one has 16"):
        run("load", threads=16)


# ---- Races ----


def test_what_lanes_wrote_is_loaded_only_behind_a_barrier() -> None:
    run("load")
    with pytest.raises(KernelFault, match=r"race: warp 0 reads .* what thread \d+ wrote"):
        run("load", sync=0)


@pytest.mark.parametrize(
    ("body", "fault"),
    [("store, write", "thread 0 writes .* warp 0 wrote"),
     ("load, write", "thread 0 writes .* warp 0 read"),
     ("store, read", "thread 0 reads .* what warp 0 wrote"),
     ("store, load", "warp 0 reads .* what warp 0 wrote"),
     ("two warps", r"warp \d .* what warp \d ")],
)  # fmt: skip
def test_what_a_warp_stored_or_loaded_is_touched_only_behind_a_barrier(
    body: str, fault: str
) -> None:
    threads = 64 if body == "two warps" else 32
    run(body, sync=2, threads=threads)
    with pytest.raises(KernelFault, match=f"race: {fault}"):
        run(body, threads=threads)


def test_a_narrow_element_races_with_the_wide_one_around_it_and_not_with_its_neighbour() -> None:
    run("neighbours")
    with pytest.raises(KernelFault, match="race: "):
        run("wide, narrow")


# ---- What does not compile in CUDA does not compile here ----

KINDS = """
#include <mma.h>
using namespace nvcuda::wmma;
using A = fragment<matrix_a, 16, 16, 16, __half, row_major>&;
using B = fragment<matrix_b, 16, 16, 16, __half, col_major>&;
using B16 = fragment<matrix_b, 16, 16, 16, __nv_bfloat16, col_major>&;
using C = fragment<accumulator, 16, 16, 16, float>&;
template <class... Given>
auto mma(int) -> decltype(mma_sync(std::declval<Given>()...), true) { return true; }
template <class... Given>
auto load(int) -> decltype(load_matrix_sync(std::declval<Given>()...), true) { return true; }
template <class... Given>
auto store(int) -> decltype(store_matrix_sync(std::declval<Given>()...), true) { return true; }
template <class Fragment>
auto known(int) -> decltype(sizeof(Fragment) > 0) { return true; }
template <class...> bool mma(...) { return false; }
template <class...> bool load(...) { return false; }
template <class...> bool store(...) { return false; }
template <class...> bool known(...) { return false; }
extern "C" __global__ void k(int* out) { *out = CALL(0); }
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("mma<C, A, B, C>", ["mma<C, B, A, C>", "mma<C, A, B, C, bool>", "mma<C, A, B16, C>",
                             "mma<A, A, B, C>"]),
        ("load<A, const __half*, int>", ["load<A, float*, int>", "load<A, __half*, int, layout_t>",
                                         "load<A, __half*, int, int>"]),
        ("load<C, float*, int, layout_t>", ["load<C, float*, int>", "load<C, __half*, int>"]),
        ("store<float*, C, int, layout_t>", ["store<__half*, A, int, layout_t>",
                                             "store<__half*, C, int, layout_t>",
                                             "store<const float*, C, int, layout_t>"]),
        ("known<fragment<matrix_a, 16, 16, 16, __half, col_major>>",
         ["known<fragment<matrix_a, 16, 16, 16, __half>>",
          "known<fragment<matrix_a, 16, 16, 8, __half, row_major>>",
          "known<fragment<accumulator, 16, 16, 16, float, row_major>>"]),
    ],
)  # fmt: skip
def test_kinds_of_fragments_are_not_mixed(right: str, wrong: list[str]) -> None:
    call = f"{right}(0) * 100 + " + " + ".join(f"{one}(0)" for one in wrong) + " + 0 * "
    out = torch.zeros(1, dtype=torch.int32)
    HostKernel(KINDS.replace("CALL", call), "k")((1,), (1,), (out,))
    assert out.tolist() == [100]
