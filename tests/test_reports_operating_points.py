"""The section of speculation: points and break-even by hand; other systems stay apart."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingest.serving_records import plain_given
from reports import _speculation_map
from reports._collected import collect
from reports._drawn import Folder
from reports._operating_points import OperatingPoint, points
from reports._speculation import MAP, section
from tests.report_page import Page
from tests.report_sample import CPU, GPU, kernel, write
from tests.serving_lines import times_of
from verifyscope.records import Measurement, Origin, Record

HERE = msgspec.structs.replace(CPU, id="here")
FOUNDING = (
    "Target verify: 29.47 ms/cyc (97.0%)\nTarget verify: 29.49 ms/cyc (97.0%)\n"
    "Run 1/5: 2048 tokens in 33.88s = 60.4 tok/s\nRun 2/5: 2048 tokens in 31.26s = 65.5 tok/s\n"
    "Run 3/5: 2048 tokens in 40.24s = 50.9 tok/s\nRun 4/5: 2041 tokens in 33.21s = 61.5 tok/s\n"
    "Run 5/5: 2048 tokens in 34.42s = 59.5 tok/s\n"
)


def logged(text: str, file: str, command: str = "python -m ingest") -> list[Measurement]:
    """Return what ingest makes of a log."""
    return [
        msgspec.structs.replace(one, origin=Origin(file, 1), command=command)
        for one in times_of(text)
    ]


def steps(
    seconds: float,
    *,
    requests: int = 1,
    accepted: float | None = None,
    file: str = "serve.log",
    **changes: Any,
) -> Measurement:
    """Return a cycle of a serving log, or a plain step where nothing is accepted."""
    known: dict[str, Any] = {
        "source": "imported",
        "part": "cycle",
        "op": "step" if accepted is None else "cycle",
        "case": f"{requests} running",
        "dims": {"requests": requests, **({} if accepted is None else {"acceptance": accepted})},
        "mode": "decode" if accepted is None else "verify",
        "id": f"{file}-{requests}-{accepted}-{seconds}",
        "origin": Origin(file, 1),
        "command": "python -m ingest serve.log",
        "environment": "here",
    }
    return kernel("sglang", seconds * 1e6, **(known | changes))


def found(folder: Path, lines: list[Record]) -> list[OperatingPoint]:
    return points(collect([write(folder / "records.jsonl", lines)]))


def test_the_founding_case_stands_where_its_log_puts_it(tmp_path: Path) -> None:
    """29.48 / 0.97 = 30.39 ms; 10,233 tokens in 173.01 s are 59.15 a second: 1.80 a cycle."""
    (one,) = found(tmp_path, [HERE, *logged(FOUNDING, "verify.log")])
    assert one.seconds == pytest.approx(0.02948 / 0.97)
    assert (one.is_cycle, one.is_implied, one.plain) == (True, True, None)
    assert one.accepted == pytest.approx(10_233 / 173.01 * 0.02948 / 0.97)
    assert one.tokens_per_s == pytest.approx(10_233 / 173.01)
    assert one.break_even is None


def test_a_plain_run_that_was_read_with_it_gives_the_break_even(tmp_path: Path) -> None:
    """30.39 / 12.12 = 2.507."""
    together = "python -m ingest verify.log plain.log"
    plain = steps(12.12e-3, file="plain.log", command=together)
    (one,) = found(tmp_path, [HERE, *logged(FOUNDING, "verify.log", together), plain])
    assert one.break_even == pytest.approx(0.02948 / 0.97 / 0.01212)
    assert one.plain_file == "plain.log"
    assert one.speedup == pytest.approx(1.7976 / 2.5076, rel=1e-3)


def test_a_table_without_a_load_takes_no_plain_step_of_many_files(tmp_path: Path) -> None:
    together = "python -m ingest verify.log plain.log third.log"
    plain = steps(12.12e-3, file="plain.log", command=together)
    third = steps(20e-3, accepted=2.0, requests=4, file="third.log", command=together)
    lines: list[Record] = [HERE, *logged(FOUNDING, "verify.log", together), plain, third]
    assert [one.plain for one in found(tmp_path, lines)] == [None, None]


def test_each_load_is_held_against_its_own_plain_step(tmp_path: Path) -> None:
    """One request 27 / 12 = 2.25, eight 100 / 32 = 3.125: the first pays at 2.6, the other not."""
    lines = [
        steps(0.027, accepted=2.6),
        steps(0.100, requests=8, accepted=2.6),
        steps(0.012),
        steps(0.032, requests=8),
        steps(0.050, requests=4, accepted=2.0),
    ]
    one, four, eight = found(tmp_path, [HERE, *lines])
    assert (one.break_even, eight.break_even) == pytest.approx((2.25, 3.125))
    assert one.speedup == pytest.approx(2.6 / 2.25)
    assert eight.tokens_per_s == pytest.approx(8 * 2.6 / 0.1)
    assert four.plain is None


@pytest.mark.parametrize(
    "changes",
    [
        {"command": "python -m ingest other.log"},
        {"implementation": "vllm"},
        {"ranks": 4},
        {"environment": "elsewhere"},
    ],
)
def test_a_plain_step_of_another_system_is_not_taken(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    cycle = steps(0.027, accepted=2.6, ranks=8)
    plain = msgspec.structs.replace(steps(0.012, file="other.log", ranks=8), **changes)
    (one,) = found(tmp_path, [HERE, cycle, plain])
    assert one.plain is None
    (one,) = found(tmp_path, [HERE, cycle, steps(0.012, file="other.log", ranks=8)])
    assert one.plain is not None


def test_an_upper_bound_is_no_plain_step(tmp_path: Path) -> None:
    notes = "verify (default backend)   ~400 ms\nplain decode forward   <100 ms\n"
    (one,) = found(tmp_path, [HERE, *logged(notes, "notes.txt")])
    assert (one.is_cycle, one.plain) == (False, None)
    assert one.seconds == pytest.approx(0.4)


def passes() -> list[Measurement]:
    return [
        kernel(
            "stub",
            1000.0 * milliseconds,
            id=f"{launch}-{rows}",
            part="forward",
            op="forward",
            case=f"kimi-rows{rows}",
            dims={"model": "kimi-k2.5", "tp": 8, "rows": rows, "requests": 1, "context": 8192},
            launch=launch,
        )
        for launch, base in (("eager", 25), ("graph", 12))
        for rows, milliseconds in ((1, base), (4, base + 6))
    ]


def test_a_measured_verify_needs_at_least_its_break_even(tmp_path: Path) -> None:
    """18 / 12 = 1.5 from a graph, 31 / 25 = 1.24 eager; a cycle is longer than its verify."""
    eager, graph = found(tmp_path, [GPU, *passes()])
    assert (eager.break_even, graph.break_even) == pytest.approx((1.24, 1.5))
    assert (graph.is_cycle, graph.accepted, graph.rows) == (False, None, 4)
    assert graph.name == "measured pass, kimi-rows4, graph"
    on_cpu = [msgspec.structs.replace(one, environment="cpu") for one in passes()]
    assert {one.name[-5:] for one in found(tmp_path / "cpu", [CPU, *on_cpu])} == {", CPU"}
    text = section(points(collect([tmp_path / "records.jsonl"])), Folder(path=None))
    assert "at least" in text
    assert "Acceptance is missing where the table has none" in text


def test_the_section_has_a_verdict_a_table_and_what_is_missing(tmp_path: Path) -> None:
    page = Page(tmp_path).of(
        [
            HERE,
            steps(0.027, accepted=2.6),
            steps(0.012),
            steps(0.100, requests=8, accepted=2.6, file="other.log"),
        ]
    )
    assert "Speculation pays at 1 of 1 operating point." in page.text
    assert "acceptance must exceed 2.25, it is 2.60." in page.text
    first, second = page.rows("## Speculation")
    assert (first["what"], first["cycle"], first["plain step"]) == (
        "other.log, 8 running",
        "100 ms",
        "–",
    )
    assert first["break-even"] == first["x plain"] == "–"
    assert (second["break-even"], second["acceptance"]) == ("2.25", "2.60")
    assert (second["tok/s"], second["x plain"]) == ("96.3", "1.16")
    assert "A plain step is missing where the table has none" in page.text
    assert "Acceptance is missing" not in page.text


def test_without_a_cycle_or_a_verify_there_is_no_section(tmp_path: Path) -> None:
    page = Page(tmp_path).of([GPU, kernel("own", 1.0), steps(0.012, environment="gpu")])
    assert "## Speculation" not in page.text


NASTY = "<script>alert(1)</script> | *x*"


def test_names_of_records_show_as_text(tmp_path: Path) -> None:
    page = Page(tmp_path).of([HERE, steps(0.027, accepted=2.6, file=NASTY), steps(0.012)])
    assert "<script>alert" not in page.text
    (row,) = page.rows("## Speculation")
    assert row["what"].startswith(r"\<script\>alert(1)\</script\> \| \*x\*")


def test_the_map_is_drawn_where_there_is_something_to_see(tmp_path: Path) -> None:
    lines: list[Record] = [HERE, steps(0.027, accepted=2.6), steps(0.012)]
    collected = collect([write(tmp_path / "records.jsonl", lines)])
    assert f"]({MAP})" in section(points(collected), Folder(path=tmp_path))
    assert (tmp_path / MAP).read_bytes().startswith(b"\x89PNG")
    bare = collect([write(tmp_path / "bare.jsonl", [HERE, *logged(FOUNDING.splitlines()[0], "v")])])
    empty = tmp_path / "empty"
    empty.mkdir()
    assert MAP not in section(points(bare), Folder(path=empty))
    assert not (empty / MAP).exists()


def of_model(model: str, file: str, *, requests: int, plain_s: float | None) -> list[Measurement]:
    """A cycle of 27 ms that yields 2.6, and a plain step, of one model's log."""
    both = [steps(0.027, accepted=2.6, requests=requests, file=file)]
    both += [] if plain_s is None else [steps(plain_s, requests=requests, file=f"plain_{file}")]
    return [
        msgspec.structs.replace(one, method={"model": model}, command="python -m ingest *")
        for one in both
    ]


