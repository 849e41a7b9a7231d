"""What attest prints: the verdict in one sentence, then settings, workers, choices and findings."""

import sys
from collections.abc import Iterator

from collectives._attest.conclusion import Conclusion, Taken, listed
from collectives._attest.judgement import Seen
from collectives._attest.workers import Worker
from verifyscope import cli
from verifyscope.records import Finding

_NONE = "-"
_SETTINGS = ("setting", "asked for", "worker", "rank", "in effect", "from", "state")
_WORKERS = ("worker", "rank", "of", "GPU", "NCCL", "log")
_TAKEN = ("calls", "from bytes", "to bytes", "NCCL takes", "channels", "logged", "by")
_FINDINGS = ("where", "finding", "what it says", "what to do")


def report(found: Conclusion) -> None:
    """Print all that is known."""
    print(found.verdict)
    tables = (
        (_SETTINGS, list(_settings(found))),
        (_WORKERS, list(_workers(found))),
        (_TAKEN, list(_taken(found))),
    )
    cli.print_tables(tables, below_text=True)
    more = [_finding(one) for one in found.findings[1:]]
    if not cli.is_terminal(sys.stdout):
        cli.print_tables([(_FINDINGS, more)], below_text=True)
        return
    for where, name, sentence, action in more:
        print()
        cli.print_finding(f"found {name}, {where}", sentence, f"next: {action}" if action else "")


def as_json(found: Conclusion) -> dict[str, object]:
    """Return all of it for `--json`: names as in the tables, sizes in bytes."""
    return {
        "verdict": found.verdict,
        "reached": found.reached,
        "ranks_without_log": list(found.workers.silent),
        "settings": [
            {
                "name": one.name,
                "requested": one.value,
                "reached": one.arrived,
                "workers": [_seen_json(seen) for seen in one.seen],
            }
            for one in found.judged
        ],
        "not_requested": [{"name": seen.name, **_seen_json(seen)} for seen in found.unasked],
        "workers": [_worker_json(one) for one in found.workers.known],
        "choices": [_taken_json(one, found) for one in found.taken],
        "findings": list(found.findings),
    }


def _settings(found: Conclusion) -> Iterator[tuple[str, ...]]:
    for one in found.judged:
        for seen in one.seen:
            yield (one.name, one.value, *_seen_cells(found, seen), _state(seen))
    together: dict[tuple[str, str, str], list[Seen]] = {}
    for seen in found.unasked:
        key = (seen.name, ", then ".join(seen.values), seen.source or _NONE)
        together.setdefault(key, []).append(seen)
    for (name, value, source), those in together.items():
        everyone = len(those) == found.workers.count > 1
        who = (
            "all workers" if everyone else listed([found.workers.name(one.worker) for one in those])
        )
        ranks = listed([str(one.worker.rank) for one in those])
        yield name, _NONE, who, ranks, value, source, those[0].why


def _seen_cells(found: Conclusion, seen: Seen) -> tuple[str, str, str, str]:
    return (
        found.workers.name(seen.worker),
        str(seen.worker.rank),
        ", then ".join(seen.values) or _NONE,
        seen.source or _NONE,
    )


def _state(seen: Seen) -> str:
    return f"{seen.state}: {seen.why}" if seen.why else seen.state


def _workers(found: Conclusion) -> Iterator[tuple[str, ...]]:
    for one in found.workers.known:
        rank, ranks, gpu = str(one.rank), str(one.ranks), str(one.device)
        yield found.workers.name(one), rank, ranks, gpu, one.version or _NONE, one.file
    ranks = str(max((one.ranks for one in found.workers.known), default=0))
    for silent in found.workers.silent:
        yield "not known", str(silent), ranks, _NONE, _NONE, "none"


def _taken(found: Conclusion) -> Iterator[tuple[str, ...]]:
    for one in found.taken:
        yield (
            one.function,
            str(one.low_bytes),
            str(one.high_bytes),
            one.name,
            _NONE if one.channels is None else str(one.channels),
            str(one.calls),
            _who(one, found),
        )


def _who(taken: Taken, found: Conclusion) -> str:
    worker = _worker_of(taken, found)
    return _NONE if worker is None else found.workers.name(worker)


def _worker_of(taken: Taken, found: Conclusion) -> Worker | None:
    return next((one for one in found.workers.known if one.index == taken.process), None)


def _finding(one: Finding) -> tuple[str, str, str, str]:
    place = one.evidence[0] if one.evidence else None
    where = "" if place is None else place.file
    if place is not None and place.at is not None:
        where = f"{place.file}:{place.at}"
    return where, one.name, one.sentence, one.next_action or ""


def _seen_json(seen: Seen) -> dict[str, object]:
    return {
        "worker": seen.worker.number,
        "node": seen.worker.node,
        "rank": seen.worker.rank,
        "effective": list(seen.values),
        "source": seen.source,
        "state": seen.state,
    }


def _worker_json(one: Worker) -> dict[str, object]:
    return {
        "worker": one.number,
        "node": one.node,
        "rank": one.rank,
        "ranks": one.ranks,
        "gpu": one.device,
        "nccl": one.version,
        "log": one.file,
        "ready": one.ready,
        "started_with": None if one.started is None else dict(one.started),
    }


def _taken_json(one: Taken, found: Conclusion) -> dict[str, object]:
    worker = _worker_of(one, found)
    return {
        "function": one.function,
        "from_bytes": one.low_bytes,
        "to_bytes": one.high_bytes,
        "choice": one.name,
        "channels": one.channels,
        "logged": one.calls,
        "worker": None if worker is None else worker.number,
    }
