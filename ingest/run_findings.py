"""What benchmark runs say of themselves: outliers, a mean not theirs, runs too short."""

from collections.abc import Iterator

from ingest.conclusions import Conclusion, Seen
from ingest.facts import Facts, Runs
from ingest.number import short
from verifyscope import speculation

AGREES_WITHIN = 0.01
SHORTEST_RUN_S = 1.0
LEAST_STEPS = 10


def conclusions(facts: Facts) -> Iterator[Conclusion]:
    """Yield what is to be said about the runs of a file, and the length of its windows."""
    for runs in facts.runs:
        yield from _outliers(facts.file, runs)
        yield from _too_short(facts.file, runs)
    yield from _summaries(facts)
    steps = facts.steps_a_window
    if steps is not None and steps < LEAST_STEPS and facts.steps:
        yield Conclusion(
            name="interval-too-small",
            sentence=f"a log window holds {short(steps)} steps: its rate is that of single steps, "
            f"and "
            f"acceptance jumps with each of them",
            seen=(Seen(facts.file, facts.steps[0].line, f"{short(steps)} steps a window"),),
            next_action="leave decode_log_interval at 40",
            verdict=False,
        )


def _outliers(file: str, runs: Runs) -> Iterator[Conclusion]:
    scores = speculation.run_z_scores(runs.tokens, runs.seconds)
    outliers = speculation.outlier_runs(runs.tokens, runs.seconds)
    if not outliers or len(runs.runs) < 3:
        return
    by_run = speculation.average_by_run(runs.tokens, runs.seconds)
    by_token = speculation.average_by_token(runs.tokens, runs.seconds)
    names = ", ".join(str(runs.runs[at].index) for at in outliers)
    yield Conclusion(
        name="run-outlier",
        sentence=f"run {names} is no run like the others; the mean is {by_run:.1f} tokens/s by "
        f"run and "
        f"{by_token:.1f} by token",
        seen=tuple(
            Seen(
                file,
                runs.runs[at].line,
                f"{runs.tokens[at] / runs.seconds[at]:.1f} tokens/s, score {scores[at]:.1f}",
            )
            for at in outliers
        ),
        next_action="look at what else ran, clocks and throttling at that time; report the median",
        verdict=False,
    )


def _too_short(file: str, runs: Runs) -> Iterator[Conclusion]:
    longest = max(runs.seconds)
    if longest >= SHORTEST_RUN_S:
        return
    yield Conclusion(
        name="interval-too-small",
        sentence=f"the longest run takes {longest * 1e3:.0f} ms: start and prompt are a large "
        f"part of it",
        seen=(Seen(file, runs.line, f"{len(runs.runs)} runs of at most {longest * 1e3:.0f} ms"),),
        next_action="generate for at least some seconds a run",
        verdict=False,
    )


def _summaries(facts: Facts) -> Iterator[Conclusion]:
    """Say where a printed mean is neither the mean by run nor the one by token."""
    for line, rate in facts.summaries:
        runs = max((one for one in facts.runs if one.line < line), key=_line, default=None)
        if runs is None:
            continue
        means = [
            speculation.average_by_run(runs.tokens, runs.seconds),
            speculation.average_by_token(runs.tokens, runs.seconds),
        ]
        rates = sorted(tokens / s for tokens, s in zip(runs.tokens, runs.seconds, strict=True))
        means.append(rates[len(rates) // 2])
        if all(abs(rate / mean - 1) > AGREES_WITHIN for mean in means):
            yield Conclusion(
                name="summary-disagrees",
                sentence=f"the printed mean is {rate:.1f} tokens/s; its runs give {means[0]:.1f} "
                f"by run and "
                f"{means[1]:.1f} by token",
                seen=(Seen(facts.file, line, f"{rate:.1f} tokens/s"),),
                next_action="count on the runs: a warmup may be in the printed mean, or a run is "
                "missing",
                verdict=False,
            )


def _line(runs: Runs) -> int:
    return runs.line
