"""CUDA C++ on this CPU: intrinsics do what CUDA's guide says, and each planted fault is named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels import _host_cuda_build
from kernels._host_cuda import HostKernel, KernelFault, why_not
from verifyscope.errors import Failure

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

Ints = list[int]


def ints(body: str, count: int = 32, **launch: tuple[int, ...]) -> Ints:
    """Run `body`, which sets `out[...]`, in three thread orders, and return `out`."""
    out = np.full(count, -7, np.int32)
    source = f'extern "C" __global__ void k(int* out) {{\nint t = threadIdx.x;\n{body}\n}}'
    block = launch.get("block", (min(count, 32),))
    HostKernel(source, "k")(launch.get("grid", (1,)), block, (out,), orders=(0, 1, 2))
    return [int(value) for value in out]


def floats(
    body: str, *, threads: int = 64, shared_mem: int = 0
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Run `body` with one element of `y` for each thread, in every kind of order."""
    y = np.zeros(threads, np.float32)
    source = f'extern "C" __global__ void k(float* y) {{\n{body}\n}}'
    kernel = HostKernel(source, "k")
    kernel((1,), (threads,), (y,), shared_mem=shared_mem, orders=(0, 1, 2, 3))
    return y


# ---- Intrinsics ----


def test_shuffles() -> None:
    body = """
      int* row = out;
      for (int width = 4; width <= 32; width *= width == 4 ? 4 : 2, row += 4 * 32) {
        row[t] = __shfl_sync(~0u, t, 35, width);
        row[32 + t] = __shfl_up_sync(~0u, t, 3, width);
        row[64 + t] = __shfl_down_sync(~0u, t, 3, width);
        row[96 + t] = __shfl_xor_sync(~0u, t, 5, width);
      }
    """
    rows = np.array(ints(body, 3 * 4 * 32)).reshape(3, 4, 32).tolist()
    for width, (direct, up, down, xor) in zip((4, 16, 32), rows, strict=True):
        lanes = range(32)
        first = [lane // width * width for lane in lanes]
        last = [start + width for start in first]
        assert direct == [start + 35 % width for start in first]
        assert up == [n - 3 if n - 3 >= first[n] else n for n in lanes]
        assert down == [n + 3 if n + 3 < last[n] else n for n in lanes]
        # A lane reaches earlier groups, and keeps its own value instead of a later group's.
        assert xor == [n ^ 5 if n ^ 5 < last[n] else n for n in lanes]


def test_votes_and_partial_masks() -> None:
    body = """
      out[t] = __ballot_sync(~0u, t % 3 == 0);
      unsigned mask = t < 16 ? 0xffff : 0xffff0000;
      out[32 + t] = __shfl_xor_sync(mask, t, 1);
      if (t < 8) out[64 + t] = __ballot_sync(0xff, 1); else __syncwarp(0xffffff00);
      out[96 + t] = 10 * __any_sync(~0u, t == 5) + __all_sync(~0u, t != 5);
      out[128 + t] = __any_sync(~0u, t > 40) + 10 * __all_sync(~0u, t < 32);
    """
    ballot, xor, partial, mixed, sure = np.array(ints(body, 5 * 32)).reshape(5, 32).tolist()
    thirds = np.array(sum(1 << n for n in range(0, 32, 3)), np.uint32).astype(np.int32)
    assert ballot == [int(thirds)] * 32
    assert xor == [n ^ 1 for n in range(32)]
    assert partial == [0xFF] * 8 + [-7] * 24
    assert mixed == [10] * 32
    assert sure == [10] * 32


def test_reductions_over_a_warp_and_a_block() -> None:
    body = """
      unsigned even = 0x55555555;
      if (t % 2 == 0) out[t] = __reduce_add_sync(even, t);
      else out[t] = __reduce_max_sync(~even, t) + 100 * __reduce_min_sync(~even, t);
      out[32 + t] = __syncthreads_count(t < 5);
      out[64 + t] = 10 * __syncthreads_or(t == 31) + __syncthreads_and(t < 31);
    """
    warp, count, both = np.array(ints(body, 3 * 32)).reshape(3, 32).tolist()
    assert warp == [240 if n % 2 == 0 else 31 + 100 for n in range(32)]
    assert count == [5] * 32
    assert both == [10] * 32


def test_indices_in_three_dimensions() -> None:
    body = """
      int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
    """
    got = ints(body, 24 * 24, grid=(2, 3, 4), block=(4, 3, 2))
    assert got == [1000 * (n // 24) + n % 24 for n in range(24 * 24)]


def test_atomics_in_shared_and_global_memory() -> None:
    body = """
      SHARED_ARRAY(int, count, 4);
      if (t < 4) count[t] = 0;
      __syncthreads();
      atomicAdd(&count[t % 4], t);
      __syncthreads();
      switch (t) {
        case 4: atomicMax(&out[t], 5); break;
        case 5: atomicCAS(&out[t], -7, 6); break;
        case 6: atomicExch(&out[t], 7); break;
        case 7: atomicMin(&out[t], -9); break;
        case 8: atomicOr(&out[t], 8); break;
        case 9: atomicSub(&out[t], 2); break;
        default: if (t < 4) atomicAdd(&out[t], count[t]);
      }
    """
    sums = [sum(range(n, 32, 4)) - 7 for n in range(4)]
    assert ints(body)[:11] == [*sums, 5, 6, 7, -9, -7 | 8, -9, -7]


def test_bits() -> None:
    body = """
      if (t) return;
      out[0] = __popc(0xF0F) + 100 * __ffs(8) + 10000 * __clz(1);
      out[1] = __byte_perm(0x33221100, 0x77665544, 0x6420);
      out[2] = __byte_perm(0x00008000, 0, 0x0009);
      out[3] = __float2int_rn(2.5f) + 10 * __float2int_rn(3.5f);
      out[4] = __float_as_int(__int_as_float(0x7f800000));
    """
    assert ints(body)[:5] == [8 + 400 + 310000, 0x66442200, 0xFF, 2 + 40, 0x7F800000]


def test_half_and_bfloat16_round_as_torch_does() -> None:
    source = """
    #include <cuda_bf16.h>
    #include <cuda_fp16.h>
    extern "C" __global__ void k(const float* x, __nv_bfloat16* b, __half* h, float* sum) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      b[i] = __float2bfloat16(x[i]);
      h[i] = __float2half(x[i]);
      __nv_bfloat162 pair = __floats2bfloat162_rn(x[i], 1.f);
      float other = __bfloat162float(__shfl_xor_sync(~0u, b[i], 1));
      sum[i] = other + __low2float(pair) + __half2float(h[i]);
    }
    """
    x = torch.randn(128, generator=torch.Generator().manual_seed(0))
    b, h = torch.empty(128, dtype=torch.bfloat16), torch.empty(128, dtype=torch.float16)
    total = torch.empty(128)
    HostKernel(source, "k")((2,), (64,), (x, b, h, total))
    assert torch.equal(b, x.to(torch.bfloat16))
    assert torch.equal(h, x.to(torch.float16))
    assert torch.equal(total, b.float().view(-1, 2).flip(1).flatten() + b.float() + h.float())


def test_pairs_of_half_and_bfloat16_compute_as_torch_does() -> None:
    source = """
    #include <cuda_bf16.h>
    #include <cuda_fp16.h>
    template <class Pair, class Narrow, int N>
    __device__ __forceinline__ void scaled_sum(const Narrow* x, float* y, int t) {
      float sum = 0.f;
      const uint4 packed = __ldg(reinterpret_cast<const uint4*>(x) + t);
      const Pair* pairs = reinterpret_cast<const Pair*>(&packed);
    #pragma unroll
      for (int n = 0; n < N; n++) sum = fmaf(__low2float(pairs[n]), __high2float(pairs[n]), sum);
      y[t] = sum;
    }
    extern "C" __global__ void __launch_bounds__(16, 2)
    k(const __nv_bfloat16* __restrict__ b, const __half* __restrict__ h, float* y) {
      scaled_sum<__nv_bfloat162, __nv_bfloat16, 4>(b, y, threadIdx.x);
      scaled_sum<__half2, __half, 4>(h, y + 16, threadIdx.x);
    }
    """
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    b, h, y = x.bfloat16(), x.half(), torch.empty(2, 16)
    HostKernel(source, "k")((1,), (16,), (b, h, y))
    for narrow, got in zip((b, h), y, strict=True):
        wide = narrow.double()
        torch.testing.assert_close(got.double(), (wide[:, ::2] * wide[:, 1::2]).sum(1))


def test_wide_loads_and_stores_move_what_they_should() -> None:
    source = """
    extern "C" __global__ void k(const float* x, float* y) {
      SHARED_ARRAY(float, tile, 128);
      SHARED_AS(float4, tile)[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];
      __syncthreads();
      const float4 mine = SHARED_AS(float4, tile + 4)[31 - threadIdx.x - (threadIdx.x < 31)];
      reinterpret_cast<float4*>(y)[threadIdx.x] = make_float4(mine.w, mine.z, mine.y, mine.x);
    }
    """
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    HostKernel(source, "k")((1,), (32,), (x, y), orders=(0, 1, 2))
    quads = x.reshape(32, 4)
    taken = [31 - t - (t < 31) + 1 for t in range(32)]
    assert np.array_equal(y.reshape(32, 4), quads[taken][:, ::-1])


def test_a_template_is_named_with_its_arguments() -> None:
    source = "template <int N, class T> __global__ void k(T* y) { y[threadIdx.x] = N; }"
    y = np.zeros(4, np.float64)
    HostKernel(source, "k<3, double>")((1,), (4,), (y,))
    assert y.tolist() == [3.0] * 4


def test_definitions_among_the_options_reach_the_source() -> None:
    y = np.zeros(1, np.float32)
    source = 'extern "C" __global__ void k(float* y) { *y = N; }'
    HostKernel(source, "k", options=("-DN=4", "--use_fast_math"))((1,), (1,), (y,))
    assert y.tolist() == [4.0]


def test_views_of_one_array_share_memory() -> None:
    source = """
    extern "C" __global__ void k(const float* x, float* y, long long stride) {
      y[threadIdx.x * stride] = 2 * x[threadIdx.x * stride];
    }
    """
    cache = np.arange(16, dtype=np.float32).reshape(8, 2)
    HostKernel(source, "k")((1,), (8,), (cache[:, 0], cache[:, 1], 2))
    assert cache[:, 1].tolist() == [2.0 * n for n in range(0, 16, 2)]


# ---- Arguments ----

SCALE = 'extern "C" __global__ void k(float* y, float scale, int n) { y[0] = scale * n; }'


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((np.zeros(1, np.float32), 0.5, 2), "passed as 8 bytes, the parameter has 4"),
        ((np.zeros(1, np.float32), 1, 2), "does not fit"),
        ((np.zeros(1, np.float64), np.float32(1), 2), "elements of 8 bytes, the kernel's have 4"),
        ((1, np.float32(1), 2), "argument 0 is a pointer"),
        ((np.zeros(1, np.float32), np.float32(1)), "has 3 parameters, got 2 arguments"),
        ((np.zeros(1, np.float32), np.float32(1), 2**40), "passed as 8 bytes"),
    ],
)
def test_an_argument_that_a_gpu_would_misread_is_refused(
    args: tuple[object, ...], complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        HostKernel(SCALE, "k")((1,), (1,), args)


def test_numpy_scalars_and_python_ints_pass() -> None:
    y = np.zeros(1, np.float32)
    HostKernel(SCALE, "k")((1,), (1,), (y, np.float32(0.5), -3))
    assert y[0] == -1.5


def test_an_empty_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="grid"):
        HostKernel(SCALE, "k")((0,), (1,), (np.zeros(1, np.float32), np.float32(1), 1))


# ---- Races ----

REVERSE = """
  SHARED_ARRAY(float, s, 64);
  s[threadIdx.x] = threadIdx.x;
  %s
  y[threadIdx.x] = s[63 - threadIdx.x];
"""


def test_a_barrier_makes_it_right() -> None:
    assert floats(REVERSE % "__syncthreads();").tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize("instead", ["", "__syncwarp();"])
def test_a_missing_barrier_is_a_race_with_both_lines(instead: str) -> None:
    with pytest.raises(KernelFault, match=r"race: .*`s\[threadIdx.x\] = .*`y\[threadIdx.x\] = "):
        floats(REVERSE % instead)


def test_a_missing_barrier_behind_a_bare_pointer_changes_the_result() -> None:
    body = REVERSE.replace("64);", "64);\n  float* p = s;").replace("s[", "p[") % ""
    with pytest.raises(KernelFault, match="thread orders 0 and 1 leave different bytes"):
        floats(body)


def test_a_shuffle_orders_no_memory_and_syncwarp_does() -> None:
    body = REVERSE.replace("64", "32").replace("63", "31")
    with pytest.raises(KernelFault, match="race: "):
        floats(body % "__shfl_xor_sync(~0u, 1, 1);", threads=32)
    floats(body % "__syncwarp();", threads=32)


def test_a_wide_store_races_with_the_elements_inside_it() -> None:
    body = """
      SHARED_ARRAY(float, s, 256);
      SHARED_AS(float4, s)[threadIdx.x] = make_float4(1, 2, 3, 4);
      %s
      y[threadIdx.x] = s[255 - 4 * threadIdx.x];
    """
    with pytest.raises(KernelFault, match=r"race: thread .* writes|race: thread .* reads"):
        floats(body % "")
    assert set(floats(body % "__syncthreads();")) == {4.0}


def test_an_update_without_atomic_is_a_race() -> None:
    body = """
      SHARED_ARRAY(float, s, 1);
      if (threadIdx.x == 0) s[0] = 0.f;
      __syncthreads();
      %s
      __syncthreads();
      y[threadIdx.x] = s[0];
    """
    with pytest.raises(KernelFault, match="race: "):
        floats(body % "s[0] += 1.f;")
    assert set(floats(body % "atomicAdd(&s[0], 1.f);")) == {64.0}


# ---- Bounds, alignment, memory that nobody wrote ----


@pytest.mark.parametrize(
    ("index", "found"), [("threadIdx.x + 1", r"s\[64\]"), ("int(threadIdx.x) - 1", r"s\[-1\]")]
)
def test_an_index_out_of_shared_memory_is_named(index: str, found: str) -> None:
    with pytest.raises(KernelFault, match=rf"{found} is out of bounds: it has 64 elements"):
        floats(f"SHARED_ARRAY(float, s, 64);\n s[{index}] = 1.f;")


def test_too_little_dynamic_shared_memory_is_out_of_bounds() -> None:
    body = "DYNAMIC_SHARED(float, s);\n s[threadIdx.x] = 1.f; y[threadIdx.x] = s[threadIdx.x];"
    floats(body, shared_mem=256)
    with pytest.raises(KernelFault, match=r"s\[63\] is out of bounds: it has 63 elements"):
        floats(body, shared_mem=252)


def test_a_wide_view_ends_where_its_memory_ends() -> None:
    body = "DYNAMIC_SHARED(float, s);\n y[0] = SHARED_AS(float4, s + 4)[threadIdx.x].x;"
    with pytest.raises(KernelFault, match=r"s\[3\] is out of bounds: it has 3 elements"):
        floats(body, shared_mem=68)


def test_a_bare_pointer_out_of_shared_memory_is_noticed() -> None:
    with pytest.raises(KernelFault, match="a pointer wrote outside the shared memory s"):
        floats("SHARED_ARRAY(float, s, 64);\n float* p = s; p[threadIdx.x + 1] = 1.f;")


@pytest.mark.parametrize(("at", "side"), [("+ 1", "after"), ("- 1", "before")])
def test_a_write_out_of_global_memory_is_noticed(at: str, side: str) -> None:
    with pytest.raises(KernelFault, match=rf"wrote out of bounds, shortly {side} argument 0"):
        floats(f"y[int(threadIdx.x) {at}] = 1.f;")


def test_a_read_out_of_global_memory_is_nan() -> None:
    assert np.isnan(floats("y[threadIdx.x] = y[threadIdx.x + 64];")).all()


@pytest.mark.parametrize(
    "access",
    [
        "reinterpret_cast<float4*>(y + 4 * threadIdx.x + 1)[0].x = 1.f;",
        "float4 v = *reinterpret_cast<const float4*>(y + 4 * threadIdx.x + 1); y[0] = v.x;",
        "DYNAMIC_SHARED(float, s);\nSHARED_AS(float4, s + 1)[threadIdx.x].x = 1.f;",
    ],
    ids=["store", "load", "shared"],
)
def test_a_misaligned_wide_access_is_named(access: str) -> None:
    with pytest.raises(
        KernelFault, match=r"float4' is accessed at an address 4 bytes past a multiple of 16"
    ):
        floats(access, threads=8, shared_mem=256)


def test_an_index_out_of_a_local_array_is_named() -> None:
    body = "float mine[4] = {};\nfor (int n = 0; n < 5 - (y == nullptr); n++) mine[n] += n;"
    with pytest.raises(KernelFault, match=r"`for .* index 4 is out of bounds of 'float \[4\]'"):
        floats(f"{body}\ny[threadIdx.x] = mine[2];")


def test_shared_memory_is_poisoned() -> None:
    source = """extern "C" __global__ void k(float* f, int* i) {
      SHARED_ARRAY(float, a, 1); SHARED_ARRAY(int, b, 1);
      *f = a[0]; *i = b[0];
    }"""
    f, i = np.zeros(1, np.float32), np.zeros(1, np.int32)
    HostKernel(source, "k")((1,), (1,), (f, i), orders=(0,))
    assert np.isnan(f[0])
    assert i.view(np.uint32)[0] == 0xCDCDCDCD
    HostKernel(source, "k")((1,), (1,), (f, i), orders=(1,))
    assert f[0] > 3e38


def test_shared_memory_that_nobody_wrote_changes_with_the_order() -> None:
    with pytest.raises(KernelFault, match="leave different bytes"):
        floats("SHARED_ARRAY(float, s, 64);\n y[threadIdx.x] = fmaxf(0.f, s[threadIdx.x]);")


def test_a_plain_shared_declaration_is_refused() -> None:
    with pytest.raises(ValueError, match="use_SHARED_ARRAY_or_DYNAMIC_SHARED_instead"):
        floats("__shared__ float s[64];")


# ---- Barriers ----


def test_a_deadlock_says_which_threads_wait_where() -> None:
    body = """
      if (threadIdx.x < 48) __syncthreads();
      else __shfl_sync(~0u, 1, 0);
    """
    with pytest.raises(KernelFault) as caught:
        floats(body)
    report = str(caught.value)
    assert "deadlock" in report
    assert "threads 0-47 wait in __syncthreads at line 3 `if (threadIdx.x < 48)" in report
    assert "threads 48-63 wait in __shfl_sync at line 4 `else" in report
    assert "for lanes ffffffff" in report


def test_one_barrier_reached_at_two_places_is_refused() -> None:
    with pytest.raises(KernelFault, match=r"threads 0-31 .* line 3 .*\n +threads 32-63 .* line 4"):
        floats("if (threadIdx.x < 32)\n__syncthreads();\nelse __syncthreads();")


def test_threads_that_returned_are_not_waited_for() -> None:
    floats("if (threadIdx.x >= 40) return;\n__syncthreads(); __syncwarp(); __shfl_sync(~0u, 1, 0);")


def test_a_shuffle_outside_its_own_mask_is_refused() -> None:
    with pytest.raises(KernelFault, match="__shfl_sync without its own lane in mask 0000ffff"):
        floats("__shfl_sync(0xffff, 1, 0);")


# ---- Building ----


def library(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    monkeypatch.setenv("HOST_CUDA_CACHE", str(cache))
    return lambda: _host_cuda_build.built('extern "C" __global__ void k(int* y) {}', "k")


def test_what_was_built_is_found_again_and_nothing_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = library(tmp_path / "new" / "cache", monkeypatch)
    first = build()
    made = first.stat().st_mtime_ns
    assert build() == first
    assert first.stat().st_mtime_ns == made
    assert {file.suffix for file in first.parent.iterdir()} == {".so", ".o", ".h", ".gch"}


def test_without_HOST_CUDA_CACHE_it_is_the_cache_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOST_CUDA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _host_cuda_build.cache_directory() == tmp_path / "verifyscope/host_cuda"


def test_a_cache_that_cannot_be_written_is_one_line_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    build = library(tmp_path / "file", monkeypatch)
    with pytest.raises(Failure, match=r"cannot keep compiled kernels in .*; set HOST_CUDA_CACHE"):
        build()


def test_without_a_compiler_the_reason_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -x")
    assert why_not() == "needs the C++ compiler 'no-such-compiler'; install g++ or set CXX"


def test_a_source_that_does_not_compile_says_where() -> None:
    with pytest.raises(ValueError, match=r"k does not compile for a CPU: k\.cu line 2: error: "):
        floats("y = no_such_name;")
