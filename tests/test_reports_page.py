"""A page as a whole: machines, changes, findings, plots, and no number that is not known."""

import itertools
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports import _page, _plots
from reports._collected import collect
from tests.report_page import Page
from tests.report_sample import (
    CPU,
    GPU,
    US,
    collective,
    kernel,
    predicted,
    whole_run,
    write,
)
from verifyscope.records import Environment, Evidence, Finding, Measurement, Record


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def one_case(*changes: Measurement) -> list[Record]:
    return [GPU, *changes]


def test_one_environment_is_described_without_a_letter(page: Page) -> None:
    page.of(one_case(kernel("own", 1.0)))
    assert "| processor          | AMD EPYC 9355, 64 cores" in page.text
    assert (
        "8 x NVIDIA RTX PRO 6000 (103 GB, capability 12.0, limit 600 W, PCIe 5 x16, ECC on)"
        in page.text
    )
    assert "environments, A" not in page.text


def test_two_environments_are_told_apart_by_what_differs(page: Page) -> None:
    page.of([GPU, CPU, kernel("own", 1.0), kernel("own", 9.0, environment="cpu")])
    shared = page.rows("## Machine")
    assert [row[""] for row in shared] == ["system", "Python"]
    differences = {row[""]: (row["A"], row["B"]) for row in page.rows("They differ in")}
    assert differences["driver"] == ("580.82.07", "–")
    assert differences["setting `NCCL_PROTO`"] == ("`LL`", "–")
    assert differences["commit"] == ("`0123456789ab`", "`0123456789ab` with uncommitted changes")
    assert "system" not in differences


def test_many_environments_are_listed_by_value(page: Page) -> None:
    every = [
        Environment(
            id=f"e{n}",
            created="t",
            command="c",
            system="Linux",
            processor="x",
            cores=1,
            python="3.12",
            versions={"torch": f"2.{n // 3}"},
        )
        for n in range(6)
    ]
    page.of([*every, kernel("own", 1.0, environment="e5")])
    assert page.rows("They differ in") == [
        {"": "version of `torch`", "value": "2.0", "environments": "A, B, C"},
        {"": "version of `torch`", "value": "2.1", "environments": "D, E, F"},
    ]


def test_a_record_of_an_environment_that_is_not_here_is_still_shown(page: Page) -> None:
    page.of([kernel("own", 5.0, environment="lost")])
    assert "Measured on a machine that no record describes." in page.text
    (row,) = page.rows("### `tree_attention`")
    assert row["time (95 %)"].startswith("5.00 us")


def test_a_point_of_two_environments_is_a_change(page: Page) -> None:
    page.of(
        [
            GPU,
            CPU,
            collective(57_344, 100.0, environment="gpu", low_s=99 * US, high_s=101 * US),
            collective(57_344, 155.0, environment="cpu", low_s=154 * US, high_s=156 * US),
            kernel("own", 20.0, low_s=19.95 * US, high_s=20.05 * US),
            kernel("own", 20.0, low_s=19.95 * US, high_s=20.05 * US, environment="cpu"),
            kernel("gone", 20.0),
        ]
    )
    assert "From A to B, 2 points: 1 slower, 1 same." in page.text
    assert page.rows("## What changed between them") == [
        {
            "what": "`all_reduce/gloo`",
            "point": "57344B-bfloat16-out-of-place, 8 ranks",
            "from": "A to B",
            "old": "100 us",
            "new": "155 us",
            "new / old": "1.55 slower",
        }
    ]


def test_findings_stand_by_worth_with_evidence_and_next_action(page: Page) -> None:
    small = Finding(name="b_small", sentence="Small.", confidence="sure")
    large = Finding(
        name="a_large",
        sentence="Large | wide.",
        worth_s=5.3e-3,
        confidence="likely",
        next_action="set NCCL_PROTO=LL",
        evidence=(
            Evidence(file="log.txt", at=7, value="86.1 us"),
            Evidence(file="trace.json", at="AllReduce_LL", value="x"),
            Evidence(file="notes", at=None, value="y"),
        ),
    )
    page.of([GPU, small, large, large])
    section = page.text[page.text.index("## Findings") :]
    assert section.index("### a large") < section.index("### b small")
    assert (
        "- Large \\| wide. (likely, worth 5.30 ms): 86.1 us at `log.txt:7`, "
        "x at `trace.json:AllReduce_LL`, y at `notes`\n\n**Next**: set NCCL_PROTO=LL\n"
    ) in section
    assert "- Small. (sure)\n" in section
    assert page.text.count("Large") == 1


def test_an_id_that_is_met_twice_counts_once(page: Page) -> None:
    twice = kernel("own", 25.0)
    page.of(one_case(twice, twice))
    assert "**1 point measured**" in page.text
    assert "runs" not in page.text


def test_warnings_stand_at_the_top(page: Page) -> None:
    path = write(page.folder / "r.jsonl", whole_run())
    path.write_bytes(path.read_bytes() + b'{"type":"measure')
    _page.write(collect([path]), page.folder, command="c", plots=False)
    top = (page.folder / "report.md").read_text().partition("## ")[0]
    assert "> **Read with care.**\n> - " in top
    assert "the last line is incomplete" in top


