"""What a CUDA C++ kernel may be called with, and what reaches whoever launches it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernels import _raw, _target
from kernels._raw import Launch, RawKernel

SOURCE = 'extern "C" __global__ void k(float* y, int n) { y[threadIdx.x] = n; }'


@pytest.fixture
def launches() -> list[Launch]:
    return []


@pytest.fixture(autouse=True)
def _keep(launches: list[Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_raw, "instead_of_launching", launches.append)


def test_a_launch_is_handed_over_as_it_was_written(launches: list[Launch]) -> None:
    y, n = torch.zeros(4), np.int32(3)
    RawKernel("k", SOURCE, options=("-DN=1",))((2, 1), (4,), y, n, 5, shared_bytes=64)
    (launch,) = launches
    assert (launch.name, launch.source, launch.options) == ("k", SOURCE, ("-DN=1",))
    assert (launch.grid, launch.block, launch.shared_bytes) == ((2, 1), (4,), 64)
    assert launch.args[0] is y
    assert launch.args[1:] == (n, 5)


@pytest.mark.parametrize("wrong", [0.5, True, None, "4", [1]])
def test_an_argument_that_has_no_one_meaning_is_refused(
    wrong: object, launches: list[Launch]
) -> None:
    call: Callable[..., None] = RawKernel("k", SOURCE)
    with pytest.raises(TypeError, match=r"k: argument 1 is .*; give a tensor, an int .8 bytes."):
        call((1,), (1,), torch.zeros(1), wrong)
    assert launches == []


@pytest.mark.parametrize(
    ("grid", "block", "complaint"),
    [
        ((0,), (32,), r"k: grid \(0,\); give 1 to 3 sizes from 1 up to 2147483647, 65535, 65535"),
        ((1, 70_000), (32,), r"k: grid \(1, 70000\)"),
        ((1, 1, 1, 1), (32,), r"k: grid \(1, 1, 1, 1\)"),
        ((1,), (0,), r"k: block \(0,\)"),
        ((1,), (1, 1, 65), r"k: block \(1, 1, 65\)"),
        ((1,), (64, 32), r"k: block \(64, 32\) has over 1024 threads"),
    ],
)
def test_a_launch_that_a_gpu_would_refuse_is_refused_anywhere(
    grid: tuple[int, ...], block: tuple[int, ...], complaint: str, launches: list[Launch]
) -> None:
    with pytest.raises(ValueError, match=complaint):
        RawKernel("k", SOURCE)(grid, block, torch.zeros(1), 1)
    assert launches == []


def test_options_are_a_tuple() -> None:
    make: Callable[..., RawKernel] = RawKernel
    with pytest.raises(TypeError, match="must be a tuple of texts"):
        make("k", SOURCE, options=["-DN=1"])


def test_without_a_stand_in_tensors_must_lie_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_raw, "instead_of_launching", None)
    pytest.importorskip("cupy", reason="needs the package 'cupy'")
    with pytest.raises(ValueError, match="k: its tensors lie on cpu; give all of them on one CUDA"):
        RawKernel("k", SOURCE)((1,), (1,), torch.zeros(1), 1)


def test_what_launches_is_replaced_within_a_block_only(launches: list[Launch]) -> None:
    others: list[Launch] = []
    with _raw.launching_by(others.append):
        RawKernel("k", SOURCE)((1,), (1,), torch.zeros(1), 1)
    RawKernel("k", SOURCE)((1,), (2,), torch.zeros(1), 1)
    assert [one.block for one in others] == [(1,)]
    assert [one.block for one in launches] == [(2,)]


def test_a_source_keeps_its_line_numbers_behind_the_macros() -> None:
    text = _raw.gpu_source(SOURCE)
    assert text.endswith(f"#line 1\n{SOURCE}")
    assert all(macro in text for macro in ("SHARED_ARRAY", "DYNAMIC_SHARED", "SHARED_AS"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers for itself")
def test_tiles_are_for_the_smallest_shared_memory_unless_something_is_compiled_for() -> None:
    assert _target.capability() == 120
    with _target.compiling_for(90):
        assert _target.capability() == 90
        with _target.compiling_for(100):
            assert _target.capability() == 100
        assert _target.capability() == 90
    assert _target.capability() == 120
