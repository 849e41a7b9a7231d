"""A pass took longer than an earlier run, or than predicted: what each hypothesis would have to be.

    excess = observed - against, divided evenly over what the hypothesis blames

- all-reduces: each of them slower by excess / calls
- launch gaps: each layer waits excess / layers longer for its kernels
- attention read T times: excess / (layers x (T - 1)) for each further read of the cache

A hypothesis explains nothing by being divisible: each names the measurement that confirms it, with
the number to be met, and the one that kills it. Seconds throughout; pure arithmetic.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from verifyscope import units

Name = Literal["all-reduces", "launch gaps", "attention read T times"]
Against = Literal["earlier run", "prediction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a hypothesis is held against: one pass of `layers` layers and `rows` rows.

    all_reduces: calls in the layers, of `message_bytes`, predicted to take all_reduce_s each;
    row_bytes: of a single row.
    launches: eager launches of a pass; read_s: what one further read of a layer's cache takes.
    """

    model: str
    ranks: int
    layers: int
    rows: int
    all_reduces: int
    message_bytes: int
    row_bytes: int
    all_reduce_s: float | None
    launches: int
    read_s: float
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One way to explain an excess: `count` times each_s more. It stands against a time.

    at_most: a part of the prediction is not known, so that the excess may be less.
    """

    name: Name
    against: Against
    excess_s: float
    count: int
    what: str
    confirm: str
    kill: str
    at_most: bool = False

    @property
    def each_s(self) -> float:
        """Return what each of them would have to take more."""
        return self.excess_s / self.count


def hypotheses(
    observed_s: float, *, against: Against, against_s: float, facts: Facts, complete: bool = True
) -> list[Hypothesis]:
    """Return the hypotheses that this pass allows; none where there is no excess.

    complete: False where against_s is "at least", and so the excess at most.
    """
    excess_s = observed_s - against_s
    if excess_s <= 0:
        return []
    return [
        Hypothesis(
            name=name,
            against=against,
            excess_s=excess_s,
            count=count,
            what=what,
            confirm=confirm,
            kill=kill,
            at_most=not complete,
        )
        for name, count, what, confirm, kill in _blamed(excess_s, facts)
    ]


def _blamed(excess_s: float, facts: Facts) -> Iterator[tuple[Name, int, str, str, str]]:
    if facts.all_reduces:
        each_s = excess_s / facts.all_reduces
        yield "all-reduces", facts.all_reduces, "an all-reduce", *_all_reduces(each_s, facts)
    yield "launch gaps", facts.layers, "a layer", *_gaps(excess_s / facts.layers, facts)
    reads = facts.layers * (facts.rows - 1)
    if reads:
        each_s = excess_s / reads
        yield "attention read T times", reads, "a further read", *_reads(each_s, facts)


def _all_reduces(each_s: float, facts: Facts) -> tuple[str, str]:
    size = f"{facts.message_bytes:,} B"
    command = f"python -m collectives.sweep --gpus {facts.ranks} --model {facts.model} --tokens "
    command += f"{facts.message_bytes // facts.row_bytes} on that host"
    if facts.all_reduce_s is None:
        slower = units.seconds(each_s)
        return f"{command}: {slower} more than before at {size}", f"{command}: as quick as before"
    slow = units.seconds(facts.all_reduce_s + each_s)
    usual = units.seconds(facts.all_reduce_s)
    return (
        f"{command}: about {slow} at {size}; or all-reduces as long in a trace of the slow run",
        f"{command}: about {usual} at {size}, as predicted",
    )


def _gaps(each_s: float, facts: Facts) -> tuple[str, str]:
    share = facts.launches / facts.layers
    return (
        f"python -m ingest TRACE of the slow run: the device idle for {units.seconds(each_s)} a "
        f"layer between kernels ({share:.0f} launches a layer: {units.seconds(each_s / share)} "
        f"each), and verify outside of a graph",
        "the trace shows verify as one graph launch, or no more idle time than the fast run",
    )


def _reads(each_s: float, facts: Facts) -> tuple[str, str]:
    context = facts.context * each_s / facts.read_s
    return (
        f"time(L) at two contexts: it grows by {facts.rows} reads a token and not by one; at "
        f"{facts.context:,} tokens a read takes {units.seconds(facts.read_s)} by bandwidth, so "
        f"that this alone needs {context:,.0f} tokens",
        "time(L) does not grow, or by one read of the cache a token",
    )
