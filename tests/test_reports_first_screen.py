"""The first screen: of one system, a waterfall whose lines add up, actions with what they give."""

import re
from pathlib import Path

import msgspec
import pytest

from reports import _budget, _page, _subject, _waterfall, _waterfall_view
from reports._collected import Collected, collect
from reports._first_words import first_words
from reports._steps import Waterfall
from reports._subject import Subject
from tests import chromium
from tests.html_read import Read
from tests.report_page import Page
from tests.report_sample import CPU, GPU, kernel, predicted, whole_run, write
from verifyscope import passes
from verifyscope.predictions import EXCESS, PUBLIC, TIMELINE, WHAT_IF, WHOLE
from verifyscope.records import Measurement, Origin, Record, Value


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def part(name: str, us: float | None, calls: int, **changes: object) -> Measurement:
    one = predicted(name, us, calls)
    method: dict[str, Value] = {**one.method, "prediction": "p"}
    return msgspec.structs.replace(one, method=method, **changes)


def public(name: str, us: float, calls: int) -> Measurement:
    return part(name, us, calls, implementation=PUBLIC, floor_s=None, touched_bytes=None)


def whole(op: str, name: str, ms: float, *, method: dict[str, Value], **dims: Value) -> Measurement:
    one = predicted(WHOLE, ms * 1e3, 1, **dims)
    told: dict[str, Value] = {"prediction": "p", **method}
    return msgspec.structs.replace(one, op=op, implementation=name, method=told, floor_s=None)


def a_prediction() -> list[Record]:
    """Return a pass: floors 3.6 + 0.366 ms, attention 3.05, all-reduces 4.026, idle 0.324 ms."""
    eager = whole(TIMELINE, "eager", 11.0, method={}, idle_s=0.324e-3)
    now: dict[str, Value] = {
        "now": "predicted eager",
        "plain_s": 0.010,
        "plain": "given by --plain-ms",
    }
    return [
        CPU,
        part("routed_experts", 60.0, 60),
        part("attention", 6.0, 61),
        part("all_reduce", None, 122),
        public("attention", 50.0, 61),
        public("all_reduce", 33.0, 122),
        msgspec.structs.replace(eager, launch="eager"),
        whole(WHAT_IF, "now", 11.0, method=now, **_worth(0, 11.0, 4)),
        whole(WHAT_IF, "protocol", 10.0, method={**now, "how": "25.0 us: x"}, **_worth(1, 10.0, 4)),
        whole(WHAT_IF, "fewer rows", 10.5, method=now, **_worth(2, 10.5, 3)),
    ]


def _worth(number: int, ms: float, most: int) -> dict[str, Value]:
    return {
        "number": number,
        "alone_s": ms / 1e3,
        "alone_least_tokens_per_s": 1e3 / ms,
        "alone_most_tokens_per_s": most * 1e3 / ms,
    }


def held(observed_ms: float) -> Measurement:
    method: dict[str, Value] = {"observed": "given by --observed-ms"}
    dims: dict[str, Value] = {"observed_s": observed_ms / 1e3, "against": "prediction"}
    return whole(EXCESS, "all-reduces", 0.1, method=method, **dims)


def a_log(ms: float, **changes: object) -> Measurement:
    one = kernel("component table", ms * 1e3, op="verify", part="forward", case="Target verify")
    more = {"source": "imported", "origin": Origin("verify.log", 1), "dims": {}, **changes}
    return msgspec.structs.replace(one, **more)


def measured(launch: str, ms: float, **changes: object) -> Measurement:
    """Return a whole pass of the model that is predicted, on the GPUs that are named there."""
    dims: dict[str, Value] = {
        "model": "kimi-k2.5", "tp": 8, "rows": 4, "requests": 1, "context": 8192,
    }  # fmt: skip
    one = kernel("stub", ms * 1e3, op=passes.FORWARD, part="forward", launch=launch, case="kimi")
    more = {"dims": dims, "method": {"pass": "1"}, **changes}
    return msgspec.structs.replace(one, **more)


SERVER = msgspec.structs.replace(
    GPU,
    gpus=tuple(
        msgspec.structs.replace(gpu, name="NVIDIA RTX PRO 6000 Blackwell Server Edition")
        for gpu in GPU.gpus
    ),
)
SHRUNK: dict[str, Value] = {"model": "kimi-k2.5-shrunk", "rows": 4, "shrunk": True}


def stub(ms: float) -> Measurement:
    return measured("eager", ms, dims=SHRUNK, environment="cpu")


