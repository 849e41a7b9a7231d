"""The verdict: three sentences, each number with its source, what is not known said."""

from pathlib import Path

import msgspec
import pytest

from reports._first_words import first_words
from tests.report_page import Page
from tests.report_sample import CPU, GPU, US, collective, kernel, predicted
from verifyscope.records import Evidence, Finding, Measurement, Origin, Record


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def verdict(page: Page, lines: list[Record]) -> str:
    page.of([GPU, CPU, *lines])
    return first_words((page.folder / "out" / "report.md").read_text(encoding="utf-8"))[0]


def forward(launch: str, median_us: float, **changes: object) -> Measurement:
    """Return a whole pass that was measured."""
    whole = kernel("stub", median_us, op="forward", part="forward", launch=launch, case=launch)
    return msgspec.structs.replace(whole, **{"dims": {"rows": 3}, "case": "kimi", **changes})


def theirs(op: str, median_us: float, case: str) -> Measurement:
    return kernel(
        "sglang", median_us, op=op, part="cycle", case=case, source="imported", dims={"rows": 3}
    )


def test_of_nothing_each_sentence_says_that_it_is_not_known(page: Page) -> None:
    assert verdict(page, [kernel("own", 5.0)]) == (
        "Verdict. How long a verify takes is not known: no record is of a whole pass (python -m "
        "graphs.replay --model MODEL --tp N --rows ROWS --predict GPU). What all-reduces take of "
        "it is not known (python -m collectives.sweep measures them); what graph replay would "
        "save is not known (python -m graphs.replay --model MODEL --tp N --rows ROWS --device "
        "cuda). Which acceptance it must reach to pay is not known: python -m reports.speculation "
        "says it from a verify and a plain step."
    )


def found(name: str, sentence: str, file: str) -> Finding:
    return Finding(name=name, sentence=sentence, evidence=(Evidence(file, 2, "seen"),))


def test_a_report_of_logs_alone_begins_with_what_ingest_says_first(page: Page) -> None:
    findings: list[Record] = [
        found("windows-dropped", "1 window does not count", "a.log"),
        found("graph-off", "no CUDA graph at 48 running", "a.log"),
        found("drafter-broken", "acceptance is exactly 1.00", "b.log"),
    ]
    assert verdict(page, findings) == (
        "Verdict. b.log: acceptance is exactly 1.00. How long a verify takes, what of it "
        "all-reduces are, what graph replay would save and which acceptance pays are not known: "
        "python -m verifyscope.diagnose --model MODEL --tp N measures what it can and predicts "
        "the rest."
    )
    assert verdict(page, findings[:2]).startswith("Verdict. No CUDA graph at 48 running. How long")
    host: list[Record] = [found("acs-redirect", "ACS redirects on 2 of 2 bridges", "report.txt")]
    assert verdict(page, host).startswith("Verdict. ACS redirects on 2 of 2 bridges. How long")


def test_of_logs_alone_findings_stand_before_tables_and_in_their_order(page: Page) -> None:
    findings: list[Record] = [
        found("windows-dropped", "1 window does not count", "a.log"),
        found("cycle", "a cycle takes 9 ms", "a.log"),
        found("drafter-broken", "acceptance is exactly 1.00", "b.log"),
    ]
    page.of([GPU, CPU, theirs("cycle", 9000.0, "48 running"), *findings])
    headings = [line for line in page.text.splitlines() if line.startswith("#")]
    assert headings[1:6] == [
        "## Findings", "### drafter-broken", "### cycle", "### windows-dropped", "## Kernels",
    ]  # fmt: skip
    page.of([GPU, CPU, forward("eager", 29_490.0), *findings])
    assert page.text.index("\n## Findings") > page.text.index("\n## Where verify time goes")


def test_behind_the_first_finding_stands_what_is_known_of_a_verify(page: Page) -> None:
    lines: list[Record] = [theirs("cycle", 9000.0, "48 running, eager")]
    lines += [found("graph-off", "no CUDA graph", "a.log")]
    lines += [found("cycle", "a cycle takes 9 ms", "a.log")]
    said = verdict(page, lines)
    assert said.startswith(
        "Verdict. No CUDA graph. A cycle with a verify of 3 rows took 9.00 ms (imported)."
    )
    assert "how long a verify takes" not in said.lower()


