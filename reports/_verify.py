"""time(T): what a verify of T tokens takes beside one of a single token, T = 1 always in it.

time(T) = base + slope x T is fitted by least squares where at least three T were measured. Points
that differ in T alone belong together; trees differ with T, so `tree` is not looked at, and of
several trees of one T the slowest counts. Nor are the distinct experts, which grow with T.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import linear_regression

from reports import _marks, _text
from reports._collected import Collected
from reports._kernels import Op
from reports._markdown import code, table, text
from verifyscope.records import Measurement

_TOKENS = ("draft_tokens", "rows")
_FOLLOWS_TOKENS = ("tree", "distinct_experts")
_MOST_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The medians of one implementation by T, under `fixed` other dims."""

    op: str
    implementation: str
    environment: str
    fixed: tuple[tuple[str, str], ...]
    by_tokens: dict[int, Measurement]

    @property
    def one_s(self) -> float:
        """Return the time of T = 1."""
        return self.seconds(1)

    def seconds(self, tokens: int) -> float:
        """Return the time of T = `tokens`."""
        return self.by_tokens[tokens].median_s or 0.0

    def fit(self) -> tuple[float, float] | None:
        """Return base and slope in seconds; None with fewer than three T."""
        if len(self.by_tokens) < 3:
            return None
        times = [self.seconds(tokens) for tokens in self.by_tokens]
        slope, base = linear_regression([float(tokens) for tokens in self.by_tokens], times)
        return base, slope


def curves(op: Op) -> list[Curve]:
    """Return each curve that has T = 1 and another T, those of most T first."""
    groups: dict[tuple[object, ...], dict[int, Measurement]] = {}
    for row in op.rows:
        main = row.point.main
        tokens = tokens_of(main)
        if tokens is None:
            continue
        key = (main.implementation, main.environment, main.launch, main.cache, _fixed(main))
        known = groups.setdefault(key, {}).get(tokens)
        if known is None or (main.median_s or 0) > (known.median_s or 0):
            groups[key][tokens] = main
    found = [
        Curve(
            op=op.name,
            implementation=first.implementation,
            environment=first.environment,
            fixed=_fixed(first),
            by_tokens=dict(sorted(by_tokens.items())),
        )
        for by_tokens in groups.values()
        if 1 in by_tokens and len(by_tokens) > 1
        for first in [by_tokens[1]]
        if first.median_s
    ]
    return sorted(found, key=lambda curve: -len(curve.by_tokens))


def tokens_of(measured: Measurement) -> int | None:
    """Return T, the tokens that a request verifies at once; None where a case has none."""
    for name in _TOKENS:
        value = measured.dims.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def curves_table(curves: list[Curve], found: Collected) -> str:
    """Return time(T) / time(1), and the fit where there is one."""
    tokens = sorted({t for curve in curves for t in curve.by_tokens if t != 1})[:_MOST_COLUMNS]
    several = len({curve.environment for curve in curves}) > 1
    lines = []
    for curve in curves:
        ratios = [grown(curve, t) if t in curve.by_tokens else _text.NOT_KNOWN for t in tokens]
        where = f" on {found.letter(curve.environment)}" if several else ""
        lines.append(
            (
                code(curve.implementation) + where,
                differing(curve, curves),
                _text.median(curve.by_tokens[1]),
                *ratios,
                fitted(curve, fit_words(curve)),
            )
        )
    header = ("implementation", "point", "T=1", *(f"T={t}" for t in tokens), "fit")
    align = "ll" + "r" * (len(tokens) + 1) + "l"
    if all(line[1] == "" for line in lines):
        header, align = (header[0], *header[2:]), "l" + align[2:]
        lines = [(line[0], *line[2:]) for line in lines]
    return table(header, lines, align=align)


def grown(curve: Curve, tokens: int) -> str:
    """Return time(T) / time(1), marked as derived from both."""
    formula = f"time(T={tokens}) / time(T=1)"
    return _text.quotient(curve.by_tokens[tokens], curve.by_tokens[1], formula)


def fitted(curve: Curve, words: str) -> str:
    """Return what was fitted through the points of a curve, marked as derived from them."""
    return _marks.derived(words, curve.by_tokens.values(), "least squares: base + slope x T")


def differing(curve: Curve, curves: Iterable[Curve]) -> str:
    """Return those of the fixed dims that are not the same in all curves."""
    every = [dict(one.fixed) for one in curves]
    words = [
        f"{text(name)} {text(value)}"
        for name, value in curve.fixed
        if any(fixed.get(name) != value for fixed in every)
    ]
    return ", ".join(words)


def _fixed(measured: Measurement) -> tuple[tuple[str, str], ...]:
    skipped = (*_TOKENS, *_FOLLOWS_TOKENS)
    return tuple(
        (name, _text.value(value)) for name, value in measured.dims.items() if name not in skipped
    )


def fit_words(curve: Curve) -> str:
    """Return "base + slope x T" with its figures; a dash where there is no fit."""
    line = curve.fit()
    if line is None:
        return _text.NOT_KNOWN
    base, slope = line
    sign = "-" if slope < 0 else "+"
    return f"{_text.duration(base)} {sign} {_text.duration(abs(slope))} x T"
