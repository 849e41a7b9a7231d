"""Ranks together: waited = time in a collective - the least of any rank, which came last.

A collective ends for all at once, so who enters it last spends least time in it: that least time
bounds what the transfer takes, and the rest of every other rank's is waiting. Ranks are those of
one world, each given once, that made equally many calls of a kernel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingest.conclusions import Conclusion, Seen, listed, ms, percent
from ingest.facts import Facts
from ingest.trace_facts import Collective, TraceFacts

SKEW = 2.0
WAIT_SHARE = 0.05
NEAR_LEAST = 1.25


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank and where it was read."""

    file: str
    number: int
    trace: TraceFacts


def conclusions(all_facts: Sequence[Facts]) -> Iterator[Conclusion]:
    """Yield who came last to the collectives of each world."""
    found = [
        Rank(facts.file, trace.rank, trace)
        for facts in all_facts
        for trace in facts.traces
        if trace.rank is not None and trace.collectives
    ]
    for world in dict.fromkeys(rank.trace.world for rank in found):
        ranks = sorted((one for one in found if one.trace.world == world), key=lambda x: x.number)
        twice = len({rank.number for rank in ranks}) < len(ranks)
        if twice:
            yield _twice(ranks)
        elif len(ranks) > 1:
            yield from _together(ranks)


def _twice(ranks: Sequence[Rank]) -> Conclusion:
    numbers = [rank.number for rank in ranks]
    again = sorted({number for number in numbers if numbers.count(number) > 1})
    return Conclusion(
        name="ranks-not-compared",
        sentence=f"rank {listed([str(number) for number in again])} is there more than once: "
        f"traces of different times are not compared",
        seen=tuple(Seen(rank.file, None, f"rank {rank.number}") for rank in ranks),
        next_action="give one trace of each rank, all of the same steps",
        verdict=False,
    )


def _together(ranks: Sequence[Rank]) -> Iterator[Conclusion]:
    names = dict.fromkeys(name for rank in ranks for name in rank.trace.collectives)
    for name in names:
        calls = {rank.number: rank.trace.collectives.get(name) for rank in ranks}
        there = {number: one for number, one in calls.items() if one is not None}
        if len(there) < len(ranks) or len({one.calls for one in there.values()}) > 1:
            yield _uneven(name, there, ranks)
        else:
            yield from _straggler(name, there, ranks)


def _uneven(name: str, there: dict[int, Collective], ranks: Sequence[Rank]) -> Conclusion:
    counts = [f"{number}: {one.calls}" for number, one in there.items()]
    return Conclusion(
        name="ranks-not-compared",
        sentence=f"the ranks did not make equally many calls of {name} ({', '.join(counts[:16])}): "
        f"who came last is not told",
        seen=tuple(Seen(rank.file, name, f"rank {rank.number}") for rank in ranks),
        next_action="give traces of the same steps of all ranks",
        verdict=False,
    )


def _straggler(
    name: str, there: dict[int, Collective], ranks: Sequence[Rank]
) -> Iterator[Conclusion]:
    sums = {number: one.sum_s for number, one in there.items()}
    least, most = min(sums.values()), max(sums.values())
    first = next(number for number, spent in sums.items() if spent == most)
    busy = next(rank.trace.breakdown.busy_s for rank in ranks if rank.number == first)
    waited = most - least
    if most < SKEW * least or waited < WAIT_SHARE * busy:
        return
    last = [number for number, spent in sums.items() if spent <= NEAR_LEAST * least]
    came = listed([str(number) for number in last])
    world = ranks[0].trace.world
    missing = f"; {len(ranks)} of {world} ranks are here" if world and world > len(ranks) else ""
    yield Conclusion(
        name="straggler-rank",
        sentence=f"rank {came} came last to {name}: the transfer takes at most {ms(least)}, and "
        f"rank {first} waited at least {ms(waited)} of its {ms(busy)} busy "
        f"({percent(waited / busy)}); it is late ranks, not bandwidth{missing}",
        seen=tuple(
            Seen(rank.file, name, f"rank {rank.number}: {ms(sums[rank.number])}") for rank in ranks
        ),
        next_action=f"look at what rank {came} does before the collective; bandwidth is not the "
        f"matter",
        worth_s=waited,
        confidence="likely",
    )
