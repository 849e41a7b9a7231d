"""One invocation of a sweep, from the checks of the machine to the last line: new or resumed."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from collectives._sweep import asked, backend, devices, journal, launch, nodes, state
from collectives._sweep.driver import Driver
from collectives._sweep.journal import Event, Imported, Journal, Opened
from collectives._sweep.nccl_library import NcclLibrary
from collectives._sweep.nodes import Launched
from collectives._sweep.operations import OPERATIONS
from collectives._sweep.outcome import Outcome, conclude
from collectives._sweep.records import Recorder
from collectives._sweep.screen import Screen
from collectives._sweep.screen import screen as open_screen
from collectives._sweep.spec import Spec
from collectives._sweep.state import State
from collectives._sweep.table import Table
from verifyscope import cli, runs
from verifyscope.errors import Failure, UsageError
from verifyscope.records import Measurement, Reader
from verifyscope.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What is run: `specs` are those of a new run, `sweeps` the events of one that goes on.

    nccl: the library that takes the place of torch's; a run knows its version alone.
    """

    records: Path | None
    json: Path | None
    place: Launched | None
    specs: tuple[Spec, ...] = ()
    sweeps: Sequence[Sequence[Event]] = ()
    nccl: NcclLibrary | None = None

    def asked(self) -> tuple[Spec, ...]:
        """Return what has to be swept, in order."""
        first = self.sweeps[0][0] if self.sweeps else None
        found = (first.spec, *first.later) if isinstance(first, Opened) else self.specs
        if not found:
            raise ValueError("a session has specs or sweeps")
        return found


def sweep(session: Session) -> None:
    """Do what is missing and say what came of it; `Failure` where anything went wrong."""
    specs = session.asked()
    spec = specs[0]
    moved_by = backend.find(spec.backend)
    _same_ranks(spec, session.place)
    _same_nccl(spec, session.nccl)
    if session.json is not None and len(specs) > 1:
        raise UsageError("--json has the form of nccl-tests, for one collective; give one --op")
    devices.require_torch()
    devices.require_driver(spec) if moved_by.on_device else devices.require_memory(specs)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        several = session.place is not None and session.place.nodes > 1
        server = stack.enter_context(launch.fork_server(several=several, nccl=session.nccl))
        team: launch.Team = server
        if session.place is not None:
            team = stack.enter_context(nodes.lead(session.place, server))
        server.ready()
        imported_s = time.monotonic() - began
        if moved_by.on_device:
            devices.require_gpus(spec, team.count_gpus())
        json = stack.enter_context(cli.output(session.json))
        run = stack.enter_context(runs.start(session.records, "sweep"))
        screen = stack.enter_context(open_screen())
        outcomes = _all(session, _Place(team=team, run=run, screen=screen), imported_s)
        if json is not None:
            json.write(outcomes[0].json())
        problem = _problem(outcomes)
        cli.note(f"records: {run.path}")
        if problem is not None:
            raise Failure(problem)


def follow(place: Launched, library: NcclLibrary | None) -> NoReturn:
    """Start the ranks of this machine as that of rank 0 asks, and end as it does."""
    devices.require_torch()
    with launch.fork_server(several=True, nccl=library) as server:
        sys.exit(nodes.follow(server, nodes.arrive(place)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What the sweeps of a run share."""

    team: launch.Team
    run: Run
    screen: Screen


def _all(session: Session, place: _Place, imported_s: float) -> list[Outcome]:
    """Sweep one collective after the other; whatever ends that, conclude from what there is."""
    outcomes: list[Outcome] = []
    record = Journal(journal.beside(place.run.path))
    try:
        for known in _states(session, place.run.path.parent, record):
            driver = _driver(known, place, record, resumed=bool(session.sweeps))
            outcomes.append(driver.outcome)
            if len(outcomes) == 1:
                driver.emit(Imported(seconds=imported_s))
            _measure(driver)
    finally:
        record.close()
        conclude(outcomes)
    return outcomes


def _driver(known: State, place: _Place, record: Journal, *, resumed: bool) -> Driver:
    moved_by, collective = backend.find(known.spec.backend), OPERATIONS[known.spec.op]
    run = place.run
    outcome = Outcome(
        known,
        run=run,
        screen=place.screen,
        table=Table(known.spec, backend=moved_by, collective=collective),
        recorder=Recorder(
            known, backend=moved_by, collective=collective, environment=run.environment
        ),
        known=_recorded(run.path) if resumed else {},
    )
    return Driver(
        known,
        team=place.team,
        backend=moved_by,
        collective=OPERATIONS[known.spec.op],
        folder=run.path.parent,
        journal=record,
        outcome=outcome,
    )


def _measure(driver: Driver) -> None:
    """Run the driver; whatever ends it, what there is is recorded and shown."""
    began = time.monotonic()
    try:
        driver.run()
    finally:
        driver.outcome.finish(
            wall_s=time.monotonic() - began,
            starts_s=driver.joins_s,
            samples_s=driver.samples_s,
        )


def _states(session: Session, folder: Path, record: Journal) -> Iterator[State]:
    """Yield where each sweep stands: what was begun goes on, the others are opened."""
    for events in session.sweeps:
        yield state.from_events(events)
    first = session.sweeps[0][0] if session.sweeps else None
    run = first.run if isinstance(first, Opened) else journal.new_run()
    left = session.asked()[len(session.sweeps) :]
    if first is None:
        left = tuple(asked.with_own_graphs(spec, folder) for spec in left)
    for at, spec in enumerate(left, 1):
        opened = Opened(run=run, spec=spec, later=left[at:])
        record.append(opened)
        yield state.from_events([opened])


def _problem(outcomes: Sequence[Outcome]) -> str | None:
    """Return what is wrong with any of the sweeps."""
    told = [(known.state.spec.op, problem) for known in outcomes if (problem := known.problem())]
    if len(outcomes) == 1:
        return next((problem for _, problem in told), None)
    return "; ".join(f"{op}: {problem}" for op, problem in told) or None


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


def _same_nccl(spec: Spec, library: NcclLibrary | None) -> None:
    """Raise `UsageError` where a run is resumed on another NCCL."""
    given = None if library is None else library.version
    if spec.nccl == given:
        return
    if spec.nccl is None:
        raise UsageError("the run has torch's own NCCL; leave --nccl out")
    raise UsageError(
        f"the run has NCCL {spec.nccl}, here is {given or 'that of torch'}; resume it with --nccl "
        f"and that version"
    )
