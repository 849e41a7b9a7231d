"""What others measured reads as a line a series, and nothing of it is lost or called measured."""

from pathlib import Path

import msgspec
import pytest

from reports import _others, _traces
from tests.report_page import Page
from tests.report_sample import CPU, GPU, collective, imported, kernel
from tests.test_reports_html import built, unpacked
from verifyscope.records import Measurement, Origin, Record


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def theirs(op: str, us: float, *, file: str = "table.csv", **changes: object) -> Measurement:
    """Return a row of somebody's table."""
    row = kernel(
        "lib", us, op=op, part="dense_gemm", source="imported", kind="baseline-direct", mode=None
    )
    changes = {"origin": Origin(file=file, line=7), "launch": None, "cache": None} | changes
    return msgspec.structs.replace(row, low_s=None, high_s=None, depth=None, **changes)


def products() -> list[Measurement]:
    """Return 100 shapes of a product at 1, 2 and 4 rows, which take 1, 1 and 2 times as long."""
    return [
        theirs(
            "gemm",
            (shape + 1) * times,
            case=f"r{rows}-o{shape}",
            dims={"rows": rows, "outputs": 64 * (shape + 1)},
            method={"gpu": "h200", "sample": "one figure"},
        )
        for shape in range(100)
        for rows, times in ((1, 1.0), (2, 1.0), (4, 2.0))
    ]


def test_a_table_of_many_shapes_is_one_line_with_what_four_rows_cost(page: Page) -> None:
    page.of([GPU, *products()])
    assert page.rows("### What others measured") == [
        {
            "what": "`gemm`",
            "by": "`lib`",
            "on": "h200",
            "points": "300",
            "over": "rows 1 to 4; outputs 64 to 6,400",
            "time": "1.00 us to 200 us",
            "four beside one": "x 2.00, rows",
            "from": "`table.csv`",
        }
    ]
    assert "*Imported from `table.csv` (on h200).*" in page.text
    assert (
        "- `gemm`, imported from `table.csv`: a verify of 4 tokens takes 2.00 times as long as a "
        "step of one, in the middle of 100 points."
    ) in page.text


def test_the_table_behind_it_goes_from_the_quickest_to_the_slowest_and_counts_the_rest(
    page: Page,
) -> None:
    page.of([GPU, *products()])
    assert "<summary>`table.csv`: 300 rows; one figure</summary>" in page.text
    assert (
        "`gemm`: 40 of 100 points, from the quickest to the slowest; all rows are in" in page.text
    )
    rows = page.rows("`gemm`: 40 of 100 points")
    assert (rows[0]["rows=1"], rows[0]["rows=4"]) == ("1.00 us", "2.00 us")
    assert (rows[-1]["point"], rows[-1]["rows=4"]) == ("outputs 6,400", "200 us")
    assert len(page.text.splitlines()) < 140


def test_every_imported_row_is_among_all_records(tmp_path: Path) -> None:
    _, html, _ = built(tmp_path, [GPU, *products()])
    ids = unpacked(html)["id"]
    assert isinstance(ids, list)
    assert len(ids) == 300


def test_each_system_and_file_has_its_line_and_whole_steps_come_first(page: Page) -> None:
    page.of(
        [
            GPU,
            theirs("gemm", 5.0, case="x"),
            theirs("gemm", 6.0, case="y", dims={"gpu": "b200", "rows": 1}),
            theirs("cycle", 9e3, part="cycle", case="1 running", file="server.log"),
            theirs("cycle", 8e3, part="cycle", case="1 running", file="other.log"),
        ]
    )
    lines = page.rows("### What others measured")
    assert [(one["what"], one["on"], one["time"], one["from"]) for one in lines] == [
        ("`cycle`", "–", "9.00 ms", "`server.log`"),
        ("`cycle`", "–", "8.00 ms", "`other.log`"),
        ("`gemm`", "–", "5.00 us", "`table.csv`"),
        ("`gemm`", "b200", "6.00 us", "`table.csv`"),
    ]


def test_an_imported_row_of_a_case_that_was_measured_stays_beside_it(page: Page) -> None:
    page.of(
        [
            GPU,
            kernel("own", 20.0),
            kernel("lib", 25.0, source="imported", kind="baseline-direct"),
        ]
    )
    assert "### What others measured" not in page.text
    assert {row["implementation"] for row in page.rows("### `tree_attention`")} == {
        "`own`",
        "`lib`",
    }


