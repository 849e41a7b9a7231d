"""The section of speculation: does what the records tell of pay, and what would have to change.

A table of the operating points, and a map of acceptance against the time of a cycle, on which each
plain step is a line: above it speculation pays.
"""

from collections.abc import Hashable, Sequence

from reports import _marks, _speculation_map, _systems, _text
from reports._drawn import Folder
from reports._markdown import bullets, code, table, text
from reports._operating_points import OperatingPoint
from reports._text import NOT_KNOWN, plural
from verifyscope.records import Measurement

MAP = "speculation.png"
_MOST_POINTS = 24
_MOST_MAPS = 3
_ABOUT = (
    "A cycle is one draft, one verify and what the host does between; acceptance is what it "
    "yields, the bonus token counted. *Break-even* is the cycle over a plain step of as many "
    "requests: only above it speculation pays. Where only the verify is known, it is *at least* "
    "that."
)


def section(every: Sequence[OperatingPoint], folder: Folder) -> str:
    """Return the section as Markdown; "" where no record is of a cycle or of a verify."""
    if not every:
        return ""
    shown = every[:_MOST_POINTS]
    left_out = len(every) - len(shown)
    parts = [
        "## Speculation",
        _ABOUT,
        bullets(_verdicts(shown)),
        *_maps(shown, folder),
        _table(shown),
        _plain_files(shown),
        f"{plural(left_out, 'point')} are left out here; all are in the records."
        if left_out > 0
        else "",
        bullets(_missing(every)),
    ]
    return "\n\n".join(part for part in parts if part)


def in_short(several: Sequence[OperatingPoint]) -> str:
    """Return in a sentence where speculation pays, of the system that most is known of, or ""."""
    judged: dict[Hashable, list[OperatingPoint]] = {}
    every = [one for one in several if one.is_cycle]
    for one in every:
        if one.speedup is not None:
            judged.setdefault(one.group, []).append(one)
    if not judged:
        return ""
    most = max(judged.values(), key=len)
    ordered = sorted(most, key=lambda one: one.break_even or 0.0)
    paying = [one for one in most if (one.speedup or 0.0) > 1]
    least, last = ordered[0], ordered[-1]
    need = f"{break_even(least)} to {break_even(last)}" if len(most) > 1 else break_even(least)
    is_one = len({one.group for one in every}) == 1
    where = f"On {text(system(least))} acceptance" if not is_one else "Acceptance"
    return (
        f"{where} must exceed {need} to pay; speculation pays at {len(paying)} of "
        f"{plural(len(most), 'operating point')}, at best {speedup(max(most, key=_speedup))} x and "
        f"at worst {speedup(min(most, key=_speedup))} x plain decoding."
    )


def _speedup(one: OperatingPoint) -> float:
    return one.speedup or 0.0


def _maps(shown: Sequence[OperatingPoint], folder: Folder) -> list[str]:
    """Return a map for each system whose plain step is known; else one, where it is of one."""
    by_system: dict[Hashable, dict[int, OperatingPoint]] = {}
    for number, one in enumerate(shown, 1):
        by_system.setdefault(one.group, {})[number] = one
    judged = [each for each in by_system.values() if any(one.plain for one in each.values())]
    chosen = judged or (list(by_system.values()) if len(by_system) == 1 else [])
    parts = []
    for at, numbered in enumerate(sorted(chosen, key=lambda each: -len(each))[:_MOST_MAPS], 1):
        name = MAP if at == 1 else MAP.replace(".", f"-{at}.")
        of = system(next(iter(numbered.values()))) if len(by_system) > 1 else ""
        path = folder.file(name)
        if path is not None and _speculation_map.draw(path, numbered, of=of):
            words = f" of {text(of)}" if of else ""
            parts.append(
                f"![Acceptance against the time of a cycle{words}, with break-even lines]({name})"
            )
    if parts and len(by_system) > len(parts):
        why = "of the others in the table no plain step is known"
        if len(judged) > _MOST_MAPS:
            why = f"{len(judged) - _MOST_MAPS} more have a plain step and stand in the table alone"
        parts.append(f"A map holds points of one system; {why}.")
    return parts


def system(one: OperatingPoint) -> str:
    """Return what the files of a point name of their system, else the file."""
    return one.system or _systems.place(one.record)


def _verdicts(shown: Sequence[OperatingPoint]) -> list[str]:
    """Return how many points pay, and the worst and best of them."""
    judged = [one for one in shown if one.speedup is not None and one.is_cycle]
    if not judged:
        return []
    paying = sum((one.speedup or 0.0) > 1 for one in judged)
    lines = [f"Speculation pays at {paying:,} of {plural(len(judged), 'operating point')}."]
    ordered = sorted(judged, key=lambda one: one.speedup or 0.0)
    for one in ordered if len(ordered) < 3 else (ordered[0], ordered[-1]):
        lines.append(
            f"{text(one.name)}: {speedup(one)} x plain decoding; acceptance must "
            f"exceed {break_even(one)}, it is {accepted(one)}"
            + (" by its runs." if one.is_implied else ".")
        )
    return lines


