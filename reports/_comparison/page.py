"""A comparison as Markdown that reads well raw; what comes out of a record is escaped.

What is too much to read is counted, not shown: all of it is in the JSON.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from reports import _html, _marks, _text
from reports._comparison.comparison import Comparison, sentence
from reports._comparison.hypotheses import Hypothesis
from reports._comparison.matching import Pair
from reports._comparison.plots import MOST_SPLITS, Plots, draw, most_telling
from reports._comparison.runs import Row, Run
from reports._comparison.splits import Part, Split
from reports._comparison.verdicts import NORMAL_95, Change
from reports._environments import machine
from reports._markdown import bullets, code, table, text
from reports._text import NOT_KNOWN, plural
from verifyscope import environment
from verifyscope.records import Finding, Measurement

_MOST_MOVED, _MOST_OPS, _MOST_DIFFERENCES, _MOST_ONLY, _MOST_PARTS = 40, 40, 40, 20, 24
_MOST_SORTED = 1000  # rows of a table that sorts and filters
_BASES = {
    "exact": "no noise",
    "starts": "fresh starts",
    "samples": "raw samples",
    "interval": "printed interval",
    "tail": "p90 and count",
    "assumed": "assumed: one number, or too few",
}


def as_markdown(found: Comparison, *, command: str) -> str:
    """Return the page that `command` made."""
    return _marks.removed(_page(found, command, Plots()))


def as_html(found: Comparison, *, command: str) -> str:
    """Return the same page as one file of HTML, with plots, and tables that sort and filter."""
    records = {row.last.id: row.last for run in (found.old, found.new) for row in run.rows}
    with tempfile.TemporaryDirectory() as name:
        plots = Path(name)
        marked = _page(found, command, draw(found, plots))
        return _html.document(marked, plots=plots, records=records)


def _page(found: Comparison, command: str, drawn: Plots) -> str:
    """Return the whole page; its numbers carry their marks (reports/_marks.py)."""
    here = environment.current()
    changed = " with uncommitted changes" if here.dirty else ""
    commit = "" if here.commit is None else f" at commit {here.commit}{changed}"
    sections = [
        f"<!-- Made by `{command}`. Do not edit: run it again. -->",
        "# What changed",
        text(sentence(found)),
        _sides(found),
        *_splits(found, drawn),
        *_moved(found, drawn),
        *_by_op(found),
        *_differences(found),
        *_findings(found),
        *_only(found),
        *_method(found),
        f"Made by `{command}`{commit}.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _sides(found: Comparison) -> str:
    lines = []
    for run in (found.old, found.new):
        where = list(run.measured_in)
        machines = [text(machine(one)) for one in where] or ["imported: measured elsewhere"]
        created = min((one.created for one in where), default=NOT_KNOWN)
        commits = {one.commit for one in where if one.commit}
        lines.append(
            (
                run.name,
                code("/".join(run.path.parts[-2:])),
                text(created),
                _text.listed(map(code, sorted(commits))) or NOT_KNOWN,
                _text.listed(dict.fromkeys(machines), most=2),
                _text.whole(len(run.rows)),
            )
        )
    return table(("", "run", "begun", "commit", "measured on", "rows"), lines, align="lllllr")


def _splits(found: Comparison, drawn: Plots) -> Iterator[str]:
    if not found.splits:
        return
    yield "## Where the change is"
    shown = found.splits[:MOST_SPLITS]
    for number, split in enumerate(shown):
        yield _split_words(split)
        if number in drawn.splits:
            yield f"![The change, part by part]({drawn.splits[number]})"
        yield _split_table(split)
    if len(found.splits) > len(shown):
        yield f"{len(found.splits) - len(shown)} more are in the JSON."


def _split_words(split: Split) -> str:
    if split.is_sum:
        return (
            "**One call of each row that both runs timed**, added up. It is no pass: a row counts "
            "once, however often a pass makes that call."
        )
    title = f"**{text(split.what[0].upper() + split.what[1:])}**"
    if split.source == "predicted":
        return f"{title}, *predicted, not measured*."
    return f"{title}, {'imported' if split.source == 'imported' else 'measured'}."


def _split_table(split: Split) -> str:
    lines = [_part_line(part, split) for part in most_telling(split, most=_MOST_PARTS)]
    bold = _part_line(split.whole, split)
    lines.append(tuple(f"**{cell}**" if cell else "" for cell in bold))
    header = ("part", "A", "B", "change", "95 %", "of the change")
    return table(header, lines, align="lrrrrr")


def _part_line(part: Part, split: Split) -> tuple[str, ...]:
    share = part.change_s / split.whole.change_s if split.is_clear else None
    within = NOT_KNOWN
    if part.spread_s is not None:
        ends = (part.change_s + sign * NORMAL_95 * part.spread_s for sign in (-1, 1))
        within = " to ".join(map(_text.change, ends))
    return (
        text(part.name),
        _text.duration(part.old_s),
        _text.duration(part.new_s),
        _text.change(part.change_s),
        within,
        NOT_KNOWN if share is None else f"{100 * share + 0.0:.0f} %".replace("-0 %", "0 %"),
    )


def _moved(found: Comparison, drawn: Plots) -> Iterator[str]:
    timed = found.matched.timed
    if not timed:
        return
    moved = found.moved
    yield f"## Which rows moved: {len(moved):,} of {len(timed):,}"
    if drawn.rows:
        yield f"![The time of each row in B over that in A]({drawn.rows})"
    yield from _rows_table(moved, most=_MOST_SORTED if drawn.rows else _MOST_MOVED)
    rest = [pair for pair in timed if not pair.moved]
    if drawn.rows and rest:
        yield f"<details>\n<summary>{plural(len(rest), 'row')} that did not move</summary>"
        yield from _rows_table(rest, most=_MOST_SORTED)
        yield "</details>"


def _rows_table(pairs: Sequence[Pair], *, most: int) -> Iterator[str]:
    if not pairs:
        return
    header = ("row", "case", "A", "B", "B / A", "95 %", "verdict", "spread from")
    yield table(header, [_row_line(pair) for pair in pairs[:most]], align="llrrrrll")
    if len(pairs) > most:
        yield f"{len(pairs) - most:,} more are in the JSON."


def _row_line(pair: Pair) -> tuple[str, ...]:
    change = pair.change
    return (
        _name(pair.new.last),
        _case(pair.new.last),
        _time(pair.old),
        _time(pair.new),
        *_change_cells(change),
        NOT_KNOWN if change is None else f"{_BASES[change.basis]}",
    )


def _time(row: Row) -> str:
    """Return the time of a row, marked as its record's where it was measured once."""
    if row.median_s == row.last.median_s:
        return _text.median(row.last)
    return _text.duration(row.median_s)


