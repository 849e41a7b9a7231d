"""Loaded by `pytest -p`: the suites see the ops of this folder, and no other."""

from pathlib import Path

import kernels
from suites import _suite

# Imported whole before the path changes: the machinery of `kernels` is on the old one.
assert_loaded = _suite
kernels.__path__ = [str(Path(__file__).resolve().parent)]
