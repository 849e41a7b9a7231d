"""report.html on paper: nothing is cut, what is folded is said, and marks need no colour."""

from collections.abc import Iterator

import pytest

from tests import chromium
from tests.chromium import Browser
from tests.report_sample import GPU, kernel, whole_run
from tests.test_reports_html import built

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason=chromium.WHY_NOT)
_PAGE = 703  # pixels between the margins of an A4 sheet


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    long = [
        kernel("an_implementation_of_a_long_name_" * 3, 9.0 + n, case="a-long-case-" * 6 + str(n))
        for n in range(3)
    ]
    folder = tmp_path_factory.mktemp("page")
    page, _, _ = built(folder, [*whole_run(), GPU, *long], plots=True)
    with chromium.browser() as browser:
        browser.open(page, width=_PAGE)
        browser.ask("Emulation.setEmulatedMedia", media="print")
        yield browser


def test_no_table_and_no_plot_is_cut_at_the_edge_of_the_paper(printed: Browser) -> None:
    printed.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    for what in ("table", "img"):
        edges = (
            f"[...document.querySelectorAll('{what}')].map(e => e.getBoundingClientRect().right)"
        )
        assert printed.run(f"{edges}.length") > 0
        assert printed.run(f"Math.max(...{edges})") <= _PAGE, what


def test_what_a_mouse_is_for_is_not_printed(printed: Browser) -> None:
    for what in ("nav", ".filter", "#tip", "#records"):
        assert printed.run(f"document.querySelector('{what}').checkVisibility()") is False, what


def test_a_fold_that_is_closed_says_so(printed: Browser) -> None:
    printed.run("document.querySelector('details').open = false")
    said = "getComputedStyle(document.querySelector('details summary'), '::after').content"
    assert "folded: open it before printing" in printed.run(said)
    printed.run("document.querySelector('details').open = true")
    assert printed.run(said) == "none"


def test_measured_imported_and_predicted_differ_in_their_line_as_well_as_colour(
    printed: Browser,
) -> None:
    styles = [
        printed.run(
            f"(s => [s.textDecorationLine, s.textDecorationStyle, s.color])"
            f"(getComputedStyle(document.querySelector('.key .{source}')))"
        )
        for source in ("measured", "imported", "predicted")
    ]
    assert [line for line, _, _ in styles] == ["underline"] * 3
    assert [style for _, style, _ in styles] == ["solid", "dashed", "wavy"]
    assert len({colour for _, _, colour in styles}) == 3
