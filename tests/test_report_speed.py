"""The records that the speed of reports is timed on: as many as asked for, and all of a report."""

from collections import Counter
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from reports import _html, build
from suites import report_speed
from suites._made_up_records import records
from tests.report_sample import GPU, write
from tests.sweep_rows import WHOLE, sweep
from verifyscope import cli
from verifyscope.records import Compiled, Environment, Finding, Measurement, encoded


def test_made_up_records_are_of_every_kind_and_the_same_each_time() -> None:
    made = list(records(5000))
    kinds = Counter(type(one) for one in made)
    assert kinds == {Environment: 3, Measurement: 4800, Compiled: 200, Finding: 10}
    measured = [one for one in made if isinstance(one, Measurement)]
    assert len({one.id for one in measured}) == 4800
    assert Counter(one.source for one in measured) == {
        "measured": 3600,
        "imported": 1050,
        "predicted": 150,
    }
    assert {one.status for one in measured} == {"ok", "ignored", "hang", "skipped"}
    assert b"".join(map(encoded, made)) == b"".join(map(encoded, records(5000)))
    assert made[0] != next(records(5000, day=2))


def test_it_prints_what_a_report_of_no_records_took(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.run(report_speed.application, report_speed.PROGRAM, ["--count", "0", "--rounds", "1"])
    said = capsys.readouterr()
    assert end.value.code == 0, said.err
    with_plots, without = (line.split("\t") for line in said.out.splitlines())
    assert with_plots[:2] == ["this", "with"]
    assert without[:2] == ["this", "without"]
    assert with_plots[5] == without[5]  # nothing is drawn of nothing
    assert with_plots[6] == "1"


@pytest.mark.parametrize(
    "words",
    [
        "",
        "a b",
        "a  ",
        "1 * 2",
        "**b** c",
        "`x`",
        "a\\_b",
        "&amp;",
        "a ~ b",
        "x | y",
        "![a](b)",
        "$x^2$",
    ],
)
def test_words_without_markup_render_as_commonmark_says(words: str) -> None:
    plain = MarkdownIt("commonmark", {"html": True}).enable("table")
    for text in (words, f"# {words}", f"| a | b |\n| - | - |\n| {words} | 1 |\n"):
        assert _html._markdown().render(text) == plain.render(text)
    assert _html.inline(words) == plain.renderInline(words)


def test_the_first_sweeps_are_whole_and_the_rest_say_what_they_lack(tmp_path: Path) -> None:
    sweeps = (row for ranks in (2, 3, 4, 6, 8) for row in sweep(WHOLE, ranks=ranks))
    records = write(tmp_path / "r.jsonl", [GPU, *sweeps])
    with pytest.raises(SystemExit):
        cli.run(build.app, "build", [str(records), "--no-plots", "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.count(": by combination") == 5
    assert page.count("Each combination: intervals") == 3
    assert page.count("A page has the plots, the intervals and the bandwidths of 3 sweeps") == 2


def test_a_checkout_without_reports_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.run(report_speed.application, report_speed.PROGRAM, ["--beside", str(tmp_path)])
    assert end.value.code == 2
    assert "has no reports/build.py" in capsys.readouterr().err
