"""report.html by keyboard alone, for who cannot see it, and with every kind of record."""

from pathlib import Path

import msgspec
import pytest

from tests import chromium
from tests.chromium import Browser
from tests.html_read import Read
from tests.report_sample import GPU, imported, kernel, whole_run
from tests.report_sample import built as build_of_kernel
from tests.test_reports_html import built, unpacked
from verifyscope.records import Evidence, Finding, Record

needs_chromium = pytest.mark.skipif(chromium.PROGRAM is None, reason=chromium.WHY_NOT)
LINES = "document.querySelectorAll('.line:not(.head)')"
EVIL = (
    "<img src=x onerror=window.ran=1></script><script>window.ran=1</script>",
    "a | b `c` **d** \\ [e](javascript:window.ran=1)",
    "one\ntwo\r\nthree\t\x00\x1b[31m",
    "abc\u202edcba\u2066x\u200f",
    "\ue000id\ue003%22%3E\ue001x\ue002",
    "x" * 10_000,
)


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("page"), whole_run())[0]


def filtered(browser: Browser, words: str) -> list[list[str]]:
    """Return the cells of the rows that the table of all records shows for `words`."""
    box = "document.getElementById('records-filter')"
    browser.run("document.getElementById('records').scrollIntoView()")
    browser.until(f"{LINES}.length > 0")
    browser.run(f"{box}.value = {words!r}; {box}.dispatchEvent(new Event('input'))")
    browser.run("new Promise(done => setTimeout(done, 50))")
    cells: list[list[str]] = browser.run(
        f"[...{LINES}].map(line => [...line.children].map(cell => cell.textContent))"
    )
    return cells


def every_kind() -> list[Record]:
    return [
        GPU,
        kernel("own", 5.0, id="a1"),
        kernel("gone", None, id="b2"),
        msgspec.structs.replace(imported(64, 86.1), requested={"NCCL_PROTO": "LL128"}),
        build_of_kernel("_attend", 120, registers=128, occupancy=0.5),
        build_of_kernel("_merge", 90, failure="spills 64 B"),
        Finding(
            name="slow",
            sentence="An all-reduce is slow",
            evidence=(Evidence(file="log.txt", at=64, value="86.1 us"),),
            next_action="try LL",
            worth_s=5.3e-3,
            confidence="sure",
        ),
    ]


def test_findings_builds_and_what_has_no_time_are_among_all_records(tmp_path: Path) -> None:
    _, html, _ = built(tmp_path, every_kind())
    columns = unpacked(html)

    def column(name: str) -> list[str]:
        words = columns[name]
        assert isinstance(words, dict)
        return [words["words"][at] for at in words["at"]]

    rows = list(zip(*map(column, ("kind", "op", "how", "status", "says", "origin")), strict=True))
    assert rows[0] == (
        *("finding", "slow", "sure", ""),
        "An all-reduce is slow. Worth 5.30 ms. Next: try LL.",
        "log.txt:64",
    )
    assert [row[0] for row in rows[1:]] == ["measured", "imported", "no time", "build", "build"]
    assert rows[3][3:5] == ("skipped", "needs a CUDA device; this machine has none")
    assert rows[4][1:5] == (
        *("tree_attention", "sm_120", "ok"),
        "128 registers, 0 B spilled, 50,688 of 101,376 B shared memory, occupancy 50 %, "
        "tensor_core",
    )
    assert rows[5][2:5] == ("sm_90", "refused", "spills 64 B")
    assert columns["left_out"] == 0


@needs_chromium
def test_each_kind_can_be_asked_for_by_what_it_says(tmp_path: Path, browser: Browser) -> None:
    browser.open(built(tmp_path, every_kind())[0])
    assert [row[:2] for row in filtered(browser, "finding LL")] == [["finding", "slow"]]
    assert [row[3] for row in filtered(browser, "build refused")] == ["_merge, tiny"]
    assert [row[0] for row in filtered(browser, "needs CUDA")] == ["no time"]
    assert [row[7] for row in filtered(browser, "proto=ll128")] == ["8 ranks NCCL_PROTO=LL128"]
    assert {row[0] for row in filtered(browser, "a1 b2")} == {"measured", "no time"}
    said = browser.run("document.getElementById('records-note').textContent")
    assert said.startswith("2 of 6 records")
    assert browser.said == []


