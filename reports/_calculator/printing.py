"""The answer as rows that begin with what they are: number, draft, even, missing.

A terminal gets aligned tables, anything else tab-separated rows. The first line is the verdict.
"""

import sys
from collections.abc import Iterator, Sequence

from reports import _text
from reports._calculator.answer import Answer, Load
from reports._calculator.asked import Asked
from verifyscope import cli, draft_length, speculation, units
from verifyscope.draft_length import Draft

_NONE = "-"
_LEAST = {"whole": "", "least": "at least ", "partly": "about "}
_MOST = {"whole": "", "least": "at most ", "partly": "at most "}
_TREE_SIZES = (1, 3, 7, 15, 31, 63)
_MOST_CHAINS = 8
_DISAGREE = 0.01
_Row = tuple[str, ...]


def show(asked: Asked, found: Answer) -> None:
    """Print the verdict, the numbers, the drafts, break-even by load, and what is missing."""
    print(verdict(asked, found))
    drafts = list(_drafts(found))
    sections: tuple[tuple[_Row, list[_Row]], ...] = (
        (("", "what", "value", "how"), list(_numbers(asked, found))),
        (("", "shape", "drafted", "steps", "accepted", "cycle", "tokens/s", ""), drafts),
        (_load_header(found.loads), list(_loads(found.loads))),
        (("", "what is missing"), [("missing", words) for words in found.missing]),
    )
    for header, rows in sections:
        if rows:
            print()
            cli.print_rows(rows, header)
    if found.trees and len(asked.chances) == 1:
        cli.note(
            f"trees: each further candidate of a place is taken to be right with "
            f"{asked.chances[0]:.3g} where those before it are not, which flatters most drafters; "
            f"give --step-acceptance {asked.chances[0]:.2g},... one chance a candidate"
        )
    if two := _two_acceptances(asked):
        cli.note(two)
    if found.loads and any(one.never for one in found.loads):
        cli.note("never: not even a drafter that is always right would reach it")


def _two_acceptances(asked: Asked) -> str:
    """Return what to know where a given length is not what a chain of the given chance yields."""
    chance = asked.chances[0] if asked.chances_how == "given" and asked.chances else None
    length, drafted = asked.accepted, asked.drafted
    if chance is None or length is None or drafted is None or asked.steps != drafted:
        return ""
    yields = speculation.chain_accepted(chance, drafts=drafted)
    if abs(yields / length.value - 1) <= _DISAGREE:
        return ""
    return (
        f"two acceptances: a chain of {drafted} at {chance:.3g} a step yields {yields:.2f}, not "
        f"{length.value:.2f}; the verdict is of the latter, the drafts are of the former"
    )


def verdict(asked: Asked, found: Answer) -> str:
    """Return the answer in a sentence."""
    said = _said(asked, found)
    return f"Predicted, not measured: {said[0].lower()}{said[1:]}" if found.is_predicted else said


def _said(asked: Asked, found: Answer) -> str:
    most = _MOST[found.extent]
    even = "" if found.break_even is None else _even_words(found, found.break_even)
    if found.speedup is not None and asked.accepted is not None:
        pays = "pays" if found.speedup > 1 else "loses"
        if found.extent != "whole" and found.speedup > 1:
            pays = "may pay"
        of_it = "" if found.extent == "partly" else most
        return (
            f"Speculation {pays}: {most}{_rate(found.tokens_per_s)} against "
            f"{_rate(found.plain_tokens_per_s)} plain, {of_it}{found.speedup:.2f} x; {even}; it is "
            f"{asked.accepted.value:.2f}"
        )
    if even:
        return f"{even[0].upper()}{even[1:]}; what it is was not given"
    if found.tokens_per_s is not None:
        return (
            f"Speculation gives {most}{_rate(found.tokens_per_s)}; without the time of a plain "
            f"step nobody can say whether that pays"
        )
    return "Whether speculation pays is not known: give a cycle, a plain step and an acceptance"


def _even_words(found: Answer, even: float) -> str:
    if found.extent == "partly":
        return f"by what is known, acceptance must exceed {even:.2f} to pay"
    return f"acceptance must exceed {_LEAST[found.extent]}{even:.2f} to pay"


def _numbers(asked: Asked, found: Answer) -> Iterator[_Row]:
    least, most = _LEAST[found.extent], _MOST[found.extent]
    for name, number in (
        ("verify", asked.verify),
        ("cycle", asked.cycle),
        ("plain step", asked.plain),
    ):
        if number is not None:
            yield "number", name, f"{number.value * 1e3:.4g} ms", number.how
    if asked.known is not None and asked.known.base_s is not None:
        yield "number", "line", _line(asked.known.base_s, asked.known.slope_s), _line_how(asked)
    if asked.accepted is not None:
        yield "number", "accept length", f"{asked.accepted.value:.3g}", asked.accepted.how
    if found.tokens_per_s is not None:
        how = (
            f"{_per(asked.requests)}accept length / {'verify' if asked.cycle is None else 'cycle'}"
        )
        yield "number", "speculative", most + _rate(found.tokens_per_s), how
    if found.plain_tokens_per_s is not None:
        how = f"{asked.requests} / plain step"
        yield "number", "plain", _rate(found.plain_tokens_per_s), how
    if found.break_even is not None and asked.cycle is not None:
        how = "cycle / plain step: draft and host are paid, too"
        yield "number", "break-even", f"{least}{found.break_even:.2f}", how
    if found.break_even_by_verify is not None:
        how = "verify / plain step: if draft and host were free"
        yield "number", "break-even by verify", f"{found.break_even_by_verify:.2f}", how
    yield from _target(asked, found)