def test_rows_of_others_leave_the_room_of_measured_ones(page: Page) -> None:
    many = [theirs("gemm", 5.0, case=f"c{n}", dims={"rows": n}) for n in range(1, 1500)]
    page.of([GPU, *many, *(kernel("own", 9.0, case=f"c{n}") for n in range(9))])
    assert len(page.rows("### `tree_attention`")) == 9
    assert "cases are left out" not in page.text


def test_requests_are_t_where_rows_do_not_differ() -> None:
    rows = [theirs("mla", 2.0 * t, dims={"rows": 1, "requests": t}) for t in (1, 4)]
    (one,) = _others.series(rows)
    assert one.axis == "requests"
    assert _others.grown(one).endswith("requests")


# ---- Collectives ----


def test_collectives_begin_with_a_line_a_series_all_reduces_of_the_ranks_of_a_pass_first(
    page: Page,
) -> None:
    def of(op: str, ranks: int, us: float, file: str) -> Measurement:
        changed = {"op": op, "part": op, "ranks": ranks}
        return msgspec.structs.replace(imported(65_536, us, file=file), **changed)

    page.of(
        [
            CPU,
            of("all_gather", 8, 19.0, "g.csv"),
            of("all_reduce", 2, 6.2, "two.csv"),
            of("all_reduce", 16, 110.0, "sixteen.txt"),
            of("all_reduce", 8, 31.6, "eight.csv"),
            collective(57_344, 1000.0),
        ]
    )
    lines = page.rows("### At a glance")
    assert [(one["collective"], one["ranks"], one["four rows"], one["from"]) for one in lines] == [
        ("all_reduce", "8", "1.00 ms", "measured here"),
        ("all_reduce", "8", "31.6 us at 65,536 B", "`eight.csv`"),
        ("all_reduce", "16", "110 us at 65,536 B", "`sixteen.txt`"),
        ("all_reduce", "2", "6.20 us at 65,536 B", "`two.csv`"),
        ("all_gather", "8", "19.0 us at 65,536 B", "`g.csv`"),
    ]


def test_a_size_far_from_four_rows_says_nothing_of_them(page: Page) -> None:
    page.of([CPU, imported(1024, 30.0), imported(2**20, 90.0), collective(8, 5.0)])
    assert "four rows" not in page.rows("### At a glance")[0]


def test_several_series_of_a_file_stand_side_by_side_behind_a_fold(page: Page) -> None:
    several = [
        msgspec.structs.replace(imported(size, ranks * 10.0, file="f.csv"), ranks=ranks)
        for ranks in (2, 4, 8, 16)
        for size in (1024, 65_536)
    ]
    page.of([CPU, *several])
    assert "<summary>`f.csv`: all_reduce, 8 rows</summary>" in page.text
    times = page.rows("<summary>`f.csv`")
    assert times[0] == {
        "bytes": "1,024",
        "8 ranks": "80.0 us",
        "16 ranks": "160 us",
        "4 ranks": "40.0 us",
        "2 ranks": "20.0 us",
    }
    assert [one["bytes"] for one in times] == ["1,024", "65,536"]


# ---- Traces ----


def trace(file: str, case: str, share: float) -> list[Record]:
    whole = kernel(
        "kineto", 10e3, op="trace", part="other_known", case=case, source="imported", mode=None
    )
    one_class = kernel("moe", 4e3, op="trace class", part="moe", case=case, source="imported")
    at = {"origin": Origin(file=file), "command": "ingest"}
    return [
        msgspec.structs.replace(whole, dims={"busy_s": 8e-3, "kernels": 9}, **at),
        msgspec.structs.replace(one_class, dims={"share_of_busy": share}, **at),
    ]


def test_traces_begin_with_a_line_each_in_the_order_of_ranks(page: Page) -> None:
    rows = [trace(f"rank{n}.json", f"rank {n} of 16", n / 100) for n in (10, 2, 9)]
    page.of([CPU, *(row for of_trace in rows for row in of_trace)])
    lines = page.rows("## Traces")
    assert [(one["trace"], one["span"], one["busy"], one["moe"]) for one in lines] == [
        ("rank 2 of 16", "10.0 ms", "80.0 %", "2.0 %"),
        ("rank 9 of 16", "10.0 ms", "80.0 %", "9.0 %"),
        ("rank 10 of 16", "10.0 ms", "80.0 %", "10.0 %"),
    ]
    assert page.text.count("<summary>rank ") == 3


def test_a_class_that_counts_in_no_trace_has_no_column(page: Page) -> None:
    rows = [*trace("a.json", "rank 0", 0.01), *trace("b.json", "rank 1", 0.02)]
    page.of([CPU, *rows])
    assert "moe" not in page.rows("## Traces")[0]
    assert _traces.overview([]).count("\n") <= 1
