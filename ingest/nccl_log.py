"""An NCCL log of 2.18 to 2.32 becomes an `NcclLog`: what was set, searched, believed and chosen.

    with path.open("rb") as file:
        log = read_log(numbered_lines(file))

It reads what the subsystems INIT, ENV, GRAPH, TUNING, COLL, P2P, SHM and NET print, in one pass,
and keeps at most MOST_FACTS different facts of a kind: a log of any size needs little memory. Ranks
may be interleaved, messages glued together, lines cut, prefixes missing; what is not understood is
passed over. Formats are in `nccl_patterns`, `nccl_communicators` and `nccl_tables`; source: the
format strings of the releases 2.18.1 to 2.30.7, and public logs.

NCCL says "set by environment" of a configuration file, too: it puts the file's settings into its
own environment first. `attributed` tells them apart where the environment of the start is known.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ingest import nccl_facts as facts
from ingest import nccl_names as names
from ingest import nccl_patterns
from ingest.nccl_communicators import Communicators
from ingest.nccl_facts import Fact, NcclLog
from ingest.nccl_messages import Message, messages
from ingest.nccl_tables import Tables
from verifyscope.privacy import redacted, redacted_words
from verifyscope.settings import HIDDEN, NEVER, SETTINGS

MOST_FACTS = 10_000
_MOST_PROCESSES = 2**16
_LONGEST_TEXT = 200

_TUNED = re.compile(
    r"Best tuning \{.*?\.timeUs = (\d{1,12}(?:\.\d{1,9})?),\s+\.algo = (\w+), \.proto = (\w+),"
)
_PORT = re.compile(r"<address><\d+>")
_Kind = TypeVar("_Kind", bound=Fact)


def read_log(lines: Iterable[tuple[int, str]]) -> NcclLog:
    """Return what numbered lines say."""
    reader = Reader()
    for number, line in lines:
        reader.take(number, line)
    return reader.log()


def attributed(log: NcclLog, environment: Mapping[str, str]) -> NcclLog:
    """Return the log with the settings that `environment` lacks as those of a configuration file.

    environment: what the processes were started with. A plugin's own settings stay the plugin's.
    """
    injected = {known.name for known in log.settings if known.origin == "plugin"}
    settings = tuple(
        replace(known, origin="configuration file")
        if known.origin == "environment" and known.name not in {*environment, *injected}
        else known
        for known in log.settings
    )
    return replace(log, settings=settings)


@dataclass(slots=True)
class Reader:
    """Where in a log the reading stands; `take` moves it on by a line, `log` is what it knows."""

    kept: dict[type, dict[Fact, int]] = field(default_factory=dict)
    communicators: Communicators = field(default_factory=Communicators)
    tables: Tables = field(default_factory=Tables)
    processes: dict[tuple[str, str], facts.Process] = field(default_factory=dict)
    hosts: dict[str, int] = field(default_factory=dict)
    tuned: dict[int | None, tuple[float, str, str]] = field(default_factory=dict)
    lines: int = 0
    path_rows: int = 0
    unlisted: int = 0
    dropped: int = 0

    def take(self, number: int, line: str) -> None:
        """Read a line."""
        for message in messages(line):
            process = self._process(message)
            self.lines += message.level is not None
            if message.level == "WARN":
                self._warned(number, process, message)
            if "|" in message.text:
                for row in self.tables.take(number, process, message.text):
                    self._keep(row)
            if "comm 0x" in message.text:
                self.communicators.take(number, process, message.text)
            if message.text.startswith("Best tuning {"):
                self._tuned(process, message.text)
                continue
            self.path_rows += message.text.startswith("GPU/")
            for fact in nccl_patterns.read(message.text, process=process, line=number):
                self._refine(process, fact)

    def log(self) -> NcclLog:
        """Return all that was read up to here."""
        return NcclLog(
            lines=self.lines,
            processes=tuple(self.processes.values()),
            libraries=self._all(facts.Library),
            settings=self._all(facts.Setting),
            communicators=self.communicators.all(),
            searches=self._all(facts.Search),
            fallbacks=self._all(facts.Fallback),
            entries=self._all(facts.Entry),
            choices=self._all(facts.Choice),
            calls=self._all(facts.Call),
            transports=self._all(facts.Transport),
            channels=self._all(facts.Channels),
            paths=self._all(facts.Path),
            rings=self._all(facts.Ring),
            peer_access=self._all(facts.PeerAccess),
            refusals=self._all(facts.Refusal),
            plugins=self._all(facts.Plugin),
            requests=self._all(facts.Request),
            warned=self._all(facts.Warned),
            remarks=self._all(facts.Remark),
            path_rows=self.path_rows,
            unlisted=self.unlisted,
            torn=self.tables.torn,
            dropped=self.dropped + self.communicators.dropped,
        )

    def _all(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        known = self.kept.get(kind, {})
        return tuple(
            replace(fact, count=count) for fact, count in known.items() if isinstance(fact, kind)
        )

    def _keep(self, fact: Fact) -> None:
        """Count `fact`; equal ones keep the first line."""
        known = self.kept.setdefault(type(fact), {})
        if fact in known:
            known[fact] += 1
        elif len(known) < MOST_FACTS:
            known[fact] = 1
        else:
            self.dropped += 1

    def _refine(self, process: int | None, fact: Fact) -> None:
        """Keep a fact with what only the reading so far knows, and without what is private."""
        if isinstance(fact, facts.Setting):
            if fact.name not in SETTINGS or any(word in fact.name for word in NEVER):
                self.unlisted += 1
                return
            shown = HIDDEN.get(fact.name) or self._public(redacted(fact.value))
            fact = replace(fact, value=shown)
        elif isinstance(fact, facts.Search):
            fact = replace(fact, communicator=self.communicators.latest(process))
        elif isinstance(fact, facts.Choice):
            time_us, *name = self.tuned.pop(process, (None, "", ""))
            if fact.time_us is None and name == [fact.algorithm, fact.protocol]:
                fact = replace(fact, time_us=time_us)
        elif isinstance(fact, facts.Transport):
            fact = replace(fact, way="/".join(map(redacted, fact.way.split("/")[:3])))
        elif isinstance(fact, facts.Plugin):
            fact = replace(fact, name=self._public(redacted(fact.name)))
        self._keep(fact)

    def _tuned(self, process: int | None, text: str) -> None:
        """Keep the time that NCCL 2.31 and later expect; the line of the choice comes after it."""
        found = _TUNED.search(text)
        if found and len(self.tuned) < _MOST_PROCESSES:
            expected = (float(found[1]), names.algorithm(found[2]), names.protocol(found[3]))
            self.tuned[process] = expected

    def _process(self, message: Message) -> int | None:
        """Return the number of the process that speaks."""
        if message.host is None or message.process is None or message.device is None:
            return None
        key = (message.host, message.process)
        known = self.processes.get(key)
        if known is None:
            if len(self.processes) >= _MOST_PROCESSES:
                return None
            node = self.hosts.setdefault(message.host, len(self.hosts))
            known = facts.Process(index=len(self.processes), node=node, device=message.device)
            self.processes[key] = known
        elif known.device != message.device:
            self.processes[key] = replace(known, device=message.device)
        return known.index

    def _warned(self, number: int, process: int | None, message: Message) -> None:
        text = self._public(redacted_words(message.text))
        self._keep(facts.Warned(text=text, place=message.place, process=process, line=number))

    def _public(self, text: str) -> str:
        """Return a text, cut, without ports and the hosts that this log has named so far."""
        text = _PORT.sub("<address>", text)
        for host in self.hosts:
            if host in text:
                text = re.sub(rf"(?<!\w){re.escape(host)}(?!\w)", "<host>", text)
        return text[:_LONGEST_TEXT]
