"""What `peer_tests` tries, from outside: what the process said, and where it hung or fell."""

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from collectives._host import child
from collectives._host.facts import Access, Broken, Check, HostCopy, Link, Rate, Tried, Visible
from collectives._host.peer_tests import Step

COMMAND = (sys.executable, "-m", "collectives._host.peer_process")


def measure(*, timeout_s: float, command: Sequence[str] = COMMAND) -> Tried:
    """Run the tests and return all that was found out before they ended or broke.

    timeout_s: after how many silent seconds a step counts as hung.
    """
    if importlib.util.find_spec("torch") is None:
        return Tried(why_not=child.NO_TORCH)
    found = _Heard()
    for message in child.messages(command, timeout_s=timeout_s):
        if isinstance(message, Step):
            found.step = message
        elif isinstance(message, child.WhyNot):
            return Tried(why_not=message.reason)
        elif isinstance(message, child.Lost):
            found.broken = Broken(
                kind=message.kind,
                step=found.step.name,
                reason=message.reason,
                writes=found.step.writes,
            )
        else:
            found.take(message)
    return found.tried()


@dataclass(slots=True)
class _Heard:
    """What was said up to here."""

    step: Step = field(default_factory=lambda: Step(name="the start of CUDA"))
    visible: tuple[int, ...] = ()
    links: list[Link] = field(default_factory=list)
    copies: list[HostCopy] = field(default_factory=list)
    access: list[Access] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    broken: Broken | None = None

    def take(self, message: object) -> None:
        """Keep a result."""
        if isinstance(message, Visible):
            self.visible = message.gpus
        elif isinstance(message, Link):
            self.links.append(message)
        elif isinstance(message, HostCopy):
            self.copies.append(message)
        elif isinstance(message, Access):
            self.access.append(message)
        elif isinstance(message, Check):
            self.checks.append(message)
        elif isinstance(message, Rate):
            self.rates.append(message)

    def tried(self) -> Tried:
        """Return it as it is kept."""
        return Tried(
            visible=self.visible,
            links=tuple(self.links),
            copies=tuple(self.copies),
            access=tuple(self.access),
            checks=tuple(self.checks),
            rates=tuple(self.rates),
            broken=self.broken,
        )