@needs_chromium
def test_a_derived_number_tells_its_formula_and_shows_its_records(
    tmp_path: Path, browser: Browser
) -> None:
    rows = [kernel("own", 20.0, id="a1"), kernel("lib", 25.0, id="b2", kind="baseline-direct")]
    whole = kernel("own", 7.0, id="0123456789abcdef", case="other")
    browser.open(built(tmp_path, [GPU, *rows, whole])[0])
    ratio = "[...document.querySelectorAll('.derived')].find(n => n.dataset.f === '= own / lib')"
    browser.run(
        f"document.querySelectorAll('details').forEach(d => d.open = true); {ratio}.focus()"
    )
    browser.until("!document.getElementById('tip').hidden")
    assert browser.run("document.getElementById('tip').textContent").split("\n") == [
        "= own / lib",
        "measured: 20 us, tree_attention / own, t4-l8k, record a1",
        "measured: 25 us, tree_attention / lib, t4-l8k, record b2",
    ]
    browser.press("Enter")
    browser.until("document.querySelectorAll('.line.chosen').length === 2")
    assert browser.run(f"{LINES}.length") == 2
    assert [row[3] for row in filtered(browser, "0123456789abcdef")] == ["other"]
    assert browser.run(f"getComputedStyle({ratio}, '::after').content") == '"ƒ"'
    assert browser.said == []


def test_every_table_has_a_name_and_every_head_its_scope_and_every_anchor_is_one(
    tmp_path: Path,
) -> None:
    twice = [
        Finding(name=name, sentence=f"{name} {n}", next_action=f"do {n}", confidence="sure")
        for name in ("twice", "records", "packed", "tip")
        for n in range(2)
    ]
    _, html, _ = built(tmp_path, [*whole_run(), *twice])
    page = Read(html)
    assert len(page.of("caption")) == len(page.of("table")) > 5
    assert all(attrs["scope"] == "col" for attrs in page.of("th"))
    ids = [attrs["id"] for _, attrs in page.elements if attrs.get("id")]
    assert len(ids) == len(set(ids))
    assert {"twice", "twice-2", "records-2", "records-3", "packed-2"} <= set(ids)
    assert [name for name, attrs in page.elements if attrs.get("id") == "packed"] == ["script"]


def focused(browser: Browser) -> str:
    return str(
        browser.run(
            "(e => `${e.tagName} ${e.closest('nav') ? 'nav' : e.closest('th') ? 'head' : e.id}"
            " ${e.textContent.slice(0, 20)}`)(document.activeElement)"
        )
    )


@needs_chromium
def test_the_page_is_read_sorted_and_searched_by_keyboard_alone(
    whole_page: Path, browser: Browser
) -> None:
    browser.open(whole_page)
    browser.run("window.seen = []; document.addEventListener('focusin', e => seen.push(e.target))")
    for _ in range(400):
        browser.press("Tab")
        if browser.run("document.activeElement.id === 'records-rows'"):
            break
    assert browser.run("document.activeElement.id") == "records-rows"
    # The focus goes down the page and skips nothing that does something.
    assert browser.run(
        "seen.every((e, at) => !at || e === seen[at - 1]"
        " || seen[at - 1].compareDocumentPosition(e) & 4)"
    )
    wanted = "nav a, th button, input, summary, main [tabindex='0']"
    missed = browser.run(
        f"[...document.querySelectorAll({wanted!r})]"
        ".filter(e => e.checkVisibility() && !e.closest('details:not([open]) :not(summary)')"
        " && !e.closest('#records-rows') && !seen.includes(e)).map(e => e.outerHTML.slice(0, 120))"
    )
    assert missed == []
    assert browser.run(
        "seen.filter(e => e.matches('.n[data-r]')).every(e => e.getAttribute('role') === 'button')"
    )
    assert browser.said == []


