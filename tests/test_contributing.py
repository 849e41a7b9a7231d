"""CONTRIBUTING's kernel in ten minutes: one file, and it is in list, check, gate and suite."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from verifyscope.units import bytes_, seconds

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("verifyscope", "kernels", "reports", "suites", "tests")
SKIPPED = shutil.ignore_patterns("__pycache__", "published")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources with the page's kernel saved where the page says."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=SKIPPED)
    shutil.copy(ROOT / "pyproject.toml", folder)
    page = (ROOT / "CONTRIBUTING.md").read_text()
    place = re.search(r"Save this as `(kernels/\w+\.py)`", page)
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert place is not None
    assert code is not None
    (folder / place[1]).write_text(code[1])
    return folder


def lines_of(checkout: Path, *arguments: str) -> list[list[str]]:
    """Run a command in the copy; return its tab-separated lines."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=checkout,
        env=environment | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_it_is_listed_with_the_reason_or_none(checkout: Path) -> None:
    points = {
        tuple(line[:4]) for line in lines_of(checkout, "kernels", "--list", "--op", "l2_norm")
    }
    assert points == {
        ("l2_norm", implementation, kind, case)
        for implementation, kind in (("torch", "baseline-direct"), ("triton", "own"))
        for case in ("3x100", "4x7168")
    }


def test_it_is_held_to_its_reference(checkout: Path) -> None:
    lines = lines_of(checkout, "kernels", "--check", "--tiny", "--op", "l2_norm")
    assert {(line[1], line[6]) for line in lines} == {("torch", "passed"), ("triton", "passed")}
    assert all(0 < float(line[3]) <= float(line[4]) == 1e-2 for line in lines)


def test_it_passes_the_compile_gate(checkout: Path) -> None:
    lines = lines_of(checkout, "kernels", "--compile", "90", "120", "--op", "l2_norm")
    assert [(line[3], line[4], line[6]) for line in lines] == [
        ("_l2_norm", "90", "0"),
        ("_l2_norm", "120", "0"),
    ]


def test_what_it_takes_on_another_gpu_is_predicted(checkout: Path) -> None:
    lines = lines_of(checkout, "kernels", "--predict", "h200", "--op", "l2_norm")
    moved_bytes = 2 * 4 * 7168 * 2  # x read and y written, bfloat16
    floors = {(line[1], line[3]): (line[4], line[5]) for line in lines}
    assert floors["triton", "4x7168"] == (
        seconds(moved_bytes / 4.8e12),
        bytes_(moved_bytes),
    )


def test_the_tests_of_all_kernels_take_it(checkout: Path) -> None:
    lines = lines_of(
        checkout, "pytest", "tests/test_kernels.py", "-q", "-k", "l2_norm", "-p", "no:cacheprovider"
    )
    said = lines[-1][0]
    assert re.match(r"[1-9]\d* passed", said), said


def test_it_is_a_point_of_the_suite(checkout: Path) -> None:
    lines = lines_of(
        checkout,
        "pytest",
        "suites",
        "--collect-only",
        "-q",
        "-k",
        "l2_norm",
        "-p",
        "no:cacheprovider",
    )
    found = re.findall(r"\[l2_norm/(\S+)\]", "\n".join(line[0] for line in lines if line))
    assert sorted(found) == ["torch-3x100", "torch-4x7168", "triton-3x100", "triton-4x7168"]
