"""Windows of a serving log, by load; those that do not show the load they name are dropped.

A window is what an engine counts between two of its log lines. It counts only where all of it was
spent on the load that its end shows. What may make it partial is known when it is read (`taint`);
whether it did is decided at the end, beside the clean windows of the same load:

- "first": the first of a file, or after a change of the running count: dropped where it is over
  SETTLED_WITHIN from the median of the clean ones;
- "prefill": a prompt was read in it: dropped where there is a clean one.

SGLang has an identity besides: tokens in use grow by (steps a window) x running x acceptance, and
the steps a window are the same in all of them. Where the growth gives another number of steps,
requests came or went and the window is dropped; where the growth agrees in fewer than half of the
windows (token counts that move in pages), the identity says nothing and is not used.

Memory is bounded: MOST_LOADS loads, and of each a sample of its windows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from ingest.facts import Steps
from ingest.number import short
from ingest.series import Series
from verifyscope.records import Launch

MOST_LOADS = 256
SETTLED_WITHIN = 0.05
STALLED_FROM = 3.0
STEPS_WITHIN = 0.03
USUAL_STEPS = 40
LONGEST_CYCLE_S = 100.0
_MOST_SHOWN = 10
_TAINTS = ("", "first", "prefill")


@dataclass(frozen=True, slots=True)
class Load:
    """What windows of one group share. rank: text that tells engines apart, never recorded."""

    rank: str
    running: int
    launch: Launch | None
    speculative: bool
    verify_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window; `steps` is what the growth of the tokens in use says, NaN where it says nothing.

    context: tokens in use a request.
    """

    line: int
    cycle_s: float
    acceptance: float = math.nan
    steps: float = math.nan
    context: float = math.nan
    taint: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A window that does not count, and why."""

    line: int
    cycle_s: float | None
    reason: str


@dataclass(slots=True)
class Windows:
    """The windows of one engine's log."""

    engine: str
    loads: dict[Load, Series] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    dropped_count: int = 0

    def add(self, load: Load, window: Window) -> None:
        """Take a window; one with an impossible cycle is dropped at once."""
        if not 0 < window.cycle_s < LONGEST_CYCLE_S:
            self.drop(window.line, None, "no cycle time: over 100 s, or nothing was generated")
            return
        if load not in self.loads and len(self.loads) >= MOST_LOADS:
            self.drop(
                window.line, None, f"over {MOST_LOADS} loads in one file: the rest is left out"
            )
            return
        self.loads.setdefault(load, Series(columns=6)).add(
            float(window.line),
            window.cycle_s,
            window.acceptance,
            window.steps,
            window.context,
            float(_TAINTS.index(window.taint)),
        )

    def drop(self, line: int, cycle_s: float | None, reason: str) -> None:
        """Note a window that does not count."""
        self.dropped_count += 1
        if len(self.dropped) < _MOST_SHOWN:
            self.dropped.append(Dropped(line, cycle_s, reason))

    def steps(self, *, interval: int | None = None) -> Iterator[Steps]:
        """Yield each load's windows that count. interval: steps a window, where a setting says."""
        self._drop_impure(interval)
        for load, series in self.loads.items():
            rows = series.rows()
            kept, flags = _kept(rows, self)
            if kept:
                counted = round(series.count * len(kept) / len(rows))
                yield _steps(load, kept, engine=self.engine, flags=flags, windows=counted)

    def usual_steps(self, interval: int | None = None) -> float | None:
        """Return the steps that most windows hold by their tokens; None where they disagree."""
        found = [row[3] for series in self.loads.values() for row in series.rows()]
        known = [steps for steps in found if steps == steps and steps > 0]
        if not known:
            return None
        # What the windows alone suggest needs more of them: counts in pages agree by halves, too.
        for guess, needed in ((interval or USUAL_STEPS, 0.5), (median(known), 0.8)):
            if sum(_near(steps, guess) for steps in known) >= needed * len(known):
                return guess
        return None

    def _drop_impure(self, interval: int | None) -> None:
        usual = self.usual_steps(interval)
        if usual is None:
            return
        for load, series in self.loads.items():
            clean, rows = Series(columns=6), series.rows()
            for row in rows:
                if row[3] != row[3] or _near(row[3], usual):
                    clean.add(*row)
                else:
                    reason = (
                        f"requests came or went in it: its tokens in use changed as by "
                        f"{short(row[3])} steps, not {short(usual)}"
                    )
                    self.drop(int(row[0]), row[1], reason)
            # The rows are a sample of all windows: what is counted is scaled to all of them.
            scale = series.count / max(1, len(rows))
            self.dropped_count += round((len(rows) - clean.count) * (scale - 1))
            clean.count = round(clean.count * scale)
            self.loads[load] = clean


def _near(steps: float, usual: float | None) -> bool:
    return usual is not None and abs(steps / usual - 1) <= STEPS_WITHIN


def _kept(
    rows: Sequence[tuple[float, ...]], windows: Windows
) -> tuple[list[tuple[float, ...]], tuple[str, ...]]:
    """Return the rows that count and what must be said of them."""
    clean = [row for row in rows if not row[5]]
    if not clean:
        flags = {_TAINTS[int(row[5])] for row in rows}
        return list(rows), tuple(sorted(f"{flag}-window" for flag in flags))
    usual = median(row[1] for row in clean)
    kept = []
    for row in rows:
        line, cycle_s, taint = int(row[0]), row[1], _TAINTS[int(row[5])]
        times = cycle_s / usual
        if taint == "prefill":
            windows.drop(line, cycle_s, "a prompt was read in it")
        elif taint == "first" and abs(times - 1) > SETTLED_WITHIN:
            reason = f"the first of its load, {short(times)} x the later ones: it spans idle time"
            windows.drop(line, cycle_s, f"{reason} or another load")
        elif times > STALLED_FROM:
            windows.drop(line, cycle_s, f"{short(times)} x the median: idle time or a stall in it")
        else:
            kept.append(row)
    return kept, ()


def _steps(
    load: Load,
    rows: Sequence[tuple[float, ...]],
    *,
    engine: str,
    flags: tuple[str, ...],
    windows: int,
) -> Steps:
    accepted = tuple(row[2] for row in rows if row[2] == row[2])
    contexts = tuple(row[4] for row in rows)
    return Steps(
        line=int(rows[0][0]),
        engine=engine,
        mode="verify" if load.speculative else "decode",
        seconds=tuple(row[1] for row in rows),
        running=load.running,
        verify_tokens=load.verify_tokens,
        acceptance=sum(accepted) / len(accepted) if accepted else None,
        acceptances=accepted,
        contexts=contexts if all(value == value for value in contexts) else (),
        launch=load.launch,
        windows=max(windows, 1),
        flags=flags,
    )