def found(folder: Path, lines: list[Record]) -> tuple[Subject, Collected]:
    collected = collect([write(folder / "records.jsonl", lines)])
    return _subject.subject(collected, _budget.passes(collected.predicted)), collected


def fall(folder: Path, lines: list[Record]) -> Waterfall:
    one = _waterfall.waterfall(*found(folder, lines))
    assert one is not None
    return one


def times(one: Waterfall) -> dict[str, float]:
    return {step.name: round(step.seconds * 1e6) for step in one.steps}


def test_a_prediction_alone_ends_in_the_predicted_time(tmp_path: Path) -> None:
    one = fall(tmp_path, a_prediction())
    assert times(one) == {
        "moe: 60.0 MB of weights": 3600,
        "attention: 61.0 MB of weights": 366,
        "attention above its floor": 2684,  # 61 x (50 - 6) us
        "all_reduce: 122 x 33.0 us": 4026,
        "launches and idle, eager": 324,
        "predicted": 11_000,
    }
    assert {step.source for step in one.steps} == {"predicted"}


def test_what_was_seen_ends_it_and_what_is_not_predicted_is_unexplained(tmp_path: Path) -> None:
    one = fall(tmp_path, [*a_prediction(), held(29.0)])
    assert list(times(one).items())[-2:] == [("unexplained", 18_000), ("observed", 29_000)]
    *steps, last = one.steps
    assert sum(step.seconds for step in steps) == pytest.approx(last.seconds)
    shorter = fall(tmp_path, [*a_prediction(), held(10.0)])
    assert list(times(shorter).items())[-2:] == [
        ("predicted too long", -1000),
        ("observed", 10_000),
    ]


def test_a_log_is_of_the_prediction_only_where_its_time_is_the_one_it_was_held_against(
    tmp_path: Path,
) -> None:
    lines = [*a_prediction(), held(29.0)]
    same, _ = found(tmp_path, [*lines, a_log(29.1)])
    assert same.observed is not None
    assert (same.observed.by, same.observed.record.source) == (
        "imported from verify.log",
        "imported",
    )
    assert times(fall(tmp_path, [*lines, a_log(29.1)]))["imported"] == 29_100
    others = ([a_log(40.0)], [a_log(29.1), a_log(28.9)], [a_log(29.0, dims={"rows": 8})])
    other_model = a_log(29.0, method={"model": "deepseek-r1"})
    for other in (*others, [other_model]):
        apart, _ = found(tmp_path, [*lines, *other])
        assert apart.observed is not None
        assert apart.observed.by == "observed: given by --observed-ms"


def test_a_stub_of_a_cpu_never_ends_a_prediction_nor_leads_the_verdict(page: Page) -> None:
    page.of([*a_prediction(), stub(24.1)])
    (said, *_) = first_words(page.text)
    assert "Verdict. A verify of 4 rows is predicted to take 11.0 ms" in said
    assert "24.1 ms" not in page.text.partition("\n## ")[0]
    rows = page.rows("From the floor of its bytes to what was predicted")
    assert rows[-1]["step"] == "**predicted**"


def test_where_a_stub_is_all_there_is_title_and_verdict_say_so(page: Page) -> None:
    page.of([CPU, stub(24.1)])
    assert page.text.splitlines()[2] == (
        "# kimi-k2.5-shrunk on a CPU: a verify of 4 rows (measured, of a shrunken stub)"
    )
    (said,) = first_words(page.text)
    assert "of a stub shrunk to fit, no time of the real model" in said
    assert "a CPU has no graphs (python -m graphs.replay --model MODEL --tp N --rows 4" in said
    assert "The pass was timed whole, its parts were not" in page.text


def test_a_measured_pass_stands_beside_the_prediction_of_the_same_pass_alone(
    tmp_path: Path,
) -> None:
    lines: list[Record] = [SERVER, *a_prediction(), measured("eager", 12.5), measured("graph", 9.0)]
    one, _ = found(tmp_path, lines)
    assert one.predicted is not None
    assert (one.is_whole, one.best and one.best.launch) == (True, "graph")
    for other in ({"rows": 3}, {"tp": 4}, {"model": "kimi-k2"}):
        dims = measured("eager", 1.0).dims | other
        apart, _ = found(tmp_path, [SERVER, *a_prediction(), measured("eager", 12.5, dims=dims)])
        assert (apart.is_whole, apart.predicted) == (True, None)
    laptop, _ = found(tmp_path, [GPU, *a_prediction(), measured("eager", 12.5)])
    assert laptop.predicted is None  # a GPU of another name


