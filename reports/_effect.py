"""What each row of a sweep asked for, what was in effect, what ran, and what became of it."""

import re
from collections.abc import Iterable, Sequence

from reports import _text
from reports._combinations import implementations
from reports._markdown import code, table, text
from reports._not_run import WRONG
from reports._text import NOT_KNOWN
from verifyscope.records import Measurement
from verifyscope.sweep_conclusion import SweepConclusion

MOST_ROWS = 60
_NUMBER = re.compile(r"\d[\d.,]*")
_WHY = "reason or proof, of the first"


def effect_table(one: SweepConclusion, rows: Iterable[Measurement]) -> tuple[str, int]:
    """Return what each row asked for, what was in effect and what ran; and the kinds left out.

    Rows that say the same of themselves stand together, with their sizes and timing modes.
    """
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for row in rows:
        why = _NUMBER.sub("0", row.reason or row.proof or "")
        key = (row.implementation, _asked(row), _in_effect(row), ran(row), row.status, why)
        groups.setdefault(key, []).append(row)
    order = {each: at for at, each in enumerate(implementations(one))}
    known = sorted(groups.items(), key=lambda group: order.get(group[0][0], len(order)))
    lines = [
        (
            code(implementation),
            asked,
            effect,
            what or NOT_KNOWN,
            _extent(same),
            f"{len(same):,}",
            f"**{status}**" if same[0].status in (*WRONG, "ignored") else status,
            text(same[0].reason or same[0].proof or NOT_KNOWN),
        )
        for (implementation, asked, effect, what, status, _), same in known[:MOST_ROWS]
    ]
    header = ("combination", "asked for", "in effect", "ran", "where", "rows", "status", _WHY)
    return table(header, lines, align="lllllrll"), max(0, len(known) - MOST_ROWS)


def ran(row: Measurement) -> str:
    """Return what NCCL took, such as "ring/ll x 4", as plain text; empty where nobody knows."""
    said = row.effective
    choice = "/".join(said[name] for name in ("algorithm", "protocol") if name in said)
    channels = f" x {said['channels']}" if "channels" in said else ""
    return f"{choice}{channels}"


def _asked(row: Measurement) -> str:
    words = [f"{name}={value}" for name, value in row.requested.items()]
    return ", ".join(map(code, words)) or "nothing"


def _in_effect(row: Measurement) -> str:
    """Return how what was in effect differs from what was asked for."""
    asked = {name: value for name, value in row.requested.items() if name.isupper()}
    there = {name: value for name, value in row.effective.items() if name.isupper()}
    words = [
        f"{code(f'{name}={there[name]}')} instead of {code(value)}"
        for name, value in asked.items()
        if name in there and there[name].casefold() != value.casefold()
    ]
    missing = [name for name in asked if name not in there]
    if missing and there:
        words.append(f"without {_text.listed(map(code, missing))}")
    elif missing:
        words.append(NOT_KNOWN)
    words += [
        f"{code(f'{name}={value}')} beside it" for name, value in there.items() if name not in asked
    ]
    words += [
        f"{name.replace('_', ' ')} {code(row.effective[name])}"
        for name in ("configuration_file", "plugin")
        if name in row.effective
    ]
    return "; ".join(words) or ("all of it" if asked else "nothing")


def _extent(rows: Sequence[Measurement]) -> str:
    """Return the sizes and the timing modes of rows that stand together."""
    sizes = sorted({size for row in rows if isinstance(size := row.dims.get("bytes"), int)})
    if not sizes:
        return "every size"
    span = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    ways = dict.fromkeys(
        f"{row.launch or 'timed'} x {row.depth}" if (row.depth or 1) > 1 else row.launch or "timed"
        for row in rows
    )
    return f"{span} B; {', '.join(ways)}"