def _change_cells(change: Change | None) -> tuple[str, str, str]:
    if change is None:
        return NOT_KNOWN, NOT_KNOWN, NOT_KNOWN
    bold = "**" if change.verdict in ("slower", "faster") else ""
    return (
        f"{change.ratio:.3f}",
        f"{change.low:.3f}{NOT_KNOWN}{change.high:.3f}",
        f"{bold}{change.verdict}{bold}",
    )


def _by_op(found: Comparison) -> Iterator[str]:
    if not found.groups:
        return
    lines = []
    for group in found.groups[:_MOST_OPS]:
        counts = (f"{group.verdicts[name]:,}" for name in ("slower", "faster", "same", "unsure"))
        lines.append(
            (
                code(group.op),
                text(group.part),
                f"{group.rows:,}",
                *counts,
                *_change_cells(group.mean),
            )
        )
    header = (
        *("op", "class", "rows", "slower", "faster", "same", "unsure"),
        *("mean B / A", "95 %", "verdict"),
    )
    yield "### By op"
    yield table(header, lines, align="llrrrrrrrl")
    if len(found.groups) > _MOST_OPS:
        yield f"{len(found.groups) - _MOST_OPS:,} more are in the JSON."


def _differences(found: Comparison) -> Iterator[str]:
    yield "## What else differs"
    if not found.hypotheses and not found.nothing_measured:
        yield "Nothing that was recorded beside the rows that both runs timed."
    if found.hypotheses:
        yield (
            "**Hypotheses, never causes**: two runs differ in more than anybody recorded. *Fits* "
            "is 1 where a difference could touch all that moved and nothing that stayed. To test "
            "one, change it back alone and run again."
        )
        lines = [_hypothesis(one) for one in found.hypotheses[:_MOST_DIFFERENCES]]
        header = ("what differs", "A", "B", "could explain", "fits", "beside")
        yield table(header, lines, align="llllrl")
        if len(found.hypotheses) > _MOST_DIFFERENCES:
            yield f"{len(found.hypotheses) - _MOST_DIFFERENCES:,} more are in the JSON."
    if found.nothing_measured:
        yield (
            "What was imported was measured elsewhere, and nothing is recorded of that machine. "
            "Measure in both states (`python -m graphs.replay`, `python -m collectives.sweep`): "
            "those runs record driver, NCCL, settings, clocks, power limit, link and commit."
        )
    elif found.unknown:
        yield f"Not recorded by either: {_text.listed(found.unknown, most=12)}."


