"""The least time: the larger of bytes over bandwidth and flops over peak."""

import pytest

from verifyscope.roofline import Cost, floor_s


def test_the_slower_of_memory_and_arithmetic_is_the_floor() -> None:
    cost = Cost(flops=6e9, read_bytes=2e9, written_bytes=1e9)
    assert cost.touched_bytes == 3e9
    assert floor_s(cost, bytes_per_s=1e12, flops_per_s=1e12) == pytest.approx(6e-3)
    assert floor_s(cost, bytes_per_s=1e12, flops_per_s=1e13) == pytest.approx(3e-3)


def test_without_a_known_peak_the_bytes_decide() -> None:
    cost = Cost(flops=1e30, read_bytes=1e9, written_bytes=0)
    assert floor_s(cost, bytes_per_s=1e12, flops_per_s=None) == pytest.approx(1e-3)


def test_costs_add_up_and_repeat() -> None:
    one = Cost(flops=1, read_bytes=2, written_bytes=3)
    assert one + one == one.times(2) == Cost(flops=2, read_bytes=4, written_bytes=6)


@pytest.mark.parametrize(("bytes_per_s", "flops_per_s"), [(0, 1e12), (-1, None), (1e12, 0)])
def test_a_rate_of_nothing_is_refused(bytes_per_s: float, flops_per_s: float | None) -> None:
    cost = Cost(flops=1, read_bytes=1, written_bytes=0)
    with pytest.raises(ValueError, match="rates must be above zero"):
        floor_s(cost, bytes_per_s=bytes_per_s, flops_per_s=flops_per_s)
