"""What the command line hands to its workers, prints and writes: names and numbers, no objects."""

import msgspec

from verifyscope.privacy import redacted_words
from verifyscope.records import Kind

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
    packages: tuple[str, ...]
    capability: int
    long: bool

    @property
    def kin(self) -> tuple[object, ...]:
        """Return what units share that may launch the same kernels."""
        return self.op, self.packages, self.capability


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which ops and implementations a command line names; empty means all."""

    ops: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
