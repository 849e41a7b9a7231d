"""A sweep of combinations: what to take, what it saves, timing modes, requested and effective."""

import re
from pathlib import Path

import msgspec
import pytest

from reports import build
from tests.report_page import Page
from tests.report_sample import CPU, GPU, collective, predicted, write
from tests.sweep_rows import LL, MODES, SIZES, SLOW, US, line, sweep, whole_sweep
from verifyscope import cli
from verifyscope.records import Measurement

TITLE = "### all_reduce, 8 ranks, bfloat16: by combination"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(tmp_path_factory.mktemp("whole")).of([GPU, *whole_sweep()])


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def test_what_to_take_stands_first_by_range_with_the_times_at_both_ends(whole: Page) -> None:
    part = whole.text[whole.text.index(TITLE) :]
    lines = [one for one in part.splitlines() if one.startswith("- ")]
    assert lines[0].startswith("- From 8,192 to 16,384 bytes take **`nccl tree/ll`**: ")
    assert lines[1].startswith("- From 28,672 to 524,288 bytes take **`nccl ring/ll`**: ")
    assert lines[2].startswith("- From 1,048,576 to 8,388,608 bytes take **`nccl ring/simple`**: ")
    assert lines[3].startswith("- **Unsafe**: `nccl ring/ll128` is faster from ")
    assert lines[4].startswith("- `torch one-shot` is faster up to 16,384 bytes and slower from ")
    assert re.search(r"2[0-3]\.\d us instead of 4[6-9]\.\d us at 28,672", lines[1])


def test_the_table_has_every_combination_its_status_and_in_bold_what_to_take(whole: Page) -> None:
    (row,) = [one for one in whole.rows("Timed as graph x 122, in place") if one["rows"] == "4"]
    assert row["bytes"] == "57,344"
    assert re.fullmatch(r"\*\*2\d\.\d us\*\*", row["`nccl ring/ll`"])
    assert re.fullmatch(r"(49|50|51)\.\d us", row["`nccl`"])
    assert row["`nccl tree/simple`"] == "**ignored**"
    assert "`nccl ring/ll128` unsafe" in row
    assert "flags" not in row
    last = whole.rows("Timed as graph x 122, in place")[-1]
    assert (last["bytes"], last["`nccl tree/simple`"]) == ("8,388,608", "**hang**")


def test_the_saving_of_a_pass_is_its_calls_times_the_difference(whole: Page) -> None:
    (at_4,) = [one for one in whole.rows("**What a pass would save.**") if one["rows"] == "4"]
    assert (at_4["bytes a call"], at_4["calls"], at_4["with"]) == (
        "57,344",
        "122",
        "`nccl ring/ll`",
    )
    saved = float(at_4["saves (95 %)"].split()[0])
    assert saved == pytest.approx(122e3 * (SLOW(57_344) - LL(57_344)), rel=0.05)
    assert at_4["of it"] == "52 %"
    assert re.search(
        r"\*\*6\.\d+ ms\*\* of a pass of 4 rows are all-reduces at 5\d\.\d us each \(measured, "
        r"all_reduce, 8 ranks, bfloat16\), where `nccl ring/ll` takes \*\*2\d\.\d us\*\*;",
        whole.text,
    )
    (worth,) = whole.rows("No budget from floor")
    assert worth["worth most, each alone"] == "all-reduces by `nccl ring/ll`"
    assert worth["saves"] == at_4["saves (95 %)"]
    assert worth["known how"] == "measured, 4 rows"


def test_what_to_export_is_a_block_and_what_it_costs_elsewhere_stands_below(whole: Page) -> None:
    assert "```sh\nexport NCCL_ALGO=Ring\nexport NCCL_PROTO=LL\n```" in whole.text
    assert (
        "It is slower than `nccl` at 1,048,576 to 8,388,608 bytes: a prefill may lose."
        in whole.text
    )


def test_each_call_stands_in_its_four_timing_modes(whole: Page) -> None:
    found = whole.rows("**Ways to time a call.**")
    assert list(found[0]) == [
        "bytes",
        "rows",
        "combination",
        "eager",
        "eager x 122",
        "graph",
        "graph x 122",
    ]
    assert [one["combination"] for one in found] == ["`nccl`", "`nccl ring/ll`"] * 6
    at_4 = next(
        one for one in found if (one["rows"], one["combination"]) == ("4", "`nccl ring/ll`")
    )
    for launch, depth, more_us in MODES:
        cell = at_4[launch if depth == 1 else f"{launch} x {depth}"]
        assert float(cell.split()[0]) == pytest.approx(LL(57_344) / US + more_us, rel=0.05)


