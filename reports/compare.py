"""`python -m reports.compare A B`: 19 ms yesterday, 29 ms today: what changed?

    python -m reports.compare runs/yesterday runs/today
    python -m reports.compare A B --fail-on slower:3% --out diff.md --html diff.html

A and B are records files or folders of runs; A is the old one. Their rows are matched and judged
together, so that two runs of one configuration do not trip it; the change of a pass, a cycle or a
trace is split so that its parts add up; what else differs stands beside it, ordered by how well it
could explain which rows moved, as a hypothesis. Markdown goes to stdout or --out.

Exit status: 0; 1 if --fail-on is met: `slower:3%` a row or the mean of an op that is slower beyond
noise by 3 % or more, `faster:3%` the other way, `lost` a row of A that has no time in B or is not
there; 2 for a wrong question, or where --fail-on has no row to look at.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifyscope import cli
from verifyscope.errors import Failure, UsageError

if TYPE_CHECKING:
    from reports._comparison.comparison import Comparison

PROGRAM = "python -m reports.compare"
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,4})?)\s?%")
_FAIL = re.compile(r"(slower|faster)(?::(.+))?")
_LEAST, _MOST = 0.001, 1.0

app = cli.app(None)


@app.command()
def main(
    old: Annotated[Path, typer.Argument(metavar="A", help="Records of before.")],
    new: Annotated[Path, typer.Argument(metavar="B", help="Records of now.")],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(help="slower:3%, faster:3% or lost: exit with 1; may be repeated."),
    ] = None,
    same_within: Annotated[
        str, typer.Option(help="Below it nothing is slower or faster, such as 2%.")
    ] = "2%",
    out: Annotated[
        Path | None, typer.Option(help="Write the Markdown here instead of to stdout.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page of HTML here.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write every row here.")] = None,
) -> None:
    """Say what changed from A to B, where, and what differs beside it."""
    within = _percent("--same-within", same_within)
    limits = [_limit(word, within) for word in fail_on or ()]
    from reports._comparison import as_json, comparison, page

    if old.resolve() == new.resolve():
        cli.note(f"warning: A and B are both {old}; nothing can have changed")
    warnings: list[str] = []
    found = comparison.compare(old, new, same_within=within, warnings=warnings)
    for warning in dict.fromkeys(warnings):
        cli.note(f"warning: {warning}")
    command = cli.command_line()
    text = page.as_markdown(found, command=command)
    if json is not None:
        as_json.write(json, found, command=command)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(page.as_html(found, command=command), encoding="utf-8")
    if out is None:
        print(text, end="")
    else:
        print(comparison.sentence(found))
    _fail(found, limits)


def _percent(option: str, word: str) -> float:
    match = _PERCENT.fullmatch(word.strip())
    value = float(match[1]) / 100 if match else 0.0
    if not _LEAST <= value <= _MOST:
        raise UsageError(f"{option} {word!r} is no percentage of 0.1% to 100%; give one like 3%")
    return value


def _limit(word: str, within: float) -> tuple[str, float]:
    """Return the verdict and the least change that fail; a bare verdict fails on any."""
    if word == "lost":
        return word, 0.0
    match = _FAIL.fullmatch(word)
    if match is None:
        raise UsageError(f"--fail-on {word!r} is none of slower:3%, faster:3%, lost")
    least = within if match[2] is None else _percent("--fail-on", match[2])
    if least < within:
        raise UsageError(
            f"--fail-on {word} is below --same-within {100 * within:g}%, where nothing is slower "
            f"or faster; give a smaller --same-within as well"
        )
    return match[1], least


def _fail(found: "Comparison", limits: list[tuple[str, float]]) -> None:
    """Raise `Failure` where a limit is met, `UsageError` where nothing could meet it."""
    if not limits:
        return
    changes = [
        (f"{pair.new.last.op}/{pair.new.last.implementation} {pair.new.last.case}", pair.change)
        for pair in found.moved
    ] + [(f"the mean of {one.op}", one.mean) for one in found.groups]
    met = [
        f"{name} is {100 * abs(change.ratio - 1):.1f} % {verdict}"
        for verdict, least in limits
        for name, change in changes
        if change is not None and change.verdict == verdict and abs(change.ratio - 1) >= least
    ]
    if any(verdict == "lost" for verdict, _ in limits):
        gone = len(found.matched.lost) + len(found.matched.only_old)
        met += [f"rows of A without a time in B: {gone}"] if gone else []
    if not met and not found.matched.timed:
        raise UsageError("--fail-on has no row to look at: A and B timed none in common")
    if met:
        others = f" and {len(met) - 1} more" if len(met) > 1 else ""
        raise Failure(f"--fail-on: {met[0]}{others}")


if __name__ == "__main__":
    cli.run(app, PROGRAM)
