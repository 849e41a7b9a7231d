"""The change of a whole, split: its parts add up, whatever both runs hold of it."""

from pathlib import Path

import msgspec
import pytest

from tests.compared_runs import KERNELS, Capture, Compared
from tests.comparison_sample import noisy, rows, run, sweep, timed
from tests.report_sample import CPU, GPU, kernel, predicted, write
from tests.serving_lines import times_of
from verifyscope.records import Measurement, Origin, Record


@pytest.fixture
def compared(tmp_path: Path, capsys: Capture) -> Compared:
    return Compared(tmp_path, capsys)


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


def test_what_only_one_prediction_knows_is_no_change(compared: Compared, tmp_path: Path) -> None:
    def foreseen(experts_us: float, reduce_us: float | None) -> list[Record]:
        parts = [
            predicted("routed_experts", experts_us, 60),
            predicted("all_reduce", reduce_us, 122),
        ]
        return [CPU, *parts]

    old = write(tmp_path / "a.jsonl", foreseen(60.0, None))
    new = write(tmp_path / "b.jsonl", foreseen(70.0, 43.0))
    compared.of(old, new)
    assert compared.split() == pytest.approx({"moe": 600e-6})  # 60 calls, 10 us more each
    (split,) = compared.data["splits"]
    assert split["what"].endswith(", without all_reduce")


def test_a_prediction_that_did_not_change_is_not_what_is_told_first(
    compared: Compared, tmp_path: Path
) -> None:
    foreseen: list[Record] = [CPU, predicted("routed_experts", 60.0, 60)]
    old = write(tmp_path / "a.jsonl", [*foreseen, kernel("own", 1.0)])
    new = write(tmp_path / "b.jsonl", [*foreseen, kernel("own", 2.0)])
    compared.of(old, new)
    assert "Predicted" not in compared.sentence
    assert compared.sentence.startswith("Of 1 row in both, 1 slower.")


def test_what_is_predicted_of_a_kernel_is_no_pass(compared: Compared, tmp_path: Path) -> None:
    """A suite's run holds the roofline of each of its cases: they have no calls in a pass."""
    roofline = kernel("own", 0.8, source="predicted", method={"gpu": "h200"})
    old = write(tmp_path / "a.jsonl", [GPU, kernel("own", 1.0), roofline])
    new = write(tmp_path / "b.jsonl", [GPU, kernel("own", 1.0), roofline])
    compared.of(old, new)
    assert [split["is_sum"] for split in compared.data["splits"]] == [True]


def test_what_the_machine_gives_is_no_call_and_in_no_sum(
    compared: Compared, tmp_path: Path
) -> None:
    def made(copy_us: float) -> list[Record]:
        ceiling = kernel("torch", copy_us, op="memory_copy", part="memory_ceiling")
        return [GPU, kernel("own", 1.0), ceiling]

    old, new = (write(tmp_path / f"{us}.jsonl", made(us)) for us in (9000.0, 14000.0))
    compared.of(old, new)
    assert set(compared.split()) == {"attention: tree_attention"}
    assert {row["op"] for row in compared.data["rows"]} == {"tree_attention", "memory_copy"}


def test_where_others_measured_is_not_the_machine_that_read_their_log(
    compared: Compared, tmp_path: Path
) -> None:
    old = write(tmp_path / "a.jsonl", logged("yesterday.log", 19.04, 95.05))
    new = write(tmp_path / "b.jsonl", logged("today.log", 29.48, 97.0))
    compared.of(old, new)
    assert compared.text.count("| imported: measured elsewhere |") == 2
    assert "Laptop" not in compared.text
