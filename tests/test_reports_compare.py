"""`python -m reports.compare A B`: what changed, where, beside what; silent where nothing did."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reports import compare
from tests.comparison_sample import TODAY, YESTERDAY, noisy, rows, run, sweep, timed
from tests.report_sample import CPU, GPU, US, collective, kernel, predicted, write
from tests.serving_lines import times_of
from verifyscope import cli
from verifyscope.records import Environment, Finding, Measurement, Origin, Record, encoded

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parent.parent
KERNELS = {"triton": 1.0, "cupy": 1.3, "flashinfer": 1.1}


class Compared:
    """Compares two runs in this process, and keeps what was printed and written."""

    def __init__(self, folder: Path, capture: Capture) -> None:
        self._folder, self._capture = folder, capture
        self.status, self.text, self.notes = 0, "", ""
        self.data: dict[str, Any] = {}

    def of(self, old: Path, new: Path, *words: str) -> "Compared":
        path = self._folder / "said.json"
        path.unlink(missing_ok=True)
        given = [str(old), str(new), "--json", str(path), *words]
        with pytest.raises(SystemExit) as end:
            cli.run(compare.app, compare.PROGRAM, given)
        assert isinstance(end.value.code, int)
        said = self._capture.readouterr()
        self.status, self.text, self.notes = end.value.code, said.out, said.err
        self.data = json.loads(path.read_text()) if path.is_file() else {}
        return self

    @property
    def sentence(self) -> str:
        assert self.status == 0, self.notes
        return str(self.data["sentence"])

    @property
    def verdicts(self) -> dict[str, list[str]]:
        """Return the verdicts of the rows of each implementation."""
        found: dict[str, list[str]] = {}
        for row in self.data["rows"]:
            verdict = row["change"]["verdict"] if row["change"] else "none"
            found.setdefault(row["implementation"], []).append(verdict)
        return found

    def split(self, number: int = 0) -> dict[str, float]:
        return {part["name"]: part["change_s"] for part in self.data["splits"][number]["parts"]}

    @property
    def refused(self) -> str:
        assert (self.status, self.text) == (2, "")
        (line,) = self.notes.splitlines()
        return line.removeprefix(f"{compare.PROGRAM}: ")


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


def test_the_sum_over_rows_adds_up_by_class_and_op(compared: Compared, tmp_path: Path) -> None:
    old = run(tmp_path / "a", GPU, rows(seed=1, kernels=KERNELS), sweep(seed=3))
    new = run(tmp_path / "b", GPU, rows(seed=2, kernels=KERNELS), sweep(seed=4, factor=2.0))
    compared.of(old, new)
    (split,) = compared.data["splits"]
    assert split["is_sum"] is True
    parts = compared.split()
    assert set(parts) == {"all_reduce: all_reduce", "attention: tree_attention"}
    by_hand = sum(
        row["median_s"] - row["median_a_s"]
        for row in compared.data["rows"]
        if row["op"] == "all_reduce"
    )
    assert parts["all_reduce: all_reduce"] == pytest.approx(by_hand)
    assert sum(parts.values()) == pytest.approx(split["whole"]["change_s"])
    assert "It is no pass" in compared.text


def logged(file: str, verify_ms: float, percent: float) -> list[Record]:
    """Return what ingest makes of a component table."""
    text = f"Target verify: {verify_ms} ms/cyc ({percent}%)\nDraft: 0.70 ms/cyc (2.0%)\n"
    found = times_of(text)
    assert [one.part for one in found] == ["forward", "draft"]
    here = msgspec.structs.replace(CPU, id="here")
    return [here, *(msgspec.structs.replace(one, origin=Origin(file, 1)) for one in found)]


def test_two_logs_of_other_names_are_matched_and_their_cycle_is_split(
    compared: Compared, tmp_path: Path
) -> None:
    """19.04 / 0.9505 = 20.03 ms, 29.48 / 0.97 = 30.39: 10.36 ms, of which verify is 10.44."""
    old = write(tmp_path / "a.jsonl", logged("yesterday.log", 19.04, 95.05))
    new = write(tmp_path / "b.jsonl", logged("today.log", 29.48, 97.0))
    compared.of(old, new)
    assert compared.sentence.startswith("A verify: 19.0 ms in A, 29.5 ms in B, 10.4 ms longer")
    assert "its spread assumed): slower." in compared.sentence
    parts = compared.split()
    assert parts["verify"] == pytest.approx(10.44e-3)
    assert parts["draft"] == 0
    assert parts["rest of the cycle"] == pytest.approx(
        (29.48 / 0.97 - 29.48 - 19.04 / 0.9505 + 19.04) * 1e-3
    )
    whole = compared.data["splits"][0]["whole"]
    assert sum(parts.values()) == pytest.approx(whole["change_s"])
    # The environment is that of the laptop that read the logs.
    assert compared.data["differences"] == []
    assert "nothing is recorded of that machine" in compared.text


def test_a_cycle_that_lost_its_graph_is_matched_and_the_launch_is_the_difference(
    compared: Compared, tmp_path: Path
) -> None:
    def cycle(launch: str, seconds: float) -> list[Record]:
        samples = noisy(seconds, seed=3, count=20)
        row, _ = timed(
            kernel(
                "sglang",
                1.0,
                source="imported",
                part="cycle",
                op="cycle",
                case=f"4 running, {launch}",
                dims={
                    "requests": 4,
                    "rows": 4,
                    "acceptance": 2.5 + seconds,
                    "context": 1e5 * seconds,
                },
                launch=launch,
                depth=None,
                cache=None,
                origin=Origin("serve.log", 3),
            ),
            samples,
        )
        return [GPU, row]

    old = write(tmp_path / "a.jsonl", cycle("graph", 0.020))
    new = write(tmp_path / "b.jsonl", cycle("eager", 0.031))
    compared.of(old, new)
    assert compared.sentence.startswith("A cycle of 4 requests, 4 rows: ")
    assert "A hypothesis: launch, graph in A and eager in B, could explain 1 of 1 row" in (
        compared.sentence
    )


def trace(file: str, *, step_s: float, steps: int, reduce_s: float) -> list[Record]:
    """Return a trace of so many steps: 8 ms of experts, all-reduces, 1 ms idle in each."""

    def row(op: str, name: str, part: str, seconds: float, **dims: float) -> Measurement:
        return kernel(
            name,
            seconds * 1e6,
            source="imported",
            op=op,
            part=part,
            case="GPU 0",
            dims=dict(dims),
            mode=None,
            depth=None,
            cache=None,
            low_s=None,
            high_s=None,
            origin=Origin(file, 1),
        )

    span = step_s * steps
    return [
        GPU,
        row("trace", "torch", "other_known", span, idle_s=0.001 * steps),
        row("trace step", "annotation", "forward", step_s),
        row("trace class", "moe", "moe", 0.009 * steps, alone_s=0.008 * steps),
        row("trace class", "all_reduce", "all_reduce", span, alone_s=reduce_s * steps),
    ]


def test_traces_of_other_lengths_are_compared_by_the_step(
    compared: Compared, tmp_path: Path
) -> None:
    """15 and 25 ms a step, 10 and 3 steps: all-reduces 5 and 15 ms, idle 1, two at once 1."""
    old = write(tmp_path / "a.jsonl", trace("a.json", step_s=0.015, steps=10, reduce_s=0.005))
    new = write(tmp_path / "b.jsonl", trace("b.json", step_s=0.025, steps=3, reduce_s=0.015))
    compared.of(old, new)
    (split, *_) = compared.data["splits"]
    assert (split["what"], split["source"]) == ("a step of GPU 0", "imported")
    parts = compared.split()
    assert parts == pytest.approx(
        {"moe": 0, "all_reduce": 0.010, "idle": 0, "several classes at once": 0}, abs=1e-9
    )
    before = {part["name"]: part["a_s"] for part in split["parts"]}
    assert before == pytest.approx(
        {"moe": 0.008, "all_reduce": 0.005, "idle": 0.001, "several classes at once": 0.001}
    )
    # A total over the whole trace is no row: the traces are of other lengths.
    assert {row["op"] for row in compared.data["rows"]} == {"trace step"}


def test_predictions_are_split_by_class_and_never_called_measured(
    compared: Compared, tmp_path: Path
) -> None:
    def foreseen(reduce_us: float) -> list[Record]:
        return [CPU, predicted("routed_experts", 60.0, 60), predicted("all_reduce", reduce_us, 122)]

    old = write(tmp_path / "a.jsonl", [*foreseen(33.0), kernel("own", 1.0)])
    new = write(tmp_path / "b.jsonl", [*foreseen(119.0), kernel("own", 1.0)])
    compared.of(old, new)
    assert compared.sentence.startswith("Predicted, not measured: a pass of kimi-k2.5, TP 8")
    assert compared.split() == pytest.approx({"moe": 0, "all_reduce": 122 * 86e-6})
    assert "*predicted, not measured*" in compared.text
    assert len(compared.data["rows"]) == 1


def hot(environment: str, seed: int, factor: float, mhz: float, **more: str) -> list[Any]:
    found = rows(seed=seed, kernels={"triton": factor}, environment=environment)
    conditions = {"sm_mhz_median": mhz, "pcie_generation": 5, **more}
    return [
        (msgspec.structs.replace(one, conditions=conditions), samples) for one, samples in found
    ]


@pytest.mark.parametrize(
    ("factor", "explained", "against"),
    [
        (1.22, 10, 0),  # 2430 / 2000 = 1.215
        (1.60, 0, 10),  # more than a clock can
        (0.80, 0, 10),  # the other way
    ],
)
def test_a_clock_explains_no_more_than_its_own_ratio(
    compared: Compared, tmp_path: Path, factor: float, explained: int, against: int
) -> None:
    old = run(tmp_path / "a", GPU, hot("gpu", 1, 1.0, 2430.0))
    new = run(tmp_path / "b", GPU, hot("gpu", 2, factor, 2000.0))
    compared.of(old, new)
    (clock,) = compared.data["differences"]
    assert clock["name"] == "SM clock while measuring, MHz"
    assert (clock["a"], clock["b"]) == ("2430", "2000")
    assert (clock["explained"], clock["against"]) == (explained, against)


def test_throttling_and_a_slower_link_are_differences(compared: Compared, tmp_path: Path) -> None:
    old = run(tmp_path / "a", GPU, hot("gpu", 1, 1.0, 2430.0))
    slowed = hot("gpu", 2, 1.3, 1870.0, throttle_reasons="sw_power_cap, hw_thermal")
    slowed = [
        (msgspec.structs.replace(one, conditions=one.conditions | {"pcie_generation": 1}), samples)
        for one, samples in slowed
    ]
    new = run(tmp_path / "b", GPU, slowed)
    compared.of(old, new)
    said = {one["name"]: (one["a"], one["b"]) for one in compared.data["differences"]}
    assert said == {
        "throttled: hw_thermal": ("no", "yes"),
        "throttled: sw_power_cap": ("no", "yes"),
        "SM clock while measuring, MHz": ("2430", "1870"),
        "PCIe generation under load while measuring": ("5", "1"),
    }


def changed(**fields: Any) -> Environment:
    return msgspec.structs.replace(YESTERDAY, id="today", **fields)


CHANGED: list[tuple[Environment, str]] = [
    (changed(driver="590.1"), "driver"),
    (changed(versions={"torch": "2.13.0", "triton": "3.8.0"}), "version of triton"),
    (changed(governor="powersave"), "CPU governor"),
    (changed(commit="fedcba987654"), "commit"),
    (changed(settings={"NCCL_PROTO": "Simple"}), "setting NCCL_PROTO"),
    (
        changed(gpus=tuple(msgspec.structs.replace(g, power_limit_w=300.0) for g in GPU.gpus)),
        "power limit, W of GPUs 0 to 7",
    ),
    (
        changed(
            gpus=(msgspec.structs.replace(GPU.gpus[0], pcie_width=4), *GPU.gpus[1:]),
        ),
        "PCIe width at most of GPU 0",
    ),
]


@pytest.mark.parametrize(("environment", "name"), CHANGED)
def test_each_difference_of_the_environment_stands_beside_the_rows(
    compared: Compared, tmp_path: Path, environment: Environment, name: str
) -> None:
    old = run(tmp_path / "a", YESTERDAY, rows(seed=1, kernels={"x": 1.0}, environment="yesterday"))
    new = run(tmp_path / "b", environment, rows(seed=2, kernels={"x": 1.0}, environment="today"))
    compared.of(old, new)
    assert [one["name"] for one in compared.data["differences"]] == [name]
    assert "nothing moved" in compared.text


def test_the_version_that_touches_what_moved_goes_before_those_that_touch_more(
    compared: Compared, tmp_path: Path
) -> None:
    """Triton's rows move: its new version fits, then the driver; NCCL's setting touches nothing."""
    today = changed(
        driver="590.1",
        versions={"torch": "2.13.0", "triton": "3.8.0"},
        settings={"NCCL_PROTO": "Simple"},
    )
    old = run(tmp_path / "a", YESTERDAY, rows(seed=1, kernels=KERNELS, environment="yesterday"))
    new = run(
        tmp_path / "b", today, rows(seed=2, kernels=KERNELS | {"triton": 1.2}, environment="today")
    )
    compared.of(old, new)
    fits = {one["name"]: round(one["fits"], 2) for one in compared.data["differences"]}
    assert list(fits) == ["version of triton", "driver", "setting NCCL_PROTO"]
    assert fits["version of triton"] == 1.0
    assert 0.3 < fits["driver"] < 0.5
    assert fits["setting NCCL_PROTO"] == 0
    assert "A hypothesis: version of triton, 3.7.1 in A and 3.8.0 in B" in compared.sentence


def asked(size: int, median_us: float, requested: str | None, got: str) -> Measurement:
    return collective(
        size,
        median_us,
        implementation="nccl",
        low_s=0.99 * median_us * US,
        high_s=1.01 * median_us * US,
        count=50,
        requested={} if requested is None else {"NCCL_PROTO": requested},
        effective={"protocol": got},
    )


def test_rows_of_other_requests_are_matched_where_that_is_all_that_differs(
    compared: Compared, tmp_path: Path
) -> None:
    old = write(tmp_path / "a.jsonl", [GPU, *(asked(2**n, 30.0, "LL", "LL") for n in (13, 14, 15))])
    new = write(tmp_path / "b.jsonl", [GPU, *(asked(2**n, 90.0, None, "Simple") for n in (13, 14))])
    compared.of(old, new)
    assert [row["change"]["verdict"] for row in compared.data["rows"]] == ["slower", "slower"]
    assert [(one["name"], one["a"], one["b"]) for one in compared.data["differences"]] == [
        ("protocol, effective", "LL", "Simple"),
        ("NCCL_PROTO, requested", "LL", "not set"),
    ]
    assert len(compared.data["only_a"]) == 1
    # With both combinations in both runs each is held against its own.
    both = [one for proto in ("LL", "Simple") for one in [asked(2**13, 30.0, proto, proto)]]
    compared.of(
        write(tmp_path / "c.jsonl", [GPU, *both]), write(tmp_path / "d.jsonl", [GPU, *both])
    )
    assert [row["requested"] for row in compared.data["rows"]] == [
        {"NCCL_PROTO": "LL"},
        {"NCCL_PROTO": "Simple"},
    ]


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
    assert "<script" not in html
    assert "<img" not in html
    assert "<em>bold" not in html
    assert "href" not in html
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in html
    assert not re.search(r"(?<!\\)<script", compared.text)


def test_the_page_loads_nothing_and_holds_every_table(compared: Compared, tmp_path: Path) -> None:
    old = run(tmp_path / "a", GPU, rows(seed=1, kernels=KERNELS))
    new = run(tmp_path / "b", GPU, rows(seed=2, kernels=KERNELS))
    compared.of(old, new, "--html", str(tmp_path / "page.html"), "--out", str(tmp_path / "p.md"))
    html, markdown = (tmp_path / "page.html").read_text(), (tmp_path / "p.md").read_text()
    assert compared.text == f"{compared.sentence}\n"
    assert not re.search(r"(src|href)=", html)
    assert "default-src 'none'" in html
    tables = len(re.findall(r"^\| -", markdown, re.MULTILINE))
    assert html.count("<table>") == tables >= 3
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
