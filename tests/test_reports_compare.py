"""`python -m reports.compare A B`: what changed, where, beside what; silent where nothing did."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.compared_runs import KERNELS, Capture, Compared
from tests.comparison_sample import TODAY, YESTERDAY, noisy, rows, run, sweep, timed
from tests.html_read import Read
from tests.report_sample import CPU, GPU, US, collective, kernel, write
from verifyscope.records import Finding, Measurement, Record, encoded

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def compared(tmp_path: Path, capsys: Capture) -> Compared:
    return Compared(tmp_path, capsys)


def passes(
    environment: str, pass_ms: float, reduce_ms: float, *, seed: int
) -> list[tuple[Measurement, Any]]:
    """Return a measured pass of 3 rows and its parts, as the stub records them."""
    dims = {"model": "kimi-k2.5", "tp": 8, "rows": 3, "requests": 1, "context": 8192}
    known = (
        ("forward", "forward", pass_ms),
        ("all_reduce", "forward_part", reduce_ms),
        ("routed_experts", "forward_part", 6.1),
        ("attention", "forward_part", 3.0),
    )
    return [
        timed(
            kernel(
                "stub",
                1.0,
                id=f"{environment}-{part}",
                part=part,
                op=op,
                case="kimi-k2.5-tp8-rows3",
                dims=dims,
                depth=None,
                environment=environment,
            ),
            noisy(milliseconds / 1e3, seed=seed + at, noise=0.003, tail=0),
        )
        for at, (part, op, milliseconds) in enumerate(known)
    ]


def test_19_ms_yesterday_29_ms_today(compared: Compared, tmp_path: Path) -> None:
    """The pass, where its 10.45 ms went, and the one difference that touches what moved."""
    old = run(
        tmp_path / "old",
        YESTERDAY,
        rows(seed=1, kernels=KERNELS, environment="yesterday")
        + passes("yesterday", 19.04, 4.0, seed=1),
        sweep(seed=5, environment="yesterday"),
    )
    new = run(
        tmp_path / "new",
        TODAY,
        rows(seed=2, kernels=KERNELS, environment="today") + passes("today", 29.49, 14.2, seed=9),
        sweep(seed=6, factor=3.4, environment="today"),
    )
    compared.of(old, new)
    said = re.sub(r"95 %: \+\d\d % to \+\d\d %", "95 %: ...", compared.sentence)
    said = re.sub(r"(3\d) same(, \d unsure)?", "all others same or unsure", said)
    assert said == (
        "A verify of 1 request, 3 rows: 19.0 ms in A, 29.5 ms in B, 10.5 ms longer (+55 %; 95 %: "
        "...): slower. Of 42 rows in both, 10 slower, all others same or unsure. Of the 10.5 ms of "
        "a pass of stub, kimi-k2.5-tp8-rows3, graph, verify, 10.2 ms (97 %) are all_reduce. A "
        "hypothesis: setting NCCL_PROTO, LL in A and not set in B, could explain 10 of 10 rows "
        "that moved."
    )
    assert compared.text.index("19.0 ms in A") < compared.text.index("## Where the change is")
    parts = compared.split()
    assert parts["all_reduce"] == pytest.approx(10.2e-3, rel=0.01)
    assert set(parts) == {"all_reduce", "routed_experts", "attention", "unexplained"}
    whole = compared.data["splits"][0]["whole"]
    assert sum(parts.values()) == pytest.approx(whole["change_s"], abs=1e-12)
    order = [(one["name"], round(one["fits"], 2)) for one in compared.data["differences"]]
    assert [name for name, _ in order] == ["setting NCCL_PROTO", "driver", "commit"]
    assert order[0][1] == 1.0
    assert order[1][1] < 0.3
    assert "Hypotheses, never causes" in compared.text


def test_two_runs_of_one_configuration_move_nothing(compared: Compared, tmp_path: Path) -> None:
    old, new = (
        run(
            tmp_path / name,
            environment,
            rows(seed=seed, kernels=KERNELS, environment=name, cases=30),
            sweep(seed=seed, environment=name),
        )
        for name, environment, seed in (("yesterday", YESTERDAY, 1), ("today", TODAY, 500_000))
    )
    compared.of(old, new, "--fail-on", "slower:3%", "--fail-on", "faster", "--fail-on", "lost")
    assert compared.sentence.startswith("Nothing moved beyond noise. Of 98 rows in both, ")
    assert compared.sentence.endswith("3 recorded differences beside it moved nothing.")
    assert "could explain" not in compared.sentence


def test_3_percent_in_one_kernel_is_found_and_fails(compared: Compared, tmp_path: Path) -> None:
    old = run(tmp_path / "a", GPU, rows(seed=1, kernels=KERNELS))
    new = run(tmp_path / "b", GPU, rows(seed=777, kernels=KERNELS | {"cupy": 1.3 * 1.03}))
    compared.of(old, new, "--fail-on", "slower:2%")
    assert compared.status == 1
    assert re.search(
        r"--fail-on: tree_attention/cupy case\d is \d\.\d % slower and", compared.notes
    )
    assert compared.verdicts["cupy"].count("slower") >= 8
    assert {*compared.verdicts["triton"], *compared.verdicts["flashinfer"]} <= {"same", "unsure"}
    compared.of(old, new, "--fail-on", "slower:10%", "--fail-on", "faster:3%")
    assert compared.status == 0
    compared.of(new, old)
    assert compared.verdicts["cupy"].count("faster") >= 8


def test_a_single_number_is_as_noisy_as_the_samples_of_other_rows(
    compared: Compared, tmp_path: Path
) -> None:
    """30 % more is beyond 5 %, but not where single samples of other rows differ by 30 %."""
    for noise, expected in ((0.01, "slower"), (0.3, "unsure")):
        sides = []
        for name, median_us, seed in (("a", 20.0, 1), ("b", 26.0, 2)):
            single = kernel("once", median_us, id=f"{name}-once", count=1, low_s=None, high_s=None)
            others = rows(seed=seed, kernels={"often": 1.0}, noise=noise)
            sides.append(run(tmp_path / f"{name}{noise}", GPU, others, [single]))
        compared.of(sides[0], sides[1])
        assert compared.verdicts["once"] == [expected]
        assert set(compared.verdicts["often"]) <= {"same", "unsure"}


def test_repeats_of_a_row_are_starts_of_it(compared: Compared, tmp_path: Path) -> None:
    def several(*medians_us: float) -> list[Record]:
        return [GPU, *(kernel("own", us, id=f"r{us}") for us in medians_us)]

    old = write(tmp_path / "a.jsonl", several(20.0, 24.0, 28.0))
    new = write(tmp_path / "b.jsonl", several(21.0, 26.0, 30.0))
    compared.of(old, new)
    (row,) = compared.data["rows"]
    assert (row["median_a_s"], row["median_s"]) == pytest.approx((24 * US, 26 * US))
    assert (row["change"]["spread_from"], row["change"]["verdict"]) == ("starts", "unsure")


def test_a_row_that_two_machines_measured_is_of_the_one_of_most_rows(
    compared: Compared, tmp_path: Path
) -> None:
    h200 = msgspec.structs.replace(
        GPU, id="h200", gpus=tuple(msgspec.structs.replace(g, name="NVIDIA H200") for g in GPU.gpus)
    )
    mixed: list[Record] = [GPU, kernel("own", 24.0), kernel("sdpa", 30.0)]
    mixed += [h200, kernel("own", 8.0, environment="h200")]
    old = write(tmp_path / "a.jsonl", mixed)
    new = write(tmp_path / "b.jsonl", [GPU, kernel("own", 24.0), kernel("sdpa", 30.0)])
    compared.of(old, new)
    assert [row["median_a_s"] for row in compared.data["rows"]] == pytest.approx([24e-6, 30e-6])
    assert "holds rows of several machines: 1 that another measured, too" in compared.notes


def test_a_run_that_lost_every_time_fails_on_lost(compared: Compared, tmp_path: Path) -> None:
    gone = kernel("own", None, status="void", reason="above the ceiling")
    old = write(tmp_path / "a.jsonl", [GPU, kernel("own", 9.0)])
    new = write(tmp_path / "b.jsonl", [GPU, gone])
    compared.of(old, new, "--fail-on", "lost")
    assert compared.status == 1
    assert "rows of A without a time in B: 1" in compared.notes


def test_what_one_run_alone_has_is_listed_with_the_reason(
    compared: Compared, tmp_path: Path
) -> None:
    gone = kernel("sdpa", None, status="failed", reason="disagrees with the reference")
    old = write(tmp_path / "a.jsonl", [GPU, kernel("own", 9.0), kernel("sdpa", 9.0)])
    new = write(tmp_path / "b.jsonl", [GPU, kernel("own", 9.0), gone, collective(8192, 9.0)])
    compared.of(old, new)
    assert "1 row of A has no time in B." in compared.sentence
    assert "A time in A, and not in B: 1 row." in compared.text
    assert re.search(
        r"`tree_attention/sdpa` .* 9\.00 us \| failed +\| disagrees with", compared.text
    )
    assert "Only in B, 1 row: `all_reduce/gloo` (1)." in compared.text
    compared.of(old, new, "--fail-on", "lost")
    assert compared.status == 1
    assert "rows of A without a time in B: 1" in compared.notes
    compared.of(new, old, "--fail-on", "slower:3%")
    assert compared.status == 0


def test_findings_of_one_run_alone_are_told(compared: Compared, tmp_path: Path) -> None:
    same = Finding(name="both", sentence="Both say so.")
    fresh = Finding(name="graph-off", sentence="The graph is off", next_action="turn it on")
    old = write(tmp_path / "a.jsonl", [GPU, kernel("own", 9.0), same])
    new = write(tmp_path / "b.jsonl", [GPU, kernel("own", 9.0), same, fresh])
    compared.of(old, new)
    assert "- `graph-off` (hint): The graph is off. Next: turn it on." in compared.text
    assert "Both say so" not in compared.text


NASTY = '<script>alert("x")</script> | *bold* ![i](http://h/x.png) [l](javascript:1) `c`'


def test_text_of_records_shows_as_text_in_markdown_and_html(
    compared: Compared, tmp_path: Path
) -> None:
    def made(seconds: float) -> list[Record]:
        environment = msgspec.structs.replace(GPU, settings={"NCCL_PROTO": NASTY + str(seconds)})
        return [
            environment,
            kernel(NASTY, seconds, op=NASTY, case=NASTY),
            Finding(name=NASTY + str(seconds), sentence=NASTY, next_action=NASTY),
        ]

    old, new = (write(tmp_path / f"{n}.jsonl", made(n)) for n in (9.0, 99.0))
    page = tmp_path / "page.html"
    compared.of(old, new, "--html", str(page))
    html = page.read_text()
    read = Read(html)
    assert len(read.of("script")) == 1
    assert "alert" not in html.rpartition("<script>")[2]
    assert all((one["src"] or "").startswith("data:image/png;") for one in read.of("img"))
    assert not [name for _, attrs in read.elements for name in attrs if name.startswith("on")]
    assert "<em>bold" not in html
    assert all((one.get("href") or "#").startswith("#") for one in read.of("a"))
    assert '<script>alert("x")</script>' in read.text
    assert not re.search(r"(?<!\\)<script", compared.text)


def test_the_page_loads_nothing_and_holds_every_table(compared: Compared, tmp_path: Path) -> None:
    old = run(tmp_path / "a", GPU, rows(seed=1, kernels=KERNELS))
    new = run(tmp_path / "b", GPU, rows(seed=2, kernels=KERNELS))
    compared.of(old, new, "--html", str(tmp_path / "page.html"), "--out", str(tmp_path / "p.md"))
    html, markdown = (tmp_path / "page.html").read_text(), (tmp_path / "p.md").read_text()
    assert compared.text == f"{compared.sentence}\n"
    read = Read(html)
    assert all((one.get("href") or "#").startswith("#") for one in read.of("a"))
    assert all((one["src"] or "").startswith("data:image/png;") for one in read.of("img"))
    assert len(read.of("img")) == 2
    assert "default-src 'none'" in html
    # Beside those of the Markdown, the rows that did not move.
    tables = len(re.findall(r"^\| -", markdown, re.MULTILINE))
    assert len(read.of("table")) == tables + 1 >= 4
    assert "30 rows that did not move" in read.text
    assert html.startswith("<!doctype html>")


NEWER = encoded(GPU).replace(b'"schema":1', b'"schema":7')


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist; give a records file or the folder of a run"),
        (b"", "holds no records; give a records file or the folder of a run"),
        (b"\x00\x01", ":1: not a record"),
        (NEWER, ":1: record schema 7, this version has 1"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line(
    compared: Compared, tmp_path: Path, content: bytes | None, said: str
) -> None:
    good, bad = write(tmp_path / "good.jsonl", [GPU, kernel("own", 1.0)]), tmp_path / "bad.jsonl"
    if content is not None:
        bad.write_bytes(content)
    assert said in compared.of(good, bad).refused
    assert said in compared.of(bad, good).refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fail-on", "worse"], "--fail-on 'worse' is none of slower:3%, faster:3%, lost"),
        (["--fail-on", "slower:3"], "--fail-on '3' is no percentage of 0.1% to 100%"),
        (["--fail-on", "slower:1%"], "--fail-on slower:1% is below --same-within 2%"),
        (["--same-within", "0%"], "--same-within '0%' is no percentage"),
        (["--fail-on", "slower:3%"], "--fail-on has no row to look at: A and B timed none"),
    ],
)
def test_a_wrong_question_is_one_line(
    compared: Compared, tmp_path: Path, words: Sequence[str], said: str
) -> None:
    old = write(tmp_path / "a.jsonl", [GPU, kernel("own", 1.0)])
    new = write(tmp_path / "b.jsonl", [GPU, kernel("other", 1.0)])
    compared.of(old, new, *words)
    assert compared.status == 2
    assert said in compared.notes.splitlines()[-1]


def test_runs_without_a_row_in_common_say_so_and_list_what_they_have(
    compared: Compared, tmp_path: Path
) -> None:
    old = write(tmp_path / "a.jsonl", [GPU, kernel("own", 1.0)])
    new = write(tmp_path / "b.jsonl", [CPU, collective(8192, 1.0)])
    compared.of(old, new)
    assert compared.sentence == (
        "A and B have no row in common that both timed: nothing can be compared."
    )
    assert "Only in A, 1 row: `tree_attention/own` (1)." in compared.text
    empty = write(tmp_path / "c.jsonl", [GPU])
    assert "no row in common" in compared.of(empty, empty).sentence
    assert "A and B are both" in compared.notes


def test_it_runs_as_a_module_and_a_cut_off_run_is_a_warning(tmp_path: Path) -> None:
    old = write(tmp_path / "a.jsonl", [GPU, kernel("own", 1.0)])
    new = write(tmp_path / "b.jsonl", [GPU, kernel("own", 1.0)])
    new.write_bytes(new.read_bytes() + b'{"type":"measu')
    done = subprocess.run(
        [sys.executable, "-m", "reports.compare", old, new],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0
    assert "the last line is incomplete" in done.stderr
    assert done.stdout.startswith("<!-- Made by `python -m reports.compare a.jsonl b.jsonl`.")