def test_the_page_says_how_it_was_made(page: Page) -> None:
    page.of(whole_run())
    assert page.text.startswith("<!-- Made by `python -m reports.build run`. Do not edit")
    assert page.row("## How each number was made", "2026-08-01T10:00:00+00:00") == {
        "when": "2026-08-01T10:00:00+00:00",
        "command": "`pytest suites/ --benchmark-only`",
        "on": "A",
    }
    methods = {row[""]: row["in these records"] for row in page.rows("How kernels were timed")}
    assert methods == {"clock": "cuda-graph", "input sets": "64", "sm mhz": "2430"}


def test_a_method_of_many_values_is_a_range_and_of_few_a_list(page: Page) -> None:
    page.of(
        one_case(
            *(
                kernel(
                    "own",
                    1.0,
                    case=f"c{n}",
                    method={"sets": n, "stop": "width" if n % 2 else "cap"},
                )
                for n in range(1, 9)
            )
        )
    )
    methods = {row[""]: row["in these records"] for row in page.rows("How kernels were timed")}
    assert (methods["sets"], methods["stop"]) == ("1 to 8", "width; cap")


FORBIDDEN = re.compile(r"\b(?:nan|inf|None|True|False)\b|(?<![\d.])0\.00 (?:n|u|m)?s\b")
_sizes = st.one_of(st.none(), st.floats(min_value=0, max_value=1e300), st.just(5e-324))
_seconds = st.one_of(st.none(), st.floats(min_value=0, max_value=1e9), st.just(5e-324))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    times=st.lists(st.floats(min_value=0, max_value=1e9), min_size=1, max_size=4),
    touched=_sizes,
    floor=_seconds,
    low=_seconds,
)
def test_no_number_is_ever_nan_infinite_or_a_zero_that_was_not_measured(
    tmp_path_factory: pytest.TempPathFactory,
    times: list[float],
    touched: float | None,
    floor: float | None,
    low: float | None,
) -> None:
    rest = {"touched_bytes": touched, "floor_s": floor, "low_s": low, "high_s": low}
    rest["flops"] = floor
    lines: list[Record] = [GPU, CPU]
    for number, seconds in enumerate(times):
        kinds = itertools.cycle(("own", "baseline-direct", "baseline-composed"))
        for name, kind in zip("abc", kinds, strict=False):
            one = kernel(name, 1.0, dims={"rows": number + 1}, case=f"t{number}", kind=kind, **rest)
            lines.append(_at(one, seconds))
        lines.append(_at(collective(2**number, 1.0, low_s=low, high_s=low), seconds))
        lines.append(
            _at(collective(2**number, 1.0, environment="gpu", low_s=None, high_s=low), seconds)
        )
        lines.append(_at(predicted("lm_head", 1.0, 3, rows=number + 1), seconds))
        lines.append(_at(kernel("r", 1.0, part="memory_ceiling", op="read", **rest), seconds))
    page = Page(tmp_path_factory.mktemp("page")).of(lines)
    assert not FORBIDDEN.findall(page.text)


def _at(one: Measurement, seconds: float) -> Measurement:
    return msgspec.structs.replace(one, median_s=seconds)


def test_a_whole_run_has_no_forbidden_word(page: Page) -> None:
    assert not FORBIDDEN.findall(page.of(whole_run()).text)


def test_a_plot_has_the_numbers_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, list[_plots.Line] | list[_plots.Bar]] = {}

    def keep(path: Path, lines: list[_plots.Line], **_: object) -> None:
        drawn[path.name] = lines

    for name in ("time_against_bytes", "time_against_tokens", "budget"):
        monkeypatch.setattr(_plots, name, keep)
    path = write(tmp_path / "r.jsonl", whole_run())
    _page.write(collect([path]), tmp_path, command="c", plots=True)
    measured, somebody = drawn["sweep-all-reduce.png"]
    assert isinstance(measured, _plots.Line)
    assert isinstance(somebody, _plots.Line)
    assert (measured.label, measured.source) == ("gloo, CPU, measured, on B", "measured")
    assert (somebody.label, somebody.source) == ("nccl, imported from log.txt", "imported")
    assert list(measured.x) == [8192, 16384, 32768, 57344, *(2**n for n in range(16, 22))]
    assert [x for x, y in zip(measured.x, measured.y, strict=True) if y != y] == [2**21]  # it hung
    assert measured.y[3] == pytest.approx(1000 * US)
    triton = drawn["time-tree-attention.png"][0]
    assert isinstance(triton, _plots.Line)
    assert list(triton.x) == [1, 2, 4, 8]
    assert list(triton.y) == pytest.approx([t * US for t in (24.0, 24.96, 26.88, 30.72)])
    (bar,) = drawn["budget.png"]
    assert isinstance(bar, _plots.Bar)
    assert dict(bar.segments) == pytest.approx({"moe": 3.6e-3, "dense_gemm": 1.83e-3})
    assert bar.floor_s == pytest.approx(5.43e-3)
    assert bar.note == "at least 5.43 ms\nnot known: all_reduce"


def test_names_with_formulas_and_foreign_letters_can_be_drawn(tmp_path: Path) -> None:
    line = _plots.Line(label="$x^{ $ 测试 \\frac", x=[8.0, 64.0], y=[1e-5, 2e-5])
    _plots.time_against_bytes(tmp_path / "a.png", [line, line], title="$\\", marks=[(8.0, "1 row")])
    _plots.time_against_tokens(tmp_path / "b.png", [line], title="_$_")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
