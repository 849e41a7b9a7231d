"""report.html: one file that says what report.md says, safe with any record, usable in Chromium."""

import base64
import json
import re
import zlib
from pathlib import Path

import msgspec
import pytest

from reports import _html, _packed, _page
from reports._collected import collect
from tests import chromium
from tests.chromium import Browser
from tests.html_read import Read
from tests.report_sample import CPU, GPU, US, imported, kernel, predicted, whole_run, write
from verifyscope.records import Evidence, Finding, Record

needs_chromium = pytest.mark.skipif(chromium.PROGRAM is None, reason=chromium.WHY_NOT)


def built(folder: Path, lines: list[Record], *, plots: bool = False) -> tuple[Path, str, str]:
    """Return the page's path and the text of both pages."""
    path = write(folder / "run" / "records.jsonl", lines)
    _page.write(collect([path]), folder, command="python -m reports.build run", plots=plots)
    html = folder / "report.html"
    return html, html.read_text(), (folder / "report.md").read_text()


def unpacked(html: str) -> dict[str, object]:
    found = re.search(r'id="packed">([^<]*)<', html)
    assert found is not None
    columns: dict[str, object] = json.loads(zlib.decompress(base64.b64decode(found[1])))
    return columns


def test_the_page_says_what_the_markdown_says_and_asks_no_network(tmp_path: Path) -> None:
    _, html, markdown = built(tmp_path, whole_run(), plots=True)
    page = Read(html)
    for line in re.findall(r"^#+ (.*)$", markdown, re.MULTILINE):
        assert line.replace("`", "").replace("\\", "") in page.text
    for row in re.findall(r"^\| (?!-)(.*) \|$", markdown, re.MULTILINE):
        for cell in re.split(r"(?<!\\)\|", row):
            assert re.sub(r"[`*\\]", "", cell).strip() in page.text
    assert len(page.of("table")) == len(re.findall(r"^\| -", markdown, re.MULTILINE))
    images = [attrs["src"] or "" for attrs in page.of("img")]
    # The waterfall is a picture in report.md, and drawn in report.html.
    assert len(images) == len(re.findall(r"^!\[", markdown, re.MULTILINE)) - 1 > 0
    assert "](waterfall.png)" in markdown
    assert html.count('<table class="fall">') == 1
    assert all(image.startswith("data:image/png;base64,") for image in images)
    links = [attrs["href"] or "" for attrs in page.of("a") if "href" in attrs]
    assert all(link.startswith("#") for link in links)
    anchors = {attrs.get("id") for _, attrs in page.elements}
    assert {link[1:] for link in links} <= anchors
    assert not page.of("link")
    assert all("src" not in attrs for attrs in page.of("script"))
    assert "\ue000" not in html + markdown


MARKUP = '<script>alert("x")</script><img src=x onerror=alert(1)>'


def test_markup_in_a_record_is_text(tmp_path: Path) -> None:
    evil = f"{MARKUP} &lt;b&gt; `<i>` </script> <details> \ue000id\ue001x\ue002"
    lines: list[Record] = [
        GPU,
        kernel(evil, 5.0, case=evil, op=evil, id='"><script>', flags=(evil,)),
        kernel("own", 6.0, case=evil, op=evil, requested={evil: evil}),
        kernel("own", None, status="failed", reason=evil),
        imported(8192, 30.0, file=evil),
        predicted("routed_experts", 60.0, 60, gpu=evil, model=evil),
        Finding(
            name=evil,
            sentence=evil,
            evidence=(Evidence(file=evil, at=evil, value=evil),),
            next_action=evil,
            worth_s=1.0,
            confidence="sure",
        ),
    ]
    _, html, _ = built(tmp_path, lines)
    page = Read(html)
    assert len(page.of("script")) == 2
    assert page.of("img") == []
    assert MARKUP in page.text
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert html.count("<details>") == html.count("</details>")
    records = unpacked(html)
    assert '"><scrip' in json.dumps(records["id"]).replace("\\", "")
    assert 'data-r=""' not in html


