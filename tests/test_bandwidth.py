"""Bus factors and the flag on times that drop."""

import pytest

from verifyscope import bandwidth


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.75),
        ("reduce_scatter", 0.875),
        ("all_gather", 0.875),
        ("all_to_all", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
        ("hypercube", None),
    ],
)
def test_eight_ranks_have_the_documented_factor(op: str, factor: float | None) -> None:
    assert bandwidth.bus_factor(op, 8) == factor


def test_one_rank_has_no_bus_bandwidth() -> None:
    assert bandwidth.bus_factor("all_reduce", 1) == 0


def test_bandwidth_is_bytes_over_seconds_times_the_factor() -> None:
    # 64 KB in 45.66 us on 8 ranks: 1.435 GB/s, 2.512 GB/s on the bus.
    algorithm = bandwidth.algorithm_bandwidth(65536, 45.66e-6)
    factor = bandwidth.bus_factor("all_reduce", 8)
    assert algorithm == pytest.approx(1.4353e9, rel=1e-4)
    assert factor is not None
    assert algorithm * factor == pytest.approx(2.5118e9, rel=1e-4)


def test_only_a_drop_of_over_a_tenth_is_named() -> None:
    assert bandwidth.drops([10.0, 9.0, 8.0, 8.0, 20.0, 1.0]) == [2, 5]
    assert bandwidth.drops([]) == []


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 rank, got 0"):
        bandwidth.bus_factor("all_reduce", 0)
    with pytest.raises(ValueError, match="above zero, got 0"):
        bandwidth.algorithm_bandwidth(8, 0)
