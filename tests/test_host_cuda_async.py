"""Products in registers and copies under way on this CPU: values, and what breaks a rule."""

import pytest
import torch

from kernels import _cubin, _sass
from kernels._host_cuda import HostKernel, KernelFault, why_not
from kernels._mma_cuda import MMA
from kernels._raw import Launch

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

ORDERS = (0, 1, 2, 3)

# c = a @ b + c by one warp, with fragments taken element by element where PTX says they lie.
PRODUCT = (
    MMA
    + """
extern "C" __global__ void product(const unsigned short* a, const unsigned short* b, float* c,
                                   const int lanes) {
  const int g = threadIdx.x / 4, p = threadIdx.x % 4;
  const auto pair = [](unsigned low, unsigned high) { return low | high << 16; };
  unsigned left[4], right[2];
  for (int i = 0; i < 4; i++) {
    const unsigned short* from = a + (g + i % 2 * 8) * 16 + i / 2 * 8 + 2 * p;
    left[i] = pair(from[0], from[1]);
  }
  for (int i = 0; i < 2; i++) {
    const unsigned short* from = b + (i * 8 + 2 * p) * 8 + g;
    right[i] = pair(from[0], from[8]);
  }
  float sum[4];
  for (int i = 0; i < 4; i++) sum[i] = c[(g + i / 2 * 8) * 8 + 2 * p + i % 2];
  if (threadIdx.x >= lanes) return;
  mma_16x8x16(sum, left, right[0], right[1], sum);
  for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + 2 * p + i % 2] = sum[i];
}
"""
)

# Doubles 32 x 16 bytes: copied to shared memory, waited for, read by the neighbour.
COPY = """
#include <cuda_pipeline_primitives.h>
extern "C" __global__ void copy(const float* x, float* y, const int body, const int zeros) {
  SHARED_ARRAY(float, part, 128);
  const int t = threadIdx.x, other = (t + 1) % 32;
  if (body == 5) __pipeline_memcpy_async(part + 4 * t, x + 1, 16);
  if (body == 6) __pipeline_memcpy_async(part + 1, x, 8);
  if (body == 7 && t == 31) __pipeline_memcpy_async(part + 4 * t + 4, x, 16);
  if (body == 8) __pipeline_memcpy_async(part, x, 12);
  __pipeline_memcpy_async(part + 4 * t, x + 4 * t, 16, zeros);
  __pipeline_commit();
  if (body == 9) __pipeline_commit();
  if (body != 2) __pipeline_wait_prior(body == 1 || body == 9);
  if (body != 3) __syncwarp();
  for (int i = 0; i < 4; i++) y[4 * other + i] = 2.f * part[4 * other + i];
  if (body == 4) {
    __pipeline_memcpy_async(part + 4 * t, x, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
  }
}
"""


def gpu_classes(name: str, source: str, *, capability: int) -> tuple[str, ...]:
    pytest.importorskip("cuda.bindings", reason="compiling for a GPU needs cuda-python")
    if reason := _cubin.why_not():
        pytest.skip(reason)
    launch = Launch(name=name, source=source, grid=(1,), block=(32,), args=(), shared_bytes=0)
    cubin = _cubin.compiled(launch, capability=capability)
    return _sass.classes(_cubin.disassembled([cubin], capability=capability)[0])


def product(lanes: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the kernel makes of random factors, and what it should."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(16, 16, generator=generator).bfloat16()
    b = torch.randn(16, 8, generator=generator).bfloat16()
    c = torch.randn(16, 8, generator=generator)
    want = c.clone()
    for k in range(16):  # products of such narrow numbers are exact in float
        want += a[:, k, None].float() * b[k].float()
    given = (a.view(torch.int16), b.view(torch.int16), c, lanes)
    HostKernel(PRODUCT, "product")((1,), (32,), given, orders=ORDERS)
    return c, want


def test_a_product_in_registers_is_the_sum_of_exact_products() -> None:
    got, want = product()
    assert torch.equal(got, want)


def test_a_lane_that_takes_no_part_in_a_product_is_a_deadlock() -> None:
    with pytest.raises(KernelFault, match=r"threads 0-30 wait in mma_16x8x16 .*\n +threads 31-31"):
        product(lanes=31)


@pytest.mark.parametrize("capability", [80, 120])
def test_the_same_sources_compile_to_tensor_cores_and_to_wide_copies(capability: int) -> None:
    assert gpu_classes("product", PRODUCT, capability=capability) == ("tensor_core",)
    assert gpu_classes("copy", COPY, capability=capability) == ("wide_load",)


def copied(body: int, *, zeros: int = 0) -> torch.Tensor:
    x, y = torch.arange(1.0, 129.0), torch.zeros(128)
    HostKernel(COPY, "copy")((1,), (32,), (x, y, body, zeros), orders=ORDERS)
    return y


def test_a_copy_that_is_waited_for_is_there_and_ends_in_the_zeros_that_it_was_asked_for() -> None:
    want = 2 * torch.arange(1.0, 129.0)
    assert torch.equal(copied(0), want)
    assert torch.equal(copied(9), want)  # one group, an empty one, may be under way
    want.view(32, 4)[:, 2:] = 0
    assert torch.equal(copied(0, zeros=8), want)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (1, "leave different bytes"),  # it may still be under way
        (2, "leave different bytes"),
        (3, "race: "),
        (4, "race: "),
        (5, r"__pipeline_memcpy_async from an address 4 bytes past a multiple of 16"),
        (6, r"__pipeline_memcpy_async to an address 4 bytes past a multiple of 8"),
        (7, r"thread 31 at line \d+ .*bytes 512 to 527 of part are out of bounds: it has 512"),
        (8, r"__pipeline_memcpy_async of 12 bytes, 0 of them 0: copy 4, 8 or 16"),
    ],
)
def test_what_breaks_a_rule_of_copies_is_named(body: int, fault: str) -> None:
    with pytest.raises(KernelFault, match=fault):
        copied(body)
