"""What the logs of a server say, in one sentence and as findings: what reached whom, what did not.

    NCCL_PROTO=LL reached 7 of 8 workers; pid 123 shows none

Findings on a setting are `setting-reached`, `setting-not-everywhere`, `setting-ignored` (nobody
read it) and `setting-not-shown`; on ranks without a log, `worker-without-log`. What else looks
wrong in the logs is what `python -m ingest` finds in them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collectives._attest.judgement import REACHED, Judged, Seen, Start, judge, unasked
from collectives._attest.logs import Logs
from collectives._attest.workers import Worker, Workers
from ingest.nccl_facts import Choice
from ingest.nccl_findings import MOST_EVIDENCE, Suspicion
from ingest.nccl_log_findings import suspicions
from ingest.nccl_log_records import by_function
from ingest.nccl_setting_findings import unseen
from verifyscope.records import Evidence, Finding

_MOST_NAMED = 4
_IN_WORKERS = (
    "set it in the environment of the workers themselves (the engine's own option or runtime "
    "environment, a configuration file of NCCL), not of the launcher, and attest again"
)
_NO_START = (
    "let the server run until its communicators are there, with INIT in NCCL_DEBUG_SUBSYS; with "
    "one GPU there are none"
)
_NO_LOG = (
    "let NCCL_DEBUG_FILE through to the workers (Ray and containers pass on only what is listed), "
    "and see that the folder of the logs is there for them, too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Sizes for which NCCL took the same algorithm, protocol and channels, as rank 0 said it."""

    process: int | None
    function: str
    low_bytes: int
    high_bytes: int
    name: str
    channels: int | None
    calls: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """All that is to be told. `reached`: every setting that was asked for, by every worker."""

    verdict: str
    reached: bool
    workers: Workers
    judged: tuple[Judged, ...]
    unasked: tuple[Seen, ...]
    taken: tuple[Taken, ...]
    findings: tuple[Finding, ...]


def conclude(
    logs: Logs, workers: Workers, start: Start, *, environment: str, command: str
) -> Conclusion:
    """Return what there is to tell; `environment` and `command` are those of the records."""
    judged = judge(logs, workers, start)
    extra = tuple(seen for worker in workers.known for seen in unasked(logs, worker, start))
    reached = bool(workers.known) and not workers.silent and _all_reached(judged)
    found = [*_findings(logs, workers, judged, start)]
    agree = not any(one.name == "setting-not-everywhere" for one in found)
    verdict = _verdict(logs, workers, judged, agree=agree)
    return Conclusion(
        verdict=verdict,
        reached=reached and (agree or bool(judged)),
        workers=workers,
        judged=judged,
        unasked=extra,
        taken=tuple(_taken(logs.log.choices)),
        findings=tuple(
            _record(one, logs, environment=environment, command=command)
            for one in (_whole(verdict, logs, workers, reached=reached), *found)
        ),
    )


def _all_reached(judged: Sequence[Judged]) -> bool:
    return all(seen.state in REACHED for one in judged for seen in one.seen)


def _verdict(logs: Logs, workers: Workers, judged: Sequence[Judged], *, agree: bool) -> str:
    if not workers.known:
        return _nobody(logs, workers)
    total = workers.count
    everyone = f"all {total} workers" if total > 1 else "the one worker"
    by_reach: dict[tuple[str, ...], list[str]] = {}
    for one in sorted(judged, key=lambda known: known.arrived):
        by_reach.setdefault(_reach(one, workers), []).append(one.text)
    parts = ["; ".join((f"{listed(names)} {how}", *who)) for (how, *who), names in by_reach.items()]
    if not judged:
        same = "show the same settings" if agree else "do not show the same settings"
        parts.append(f"no setting was asked for; {everyone} {same}")
        parts += [_silent(workers)] if workers.silent else []
    return "; ".join([*parts, *_not_followed(logs)])


def _nobody(logs: Logs, workers: Workers) -> str:
    if not logs.names:
        return (
            "no process wrote a log of NCCL: either NCCL did not start, or the environment does "
            "not reach the workers"
        )
    count = len(workers.others)
    processes = f"{count} processes" if count != 1 else "one process"
    return f"NCCL was loaded by {processes} and no rank of a communicator is known"


def _reach(one: Judged, workers: Workers) -> tuple[str, ...]:
    """Return how far a setting came, then who is without it; who shows the same stands together."""
    total = workers.count
    if one.arrived == total:
        return (f"reached all {total} workers" if total > 1 else "reached the one worker",)
    by_what: dict[tuple[str, str], list[str]] = {}
    for seen in one.seen:
        if seen.state not in REACHED:
            by_what.setdefault(_shows(seen), []).append(workers.name(seen.worker))
    rest = [f"{listed(who)} {what[len(who) > 1]}" for what, who in by_what.items()]
    rest += [_silent(workers)] if workers.silent else []
    return (f"reached {one.arrived} of {total} workers", *rest)


def _shows(seen: Seen) -> tuple[str, str]:
    """Return what one worker shows, and what several do."""
    if seen.state == "unknown":
        return f"is not known: {seen.why}", f"are not known: {seen.why}"
    if seen.state == "other" and not seen.values:
        return seen.why, seen.why.replace("it was", "they were")
    what = "none" if seen.state == "missing" else ", then ".join(seen.values)
    return f"shows {what}", f"show {what}"


def _silent(workers: Workers) -> str:
    ranks = listed([str(rank) for rank in workers.silent])
    plural = "" if len(workers.silent) == 1 else "s"
    where = " (there are several machines: look there)" if workers.elsewhere else ""
    return f"rank{plural} {ranks} wrote no log{where}"