def test_a_number_carries_its_source_its_exact_value_and_its_record(tmp_path: Path) -> None:
    lines: list[Record] = [
        GPU,
        kernel("own", 23.456789, id="a1"),
        kernel("theirs", 31.0, id="b2", kind="baseline-direct", source="imported"),
    ]
    _, html, markdown = built(tmp_path, lines)
    numbers = {attrs["data-r"]: attrs for attrs in Read(html).of("a") if "data-s" in attrs}
    assert numbers["a1"]["class"] == "n measured"
    assert float(numbers["a1"]["data-s"] or 0) == pytest.approx(23.456789 * US, rel=1e-15)
    assert numbers["b2"]["class"] == "n imported"
    assert "23.5 us" in markdown


def test_the_packed_records_are_all_there_with_where_and_how_they_were_made(
    tmp_path: Path,
) -> None:
    lines: list[Record] = [
        GPU,
        CPU,
        kernel("own", 23.456789012, id="a1", mode="verify", launch="graph", cache="cold"),
        kernel("slow", 9.0, id="b2", environment="cpu"),
        kernel("gone", None, id="c3"),
        imported(8192, 30.0, file="log.txt"),
    ]
    _, html, _ = built(tmp_path, lines)
    columns = unpacked(html)

    def of(name: str, at: int) -> object:
        column = columns[name]
        assert isinstance(column, dict)
        return column["words"][column["at"][at]]

    ids, medians = columns["id"], columns["median_s"]
    assert isinstance(ids, list)
    assert isinstance(medians, list)
    assert len(ids) == 4
    at = {name: ids.index(name) for name in ("a1", "b2", "c3")}
    assert medians[at["a1"]] == float(f"{23.456789012 * US:.9g}")
    assert of("how", at["a1"]) == "verify graph cold"
    assert (of("machine", at["a1"]), of("machine", at["b2"])) == ("A", "B, CPU")
    assert medians[at["c3"]] is None
    assert of("says", at["c3"]) == "needs a CUDA device; this machine has none"
    rest = next(place for place in range(4) if place not in at.values())
    assert (of("kind", rest), of("origin", rest)) == ("imported", "log.txt:8192")


def test_more_records_than_fit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_packed, "MOST_RECORDS", 3)
    _, html, _ = built(
        tmp_path, [GPU, *(kernel("own", float(n), case=str(n)) for n in range(1, 9))]
    )
    columns = unpacked(html)
    assert (len(str(columns["id"]).split(",")), columns["left_out"]) == (3, 5)


def test_a_page_of_long_records_keeps_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [kernel("own", float(n), case=f"{n * 7919}" * 20) for n in range(1, 2000)]
    whole = len(built(tmp_path / "whole", [GPU, *rows])[1])
    monkeypatch.setattr(_html, "MOST_BYTES", whole - 10_000)
    _, html, _ = built(tmp_path, [GPU, *rows])
    ids, left_out = unpacked(html)["id"], unpacked(html)["left_out"]
    assert isinstance(ids, list)
    assert 1000 < len(ids) < 1999
    assert left_out == 1999 - len(ids)
    assert len(html.encode()) <= whole - 10_000


def test_one_pass_is_drawn_by_class_and_says_that_it_is_predicted(tmp_path: Path) -> None:
    how = {"prediction": "one"}
    parts = [
        predicted("routed_experts", 100.0, 60),
        predicted("attention_projections", 50.0, 61),
    ]
    timeline = predicted("forward", 9100.0, 1, host_s=4e-3, idle_s=50e-6)
    lines: list[Record] = [
        msgspec.structs.replace(one, method=one.method | how)
        for one in (
            *parts,
            msgspec.structs.replace(timeline, op="timeline", implementation="eager", floor_s=None),
        )
    ]
    _, html, _ = built(tmp_path, [GPU, CPU, *lines])
    assert "eager, predicted: 9.10 ms" in html
    drawn = dict(re.findall(r'width="([\d.]+)%"[^>]*><title>([a-z_ ]+): ', html))
    widths = {name: float(width) for width, name in drawn.items()}
    # 96 % of the width are the pass of 9.1 ms
    assert widths["moe"] == pytest.approx(96 * 6.0 / 9.1, abs=0.01)
    assert widths["dense_gemm"] == pytest.approx(96 * 3.05 / 9.1, abs=0.01)
    assert widths["idle"] == pytest.approx(96 * 0.05 / 9.1, abs=0.01)
    assert widths["host launches"] == pytest.approx(96 * 4.0 / 9.1, abs=0.01)
    assert 'stroke-dasharray="2 3"' in html
    shapes = dict(re.findall(r'<pattern id="(hatch-\d+)"[^>]*>(.*?)</pattern>', html))
    used = re.findall(r'fill="url\(#(hatch-\d+)\)"', html)
    assert set(used) <= set(shapes)
    assert len({shapes[one] for one in used}) == 2  # moe and dense_gemm; idle has none


