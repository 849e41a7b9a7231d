"""compare.html: tables that sort and filter, and plots that add up, in a real browser."""

from pathlib import Path
from typing import Any

import pytest

from reports import _plot_style
from reports._comparison import comparison, plots
from reports._comparison.page import as_html
from tests import chromium
from tests.chromium import Browser
from tests.comparison_sample import TODAY, YESTERDAY, rows, run, sweep
from tests.html_read import Read
from tests.report_sample import kernel, write

needs_chromium = pytest.mark.skipif(chromium.PROGRAM is None, reason=chromium.WHY_NOT)
MARKUP = "<img src=x onerror=window.ran=1><script>window.ran=1</script>"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> comparison.Comparison:
    """Two runs: triton is 8 % slower, all-reduces 30 %, cupy 4 % faster, flashinfer as before."""
    folder = tmp_path_factory.mktemp("runs")
    before = {"triton": 1.0, "cupy": 1.3, "flashinfer": 1.1}
    after = before | {"triton": 1.08, "cupy": 1.25}
    sides = [
        run(
            folder / name,
            here,
            rows(seed=seed, kernels=kernels, cases=6, environment=here.id),
            sweep(seed=seed, factor=factor, environment=here.id),
        )
        for name, here, seed, kernels, factor in (
            ("a", YESTERDAY, 1, before, 1.0),
            ("b", TODAY, 9, after, 1.3),
        )
    ]
    return comparison.compare(*sides, warnings=[])


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep each figure that is saved."""
    kept: list[Any] = []
    write_it = _plot_style.written

    def keep(figure: Any, path: Path) -> None:
        kept.append(figure)
        write_it(figure, path)

    monkeypatch.setattr(_plot_style, "written", keep)
    return kept


def test_the_parts_of_the_drawn_change_lie_one_behind_the_other_and_add_up(
    found: comparison.Comparison, figures: list[Any], tmp_path: Path
) -> None:
    drawn = plots.draw(found, tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {*drawn.splits.values(), drawn.rows}
    (split,) = found.splits
    bars = figures[0].axes[0].patches[::2]  # each is drawn with its border
    *steps, whole = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    assert len(steps) == len(split.parts) == 2
    at = 0.0
    for low, high in steps:
        assert at in (pytest.approx(low), pytest.approx(high))
        at = high if at == pytest.approx(low) else low
    assert whole == (0.0, pytest.approx(split.whole.change_s))
    assert at == pytest.approx(split.whole.change_s)
    words = [text.get_text() for text in figures[0].axes[0].texts]
    assert all(word.startswith("+") for word in words)


def test_each_row_is_a_dot_and_those_that_moved_are_marked(
    found: comparison.Comparison, figures: list[Any], tmp_path: Path
) -> None:
    plots.draw(found, tmp_path)
    axes = figures[-1].axes[0]
    dots = {
        one.get_label(): [float(x) for x, _ in one.get_offsets()]
        for one in axes.collections
        if len(one.get_offsets()) and not one.get_label().startswith("_")
    }
    ratios: dict[str, list[float]] = {}
    for pair in found.matched.timed:
        assert pair.change is not None
        ratios.setdefault(pair.change.verdict, []).append(pair.change.ratio)
    assert set(ratios) >= {"slower", "faster", "same"}
    for verdict, known in ratios.items():
        assert sorted(dots[f"{verdict}: {len(known)}"]) == pytest.approx(sorted(known))
    assert len(ratios["slower"]) == 6 + 8


def test_of_very_many_rows_those_that_moved_are_drawn(
    figures: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "_MOST_ROWS", 40)
    before, after = {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.3}
    sides = [
        run(tmp_path / name, here, rows(seed=n, kernels=kernels, cases=50, environment=here.id))
        for n, (name, here, kernels) in enumerate(
            (("a", YESTERDAY, before), ("b", TODAY, after)), 1
        )
    ]
    several = comparison.compare(*sides, warnings=[])
    plots.draw(several, tmp_path)
    title = figures[-1].get_suptitle().replace("\n", " ")
    assert title.startswith("100 rows that both runs timed, ")
    shown = figures[-1].axes[0].get_legend_handles_labels()[1]
    assert any(label.startswith("slower: ") for label in shown)


@pytest.fixture
def shown(browser: Browser, found: comparison.Comparison, tmp_path: Path) -> Browser:
    """The page of both runs in Chromium."""
    page = tmp_path / "page.html"
    page.write_text(as_html(found, command="python -m reports.compare a b"))
    browser.open(page)
    return browser


_MOVED = "[...document.querySelectorAll('table')].find(t => t.tBodies[0].rows.length === 20)"


@needs_chromium
def test_its_tables_sort_and_filter_by_key_and_say_no_error(shown: Browser) -> None:
    column = f"[...{_MOVED}.tHead.rows[0].cells].findIndex(c => c.textContent === 'B / A')"
    shown_rows = f"[...{_MOVED}.tBodies[0].rows].filter(r => !r.hidden)"
    ratios = f"{shown_rows}.map(r => +r.cells[{column}].textContent)"
    assert shown.run(f"{ratios}.length") == 20
    shown.run(f"{_MOVED}.tHead.rows[0].cells[{column}].querySelector('button').focus()")
    shown.press("Enter")
    found = shown.run(ratios)
    assert found == sorted(found)
    shown.press("Enter")
    found = shown.run(ratios)
    assert found == sorted(found, reverse=True)
    box = f"{_MOVED}.closest('.frame').previousElementSibling.querySelector('input')"
    shown.run(f"{box}.value = 'all_reduce'; {box}.dispatchEvent(new Event('input'))")
    assert shown.run(f"{ratios}.length") == 8
    assert shown.said == []


@needs_chromium
def test_the_whole_stays_below_its_parts_however_they_are_sorted(shown: Browser) -> None:
    table = "[...document.querySelectorAll('table')].find(t => t.tBodies[0].rows.length === 3)"
    names = f"[...{table}.tBodies[0].rows].map(r => r.cells[0].textContent)"
    button = f"{table}.tHead.rows[0].cells[0].querySelector('button')"
    parts = ["all_reduce: all_reduce", "attention: tree_attention"]
    shown.run(f"{button}.click()")
    assert shown.run(names) == [*parts, "sum"]
    shown.run(f"{button}.click()")
    assert shown.run(names) == [*reversed(parts), "sum"]


@needs_chromium
@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_of_it_is_wider_than_the_screen(shown: Browser, width: int) -> None:
    shown.resize(width=width)
    shown.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert shown.run("document.documentElement.scrollWidth <= innerWidth")
    assert shown.run("[...document.images].every(i => i.naturalWidth > 0)")
    assert shown.said == []


@needs_chromium
def test_a_time_says_who_measured_it_and_its_exact_value(shown: Browser) -> None:
    title = shown.run("document.querySelector('.n[data-s]').title")
    assert title.startswith("measured: ")
    assert title.split()[1] == shown.run("document.querySelector('.n[data-s]').dataset.s")


@needs_chromium
def test_names_that_hold_script_run_none(browser: Browser, tmp_path: Path) -> None:
    sides = [
        write(tmp_path / f"{n}.jsonl", [YESTERDAY, kernel(MARKUP, n, op=MARKUP, case=MARKUP)])
        for n in (9.0, 99.0)
    ]
    page = tmp_path / "page.html"
    page.write_text(as_html(comparison.compare(*sides, warnings=[]), command=MARKUP))
    browser.said.clear()
    browser.open(page)
    assert browser.run("window.ran") is None
    assert MARKUP in Read(page.read_text()).text
    assert browser.said == []