def _not_followed(logs: Logs) -> list[str]:
    """Return NCCL's choices against a setting that it read."""
    return [one.sentence for one in suspicions(logs.log) if one.name == "setting-ignored"][:1]


def listed(words: Sequence[str]) -> str:
    """Return "a, b and 3 more"."""
    if len(words) <= _MOST_NAMED + 1:
        return ", ".join(words)
    return f"{', '.join(words[:_MOST_NAMED])} and {len(words) - _MOST_NAMED} more"


def _whole(verdict: str, logs: Logs, workers: Workers, *, reached: bool) -> Suspicion:
    return Suspicion(
        name="workers-attested",
        sentence=verdict,
        evidence=tuple(
            (_first_line(logs, one), f"{workers.name(one)} is rank {one.rank} of {one.ranks}")
            for one in workers.known
        ),
        next_action=None if reached else "see the findings on each setting",
    )


def _first_line(logs: Logs, worker: Worker) -> int | None:
    """Return the line in which a worker takes its seat."""
    lines = (
        member.line
        for known in logs.log.communicators
        for member in known.members
        if member.process == worker.index
    )
    return next(lines, None)


def _findings(
    logs: Logs, workers: Workers, judged: Sequence[Judged], start: Start
) -> Iterator[Suspicion]:
    ignored = {
        one.evidence[0][1].removeprefix("asked for: "): one
        for one in unseen(logs.log, start.requested)
    }
    largest = logs.log.largest
    if workers.silent and workers.known:
        yield Suspicion(
            name="worker-without-log",
            sentence=f"{_silent(workers)}: nothing says what they run with",
            evidence=tuple(
                (None if largest is None else largest.line, f"rank {rank} of {workers.count}")
                for rank in workers.silent
            ),
            next_action=_NO_LOG,
            confidence="hint" if workers.elsewhere else "likely",
        )
    if not workers.known:
        yield Suspicion(
            name="no-worker",
            sentence=_nobody(logs, workers),
            evidence=(),
            next_action=_NO_START if logs.names else _NO_LOG,
            confidence="likely",
        )
    for one in judged if workers.known else ():
        nobody = all(seen.state == "missing" for seen in one.seen)
        yield ignored[one.text] if nobody and one.text in ignored else _about(one, logs, workers)
    asked = tuple(f"{name}=" for name in start.requested)
    for wrong in suspicions(logs.log):
        about_asked = any(value.startswith(asked) for _, value in wrong.evidence)
        if not (wrong.name == "setting-not-everywhere" and about_asked):
            yield wrong


def _about(one: Judged, logs: Logs, workers: Workers) -> Suspicion:
    """Return the finding on a setting: where it is, and where it is not."""
    evidence = tuple(
        (seen.line or _first_line(logs, seen.worker), _evidence(seen, workers))
        for seen in _failing_first(one.seen)
    )
    sentence = f"{one.text} {'; '.join(_reach(one, workers))}"
    if any(seen.state in ("other", "missing") for seen in one.seen):
        return Suspicion(
            name="setting-not-everywhere",
            sentence=sentence,
            evidence=evidence,
            next_action=_next_action(one),
        )
    if one.arrived < workers.count:
        return Suspicion(
            name="setting-not-shown",
            sentence=sentence,
            evidence=evidence,
            next_action="let the server make its communicators and a few calls, then look again",
            confidence="hint",
        )
    started = sum(seen.state == "environment" for seen in one.seen)
    how = f"; of {started} only the environment at their start says so" if started else ""
    return Suspicion(name="setting-reached", sentence=sentence + how, evidence=evidence)


def _failing_first(seen: Sequence[Seen]) -> list[Seen]:
    return sorted(seen, key=lambda one: one.state in REACHED)


def _evidence(seen: Seen, workers: Workers) -> str:
    values = ", then ".join(seen.values) or seen.state
    return f"{workers.name(seen.worker)}: {values}" + (f" ({seen.why})" if seen.why else "")


def _next_action(one: Judged) -> str:
    sources = {seen.source for seen in one.seen if seen.state == "other"}
    if "plugin" in sources:
        return "a plugin sets it: NCCL_NET_PLUGIN=none on one node, or set it yourself"
    if "the program" in sources:
        return "the program sets it itself: look for its option, or for the line that sets it"
    return _IN_WORKERS


def _taken(choices: Sequence[Choice]) -> Iterator[Taken]:
    """Yield the ranges of sizes with one choice, by process and function."""
    for process in dict.fromkeys(one.process for one in choices):
        own = [one for one in choices if one.process == process]
        for function, by_size in by_function(own).items():
            yield from _ranges(process, function or "calls", by_size)


def _ranges(process: int | None, function: str, by_size: Sequence[Choice]) -> Iterator[Taken]:
    at = 0
    while at < len(by_size):
        first, end = by_size[at], at + 1
        while end < len(by_size) and _how(by_size[end]) == _how(first):
            end += 1
        yield Taken(
            process=process,
            function=function,
            low_bytes=first.size_bytes,
            high_bytes=by_size[end - 1].size_bytes,
            name=first.name,
            channels=first.channel_count,
            calls=sum(one.count for one in by_size[at:end]),
            line=first.line,
        )
        at = end


def _how(choice: Choice) -> tuple[str, int | None]:
    return choice.name, choice.channel_count


def _record(found: Suspicion, logs: Logs, *, environment: str, command: str) -> Finding:
    return Finding(
        name=found.name,
        sentence=found.sentence,
        evidence=tuple(
            Evidence(*logs.place(line), value) for line, value in found.evidence[:MOST_EVIDENCE]
        ),
        next_action=found.next_action,
        confidence=found.confidence,
        environment=environment,
        command=command,
    )