@needs_chromium
def test_a_table_and_all_records_say_how_they_are_sorted_and_how_many_rows_there_are(
    whole_page: Path, browser: Browser
) -> None:
    browser.open(whole_page)
    head = "[...document.querySelectorAll('th button')].find(b => b.checkVisibility())"
    browser.run(f"{head}.focus()")
    for direction in ("ascending", "descending"):
        browser.press("Enter")
        assert browser.run("document.activeElement.closest('th').ariaSort") == direction
    browser.run("document.getElementById('records').scrollIntoView()")
    browser.until(f"{LINES}.length > 5")
    browser.run("document.querySelectorAll('.line.head button')[4].focus()")
    browser.press("Enter")
    box = "document.getElementById('records-rows')"
    browser.until(f"{box}.querySelector('[aria-sort=ascending]') !== null")
    rows = browser.run(f"{box}.getAttribute('aria-rowcount')")
    shown = browser.run("document.getElementById('records-note').textContent.split(' ')[0]")
    assert int(rows) == int(shown) + 1
    assert browser.run(f"{LINES}[0].getAttribute('aria-rowindex')") == "2"
    assert browser.run(
        f"[...{box}.querySelectorAll('[role=row]')].every(r => r.closest('[role=table]'))"
    )
    assert browser.said == []


@needs_chromium
def test_numbers_in_sentences_are_reached_and_passed_by_arrow_keys(
    whole_page: Path, browser: Browser
) -> None:
    browser.open(whole_page)
    sentence = "[...document.querySelectorAll('ul')].find(u => u.querySelectorAll('.n').length > 1)"
    browser.run(f"{sentence}.querySelector('[tabindex=\"0\"]').focus()")
    first = browser.run("document.activeElement.dataset.r")
    browser.press("ArrowRight")
    assert browser.run("document.activeElement.matches('ul .n[data-r]')")
    assert browser.run(f"{sentence}.querySelectorAll('[tabindex=\"0\"]').length") == 1
    assert first


@needs_chromium
@pytest.mark.parametrize(
    "evil", EVIL, ids=["script", "markdown", "lines", "turned", "marks", "long"]
)
def test_words_of_a_record_are_text_in_tables_hovers_and_all_records(
    tmp_path: Path, browser: Browser, evil: str
) -> None:
    rows: list[Record] = [
        GPU,
        *(
            kernel(f"{evil}{name}", us, case=evil, op=evil, kind=kind, requested={evil: evil})
            for name, us, kind in (("own", 5.0, "own"), ("lib", 6.0, "baseline-direct"))
        ),
        kernel("gone", None, reason=evil, op=evil),
        msgspec.structs.replace(imported(64, 9.0, file=evil), implementation=evil),
        build_of_kernel(evil, 90, failure=evil, case=evil, op=evil),
        Finding(
            name=evil,
            sentence=evil,
            evidence=(Evidence(file=evil, at=64, value=evil),),
            next_action=evil,
            confidence="sure",
        ),
    ]
    path, html, markdown = built(tmp_path, rows)
    for page in (html, markdown):
        assert not {"\u202e", "\u2066", "\u200f", "\x00", "\x1b", "\ue000", "\ue003"} & set(page)
    assert len(html) < 600_000
    assert max(map(len, markdown.splitlines())) < 30_000
    browser.open(path)
    assert (
        browser.run(
            "document.querySelectorAll('main img, iframe, a[href]:not([href^=\"#\"])').length"
        )
        == 0
    )
    assert len(filtered(browser, "")) == 6
    assert browser.run(
        "[...document.querySelectorAll('.line')]"
        ".every(line => !line.querySelector('span *:not(button)'))"
    )
    kept = " ".join("".join(x if x.isprintable() else " " for x in evil).split())[:200]
    ops = [row[1] for row in filtered(browser, "")]
    assert all(op.startswith(kept) for op in ops if op != "all_reduce")
    number = "[...document.querySelectorAll('.n[data-f]')].find(n => n.checkVisibility())"
    browser.run(
        f"document.querySelectorAll('details').forEach(d => d.open = true); {number}.focus()"
    )
    browser.until("!document.getElementById('tip').hidden")
    assert browser.run("document.getElementById('tip').children.length") == 0
    assert browser.run(
        "document.getElementById('tip').getBoundingClientRect().height < innerHeight"
    )
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("window.ran") is None
    assert browser.said == []
