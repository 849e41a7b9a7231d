"""One invocation of a sweep, from the checks of the machine to the last line: new or resumed."""

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from collectives._sweep import asked, backend, devices, journal, launch, nodes, state
from collectives._sweep.backend import Backend
from collectives._sweep.driver import Driver
from collectives._sweep.journal import Event, Imported, Journal, Opened
from collectives._sweep.nodes import Launched
from collectives._sweep.operations import OPERATIONS
from collectives._sweep.outcome import Outcome
from collectives._sweep.records import Recorder
from collectives._sweep.screen import screen
from collectives._sweep.spec import Spec
from collectives._sweep.state import State
from collectives._sweep.table import Table
from verifyscope import cli, runs
from verifyscope.errors import Failure, UsageError
from verifyscope.records import Measurement, Reader
from verifyscope.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What is run: `spec` is that of a new sweep, `events` those of one that goes on."""

    records: Path | None
    json: Path | None
    place: Launched | None
    spec: Spec | None = None
    events: tuple[Event, ...] = ()

    def asked(self) -> Spec:
        """Return what the sweep has to do."""
        first = self.events[0] if self.events else None
        found = first.spec if isinstance(first, Opened) else self.spec
        if found is None:
            raise ValueError("a session has a spec or events")
        return found


def sweep(session: Session) -> None:
    """Do what is missing and say what came of it; `Failure` where anything went wrong."""
    spec = session.asked()
    moved_by = backend.find(spec.backend)
    _same_ranks(spec, session.place)
    devices.require_torch()
    devices.require_driver(spec) if moved_by.on_device else devices.require_memory(spec)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        several = session.place is not None and session.place.nodes > 1
        server = stack.enter_context(launch.fork_server(several=several))
        team: launch.Team = server
        if session.place is not None:
            team = stack.enter_context(nodes.lead(session.place, server))
        server.ready()
        imported_s = time.monotonic() - began
        if moved_by.on_device:
            devices.require_gpus(spec, team.count_gpus())
        json = stack.enter_context(cli.output(session.json))
        run = stack.enter_context(runs.start(session.records, "sweep"))
        outcome = _measure(session, moved_by, team, run, imported_s, stack)
        if json is not None:
            json.write(outcome.json())
        problem = outcome.problem()
        cli.note(f"records: {run.path}")
        if problem is not None:
            raise Failure(problem)


def follow(place: Launched) -> NoReturn:
    """Start the ranks of this machine as that of rank 0 asks, and end as it does."""
    devices.require_torch()
    with launch.fork_server(several=True) as server:
        sys.exit(nodes.follow(server, nodes.arrive(place)))


def _measure(
    session: Session,
    moved_by: Backend,
    team: launch.Team,
    run: Run,
    imported_s: float,
    stack: contextlib.ExitStack,
) -> Outcome:
    """Run the driver; whatever ends it, what there is is recorded and shown."""
    began = time.monotonic()
    record = Journal(journal.beside(run.path))
    stack.callback(record.close)
    known = state.from_events(_events(session, run.path.parent, record))
    outcome = _outcome(session, known, moved_by, run, stack)
    driver = Driver(
        known,
        team=team,
        backend=moved_by,
        collective=OPERATIONS[known.spec.op],
        folder=run.path.parent,
        journal=record,
        outcome=outcome,
    )
    driver.emit(Imported(seconds=imported_s))
    try:
        driver.run()
    finally:
        outcome.finish(
            wall_s=time.monotonic() - began,
            starts_s=driver.joins_s,
            samples_s=driver.samples_s,
        )
    return outcome


def _outcome(
    session: Session,
    known: State,
    moved_by: Backend,
    run: Run,
    stack: contextlib.ExitStack,
) -> Outcome:
    collective = OPERATIONS[known.spec.op]
    return Outcome(
        known,
        run=run,
        screen=stack.enter_context(screen()),
        table=Table(known.spec, backend=moved_by, collective=collective),
        recorder=Recorder(
            known, backend=moved_by, collective=collective, environment=run.environment
        ),
        known=_recorded(run.path) if session.events else {},
    )


def _events(session: Session, folder: Path, record: Journal) -> Sequence[Event]:
    """Return the events up to now; a new sweep opens its journal."""
    if session.events:
        return session.events
    opened = Opened(run=journal.new_run(), spec=asked.with_own_graphs(session.asked(), folder))
    record.append(opened)
    return [opened]


def _recorded(records: Path) -> dict[str, Measurement]:
    """Return what the run has recorded so far, the last of each id."""
    if not records.exists():
        return {}
    return {known.id: known for known in Reader(records) if isinstance(known, Measurement)}


def _same_ranks(spec: Spec, place: Launched | None) -> None:
    """Raise `UsageError` where a run is resumed on other machines."""
    found = (spec.ranks, spec.local_ranks)
    present = (spec.ranks, spec.ranks) if place is None else (place.ranks, place.local_ranks)
    if found != present:
        raise UsageError(
            f"the run has {spec.ranks} ranks, {spec.local_ranks} a machine; resume it with as many"
        )
