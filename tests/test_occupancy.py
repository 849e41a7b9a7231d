"""Occupancy: known points, each limit once, and NVIDIA's own calculator over a grid of kernels."""

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from kernels._raw import header_directories
from verifyscope import hardware
from verifyscope.occupancy import Occupancy, most_registers, occupancy, waves

CAPABILITIES = tuple(hardware.SHARED_BYTES_PER_BLOCK)
_HEADER = "cuda_occupancy.h"
_CALCULATOR = """
#include <cstdio>
#include <cuda_occupancy.h>

int main() {
  int capability, warps, registers, shared, threads;
  size_t per_block, per_sm;
  while (scanf("%d %d %zu %zu %d %d %d", &capability, &warps, &per_block, &per_sm, &registers,
               &shared, &threads) == 7) {
    cudaOccDeviceProp gpu;
    gpu.computeMajor = capability / 10, gpu.computeMinor = capability % 10;
    gpu.maxThreadsPerBlock = 1024, gpu.maxThreadsPerMultiprocessor = 32 * warps;
    gpu.regsPerBlock = gpu.regsPerMultiprocessor = 65536;
    gpu.warpSize = 32, gpu.numSms = 1;
    gpu.sharedMemPerBlock = 49152, gpu.sharedMemPerBlockOptin = per_block;
    gpu.sharedMemPerMultiprocessor = per_sm, gpu.reservedSharedMemPerBlock = 1024;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = 0;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = per_block, kernel.numBlockBarriers = 1;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    const int error = cudaOccMaxActiveBlocksPerMultiprocessor(
        &result, &gpu, &kernel, &state, threads, shared);
    printf("%d\\n", error ? -error : result.activeBlocksPerMultiprocessor);
  }
}
"""


def test_each_limit_is_named_where_it_decides() -> None:
    def of(*, registers: int = 32, shared_bytes: int = 0, threads: int = 128) -> Occupancy:
        return occupancy(
            capability=120, registers=registers, shared_bytes=shared_bytes, threads=threads
        )

    # 8 warps x 32 x 168 registers = 43,008 of 65,536: one block of 8 of 48 warps.
    assert of(registers=168, threads=256) == Occupancy(
        blocks=1, share=8 / 48, limited_by="registers"
    )
    # 49 KB and the 1 KB that is reserved, twice, are the 100 KB of an SM; a byte more is not.
    assert of(shared_bytes=49 * 1024) == Occupancy(blocks=2, share=8 / 48, limited_by="shared")
    assert of(shared_bytes=49 * 1024 + 1) == Occupancy(blocks=1, share=4 / 48, limited_by="shared")
    assert of(threads=1024) == Occupancy(blocks=1, share=32 / 48, limited_by="warps")
    assert of(threads=32) == Occupancy(blocks=24, share=0.5, limited_by="blocks")


def test_what_cannot_be_launched_has_no_block_and_no_waves() -> None:
    too_many = occupancy(capability=90, registers=72, shared_bytes=0, threads=1024)
    assert (too_many.blocks, too_many.share, too_many.limited_by) == (0, 0.0, "registers")
    assert waves(grid_blocks=132, blocks=0, multiprocessors=132) is None
    with pytest.raises(ValueError, match="a block has 0 threads"):
        occupancy(capability=90, registers=72, shared_bytes=0, threads=0)


def test_waves_are_blocks_over_what_the_gpu_holds_at_once() -> None:
    assert waves(grid_blocks=376, blocks=2, multiprocessors=188) == 1.0
    assert waves(grid_blocks=47, blocks=1, multiprocessors=188) == 0.25


def test_so_many_blocks_are_held_at_once_with_the_most_registers_and_not_with_one_more() -> None:
    assert most_registers(warps=4, blocks=2) == 255
    assert most_registers(warps=8, blocks=2) == 128
    assert most_registers(warps=4, blocks=3) == 168
    for warps, blocks in itertools.product((4, 8, 16), (1, 2, 3, 4)):
        most = most_registers(warps=warps, blocks=blocks)

        def held(registers: int, threads: int = 32 * warps) -> int:
            return occupancy(
                capability=90, registers=registers, shared_bytes=0, threads=threads
            ).blocks

        assert held(most) >= blocks
        assert most == 255 or held(most + 1) < blocks


def _header() -> Path | None:
    found = (place for place in header_directories() if (place / _HEADER).exists())
    return next(found, None)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs the C++ compiler g++")
@pytest.mark.skipif(_header() is None, reason=f"needs CUDA's {_HEADER}, as in Triton's wheel")
def test_it_agrees_with_nvidias_own_calculator(tmp_path: Path) -> None:
    source, program = tmp_path / "calculator.cpp", tmp_path / "calculator"
    source.write_text(_CALCULATOR)
    subprocess.run(["g++", "-w", f"-I{_header()}", "-o", program, source], check=True)
    kernels = [
        (capability, registers, shared_bytes, threads)
        for capability in CAPABILITIES
        for registers, shared_bytes, threads in itertools.product(
            (1, 16, 31, 33, 64, 65, 72, 96, 110, 128, 168, 184, 200, 253, 255),
            (0, 1, 127, 1024, 16_896, 37_504, 50_176, 50_177, 75_776, 101_376, 101_377, 232_448),
            (1, 32, 33, 96, 128, 160, 256, 288, 384, 512, 1024),
        )
    ]
    asked = "\n".join(
        f"{capability} {hardware.WARPS_PER_MULTIPROCESSOR[capability]} "
        f"{hardware.SHARED_BYTES_PER_BLOCK[capability]} "
        f"{hardware.SHARED_BYTES_PER_MULTIPROCESSOR[capability]} "
        f"{registers} {shared_bytes} {threads}"
        for capability, registers, shared_bytes, threads in kernels
    )
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    theirs = dict(zip(kernels, map(int, done.stdout.split()), strict=True))
    ours = {
        (capability, registers, shared_bytes, threads): occupancy(
            capability=capability, registers=registers, shared_bytes=shared_bytes, threads=threads
        ).blocks
        for capability, registers, shared_bytes, threads in kernels
    }
    assert {
        kernel: (ours[kernel], theirs[kernel])
        for kernel in kernels
        if ours[kernel] != theirs[kernel]
    } == {}
