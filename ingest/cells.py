"""The cells of one line of CSV: quoted or not, blanks around them taken off.

cells('a, "b,c" ,d') == ["a", "b,c", "d"]        a line that is no CSV has none
"""

import csv


def cells(text: str) -> list[str]:
    """Return the cells of a line."""
    try:
        found = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:  # before Python 3.11, a NUL in it
        return []
    return [cell.strip() for cell in found]