def _target(asked: Asked, found: Answer) -> Iterator[_Row]:
    target = found.target
    if target is None:
        return
    name = f"for {target.tokens_per_s:g} tok/s"
    if target.accepted is not None:
        least = _LEAST["whole" if asked.cycle and not asked.cycle.partly else "least"]
        yield "number", name, f"accept length {least}{target.accepted:.2f}", _reach(asked, found)
    if target.cycle_s is not None:
        how = f"{_per(asked.requests)}accept length / {target.tokens_per_s:g} tok/s"
        yield "number", name, f"or a cycle of {_text.duration(target.cycle_s)}", how
    plain = f"or a plain step of {_text.duration(target.plain_step_s)}"
    yield "number", name, plain, f"{asked.requests} / {target.tokens_per_s:g} tok/s"


def _reach(asked: Asked, found: Answer) -> str:
    """Return what the accepted tokens of a target mean for the drafter."""
    target = found.target
    if target is None or target.accepted is None:
        return ""
    if asked.rows is not None and target.accepted > asked.rows:
        return f"never: a verify of {asked.rows} rows yields at most {asked.rows}"
    if target.chain_acceptance is None:
        return "less than the one token that each cycle yields"
    words = f"{target.chain_acceptance:.2f} a step of an endless chain, more of a short one"
    return f"rate x cycle{'' if asked.requests == 1 else ' / requests'}: {words}"


def _drafts(found: Answer) -> Iterator[_Row]:
    """Yield chains of each length, trees of some sizes, and the best of each."""
    if not found.chains:
        return
    plain = found.plain_tokens_per_s
    best_chain = draft_length.best(found.chains)
    best_tree = draft_length.best(found.trees) if found.trees else None
    least = best_chain.drafted + 1
    for one in found.chains[: max(_MOST_CHAINS, least)]:
        yield _draft(one, plain, best=one is best_chain)
    for one in found.trees:
        if one.drafted in _TREE_SIZES or one is best_tree:
            yield _draft(one, plain, best=one is best_tree)


def _draft(one: Draft, plain: float | None, *, best: bool) -> _Row:
    words = [f"{one.tokens_per_s / plain:.2f} x plain"] if plain else []
    words += [f"best {one.shape}"] if best else []
    return (
        "draft",
        one.shape,
        str(one.drafted),
        str(one.steps),
        f"{one.accepted:.2f}",
        _text.duration(one.cycle_s),
        f"{one.tokens_per_s:.1f}",
        ", ".join(words),
    )


def _load_header(loads: Sequence[Load]) -> _Row:
    drafted = dict.fromkeys(one.drafted for one in loads)
    return "", "requests", "plain step", *(f"draft {count}" for count in drafted)


def _loads(loads: Sequence[Load]) -> Iterator[_Row]:
    """Yield the break-even acceptance of each number of requests, one column a draft length.

    Where no header is printed, each length is a row: requests, drafted, plain step, cycle, cell.
    """
    if not cli.is_terminal(sys.stdout):
        for one in loads:
            times = (_text.duration(one.plain_step_s), _text.duration(one.cycle_s))
            yield "even", str(one.requests), str(one.drafted), *times, _cell(one)
        return
    for requests in dict.fromkeys(one.requests for one in loads):
        row = [one for one in loads if one.requests == requests]
        cells = (_cell(one) for one in row)
        yield "even", str(requests), _text.duration(row[0].plain_step_s), *cells


def _cell(one: Load) -> str:
    if one.never:
        return f"{one.accepted:.2f} never"
    if one.pays is None:
        return f"{one.accepted:.2f}"
    return f"{one.accepted:.2f} {'pays' if one.pays else 'loses'}"


def _line(base_s: float, slope_s: float) -> str:
    return f"{_text.duration(base_s)} + {_text.duration(slope_s)} x rows"


def _line_how(asked: Asked) -> str:
    line = asked.known
    if line is None:
        return ""
    words = [line.what if line.source is None else f"{line.source}: {line.what}"]
    if line.points:
        rows = _text.listed((str(count) for count, _ in line.points), most=8)
        words.append(f"at {rows} rows")
    if line.off is not None and len(line.points) > 2:
        words.append(f"off by {units.percent(line.off)} at most")
    if line.at_least:
        words.append("not all of a pass is in it")
    return ", ".join(words)


def _per(requests: int) -> str:
    return "" if requests == 1 else f"{requests} requests x "


def _rate(tokens_per_s: float | None) -> str:
    return _NONE if tokens_per_s is None else f"{tokens_per_s:.1f} tok/s"
