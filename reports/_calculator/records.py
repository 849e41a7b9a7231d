"""What the calculator leaves behind: the cycle and the plain step that were given, and the verdict.

Given times are `imported`, from the command line: nobody measured them here. A report draws them
on its acceptance map like those of a serving log.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from reports._calculator.answer import Answer
from reports._calculator.asked import Asked, Number
from reports._calculator.printing import verdict
from verifyscope.records import (
    Environment,
    Evidence,
    Finding,
    Measurement,
    Mode,
    Origin,
    Value,
)

_PLACE = "command line"


def records(
    asked: Asked, found: Answer, environment: Environment
) -> Iterator[Measurement | Finding]:
    """Yield the times that were given, then the verdict."""
    known: dict[str, Value | None] = {
        "requests": asked.requests,
        "rows": asked.rows,
        "acceptance": None if asked.accepted is None else asked.accepted.value,
    }
    dims = {name: value for name, value in known.items() if value is not None}
    if asked.cycle is not None:
        yield _given("cycle", "verify", asked.cycle, dims, environment)
    if asked.plain is not None:
        plain: dict[str, Value] = {"requests": asked.requests, "rows": 1}
        yield _given("step", "decode", asked.plain, plain, environment)
    numbers = (
        ("verify", asked.verify),
        ("cycle", asked.cycle),
        ("plain step", asked.plain),
        ("accept length", asked.accepted),
    )
    yield Finding(
        name="speculation-break-even",
        sentence=f"{verdict(asked, found)}.",
        evidence=tuple(
            Evidence(file=_PLACE, at=name, value=f"{number.value:.6g} ({number.how})")
            for name, number in numbers
            if number is not None
        ),
        next_action="; ".join(found.missing) or None,
        confidence="likely",
        environment=environment.id,
        command=environment.command,
    )


def write_json(path: Path, asked: Asked, found: Answer) -> None:
    """Write question and answer: seconds, tokens a second, tokens a cycle; null is not known."""
    known = {
        "verdict": verdict(asked, found),
        "asked": asked,
        "answer": found,
        "speedup": found.speedup,
        "best": found.best,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")


def _given(
    op: str, mode: Mode, number: Number, dims: dict[str, Value], environment: Environment
) -> Measurement:
    requests = dims["requests"]
    return Measurement(
        source="imported",
        part="cycle",
        op=op,
        implementation="given",
        kind="baseline-different-work",
        case=f"{requests} running",
        status="ok",
        dims=dims,
        mode=mode,
        median_s=number.value,
        method={"sample": number.how},
        environment=environment.id,
        command=environment.command,
        origin=Origin(_PLACE),
    )
