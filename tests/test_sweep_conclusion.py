"""The end of a sweep: its words, its findings, the lines to export and the tuner's file."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from collectives._sweep import tuner_csv
from collectives._sweep.conclusion import Conclusion, conclude, findings, lines
from tests.report_sample import GPU
from tests.sweep_rows import LL, SIZES, SLOW, US, Formula, line, sweep
from verifyscope.records import Finding, Measurement
from verifyscope.sweep_conclusion import export

OWN = {"algorithm": "ring", "protocol": "simple"}
FORMULAS = {"nccl": SLOW, "nccl tree/ll": line(15, 3), "nccl ring/ll": LL}


def rows(
    formulas: dict[str, Formula], *, last: str = "simple", **options: Any
) -> list[Measurement]:
    """Return a sweep whose default ran ring/simple on 4 channels, from 512 KiB on on 8."""
    return [
        one
        if one.implementation != "nccl"
        else msgspec.structs.replace(one, effective=_own(int(one.dims["bytes"]), last))
        for one in sweep(formulas, **options)
    ]


def _own(size: int, last: str) -> dict[str, str]:
    protocol = last if size == SIZES[-1] else "simple"
    return {"algorithm": "ring", "protocol": protocol, "channels": "8" if size >= 2**19 else "4"}


@pytest.fixture(scope="module")
def found() -> Conclusion:
    return conclude([*rows(FORMULAS), *sweep({"torch one-shot": line(8, 2)})])


def chosen(text: str, size: int) -> tuple[str, ...]:
    """Read the file as the example tuner plugin does, and return what it takes for a size."""
    for entry in text.splitlines():
        assert len(entry) < 255
        if entry.startswith("#") or not entry:
            continue
        cells = entry.split(",")
        assert len(cells) == 10
        if int(cells[1]) <= size <= int(cells[2]):
            return tuple(cells[3:6])
    raise AssertionError(f"no rule for {size}")


def test_each_size_has_exactly_one_rule_and_it_is_what_is_recommended(found: Conclusion) -> None:
    text = found.tuner_csv
    assert text is not None
    rules = tuner_csv.rules(found.ops[0])
    assert (rules[0].low_bytes, rules[-1].high_bytes) == (0, 2**64 - 1)
    assert all(a.high_bytes + 1 == b.low_bytes for a, b in itertools.pairwise(rules))
    for size, taken in {
        1: ("ring", "simple", "4"),  # below the smallest: what NCCL takes there
        8192: ("tree", "ll", "4"),
        20_000: ("tree", "ll", "4"),
        28_672: ("ring", "ll", "4"),
        524_288: ("ring", "ll", "4"),
        524_289: ("ring", "simple", "8"),  # behind the last win, NCCL's own
        2**20: ("ring", "simple", "8"),
        2**40: ("ring", "simple", "8"),
    }.items():
        assert chosen(text, size) == taken
    assert "allreduce,28672,524288,ring,ll,4,1,8,-1,-1\n" in text


def test_above_the_largest_size_a_choice_that_is_not_simple_yet_becomes_simple() -> None:
    text = conclude(rows(FORMULAS, last="ll")).tuner_csv
    assert text is not None
    assert chosen(text, SIZES[-1]) == ("ring", "ll", "8")
    assert chosen(text, SIZES[-1] + 1) == ("ring", "simple", "8")


@pytest.mark.parametrize("gone", ["algorithm", "protocol", "channels"])
def test_without_what_nccl_ran_there_is_no_file_and_the_reason(gone: str) -> None:
    made = [
        msgspec.structs.replace(
            one, effective={name: value for name, value in one.effective.items() if name != gone}
        )
        if (one.implementation, one.dims["bytes"]) == ("nccl ring/ll", 57_344)
        else one
        for one in rows(FORMULAS)
    ]
    known = conclude(made)
    assert known.tuner_csv is None
    assert known.no_csv == "what nccl ring/ll ran at 57344 B is not known with its channels"
    assert f"# no file for a tuner plugin: {known.no_csv}" in [*lines(known)]


def test_the_words_are_comments_that_say_what_to_take_where(found: Conclusion) -> None:
    text = "\n".join(lines(found))
    assert all(one.startswith("#") for one in text.splitlines())
    assert "# all_reduce, 8 ranks, bfloat16, in place, graph x 122\n" in text
    assert "8192 to 16384 B: nccl tree/ll, 17.7 us instead of 48.4 us at 8192 B, " in text
    assert "28672 to 524288 B: nccl ring/ll, " in text
    assert "torch one-shot is faster up to 16384 B and slower from 32768 B on, near 2" in text
    assert "nccl ring/ll saves 3." in text
    assert "it is slower than NCCL's own choice at 1048576 to 8388608 B" in text


def test_what_is_exported_is_the_one_combination_and_a_shell_takes_it(found: Conclusion) -> None:
    assert export(found.ops[0]) == ("export NCCL_ALGO=Ring", "export NCCL_PROTO=LL")


def test_what_was_inherited_is_not_exported_and_what_is_no_variable_is_a_comment() -> None:
    own = {"NCCL_IB_DISABLE": "1", "NCCL_ALGO": "ring;allreduce:tree", "gpu_order": "1,0"}
    own |= {"NCCL_GRAPH_FILE": "a b.xml"}
    made = [
        msgspec.structs.replace(
            one, requested={"NCCL_IB_DISABLE": "1"} if one.implementation == "nccl" else own
        )
        for one in rows(FORMULAS)
    ]
    assert export(conclude(made).ops[0]) == (
        "export NCCL_ALGO='ring;allreduce:tree'",
        "# gpu_order 1,0",
        "export NCCL_GRAPH_FILE='a b.xml'",
        "# NCCL_GRAPH_FILE: put the folder of the file before its name",
    )


def named(found: Conclusion) -> dict[str, Finding]:
    return {one.name: one for one in findings(found, GPU)}


def test_the_findings_carry_the_rows_that_they_rest_on_and_what_they_are_worth(
    found: Conclusion,
) -> None:
    known = named(found)
    assert set(known) == {"best-combination", "other-implementation-is-faster"}
    best = known["best-combination"]
    assert [(one.file, one.at) for one in best.evidence] == [
        ("nccl tree/ll", "8192B-bfloat16-in-place"),
        ("nccl tree/ll", "16384B-bfloat16-in-place"),
        ("nccl ring/ll", "28672B-bfloat16-in-place"),
        ("nccl ring/ll", "524288B-bfloat16-in-place"),
    ]
    assert best.worth_s == pytest.approx(122 * (SLOW(57_344) - LL(57_344)), rel=0.05)
    assert best.next_action is not None
    assert best.next_action.startswith("NCCL_ALGO=Ring NCCL_PROTO=LL: export it")
    assert (best.environment, best.command) == (GPU.id, GPU.command)


def test_a_sweep_in_which_nothing_wins_says_so() -> None:
    known = conclude(rows({"nccl": LL, "nccl ring/simple": SLOW}, sizes=SIZES[:8]))
    words = "no combination beats the default beyond noise over neighbouring sizes"
    assert f"#   {words}" in [*lines(known)]
    assert words in named(known)["no-better-combination"].sentence
    assert known.tuner_csv is None
    assert export(known.ops[0]) == ()


def test_too_few_starts_say_that_they_are_too_few() -> None:
    known = conclude(rows(FORMULAS, starts=2))
    assert "#   2 fresh starts say nothing of their spread; 3 are needed" in [*lines(known)]


def test_a_mode_that_recommends_something_else_is_named() -> None:
    eager: dict[str, Formula] = {name: lambda size: 90 * US for name in FORMULAS}
    known = conclude([*rows(FORMULAS), *rows(eager, launch="eager", depth=1)])
    assert "#   eager, in place: nothing beyond noise" in [*lines(known)]
    again = conclude([*rows(FORMULAS), *rows(FORMULAS, launch="eager", depth=1)])
    assert not any("eager" in one for one in lines(again))


def test_what_may_corrupt_is_a_finding_of_its_own() -> None:
    made = [
        msgspec.structs.replace(one, flags=("unsafe",)) if "128" in one.implementation else one
        for one in rows({**FORMULAS, "nccl ring/ll128": line(12, 25)})
    ]
    known = conclude(made)
    assert "unsafe-is-faster" in named(known)
    assert any("nccl ring/ll128 is faster, and unsafe" in one for one in lines(known))


def test_a_sweep_of_one_combination_has_nothing_to_say() -> None:
    assert [*lines(conclude(rows({"nccl": LL})))] == []
    assert named(conclude(rows({"nccl": LL}))) == {}


def test_each_collective_has_its_rules_under_its_own_name() -> None:
    def of(op: str, seed: int) -> Iterator[Measurement]:
        for one in rows(FORMULAS, seed=seed):
            yield msgspec.structs.replace(one, op=op)

    known = conclude([*of("all_gather", 1), *of("all_reduce", 2), *of("all_to_all", 3)])
    assert known.tuner_csv is not None
    entries: Sequence[str] = [one for one in known.tuner_csv.splitlines() if one[0] != "#"]
    assert list(dict.fromkeys(one.split(",")[0] for one in entries)) == ["allreduce", "allgather"]
