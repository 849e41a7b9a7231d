"""`python -m reports.history DIR`: one row's median over all runs of one machine.

    python -m reports.history runs                            the rows that there are
    python -m reports.history runs --row "mla_verify/triton t4" --plot it.png --json it.json

DIR holds runs: folders of records, or records files. The first line says how far the row has moved
and when; then each run with its commit, median, interval, its verdict against the run before, and
what else changed between the two. Rows begin with what they are: row, point.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifyscope import cli

if TYPE_CHECKING:
    from reports._history import History, Seen

PROGRAM = "python -m reports.history"

app = cli.app(None)


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs.")],
    row: Annotated[
        str | None, typer.Option(metavar="WORDS", help="The row whose name holds these words.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="The machine  [default: the one of most runs]"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it here, as a PNG.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write it here.")] = None,
) -> None:
    """Show one row's median over all runs of one machine, with what changed between them."""
    from reports import _history

    warnings: list[str] = []
    groups = _history.labels(_history.read(folder, warnings))
    for warning in dict.fromkeys(warnings):
        cli.note(f"warning: {warning}")
    if row is None and len(groups) > 1:
        _list(groups)
        return
    key = _history.chosen(groups, row=row, machine=machine)
    found = _history.history(key, groups[key])
    _print(found)
    others = [name for label, name in groups if label == key[0] and name != key[1]]
    if others and machine is None:
        cli.note(f"the row was measured elsewhere, too (--machine): {'; '.join(others)}")
    if plot is not None:
        from reports import _history_plot

        plot.parent.mkdir(parents=True, exist_ok=True)
        _history_plot.draw(plot, found)
    if json is not None:
        _write(json, found)


def _list(groups: "dict[tuple[str, str], list[Seen]]") -> None:
    from reports import _text

    rows = [
        (
            "row",
            label,
            machine,
            f"{len(seen):,}",
            _text.duration(seen[0].row.median_s),
            _text.duration(seen[-1].row.median_s),
        )
        for (label, machine), seen in groups.items()
    ]
    cli.print_rows(rows, ("", "row", "machine", "runs", "first", "last"))
    cli.note("--row WORDS shows one of them")


def _print(found: "History") -> None:
    from reports import _text

    print(sentence(found))
    print()
    lines = []
    for one in found.points:
        last, change = one.seen.row.last, one.change
        lines.append(
            (
                "point",
                one.seen.begun,
                "/".join(one.seen.run.parts[-2:]),
                (one.commit or "-") + (" changed" if one.commit_changed else ""),
                _text.interval(one.median_s, low_s=last.low_s, high_s=last.high_s),
                "-" if change is None else f"{100 * (change.ratio - 1):+.1f} %",
                "-" if change is None else change.verdict,
                ", ".join(one.differences) or "-",
            )
        )
    cli.print_rows(
        lines,
        ("", "begun", "run", "commit", "median (95 %)", "change", "verdict", "also changed"),
    )


def sentence(found: "History") -> str:
    """Return how far the row has moved, and when."""
    from reports import _text

    first, last = found.points[0], found.points[-1]
    said = f"{found.label} on {found.machine}: "
    if len(found.points) == 1:
        return f"{said}{_text.duration(first.median_s)} in the only run"
    change = 100 * (last.median_s / first.median_s - 1)
    said += (
        f"{_text.duration(first.median_s)} in the first and {_text.duration(last.median_s)} in the "
        f"last of {len(found.points)} runs ({change:+.1f} %); "
    )
    if not found.moved:
        return f"{said}no run moved it beyond noise"
    largest = max(found.moved, key=lambda one: abs(one.change.ratio - 1) if one.change else 0)
    of_it = "" if largest.change is None else f"{100 * (largest.change.ratio - 1):+.1f} %"
    beside = list(largest.differences)
    if largest.commit_changed:
        beside.insert(0, f"commit {largest.commit}")
    words = _text.listed(beside, most=4) if beside else "nothing that was recorded"
    times = "once" if len(found.moved) == 1 else f"{len(found.moved)} times"
    return (
        f"{said}it moved beyond noise {times}, most on {largest.seen.begun[:10]} ({of_it}), when "
        f"this changed, too: {words}"
    )


def _write(path: Path, found: "History") -> None:
    import msgspec

    known = {
        "sentence": sentence(found),
        "row": found.label,
        "machine": found.machine,
        "points": [
            {
                "run": "/".join(one.seen.run.parts[-2:]),
                "begun": one.seen.begun,
                "id": one.seen.row.last.id,
                "environment": None if one.seen.environment is None else one.seen.environment.id,
                "commit": one.commit,
                "commit_changed": one.commit_changed,
                "median_s": one.median_s,
                "interval_s": one.interval,
                "ratio_to_before": None if one.change is None else one.change.ratio,
                "verdict": None if one.change is None else one.change.verdict,
                "changed": one.differences,
            }
            for one in found.points
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")


if __name__ == "__main__":
    cli.run(app, PROGRAM)
