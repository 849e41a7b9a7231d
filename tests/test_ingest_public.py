"""Public logs of nccl-tests, where they lie beside the checkout, give what is expected of them."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from ingest import nccl_findings, nccl_records, nccl_tests
from ingest.log import Log, numbered_lines
from ingest.nccl_tests import Table
from verifyscope.records import Measurement

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "nccl"

shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"no {SHARED.name} logs beside the checkout"
)


def expectations() -> list[dict[str, Any]]:
    if not SHARED.is_dir():
        return []
    found: list[dict[str, Any]] = json.loads((SHARED / "expected.json").read_text())
    return found


def shared_tables(text: bytes) -> list[Table]:
    return list(nccl_tests.tables(numbered_lines(BytesIO(text))))


@shared
def test_public_logs_give_what_is_expected_of_them() -> None:
    checked = 0
    for expected in expectations():
        if "tables" not in expected:
            continue
        found = shared_tables((SHARED / expected["file"]).read_bytes())
        assert len(found) == len(expected["tables"]), expected["file"]
        for table, want in zip(found, expected["tables"], strict=True):
            check_header(table, expected, want)
            check_rows(table, want)
            checked += 1
    assert checked == 13


def check_header(table: Table, expected: dict[str, Any], want: dict[str, Any]) -> None:
    assert (table.ranks, table.nodes) == (expected["n_ranks"], expected["n_nodes"])
    if table.nccl_version is not None:  # some versions are known from elsewhere, not from the file
        assert table.nccl_version == expected["nccl_version"]
    tool = expected["nccl_tests_version"]
    assert table.tool == (None if tool is None else f"nccl-tests {tool}")
    assert (table.name is not None) == expected["collective_named_in_file"]
    if table.name is not None:
        assert table.name == want["collective"]
    named = nccl_records.collective(Table(line=1, name=want["collective"]))
    assert nccl_records.collective(table) == named
    assert table.out_of_bounds == want["out_of_bounds"]
    assert table.average_gb_s == want["avg_busbw_printed_GBps"]
    average = nccl_findings.average(table)
    assert average == pytest.approx(want["avg_busbw_from_rows_GBps"], abs=6e-4)


def check_rows(table: Table, want: dict[str, Any]) -> None:
    rows = table.rows
    assert len(rows) == want["rows"]
    assert {row.dtype for row in rows} == {want["dtype"]}
    assert {row.redop for row in rows} == {want["redop"]}
    assert (rows[0].size_bytes, rows[-1].size_bytes) == (want["first_size"], want["last_size"])
    assert rows[0].out_of_place.time_us == want["out_of_place_us_first"]
    assert rows[-1].out_of_place.time_us == want["out_of_place_us_last"]
    assert rows[-1].out_of_place.bus_gb_s == want["busbw_out_of_place_last_GBps"]
    middle = next((row for row in rows if row.size_bytes == 65536), None)
    if middle is not None and middle.in_place is not None:
        assert middle.out_of_place.time_us == want["out_of_place_us_at_64KB"]
        assert middle.in_place.time_us == want["in_place_us_at_64KB"]
    else:
        assert want["out_of_place_us_at_64KB"] is None
    wrong = [row.out_of_place.wrong for row in rows]
    assert sum(count or 0 for count in wrong) == want["wrong_out_of_place"]
    in_place = [row.in_place.wrong for row in rows if row.in_place]
    checked = [count for count in in_place if count is not None]
    assert (sum(checked) if checked else None) == want["wrong_in_place"]
    dropped = nccl_records.dropped_rows(table, in_place=False)
    sizes = want["sizes_where_time_drops_over_10_percent"]
    assert sorted(rows[at].size_bytes for at in dropped) == sizes


@shared
def test_public_fragments_of_tricky_formats_are_read_alone_and_together() -> None:
    (expected,) = [known for known in expectations() if "fragments" in known]
    whole = (SHARED / expected["file"]).read_bytes()
    pieces = {part[:2].decode(): part for part in whole.split(b"### ")[1:]}
    for name, want in expected["fragments"].items():
        found = shared_tables(pieces[name])
        rows = [row for table in found for row in table.rows]
        assert len(rows) == want["rows"], name
        if "sizes" in want:
            assert [row.size_bytes for row in rows] == want["sizes"]
        if isinstance(want.get("out_of_place_us"), list):
            assert [row.out_of_place.time_us for row in rows] == want["out_of_place_us"]
        if "errors_out" in want:
            assert [row.out_of_place.error for row in rows] == want["errors_out"]
            assert [row.in_place.error for row in rows if row.in_place] == want["errors_in"]
        if "avg_busbw_GBps" in want:
            assert found[0].average_gb_s == want["avg_busbw_GBps"]
            assert found[0].out_of_bounds == want["out_of_bounds"]
        if "n_ranks" in want:
            assert found[0].ranks == want["n_ranks"]
        if "error" in want:
            assert found[0].failure is not None
            assert found[0].failure[1] == want["error"]
    together = [row for table in shared_tables(whole) for row in table.rows]
    assert len(together) == sum(want["rows"] for want in expected["fragments"].values())


@shared
def test_the_one_corrupt_public_row_is_the_only_one() -> None:
    corrupt = []
    for path in sorted(SHARED.glob("*.txt")):
        with path.open("rb") as file:
            log = Log(file=path.name, lines=numbered_lines(file), environment="e", command="c")
            for known in nccl_records.read(log):
                if isinstance(known, Measurement) and known.status == "corrupt":
                    corrupt.append((path.name[:2], known.case))
    assert corrupt == [("18", "8388608B-float32-in-place")]
