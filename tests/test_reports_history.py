"""`python -m reports.history DIR`: one row over all runs of a machine, and what changed beside."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reports import history
from tests.comparison_sample import rows, run
from tests.report_sample import CPU, GPU, kernel, write
from verifyscope import cli
from verifyscope.records import Environment, Origin

Capture = pytest.CaptureFixture[str]
DAYS = 12


def environment(day: int, **changes: Any) -> Environment:
    return msgspec.structs.replace(
        GPU, id=f"d{day}", created=f"2026-08-{day:02d}T10:00:00+00:00", **changes
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs of 12 days: another commit on day 5 that makes it 12 % faster, a driver on day 9."""
    made = tmp_path / "runs"
    for day in range(1, DAYS + 1):
        here = environment(
            day,
            commit="aaaaaaaaaaaa" if day < 5 else "bbbbbbbbbbbb",
            driver="580.1" if day < 9 else "590.2",
        )
        kernels = {"triton": 1.0 if day < 5 else 0.88, "flashinfer": 1.1}
        found = rows(seed=100_000 * day, kernels=kernels, cases=2, environment=f"d{day}")
        run(made / f"2026-08-{day:02d}-suites", here, found)
    return made


class Told:
    """Runs the command in this process and keeps what it said."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.status, self.lines, self.notes = 0, [""], ""

    def of(self, *words: str | Path) -> "Told":
        with pytest.raises(SystemExit) as end:
            cli.run(history.app, history.PROGRAM, list(map(str, words)))
        assert isinstance(end.value.code, int)
        said = self._capture.readouterr()
        self.status, self.lines, self.notes = end.value.code, said.out.splitlines(), said.err
        return self

    def rows(self, kind: str) -> list[list[str]]:
        split = [line.split("\t") for line in self.lines]
        return [cells[1:] for cells in split if cells[0] == kind]

    @property
    def refused(self) -> str:
        assert (self.status, self.lines) == (2, [])
        (line,) = self.notes.splitlines()
        return line.removeprefix(f"{history.PROGRAM}: ")


@pytest.fixture
def told(capsys: Capture) -> Told:
    return Told(capsys)


def test_without_a_row_all_are_listed_by_the_runs_that_have_them(told: Told, folder: Path) -> None:
    late = rows(seed=1, kernels={"new": 1.0}, cases=1, environment="d20")
    run(folder / "late", environment(20), late)
    told.of(folder)
    found = told.rows("row")
    assert [(name, runs) for name, _, runs, *_ in found] == [
        *(
            (f"tree_attention/{name} case{case}, verify, graph, cold", str(DAYS))
            for name in ("triton", "flashinfer")
            for case in range(2)
        ),
        ("tree_attention/new case0, verify, graph, cold", "1"),
    ]
    assert {machine for _, machine, *_ in found} == {"8 x NVIDIA RTX PRO 6000"}


def test_a_row_has_its_median_in_each_run_and_moves_once(
    told: Told, folder: Path, tmp_path: Path
) -> None:
    told.of(folder, "--row", "triton case1", "--json", tmp_path / "out" / "it.json")
    assert told.status == 0
    points = told.rows("point")
    assert [point[1] for point in points] == [
        f"runs/2026-08-{day:02d}-suites" for day in range(1, DAYS + 1)
    ]
    verdicts = [point[5] for point in points]
    assert verdicts[:1] + verdicts[4:5] == ["-", "faster"]
    assert {*verdicts[1:4], *verdicts[5:]} == {"same"}
    assert points[4][2] == "bbbbbbbbbbbb changed"
    assert [point[2] for point in points].count("bbbbbbbbbbbb") == 7
    assert [(at, point[6]) for at, point in enumerate(points) if point[6] != "-"] == [
        (8, "driver 580.1 to 590.2")
    ]
    sentence = told.lines[0]
    assert "it moved beyond noise once, most on 2026-08-05 (-1" in sentence
    assert sentence.endswith("when this changed, too: commit bbbbbbbbbbbb")
    said = json.loads((tmp_path / "out" / "it.json").read_text())
    assert said["sentence"] == sentence
    assert [point["verdict"] for point in said["points"]] == [None, *verdicts[1:]]
    assert said["points"][4]["ratio_to_before"] == pytest.approx(0.88, rel=0.02)
    assert said["points"][4]["commit_changed"] is True
    assert said["points"][8]["changed"] == ["driver 580.1 to 590.2"]


def test_a_row_that_never_moved_says_so(told: Told, folder: Path) -> None:
    told.of(folder, "--row", "flashinfer case0")
    assert told.lines[0].endswith("no run moved it beyond noise")


def test_words_that_name_several_rows_or_none_are_asked_for_again(told: Told, folder: Path) -> None:
    told.of(folder, "--row", "tree_attention")
    assert told.refused.startswith("4 rows hold all words of --row 'tree_attention': ")
    assert "tree_attention/flashinfer case0, verify, graph, cold" in told.refused
    told.of(folder, "--row", "moe")
    assert told.refused == (
        "no row holds all words of --row 'moe'; name one of those that the command lists "
        "without --row"
    )
    told.of(folder, "--row", "triton case1", "--machine", "H200")
    assert told.refused.startswith("no row holds")


def test_each_machine_has_a_history_of_its_own(told: Told, folder: Path) -> None:
    """The one of most runs is shown; of the other only that it is there."""
    other = msgspec.structs.replace(CPU, id="other", created="2026-08-30T10:00:00+00:00")
    run(
        folder / "elsewhere",
        other,
        rows(seed=5, kernels={"triton": 9.0}, cases=2, environment="other"),
    )
    told.of(folder, "--row", "triton case1")
    assert len(told.rows("point")) == DAYS
    assert "measured elsewhere, too (--machine): Laptop, 8 cores, no GPU" in told.notes
    told.of(folder, "--row", "triton case1", "--machine", "Laptop")
    assert len(told.rows("point")) == 1
    assert told.lines[0].endswith("in the only run")


def test_what_cannot_be_read_is_left_out_with_a_warning(told: Told, folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "records.jsonl").write_text("garbage\n")
    (folder / "notes.txt").write_text("mine")
    (folder / "empty").mkdir()
    told.of(folder, "--row", "triton case1")
    assert len(told.rows("point")) == DAYS
    (line,) = [line for line in told.notes.splitlines() if "left out" in line]
    assert "broken/records.jsonl:1: not a record" in line


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "untimed"])
def test_a_folder_without_times_is_one_line(told: Told, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "it"
    if kind == "file":
        place.write_text("x")
    elif kind != "missing":
        place.mkdir()
    if kind == "untimed":
        write(place / "a.jsonl", [GPU, kernel("own", None)])
    told.of(place)
    assert ("is no folder" if kind in ("missing", "file") else "holds no row with a time") in (
        told.refused
    )


def test_imported_rows_have_no_machine_and_a_single_row_needs_no_name(
    told: Told, tmp_path: Path
) -> None:
    for day, name in ((2, "b.log"), (1, "a.log")):
        row = kernel("x", 20.0 + day, source="imported", origin=Origin(name, 1), id=name)
        write(tmp_path / "runs" / f"{name}.jsonl", [environment(day), row])
    told.of(tmp_path / "runs")
    assert told.lines[0].startswith("tree_attention/x t4-l8k, verify, graph, cold on imported, its")
    assert [point[3] for point in told.rows("point")] == [
        "21.0 us (20.8–21.2)",
        "22.0 us (21.8–22.2)",
    ]


def test_the_plot_is_a_picture_that_is_the_same_for_the_same_runs(
    told: Told, folder: Path, tmp_path: Path
) -> None:
    words = (folder, "--row", "triton case1", "--plot")
    told.of(*words, tmp_path / "one" / "a.png")
    told.of(*words, tmp_path / "b.png")
    one, two = (tmp_path / "one" / "a.png").read_bytes(), (tmp_path / "b.png").read_bytes()
    assert one.startswith(b"\x89PNG")
    assert one == two