def test_a_measured_pass_ends_the_waterfall_of_its_prediction(tmp_path: Path) -> None:
    one = fall(tmp_path, [SERVER, *a_prediction(), measured("eager", 12.5)])
    assert list(times(one).items())[-2:] == [("unexplained", 1500), ("measured", 12_500)]
    assert one.steps[-1].source == "measured"


def taken_apart() -> list[Record]:
    method: dict[str, Value] = {
        "pass": "1", "in_context_unexplained_s": 0.5e-3,
        "in_context_unexplained_low_s": -1e-3, "in_context_unexplained_high_s": 2e-3,
    }  # fmt: skip
    parts = (("routed_experts", 4.0), ("attention", 3.0), ("all_reduce", 4.5))
    return [
        measured("eager", 12.5),
        measured("eager", 13.0, op=passes.ACCOUNT, method=method),
        *(measured("eager", ms, op=passes.IN_CONTEXT, part=name) for name, ms in parts),
    ]


def test_parts_that_were_measured_where_they_stand_add_up_to_the_whole(page: Page) -> None:
    page.of([SERVER, *taken_apart()])
    rows = page.rows("From its parts to the whole, measured")
    assert [(row["step"], row["adds [ms]"], row["so far [ms]"]) for row in rows] == [
        ("moe", "4.00", "4.00"),
        ("attention", "3.00", "7.00"),
        ("all_reduce", "4.50", "11.50"),
        ("unexplained", "1.50", "13.00"),
        ("**measured**", "**13.00**", ""),
    ]
    (said, *_) = first_words(page.text)
    # 4.5 ms / 122
    assert "4.50 ms are all-reduces at 36.9 us each (measured where they stand, eager)" in said
    assert "Timed whole, not taken apart, the pass took 12.5 ms (eager)." in page.text
    assert "500 us (95 %: -1.00 ms to 2.00 ms) are unexplained." in page.text


def test_measured_parts_stand_above_the_floors_of_the_same_pass(tmp_path: Path) -> None:
    one = fall(tmp_path, [SERVER, *a_prediction(), *taken_apart()])
    assert times(one) == {
        "moe: 60.0 MB of weights": 3600,
        "attention: 61.0 MB of weights": 366,
        "attention above its floor": 2634,
        "moe above its floor": 400,
        "all_reduce": 4500,
        "unexplained": 1500,
        "measured": 13_000,
    }
    above = [step for step in one.steps if "above its floor" in step.name] if one else []
    # Of a measured time and a predicted floor: no measured time.
    assert [(step.source, step.how) for step in above] == [
        ("predicted", "measured, where it stands, less its floor")
    ] * 2


def test_actions_say_what_they_save_of_what_was_seen_known_how_and_confirmed_by(page: Page) -> None:
    page.of([*a_prediction(), held(29.0)])
    rows = page.rows("From the floor of its bytes", number=1)
    first, second = rows  # fewer rows may lose tokens: no action
    assert first["worth most, each alone"] == ("find what takes the unexplained time: all-reduces?")
    assert (first["saves"], first["known how"]) == ("up to 18.0 ms", "observed, less the rest")
    # 1 / 11 ms - 1 / 29 ms, and of 4 tokens
    assert first["tok/s"] == "at most +56.4 to +225.7"
    assert first["confirmed by"].startswith(
        "`python -m collectives.sweep --gpus 8 --model kimi-k2.5 --tokens 4`"
    )
    assert (second["worth most, each alone"], second["saves"], second["tok/s"]) == (
        "protocol: 25.0 us",
        "*1.00 ms*",
        "*at most +1.2 to +4.9*",
    )


def test_a_known_acceptance_gives_tokens_a_second_before_and_after(page: Page) -> None:
    share = {"sample": "mean as printed", "share": 0.97}
    runs = kernel("runs", 16.5e3, op="token", part="generation", source="imported", mode=None)
    runs = msgspec.structs.replace(
        runs, origin=Origin("verify.log", 3), dims={}, method={"by_token_tok_s": 60.0}
    )
    page.of([GPU, *a_prediction(), held(29.1), a_log(29.1, method=share), runs])
    rows = page.rows("From the floor of its bytes", number=1)
    # The cycle is 29.1 / 0.97 = 30 ms, of which 18.1 ms go
    assert rows[0]["tok/s"] == "60.0 → 151"


