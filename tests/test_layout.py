"""`import kernels` finds this checkout, whatever else is installed under that name."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "package",
    ["verifyscope", "kernels", "collectives", "graphs", "ingest", "reports", "suites"],
)
def test_import_finds_this_checkout(package: str) -> None:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin == str(ROOT / package / "__init__.py")