def test_what_was_asked_for_stands_against_what_was_in_effect_and_what_ran(whole: Page) -> None:
    found = whole.rows("**Requested against effective.**")
    by_status = {(one["combination"], one["status"]): one for one in found}
    ok = by_status["`nccl ring/ll`", "ok"]
    assert (ok["asked for"], ok["in effect"]) == ("`NCCL_ALGO=Ring`, `NCCL_PROTO=LL`", "all of it")
    assert (ok["ran"], ok["rows"]) == ("ring/ll x 4", str(len(SIZES) * 8))
    assert ok["where"] == "8,192 to 8,388,608 B; eager, eager x 122, graph, graph x 122"
    ignored = by_status["`nccl tree/simple`", "**ignored**"]
    assert ignored["in effect"] == "`NCCL_PROTO=LL` instead of `Simple`; without `NCCL_ALGO`"
    assert ignored["reason or proof, of the first"] == "asked for tree/simple, NCCL took ring/ll"
    assert by_status["`nccl nvls/simple`", "unsupported"]["where"] == "every size"
    assert by_status["`nccl`", "ok"]["asked for"] == "nothing"


def test_settings_that_nobody_asked_for_are_named(page: Page) -> None:
    beside = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "8388608"}
    beside |= {"algorithm": "ring", "protocol": "ll", "plugin": "tuner nccl_ofi_tuner (v3)"}
    made = [
        msgspec.structs.replace(one, effective=beside) if " " in one.implementation else one
        for one in sweep({"nccl": SLOW, "nccl ring/ll": LL})
    ]
    page.of([GPU, *made])
    row = page.row("**Requested against effective.**", "`nccl ring/ll`")
    assert row["in effect"] == (
        "`NCCL_BUFFSIZE=8388608` beside it; plugin `tuner nccl_ofi_tuner (v3)`"
    )
    assert row["ran"] == "ring/ll"


def test_what_nccl_believes_is_in_italics_beside_what_was_measured(whole: Page) -> None:
    assert "(NCCL 2.29.7, ring 2 x 24 GB/s)" in whole.text
    row = whole.row("**NCCL believes, and what was measured.**", "57,344")
    assert (row["NCCL would take"], row["it ran"]) == ("`ring/ll`", "ring/simple x 4")
    assert row["believes"] == "*24.8 us*"
    assert float(row["measured / believed"]) == pytest.approx(SLOW(57_344) / 24.8e-6, rel=0.03)
    assert row["fastest"] == "`nccl ring/ll`"
    by_name = whole.row("Measured over believed, by combination", "57,344")
    assert float(by_name["`nccl ring/ll`"]) == pytest.approx(LL(57_344) / 24.8e-6, rel=0.03)


def test_without_a_prediction_nothing_is_believed(page: Page) -> None:
    page.of([GPU, *sweep({"nccl": SLOW, "nccl ring/ll": LL})])
    assert "NCCL believes" not in page.text
    assert "Ways to time" not in page.text


def test_a_failed_graph_search_says_that_its_times_mean_nothing(page: Page) -> None:
    made = [
        msgspec.structs.replace(one, flags=(*one.flags, "graph-simple-order"))
        if one.source == "predicted"
        else one
        for one in whole_sweep()
    ]
    page.of([GPU, *made])
    assert "**its search for a graph failed: its times mean nothing, its choice does**" in page.text


def test_a_sweep_without_a_winner_says_why_and_names_no_export(page: Page) -> None:
    page.of([GPU, *sweep({"nccl": LL, "nccl ring/simple": SLOW}, sizes=SIZES[:8])])
    assert "- Nothing is recommended: no combination beats the default beyond noise" in page.text
    assert "```sh" not in page.text
    assert "each (measured, all_reduce, 8 ranks, bfloat16), and no combination beats that" in (
        page.text
    )
    few = Page(page.folder / "few").of([GPU, *sweep({"nccl": SLOW, "nccl ring/ll": LL}, starts=1)])
    assert "1 fresh starts say nothing of their spread; 3 are needed" in few.text


def test_of_many_combinations_the_fastest_have_a_column_and_the_others_are_counted(
    page: Page,
) -> None:
    formulas = {"nccl": SLOW, "nccl ring/ll": LL}
    formulas |= {f"nccl ring/ll channels={at}": line(30 + at, 14) for at in range(1, 21)}
    page.of([GPU, *sweep(formulas, sizes=SIZES[:4])])
    (row, *_) = page.rows("Timed as graph x 122, in place")
    shown = [name for name in row if name.startswith("`nccl")]
    fastest = [f"`nccl ring/ll channels={at}`" for at in range(1, 9)]
    assert shown == ["`nccl`", "`nccl ring/ll`", *fastest]
    assert "12 combinations are left out here; all are in the records." in page.text


