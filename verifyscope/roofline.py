"""The least time that a computation can take: the larger of bytes / bandwidth and flops / peak.

A `Cost` is what any implementation must spend on given inputs: each byte that it must read or
write once, counted where it is touched and not by the size of the tensor that it lies in.
`floor_s` is never somebody's measured time.
"""

from dataclasses import dataclass
from typing import Literal

# How much of a bandwidth or a peak a good kernel reaches, where its op says nothing else.
REACHABLE_SHARE = 0.85

Limit = Literal["bytes", "flops", "nodes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes to read and to write at least once, and flops (a fused multiply-add is 2)."""

    flops: float
    read_bytes: float
    written_bytes: float

    @property
    def touched_bytes(self) -> float:
        """Return the bytes that must cross the memory bus."""
        return self.read_bytes + self.written_bytes

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            flops=self.flops + other.flops,
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
        )

    def times(self, count: float) -> "Cost":
        """Return the cost of `count` such computations."""
        return Cost(
            flops=self.flops * count,
            read_bytes=self.read_bytes * count,
            written_bytes=self.written_bytes * count,
        )


def floor_s(cost: Cost, *, bytes_per_s: float, flops_per_s: float | None) -> float:
    """Return the least seconds for `cost`; without a known peak the bytes alone decide."""
    return roof(cost, bytes_per_s=bytes_per_s, flops_per_s=flops_per_s).roof_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The least seconds of a computation, apart by what limits it, and what may be made of them.

    bytes_s, flops_s: the bytes at the bandwidth, the flops at the peak (None: no peak is known).
    nodes, node_s: kernels that wait for one another, and what an empty one takes in a CUDA graph;
    None where that is not known, and then no bound is.
    """

    bytes_s: float
    flops_s: float | None
    nodes: int | None
    node_s: float | None
    reachable_share: float = REACHABLE_SHARE

    @property
    def roof_s(self) -> float:
        """Return the larger of the two."""
        return max(self.bytes_s, self.flops_s or 0.0)

    @property
    def nodes_s(self) -> float | None:
        """Return what the launches alone take."""
        return None if self.nodes is None or self.node_s is None else self.nodes * self.node_s

    @property
    def least_s(self) -> float:
        """Return the roof and the launches, as far as they are known."""
        return self.roof_s + (self.nodes_s or 0.0)

    @property
    def bound_s(self) -> float | None:
        """Return what a good kernel stays within: roof / reachable share + nodes x node_s."""
        return None if self.nodes_s is None else self.roof_s / self.reachable_share + self.nodes_s

    @property
    def limited_by(self) -> Limit:
        """Return which of bytes, flops and nodes takes longest."""
        longest: dict[Limit, float] = {
            "bytes": self.bytes_s,
            "flops": self.flops_s or 0.0,
            "nodes": self.nodes_s or 0.0,
        }
        return max(longest, key=lambda name: longest[name])


def roof(
    cost: Cost,
    *,
    bytes_per_s: float,
    flops_per_s: float | None,
    nodes: int | None = None,
    node_s: float | None = None,
    reachable_share: float = REACHABLE_SHARE,
) -> Roof:
    """Return the roof of `cost` at these rates, computed by `nodes` launches.

    `ValueError` for a rate that is not above zero.
    """
    if bytes_per_s <= 0 or (flops_per_s is not None and flops_per_s <= 0):
        raise ValueError(
            f"rates must be above zero, got {bytes_per_s} B/s and {flops_per_s} flop/s"
        )
    return Roof(
        bytes_s=cost.touched_bytes / bytes_per_s,
        flops_s=None if flops_per_s is None else cost.flops / flops_per_s,
        nodes=nodes,
        node_s=node_s,
        reachable_share=reachable_share,
    )
