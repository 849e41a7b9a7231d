"""The least time that a computation can take: the larger of bytes / bandwidth and flops / peak.

A `Cost` is what any implementation must spend on given inputs: each byte that it must read or
write once, counted where it is touched and not by the size of the tensor that it lies in.
`floor_s` is never somebody's measured time.
"""

from dataclasses import dataclass


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
    if bytes_per_s <= 0 or (flops_per_s is not None and flops_per_s <= 0):
        raise ValueError(
            f"rates must be above zero, got {bytes_per_s} B/s and {flops_per_s} flop/s"
        )
    memory_s = cost.touched_bytes / bytes_per_s
    return memory_s if flops_per_s is None else max(memory_s, cost.flops / flops_per_s)