def _hypothesis(one: Hypothesis) -> tuple[str, ...]:
    words = []
    if one.against:
        words.append(f"{one.against:,} moved the other way, or by more than it can")
    if one.unmoved:
        words.append(f"{plural(one.unmoved, 'row')} it could touch did not move")
    return (
        text(one.difference.name),
        code(one.difference.old),
        code(one.difference.new),
        f"{one.explained:,} of {one.moved:,} moved" if one.moved else "nothing moved",
        f"{one.fits:.2f}" if one.moved else NOT_KNOWN,
        "; ".join(words),
    )


def _findings(found: Comparison) -> Iterator[str]:
    """Yield the findings that one run has and the other has not."""
    sides = ((found.new, found.only_new_findings), (found.old, found.only_old_findings))
    if not any(several for _, several in sides):
        return
    yield "## Findings of one run alone"
    for run, several in sides:
        if several:
            yield f"Only in {run.name}:\n\n{bullets(list(_finding_lines(several)))}"


def _finding_lines(several: Sequence[Finding]) -> Iterator[str]:
    for one in several[:_MOST_ONLY]:
        next_action = f" Next: {text(one.next_action)}." if one.next_action else ""
        sentence_of = one.sentence.rstrip(".")
        yield f"{code(one.name)} ({one.confidence}): {text(sentence_of)}.{next_action}"
    if len(several) > _MOST_ONLY:
        yield f"{len(several) - _MOST_ONLY:,} more"


def _only(found: Comparison) -> Iterator[str]:
    matched = found.matched
    lost = [(pair.old, pair.new) for pair in matched.lost]
    gained = [(pair.new, pair.old) for pair in matched.gained]
    if not (lost or gained or matched.only_old or matched.only_new):
        return
    yield "## In one run alone"
    for name, pairs in (
        (f"{found.old.name}, and not in {found.new.name}", lost),
        (f"{found.new.name}, and not in {found.old.name}", gained),
    ):
        if pairs:
            lines = [
                (
                    _name(a.last),
                    _case(a.last),
                    _time(a),
                    text(b.last.status),
                    text(b.last.reason or ""),
                )
                for a, b in pairs[:_MOST_ONLY]
            ]
            header = ("row", "case", "time", "the other", "why")
            yield f"A time in {name}: {plural(len(pairs), 'row')}.\n\n" + table(
                header, lines, align="llrll"
            )
    for run, rows in ((found.old, matched.only_old), (found.new, matched.only_new)):
        if rows:
            yield _only_words(run, rows)


def _only_words(run: Run, rows: Sequence[Row]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        name = f"{row.last.op}/{row.last.implementation}"
        counts[name] = counts.get(name, 0) + 1
    words = [f"{code(name)} ({count:,})" for name, count in counts.items()]
    return (
        f"Only in {run.name}, {plural(len(rows), 'row')}: {_text.listed(words, most=_MOST_ONLY)}."
    )


def _method(found: Comparison) -> Iterator[str]:
    within = f"{100 * found.same_within:g} %"
    yield "## How it was judged"
    yield (
        "Rows are the same where op, implementation, case, mode, launch, depth, cache, ranks and "
        "requested settings are; a whole cycle or pass also where its launch differs. *Slower* and "
        f"*faster* lie beyond {within} and beyond chance among all rows that were compared: where "
        "nothing changed, one comparison in a hundred flags any row. *Same* is a 95 % interval "
        f"within {within}. Two runs of one configuration are taken to differ by 0.5 %, by 3 % "
        "where several processes were started once, by 5 % where a row has one number alone "
        "(MEASURING.md)."
    )


def _name(one: Measurement) -> str:
    return code(f"{one.op}/{one.implementation}")


def _case(one: Measurement) -> str:
    words = [text(one.case)]
    words += [text(one.part)] if one.op.startswith("forward_") else []
    words += [word for word in (one.launch, one.cache) if word is not None]
    if one.ranks is not None:
        words.append(plural(one.ranks, "rank"))
    return ", ".join(words)
