"""algorithm bandwidth = bytes / seconds; bus bandwidth = algorithm bandwidth x bus factor.

With n ranks the factor is 2 (n - 1) / n for an all-reduce, (n - 1) / n for a reduce-scatter, an
all-gather, an all-to-all, a gather and a scatter, and 1 for a broadcast, a reduce and a send. The
size is the buffer of one rank for an all-reduce and the whole buffer for what gathers or scatters.
With one rank nothing is sent: the factor of the first two kinds is 0. Bandwidths are bytes a
second. Source: nccl-tests, doc/PERFORMANCE.md, and src/gather.cu and scatter.cu there.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

DROP = 0.10

_Factor = Callable[[int], float]


def _twice(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _once(ranks: int) -> float:
    return (ranks - 1) / ranks


def _one(ranks: int) -> float:
    return 1.0


_FACTORS: Mapping[str, _Factor] = MappingProxyType(
    {
        "all_reduce": _twice,
        "reduce_scatter": _once,
        "all_gather": _once,
        "all_to_all": _once,
        "gather": _once,
        "scatter": _once,
        "broadcast": _one,
        "reduce": _one,
        "send_recv": _one,
    }
)


def bus_factor(op: str, ranks: int) -> float | None:
    """Return the factor of the collective `op`, or None where no formula is known.

    `ValueError` for fewer than 1 rank.
    """
    if ranks < 1:
        raise ValueError(f"a collective has at least 1 rank, got {ranks}")
    factor = _FACTORS.get(op)
    return None if factor is None else factor(ranks)


def algorithm_bandwidth(size_bytes: float, seconds: float) -> float:
    """Return bytes a second; `ValueError` for a duration that is not above zero."""
    if seconds <= 0:
        raise ValueError(f"a duration is above zero, got {seconds} s")
    return size_bytes / seconds


def drops(seconds: Sequence[float]) -> list[int]:
    """Return the positions, by ascending size, whose time is over 10 % below the one before.

    More bytes in clearly less time is a change of protocol, or noise: measure such a point again.
    """
    return [at for at in range(1, len(seconds)) if seconds[at] < (1 - DROP) * seconds[at - 1]]
