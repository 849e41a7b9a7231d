"""Communicators from the lines that begin and end their start, one a rank, of any order.

    comm 0x7f rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId c1000 commId 0x9a - Init START
    comm 0x7f rank 3 nRanks 8 nNodes 1 localRanks 8 localRank 3 MNNVL 0

All ranks of a communicator say the same commId; where it is missing, ranks with the same count that
start before one of them starts again are taken for one.
"""

import re
from dataclasses import dataclass, field, replace

from ingest import nccl_facts as facts

_START = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d{1,6}) nranks (\d{1,6}) cudaDev (-?\d{1,9}) (?:nvmlDev -?\d+ )?"
    r"busId ([0-9a-f]+)(?: .*?\bcommId (0x[0-9a-f]+))? - Init (START|COMPLETE)"
)
_NODES = re.compile(r"comm (0x[0-9a-f]+) rank \d+ nRanks (\d{1,6}) nNodes (\d{1,6}) ")
_MOST = 4096
_MOST_MEMBERS = 2**16


@dataclass(slots=True)
class _Open:
    """A communicator while it is being read."""

    index: int
    ranks: int
    line: int
    nodes: int | None = None
    members: dict[int, facts.Member] = field(default_factory=dict)


@dataclass(slots=True)
class Communicators:
    """The communicators of a log; `by_pointer` finds the one that a process means by an address."""

    known: list[_Open] = field(default_factory=list)
    by_name: dict[tuple[str, int], _Open] = field(default_factory=dict)
    by_pointer: dict[tuple[int | None, str], _Open] = field(default_factory=dict)
    last: dict[int | None, _Open] = field(default_factory=dict)
    members: int = 0
    dropped: int = 0

    def take(self, line: int, process: int | None, text: str) -> bool:
        """Read a line of a start; say whether it was one."""
        if found := _START.search(text):
            self._member(line, process, found)
        elif found := _NODES.search(text):
            whose = self.by_pointer.get((process, found[1]))
            if whose is None:
                whose = self._new(f"pointer {found[1]}", int(found[2]), line)
            if whose is not None:
                whose.nodes = int(found[3])
        return found is not None

    def latest(self, process: int | None) -> int | None:
        """Return the communicator that a process began last."""
        found = self.last.get(process)
        return None if found is None else found.index

    def all(self) -> tuple[facts.Communicator, ...]:
        """Return the communicators in the order of their first line."""
        return tuple(
            facts.Communicator(
                index=known.index,
                ranks=known.ranks,
                nodes=known.nodes,
                members=tuple(known.members[rank] for rank in sorted(known.members)),
                line=known.line,
            )
            for known in self.known
        )

    def _member(self, line: int, process: int | None, found: re.Match[str]) -> None:
        pointer, rank, ranks, device, bus, name, state = found.groups()
        whose = self._whose(line, process, (pointer, int(rank), int(ranks), name))
        if whose is None:
            return
        self.by_pointer[process, pointer] = self.last[process] = whose
        before = whose.members.get(int(rank))
        if before is not None:
            whose.members[int(rank)] = replace(before, ready=before.ready or state == "COMPLETE")
        elif self.members < _MOST_MEMBERS:
            self.members += 1
            whose.members[int(rank)] = facts.Member(
                rank=int(rank),
                process=process,
                device=int(device),
                bus=bus,
                ready=state == "COMPLETE",
                line=line,
            )
        else:
            self.dropped += 1

    def _whose(
        self, line: int, process: int | None, said: tuple[str, int, int, str | None]
    ) -> _Open | None:
        pointer, rank, ranks, name = said
        if name is not None:
            return self.by_name.get((name, ranks)) or self._new(name, ranks, line)
        known = self.by_pointer.get((process, pointer))
        if known is not None and known.ranks == ranks:
            return known
        unnamed = self.by_name.get(("", ranks))
        if unnamed is not None and rank not in unnamed.members:
            return unnamed
        return self._new("", ranks, line)

    def _new(self, name: str, ranks: int, line: int) -> _Open | None:
        if len(self.known) >= _MOST:
            self.dropped += 1
            return None
        found = _Open(index=len(self.known), ranks=ranks, line=line)
        self.known.append(found)
        self.by_name[name, ranks] = found
        return found
