"""What a person and the records get of a sweep: progress, a table for each combination, the end.

A combination is recorded once it is complete; what an early end leaves unfinished is recorded then,
with as many starts as there were. A run that is resumed records what has changed since.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from collectives._sweep import conclusion, overview, table_json
from collectives._sweep.journal import Event, Lost, ProbeDone, StartDone, StressDone
from collectives._sweep.launch import RankFailed
from collectives._sweep.records import Recorder, case
from collectives._sweep.screen import Screen
from collectives._sweep.state import Row, State
from collectives._sweep.table import Table
from verifyscope import cli
from verifyscope.records import Measurement
from verifyscope.runs import Run

TUNER_FILE = "tuner.csv"
_WRONG = ("error", "hang", "corrupt", "ignored")
_NAMED = 5


class Outcome:
    """Takes what the driver does, in order. `known`: what an earlier part of the run recorded."""

    def __init__(
        self,
        state: State,
        *,
        run: Run,
        screen: Screen,
        table: Table,
        recorder: Recorder,
        known: Mapping[str, Measurement],
    ) -> None:
        self.state, self.run, self.screen = state, run, screen
        self.table, self.recorder = table, recorder
        self.known = dict(known)
        self.shown: set[int] = set()
        self.changed = False

    def begin(self, what: str, calls: int) -> None:
        """Say what runs now."""
        self.screen.begin(what, calls)

    def show(self, calls: int) -> None:
        """Say how far it is."""
        self.screen.show(calls=calls)

    def take(self, event: Event) -> None:
        """Say what came of a step."""
        line = self._progress(event)
        if line is not None:
            self.screen.say(f"# {line}")

    def lost(self, failed: RankFailed) -> None:
        """Pass on what a lost rank said last."""
        for line in failed.said:
            cli.note(f"it said: {line}")

    def finished(self, at: int) -> None:
        """Record and show a combination of which nothing is missing."""
        if at in self.shown or not self.state.complete(at):
            return
        self.shown.add(at)
        rows = list(self.state.rows(at))
        for row in rows:
            self._record(self.recorder.row(at, row), row.samples)
        self._print(at, rows, concluded=at not in self.state.lost)

    def finish(self, *, wall_s: float, starts_s: float, samples_s: float) -> None:
        """Record and show the rest, whatever ended the sweep."""
        for at, combination in enumerate(self.state.spec.combinations):
            if not combination.launched:
                self._record(self.recorder.listed(combination))
            elif at not in self.shown:
                rows = list(self.state.rows(at))
                for row in rows:
                    self._record(self.recorder.row(at, row), row.samples)
                concluded = self.state.complete(at) and at not in self.state.lost
                self._print(at, rows, concluded=concluded)
        for started, seconds in self.recorder.starts():
            self._record(started, seconds)
        if samples_s:
            self._record(
                self.recorder.measuring(wall_s=wall_s, starts_s=starts_s, samples_s=samples_s)
            )
        for line in overview.lines(self.state):
            self.screen.say(line)

    def problem(self) -> str | None:
        """Return what is wrong, if anything is: the sweep ends with status 1 then."""
        found = {at: told for at in self.state.spec.launched() if (told := self._problems(at))}
        if not found:
            return None
        if len(found) == 1:
            (at, told), *_ = found.items()
            said = f"{self.state.spec.combinations[at].label}: {'; '.join(told.values())}"
        else:
            named = (
                f"{self.state.spec.combinations[at].label} ({', '.join(told)})"
                for at, told in [*found.items()][:_NAMED]
            )
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            launched = len([*self.state.spec.launched()])
            said = (
                f"{len(found)} of {launched} combinations did not come through: "
                f"{', '.join(named)}{more}; the lines with their names say why"
            )
        warning = (
            "; where values are wrong, nothing may be concluded from the others either before that "
            "is mended"
        )
        corrupt = any("corrupt" in told for told in found.values())
        return f"{said}{warning if corrupt else ''}; what was measured is kept"

    def json(self) -> bytes:
        """Return what was measured, with the keys that nccl-tests writes with -J."""
        found = table_json.document(self.state, self.table, problem=self.problem())
        return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"

    def _problems(self, at: int) -> dict[str, str]:
        """Return what is wrong with a combination, a sentence for each status."""
        told: dict[str, list[Row]] = {}
        for row in self.state.rows(at):
            if row.status in _WRONG:
                told.setdefault(row.status, []).append(row)
        lost = self.state.lost.get(at)
        if lost is not None and lost.status in _WRONG:
            told.setdefault(lost.status, [])
        return {status: self._sentence(at, status, rows) for status, rows in told.items()}

    def _sentence(self, at: int, status: str, rows: Sequence[Row]) -> str:
        lost = self.state.lost.get(at)
        reason = rows[0].reason if rows else lost.reason if lost is not None else None
        cases = [*dict.fromkeys(case(self.state.spec, row.point) for row in rows)]
        more = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
        where = f" ({', '.join(cases[:_NAMED])}{more})" if status == "corrupt" else ""
        return f"{status}: {reason}{where}"

    def _record(self, made: Measurement, samples: Sequence[float] = ()) -> None:
        """Append a record, unless an earlier part of the run has left the same."""
        before = self.known.get(made.id)
        if before is not None and _same(before, made):
            return
        self.known[made.id] = made
        self.changed = True
        self.run.append(made, tuple(samples) if samples else None)

    def _print(self, at: int, rows: Sequence[Row], *, concluded: bool) -> None:
        probe = self.state.probes.get(at)
        lines = [*self.table.rows(rows)]
        if probe is None or not lines:
            return  # the overview says what became of it
        lost = self.state.lost.get(at)
        failure = [] if lost is None else [f"# Test failure: {lost.reason}"]
        for line in (
            *self.table.header(self.state.spec.combinations[at], probe),
            *lines,
            *failure,
            *self.table.footer(rows, concluded=concluded),
        ):
            self.screen.say(line)

    def _progress(self, event: Event) -> str | None:
        say: Callable[[str, int, str], str] = lambda what, at, said: (  # noqa: E731
            f"{what:<12} {self.state.spec.combinations[at].label}: {said}"
        )
        if isinstance(event, ProbeDone):
            return say("probe", event.combination, f"{_verdicts(event)}, {event.wall_s:.1f} s")
        if isinstance(event, StressDone):
            said = event.problem or f"{event.calls} calls of {event.sizes} sizes, all bits equal"
            return say("stress", event.combination, f"{said}, {event.wall_s:.1f} s")
        if isinstance(event, StartDone):
            starts = self.state.spec.starts
            what = "again" if event.start == starts else f"start {event.start + 1} of {starts}"
            took = f"joined in {event.join_s:.1f} s, {event.wall_s:.1f} s in all"
            return say(what, event.combination, took)
        if isinstance(event, Lost):
            return say("lost", event.combination, f"{event.status}: {event.reason}")
        return None


def conclude(outcomes: Sequence[Outcome]) -> None:
    """Say what to take and what it saves; leave findings and a tuner's file beside the rows."""
    if not outcomes:
        return
    known = {name: row for outcome in outcomes for name, row in outcome.known.items()}
    run, screen = outcomes[0].run, outcomes[0].screen
    found = conclusion.conclude(known.values())
    for line in conclusion.lines(found):
        screen.say(line)
    if not any(outcome.changed for outcome in outcomes):
        return  # a run that was resumed with nothing to do has concluded already
    for finding in conclusion.findings(found, run.environment):
        run.append(finding)
    if found.tuner_csv is not None:
        place = run.path.with_name(TUNER_FILE)
        place.write_text(found.tuner_csv)
        screen.say(f"# for NCCL_TUNER_CONFIG_FILE of its example plugin: {place.name}")


def _verdicts(event: ProbeDone) -> str:
    """Return "ok at 26 points", or the statuses with their counts."""
    counts: dict[str, int] = {}
    for verdict in event.verdicts:
        counts[verdict.status] = counts.get(verdict.status, 0) + 1
    return ", ".join(f"{status} at {count} points" for status, count in counts.items())


def _same(before: Measurement, made: Measurement) -> bool:
    return (before.status, before.reason, before.count, before.median_s) == (
        made.status,
        made.reason,
        made.count,
        made.median_s,
    )
