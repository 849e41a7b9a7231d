"""The section "Where verify time goes": each number is what the records of a prediction hold."""

from pathlib import Path

import msgspec
import pytest

from reports import _page, _plots
from reports._collected import collect
from tests.report_page import Page
from tests.report_sample import CPU, US, predicted, write
from tests.test_replay import _run as replay
from verifyscope import records
from verifyscope.predictions import (
    AGREEMENT,
    EXCESS,
    FIT,
    PUBLIC,
    TIMELINE,
    WHAT_IF,
    WHOLE,
)
from verifyscope.records import Measurement, Record, Value

_METHOD: dict[str, Value] = {"prediction": "p"}


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def part(name: str, us: float | None, calls: int, **changes: object) -> Measurement:
    one = predicted(name, us, calls)
    method = one.method | _METHOD
    return msgspec.structs.replace(one, method=method, **changes)


def public(name: str, us: float, calls: int, *, how: str = "nccl; table") -> Measurement:
    one = part(name, us, calls, implementation=PUBLIC, floor_s=None, touched_bytes=None)
    return msgspec.structs.replace(one, method=one.method | {"time": how})


def whole(op: str, name: str, ms: float | None, **changes: object) -> Measurement:
    one = predicted(WHOLE, None if ms is None else ms * 1e3, 1)
    dims = one.dims | changes.pop("dims", {})  # type: ignore[operator]  # a test gives a dict
    method = _METHOD | changes.pop("method", {})  # type: ignore[operator]  # a test gives a dict
    more = {"op": op, "implementation": name, "dims": dims, "method": method, **changes}
    return msgspec.structs.replace(one, **more)


def mode(name: str, ms: float, *, launches: int, idle_ms: float, **more: object) -> Measurement:
    dims = {
        "launches": launches,
        "host_s": launches * 6 * US,
        "busy_s": (ms - idle_ms) / 1e3,
        "idle_s": idle_ms / 1e3,
        "uneven_s": (ms + 0.5) / 1e3,
        "skew_s": 0.5e-3,
        "slow_rank": 1.1,
        "jitter_s": 0.0,
    }
    method = {
        "launch_s": 6 * US,
        "graph_launch_s": 15 * US,
        "node_s": 0.6 * US,
        "launch_us": "given by --launch-us",
        "graph_launch_us": "the field",
        "node_us": "the field",
        "uneven": "assumed, as an example",
    }
    return whole(TIMELINE, name, ms, dims=dims, method=method, launch=name, **more)


def lever(number: int, name: str, alone_ms: float | None, together_ms: float) -> Measurement:
    dims: dict[str, Value] = {"number": number}
    if alone_ms is not None:
        for way, ms in (("alone", alone_ms), ("together", together_ms)):
            dims |= {
                f"{way}_s": ms / 1e3,
                f"{way}_least_tokens_per_s": 1e3 / ms,
                f"{way}_most_tokens_per_s": 4e3 / ms,
                f"{way}_break_even": ms / 10,
                f"{way}_held": ms < 8,
            }
    method: dict[str, Value] = {"how": f"what {name} is", "now": "predicted eager"}
    method |= {"plain_s": 10e-3, "plain": "given by --plain-ms"}
    reason = None if alone_ms is not None else "not known: give --one-shot-us"
    return whole(WHAT_IF, name, alone_ms, dims=dims, method=method, reason=reason)


def a_pass() -> list[Record]:
    return [
        CPU,
        part("routed_experts", 60.0, 60),
        part("attention", 6.0, 61),
        part("all_reduce", None, 122),
        public("attention", 50.0, 61, how="sglang; table"),
        public("all_reduce", 33.0, 122),
        mode("eager", 12.0, launches=1400, idle_ms=1.3),
        mode("graph", 11.0, launches=1, idle_ms=0.3),
        lever(2, "one-shot", None, 0.0),
        lever(0, "now", 12.0, 12.0),
        lever(1, "graph capture", 11.0, 11.0),
        lever(3, "faster attention", 9.3, 7.9),
    ]


def test_components_stand_beside_the_floors_and_never_in_their_sum(page: Page) -> None:
    page.of(a_pass())
    found = {row["part"]: row for row in page.rows("### Predicted: ")}
    assert found["attention"]["time"] == "366 us"
    assert found["attention"]["with components"] == "3.05 ms"
    assert found["attention"]["notes"] == "sglang; table"
    assert found["routed_experts"]["with components"] == "–"
    assert found["all_reduce"]["time"] == "not known"
    assert found["all_reduce"]["with components"] == "4.03 ms"
    assert found["**the pass**"]["time"] == "**at least 3.97 ms**"
    # 60 x 60 + 61 x 50 + 122 x 33 us
    assert found["**the pass**"]["with components"] == "**10.7 ms**"
    assert "With public components, which are no floor: **10.7 ms**" in page.text
    assert "floor of bytes and flops 3.97 ms" in page.text


