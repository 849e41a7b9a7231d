"""saved a pass = calls x (time of the default - time of what is recommended), with its interval.

A tensor-parallel pass reduces ALL_REDUCES_PER_LAYER times in each layer: 122 calls for Kimi-K2.5.
The interval is that of the difference between the means of fresh starts, times the calls: each call
counts as long as one of its timing mode, and what overlaps with other work saves less.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from verifyscope import models
from verifyscope.contests import Contest
from verifyscope.fresh_starts import difference
from verifyscope.recommendation import Recommendation
from verifyscope.stats import Difference

ALL_REDUCES_PER_LAYER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What one pass of `tokens` rows of a model would save, in seconds.

    implementation: None where nothing beats the default there beyond noise; then nothing is saved.
    now_s: what its all-reduces take with the default.
    """

    model: str
    tokens: int
    size_bytes: int
    calls: int
    now_s: float
    implementation: str | None
    saved: Difference | None


def calls_of(model: str) -> int | None:
    """Return the all-reduces of a pass; None for a model whose layers are not known."""
    known = models.TABLE.get(model)
    return None if known is None else ALL_REDUCES_PER_LAYER * known.layers


def savings(contest: Contest, recommended: Recommendation) -> tuple[Saving, ...]:
    """Return the savings at each size of a model, ascending; none for other collectives."""
    return tuple(_savings(contest, recommended)) if contest.op == "all_reduce" else ()


def _savings(contest: Contest, recommended: Recommendation) -> Iterator[Saving]:
    for size, now in contest.times(contest.default).items():
        model, tokens = str(now.dims.get("model")), now.dims.get("tokens")
        calls = calls_of(model)
        if calls is None or not isinstance(tokens, int):
            continue
        name = recommended.at(size)
        saved = None if name is None else difference(contest.rows[name][size], now)
        yield Saving(
            model=model,
            tokens=tokens,
            size_bytes=size,
            calls=calls,
            now_s=calls * (now.median_s or 0.0),
            implementation=name,
            saved=saved
            and Difference(
                value=calls * saved.value, low=calls * saved.low, high=calls * saved.high
            ),
        )