def test_where_a_pass_is_measured_it_goes_before_findings(page: Page) -> None:
    lines: list[Record] = [forward("eager", 29_490.0), found("graph-off", "no CUDA graph", "a.log")]
    assert verdict(page, lines).startswith("Verdict. A verify of 3 rows takes 29.5 ms (measured")


def test_a_measured_pass_and_its_replay_come_first(page: Page) -> None:
    passes = [forward("eager", 29_490.0), forward("graph", 19_000.0)]
    said = verdict(
        page, [*passes, predicted("routed_experts", 60.0, 60), theirs("verify", 9.0, "a")]
    )
    assert "A verify of 3 rows takes 19.0 ms (measured, graph)" in said
    assert "graph replay would save 10.5 ms (measured)" in said
    # What is predicted of another pass is not put beside it.
    assert "3.60 ms" not in said
    assert "9.00 us" not in said


def test_a_pass_on_a_cpu_says_so_and_one_on_a_gpu_goes_before_it(page: Page) -> None:
    on_cpu = forward("eager", 5.0, environment="cpu")
    assert "5.00 us (measured, eager, on the CPU)" in verdict(page, [on_cpu])
    assert "29.5 ms (measured, eager)" in verdict(page, [on_cpu, forward("eager", 29_490.0)])


def test_a_shrunk_stub_is_no_time_of_the_model_and_a_pass_in_pieces_is_none(page: Page) -> None:
    shrunk = forward("eager", 900.0, dims={"rows": 3, "shrunk": True})
    said = verdict(
        page, [shrunk, forward("piecewise", 5.0, dims={"rows": 3, "outside": "attention"})]
    )
    assert "900 us (measured, eager): of a stub shrunk to fit, no time of the real model" in said
    assert "29.5 ms (measured, eager)" in verdict(
        page, [shrunk, forward("eager", 29_490.0, case="b")]
    )


def test_a_replay_that_changes_nothing_is_no_lever(page: Page) -> None:
    said = verdict(page, [forward("eager", 1000.0), forward("graph", 990.0)])
    assert "graph replay would save next to nothing (measured)" in said


def test_imported_verifies_of_several_systems_are_not_put_together(page: Page) -> None:
    assert "A verify of 3 rows took 400 ms (imported)" in verdict(
        page, [theirs("verify", 400_000.0, "a")]
    )
    said = verdict(page, [theirs("verify", 400_000.0, "a"), theirs("cycle", 27_400.0, "b")])
    assert (
        "2 imported times of verifies and whole cycles, of one system by their files, go from "
        "27.4 ms to 400 ms" in said
    )
    named: list[Record] = [
        msgspec.structs.replace(one, method={"model": model}, origin=Origin(model))
        for one, model in (
            (theirs("verify", 400_000.0, "a"), "deepseek-r1"),
            (theirs("cycle", 27_400.0, "b"), "glm-5.1"),
        )
    ]
    assert (
        "2 imported times of verifies and whole cycles, of 2 systems, go from 27.4 ms"
        in verdict(page, named)
    )
    assert "A cycle with a verify of 3 rows took 27.4 ms (imported)" in verdict(page, named[1:])


def test_all_reduces_of_a_measured_sweep_are_times_their_calls(page: Page) -> None:
    dims = {
        "bytes": 57_344,
        "dtype": "bfloat16",
        "in_place": False,
        "tokens": 4,
        "model": "kimi-k2.5",
    }
    said = verdict(page, [collective(57_344, 1000.0, dims=dims), collective(2**13, 900.0)])
    assert (
        "122 ms of a pass of 4 rows are all-reduces at 1.00 ms each (measured, on the CPU)" in said
    )


