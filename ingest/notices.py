"""What a serving log says itself of graphs, all-reduce and settings that it did not follow.

Each kind of line is one entry of KINDS: words that must be in it (a quick look), a pattern, and
what it means. A setting counts as ignored only where its name is a listed one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ingest.facts import Notice
from ingest.named_settings import SETTINGS
from verifyscope import settings
from verifyscope.privacy import redacted_words

SIGNS = (
    b"cudagraph_mode=",
    b"Cudagraph is disabled",
    b"Custom allreduce is disabled",
    b"NCCL_PROTO=",
)
_MOST_QUOTED = 200


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of line: `words` in it, its `pattern`, and the notice that it makes, or none."""

    words: str
    pattern: re.Pattern[str]
    notice: Callable[[int, re.Match[str]], Notice | None]


@dataclass(slots=True)
class Reader:
    """Reads a log line by line; `notices` holds what it found, the first of each sentence."""

    found: dict[tuple[str, str], Notice] = field(default_factory=dict)

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        for kind in KINDS:
            if kind.words in text and (match := kind.pattern.search(text)):
                notice = kind.notice(line, match)
                if notice is not None and len(self.found) < 200:
                    self.found.setdefault((notice.name, notice.sentence), notice)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Return the notices in the order of their lines."""
        return tuple(self.found.values())


def quoted(text: str) -> str:
    """Return words of a log fit for a record: no folder, address, host or user; not too long."""
    words = redacted_words(text)
    return words if len(words) <= _MOST_QUOTED else words[:_MOST_QUOTED] + "..."


def _graph_mode(line: int, match: re.Match[str]) -> Notice:
    asked, backend, mode = match["asked"], match["backend"], match["mode"]
    off = mode == "NONE"
    who = f"{backend} does not support" if backend else "something does not support"
    left = (
        "every kernel is launched by the host"
        if off
        else "attention runs eagerly between the pieces, layer by layer"
    )
    return Notice(
        line=line,
        name="graph-off" if off else "graph-piecewise-fallback",
        sentence=f"{who} {asked or 'the graph mode that was asked for'}, "
        f"so cudagraph_mode is {mode}: {left}",
        quote=quoted(match[0]),
        next_action="use an attention backend that supports full graphs for verify shapes; the "
        "cost "
        "grows with context and with the layers",
    )


def _eager(line: int, match: re.Match[str]) -> Notice:
    return Notice(
        line=line,
        name="graph-off",
        sentence="graphs are off (eager mode): every kernel is launched by the host",
        quote=quoted(match[0]),
        next_action="start without --enforce-eager",
    )


def _custom_all_reduce(line: int, match: re.Match[str]) -> Notice:
    return Notice(
        line=line,
        name="custom-all-reduce-off",
        sentence=f"the engine's own all-reduce is off: {quoted(match['why'])}",
        quote=quoted(match[0]),
        next_action="NCCL carries every all-reduce: sweep its protocols and sizes with python -m "
        "collectives.sweep; check kernel names in a trace before believing that another is used",
    )


def _moe_default(line: int, match: re.Match[str]) -> Notice:
    return Notice(
        line=line,
        name="moe-config-default",
        sentence="the expert kernel runs with its default tiles; where this was tuned on such "
        "GPUs a "
        "call of 4 rows changed from 30.8 to 30.3 us: not the cause by itself",
        quote=quoted(match[0]),
        next_action="measure the expert kernel before tuning it",
        severity="note",
    )


def _kernel_name(line: int, match: re.Match[str]) -> Notice | None:
    asked, suffix = match["asked"], match["suffix"]
    named = suffix.removeprefix("RING_").removeprefix("TREE_")
    if asked.lower() == named.lower():
        return None
    return Notice(
        line=line,
        name="protocol-not-proven",
        sentence=f"NCCL_PROTO={asked} was asked for and the kernel is called {suffix}: NCCL "
        f"builds one "
        f"kernel for all protocols, so its name shows neither that the setting was ignored nor "
        f"that it "
        f"was followed",
        quote=quoted(match[0]),
        next_action="prove it with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING, or by timing both",
    )


def _ignored(line: int, match: re.Match[str]) -> Notice | None:
    name = match["name"].strip("-").split("=")[0].replace("-", "_")
    if name.lower() not in SETTINGS and name not in settings.SETTINGS:
        return None
    return Notice(
        line=line,
        name="setting-ignored",
        sentence=f"{name} was set and is not in effect: {match['what']}",
        quote=quoted(match[0]),
        next_action="remove it, or change what it conflicts with; what a run is called is not "
        "what ran",
    )


KINDS = (
    Kind(
        "setting cudagraph_mode=",
        re.compile(
            r"(?:CUDAGraphMode\.(?P<asked>\w+) is not supported with "
            r"(?:[\w -]*?backend )?(?P<backend>\w+)[^;]{0,160}; )?"
            r"setting cudagraph_mode=(?:CUDAGraphMode\.)?(?P<mode>PIECEWISE|NONE)\b"
        ),
        _graph_mode,
    ),
    Kind(
        "Cudagraph is disabled",
        re.compile(r"Cudagraph is disabled under eager mode"),
        _eager,
    ),
    Kind(
        "Custom allreduce is disabled",
        re.compile(r"Custom allreduce is disabled (?:because|due to) (?P<why>[^.]{3,160})"),
        _custom_all_reduce,
    ),
    Kind("default MoE", re.compile(r"Using default MoE \w*config\b", re.IGNORECASE), _moe_default),
    Kind(
        "ncclDevKernel_",
        re.compile(
            r"NCCL_PROTO=(?P<asked>[\w^,]{1,40})\b.{0,200}?"
            r"ncclDevKernel_\w{1,80}?_(?P<suffix>(?:RING|TREE)_(?:LL128|LL|SIMPLE))\b"
        ),
        _kernel_name,
    ),
    Kind(
        "ignored",
        re.compile(r"(?P<name>-{0,2}\w[\w=-]{3,60})[`'\"]? (?P<what>(?:is|will be|was) ignored)\b"),
        _ignored,
    ),
    Kind(
        "overrid",
        re.compile(
            r"(?P<name>-{0,2}\w[\w=-]{3,60})[`'\"]? (?P<what>(?:is|will be|was) overrid\w+)\b"
        ),
        _ignored,
    ),
)