def _table(shown: Sequence[OperatingPoint]) -> str:
    lines = []
    several = len({one.group for one in shown}) > 1 and any(one.system for one in shown)
    for number, one in enumerate(shown, 1):
        least, most = ("", "") if one.is_cycle else ("at least ", "at most ")
        lines.append(
            (
                str(number),
                *((text(one.system) or NOT_KNOWN,) if several else ()),
                text(one.name),
                _text.whole(one.requests),
                _text.whole(one.rows),
                least + cycle(one),
                _plain(one),
                _unless(least, break_even(one)),
                accepted(one) + (" by its runs" if one.is_implied else ""),
                _unless(most, _rate(one)),
                _unless(most, speedup(one)),
            )
        )
    header = (
        *("", *(("system",) if several else ()), "what", "requests", "rows each", "cycle"),
        *("plain step", "break-even", "acceptance", "tok/s", "x plain"),
    )
    return table(header, lines, align="r" + "l" * several + "lrrrrrrrr")


def cycle(one: OperatingPoint) -> str:
    """Return the time of a cycle, marked as its record's or as derived from it."""
    words = _text.duration(one.seconds)
    if one.seconds == one.record.median_s:
        return _marks.of(one.record, words)
    return _marks.derived(words, [one.record], "verify / its share of a cycle")


def break_even(one: OperatingPoint) -> str:
    """Return the acceptance that equals plain decoding, marked as derived from both times."""
    return _marks.derived(_text.ratio(one.break_even), _both(one), "cycle / plain step")


def accepted(one: OperatingPoint) -> str:
    """Return the acceptance, marked as what the record of the cycle holds."""
    return _marks.told(_text.ratio(one.accepted), one.record, "acceptance")


def speedup(one: OperatingPoint) -> str:
    """Return the rate over that of plain decoding, marked as derived from both times."""
    return _marks.derived(_text.ratio(one.speedup), _both(one), "acceptance / (cycle / plain step)")


def _both(one: OperatingPoint) -> list[Measurement]:
    return [one.record] if one.plain is None else [one.record, one.plain.record]


def _plain(one: OperatingPoint) -> str:
    if one.plain is None:
        return NOT_KNOWN
    return _marks.of(one.plain.record, _text.duration(one.plain.seconds))


def _plain_files(shown: Sequence[OperatingPoint]) -> str:
    """Return whose plain steps stand in the table, where they are of other files."""
    rows: dict[str, list[str]] = {}
    for number, one in enumerate(shown, 1):
        if one.plain_file is not None:
            rows.setdefault(one.plain_file, []).append(str(number))
    said = [
        f"{code(name)} ({', '.join(at)})"
        if name != _systems.COMMAND_LINE
        else f"the command line ({', '.join(at)})"
        for name, at in rows.items()
    ]
    return f"Plain steps are of {'; '.join(said)}." if said else ""


def _unless(words: str, cell: str) -> str:
    return cell if cell == NOT_KNOWN else words + cell


def _rate(one: OperatingPoint) -> str:
    if one.tokens_per_s is None:
        return NOT_KNOWN
    return _marks.derived(f"{one.tokens_per_s:.1f}", [one.record], "requests x acceptance / cycle")


def _missing(every: Sequence[OperatingPoint]) -> list[str]:
    """Return what is not known of the points, and how to get it."""
    lines = []
    if any(one.plain is None for one in every):
        lines.append(
            "A plain step is missing where the table has none: read the log of a run without "
            "speculation, at as many requests, by the same command "
            f"({code('python -m ingest WITH.log WITHOUT.log')}), or measure a pass of one row "
            f"({code('python -m graphs.replay --rows 1,4')})."
        )
    if any(one.accepted is None for one in every):
        lines.append(
            "Acceptance is missing where the table has none: it is in the server's log (accept "
            f"len, or Mean acceptance length), which {code('python -m ingest')} reads."
        )
    systems = len({one.group for one in every if one.record.source == "imported"})
    if systems > 1:
        lines.append(
            f"The imported points are of {systems} systems, by what their files name, and none is "
            f"held against another's plain step; where they are of one, "
            f"{code('python -m ingest --same-system')} says so."
        )
    lines.append(
        f"{code('python -m reports.speculation --from RUN')} says which draft length would be "
        "best, and what acceptance a rate needs."
    )
    return lines
