"""What others report of such machines: for orientation, and as sizes of levers. Not measured here.

Each figure is somebody's word, with where it stands; none of them is a floor or a component of a
prediction. They count for the GPU, the ranks and, where one is named, the model they were met on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from graphs.layers import Pass

_WIKI = "local-inference-lab/rtx6kpro, 2026-05"
_GPU, _RANKS, _MODELS = "rtx-pro-6000-server", 8, ("kimi-k2.5", "kimi-k2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A pass that somebody saw, an earlier run of the same setup, and where that stands."""

    observed_s: float
    earlier_s: float | None
    source: str
    known: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduces:
    """Seconds of an all-reduce by bytes, in ascending order, by one way of doing it."""

    seconds: Mapping[int, float]
    source: str


FOUNDING_ROWS = 3
FOUNDING = Observed(
    observed_s=29.49e-3,
    earlier_s=19.04e-3,
    source="the founding case's log, target verify of 3 tokens; 18.99 to 19.09 ms earlier",
    known="its time did not grow with the context, nor change with the attention mode",
)
PROTOCOL = AllReduces(
    seconds=MappingProxyType(
        {32_768: 26.2e-6, 65_536: 25.6e-6, 131_072: 32.1e-6, 262_144: 37.3e-6}
    ),
    source=f"NCCL LL by a graph file, 8 x RTX PRO 6000 on two Turin; {_WIKI}",
)
ONE_SHOT = AllReduces(
    seconds=MappingProxyType({8_192: 9.2e-6, 32_768: 16.5e-6, 65_536: 25.9e-6, 262_144: 73.6e-6}),
    source=f"a custom one-shot, 8 x RTX PRO 6000 behind 3 switches; {_WIKI}",
)


def orientation(asked: Pass, *, gpu: str) -> Iterator[str]:
    """Yield a line for each figure of the field on this model, GPU and number of ranks."""
    if not _is_kimi_there(asked, gpu=gpu):
        return
    yield (
        f"plain decode 11.5 to 12.1 ms a token (86.9 tokens/s for Kimi-K2.6, {_WIKI}; 12.1 ms in "
        f"the founding case)"
    )
    yield f"best whole cycles 19 to 21 ms (Kimi-K2.6 with EAGLE-3, 107 to 117 tokens/s, {_WIKI})"


def founding(asked: Pass, *, gpu: str) -> Observed | None:
    """Return the founding case's times where this is its pass; its context is not known."""
    if not _is_kimi_there(asked, gpu=gpu):
        return None
    is_its = (asked.model.name, asked.rows, asked.requests) == ("kimi-k2.5", FOUNDING_ROWS, 1)
    return FOUNDING if is_its else None


def counts_for(asked: Pass, *, gpu: str) -> bool:
    """Say whether the times of all-reduces above were met on such a machine."""
    return gpu == _GPU and asked.tp == _RANKS


def _is_kimi_there(asked: Pass, *, gpu: str) -> bool:
    return counts_for(asked, gpu=gpu) and asked.model.name in _MODELS
