"""Cells of a line of CSV."""

import csv
from collections.abc import Iterator

import pytest

from ingest.cells import cells


def test_quotes_and_blanks_around_cells_are_no_part_of_them() -> None:
    assert cells('a, "b,c" , d e,') == ["a", "b,c", "d e", ""]
    assert cells("") == []


def test_a_line_that_is_no_csv_has_no_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(lines: list[str], **options: bool) -> Iterator[list[str]]:
        raise csv.Error("line contains NUL")  # as Python 3.10 does

    monkeypatch.setattr(csv, "reader", refusing)
    assert cells("a\0b,c") == []
