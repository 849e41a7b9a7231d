"""Work in processes of their own: what crashes or hangs there costs one item, not the run.

A task is named as text ("kernels._execute:check_point") and imported in the worker, after its
environment is set: Triton decides at import whether its kernels are interpreted or compiled.
Items and results are pickled. A task may yield instead: the last thing is its result, and what
comes before says what it is at and starts its time anew.
"""

import contextlib
import importlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import kernels
from verifyscope.child import signal_name
from verifyscope.errors import Failure, UsageError

# Loading torch takes seconds, on a busy disk a minute.
_START_S = 300.0
_START = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Lost:
    """Stands in place of a result that never came; what the worker was at, if it said so."""

    reason: str
    during: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How workers run: how many at once, with what environment, how long without a sign."""

    processes: int
    timeout_s: float
    environment: Mapping[str, str]


@contextlib.contextmanager
def work(
    task: str,
    items: Sequence[Any],
    *,
    conditions: Conditions,
    spoils: Callable[[Any], bool] = lambda result: False,
    kin: Callable[[Any], object] | None = None,
) -> Iterator[Iterator[Any]]:
    """Give what `task` returns for each item, in their order; `Lost` where nothing came back.

    spoils: whether a worker that gave this result is to be replaced (its GPU context is broken).
    kin: neighbours of which this is equal go to one worker, which may keep what they share.
    """
    mine = threading.local()
    workers: list[_Worker] = []

    def one(item: Any) -> Any:
        if not hasattr(mine, "worker"):
            mine.worker = _Worker(task, conditions)
            workers.append(mine.worker)
        result = mine.worker.ask(item)
        if isinstance(result, UsageError | Failure):
            raise result
        if isinstance(result, Lost) or spoils(result):
            mine.worker.end()
        return result

    def several(asked: Sequence[tuple[Any, Future[Any]]]) -> None:
        for item, answer in asked:
            try:
                answer.set_result(one(item))
            except Exception as error:
                answer.set_exception(error)

    answers: list[Future[Any]] = [Future() for _ in items]
    asked = [*zip(items, answers, strict=True)]
    groups = [[pair] for pair in asked]
    if kin is not None:
        groups = [[*group] for _, group in itertools.groupby(asked, lambda pair: kin(pair[0]))]
    # Ctrl-C is the main thread's: a process inherits what the thread that starts it lets through.
    # Python's own helper is started first, since that opens the thread to the signal again.
    resource_tracker.ensure_running()
    threads = ThreadPoolExecutor(
        max_workers=max(1, min(conditions.processes, len(groups))),
        initializer=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}),
    )
    try:
        for group in groups:
            threads.submit(several, group)
        yield (answer.result() for answer in answers)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.end(for_good=True)


class _Worker:
    """A process that is started when it is asked, and again after it was ended."""

    def __init__(self, task: str, conditions: Conditions) -> None:
        self._task, self._conditions = task, conditions
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._over = False

    def ask(self, item: Any) -> Any:
        """Return the task's result for `item`, or `Lost`."""
        limit_s, part = self._conditions.timeout_s, None
        try:
            connection = self._connection or self._start()
            connection.send(item)
            while connection.poll(limit_s):
                is_result, part = connection.recv()
                if is_result:
                    return part
        except TimeoutError as error:
            return Lost(str(error))
        except (EOFError, OSError):
            return Lost(self._how_it_ended(), part)
        return Lost(f"did not end within {limit_s:g} s; see --timeout", part)

    def end(self, *, for_good: bool = False) -> None:
        """Kill the process; it holds nothing that is not in its results."""
        with self._lock:
            self._over |= for_good
            if self._process is not None:
                self._process.kill()
                self._process.join()
            self._process = self._connection = None

    def _start(self) -> Connection:
        with self._lock:
            if self._over:
                raise EOFError
            connection, theirs = _START.Pipe()
            folders = list(kernels.__path__)
            arguments = (theirs, self._task, dict(self._conditions.environment), folders)
            self._process = _START.Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
            theirs.close()
        if not connection.poll(_START_S):
            self.end()
            raise TimeoutError(f"its process was not ready within {_START_S:g} s")
        connection.recv()
        self._connection = connection
        return connection

    def _how_it_ended(self) -> str:
        process = self._process
        if process is None:
            return "it was interrupted"
        process.join(5)
        code = process.exitcode
        if code is None or code >= 0:
            return f"its process ended with status {code}"
        return f"its process crashed with {signal_name(-code)}"


def _serve(
    connection: Connection, task: str, environment: dict[str, str], folders: list[str]
) -> None:
    """Be a worker: answer items until the other end is closed."""
    os.dup2(2, 1)  # stdout is the parent's, for data
    os.environ.update(environment)
    kernels.__path__[:] = folders
    module, _, function = task.partition(":")
    run = getattr(importlib.import_module(module), function)
    kernels.all_ops()
    _tell(connection, "ready")
    while True:
        try:
            item = connection.recv()
        except (EOFError, ConnectionError):
            sys.exit(0)
        result = None
        try:
            answer = run(item)
            for part in answer if isinstance(answer, Iterator) else (answer,):
                _tell(connection, (False, result := part))
        except (UsageError, Failure) as error:
            result = error
        _tell(connection, (True, result))


def _tell(connection: Connection, what: object) -> None:
    """Send to the parent; where that was killed, nobody is left to be told, and the worker ends."""
    try:
        connection.send(what)
    except ConnectionError:
        sys.exit(0)
