"""What all tests share. Tests need no GPU unless they are marked `gpu`.

Without a GPU, Triton kernels run in Triton's interpreter and CUDA C++ runs on this CPU, so that
whatever a test computes with a kernel is what the kernel computes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kernels
from kernels import _execute
from reports import _plot_style
from tests import chromium
from tests.chromium import Browser

# Before any kernel module is imported, since `@triton.jit` reads it.
_execute.interpret_without_a_gpu()


@pytest.fixture(autouse=True)
def _kernels_run_without_a_gpu() -> Iterator[None]:
    with _execute.stand_ins():
        yield


@pytest.fixture(autouse=True)
def _plots_keep_their_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever plot a test makes, by whichever way, keeps to tests/plot_rules.py."""
    write = _plot_style.written

    def checked(figure: Any, path: Path) -> None:
        from tests import plot_rules  # matplotlib: only where there is a plot

        faults = plot_rules.faults(figure)
        assert not faults, f"{path.name}: {faults}"
        write(figure, path)

    monkeypatch.setattr(_plot_style, "written", checked)


@pytest.fixture
def as_a_rank_runs() -> Iterator[None]:
    """One thread, no gradients: more threads on a shared machine would wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def more_ops(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function after which files of other folders count as files of `kernels/`.

    `tests/ops` has right ones, `tests/wrong_ops` has each fault that is to be named.
    """

    def add(*folders: Path) -> None:
        monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, *map(str, folders)])

    return add


@pytest.fixture(scope="module")
def _started_browser() -> Iterator[Browser]:
    with chromium.browser() as started:
        yield started


@pytest.fixture
def browser(_started_browser: Browser) -> Browser:
    """A Chromium that has reported no error; one for all tests of a module."""
    _started_browser.said.clear()
    return _started_browser
