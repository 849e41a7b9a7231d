"""An NCCL log becomes findings: first what it says as a whole, then what looks wrong in it.

It holds no times of its own (those of nccl-tests in the same file are that format's), so no
measurement comes out of it; what NCCL chose, by size, is the evidence of the first finding.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ingest.log import Log
from ingest.nccl_facts import Choice, NcclLog
from ingest.nccl_findings import Suspicion, finding
from ingest.nccl_log import read_log
from ingest.nccl_log_findings import suspicions
from verifyscope import units
from verifyscope.records import Finding

EXAMPLE = (
    "node1:4711:4711 [0] NCCL INFO AllReduce: 57344 Bytes -> Algo RING proto LL "
    "channel{Lo..Hi}={0..3}"
)
NOTHING = (
    "an NCCL log that says nothing; set NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING"
)

# Plain words are found fast: a log of gigabytes is looked through for them.
_SIGNS = (b"NCCL INFO ", b"NCCL WARN ", b" Bytes -> Algo ", b" Bytes -> Kernel ", b", crossNic ")
_TABLE = re.compile(rb"Algorithm[^\S\n]+\|")
_SHOWN_RANGES = 10


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` holds lines of NCCL's own log."""
    return any(sign in head for sign in _SIGNS) or _TABLE.search(head) is not None


def read(log: Log) -> Iterator[Finding]:
    """Yield the verdict on a log, then the findings on it; nothing where it says nothing."""
    known = read_log(log.lines)
    if not known.lines and not known.choices and not known.entries and not known.searches:
        return
    wrong = list(suspicions(known))
    for found in (verdict(known, wrong), *wrong):
        yield finding(found, file=log.file, environment=log.environment, command=log.command)


def verdict(log: NcclLog, wrong: Sequence[Suspicion]) -> Suspicion:
    """Return the log in one sentence: what is wrong, version, ranks, graph, settings, choices."""
    named = ", ".join(dict.fromkeys(one.name for one in wrong if one.confidence != "hint"))
    parts = [
        f"NCCL {log.loaded.version}" if log.loaded else "NCCL of unknown version",
        _ranks(log),
        _graph(log),
        _transports(log),
        _settings(log),
        *_choices(log.choices),
        f"look at {named}" if named else "",
    ]
    evidence = [
        *((known.line, known.version) for known in log.libraries[:1]),
        *((known.line, f"{known.ranks} ranks") for known in log.communicators[:1]),
        *((line, text) for line, text in _ranges(log.choices)),
    ]
    return Suspicion(
        name="nccl-log",
        sentence="; ".join(part for part in parts if part),
        evidence=tuple(evidence),
    )


def _ranks(log: NcclLog) -> str:
    largest = log.largest
    if largest is None:
        return ""
    nodes = {None: "", 1: " on one node"}.get(largest.nodes, f" on {largest.nodes} nodes")
    more = len(log.communicators) - 1
    return f"{largest.ranks} ranks{nodes}" + (f", {more} more communicators" if more else "")


def _graph(log: NcclLog) -> str:
    rings = [known for known in log.searches if known.pattern == 4]
    if not rings:
        return ""
    worst = min(rings, key=lambda known: known.intra_gb_s * known.channels)
    return f"ring {worst.channels} x {worst.intra_gb_s:g} GB/s over {worst.intra_path}"


def _transports(log: NcclLog) -> str:
    ways = Counter(known.way for known in log.transports)
    return "" if not ways else "via " + ", ".join(way for way, _ in ways.most_common(3))


def _settings(log: NcclLog) -> str:
    found = log.effective().values()
    return ", ".join(
        f"{known.name}={known.value}"
        + ("" if known.origin == "environment" else f" ({known.origin})")
        for known in found
    )


def _choices(choices: Sequence[Choice]) -> list[str]:
    """Return, for each function, what was taken from which size on."""
    found = []
    for function, taken in by_function(choices).items():
        changes: list[str] = []
        for choice in taken:
            if not changes or not changes[-1].startswith(choice.name + " "):
                changes.append(f"{choice.name} from {units.binary_size(choice.size_bytes)}")
        more = ", ..." if len(changes) > _SHOWN_RANGES else ""
        found.append(f"{function or 'calls'}: {', '.join(changes[:_SHOWN_RANGES])}{more}")
    return found


def _ranges(choices: Sequence[Choice]) -> Iterator[tuple[int, str]]:
    """Yield the sizes at which what NCCL takes, or on how many channels, changes."""
    for function, taken in by_function(choices).items():
        before = ""
        for choice in taken:
            channels = choice.channel_count
            how = choice.name + ("" if channels is None else f" on {channels} channels")
            if how != before:
                yield choice.line, f"{function or 'call'} of {choice.size_bytes} B: {how}"
            before = how


def by_function(choices: Sequence[Choice]) -> Mapping[str | None, list[Choice]]:
    """Return the choices of each function by ascending size."""
    found: dict[str | None, list[Choice]] = {}
    for choice in sorted(choices, key=lambda known: known.size_bytes):
        found.setdefault(choice.function, []).append(choice)
    return found
