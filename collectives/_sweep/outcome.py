"""What a sweep has found so far: its table line by line, its records, its JSON, its problem."""

import msgspec

from collectives._sweep import records, table
from collectives._sweep.launch import Group, RankFailed, Result
from collectives._sweep.messages import Progress
from collectives._sweep.plan import Job
from collectives._sweep.screen import Screen
from verifyscope import cli
from verifyscope.runs import Run

_NAMED_POINTS = 5


class Outcome:
    """Takes what the ranks deliver, in order: each point is recorded before its row is printed."""

    def __init__(self, job: Job, run: Run, screen: Screen) -> None:
        self.job, self.run, self.screen = job, run, screen
        self.group: Group | None = None
        self.results: list[Result] = []
        self.concluded = False
        self.problem: str | None = None

    def take(self, message: Group | Result | Progress) -> None:
        """Keep and show `message`."""
        if isinstance(message, Group):
            self.group = message
            for line in table.header(self.job, message):
                self.screen.say(line)
        elif isinstance(message, Result):
            self._record(message)
        else:
            self.screen.show(calls=message.calls)

    def end(self, failed: RankFailed | None) -> None:
        """Print what stands below the rows, and settle what is wrong, if anything is."""
        self.concluded = failed is None
        half = self.results[-1] if self.results else None
        if half is not None and not half.point.in_place:
            self.screen.say(table.row(self.job, half, None))
        if failed is not None:
            self._lose(failed)
        elif wrong := [result for result in self.results if result.wrong]:
            cases = [records.case(self.job, result.point) for result in wrong]
            more = f" and {len(wrong) - _NAMED_POINTS} more" if len(wrong) > _NAMED_POINTS else ""
            self.problem = (
                f"values are wrong at {', '.join(cases[:_NAMED_POINTS])}{more}; their times are "
                f"withheld: nothing may be concluded from the others either before this is mended"
            )
        if self.group is not None:
            for line in table.footer(self.job, self.results, concluded=self.concluded):
                self.screen.say(line)

    def json(self) -> bytes:
        """Return what was measured, with the keys that nccl-tests writes with -J."""
        found = table.as_json(self.job, self.group, self.results, problem=self.problem)
        return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"

    def _record(self, result: Result) -> None:
        if self.group is None:
            raise ValueError("a point was measured before all ranks had joined")
        before = next(
            (
                known
                for known in reversed(self.results)
                if known.point.in_place == result.point.in_place
            ),
            None,
        )
        measured = records.measurement(
            self.job, self.group, result, before=before, environment=self.run.environment
        )
        self.run.append(measured, None if result.wrong else result.samples)
        self.results.append(result)
        if result.point.in_place:
            self.screen.say(table.row(self.job, self.results[-2], result))

    def _lose(self, failed: RankFailed) -> None:
        job, count = self.job, len(self.results)
        where = "after the last point"
        if count < len(job.points):
            point, here = job.points[count], self.run.environment
            self.run.append(records.lost(job, self.group, point, failed, environment=here))
            where = f"at {records.case(job, point)}"
        self.screen.say(f"# Test failure: {failed.reason}; {where}")
        for line in failed.said:
            cli.note(f"it said: {line}")
        kept = f"{count} of {len(job.points)} points were measured and are kept"
        self.problem = f"{failed.reason}; {where}; {kept}"
