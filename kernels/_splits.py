"""Into how many parts a KV cache is split so that a small batch still fills a GPU.

One request with one key head is one block of work; on 188 SMs its keys must be cut into parts that
run side by side and are merged by their log-sum-exps. The number is chosen from what the host knows
without waiting for the device: shapes, and the page table's width as the longest possible request
(as serving engines do, so that a captured graph stays right when lengths change). The kernels cut
the length that they find on the device into that many parts of max(least_keys, keys / splits) keys,
rounded up to whole tiles; the parts behind the last key are empty.
"""

import torch

from kernels._target import multiprocessors


def sm_count(device: torch.device) -> int:
    """Return the multiprocessors of `device`; for the CPU those of the GPU it stands in for."""
    if device.type != "cuda":
        return multiprocessors()
    return torch.cuda.get_device_properties(device).multi_processor_count


def split_count(*, blocks: int, most_keys: int, least_keys: int, slots: int) -> int:
    """Return the parts of the keys that fill `slots` places for blocks at most once.

    blocks: those of an unsplit launch. least_keys: below this a part costs more to merge than it
    saves. One wave and no more: a second, half-empty one would last as long as the first.
    """
    return max(1, min(slots // max(1, blocks), -(-most_keys // least_keys)))