def test_html_that_is_not_the_templates_own_fold_is_text() -> None:
    page = _html.page(
        "# One\n\n<details>\n<summary>a **b** \\<i\\></summary>\n\nx <b>y</b>\n\n</details>\n\n"
        "<iframe src=x></iframe>\n\n## Two\n",
        plots=None,
        records={},
        names={},
        packed=lambda _: "",
        drawing="",
        places={},
    )
    read = Read(page)
    assert (len(read.of("details")), read.of("iframe"), read.of("b")) == (1, [], [])
    assert "<summary>a <strong>b</strong> &lt;i&gt;</summary>" in page
    assert "<iframe src=x></iframe>" in read.text


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("page"), whole_run(), plots=True)[0]


@pytest.fixture
def shown(browser: Browser, whole_page: Path) -> Browser:
    """A page of a whole run in Chromium."""
    browser.open(whole_page)
    return browser


@needs_chromium
def test_a_table_sorts_by_value_and_not_by_letters_and_filters(
    tmp_path: Path, browser: Browser
) -> None:
    times = {"a": 900.0, "b": 1200.0, "c": 0.5, "d": 30.0, "e": 2.0, "f": 80.0, "g": 7.0, "h": 4.0}
    rows = [kernel("own", us, case=name, dims={"x": name}) for name, us in times.items()]
    path, _, _ = built(tmp_path, [GPU, *rows])
    browser.open(path)
    table = "[...document.querySelectorAll('table')].find(t => t.tBodies[0].rows.length === 8)"
    names = f"[...{table}.tBodies[0].rows].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
    heads = f"[...{table}.tHead.rows[0].cells]"
    column = f"{heads}.findIndex(c => c.textContent.startsWith('time'))"
    button = f"{table}.tHead.rows[0].cells[{column}].querySelector('button')"
    assert browser.run(f"{names}.join('')") == "abcdefgh"
    browser.run(f"{button}.click()")
    assert browser.run(f"{names}.join('')") == "".join(sorted(times, key=lambda n: times[n]))
    browser.run(f"{button}.click()")
    assert browser.run(f"{names}.join('')") == "".join(sorted(times, key=lambda n: -times[n]))
    assert browser.run(f"{button}.parentElement.getAttribute('aria-sort')") == "descending"
    box = f"{table}.closest('.frame').previousElementSibling.querySelector('input')"
    browser.run(f"{box}.value = '1.20 ms'; {box}.dispatchEvent(new Event('input'))")
    assert browser.run(f"{names}.join('')") == "b"
    assert browser.said == []