def test_a_mode_with_another_winner_is_named(page: Page) -> None:
    other = {"nccl": line(90, 25), "nccl ring/ll": line(90, 25)}
    page.of(
        [GPU, *sweep({"nccl": SLOW, "nccl ring/ll": LL}), *sweep(other, launch="eager", depth=1)]
    )
    assert "- Timed as eager, in place: nothing beats the default beyond noise." in page.text


def test_details_are_folded_and_of_the_mode_that_counts(whole: Page) -> None:
    part = whole.text[whole.text.index("<summary>Each combination") :]
    part = part[: part.index("</details>")]
    headings = re.findall(r"^\*\*(all_reduce.*)\*\*$", part, re.MULTILINE)
    assert headings[0] == "all_reduce, nccl, 8 ranks, bfloat16, sum, graph x 122, measured"
    assert headings[1] == "all_reduce, nccl ring/ll, 8 ranks, bfloat16, sum, graph x 122, measured"
    assert len(headings) == 6
    assert "in-place busbw" in part


def test_plain_series_stay_beside_a_sweep_of_combinations(page: Page) -> None:
    plain = collective(57_344, 100.0, environment="cpu")
    page.of([GPU, CPU, *sweep({"nccl": SLOW, "nccl ring/ll": LL}), plain])
    headings = re.findall(r"^### (all_reduce.*)$", page.text, re.MULTILINE)
    assert headings == [
        "all_reduce, 8 ranks, bfloat16, on A: by combination",
        "all_reduce, gloo, 8 ranks, bfloat16, CPU, measured, on B",
    ]


def test_timing_modes_of_a_plain_series_are_series_of_their_own(page: Page) -> None:
    page.of(
        [
            CPU,
            *(
                collective(1024, us, launch=launch, depth=depth)
                for us, launch, depth in (
                    (40.0, "eager", 1),
                    (30.0, "eager", 122),
                    (25.0, "graph", 1),
                    (20.0, "graph", 122),
                )
            ),
        ]
    )
    headings = re.findall(
        r"^### all_reduce, gloo, 8 ranks, bfloat16, CPU, (.*)$", page.text, re.MULTILINE
    )
    assert headings == [
        "measured",
        "eager x 122, measured",
        "graph, measured",
        "graph x 122, measured",
    ]


def test_a_row_that_was_measured_again_counts_as_it_was_last(page: Page) -> None:
    first = collective(57_344, None, id="same")
    page.of([CPU, first, collective(57_344, 50.0, id="same")])
    assert page.rows("### all_reduce")[0]["time"] == "50.0 us"
    assert "did not come back" not in page.text


def test_what_a_sweep_took_is_a_sentence_and_no_kernel(page: Page) -> None:
    def host(op: str, case: str, seconds: float, **more: object) -> Measurement:
        made: dict[str, object] = {"dims": {}, "method": {}, "median_s": seconds} | more
        return collective(1, 1.0, op=op, part="host", case=case, **made)

    page.of(
        [
            CPU,
            collective(57_344, 50.0),
            host("process_start", "imports", 5.5),
            host("process_start", "process-start", 0.4, implementation="gloo"),
            host("process_start", "process-start", 0.9, implementation="gloo ring"),
            host("sweep", "measuring", 60.0, method={"measured_share": 0.62}),
        ]
    )
    assert "Importing torch took 5.50 s, once." in page.text
    assert "The sweep took 60.0 s without process starts, 62 % of it in samples." in page.text
    assert "Joining the ranks took 400 ms to 900 ms, by combination" in page.text
    assert "process\\_start" not in page.text
    assert "## Kernels" not in page.text


def test_the_plots_are_those_that_the_page_shows(tmp_path: Path) -> None:
    write(tmp_path / "run" / "records.jsonl", [GPU, *whole_sweep(), predicted("lm_head", 180.0, 1)])
    with pytest.raises(SystemExit):
        cli.run(build.app, "python -m reports.build", [str(tmp_path / "run")])
    folder = tmp_path / "run" / "report"
    shown = re.findall(r"\]\((.*\.png)\)", (folder / "report.md").read_text())
    assert shown == [
        "waterfall.png",
        "budget.png",
        "combinations-all-reduce-bfloat16-8.png",
        "combinations-all-reduce-bfloat16-8-modes.png",
    ]
    assert {one.name for one in folder.glob("*.png")} == set(shown)
