"""Lines on stdout as they come; below them, where stderr is a terminal, a progress bar."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from verifyscope import cli

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Screen:
    """What a person sees of a sweep; `bar` is None where stderr is no terminal."""

    def __init__(self, bar: "Progress | None", task: "TaskID | None") -> None:
        self._bar, self._task = bar, task

    def say(self, line: str) -> None:
        """Print a line of the table now."""
        # On one terminal the bar would be written over by the line: take it away meanwhile.
        shared = self._bar is not None and cli.is_terminal(sys.stdout)
        if self._bar is not None and shared:
            self._bar.stop()
        print(line, flush=True)
        if self._bar is not None and shared:
            self._bar.start()

    def begin(self, what: str, calls: int) -> None:
        """Show a bar for the next `calls` samples."""
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, total=calls, description=what)

    def show(self, *, calls: int) -> None:
        """Move the bar to `calls` finished samples."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=calls)


@contextlib.contextmanager
def screen() -> Iterator[Screen]:
    """Show what runs and how far it is, until the block is left."""
    if not cli.is_terminal(sys.stderr):
        yield Screen(None, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        yield Screen(bar, bar.add_task("starting", total=None))