def test_an_observed_time_is_held_against_a_plain_token_and_is_not_called_measured(
    page: Page,
) -> None:
    excess = predicted("forward", 10.0, 1, observed_s=29.49e-3, against="the prediction", count=122)
    lever = predicted("forward", 20_000.0, 1, number=0, alone_s=0.02, together_s=0.02)
    said = verdict(
        page,
        [
            predicted("routed_experts", 60.0, 60),
            predicted("all_reduce", 30.0, 122),
            *(
                msgspec.structs.replace(
                    one,
                    op=op,
                    floor_s=None,
                    method=one.method
                    | {
                        "plain_s": 12_120 * US,
                        "plain": "given",
                        "accepted": 2.0,
                        "observed": "a log",
                    },
                )
                for one, op in ((excess, "excess"), (lever, "what_if"))
            ),
        ],
    )
    # 60 x 60 + 122 x 30 us
    assert (
        "A verify of 4 rows took 29.5 ms (observed: a log); 7.26 ms of it are predicted, 22.2 ms "
        "are unexplained."
    ) in said
    assert "Of what is predicted, 3.66 ms are all-reduces at 30.0 us each" in said
    # 29.49 / 12.12
    assert "Acceptance must exceed 2.43 to pay, against 12.1 ms a plain token (given)" in said
    assert said.endswith("it is 2.00.")


def test_one_finding_on_the_break_even_is_the_third_sentence_and_two_are_counted(
    page: Page,
) -> None:
    def finding(words: str) -> Finding:
        return Finding(name="break-even", sentence=words, evidence=(), confidence="sure")

    assert verdict(page, [finding("speculation loses *here*.")]).endswith(
        " Speculation loses *here*."
    )
    said = verdict(page, [finding("speculation loses"), finding("speculation pays")])
    assert "(2 findings on it)" in said


def test_the_first_words_are_the_verdict_and_what_is_in_bold_behind_it() -> None:
    page = (
        "# A report\n\n**Verdict.** A *verify*\ntakes `x`.\n\n"
        "**Worth most**: a\\_b.\n\nRows.\n\n**Bold**"
    )
    assert first_words(page) == ["Verdict. A verify takes x.", "Worth most: a_b."]
    assert first_words("# No report of ours\n\nVerdict. None.\n") == []


def lever(name: str, number: int, alone_s: float, tokens_per_s: float) -> Measurement:
    one = predicted(
        "forward",
        alone_s / US,
        1,
        number=number,
        alone_s=alone_s,
        together_s=alone_s,
        alone_least_tokens_per_s=tokens_per_s,
        alone_most_tokens_per_s=3 * tokens_per_s,
    )
    return msgspec.structs.replace(one, op="what_if", implementation=name, floor_s=None)


def test_the_three_levers_worth_most_stand_below_it_the_largest_first(page: Page) -> None:
    levers = [
        lever("now", 0, 0.030, 33.0),
        lever("small", 1, 0.0299, 33.1),
        lever("third", 2, 0.027, 37.0),
        lever("first", 3, 0.020, 50.0),
        lever("second", 4, 0.025, 40.0),
        lever("fourth", 5, 0.028, 35.7),
    ]
    page.of([GPU, CPU, predicted("routed_experts", 60.0, 60), *levers])
    worth = page.rows("of it the floor of its bytes", number=1)
    assert [(row["worth most, each alone"], row["saves"], row["tok/s"]) for row in worth] == [
        ("first", "*10.0 ms*", "*at most +17.0 to +51.0*"),
        ("second", "*5.00 ms*", "*at most +7.0 to +21.0*"),
        ("third", "*3.00 ms*", "*at most +4.0 to +12.0*"),
    ]
    assert {row["known how"] for row in worth} == {"predicted"}


def test_all_reduces_of_a_profiled_pass_are_its_own(page: Page) -> None:
    whole = forward("eager", 1000.0)
    told = forward("eager", 260.0)
    told = msgspec.structs.replace(told, op="forward_class", part="all_reduce")
    assert "260 us of it are all-reduces (by a profiler, eager)" in verdict(page, [whole, told])


def test_a_profilers_part_that_is_longer_than_the_timed_pass_is_no_part_of_it(page: Page) -> None:
    whole = forward("eager", 1000.0)
    told = forward("eager", 2600.0)
    told = msgspec.structs.replace(told, op="forward_class", part="all_reduce")
    said = verdict(page, [GPU, whole, told])
    assert "All-reduces took 2.60 ms in other passes (by a profiler, eager)" in said
    assert "what they take of it is not known" in said
    assert "of it are all-reduces" not in said
