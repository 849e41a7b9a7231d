"""`python -m reports.speculation`: the founding case by hand, lines from runs, bad questions."""

import json
import shlex
from pathlib import Path

import pytest

from reports import speculation
from tests.report_sample import CPU, GPU, kernel, predicted, write
from verifyscope import cli
from verifyscope.records import Finding, Measurement, encoded, read

Capture = pytest.CaptureFixture[str]
FOUNDING = "--verify-ms 29.49 --share 0.97 --step-ms 12.12 --accept-length 2.0"


class Asked:
    """Runs the command in this process and keeps what it printed."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.status = 0
        self.lines: list[str] = []
        self.notes = ""

    def of(self, words: str, *paths: str | Path) -> "Asked":
        given = [*shlex.split(words), *map(str, paths)]
        with pytest.raises(SystemExit) as end:
            cli.run(speculation.app, speculation.PROGRAM, given)
        assert isinstance(end.value.code, int)
        self.status = end.value.code
        said = self._capture.readouterr()
        self.lines, self.notes = said.out.splitlines(), said.err
        return self

    @property
    def verdict(self) -> str:
        assert self.status == 0, self.notes
        return self.lines[0]

    def rows(self, kind: str) -> list[list[str]]:
        """Return the rows that begin with `kind`, without it."""
        split = [line.split("\t") for line in self.lines]
        return [cells[1:] for cells in split if cells[0] == kind]

    def value(self, name: str) -> str:
        return next(value for what, value, _ in self.rows("number") if what == name)

    @property
    def refused(self) -> str:
        assert (self.status, self.lines) == (2, [])
        (line,) = self.notes.splitlines()
        return line.removeprefix(f"{speculation.PROGRAM}: ")


@pytest.fixture
def ask(capsys: Capture) -> Asked:
    return Asked(capsys)


def test_the_founding_case_loses_by_hand(ask: Asked) -> None:
    """29.49 / 0.97 = 30.402 ms; 2 / 30.402 = 65.785; / 12.12: 2.508 and 2.433; x 150: 4.560."""
    ask.of(f"{FOUNDING} --target-tok-s 150")
    assert ask.verdict == (
        "Speculation loses: 65.8 tok/s against 82.5 tok/s plain, 0.80 x; acceptance must exceed "
        "2.51 to pay; it is 2.00"
    )
    assert ask.value("cycle") == "30.4 ms"
    assert ask.value("break-even") == "2.51"
    assert ask.value("break-even by verify") == "2.43"
    targets = [value for name, value, _ in ask.rows("number") if name == "for 150 tok/s"]
    assert targets == [
        "accept length 4.56",
        "or a cycle of 13.3 ms",
        "or a plain step of 6.67 ms",
    ]
    assert "0.78 a step of an endless chain" in "".join(ask.lines)


def test_its_json_holds_the_same_numbers_unrounded(ask: Asked, tmp_path: Path) -> None:
    ask.of(f"{FOUNDING} --target-tok-s 150 --json", tmp_path / "new" / "it.json")
    said = json.loads((tmp_path / "new" / "it.json").read_text())
    found = said["answer"]
    assert said["verdict"] == ask.verdict
    assert said["asked"]["cycle"]["value"] == pytest.approx(0.02949 / 0.97)
    assert found["tokens_per_s"] == pytest.approx(2 * 0.97 / 0.02949)
    assert found["plain_tokens_per_s"] == pytest.approx(1 / 0.01212)
    assert found["break_even"] == pytest.approx(29.49 / 0.97 / 12.12)
    assert found["break_even_by_verify"] == pytest.approx(29.49 / 12.12)
    assert said["speedup"] == pytest.approx(2 / (29.49 / 0.97 / 12.12))
    assert found["target"]["accepted"] == pytest.approx(150 * 0.02949 / 0.97)
    assert found["target"]["cycle_s"] == pytest.approx(2 / 150)
    assert found["target"]["chain_acceptance"] == pytest.approx(1 - 0.97 / 0.02949 / 150)
    assert said["best"] is None


def test_a_target_beyond_the_rows_is_never_reached(ask: Asked) -> None:
    ask.of(f"{FOUNDING} --rows 3 --target-tok-s 150")
    assert "never: a verify of 3 rows yields at most 3" in "".join(ask.lines)


def test_several_requests_multiply_rates_and_share_a_target(ask: Asked) -> None:
    """4 requests: 4 x 2 / 30.402 ms = 263.1; of 300 each needs 75 tok/s: 2.28 a cycle."""
    ask.of(f"{FOUNDING} --requests 4 --target-tok-s 300")
    assert ask.value("speculative") == "263.1 tok/s"
    assert ask.value("plain") == "330.0 tok/s"
    assert ask.value("break-even") == "2.51"
    assert ask.value("for 300 tok/s") == "accept length 2.28"


@pytest.mark.parametrize(
    ("words", "verify", "cycle"),
    [
        ("--cycle-ms 20 --share 0.95", "19 ms", "20 ms"),
        ("--cycle-ms 20 --verify-ms 19", "19 ms", "20 ms"),
        ("--verify-ms 19 --share 0.95", "19 ms", "20 ms"),
        ("--verify-ms 19 --share 0.95 --cycle-ms 20.05", "19 ms", "20.05 ms"),
    ],
)
def test_any_two_of_cycle_verify_and_share_give_the_third(
    ask: Asked, words: str, verify: str, cycle: str
) -> None:
    ask.of(f"{words} --step-ms 10")
    assert (ask.value("verify"), ask.value("cycle")) == (verify, cycle)
    assert ask.verdict.startswith("Acceptance must exceed 2.0")


def test_without_the_rest_of_a_cycle_all_is_a_bound(ask: Asked) -> None:
    ask.of("--verify-ms 29.49 --step-ms 12.12 --accept-length 2.0")
    assert ask.verdict == (
        "Speculation loses: at most 67.8 tok/s against 82.5 tok/s plain, at most 0.82 x; "
        "acceptance must exceed at least 2.43 to pay; it is 2.00"
    )
    assert [
        "draft and host: give --share or --cycle-ms; until then a cycle is its verify alone"
    ] in (ask.rows("missing"))
    ask.of("--verify-ms 20 --step-ms 12.12 --accept-length 2.0")
    assert ask.verdict.startswith("Speculation may pay: at most 100.0 tok/s")


def test_a_cycle_alone_is_enough_for_break_even_and_a_rate_for_no_verdict(ask: Asked) -> None:
    ask.of("--cycle-ms 30 --step-ms 12")
    assert ask.verdict == "Acceptance must exceed 2.50 to pay; what it is was not given"
    ask.of("--cycle-ms 30 --accept-length 3")
    assert ask.verdict == (
        "Speculation gives 100.0 tok/s; without the time of a plain step nobody can say whether "
        "that pays"
    )
    ask.of("--accept-length 3")
    assert ask.verdict.startswith("Whether speculation pays is not known")


@pytest.mark.parametrize(
    ("words", "length"),
    [
        ("--accept-rate 0.54 --accept-rate-is length/rows --rows 4", "2.16"),
        ("--accept-rate 0.5 --accept-rate-is taken/drafted --draft-tokens 3", "2.5"),
        ("--accept-rate 0.65 --accept-rate-is taken/steps --rows 8 --steps 3", "2.95"),
        ("--accept-rate 0.5 --accept-rate-is step --draft-tokens 2", "1.75"),
        ("--step-acceptance 0.5 --draft-tokens 2", "1.75"),
    ],
)
def test_each_definition_of_an_acceptance_rate_gives_its_accept_length(
    ask: Asked, words: str, length: str
) -> None:
    ask.of(f"--cycle-ms 20 --step-ms 10 {words}")
    assert ask.value("accept length") == length


def test_a_rate_without_its_definition_is_asked_for(ask: Asked) -> None:
    ask.of(f"{FOUNDING} --accept-rate 0.5")
    assert ask.refused == "give --accept-length or --accept-rate, not both"
    ask.of("--cycle-ms 20 --accept-rate 0.54 --rows 4")
    assert ask.refused == (
        "--accept-rate 0.54 means different things in different logs; name it by --accept-rate-is "
        "length/rows (accept length 2.16), taken/drafted (accept length 2.62), taken/steps (accept "
        "length 2.62) or step, or give --accept-length"
    )


def test_best_chain_and_tree_of_a_line(ask: Asked) -> None:
    """10 + 1 x rows at one half: 1.75 / 13 ms = 134.6 is the best chain, 13 / 11 its break-even."""
    ask.of("--base-ms 10 --slope-ms 1 --step-acceptance 0.5,0.3 --draft-tokens 2")
    chains = [row for row in ask.rows("draft") if row[0] == "chain"]
    assert [row[1:6] for row in chains[:3]] == [
        ["1", "1", "1.50", "12.0 ms", "125.0"],
        ["2", "2", "1.75", "13.0 ms", "134.6"],
        ["3", "3", "1.88", "14.0 ms", "133.9"],
    ]
    assert [row[1] for row in chains if "best chain" in row[6]] == ["2"]
    # Beside 0.5 stand 0.3 and 0.25: two of them yield 1.8 / 13 = 138.5, three 2.05 / 14 = 146.4.
    trees = {row[1]: row for row in ask.rows("draft") if row[0] == "tree"}
    assert trees["3"][2:6] == ["2", "2.05", "14.0 ms", "146.4"]
    assert "best tree" in next(row for row in trees.values() if "best" in row[6])[6]
    even = {(row[0], row[1]): row[2:] for row in ask.rows("even")}
    assert even["1", "2"] == ["11.0 ms", "13.0 ms", "1.18 pays"]
    assert even["4", "2"] == ["14.0 ms", "22.0 ms", "1.57 pays"]
    assert even["64", "1"] == ["74.0 ms", "138 ms", "1.86 loses"]


def test_no_drafter_pays_where_break_even_is_above_all_rows(ask: Asked) -> None:
    ask.of("--base-ms 1 --slope-ms 1 --draft-step-ms 9 --step-acceptance 0.9")
    assert {row[-1].split()[-1] for row in ask.rows("even")} == {"never"}


def test_a_slope_is_laid_through_the_verify_that_is_given(ask: Asked) -> None:
    ask.of(f"{FOUNDING} --rows 3 --slope-ms 1.2")
    assert ask.value("line") == "25.9 ms + 1.20 ms x rows"
    even = {(row[0], row[1]): row[2:] for row in ask.rows("even")}
    # 30.402 / 12.12 as above; at 2 requests 30.402 + 3.6 over 12.12 + 1.2.
    assert even["1", "2"][2] == "2.51 loses"
    assert even["2", "2"] == ["13.3 ms", "34.0 ms", "2.55 loses"]


def passes(*, source: str = "measured", **changes: object) -> list[Measurement]:
    """Whole passes of 10 ms and 0.5 ms a row, those of eager launches 3 ms longer."""
    return [
        kernel(
            "stub",
            (10_000 + 500 * rows + extra),
            part="forward",
            op="forward",
            case=f"kimi-rows{rows}",
            dims={"model": "kimi-k2.5", "tp": 8, "rows": rows, "requests": 1, "context": 8192},
            launch=launch,
            source=source,
            **changes,
        )
        for launch, extra in (("eager", 3000), ("graph", 0))
        for rows in (1, 2, 4, 8)
    ]


def test_the_line_of_a_run_is_that_of_its_replayed_passes(ask: Asked, tmp_path: Path) -> None:
    path = write(tmp_path / "run" / "records.jsonl", [GPU, *passes()])
    ask.of("--rows 4 --accept-length 2.5 --share 0.96 --from", path)
    assert ask.value("line") == "10.0 ms + 500 us x rows"
    assert ask.value("verify") == "12 ms"
    assert ask.value("cycle") == "12.5 ms"
    assert ask.value("plain step") == "10.5 ms"
    # 12.5 / 10.5
    assert ask.value("break-even") == "1.19"
    (how,) = [how for name, _, how in ask.rows("number") if name == "line"]
    assert how.startswith("measured: forward by stub, graph, cold, model kimi-k2.5, tp 8, context")
    assert "at 1, 2, 4, 8 rows, off by 0.0 % at most" in how
    assert "--from holds 1 more; --line names one, such as: forward by stub, eager" in ask.notes
    assert "CPU" not in ask.notes
    on_cpu = write(tmp_path / "cpu.jsonl", [CPU, *passes(environment="cpu")])
    assert "measured on a CPU: it says nothing about a GPU" in ask.of("--from", on_cpu).notes
    ask.of("--rows 4 --accept-length 2.5 --line eager --from", path.parent)
    assert ask.value("line") == "13.0 ms + 500 us x rows"


def test_a_measured_line_goes_before_a_predicted_one_which_says_so(
    ask: Asked, tmp_path: Path
) -> None:
    foreseen = passes(source="predicted")
    path = write(tmp_path / "foreseen.jsonl", [GPU, *foreseen])
    ask.of("--rows 4 --cycle-ms 12.5 --accept-length 2.5 --from", path)
    assert ask.verdict.startswith("Predicted, not measured: speculation pays: 200.0 tok/s")
    path = write(tmp_path / "both.jsonl", [GPU, *foreseen, *passes()])
    ask.of("--rows 4 --cycle-ms 12.5 --accept-length 2.5 --from", path)
    assert ask.verdict.startswith("Speculation pays: 200.0 tok/s")


def test_parts_of_predicted_passes_add_up_to_a_line(ask: Asked, tmp_path: Path) -> None:
    """60 calls of 60 us + 10 us x rows, 61 of 30 us: 5.43 ms + 0.6 ms x rows, no all-reduce."""
    rows = [
        one
        for count in (1, 2, 4)
        for one in (
            predicted("routed_experts", 60.0 + 10 * count, 60, rows=count),
            predicted("attention_projections", 30.0, 61, rows=count),
            predicted("all_reduce", None, 122, rows=count),
        )
    ]
    path = write(tmp_path / "records.jsonl", [CPU, *rows])
    ask.of("--rows 4 --accept-length 2.5 --from", path)
    assert ask.value("line") == "5.43 ms + 600 us x rows"
    assert ask.verdict.startswith("Predicted, not measured: speculation may pay: at most")
    assert "by what is known, acceptance must exceed 1.30" in ask.verdict
    assert "not all of a pass is in it" in "".join(ask.lines)


def test_a_kernels_slope_is_taken_by_name_and_times_its_calls(ask: Asked, tmp_path: Path) -> None:
    """20 us + 2 us x rows, 61 calls: 0.122 ms a row; 29.49 ms at 3 rows leave a base of 29.124."""
    rows = [
        kernel("triton", 20.0 + 2 * count, case=f"t{count}", dims={"rows": count, "context": 8192})
        for count in (1, 2, 4)
    ]
    path = write(tmp_path / "records.jsonl", [GPU, *rows])
    words = f"{FOUNDING} --rows 3 --op tree_attention --calls 61 --from"
    ask.of(words, path)
    assert ask.value("line") == "29.1 ms + 122 us x rows"
    # What was given is whole, whatever the slope lacks.
    assert ask.verdict.startswith("Speculation loses: 65.8 tok/s")
    ask.of("--rows 3 --op tree_attention --calls 61 --from", path)
    assert "of this line only the slope is known; give --verify-ms and --rows" in ask.refused
    ask.of(f"{FOUNDING} --from", path)
    assert "holds no time at two or more numbers of rows" in ask.refused


def test_given_times_and_the_verdict_become_records(ask: Asked, tmp_path: Path) -> None:
    ask.of(f"{FOUNDING} --rows 3 --records", tmp_path / "kept.jsonl")
    found = list(read([tmp_path / "kept.jsonl"]))
    cycle, plain = (one for one in found if isinstance(one, Measurement))
    assert (cycle.source, cycle.part, cycle.mode) == ("imported", "cycle", "verify")
    assert cycle.dims == {"requests": 1, "rows": 3, "acceptance": 2.0}
    assert cycle.median_s == pytest.approx(0.02949 / 0.97)
    assert (plain.op, plain.mode) == ("step", "decode")
    assert plain.median_s == pytest.approx(0.01212)
    (said,) = (one for one in found if isinstance(one, Finding))
    assert said.sentence == f"{ask.verdict}."
    assert [one.at for one in said.evidence] == ["verify", "cycle", "plain step", "accept length"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "nothing to compute with; give --verify-ms, --share and --step-ms first"),
        ("--verify-ms 0", "--verify-ms 0 is not a number above zero"),
        ("--step-ms nan", "--step-ms nan is not a number above zero"),
        ("--cycle-ms inf", "--cycle-ms inf is not a number above zero"),
        ("--verify-ms 29 --share 97", "--share 97 is not a part of 1 (0.001 to 1); for 97 %"),
        ("--share 0.97", "--share is of a cycle; give --verify-ms or --cycle-ms, too"),
        ("--verify-ms 30 --cycle-ms 20", "a verify of 30 ms is longer than its cycle of 20 ms"),
        (
            "--verify-ms 10 --cycle-ms 20 --share 0.9",
            "verify / cycle is 0.500, --share says 0.9; give two of the three",
        ),
        ("--accept-length 0.8", "--accept-length 0.8 is not 1 to 4096; it counts the bonus token"),
        (
            "--verify-ms 1e308 --share 0.1",
            "--verify-ms 1e+308 is not a number above zero, of 1e-06",
        ),
        ("--verify-ms 3 --share 1e-300", "--share 1e-300 is not a part of 1 (0.001 to 1)"),
        ("--verify-ms 3 --accept-length inf", "--accept-length inf is not 1 to 4096"),
        (
            "--verify-ms 3 --accept-rate 0.7 --accept-rate-is step --step-acceptance 0.2 --rows 4",
            "--accept-rate 0.7 and --step-acceptance 0.2 are the same chance, and disagree",
        ),
        (
            "--base-ms 20 --slope-ms 3 --step-ms 5 --requests 64",
            "leaves nothing of the plain step of 5 ms of 64 requests for a single one",
        ),
        ("--accept-length 3.5 --rows 3", "an accept length of 3.5 is not 1 to 3"),
        ("--rows 3 --draft-tokens 3", "--rows 3 and --draft-tokens 3 disagree"),
        ("--rows 1", "--rows 1 is out of range; give 2 to 4096"),
        ("--rows 3 --steps 3", "--steps 3 is more than the 2 drafted tokens"),
        ("--requests 0", "--requests 0 is out of range; give 1 to 4096"),
        ("--accept-rate 54 --accept-rate-is step", "--accept-rate 54 is not a part of 1"),
        ("--accept-rate 0.5 --accept-rate-is x", "unknown definition of --accept-rate 'x'"),
        (
            "--accept-rate 0.5 --accept-rate-is taken/steps",
            "--accept-rate-is taken/steps needs --steps; give it as well",
        ),
        ("--accept-rate-is step", "--accept-rate-is names a definition of --accept-rate"),
        ("--step-acceptance 0.7,x", "--step-acceptance '0.7,x' is not one chance"),
        ("--step-acceptance 0.7,0.7", "that make at most 1 together"),
        ("--base-ms 3", "--base-ms needs --slope-ms"),
        ("--slope-ms -1", "--slope-ms -1 is neither 0 nor of 1e-06 to 1e+09"),
        ("--slope-ms 1", "of this line only the slope is known"),
        ("--verify-ms 3 --rows 4 --slope-ms 1", "a slope of 1 ms a row leaves nothing"),
        ("--op fused_moe --calls 60", "choose among the times of --from RUN"),
        (
            "--verify-ms 29 --share 0.97 --step-ms 12 --rows 3 --slope-ms 1 --draft-step-ms 3",
            "2 draft steps of 3 ms are more than the 0.897 ms of a cycle beside its verify",
        ),
    ],
)
def test_a_question_that_cannot_be_is_one_line(ask: Asked, words: str, said: str) -> None:
    assert said in ask.of(words).refused


def test_a_drafter_that_is_never_right_has_chains_of_one_token_and_no_tree(ask: Asked) -> None:
    for words in ("--step-acceptance 0", "--accept-length 1 --rows 4"):
        drafts = ask.of(f"{words} --base-ms 2 --slope-ms 1 --draft-step-ms 1").rows("draft")
        assert {cells[0] for cells in drafts} == {"chain"}
        # 1 token in base + slope x 2 rows + 1 step = 5 ms: 200 a second, the best there is.
        assert drafts[0][:6] == ["chain", "1", "1", "1.00", "5.00 ms", "200.0"]
        assert drafts[0][6].endswith("best chain")


def test_a_length_and_a_chance_that_disagree_are_told(ask: Asked) -> None:
    line = "--rows 4 --base-ms 20 --slope-ms 1 --accept-length 2"
    ask.of(f"{line} --step-acceptance 0.5")  # 1 + 0.5 + 0.25 + 0.125
    assert "a chain of 3 at 0.5 a step yields 1.88, not 2.00" in ask.notes
    ask.of(f"{line} --step-acceptance 0.5437")
    assert "two acceptances" not in ask.notes


def test_times_that_cross_by_rounding_leave_nothing_beside_the_verify(ask: Asked) -> None:
    ask.of("--verify-ms 20.1 --cycle-ms 20 --slope-ms 1 --rows 4 --accept-length 2")
    # base 16.1: a chain of 3 takes its verify of 20.1 ms and nothing beside it.
    assert ask.rows("draft")[2][4] == "20.1 ms"


def test_runs_that_cannot_be_read_are_one_line(ask: Asked, tmp_path: Path) -> None:
    assert "does not exist" in ask.of("--rows 4 --from", tmp_path / "none").refused
    newer = tmp_path / "newer.jsonl"
    newer.write_bytes(encoded(GPU).replace(b'"schema":1', b'"schema":7'))
    assert "record schema 7" in ask.of("--rows 4 --from", newer).refused
    path = write(tmp_path / "run.jsonl", [GPU, *passes()])
    assert "no line of" in ask.of("--rows 4 --line piecewise --from", path).refused
    assert "belong together" in ask.of("--rows 4 --op forward --from", path).refused
    falling = [
        kernel("stub", 900.0 / rows, part="forward", op="forward", dims={"rows": rows})
        for rows in (1, 2, 4)
    ]
    path = write(tmp_path / "falling.jsonl", [GPU, *falling])
    assert "does not grow with rows" in ask.of("--rows 4 --from", path).refused
