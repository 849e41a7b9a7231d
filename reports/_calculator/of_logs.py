"""What an imported log tells the calculator: one operating point of one system.

    cycle       median of its windows; of a component table verify and share, or its line
    acceptance  as its engine prints it, the bonus token counted; else what its runs imply
    plain step  of the same system at as many requests, or what --plain-ms said
    rows        of one request in a verify pass

A run of several points is asked about: they are listed, each with the option that names it. What
is typed beside --from takes the place of what a log says.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from reports import _systems, _text
from reports._calculator.asked import Given
from reports._operating_points import OperatingPoint
from verifyscope import cli
from verifyscope.errors import UsageError
from verifyscope.records import Measurement

_MOST_LISTED = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The point that was chosen, and the requests of the others of its system."""

    point: OperatingPoint
    other_loads: tuple[int, ...] = ()


def choose(
    points: Sequence[OperatingPoint], wanted: str | None, requests: int | None, *, of: str
) -> Choice:
    """Return the one point that is meant; `UsageError`, after a list, where several are.

    Of one system a single request is meant where `requests` says nothing.
    """
    found = [one for one in points if one.name == wanted] or [
        one for one in points if wanted is None or wanted in one.name or wanted in one.system
    ]
    if not found:
        raise UsageError(
            f"no cycle of {of} holds {wanted!r}; there are: "
            f"{_text.listed((one.name for one in points), most=6)}"
        )
    loads = [one for one in found if requests is None or one.requests in (requests, None)]
    if not loads:
        known = sorted({one.requests for one in found if one.requests is not None})
        raise UsageError(
            f"no cycle of {of} is at {requests} requests; give --requests "
            f"{_text.listed(map(str, known), most=12)}"
        )
    if len(loads) > 1 and requests is None and len({one.group for one in loads}) == 1:
        loads = [one for one in loads if one.requests == 1] or loads
    if len(loads) == 1:
        others = {one.requests for one in found if one.group == loads[0].group}
        known = sorted(load for load in others - {loads[0].requests} if load is not None)
        return Choice(point=loads[0], other_loads=tuple(known))
    systems = len({one.group for one in loads})
    _list(loads)
    fullest = max(loads, key=lambda one: (one.plain is not None, one.accepted is not None))
    which = f"of {systems} systems" if systems > 1 else "of one system"
    raise UsageError(
        f"{of} holds {len(loads)} cycles {which}; choose one, such as {_option(fullest, loads)}"
    )


def filled(given: Given, point: OperatingPoint) -> Given:
    """Return what was typed, and of the point what was not."""
    told: dict[str, float | int] = {}
    sources: dict[str, str] = {}
    for name, value, how in _told(given, point):
        if value is not None:
            told[name], sources[name] = value, how
    requests = point.requests or given.requests
    # Every name in `told` is a field of Given that was not typed.
    return replace(given, requests=requests, sources=sources, **told)  # type: ignore[arg-type]


def _told(given: Given, point: OperatingPoint) -> Sequence[tuple[str, float | int | None, str]]:
    one, plain = point.record, point.plain
    found: list[tuple[str, float | int | None, str]] = []
    cycle, verify, share = point.seconds * 1e3 if point.is_cycle else None, None, None
    if one.op == "verify":
        verify, share = (one.median_s or 0.0) * 1e3, one.method.get("share")
        cycle = None if isinstance(share, float) else cycle
    if given.cycle_ms is None:
        found.append(("cycle_ms", cycle, _where(one)))
        if given.share is None and isinstance(share, float):
            found.append(("share", share, _where(one)))
    if given.verify_ms is None and given.cycle_ms is None:
        found.append(("verify_ms", verify, _where(one)))
    if given.step_ms is None and plain is not None:
        found.append(("step_ms", plain.seconds * 1e3, _where(plain.record)))
    if given.accept_length is None and given.accept_rate is None:
        how = "implied by its runs" if point.is_implied else "the bonus token counted"
        found.append(("accept_length", point.accepted, f"{_where(one, count=False)}, {how}"))
    if given.rows is None and given.draft_tokens is None:
        found.append(("rows", point.rows, _where(one)))
        steps = one.method.get("draft_steps")
        if given.steps is None and isinstance(steps, int):
            found.append(("steps", steps, _where(one)))
    return found


def _where(one: Measurement, *, count: bool = True) -> str:
    """Return "serve.log:4, median of 3 windows"."""
    if one.origin is None or one.origin.file == _systems.COMMAND_LINE:
        return str(one.method.get("sample", "given"))
    line = "" if one.origin.line is None else f":{one.origin.line}"
    of = ""
    if count and one.count and one.count > 1:
        what = "windows" if one.part == "cycle" and one.op in ("cycle", "step") else "values"
        of = f", median of {one.count:,} {what}"
    return f"{one.origin.file}{line}{of}"


def _list(points: Sequence[OperatingPoint]) -> None:
    """Print the points, each with the option that names it."""
    rows = [
        (
            "point",
            one.system or "names no system",
            _text.whole(one.requests),
            _text.duration(one.seconds),
            _text.ratio(one.accepted),
            _text.NOT_KNOWN if one.plain is None else _text.duration(one.plain.seconds),
            _option(one, points),
        )
        for one in points[:_MOST_LISTED]
    ]
    header = ("", "system", "requests", "cycle", "acceptance", "plain step", "choose it by")
    cli.print_rows(rows, header)
    if len(points) > len(rows):
        cli.note(f"{len(points) - len(rows)} more are in the records")


def _option(one: OperatingPoint, points: Sequence[OperatingPoint]) -> str:
    """Return the options that name one point and no other."""
    ways: Mapping[str, Callable[[OperatingPoint], object]] = {
        f"--point {shlex.quote(_systems.place(one.record))}": lambda x: _systems.place(x.record),
        f"--point {shlex.quote(one.name)}": lambda x: x.name,
    }
    for words, of in ways.items():
        if sum(of(other) == of(one) for other in points) == 1:
            return words
    return f"{words} --requests {one.requests}"
