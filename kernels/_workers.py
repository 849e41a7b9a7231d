"""Work in processes of their own: what crashes or hangs there costs one item, not the run.

A task is named as text ("kernels._check:check_point") and imported in the worker, after its
environment is set: Triton decides at import whether its kernels are interpreted or compiled.
Items and results are pickled.
"""

import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import kernels
from verifyscope.errors import Failure, UsageError

_START = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Lost:
    """Stands in place of a result that never came; `reason` says why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How workers run: how many at once, with what environment, how long for one item."""

    processes: int
    timeout_s: float
    environment: Mapping[str, str]


def work(
    task: str,
    items: Sequence[Any],
    *,
    conditions: Conditions,
    spoils: Callable[[Any], bool] = lambda result: False,
) -> Iterator[Any]:
    """Yield what `task` returns for each item, in their order; `Lost` where nothing came back.

    spoils: whether a worker that gave this result is to be replaced (its GPU context is broken).
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

    threads = ThreadPoolExecutor(max_workers=max(1, min(conditions.processes, len(items))))
    try:
        yield from threads.map(one, items)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.end(for_good=True)


class _Worker:
    """A process that is started when it is asked, and again after it was ended."""

    def __init__(self, task: str, conditions: Conditions) -> None:
        self._task, self._conditions = task, conditions
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._ended_for_good = False

    def ask(self, item: Any) -> Any:
        """Return the task's result for `item`, or `Lost`."""
        if self._process is None or self._connection is None:
            self._start()
        process, connection = self._process, self._connection
        if process is None or connection is None:
            return Lost("ended with the run")
        try:
            connection.send(item)
            if not connection.poll(self._conditions.timeout_s):
                return Lost(f"did not end within {self._conditions.timeout_s:g} s; see --timeout")
            return connection.recv()
        except (EOFError, OSError):
            process.join(5)
            return Lost(_how_it_ended(process.exitcode))

    def end(self, *, for_good: bool = False) -> None:
        """Kill the process; it holds nothing that is not in its results."""
        self._ended_for_good |= for_good
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        if self._ended_for_good:
            return
        self._connection, theirs = _START.Pipe()
        arguments = (theirs, self._task, dict(self._conditions.environment), list(kernels.__path__))
        self._process = _START.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"its process ended with status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"its process crashed with {name}"


def _serve(
    connection: Connection, task: str, environment: dict[str, str], folders: list[str]
) -> None:
    """Be a worker: answer items until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    os.dup2(2, 1)  # stdout is the parent's, for data
    os.environ.update(environment)
    kernels.__path__[:] = folders
    module, _, function = task.partition(":")
    run = getattr(importlib.import_module(module), function)
    while True:
        try:
            item = connection.recv()
        except EOFError:
            sys.exit(0)
        try:
            result = run(item)
        except (UsageError, Failure) as error:
            result = error
        connection.send(result)
