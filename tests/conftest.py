"""What all tests share. Tests need no GPU unless they are marked `gpu`.

Without a GPU, Triton kernels run in Triton's interpreter and CUDA C++ runs on this CPU, so that
whatever a test computes with a kernel is what the kernel computes.
"""

from collections.abc import Iterator

import pytest

from kernels import _execute

# Before any kernel module is imported, since `@triton.jit` reads it.
_execute.interpret_without_a_gpu()


@pytest.fixture(autouse=True)
def _kernels_run_without_a_gpu() -> Iterator[None]:
    with _execute.stand_ins():
        yield