def with_lines(*, method: dict[str, Value] | None = None, **dims: Value) -> list[Record]:
    """Return the prediction with more said of each of its records."""
    return [
        msgspec.structs.replace(
            one, dims={**one.dims, **dims}, method={**one.method, **(method or {})}
        )
        if isinstance(one, Measurement)
        else one
        for one in a_prediction()
    ]


def _of_share(one: Measurement) -> Measurement:
    """Return a row of what-if of 2 tokens in a cycle with 1.5 ms beside the pass."""
    alone_s = one.dims["alone_s"]
    assert isinstance(alone_s, float)
    rates = {f"alone_{end}_tokens_per_s": 2 / (alone_s + 1.5e-3) for end in ("least", "most")}
    return msgspec.structs.replace(one, dims={**one.dims, **rates})


def test_a_share_that_was_given_is_in_the_break_even_and_in_tokens_a_second(page: Page) -> None:
    # 11 ms are 0.88 of a cycle of 12.5 ms: 160 tok/s of 2 tokens; the rest of 1.5 ms stays.
    lines = [
        _of_share(one) if isinstance(one, Measurement) and one.op == WHAT_IF else one
        for one in with_lines(method={"share": 0.88, "accepted": 2.0})
        if getattr(one, "implementation", "") != "fewer rows"
    ]
    page.of(lines)
    (row,) = page.rows("From the floor of its bytes", number=1)
    assert (row["saves"], row["tok/s"]) == ("*1.00 ms*", "*160 → 174*")  # 2 / 11.5 ms
    (said, *_) = first_words(page.text)
    assert "Acceptance must exceed 1.25 to pay" in said  # 12.5 / 10 ms
    assert "draft and host counted; it is 2.00" in said


def test_all_requests_count_in_rates_messages_and_commands(page: Page) -> None:
    page.of(with_lines(method={"accepted": 2.0}, requests=8))
    row = page.rows("From the floor of its bytes", number=1)[0]
    assert row["tok/s"] == "*at most 1450 → 1600*"  # 8 x 2 / 11 and 10 ms, three digits
    assert "--gpus 8 --model kimi-k2.5 --tokens 32" in page.text
    assert "--rows 4 --context 8192 --requests 8 --device cuda" in page.text


def test_a_time_that_is_shorter_than_predicted_is_told_as_it_was_given(page: Page) -> None:
    page.of(with_lines(method={"now": "observed", "observed": "given by --observed-ms"}))
    (said, *_) = first_words(page.text)
    assert said.startswith("Verdict. A verify of 4 rows took 11.0 ms (observed: given by")
    steps = page.rows("From the floor of its bytes")
    assert steps[-1]["adds [ms]"] == "**11.00**"


def test_numbers_that_no_pass_can_have_still_make_a_page(page: Page) -> None:
    nothing = [
        msgspec.structs.replace(one, median_s=0.0, floor_s=0.0)
        if isinstance(one, Measurement) and one.median_s is not None
        else one
        for one in with_lines(method={"share": 0.5}, alone_s=-1)
    ]
    page.of(nothing)
    assert page.rows("From the floor of its bytes")[-1]["adds [s]"] == "**0.000**"


def test_a_graph_that_was_measured_to_be_faster_is_an_action_and_the_predicted_one_is_none(
    page: Page,
) -> None:
    page.of([SERVER, *a_prediction(), measured("eager", 12.5), measured("graph", 9.0)])
    rows = page.rows("From the floor of its bytes", number=1)
    (replay,) = [row for row in rows if "graph" in row["worth most, each alone"]]
    assert (replay["saves"], replay["known how"]) == ("3.50 ms", "measured")
    (said, *_) = first_words(page.text)
    assert "Verdict. A verify of 4 rows takes 9.00 ms (measured, graph)." in said
    assert "graph replay would save 3.50 ms (measured)" in said
    # 9 ms / 10 ms
    assert "Acceptance must exceed 0.90 to pay, against 10.0 ms a plain token (given by" in said


def test_findings_of_logs_are_the_actions_where_no_pass_is_known(page: Page) -> None:
    page.of([GPU, a_log(29.0), *whole_run()[-1:]])
    (row,) = page.rows("No budget from floor to measured is drawn")
    assert row == {
        "worth most, each alone": "try NCCL\\_PROTO=LL".replace("\\", ""),
        "saves": "5.30 ms",
        "tok/s": "–",
        "known how": "finding slow_all_reduce (likely), `log.txt`",
        "confirmed by": "`python -m ingest BEFORE AFTER`",
    }


