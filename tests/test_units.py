"""Text to numbers and back: exact, three digits, and a clear word about what is wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifyscope import units
from verifyscope.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("57344", 57_344),
        ("8B", 8),
        ("64K", 65_536),
        ("64k", 65_536),
        ("1.5M", 1_572_864),
        ("8GiB", 8 * 2**30),
        ("8 gb", 8 * 2**30),
        ("2T", 2**41),
        ("9007199254740993", 2**53 + 1),  # a float would lose the last byte
    ],
)
def test_sizes_are_read_in_powers_of_1024_exactly(text: str, size: int) -> None:
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "1.5", "0.3K", "8X", "8iB", "K", "1e9", "nan", "inf", "٣", "9" * 400, "1,2"],
)
def test_a_bad_size_is_named_with_what_is_allowed(text: str) -> None:
    with pytest.raises(UsageError, match=r"size .* give one like 57344, 64K, 8M or 8G"):
        units.parse_bytes(text)


def test_counts_take_k_and_m_but_not_g() -> None:
    assert units.parse_count("8192") == units.parse_count("8k") == 8192
    assert units.parse_count("1.5K") == 1536
    assert units.parse_count("1M") == 2**20
    for text in ("8G", "0", "-4", "2.5", "8KB"):
        with pytest.raises(UsageError, match=r"count .* give one like 4, 8192 or 8k"):
            units.parse_count(text)


def test_a_list_keeps_its_order_and_each_number_once() -> None:
    assert units.parse_list("4,1,4,8k", units.parse_count) == [4, 1, 8192]
    with pytest.raises(UsageError, match="count ''"):
        units.parse_list("1,,2", units.parse_count)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1.50T", 1.5e12), ("864G", 864e9), ("864GB/s", 864e9), ("1597000 M", 1597e9), ("2e", None)]
    + [(text, None) for text in ("0", "-1T", "1.5", "1.5TiB", "T")],
)
def test_rates_are_read_in_powers_of_1000(text: str, rate: float | None) -> None:
    if rate is not None:
        assert units.parse_rate(text) == rate
        return
    with pytest.raises(UsageError, match=r"give one like 1\.50T or 864G"):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (12.34e-6, "12.3 us"),
        (999.6e-6, "1.00 ms"),
        (999.4e-6, "999 us"),
        (1e-4, "100 us"),
        (4.555e-3, "4.55 ms"),
        (0.99951, "1.00 s"),
        (7.891, "7.89 s"),
        (12345.0, "12300 s"),
        (5e-10, "0.500 ns"),
        (3e-15, "3.00e-06 ns"),
        (-2e-3, "-2.00 ms"),
    ],
)
def test_durations_have_three_digits_and_the_unit_that_fits_after_rounding(
    value: float, text: str
) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (7, "7 B"),
        (999, "999 B"),
        (999.6, "1.00 kB"),
        (0.25, "0.250 B"),
        (57_344, "57.3 kB"),
        (999_600, "1.00 MB"),
        (3_096_576, "3.10 MB"),
        (10_302_000_000, "10.3 GB"),
        (1.5e15, "1500 TB"),
    ],
)
def test_sizes_are_printed_in_powers_of_1000(value: float, text: str) -> None:
    assert units.bytes_(value) == text


def test_rates_flops_and_fractions_are_printed_with_their_unit() -> None:
    assert units.rate(1.5e12) == "1.50 TB/s"
    assert units.flops(0) == "0 flop"
    assert units.flops(1.234e9) == "1.23 Gflop"
    assert units.percent(0.0874) == "8.7 %"


@settings(deadline=None, derandomize=True)
@given(st.integers(min_value=1, max_value=2**60))
def test_a_binary_size_is_read_back_as_the_same_bytes(size: int) -> None:
    assert units.parse_bytes(units.binary_size(size)) == size


def test_a_binary_size_has_a_suffix_only_where_that_is_exact() -> None:
    texts = [units.binary_size(size) for size in (1, 1023, 1024, 1536, 2**20, 3 * 2**40)]
    assert texts == ["1", "1023", "1K", "1536", "1M", "3T"]


@settings(deadline=None, derandomize=True)
@given(st.floats(min_value=1e-12, max_value=1e6))
def test_a_printed_duration_is_within_half_a_digit(value: float) -> None:
    number, unit = units.seconds(value).split()
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * scale == pytest.approx(value, rel=0.00501)
    assert len(number.lstrip("0.").replace(".", "")) >= 3 or "e" in number


@pytest.mark.parametrize(
    ("value", "unit", "scale"),
    [(29.5e-3, "ms", 1e-3), (999.9e-6, "ms", 1e-3), (-2e-6, "us", 1e-6), (0.0, "s", 1.0)],
)
def test_a_duration_has_the_unit_that_it_is_printed_in(
    value: float, unit: str, scale: float
) -> None:
    assert units.unit_of(value) == (unit, scale)
    assert units.seconds(value).endswith(f" {unit}")
