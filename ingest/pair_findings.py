"""Two files side by side: did the one setting change anything, and what does not shard?

Times of both are compared by `stats.compare` on their windows or printed means; under three on a
side nothing is concluded. A difference counts as named only where exactly one setting differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ingest.conclusions import Conclusion, Seen, ms
from ingest.facts import Facts, Steps
from ingest.named_settings import difference
from ingest.named_system import system_of
from ingest.number import short
from verifyscope import stats
from verifyscope.systems import Aspect

AS_SETTINGS: tuple[Aspect, ...] = ("tp", "version")  # what may differ between two files compared
LEAST_SAMPLES = 3
FIXED_FROM = 0.5
_TP_SETTINGS = ("tp_size", "tensor_parallel_size")


def conclusions(all_facts: Sequence[Facts]) -> Iterator[Conclusion]:
    """Yield what every pair of files says."""
    for old, new in combinations(all_facts, 2):
        differs = _differences(old, new)
        for what, before, after in _comparable(old, new):
            yield from _effect(what, before, after, differs=differs)
        yield from _fixed_cost(old, new)


def _differences(old: Facts, new: Facts) -> dict[str, tuple[str, str]]:
    """Return what differs in settings; and TP and version, where headings or names alone say it."""
    named = difference(old.settings, new.settings)
    one, other = system_of(old), system_of(new)
    for aspect in AS_SETTINGS:
        a, b = one.value(aspect), other.value(aspect)
        told = aspect == "tp" and any(name in named for name in _TP_SETTINGS)
        if a is not None and b is not None and a != b and not told:
            named[aspect] = (a, b)
    return named


def _comparable(old: Facts, new: Facts) -> Iterator[tuple[str, "_Timed", "_Timed"]]:
    """Yield what both files time: the verify of a table, else cycles at the same load."""
    first = {one.label: one for one in old.components if one.role == "forward"}
    for one in new.components:
        if one.label in first:
            known = first[one.label]
            before = _Timed(old, known.line, known.seconds)
            yield one.label, before, _Timed(new, one.line, one.seconds)
    if first:
        return
    by_load = {_load(one): one for one in old.steps}
    for steps in new.steps:
        same = by_load.get(_load(steps))
        if same is not None:
            what = f"the {'cycle' if steps.mode == 'verify' else 'step'} at {steps.running} running"
            before = _Timed(old, same.line, same.seconds)
            yield what, before, _Timed(new, steps.line, steps.seconds)


@dataclass(frozen=True, slots=True)
class _Timed:
    """One side of a comparison."""

    facts: Facts
    line: int
    seconds: Sequence[float]

    @property
    def median_s(self) -> float:
        return stats.summarise(self.seconds).median


def _effect(
    what: str, old: _Timed, new: _Timed, *, differs: Mapping[str, tuple[str, str]]
) -> Iterator[Conclusion]:
    """Say what one named difference, or none, did to a time."""
    if min(len(old.seconds), len(new.seconds)) < LEAST_SAMPLES or len(differs) > 1:
        return
    compared = stats.compare(new.seconds, old.seconds)
    changed = compared.verdict in ("faster", "slower")
    a, b = ms(old.median_s, digits=4), ms(new.median_s, digits=4)
    interval = f"{compared.ratio:.3f} x, {compared.low:.3f} to {compared.high:.3f}"
    times = f"{what} takes {a} and {b} ({interval})"
    seen = [
        Seen(side.facts.file, side.line, f"{what} {ms(side.median_s, digits=4)}")
        for side in (old, new)
    ]
    for name, (one, other) in differs.items():
        seen += _where(name, old.facts, new.facts)
        if compared.verdict == "same":
            yield Conclusion(
                name="setting-without-effect",
                sentence=f"{name} ({one} and {other}) changed nothing: {times}",
                seen=tuple(seen),
                next_action="see in a trace whether it reached the kernels: the same kernel names "
                "mean that it did not, other names that it does not matter",
            )
        elif changed:
            yield Conclusion(
                name="setting-with-effect",
                sentence=f"{name} ({one} and {other}) changed it: {times}",
                seen=tuple(seen),
                worth_s=abs(new.median_s - old.median_s),
            )
    if not differs and changed:
        yield _unexplained(f"{times} in {old.facts.file} and {new.facts.file}", seen, old, new)


def _unexplained(times: str, seen: Sequence[Seen], old: _Timed, new: _Timed) -> Conclusion:
    return Conclusion(
        name="unexplained-difference",
        sentence=f"{times} under the same named settings: what changed is in neither file",
        seen=tuple(seen),
        next_action="keep the environment of every run (python -m verifyscope) and give logs that "
        "begin at the start of the server",
        worth_s=abs(new.median_s - old.median_s),
    )


def _where(name: str, *files: Facts) -> list[Seen]:
    return [
        Seen(facts.file, facts.settings[name].line, f"{name}={facts.settings[name].value}")
        for facts in files
        if name in facts.settings
    ]


def _fixed_cost(old: Facts, new: Facts) -> Iterator[Conclusion]:
    """Split a cycle at two degrees of tensor parallelism into what shards and what does not.

    t(tp) = fixed + sharded / tp from two points; all-reduces, which grow with tp, are in `fixed`.
    """
    small, large = sorted((old, new), key=lambda facts: system_of(facts).tp or 0)
    a, b = system_of(small).tp, system_of(large).tp
    if a is None or b is None or a == b:
        return
    for fewer in small.steps:
        more = next((one for one in large.steps if _load(one) == _load(fewer)), None)
        if more is None or fewer.mode != "verify":
            continue
        sharded = (fewer.cycle_s - more.cycle_s) / (1 / a - 1 / b)
        fixed = more.cycle_s - sharded / b
        if fixed < FIXED_FROM * more.cycle_s:
            continue
        yield Conclusion(
            name="fixed-cost-not-sharded",
            sentence=f"from {a} to {b} GPUs the cycle at {more.running} running goes from "
            f"{ms(fewer.cycle_s)} to {ms(more.cycle_s)}: {ms(min(fixed, more.cycle_s))} of it "
            f"({short(min(fixed / more.cycle_s, 1) * 100)} %) do not shrink with more GPUs",
            seen=(
                Seen(small.file, fewer.line, f"tp {a}: {ms(fewer.cycle_s)}"),
                Seen(large.file, more.line, f"tp {b}: {ms(more.cycle_s)}"),
            ),
            next_action="look at what every rank does whole: sampling over the full vocabulary, "
            "metadata, "
            "the drafter, all-reduces, the host",
            worth_s=min(fixed, more.cycle_s),
            confidence="likely",
        )


def _load(steps: Steps) -> tuple[str, int | None]:
    return steps.mode, steps.running