def test_a_bound_says_at_most(page: Page) -> None:
    page.of(
        [
            CPU,
            part("attention", 6.0, 61),
            msgspec.structs.replace(public("attention", 50.0, 61), flags=("upper-bound",)),
        ]
    )
    assert page.row("### Predicted: ", "attention")["notes"] == "at most: nccl; table"


def test_eager_stands_beside_the_graph_with_idle_share_and_the_cost_of_skew(page: Page) -> None:
    page.of(a_pass())
    eager, graph = page.rows("### Predicted, not measured: eager against graph")
    assert eager["launches"] == "1,400"
    assert (eager["host launches for"], eager["device busy"]) == ("8.40 ms", "10.7 ms")
    assert (eager["idle"], eager["idle share"], eager["the pass"]) == (
        "1.30 ms",
        "11 %",
        "**12.0 ms**",
    )
    assert (graph["idle share"], graph["with uneven ranks"]) == ("2.7 %", "11.5 ms")
    assert graph["skew costs"] == "500 us"
    for line in (
        "- 6.00 us a launch: given by --launch-us.",
        "- 15.0 us a graph, 600 ns between two kernels: the field.",
        "- From 7.64 us a launch on, the host is slower than the device",
        "- Uneven: one rank takes 1.1 times as long (assumed, as an example).",
    ):
        assert line in page.text


def test_levers_keep_their_order_and_one_of_unknown_size_has_no_number(page: Page) -> None:
    page.of(a_pass())
    rows = page.rows("**What-if**")
    assert [row["lever"] for row in rows] == [
        "now",
        "graph capture",
        "one-shot",
        "faster attention",
    ]
    assert rows[2]["alone"] == "not known"
    assert rows[2]["together"] == "not known"
    assert rows[3]["alone"] == "9.30 ms"
    assert rows[3]["together"] == "7.90 ms, held at its floor"
    assert rows[1]["what it is"] == "what graph capture is"
    assert "Now: predicted eager. A plain token: 10.0 ms, given by --plain-ms." in page.text


def test_an_excess_is_divided_over_each_time_it_is_held_against(page: Page) -> None:
    def needed(us: float, against: str, excess_ms: float) -> Measurement:
        dims = {"against": against, "excess_s": excess_ms / 1e3, "count": 122, "observed_s": 29e-3}
        method = {"what": "an all-reduce", "confirm": "a sweep", "kill": "another", "observed": "x"}
        return whole(EXCESS, "all-reduces", us / 1e3, dims=dims, method=method)

    page.of([*a_pass(), needed(85.7, "earlier run", 10.45), needed(136.0, "prediction", 16.6)])
    (row,) = page.rows("**If it took longer**")
    assert row == {
        "hypothesis": "all-reduces",
        "over the earlier run": "10.4 ms: +85.7 us for an all-reduce, 122 of them",
        "over the prediction": "16.6 ms: +136 us for an all-reduce, 122 of them",
        "confirmed by": "a sweep",
        "killed by": "another",
    }


def test_fits_and_agreements_are_tables_of_their_own(page: Page) -> None:
    fit: dict[str, Value] = {"base_s": 3e-3, "slope_s": 1e-3, "worst_s": 2e-4, "points": 3}
    fitted = whole(FIT, "byte floor over rows", 5.0, dims=fit, method={"sizes": "1, 2, 4"})
    fitted = msgspec.structs.replace(
        fitted, dims={name: value for name, value in fitted.dims.items() if name != "rows"}
    )
    held = whole(
        AGREEMENT,
        "eager",
        12.0,
        dims={"measured_s": 12.5e-3, "off": -0.04},
        method={"verdict": "agrees"},
    )
    page.of([*a_pass(), fitted, held])
    (line,) = page.rows("### time(T) and time(L)")
    assert (line["base"], line["slope"], line["farthest point"]) == (
        "3.00 ms",
        "1.00 ms a row",
        "200 us",
    )
    assert line["sizes"] == "1, 2, 4"
    (row,) = page.rows("### The prediction beside measured passes")
    assert (row["measured"], row["predicted"], row["off by"], row["so"]) == (
        "12.5 ms",
        "12.0 ms",
        "-4.0 %",
        "agrees",
    )


