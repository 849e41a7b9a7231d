"""What the command line hands to its workers, prints and writes: names and numbers, no objects."""

import msgspec

from verifyscope.privacy import redacted_words
from verifyscope.records import Kind, Mode, Value
from verifyscope.roofline import Limit

_LONGEST_REASON = 600


def reason_from(error: Exception) -> str:
    """Return all of `error` in one line, fit for a record; `reason_of` would keep its first."""
    text = redacted_words(str(error))
    cut = text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."
    return f"{type(error).__name__}: {cut}" if cut else type(error).__name__


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One implementation of an op on one case, by name; `reason` says why it cannot run here."""

    part: str
    op: str
    implementation: str
    kind: Kind | None
    case: str
    reason: str | None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one point: passed, failed or skipped.

    `executed` is cuda, cpu, interpreter (Triton's) or host (CUDA C++ on this CPU); "+ graph" marks
    the replay of a captured graph. `max_row_error` and `tolerance` are of the output named, the one
    nearest to its bound; null where nothing came out.
    """

    part: str
    op: str
    implementation: str
    kind: Kind | None
    case: str
    executed: str | None
    status: str
    max_row_error: float | None = None
    tolerance: float | None = None
    output: str | None = None
    reason: str | None = None


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate builds at once: all cases of one implementation for one capability."""

    op: str
    implementation: str
    capability: int
    long: bool


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted at once: one implementation on one case and one GPU, by name.

    node_s: the seconds of an empty node of a CUDA graph there, where they are known.
    """

    op: str
    implementation: str
    case: str
    gpu: str
    node_s: float | None

    @property
    def kin(self) -> tuple[str, str]:
        """Return what points share whose launches are mostly of one kernel."""
        return self.op, self.implementation


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """One launch: its blocks, and how often they fill the GPU; null where it was not compiled."""

    kernel: str
    blocks: int
    waves: float | None = None


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What a point takes at least on a GPU, or the reason why that is not known.

    `floor_s` is of the op's cost, `touched_bytes`; `roof_s` of what the implementation's form of it
    moves and computes, `moved_bytes` and `flops`; `predicted_s` is the roof and `nodes` launches
    that wait for one another, `node_s` each, where that is known. `counts` are what was counted
    from the inputs (distinct experts), `facts` what the plan resolved (a tile, a path).
    """

    part: str
    op: str
    implementation: str
    kind: Kind
    case: str
    mode: Mode | None
    gpu: str
    counts: dict[str, Value] = {}
    facts: dict[str, str] = {}
    touched_bytes: float | None = None
    moved_bytes: float | None = None
    flops: float | None = None
    floor_s: float | None = None
    roof_s: float | None = None
    predicted_s: float | None = None
    limited_by: Limit | None = None
    nodes: int | None = None
    node_s: float | None = None
    grids: tuple[Grid, ...] = ()
    reason: str | None = None


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which ops and implementations a command line names; empty means all."""

    ops: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