@needs_chromium
def test_pointing_at_a_number_or_reaching_it_by_key_tells_of_its_record(shown: Browser) -> None:
    number = "[...document.querySelectorAll('table .n[data-s]')].find(n => n.checkVisibility())"
    shown.point(number)
    shown.until("!document.getElementById('tip').hidden")
    said = shown.run("document.getElementById('tip').textContent")
    seconds = shown.run(f"{number}.dataset.s")
    exact_us = re.match(r"measured: ([\d.]+) us, 95 %: ([\d.]+) to ([\d.]+) us", said)
    assert exact_us is not None, said
    assert float(exact_us[1]) == pytest.approx(float(seconds) / US, rel=1e-11)
    assert float(exact_us[2]) < float(exact_us[1]) < float(exact_us[3])
    assert shown.run(f"{number}.dataset.r") in said
    assert shown.run("getComputedStyle(document.getElementById('tip')).display") != "none"
    shown.run(f"{number}.focus()")
    shown.press("ArrowRight")
    assert shown.run("document.activeElement.matches('.n[data-r]')")
    assert shown.run(f"document.activeElement !== {number}")
    records = shown.run("document.activeElement.dataset.r").split()
    shown.press("Enter")
    shown.until(f"document.querySelectorAll('.line.chosen').length === {len(records)}")
    assert shown.run("document.getElementById('records-filter').value").split() == records
    assert shown.run("document.querySelectorAll('.line:not(.head)').length") == len(records)
    assert shown.said == []


@needs_chromium
def test_all_records_are_in_reach_but_only_those_in_sight_are_rows(
    tmp_path: Path, browser: Browser
) -> None:
    rows = [
        kernel(f"own{n % 3}", 1.0 + (n * 7919 % 5000), case=f"case{n}", op=f"op{n % 5}")
        for n in range(5000)
    ]
    path, _, _ = built(tmp_path, [GPU, *rows])
    browser.open(path)
    browser.run("document.getElementById('records').scrollIntoView()")
    browser.until("document.querySelectorAll('.line').length > 5")
    lines = "document.querySelectorAll('.line:not(.head)')"
    assert browser.run(f"{lines}.length") < 100
    browser.run("document.querySelectorAll('.line.head button')[4].click()")
    browser.until(f"{lines}[0].children[4].textContent === '1 us'")
    browser.run("document.querySelectorAll('.line.head button')[4].click()")
    browser.until(f"{lines}[0].children[4].textContent === '5 ms'")
    browser.run("document.getElementById('records-rows').scrollTop = 22 * 4990; undefined")
    browser.until(f"[...{lines}].some(l => l.children[4].textContent === '1 us')")
    box = "document.getElementById('records-filter')"
    browser.run(f"{box}.value = 'CASE4999 own1'; {box}.dispatchEvent(new Event('input'))")
    browser.until(f"{lines}.length === 1")
    assert browser.run(f"{lines}[0].children[3].textContent") == "case4999"
    assert browser.said == []


@needs_chromium
@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_is_wider_than_the_screen(shown: Browser, width: int) -> None:
    shown.resize(width=width)
    shown.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert shown.run("document.documentElement.scrollWidth <= innerWidth")
    assert shown.run("document.querySelector('h1').getBoundingClientRect().top < 200")
    assert shown.said == []


@needs_chromium
def test_a_record_that_holds_script_runs_none(tmp_path: Path, browser: Browser) -> None:
    evil = "<img src=x onerror=window.ran=1><script>window.ran=1</script>"
    path, _, _ = built(
        tmp_path, [GPU, *(kernel(evil, 5.0 + n, case=evil + str(n)) for n in (1, 2))]
    )
    browser.open(path)
    browser.run("document.getElementById('records').scrollIntoView()")
    browser.until("document.querySelectorAll('.line').length === 3")
    assert browser.run("window.ran") is None
    assert browser.run("document.querySelectorAll('.line')[1].children[2].textContent") == evil
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.ran = 1'}))"
    )
    assert browser.run("window.ran") is None, "a script that is not the page's own ran"


def test_a_page_calls_records_by_as_many_letters_as_tell_them_apart(tmp_path: Path) -> None:
    ids = ("0123456789abcdef", "0123456789ffffff", "fedcba9876543210", "a1")
    rows = [kernel("own", 5.0 + n, id=name, case=name) for n, name in enumerate(ids)]
    _, html, _ = built(tmp_path, [GPU, *rows])
    assert unpacked(html)["id"] == ["0123456789a", "0123456789f", "fedcba98765", "a1"]
    shown = {attrs["data-r"] for attrs in Read(html).of("a") if "data-r" in attrs}
    assert shown == {"0123456789a", "0123456789f", "fedcba98765", "a1"}
