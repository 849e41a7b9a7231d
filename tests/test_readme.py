"""What README shows of a command is what the command prints; what it predicts is what is predicted.

Other parts of it are held where their command is tested: ingest (test_ingest_readme), attest
(test_attest_server), host (test_host), the pass before it has run (test_forecast).
"""

import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from collectives import sweep
from ingest import __main__ as ingesting
from kernels import find_case, find_op, predicted
from reports import compare, speculation
from verifyscope import cli
from verifyscope.hardware import find_gpu
from verifyscope.units import bytes_, seconds

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
SERVER = find_gpu("rtx-pro-6000-server")
Run = Callable[[typer.Typer, str], tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a command line in an empty folder, as for a person: status and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "400")  # no row of a table goes on below itself

    def run(application: typer.Typer, line: str) -> tuple[int, str]:
        program, words = " ".join(line.split()[:3]), shlex.split(line)[3:]
        monkeypatch.setattr("sys.orig_argv", ["python", *shlex.split(line)[1:]])
        with pytest.raises(SystemExit) as ended:
            cli.run(application, program, words)
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


def section(title: str) -> str:
    """Return the text of a section, lines that a backslash continues put together."""
    text = README.partition(f"\n## {title}")[2].partition("\n## ")[0]
    assert text, title
    return re.sub(r" \\\n\s*", " ", text)


def blocks(title: str) -> list[list[str]]:
    """Return the indented blocks of a section, without their indent."""
    found = re.findall(r"(?:^    .*\n)+", section(title), re.MULTILINE)
    return [textwrap.dedent(block).splitlines() for block in found]


def missing(shown: list[str], printed: str) -> list[str]:
    """Return the shown lines that are not printed, in this order; `...` is a rest, or any line."""
    lines = iter(" ".join(line.split()) for line in printed.splitlines())
    left = []
    for line in (" ".join(one.split()) for one in shown):
        start, rest = line.removesuffix("...").rstrip(), line.endswith("...")
        if not any(one == start or (rest and one.startswith(start)) for one in lines):
            left.append(line)
    return left


def test_a_lookup_of_what_is_not_printed_fails() -> None:
    assert missing(["a  b", "...", "c d ..."], "a b\nx\nc d e\n") == []
    assert missing(["c", "a b"], "a b\nc\n") == ["a b"]


def test_the_calculator_says_what_readme_shows(run: Run) -> None:
    Path("verify.log").write_text("\n".join(blocks("A log instead of a benchmark")[0]) + "\n")
    out, shown = "", list[str]()
    for block in [*blocks("Does speculation pay?"), ["python"]]:
        if not block[0].startswith("python"):
            shown += block
            continue
        assert missing(shown, out) == []
        for command in block if block[0] != "python" else ():
            ingest = command.startswith(ingesting.PROGRAM)
            status, out = run(ingesting.application if ingest else speculation.app, command)
            assert status == 0
        shown = []


def test_the_plan_of_a_sweep_is_what_readme_shows(run: Run) -> None:
    shown = blocks("Which protocol, and did NCCL use it?")[0]
    status, out = run(sweep.application, "python -m collectives.sweep --gpus 8 --plan")
    assert status == 0
    assert missing(shown, out) == []


def test_two_logs_compare_as_readme_shows(run: Run) -> None:
    today = blocks("A log instead of a benchmark")[0]
    yesterday, commands = blocks("19 ms yesterday, 29 ms today")
    Path("yesterday.log").write_text("\n".join(yesterday) + "\n")
    Path("today.log").write_text("\n".join(today[:2]) + "\n")
    for command in commands[:2]:
        assert run(ingesting.application, command)[0] == 0
    status, out = run(compare.app, commands[2])
    quoted = re.findall(r"^> ?(.*)$", section("19 ms yesterday, 29 ms today"), re.MULTILINE)
    sentence = " ".join(line for line in quoted if line and not line.startswith("|"))
    assert status == 1
    assert missing([sentence, *(line for line in quoted if line.startswith("|"))], out) == []


def test_what_readme_predicts_of_experts_is_what_is_predicted() -> None:
    op = find_op("fused_moe")
    table = [line.split() for line in blocks("The experts of a verify pass")[0][1:]]
    assert len(table) == 5
    for tokens, routing, distinct, _, of, *rest in table:
        case = find_case(op, f"t{tokens}-kimi-k2.5-tp8-int4-{routing}")
        row = predicted(op.implementations["torch"], case, gpu=SERVER)
        assert (row.counts["distinct_experts"], of) == (int(distinct), "384")
        assert row.touched_bytes is not None
        assert row.floor_s is not None
        assert " ".join(rest) == f"{bytes_(row.touched_bytes)} {seconds(row.floor_s)}"


def test_what_readme_predicts_of_the_three_forms_is_what_is_predicted() -> None:
    op, text = find_op("mla_verify"), " ".join(section("The attention of a verify pass").split())
    said = re.search(
        r"([\d.]+) to ([\d.]+) us a layer for a verify of 1 to 16 tokens; at 16 it is (\d+) us in "
        r"decode form and (\d+) us in extend form",
        text,
    )
    assert said is not None
    few, many = "t1-b1-l8k-chain-p64-h8-bf16", "t16-b1-l8k-eagle8-p64-h8-bf16"
    forms = (("triton", few), ("triton", many), ("triton_decode", many), ("triton_extend", many))
    for number, (name, case) in zip(said.groups(), forms, strict=True):
        row = predicted(op.implementations[name], find_case(op, case), gpu=SERVER)
        assert row.predicted_s is not None
        assert f"{row.predicted_s * 1e6:.{1 if '.' in number else 0}f}" == number


def test_each_picture_and_page_that_readme_links_is_there() -> None:
    root = Path(__file__).resolve().parent.parent
    links = re.findall(r"\]\(([^)#:]+)", README)
    assert len(links) > 8
    assert [link for link in links if not (root / link).exists()] == []
