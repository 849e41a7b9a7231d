"""How well each difference between two runs could explain which rows moved.

    fits = moved rows that it could touch, the right way and by no more than it can
           / (moved rows + unmoved rows that it could touch)

1 is a difference that could touch all that moved and nothing that stayed. What a difference could
touch is a table (`_TOUCHES`): NCCL's settings touch collectives, copies and whole passes, a version
of Triton its kernels, and so on. A clock that is 10 % lower can make a row 11 % slower and no more.
It is a hypothesis, never a cause: two runs differ in more than anybody recorded.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports._comparison.differences import KINDS, Difference
from reports._comparison.matching import Pair
from reports._comparison.runs import Run, is_whole
from verifyscope.parts import class_of
from verifyscope.records import Measurement

_SLACK = 0.02  # of what a clock explains: rows follow it, and waver
_COLLECTIVES = ("all_reduce", "other_collective", "copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A difference and the rows that it could explain.

    moved: rows that moved in all. explained: of these, those that it could touch as they moved.
    against: moved rows that it could touch, but not that way or not by so much. unmoved: rows that
    it could touch and that are the same.
    """

    difference: Difference
    moved: int
    explained: int
    against: int
    unmoved: int

    @property
    def fits(self) -> float:
        """Return 0 to 1: how well it separates what moved from what did not."""
        every = self.moved + self.unmoved
        return self.explained / every if every else 0.0


def hypotheses(
    differences: Sequence[Difference], pairs: Sequence[Pair], *, old: Run, new: Run
) -> list[Hypothesis]:
    """Return every difference with what it could explain, the best first."""
    moved = [number for number, pair in enumerate(pairs) if pair.moved]
    same = [n for n, pair in enumerate(pairs) if pair.change and pair.change.verdict == "same"]
    found = []
    for one in differences:
        touched = {number for number in one.rows if touches(one, pairs[number], old, new)}
        hit = [number for number in moved if number in touched]
        explained = [number for number in hit if _could(one, pairs[number])]
        found.append(
            Hypothesis(
                difference=one,
                moved=len(moved),
                explained=len(explained),
                against=len(hit) - len(explained),
                unmoved=sum(number in touched for number in same),
            )
        )
    return sorted(found, key=_order)


def _order(one: Hypothesis) -> tuple[float, bool, int, int]:
    """Order by how well it fits; of equals, another GPU explains more than anything else."""
    kind = KINDS.index(one.difference.kind)
    return -one.fits, one.difference.field != "gpus.name", kind, one.unmoved


def touches(difference: Difference, pair: Pair, old: Run, new: Run) -> bool:
    """Say whether a difference could change the time of a row at all."""
    if difference.kind != "environment":
        return True  # it stands at exactly the rows that it was seen at
    both = (old.environment(pair.old), new.environment(pair.new))
    on_gpu = any(one is not None and one.gpus for one in both)
    for pattern, touched in _TOUCHES:
        if pattern.match(difference.field):
            return touched(pair.new.last, on_gpu)
    return False


def _could(difference: Difference, pair: Pair) -> bool:
    """Say whether a difference of a known size explains how far a row moved."""
    if difference.factor is None or pair.change is None:
        return True
    change, most = math.log(pair.change.ratio), -math.log(difference.factor)
    if change * most <= 0:
        return False
    # The end of its interval that is nearest to no change must be within reach.
    nearest = min(abs(math.log(end)) for end in (pair.change.low, pair.change.high))
    return nearest <= abs(most) + _SLACK


def _collective(one: Measurement, on_gpu: bool) -> bool:
    return class_of(one.part) in _COLLECTIVES or is_whole(one)


def _gpu(one: Measurement, on_gpu: bool) -> bool:
    return on_gpu


def _host(one: Measurement, on_gpu: bool) -> bool:
    """Say whether the host's speed is in a time: launches one by one, whole passes, CPU rows."""
    eager = one.launch in ("eager", "piecewise")
    return not on_gpu or eager or is_whole(one) or one.part == "host" or _collective(one, on_gpu)


def _ours(one: Measurement, on_gpu: bool) -> bool:
    return one.kind == "own" or is_whole(one)


def _engine(one: Measurement, on_gpu: bool) -> bool:
    return is_whole(one)


def _everything(one: Measurement, on_gpu: bool) -> bool:
    return True


def _by(*words: str) -> Callable[[Measurement, bool], bool]:
    """Return whether an implementation's name holds one of `words`; whole passes hold any."""

    def touched(one: Measurement, on_gpu: bool) -> bool:
        return is_whole(one) or any(word in one.implementation for word in words)

    return touched


_TOUCHES: tuple[tuple[re.Pattern[str], Callable[[Measurement, bool], bool]], ...] = tuple(
    (re.compile(pattern), touched)
    for pattern, touched in (
        (r"settings\.(NCCL|FI|TORCH_NCCL)_", _collective),
        (r"versions\.(nvidia-)?nccl", _collective),
        (r"settings\.(VLLM|SGLANG|SGL)_", _engine),
        (r"versions\.(vllm|sglang|sgl-kernel)", _engine),
        (r"settings\.(TRITON|FLASHINFER|CUPY)_", _by("triton", "flashinfer", "cupy")),
        (r"versions\.triton", _by("triton", "torch")),
        (r"versions\.(cupy|cuda-|nvidia-cuda-nvrtc)", _by("cupy", "cuda")),
        (r"versions\.flashinfer", _by("flashinfer")),
        (r"versions\.(flash-attn|flashmla|deep-gemm|nvidia-cutlass)", _by("flash", "gemm")),
        (r"versions\.(torch|nvidia-cublas)", _by("torch", "sdpa", "flex", "gloo")),
        (r"versions\.", _ours),
        (r"settings\.", _everything),
        (r"gpus\.pcie_", _collective),
        (r"gpus\.|driver|cuda_driver", _gpu),
        (r"governor|processor|cores|system|python", _host),
        (r"commit|dirty", _ours),
    )
)
