"""A kernel that does nothing for so many nanoseconds: an all-reduce of a length of one's choice.

One thread reads %globaltimer until the time is over. Its tick is the GPU's (up to 1 us): what it
really lasted is in the device's own times of it. The name holds `all_reduce`, by which traces know
its class.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


@triton.jit(do_not_specialize=["hold_ns"])
def stub_all_reduce_delay(elapsed_ptr, hold_ns):  # type: ignore[no-untyped-def]  # triton has no types
    start = globaltimer()
    now = start
    while now - start < hold_ns:
        now = globaltimer()
    tl.store(elapsed_ptr, now - start)


def delay(seconds: float, device: torch.device) -> Callable[[torch.Tensor], None]:
    """Return what launches the kernel; the tensor that it is given stays as it is."""
    elapsed = torch.zeros(1, dtype=torch.int64, device=device)
    hold_ns = round(seconds * 1e9)

    def launch(x: torch.Tensor) -> None:
        stub_all_reduce_delay[(1,)](elapsed, hold_ns, num_warps=1)

    return launch
