"""Every number leads to its records: printed, derived or read; every table says what on what."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from reports import _marks, _provenance
from reports._collected import Collected
from tests.html_read import Read
from tests.report_page import Page
from tests.report_sample import CPU, GPU, collective, imported, kernel, predicted
from tests.test_reports_html import built
from verifyscope.records import Evidence, Finding, Measurement, Origin, Record


def elements(html: str) -> list[tuple[list[str], list[str], str, str]]:
    """Return the classes, the records, the formula and the words of each marked number."""
    found = []
    for number in html.split('<a class="n ')[1:]:
        attrs = Read(f'<a class="n {number}').of("a")[0]
        classes, ids = (attrs["class"] or "").split(), (attrs["data-r"] or "").split()
        words = number.partition(">")[2].partition("</a>")[0]
        found.append((classes, ids, attrs.get("data-f") or "", words))
    return found


def as_html(body: str, *records: Measurement) -> str:
    ids = {record.id: record.id for record in records}
    return _marks.as_html(body, {record.id: record for record in records}, ids)


def shown(marked: str, *records: Measurement) -> tuple[list[str], list[str], str, str]:
    body = MarkdownIt("commonmark").enable("table").render(marked)
    (one,) = elements(as_html(body, *records))
    return one


def test_a_derived_number_names_its_formula_and_every_record() -> None:
    own, other = kernel("own", 20.0, id="a1"), kernel("other", 25.0, id="b2")
    marked = _marks.derived("0.80", [own, None, other, own], "own / other")
    assert _marks.removed(marked) == "0.80"
    assert _marks.width(marked) == 4
    assert shown(marked, own, other) == (
        ["n", "derived", "measured"],
        ["a1", "b2"],
        "= own / other",
        "0.80",
    )


@pytest.mark.parametrize(
    ("sources", "counts_as"),
    [
        (("measured", "measured"), "measured"),
        (("measured", "imported"), "imported"),
        (("measured", "predicted"), "predicted"),
        (("predicted", "imported"), "predicted"),
    ],
)
def test_what_comes_of_several_records_counts_as_the_weakest(
    sources: tuple[str, str], counts_as: str
) -> None:
    one, other = (
        kernel("own", 20.0, id=name, source=source)
        for name, source in zip("ab", sources, strict=True)
    )
    assert shown(_marks.derived("1.00", [one, other], "a / b"), one, other)[0][2] == counts_as


def test_a_floor_counts_as_predicted_however_its_record_was_made(tmp_path: Path) -> None:
    one = kernel("own", 25.0, id="a1")
    assert shown(_marks.derived("20.0 us", [one], "floor_s", predicted=True), one)[0] == [
        "n",
        "derived",
        "predicted",
    ]
    rows = [kernel(name, 26.0, case=case) for name in ("own", "other") for case in ("x", "y")]
    _, html, _ = built(tmp_path, [GPU, *rows])
    floors = [found for found in elements(html) if "floor_s" in found[2]]
    assert floors
    assert all(found[0] == ["n", "derived", "predicted"] for found in floors)


def test_what_is_not_known_is_no_number_of_a_record() -> None:
    one = kernel("own", 20.0)
    assert _marks.derived("–", [one], "x") == "–"
    assert _marks.told("", one, "x") == ""
    assert _marks.derived("1.00", [], "x") == "1.00"


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.text(max_size=60) | st.sampled_from(["|", "`", "*a*", "_a_", "~~a~~", "<b>", '"', "\ue002"])
)
def test_a_formula_of_any_letters_is_no_markup_and_comes_back_whole(formula: str) -> None:
    one = kernel("own", 20.0, id="a1")
    marked = _marks.derived("**0.80**", [one], f"x {formula} y")
    row = MarkdownIt("commonmark").enable("table").render(f"| a |\n| - |\n| {marked} |\n")
    html = as_html(row, one)
    (number,) = Read(html).of("a")
    kept = "".join(letter if letter.isprintable() else " " for letter in formula)
    assert (number["data-f"] or "").split() == f"= x {kept} y".split()
    assert html.count("<td>") == 1
    assert "<strong>0.80</strong>" in html


def test_more_records_than_a_page_should_carry_are_cut_off() -> None:
    many = [kernel("own", 1.0, id=f"r{n}") for n in range(_marks.MOST_RECORDS + 9)]
    assert len(list(_marks.ids(_marks.derived("1", many, "sum")))) == _marks.MOST_RECORDS


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path / "page")


def test_ratios_bandwidths_and_shares_lead_to_their_records(tmp_path: Path) -> None:
    lines: list[Record] = [
        GPU,
        kernel("own", 20.0, id="a1"),
        kernel("theirs", 25.0, id="b2", kind="baseline-direct"),
    ]
    _, html, _ = built(tmp_path, lines)
    found = {(words, formula): ids for _, ids, formula, words in elements(html)}
    assert found["0.80", "= own / theirs"] == ["a1", "b2"]
    assert found["1.50 TB/s", "= touched bytes / time"] == ["a1"]
    assert found["100 %", "= floor / time"] == ["a1"]


def test_growth_with_t_leads_to_both_times_and_its_fit_to_all(tmp_path: Path) -> None:
    rows = [
        kernel("own", 10.0 * t, id=f"t{t}", case=f"t{t}", dims={"rows": t}, op="rms", part="norms")
        for t in (1, 2, 4)
    ]
    _, html, _ = built(tmp_path, [GPU, *rows])
    found = {formula: (words, ids) for _, ids, formula, words in elements(html)}
    assert found["= time(T=4) / time(T=1)"] == ("4.00", ["t4", "t1"])
    assert found["= least squares: base + slope x T"][1] == ["t1", "t2", "t4"]


def test_a_pass_of_all_reduces_and_a_predicted_sum_lead_to_their_calls(tmp_path: Path) -> None:
    dims = {"bytes": 57_344, "dtype": "bfloat16", "in_place": False, "tokens": 4}
    call = collective(57_344, 30.9, id="c1", dims=dims | {"model": "kimi-k2.5"})
    parts = [
        msgspec.structs.replace(predicted(name, us, calls), id=name)
        for name, us, calls in (("router", 60.0, 60), ("lm_head", 30.0, 61))
    ]
    ids = [one.id for one in parts]
    _, html, _ = built(tmp_path, [GPU, CPU, call, *parts])
    found = [(words, formula, where) for _, where, formula, words in elements(html)]
    assert ("3.77 ms", "= 122 calls x the time of one", ["c1"]) in found
    assert ("5.43 ms", "= sum of calls x the time of one", ids) in found


# ---- What was measured on what ----


def said(records: list[Measurement], *environments: Record) -> str:
    found = Collected(paths=())
    for one in environments:
        found.environments[one.id] = one  # type: ignore[union-attr,assignment]
        found.letters[one.id] = "AB"[len(found.letters)]  # type: ignore[union-attr]
    return _provenance.sentence(records, found)


def test_a_table_says_machines_files_and_gpus() -> None:
    own = kernel("own", 1.0)
    theirs = msgspec.structs.replace(imported(8, 1.0), method={"device": "NVIDIA L40S"})
    assert said([own], GPU) == "Measured on 8 x NVIDIA RTX PRO 6000."
    assert said([own, kernel("own", 2.0, environment="cpu")], GPU, CPU) == (
        "Measured on A: 8 x NVIDIA RTX PRO 6000, B: Laptop, 8 cores, no GPU."
    )
    assert said([theirs], GPU) == "Imported from `log.txt` (on NVIDIA L40S)."
    assert said([own, theirs, predicted("lm_head", 1.0, 1)], GPU) == (
        "Measured on 8 x NVIDIA RTX PRO 6000; imported from `log.txt` (on NVIDIA L40S); "
        "predicted for rtx-pro-6000-server, measured by nobody."
    )
    assert said([]) == ""


def test_every_table_of_times_says_it_and_says_it_once_under_a_heading(page: Page) -> None:
    rows = [
        kernel(name, 5.0 + n, case=f"c{n}", kind=kind)
        for n in range(3)
        for name, kind in (("own", "own"), ("theirs", "baseline-direct"))
    ]
    page.of([GPU, *rows, *(imported(2**n, 30.0) for n in range(13, 16))])
    kernels, _, others = page.text.partition("## Collectives")
    assert kernels.count("*Measured on 8 x NVIDIA RTX PRO 6000.*\n\n|") == 1
    assert "*Imported from `log.txt`.*\n\n|" in others
    assert "\ue000" not in page.text


def test_a_record_whose_origin_is_markup_is_said_as_text(tmp_path: Path) -> None:
    evil = imported(8192, 30.0, file="<img src=x onerror=alert(1)>|`*\u202ex")
    _, html, markdown = built(tmp_path, [GPU, evil])
    assert Read(html).of("img") == []
    assert "Imported from <img src=x onerror=alert(1)>|`* x." in Read(html).text
    assert "\u202e" not in html + markdown


# ---- What a finding saw ----


def test_what_a_finding_saw_leads_to_the_records_of_its_line_or_kernel(tmp_path: Path) -> None:
    out, inside = (
        msgspec.structs.replace(imported(64, us), id=name, origin=Origin(file="log.txt", line=7))
        for name, us in (("out", 86.1), ("in", 84.0))
    )
    trace = kernel(
        "AllReduce_LL",
        9.0,
        id="k1",
        op="trace kernel",
        source="imported",
        origin=Origin(file="trace.json"),
    )
    whole = msgspec.structs.replace(trace, id="w1", op="trace", implementation="kineto")
    seen = (
        Evidence(file="trace.json", at="launch", value="768 launches"),
        Evidence(file="log.txt", at=7, value="86.1 us"),
        Evidence(file="trace.json", at="AllReduce_LL", value="9 us"),
        Evidence(file="log.txt", at=8, value="nothing of it"),
    )
    finding = Finding(name="slow", sentence="Slow.", evidence=seen, confidence="sure")
    _, html, markdown = built(tmp_path, [GPU, out, inside, trace, whole, finding])
    found = {words: (classes, ids, about) for classes, ids, about, words in elements(html)}
    assert found["86.1 us"] == (["n", "imported"], ["out", "in"], "read at log.txt:7")
    assert found["9 us"] == (["n", "imported"], ["k1"], "read at trace.json:AllReduce_LL")
    assert found["768 launches"][1] == ["w1"]
    assert "nothing of it" not in found
    assert "86.1 us at `log.txt:7`, 9 us at `trace.json:AllReduce_LL`" in markdown
