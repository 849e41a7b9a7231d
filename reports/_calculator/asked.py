"""What a person gives the calculator, typed and checked: seconds, tokens a cycle, rows.

An acceptance rate means different things in different logs, so its definition is asked for:

    length/rows      accept length / rows that a request verifies: SGLang's older lines
    taken/drafted    (accept length - 1) / drafted tokens: vLLM's draft acceptance rate
    taken/steps      (accept length - 1) / draft steps: SGLang's newer lines
    step             the chance that a drafted token is taken if all before it were

The accept length counts the bonus token: 1 is a drafter whose every guess is refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reports._calculator.lines import Known
from verifyscope import speculation
from verifyscope.errors import UsageError, choose

DEFINITIONS = ("length/rows", "taken/drafted", "taken/steps", "step")
_DISAGREE = 0.01
_MOST_ROWS = 4096
# Beyond these nobody measured anything: a unit was mistaken, and products leave the floats.
_LEAST, _MOST = 1e-6, 1e9
_LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options as they were typed: milliseconds, None where one was not given.

    sources: where the others come from that a log filled in, by name.
    """

    verify_ms: float | None = None
    share: float | None = None
    cycle_ms: float | None = None
    step_ms: float | None = None
    accept_length: float | None = None
    accept_rate: float | None = None
    accept_rate_is: str | None = None
    rows: int | None = None
    draft_tokens: int | None = None
    steps: int | None = None
    requests: int = 1
    target_tok_s: float | None = None
    base_ms: float | None = None
    slope_ms: float | None = None
    draft_step_ms: float | None = None
    step_acceptance: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def how(self, name: str) -> str:
        """Return where a value comes from: a file, else it was typed."""
        return self.sources.get(name, "given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number and where it comes from.

    partly: a part of what it counts is not in it. of_line: it is a time of the line.
    """

    value: float
    how: str
    partly: bool = False
    of_line: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The question. rows: of one request in a verify pass; requests: at once.

    chances: of the first, second, ... candidate of a place to be right; `assumed`: only the first
    is known, and the others are taken as tries that are as good.
    """

    verify: Number | None
    cycle: Number | None
    plain: Number | None
    accepted: Number | None
    rows: int | None
    steps: int | None
    requests: int
    target: float | None
    known: Known | None
    draft_step_s: float | None
    chances: tuple[float, ...]
    chances_how: str

    @property
    def drafted(self) -> int | None:
        """Return the drafted tokens of a request."""
        return None if self.rows is None else self.rows - 1


def asked(given: Given, known: Known | None) -> Asked:
    """Return what is asked; `known` is the line of --from. `UsageError` for what cannot be."""
    _check(given)
    if given == Given(requests=given.requests) and known is None:
        raise UsageError("nothing to compute with; give --verify-ms, --share and --step-ms first")
    rows = _rows(given)
    drafted = None if rows is None else rows - 1
    steps = drafted if given.steps is None else given.steps
    if steps is not None and drafted is not None and steps > drafted:
        raise UsageError(
            f"--steps {steps} is more than the {drafted} drafted tokens; a step drafts at least one"
        )
    line = _line(given, known, rows)
    verify, cycle = _verify_and_cycle(given, line, rows)
    chances, accepted, how = _acceptance(given, rows=rows, steps=steps)
    return Asked(
        verify=verify,
        cycle=cycle,
        plain=_plain(given, line),
        accepted=accepted,
        rows=rows,
        steps=steps,
        requests=given.requests,
        target=given.target_tok_s,
        known=line,
        draft_step_s=None if given.draft_step_ms is None else given.draft_step_ms / 1e3,
        chances=chances,
        chances_how=how,
    )


def _check(given: Given) -> None:
    for option, value in (
        ("--verify-ms", given.verify_ms),
        ("--cycle-ms", given.cycle_ms),
        ("--step-ms", given.step_ms),
        ("--target-tok-s", given.target_tok_s),
        ("--base-ms", given.base_ms),
    ):
        if value is not None and not _LEAST <= value <= _MOST:
            raise UsageError(
                f"{option} {value:g} is not a number above zero, of {_LEAST:g} to {_MOST:g}; give "
                f"one like 12.12"
            )
    for option, value in (
        ("--slope-ms", given.slope_ms),
        ("--draft-step-ms", given.draft_step_ms),
    ):
        if value is not None and not (value == 0 or _LEAST <= value <= _MOST):
            raise UsageError(
                f"{option} {value:g} is neither 0 nor of {_LEAST:g} to {_MOST:g}; give one like 0.9"
            )
    if given.share is not None and not _LEAST_SHARE <= given.share <= 1:
        raise UsageError(
            f"--share {given.share:g} is not a part of 1 ({_LEAST_SHARE:g} to 1); "
            f"for 97 % give 0.97"
        )
    for option, count, least in (
        ("--rows", given.rows, 2),
        ("--draft-tokens", given.draft_tokens, 1),
        ("--steps", given.steps, 1),
        ("--requests", given.requests, 1),
    ):
        if count is not None and not least <= count <= _MOST_ROWS:
            raise UsageError(f"{option} {count} is out of range; give {least} to {_MOST_ROWS}")


def _rows(given: Given) -> int | None:
    if given.draft_tokens is None:
        return given.rows
    rows = given.draft_tokens + 1
    if given.rows not in (None, rows):
        raise UsageError(
            f"--rows {given.rows} and --draft-tokens {given.draft_tokens} disagree: a request "
            f"verifies its drafted tokens and the one before them; give one of the two"
        )
    return rows


def _line(given: Given, known: Known | None, rows: int | None) -> Known | None:
    """Return the line of time against rows: of options, else of --from."""
    if given.base_ms is None and given.slope_ms is None:
        return _through_verify(known, given, rows)
    if known is not None:
        raise UsageError("give the line by --from or by --base-ms and --slope-ms, not both")
    if given.slope_ms is None:
        raise UsageError("--base-ms needs --slope-ms: what a further row takes; give both")
    slope_s = given.slope_ms / 1e3
    if given.base_ms is not None:
        return Known.given(given.base_ms / 1e3, slope_s)
    return _through_verify(Known.given(None, slope_s), given, rows)


def _through_verify(known: Known | None, given: Given, rows: int | None) -> Known | None:
    """Return a line of which only the slope is known, laid through the verify that is given."""
    if known is None or known.base_s is not None:
        return known
    if given.verify_ms is None or rows is None:
        raise UsageError(
            "of this line only the slope is known; give --verify-ms and --rows, which it goes "
            "through, or --base-ms"
        )
    total = rows * given.requests
    base_s = given.verify_ms / 1e3 - known.slope_s * total
    if base_s <= 0:
        raise UsageError(
            f"a slope of {known.slope_s * 1e3:g} ms a row leaves nothing of --verify-ms "
            f"{given.verify_ms:g} at {total} rows; give a smaller one"
        )
    return known.with_base(base_s, f"laid through the given verify of {total} rows")


def _verify_and_cycle(
    given: Given, line: Known | None, rows: int | None
) -> tuple[Number | None, Number | None]:
    verify = _number(given.verify_ms, given.how("verify_ms"))
    cycle = _number(given.cycle_ms, given.how("cycle_ms"))
    share = given.share
    if verify is None and cycle is not None and share is not None:
        verify = Number(value=cycle.value * share, how="cycle x share")
    if verify is None and line is not None and line.base_s is not None and rows is not None:
        total = rows * given.requests
        verify = Number(
            value=line.seconds(total), how=line.words(total), partly=line.at_least, of_line=True
        )
    if verify is None:
        if cycle is None and share is not None:
            raise UsageError("--share is of a cycle; give --verify-ms or --cycle-ms, too")
        return None, cycle
    if cycle is None:
        if share is None:
            return verify, None
        return verify, Number(
            value=speculation.cycle_s(verify.value, share=share),
            how=f"verify / share {share:g}",
            partly=verify.partly,
        )
    if verify.value > cycle.value * (1 + _DISAGREE):
        raise UsageError(
            f"a verify of {verify.value * 1e3:g} ms is longer than its cycle of "
            f"{cycle.value * 1e3:g} ms; give the whole cycle"
        )
    if share is not None and abs(verify.value / cycle.value / share - 1) > _DISAGREE:
        raise UsageError(
            f"verify / cycle is {verify.value / cycle.value:.3f}, --share says {share:g}; give two "
            f"of the three"
        )
    return verify, cycle


def _plain(given: Given, line: Known | None) -> Number | None:
    if given.step_ms is not None:
        return _number(given.step_ms, given.how("step_ms"))
    if line is None or line.base_s is None:
        return None
    return Number(
        value=line.seconds(given.requests),
        how=f"{line.words(given.requests)}, one a request",
        partly=line.at_least,
        of_line=True,
    )


def _acceptance(
    given: Given, *, rows: int | None, steps: int | None
) -> tuple[tuple[float, ...], Number | None, str]:
    """Return the chances of candidates, the accept length, and where the chances come from."""
    chances, how = _chances(given.step_acceptance), "given"
    length = _length(given, rows, steps)
    if given.accept_rate_is == "step" and given.accept_rate is not None:
        if chances and abs(chances[0] - given.accept_rate) > _DISAGREE:
            raise UsageError(
                f"--accept-rate {given.accept_rate:g} and --step-acceptance {chances[0]:g} are the "
                f"same chance, and disagree; give one of the two"
            )
        chances = chances or (given.accept_rate,)
    drafted = None if rows is None else rows - 1
    if length is not None and rows is not None and not 1 <= length.value <= rows:
        raise UsageError(
            f"an accept length of {length.value:.4g} is not 1 to {rows}, what {rows} rows can "
            f"yield; the bonus token counts, so 1 is the least"
        )
    chain = drafted is not None and steps == drafted
    if length is None and chances and drafted is not None and chain:
        value = speculation.chain_accepted(chances[0], drafts=drafted)
        length = Number(value=value, how=f"a chain of {drafted} at {chances[0]:.3g} a step")
    if not chances and length is not None and drafted is not None and chain:
        found = speculation.chain_step_acceptance(length.value, drafts=drafted)
        chances, how = (found,), f"of which a chain of {drafted} yields {length.value:.3g}"
    return chances, length, how


def _length(given: Given, rows: int | None, steps: int | None) -> Number | None:
    if given.accept_rate is None:
        if given.accept_rate_is is not None:
            raise UsageError("--accept-rate-is names a definition of --accept-rate; give both")
        return _accept_length(given.accept_length, given.how("accept_length"))
    rate = given.accept_rate
    if given.accept_length is not None:
        raise UsageError("give --accept-length or --accept-rate, not both")
    if not 0 <= rate <= 1:
        raise UsageError(f"--accept-rate {rate:g} is not a part of 1; for 54 % give 0.54")
    if given.accept_rate_is is None:
        raise UsageError(_which(rate, rows, steps))
    definition = choose("definition of --accept-rate", given.accept_rate_is, list(DEFINITIONS))
    if definition == "step":
        return None
    counted = {"length/rows": rows, "taken/drafted": rows and rows - 1, "taken/steps": steps}
    count = counted[definition]
    if count is None:
        option = "--steps" if definition == "taken/steps" else "--rows or --draft-tokens"
        raise UsageError(f"--accept-rate-is {definition} needs {option}; give it as well")
    value = rate * count + (0 if definition == "length/rows" else 1)
    return Number(value=value, how=f"{definition} = {rate:g}, of {count}")


def _which(rate: float, rows: int | None, steps: int | None) -> str:
    """Return the question that a bare acceptance rate deserves."""
    words = []
    for name, count, bonus in zip(
        DEFINITIONS, (rows, rows and rows - 1, steps), (0, 1, 1), strict=False
    ):
        length = "" if count is None else f" (accept length {rate * count + bonus:.3g})"
        words.append(f"{name}{length}")
    return (
        f"--accept-rate {rate:g} means different things in different logs; name it by "
        f"--accept-rate-is {', '.join(words)} or step, or give --accept-length"
    )


def _accept_length(value: float | None, how: str) -> Number | None:
    if value is None:
        return None
    if not 1 <= value <= _MOST_ROWS:
        raise UsageError(
            f"--accept-length {value:g} is not 1 to {_MOST_ROWS}; it counts the bonus token, so "
            f"that a cycle yields at least 1: give the tokens a cycle yields"
        )
    return Number(value=value, how=how)


def _chances(text: str | None) -> tuple[float, ...]:
    """Return the chances of "0.7", or of "0.7,0.15,0.05", one a candidate."""
    if text is None:
        return ()
    try:
        found: Sequence[float] = [float(word) for word in text.split(",")]
    except ValueError:
        found = [math.nan]
    if any(not 0 <= chance <= 1 for chance in found) or sum(found) > 1 + 1e-9:
        raise UsageError(
            f"--step-acceptance {text!r} is not one chance, or one a candidate that make at most 1 "
            f"together; give 0.7, or 0.7,0.15,0.05 for a tree"
        )
    return tuple(found)


def _number(milliseconds: float | None, how: str) -> Number | None:
    return None if milliseconds is None else Number(value=milliseconds / 1e3, how=how)