def test_logs_of_several_systems_that_one_command_read_are_not_put_together(
    tmp_path: Path,
) -> None:
    kimi = of_model("kimi-k2.5", "a.log", requests=1, plain_s=None)
    glm = of_model("glm-5.1", "b.log", requests=1, plain_s=0.012)
    one, other = found(tmp_path, [HERE, *kimi, *glm])
    assert (one.system, one.plain_file) == ("glm-5.1, sglang", "plain_b.log")
    assert (other.system, other.plain) == ("kimi-k2.5, sglang", None)
    method = {"model": "kimi-k2.5", "same_system": True}
    same = [msgspec.structs.replace(one, method=method) for one in kimi]
    assert [one.plain_file for one in found(tmp_path / "same", [HERE, *same, *glm])] == [
        "plain_b.log",
        "plain_b.log",
    ]


def test_a_plain_step_of_the_command_line_is_of_all_loads_and_of_one_system(
    tmp_path: Path,
) -> None:
    given = plain_given(0.012, HERE)
    command = "python -m ingest *"
    given = msgspec.structs.replace(given, command=command)
    eight = of_model("kimi-k2.5", "a.log", requests=8, plain_s=0.030)
    (one,) = found(tmp_path, [HERE, *eight, given])
    assert one.break_even == pytest.approx(0.027 / 0.012)
    glm = of_model("glm-5.1", "b.log", requests=1, plain_s=None)
    lines: list[Record] = [HERE, *eight, *glm, given]
    assert [one.plain_file for one in found(tmp_path / "two", lines)] == [None, "plain_a.log"]