def test_what_is_missing_is_said_with_how_to_get_it(page: Page) -> None:
    page.of([CPU, part("attention", 6.0, 61)])
    behind = page.text[page.text.index("### What is missing, and how to get it") :]
    assert "**A pass**: none was measured" in behind
    assert "no component was measured by anybody" in behind
    assert "no timeline, no levers" in behind
    behind = page.of(a_pass()).text
    assert "no component was measured by anybody" not in behind


def test_wholes_are_no_parts_of_a_pass_and_no_rows_of_kernels(page: Page) -> None:
    page.of(a_pass())
    predicted_only = f"**Nothing measured**; {len(a_pass()) - 1} predicted for rtx-pro-6000-server."
    assert predicted_only in page.text
    assert "## Kernels" not in page.text
    assert not any(row["part"] == "forward" for row in page.rows("### Predicted: "))


def test_the_plots_have_the_numbers_of_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[_plots.Bar] = []
    steps: dict[str, float] = {}
    floors: list[float | None] = []

    def keep_bars(path: Path, given: list[_plots.Bar], **_: object) -> None:
        bars.extend(given)

    def keep_steps(
        path: Path, given: list[tuple[str, float]], *, floor_s: float | None, **_: object
    ) -> None:
        steps.update(given)
        floors.append(floor_s)

    monkeypatch.setattr(_plots, "budget", keep_bars)
    monkeypatch.setattr(_plots, "what_if", keep_steps)
    path = write(tmp_path / "r.jsonl", a_pass())
    _page.write(collect([path]), tmp_path, command="c", plots=True)
    assert [bar.label for bar in bars] == [
        "bytes and flops alone",
        "with components",
        "eager",
        "as one graph",
    ]
    assert dict(bars[1].segments) == pytest.approx(
        {"attention": 3.05e-3, "moe": 3.6e-3, "all_reduce": 4.026e-3}
    )
    assert dict(bars[2].segments)["idle"] == pytest.approx(1.3e-3)
    assert {round((bar.floor_s or 0) * 1e6) for bar in bars} == {3966}
    assert steps == pytest.approx(
        {"now": 12e-3, "graph capture": 11e-3, "faster attention": 7.9e-3}
    )
    assert floors == [pytest.approx(3.966e-3)]


def test_the_founding_case_from_command_to_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], page: Page
) -> None:
    path = tmp_path / "r.jsonl"
    words = ["--model", "kimi-k2.5", "--tp", "8", "--predict", "rtx-pro-6000-server"]
    code, out, _ = replay([*words, "--rows", "3,4", "--records", str(path)], capsys)
    assert code == 0
    page.of(list(records.read([path])))
    for title, floor, with_ in (("3 rows", "6.36 ms", "12.9 ms"), ("4 rows", "7.31 ms", "14.1 ms")):
        rows = page.rows(f"### Predicted: kimi-k2.5, TP 8, {title}")
        assert rows[-1]["time"] == f"**at least {floor}**"
        assert rows[-1]["with components"] == f"**{with_}**"
    assert page.text.count("**If it took longer**") == 1
    assert page.text.count("<summary>What-if</summary>") == 1
    assert "+85.7 us for an all-reduce, 122 of them" in page.text
    assert "at most: sglang 0.5.14 triton for 4 sequences, an upper bound for 4 rows" in page.text
    assert "byte floor over rows" in page.text
    assert "14.9 ms" in out


def test_the_waterfall_is_of_the_first_pass_that_has_levers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    def keep(path: Path, steps: object, *, title: str, **_: object) -> None:
        titles.append(title)

    monkeypatch.setattr(_plots, "what_if", keep)
    path = tmp_path / "r.jsonl"
    words = ["--model", "kimi-k2.5", "--tp", "8", "--predict", "rtx-pro-6000-server"]
    code, _, _ = replay([*words, "--rows", "1,2", "--records", str(path)], capsys)
    assert code == 0
    _page.write(collect([path]), tmp_path, command="c", plots=True)
    assert len(titles) == 1
    assert "2 rows" in titles[0]


def test_a_waterfall_is_drawn(tmp_path: Path) -> None:
    steps = [("now", 12e-3), ("less", 9e-3), ("more", 9.5e-3), ("nothing", 9.5e-3)]
    for name, floor_s in (("a.png", 4e-3), ("b.png", None)):
        _plots.what_if(tmp_path / name, steps, floor_s=floor_s, title="t")
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
