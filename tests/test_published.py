"""The times of others: few, each with a source and its licence, in bytes, none of it warm."""

from statistics import median

import pytest

from verifyscope import hardware, published
from verifyscope.published import Row


def found(part: str, **dims: object) -> list[Row]:
    return [
        row
        for row in published.rows()
        if row.part == part and all(getattr(row, name) == value for name, value in dims.items())
    ]


def test_there_are_at_most_300_rows_each_with_a_source_and_a_known_gpu() -> None:
    rows = published.rows()
    assert 200 < len(rows) <= 300
    assert {row.source.partition(",")[0] for row in rows} == {
        "aiconfigurator-core 0.12.0 (NVIDIA; Apache-2.0)"
    }
    assert {row.gpu for row in rows} <= set(hardware.TABLE)
    assert len(
        {
            (row.part, row.gpu, row.ranks, row.implementation, row.launch, str(row.dims))
            for row in rows
        }
    ) == len(rows)


def test_the_licence_is_beside_them_and_says_what_was_changed() -> None:
    text = published.LICENCE.read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert f"{len(published.rows())} rows" in text
    assert "Changed:" in text


def test_sizes_are_bytes_where_the_tables_count_elements() -> None:
    # 16,384 and 32,768 elements of two bytes, on both sides of 4 rows x 7168.
    small, large = (
        found("all_reduce", ranks=8, implementation="nccl 2.29.2", bytes=size)
        for size in (32_768, 65_536)
    )
    assert [row.median_us for row in (*small, *large)] == [29.36, 34.21]
    (largest,) = found("all_gather", ranks=8, bytes=4 * 2**20)
    assert largest.median_us == 183.14
    # The gathered whole over PCIe: were it one rank's share, busbw would be 8 times this.
    assert largest.bytes is not None
    assert largest.bytes / largest.median_s * 7 / 8 == pytest.approx(20.0e9, rel=0.01)


def test_a_point_that_stood_twice_is_one_row_with_both_ends() -> None:
    (row,) = found(
        "attention",
        gpu="rtx-pro-6000-server",
        heads=8,
        requests=4,
        context=8192,
        implementation="sglang 0.5.14 triton",
    )
    assert (row.low_us, row.high_us) == (49.36, 49.51)
    assert row.median_us == pytest.approx(49.435)
    assert row.median_s == pytest.approx(49.435e-6)


def test_experts_and_products_have_come_from_memory() -> None:
    gpu = hardware.find_gpu("rtx-pro-6000-server")
    assert gpu.l2_bytes is not None
    assert gpu.dram_bytes_per_s is not None
    cold = found("routed_experts") + found("dense_gemm")
    assert len(cold) > 20
    for row in cold:
        assert row.touched_bytes is not None
        assert row.touched_bytes > gpu.l2_bytes
        assert row.touched_bytes / row.median_s < gpu.dram_bytes_per_s
    for row in found("routed_experts"):
        assert row.distinct_experts == min(384, 8 * (row.rows or 0))
        assert row.touched_bytes == row.distinct_experts * 3_096_576


def test_products_reach_1_50_tb_a_second_and_what_nobody_measured_is_not_known() -> None:
    rates = [(row.touched_bytes or 0) / row.median_s for row in found("dense_gemm")]
    reached = published.reached("rtx-pro-6000-server")
    assert reached is not None
    assert reached.bytes_per_s == 1.50e12 == float(f"{median(rates):.3g}")
    assert reached.low == pytest.approx(1.466e12, rel=1e-3)
    assert reached.high == pytest.approx(1.531e12, rel=1e-3)
    assert reached.count == 19
    assert published.reached("rtx-5090") is None


def test_a_row_without_a_source_or_of_no_known_part_is_refused() -> None:
    for part, source in (("attention", ""), ("attentoin", "s")):
        with pytest.raises(ValueError, match="needs a part, a time, a source"):
            Row(
                part=part,
                gpu="h200",
                implementation="x",
                dtype="bf16",
                median_us=1.0,
                source=source,
            )