@pytest.mark.parametrize(
    ("lines", "title"),
    [
        (a_prediction(), "kimi-k2.5, TP 8, on rtx-pro-6000-server: a verify of 4 rows (predicted)"),
        (
            [*a_prediction(), held(29.0), a_log(29.0)],
            "kimi-k2.5, TP 8, on rtx-pro-6000-server: a verify of 4 rows (predicted and imported)",
        ),
        (
            [SERVER, measured("graph", 9.0)],
            "kimi-k2.5, TP 8, on 8 x NVIDIA RTX PRO 6000 Blackwell Server Edition: a verify of 4 "
            "rows (measured)",
        ),
        ([GPU, kernel("own", 5.0)], "Kernels measured on 8 x NVIDIA RTX PRO 6000"),
        ([GPU, a_log(29.0)], "What others measured, from 1 file (imported)"),
        ([CPU, kernel("own", None)], "Nothing was measured"),
    ],
)
def test_the_title_says_what_the_report_is_about(
    page: Page, lines: list[Record], title: str
) -> None:
    assert page.of(lines).text.splitlines()[2] == f"# {title}"


def test_the_drawing_of_the_page_says_what_the_table_says(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", [*a_prediction(), held(29.0)])
    _page.write(collect([path]), tmp_path, command="c", plots=True)
    html = (tmp_path / "report.html").read_text()
    fall_table = re.search(r'<table class="fall">.*?</table>', html, re.DOTALL)
    assert fall_table is not None
    drawn = Read(fall_table[0])
    bars = [attrs for attrs in drawn.of("rect") if "stroke" in attrs]
    assert len(bars) == 7
    # 18 of 29 ms are unexplained, behind 11 predicted ones
    assert (bars[-2]["x"], bars[-2]["width"]) == ("37.93%", "62.07%")
    assert (bars[-1]["x"], bars[-1]["width"]) == ("0.00%", "100.00%")
    # What was predicted and what others saw have borders of their own; what is left of the two
    # counts as predicted.
    assert [attrs.get("stroke-dasharray") for attrs in bars] == [*["2 3"] * 6, "6 2"]
    numbers = [attrs for attrs in drawn.of("a") if attrs["data-r"]]
    assert len(numbers) == 2 * 7 - 1
    assert (tmp_path / _waterfall_view.PLOT).read_bytes().startswith(b"\x89PNG")


def test_a_record_with_markup_is_text_in_the_drawing(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    lines = [
        msgspec.structs.replace(one, dims=one.dims | {"gpu": evil, "model": evil})
        for one in a_prediction()
        if isinstance(one, Measurement)
    ]
    path = write(tmp_path / "r.jsonl", [CPU, *lines])
    _page.write(collect([path]), tmp_path, command="c", plots=False)
    html = (tmp_path / "report.html").read_text()
    assert len(Read(html).of("script")) == 2
    assert 'class="fall"' in html


def test_a_command_is_named_once_in_a_verdict(page: Page) -> None:
    page.of([CPU, part("routed_experts", 60.0, 60)])
    (said,) = first_words(page.text)
    assert said.count("python -m graphs.replay") == 1


@pytest.mark.skipif(chromium.PROGRAM is None, reason=chromium.WHY_NOT)
@pytest.mark.parametrize("width", [400, 1280])
def test_its_steps_are_reached_by_pointer_and_keyboard_and_fit_the_screen(
    tmp_path: Path, width: int
) -> None:
    path = write(tmp_path / "r.jsonl", [*a_prediction(), held(29.0)])
    _page.write(collect([path]), tmp_path, command="c", plots=False)
    number = "document.querySelectorAll('.fall td:nth-child(3) .n')"
    with chromium.browser() as shown:
        shown.open(tmp_path / "report.html", width=width, height=800)
        assert shown.run("document.documentElement.scrollWidth <= innerWidth")
        assert shown.run("document.querySelectorAll('.fall button').length") == 0
        shown.point(f"{number}[5]")  # unexplained
        shown.until("!document.getElementById('tip').hidden")
        assert "the whole, less all lines above" in shown.run(
            "document.getElementById('tip').textContent"
        )
        shown.run(f"{number}[0].focus()")
        shown.press("ArrowRight")
        shown.press("Enter")
        shown.until("document.querySelectorAll('.line.chosen').length > 0")
        if width == 1280:
            below = "document.querySelector('.first table:not(.fall)').getBoundingClientRect()"
            shown.run("scrollTo(0, 0)")
            assert shown.run(f"{below}.bottom < 800"), "verdict, waterfall, actions: one screen"
        assert shown.said == []
