"""Every kind of plot, from few and from many numbers, keeps to tests/plot_rules.py.

The fixture of tests/conftest.py looks at each figure before it is saved; here are the inputs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports import _plot_style, _plots
from tests import plot_rules
from verifyscope.parts import CLASSES, IDLE
from verifyscope.records import Source

US = 1e-6
LONG = "a_name_that_somebody_gave_" * 8
SIZES = tuple(2.0**n for n in range(7, 31))
SOURCES: tuple[Source, ...] = ("measured", "imported", "predicted")


def by_size(
    number: int, *, source: Source = "measured", points: int = len(SIZES), decades: float = 4
) -> _plots.Line:
    """Return a line as a collective makes it: a latency, then a bandwidth."""
    sizes = SIZES[:points]
    latency, rate = (4 + 9 * number) * US, 40e9 / (1 + number)
    steep = decades / 4
    times = [(latency + size / rate) ** steep for size in sizes]
    band = ([0.9 * t for t in times], [1.1 * t for t in times]) if source == "measured" else None
    label = f"NCCL {source} {number}, 8 ranks, bfloat16, graph x 122"
    return _plots.Line(label=label, x=sizes, y=times, band=band, source=source)


def by_tokens(number: int, *, source: Source = "measured", most: int = 16) -> _plots.Line:
    """Return a line as a kernel makes it: base + slope x T, and its fit."""
    tokens = [t for t in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128) if t <= most] or [1]
    base, slope = (20 + 11 * number) * US, (0.4 + 0.5 * number) * US
    times = [base + slope * t for t in tokens]
    return _plots.Line(
        label=f"kernel{number}; thin: fit of {1e6 * base:.1f} us + {1e6 * slope:.2f} us x T",
        x=tokens,
        y=times,
        band=([0.97 * t for t in times], [1.04 * t for t in times]),
        source=source,
        fit=(base, slope),
    )


FLOOR = _plots.Line(
    label="floor of bytes and flops",
    x=[1, 4, 8, 16],
    y=[12 * US, 12.5 * US, 13 * US, 14 * US],
    source="predicted",
    is_floor=True,
)
STEPS = [("now", 14.9e-3), ("graph", 14.0e-3), ("LL", 13.7e-3), ("fewer rows", 13.9e-3)]


def bar(label: str, number: int, *, source: Source = "predicted") -> _plots.Bar:
    """Return a bar of every class that a pass can have."""
    segments: list[tuple[str, float]] = [
        (name, (1 + (number + at) % 5) * 1e-3) for at, name in enumerate(CLASSES)
    ]
    segments += [("smaller classes", 1e-4), (IDLE, 2e-3)]
    return _plots.Bar(
        label=label,
        segments=segments,
        floor_s=11e-3,
        note="at least 30.2 ms\nnot known: all_reduce, other_collective",
        source=source,
    )


def sizes(*lines: _plots.Line, title: str = "Time of all_reduce") -> Callable[[Path], None]:
    marks = [(14_336.0 * rows, f"{rows} rows") for rows in (1, 2, 3, 4, 8, 9)]
    return lambda path: _plots.time_against_bytes(path, lines, title=title, marks=marks)


def tokens(*lines: _plots.Line, title: str = "mla_verify: context 8,192") -> Callable[[Path], None]:
    return lambda path: _plots.time_against_tokens(path, lines, title=title)


def budget(*bars: _plots.Bar) -> Callable[[Path], None]:
    return lambda path: _plots.budget(path, bars, title="Predicted, not measured")


def waterfall(
    steps: list[tuple[str, float]], floor_s: float | None = 7e-3
) -> Callable[[Path], None]:
    return lambda path: _plots.what_if(path, steps, floor_s=floor_s, title=f"Predicted: {LONG}")


GAP = _plots.Line(label="a hang", x=[1024, 2048, 4096], y=[9 * US, float("nan"), 11 * US])
SECOND = _plots.Line(label="LL", x=SIZES[:9], y=[9 * US] * 9, colour=0, second=True)
KINDS: dict[str, Callable[[Path], None]] = {
    "sizes-1x1": sizes(by_size(0, points=1)),
    "sizes-each-source": sizes(*(by_size(2 * n, source=s) for n, s in enumerate(SOURCES))),
    "sizes-most": sizes(*(by_size(n, source=SOURCES[n % 3]) for n in range(_plots.MOST_LINES))),
    "sizes-six-decades": sizes(by_size(0, decades=6), by_size(3, decades=2), title=LONG),
    "sizes-gap-and-second": sizes(GAP, by_size(1, points=9), SECOND),
    "sizes-long": sizes(
        *(
            _plots.Line(label=f"{n} {LONG}", x=[8, 64], y=[US, 2 * US], source="imported")
            for n in range(3)
        )
    ),
    "tokens-1": tokens(by_tokens(0)),
    "tokens-cpu-and-gpu": tokens(
        by_tokens(0), _plots.Line(label="torch, CPU", x=[1, 2, 4, 8], y=[2e-3, 3e-3, 4e-3, 5e-3])
    ),
    "tokens-most-and-floor": tokens(
        *(by_tokens(n, source=SOURCES[n % 2]) for n in range(_plots.MOST_LINES)), FLOOR
    ),
    "tokens-128": tokens(by_tokens(0, most=128), by_tokens(1, source="imported")),
    "tokens-40-points": tokens(
        _plots.Line(label="gemm", x=list(range(1, 41)), y=[1.8 * US] * 40, source="imported")
    ),
    "tokens-long": tokens(_plots.Line(label=LONG, x=[1, 2, 4], y=[1.0, 2.0, 3.0]), title=LONG),
    "budget-1": budget(bar("one pass", 0)),
    "budget-5": budget(*(bar(f"kimi-k2.5, {n} rows", n, source=SOURCES[n % 3]) for n in range(5))),
    "budget-long": budget(bar(LONG, 0), bar(LONG, 1)),
    "waterfall": waterfall(STEPS),
    "waterfall-of-all-that-is-left": waterfall([("now", 1e-3), ("gone", 0.0)], None),
    "waterfall-long": waterfall([(f"{n} {LONG}", 1e-3 * (20 - n)) for n in range(12)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_plot_keeps_to_the_rules_and_is_the_same_twice(kind: str, tmp_path: Path) -> None:
    one, two = tmp_path / f"{kind}.png", tmp_path / "again.png"
    KINDS[kind](one)
    KINDS[kind](two)
    assert one.read_bytes().startswith(b"\x89PNG")
    assert one.read_bytes() == two.read_bytes()


def faults(draw: Callable[[Any], object]) -> list[str]:
    drawn = Figure(figsize=(4, 3), layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    axes.set_xlabel("x [bytes]")
    axes.set_ylabel("y [us]")
    draw(axes)
    return plot_rules.faults(drawn)


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "words on words": (
        lambda axes: (axes.plot([1, 2]), axes.text(0.5, 1.5, "one"), axes.text(0.5, 1.5, "two")),
        "'one' lies on 'two'",
    ),
    "words beyond": (
        lambda axes: (axes.plot([1, 2]), axes.text(0.95, 1.5, "far away " * 9, clip_on=True)),
        "beyond the figure",
    ),
    "no data": (lambda axes: None, "the axes have no data"),
    "no unit": (
        lambda axes: (axes.plot([1, 2]), axes.set_xlabel("x")),
        "the x axis has no unit",
    ),
    "no label": (
        lambda axes: (axes.plot([1, 2]), axes.set_ylabel("")),
        "the y axis has no label",
    ),
    "colours alike": (
        lambda axes: (
            axes.plot([1, 2], label="a", color="#009E73"),
            axes.plot([2, 1], label="b", color="#D55E00"),
        ),
        "'a' and 'b' look alike",
    ),
    "sources alike": (
        lambda axes: (axes.plot([1, 2], gid="measured"), axes.plot([2, 1], gid="predicted")),
        "measured and predicted lines have the same dash",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_each_rule_finds_its_fault(kind: str) -> None:
    draw, said = WRONG[kind]
    (fault,) = faults(draw)
    assert said in fault


def test_classes_are_told_apart_by_everybody() -> None:
    """By hatch, or where two have none by colour and by lightness."""
    names = [*CLASSES, IDLE, "smaller classes"]

    def draw(axes: Any) -> None:
        for at, name in enumerate(names):
            axes.barh(
                at,
                1,
                color=_plot_style.class_colour(name),
                hatch=_plot_style.class_hatch(name),
                label=name,
            )

    assert faults(draw) == []


def test_words_are_read_on_any_class() -> None:
    """By the contrast of WCAG, 4.5 at least."""

    def light(colour: str) -> float:
        parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722]) + 0.05

    for name in (*CLASSES, IDLE, "smaller classes"):
        colour = _plot_style.class_colour(name)
        words = 1.05 if _plot_style.ink(colour) == "white" else 0.05
        assert max(words / light(colour), light(colour) / words) >= 4.5, name