def test_a_map_is_of_one_system(tmp_path: Path) -> None:
    kimi = of_model("kimi-k2.5", "a.log", requests=1, plain_s=0.020)
    glm = of_model("glm-5.1", "b.log", requests=1, plain_s=0.012)
    bare = of_model("qwen3-8b", "c.log", requests=1, plain_s=None)
    path = write(tmp_path / "records.jsonl", [HERE, *kimi, *glm, *bare])
    text = section(points(collect([path])), Folder(path=tmp_path))
    assert "with break-even lines](speculation.png)" in text
    assert "cycle of kimi-k2.5, sglang, with break-even lines](speculation-2.png)" in text
    assert "speculation-3" not in text
    assert "of the others in the table no plain step is known" in text
    assert (tmp_path / "speculation-2.png").read_bytes().startswith(b"\x89PNG")


def test_the_verdict_says_where_speculation_pays_on_the_system_most_is_known_of(
    tmp_path: Path,
) -> None:
    """27 / 12 = 2.25, of which 2.6 is 1.16; 27 / 9 = 3.00, of which it is 0.87."""
    lines = [
        *of_model("kimi-k2.5", "a.log", requests=1, plain_s=0.012),
        *of_model("kimi-k2.5", "a.log", requests=8, plain_s=0.009),
        *of_model("glm-5.1", "b.log", requests=1, plain_s=None),
    ]
    page = Page(tmp_path).of([HERE, *lines])
    assert (
        "On kimi-k2.5, sglang acceptance must exceed 2.25 to 3.00 to pay; speculation pays at 1 of "
        "2 operating points, at best 1.16 x and at worst 0.87 x plain decoding." in page.text
    )


def test_the_acceptance_that_a_table_states_stands_before_that_of_its_runs(
    tmp_path: Path,
) -> None:
    text = FOUNDING + "Accept length: 1.83 tok/cyc\n"
    (one,) = found(tmp_path, [HERE, *logged(text, "verify.log")])
    assert (one.accepted, one.is_implied) == (1.83, False)


def test_points_of_a_file_are_in_the_order_of_their_loads(tmp_path: Path) -> None:
    lines = [steps(0.01 * at, requests=at, accepted=2.0) for at in (10, 2, 1, 12)]
    assert [one.requests for one in found(tmp_path, [HERE, *lines])] == [1, 2, 10, 12]


def test_of_many_plain_steps_the_map_shows_some_from_end_to_end(tmp_path: Path) -> None:
    lines = [steps(0.010 + 0.001 * at, requests=at) for at in range(1, 13)]
    lines += [steps(0.030, requests=at, accepted=2.0) for at in range(1, 13)]
    shown = _speculation_map._plains(found(tmp_path, [HERE, *lines]))
    assert [requests for _, requests in shown] == [1, 4, 7, 9, 12]
