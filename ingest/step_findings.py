"""What windows, tables and timers of one file, or of several, say of kernels and launches."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ingest.conclusions import Conclusion, Seen, listed, ms, percent
from ingest.facts import Column, Facts, Steps, Timer
from ingest.named_settings import whole
from ingest.number import short
from ingest.series import trend
from verifyscope import units

CLIFF_BEYOND = 1.1
WIDEST_CLIFF = 4
SLOWER_FROM = 1.25
NEAR_ALL = 0.95
SYNC_FROM_S = 1e-3
SYNC_RATIO = 10
SAME_PLACE = 0.9


def conclusions(all_facts: Sequence[Facts]) -> Iterator[Conclusion]:
    """Yield what is to be said about steps, tables and timers."""
    for facts in all_facts:
        yield from _notices(facts)
        yield from _graph_off(facts)
        yield from _acceptance(facts)
        yield from _trends(facts)
        yield from _host_sync(facts)
        yield from _columns(facts)
    found = [(facts.file, steps) for facts in all_facts for steps in facts.all_steps]
    yield from _cliffs(found)
    yield from _rows_matched(found)


def _notices(facts: Facts) -> Iterator[Conclusion]:
    for notice in facts.notices:
        yield Conclusion(
            name=notice.name,
            sentence=notice.sentence,
            seen=(Seen(facts.file, notice.line, notice.quote),),
            next_action=notice.next_action,
            verdict=notice.severity != "note",
        )


def _graph_off(facts: Facts) -> Iterator[Conclusion]:
    """Say where decoding runs without a graph, and what the same load takes with one."""
    told = any(notice.name == "graph-off" for notice in facts.notices)
    for steps in facts.steps:
        if steps.launch != "eager" or told:
            continue
        same = [one for one in facts.steps if _key_but_launch(one) == _key_but_launch(steps)]
        graph = next((one for one in same if one.launch == "graph"), None)
        if graph is not None and steps.windows < 2:
            continue  # the flag is that of the last batch of a window: one window shows nothing
        seen = [Seen(facts.file, steps.line, f"cuda graph: False, {ms(steps.cycle_s)} a step")]
        sentence = f"no CUDA graph at {steps.running} running, {ms(steps.cycle_s)} a step"
        saved = None
        if graph is not None:
            saved = steps.summary.low - graph.summary.high
            seen.append(
                Seen(facts.file, graph.line, f"cuda graph: True, {ms(graph.cycle_s)} a step")
            )
            if saved > 0:
                share = steps.summary.low / graph.summary.high - 1
                sentence += (
                    f": it costs at least {ms(saved)} ({share * 100:.1f} %) beside the same load "
                )
                sentence += "with one"
        most = whole(facts.settings, "cuda_graph_max_bs")
        over = most is not None and steps.running is not None and steps.running > most
        yield Conclusion(
            name="graph-off",
            sentence=sentence,
            seen=tuple(seen),
            next_action=f"raise cuda_graph_max_bs above {most}"
            if over
            else "find what disables the "
            "graph at this load (a largest captured batch, an adaptive threshold, a flag)",
            worth_s=saved if saved and saved > 0 else None,
        )


def _key_but_launch(steps: Steps) -> tuple[str, int | None, str]:
    """Return what two groups share that differ in nothing but the launch."""
    return steps.mode, steps.running, steps.engine


def _acceptance(facts: Facts) -> Iterator[Conclusion]:
    served = [steps for steps in facts.steps if steps.mode == "verify" and steps.acceptances]
    if not served:
        return
    if all(value == 1.0 for steps in served for value in steps.acceptances):
        windows = sum(steps.windows for steps in served)
        algorithm = facts.settings.get("speculative_algorithm")
        hint = (
            "an EAGLE-3 drafter run as EAGLE is one cause"
            if algorithm
            else "its algorithm and weights"
        )
        yield Conclusion(
            name="drafter-broken",
            sentence=f"acceptance is exactly 1.00 in all {windows} windows: no drafted token is "
            f"ever "
            f"taken, so the drafter is broken, or speculation has switched itself off at this load",
            seen=tuple(Seen(facts.file, one.line, "acceptance 1.00") for one in served),
            next_action=f"check which drafter is loaded and how ({hint}) before looking at any "
            f"kernel",
        )
        return
    for steps in served:
        tokens = steps.verify_tokens
        if tokens is None or tokens < 3 or steps.acceptance is None:
            continue
        taken = (steps.acceptance - 1) / (tokens - 1)
        if taken >= NEAR_ALL:
            yield Conclusion(
                name="acceptance-suspiciously-high",
                sentence=f"acceptance {steps.acceptance:.2f} of {tokens}: {percent(taken)} of the "
                f"drafts "
                f"are taken, as when the output repeats itself or the logits are broken",
                seen=(
                    Seen(facts.file, steps.line, f"acceptance {steps.acceptance:.2f} of {tokens}"),
                ),
                next_action="look at the output text and its diversity before believing the rate",
                confidence="likely",
            )


def _trends(facts: Facts) -> Iterator[Conclusion]:
    """Say whether the cost grows along the log, by context where the log tells it."""
    for steps in facts.steps:
        what = f"the {'cycle' if steps.mode == 'verify' else 'step'} at {steps.running} running"
        yield from _trend(facts.file, steps.line, what, steps.seconds, contexts=steps.contexts)
    for one in facts.components:
        yield from _trend(facts.file, one.line, one.label, one.seconds)


def _trend(
    file: str,
    line: int,
    what: str,
    seconds: Sequence[float],
    *,
    contexts: Sequence[float] = (),
) -> Iterator[Conclusion]:
    found = trend(seconds, contexts or None) or trend(seconds)
    if found is None or not (found.grows or found.flat):
        return
    by_context = bool(contexts) and trend(seconds, contexts) is not None
    scale = 1e6 if by_context else 1e3
    slope, low, high = (f"{value * scale:.3g}" for value in (found.slope, found.low, found.high))
    along = "with context" if by_context else "along the log"
    each = "1,000 tokens of context" if by_context else "line"
    yield Conclusion(
        name="cost-grows" if found.grows else "cost-flat",
        sentence=f"{what} {'grows' if found.grows else 'does not grow'} {along}: last quarter "
        f"{ms(found.last)}, first {ms(found.first)}; slope {slope} ms ({low} to {high}) a {each}",
        seen=(Seen(file, line, f"{len(seconds)} values"),),
        next_action="attention is the part that grows with context" if found.grows else None,
        confidence="likely",
        verdict=False,
    )


def _host_sync(facts: Facts) -> Iterator[Conclusion]:
    """Name the innermost label in which the host waits: as long as any, with the least GPU work."""
    waiting = [
        timer
        for timer in facts.timers
        if timer.host_s - timer.gpu_s >= SYNC_FROM_S and timer.host_s >= SYNC_RATIO * timer.gpu_s
    ]
    if not waiting:
        return
    longest = max(map(_wait_s, waiting))
    here = min(
        (one for one in waiting if _wait_s(one) >= SAME_PLACE * longest), key=lambda one: one.gpu_s
    )
    whole_s = max(timer.host_s for timer in facts.timers)
    yield Conclusion(
        name="host-sync",
        sentence=f"the host is blocked {ms(here.host_s, digits=4)} an iteration in {here.label}, "
        f"where the "
        f"GPU works {units.seconds(here.gpu_s)}: {here.host_s / whole_s * 100:.1f} % of the "
        f"longest label; a "
        f"synchronising call (.item(), .cpu()) waits for the pass in flight",
        seen=tuple(
            Seen(
                facts.file,
                one.line,
                f"{one.label}: gpu {units.seconds(one.gpu_s)}, host {units.seconds(one.host_s)}",
            )
            for one in (here, *(one for one in facts.timers if one is not here))
        ),
        next_action="keep that value on the GPU or copy it asynchronously a step earlier; labels "
        "nest, so "
        "do not add them",
        worth_s=_wait_s(here),
    )


def _wait_s(timer: Timer) -> float:
    return timer.host_s - timer.gpu_s


def _columns(facts: Facts) -> Iterator[Conclusion]:
    """Compare the first column of a table with each other one."""
    for column in facts.columns:
        first = next(
            one for one in facts.columns if one.line == column.line and one.unit == column.unit
        )
        loads = [load for load in column.values if load in first.values]
        if column is first or not loads:
            continue
        gains = {load: _gain(first, column, load) for load in loads}
        seen = tuple(
            Seen(facts.file, first.line, f"{load} {first.axis}: {gain:.2f} x")
            for load, gain in gains.items()
        )
        if first.plain and column.drafted and column.axis == "requests":
            yield _by_load(column, gains, seen)
        else:
            least, most = min(gains, key=gains.__getitem__), max(gains, key=gains.__getitem__)
            yield Conclusion(
                name="columns-compared",
                sentence=f"{column.name} is {gains[least]:.2f} x as fast as {first.name} at "
                f"{least} "
                f"{first.axis} and {gains[most]:.2f} x at {most}" + _grows(first, gains),
                seen=seen,
                verdict=gains[most] > 1.05 or gains[least] < 0.95,
            )


def _gain(old: Column, new: Column, load: int) -> float:
    ratio = new.values[load] / old.values[load]
    return ratio if new.unit == "tok/s" else 1 / ratio


def _grows(column: Column, gains: dict[int, float]) -> str:
    ordered = [gains[load] for load in sorted(gains)]
    if column.axis == "context" and len(ordered) > 1 and ordered[-1] > 1.2 * ordered[0]:
        return ": the cost that one of them avoids grows with context, as attention does"
    return ""


def _by_load(column: Column, gains: dict[int, float], seen: tuple[Seen, ...]) -> Conclusion:
    wins = [str(load) for load, gain in gains.items() if gain >= 1]
    loses = [str(load) for load, gain in gains.items() if gain < 1]
    words = [f"pays at {listed(wins)} requests"] if wins else []
    words += [f"loses at {listed(loses)}"] if loses else []
    best = max(gains, key=gains.__getitem__)
    return Conclusion(
        name="speculation-by-load",
        sentence=f"{column.name} {' and '.join(words)}; at best {gains[best]:.2f} x, at {best}",
        seen=seen,
        next_action="turn speculation off above the load where it stops to pay; look for a kernel "
        "cliff "
        "at the rows of that load"
        if loses
        else None,
    )


def _cliffs(found: Sequence[tuple[str, Steps]]) -> Iterator[Conclusion]:
    """Find row counts between which time grows faster than rows; name other logs that agree."""
    groups: dict[tuple[str, str, str], list[Steps]] = {}
    for file, steps in found:
        if steps.rows is not None:
            groups.setdefault((file, steps.mode, steps.engine), []).append(steps)
    cliffs = []
    for (file, mode, _), group in groups.items():
        ordered = sorted(_by_rows(group), key=lambda one: one.rows or 0)
        for low, high in pairwise(ordered):
            rows = (high.rows or 0) / (low.rows or 1)
            times = high.cycle_s / low.cycle_s
            if 1 < rows <= WIDEST_CLIFF and times > CLIFF_BEYOND * rows:
                cliffs.append((file, mode, low, high))
    for file, mode, low, high in cliffs:
        same = [
            c for c in cliffs if (c[2].rows, c[3].rows) == (low.rows, high.rows) and c[1] != mode
        ]
        if same and mode == "decode":
            continue  # told with the verify it agrees with
        yield _cliff(file, low, high, same=same)


def _by_rows(group: list[Steps]) -> list[Steps]:
    """Return one group of windows a row count: the one with most windows."""
    best: dict[int, Steps] = {}
    for one in group:
        known = best.get(one.rows or 0)
        if known is None or one.windows > known.windows:
            best[one.rows or 0] = one
    return list(best.values())


def _cliff(
    file: str, low: Steps, high: Steps, *, same: Sequence[tuple[str, str, Steps, Steps]]
) -> Conclusion:
    times, rows = high.cycle_s / low.cycle_s, (high.rows or 0) / (low.rows or 1)
    seen = [Seen(file, one.line, f"{one.rows} rows: {ms(one.cycle_s)}") for one in (low, high)]
    words = (
        f"from {low.rows} to {high.rows} rows a pass goes from {ms(low.cycle_s)} to "
        f"{ms(high.cycle_s)}: "
        f"{short(times)} x the time for {short(rows)} x the rows"
    )
    if low.acceptance and high.acceptance:
        words += f", acceptance {low.acceptance:.2f} and {high.acceptance:.2f}"
    if same:
        other_file, _, a, b = same[0]
        seen += [
            Seen(other_file, one.line, f"{one.rows} rows: {ms(one.cycle_s)}") for one in (a, b)
        ]
        words += (
            f"; without speculation the same rows take {ms(a.cycle_s)} and {ms(b.cycle_s)}: a "
            f"kernel path "
            f"that changes there, not the drafter"
        )
    return Conclusion(
        name="kernel-cliff",
        sentence=words,
        seen=tuple(seen),
        next_action="time the kernels of a layer at both row counts; until then keep running x "
        "verify "
        "tokens below the cliff",
        worth_s=high.cycle_s - low.cycle_s * rows,
        confidence="likely" if low.flags or high.flags else "sure",
    )


def _rows_matched(found: Sequence[tuple[str, Steps]]) -> Iterator[Conclusion]:
    """Hold each cycle against the plain step of as many rows."""
    plain = {steps.rows: (file, steps) for file, steps in found if steps.mode == "decode"}
    for file, steps in found:
        if steps.mode != "verify" or steps.rows is None or steps.rows not in plain:
            continue
        other_file, step = plain[steps.rows]
        ratio = steps.cycle_s / step.cycle_s
        if not math.isfinite(ratio) or ratio < SLOWER_FROM:
            continue
        yield Conclusion(
            name="verify-slower-than-plain-rows-matched",
            sentence=f"a cycle of {steps.rows} verify rows takes {ms(steps.cycle_s)}, a plain "
            f"step of as "
            f"many rows {ms(step.cycle_s)}: {short(ratio)} x, which the rows do not explain",
            seen=(
                Seen(file, steps.line, f"{steps.rows} verify rows: {ms(steps.cycle_s)}"),
                Seen(other_file, step.line, f"{step.rows} plain rows: {ms(step.cycle_s)}"),
            ),
            next_action="what differs is the verify's attention kernel, its graph, its metadata, "
            "the drafter "
            "or the host: a trace of one cycle shows which",
            worth_s=steps.cycle_s - step.cycle_s,
            confidence="likely" if steps.flags or step.flags else "sure",
        )
