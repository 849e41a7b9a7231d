"""`python -m reports.speculation --from` the records of logs: all they know, of one system."""

import json
from pathlib import Path

import pytest

from ingest import __main__ as ingest
from tests import serving_lines as lines
from tests.report_sample import GPU, kernel, write
from tests.test_reports_speculation import Asked, Capture
from verifyscope import cli

FOUNDING = (
    "Target verify: 29.47 ms/cyc (97.0%)\nTarget verify: 29.49 ms/cyc (97.0%)\n"
    "Run 1/5: 2048 tokens in 33.88s = 60.4 tok/s\nRun 2/5: 2048 tokens in 31.26s = 65.5 tok/s\n"
    "Run 3/5: 2048 tokens in 40.24s = 50.9 tok/s\nRun 4/5: 2041 tokens in 33.21s = 61.5 tok/s\n"
    "Run 5/5: 2048 tokens in 34.42s = 59.5 tok/s\n"
)


@pytest.fixture
def ask(capsys: Capture) -> Asked:
    return Asked(capsys)


def read(folder: Path, capture: Capture, options: str = "", **files: str) -> Path:
    """Return the records of logs, which one command reads."""
    records = folder / "run" / "records.jsonl"
    paths = []
    for name, text in files.items():
        path = folder / f"{name}.log"
        path.write_text(text)
        paths.append(str(path))
    given = [*paths, *options.split(), "--records", str(records)]
    with pytest.raises(SystemExit) as ended:
        cli.run(ingest.application, ingest.PROGRAM, given)
    assert ended.value.code == 0
    capture.readouterr()
    return records


def served(cycle_ms: float, running: int, accepted: float = 1.5) -> str:
    return "".join(
        lines.vllm(cycle_ms, running=running, accepted=accepted, second=at) for at in range(3)
    )


def plain(step_ms: float, running: int) -> str:
    return "".join(lines.plain_vllm(step_ms, running=running, second=at) for at in range(3))


def test_the_founding_log_gives_its_numbers_without_a_further_option(
    ask: Asked, tmp_path: Path, capsys: Capture
) -> None:
    """10,233 tokens in 173.01 s, x 30.39 ms a cycle: 1.80; 30.39 / 12.12 = 2.51."""
    run = read(tmp_path, capsys, "--plain-ms 12.12", verify=FOUNDING)
    ask.of("--from", run)
    assert ask.verdict == (
        "Speculation loses: 59.1 tok/s against 82.5 tok/s plain, 0.72 x; acceptance must exceed "
        "2.51 to pay; it is 1.80"
    )
    said = {name: (value, how) for name, value, how in ask.rows("number")}
    assert said["verify"] == ("29.48 ms", "verify.log:1, median of 2 values")
    assert said["cycle"] == ("30.39 ms", "verify / share 0.97")
    assert said["plain step"] == ("12.12 ms", "given by --plain-ms")
    assert said["accept length"] == ("1.8", "verify.log:1, implied by its runs")
    assert said["break-even by verify"][0] == "2.43"


def test_what_is_typed_takes_the_place_of_what_the_log_says(
    ask: Asked, tmp_path: Path, capsys: Capture
) -> None:
    run = read(tmp_path, capsys, "--plain-ms 12.12", verify=FOUNDING)
    ask.of("--accept-length 2.0 --step-ms 10 --verify-ms 19.4 --from", run)
    assert ask.value("cycle") == "20 ms"  # 19.4 / 0.97: the share is the log's
    assert ask.value("break-even") == "2.00"
    assert ask.verdict.endswith("it is 2.00")
    ask.of("--cycle-ms 24.24 --from", run)
    assert ask.value("break-even") == "2.00"


def test_a_log_of_an_engine_gives_cycle_acceptance_rows_and_the_plain_step_of_its_load(
    ask: Asked, tmp_path: Path, capsys: Capture
) -> None:
    """k = 3: a chain of 3 that yields 2.5 takes a draft with 0.67; 8 x 2.5 / 100 ms = 200."""
    run = read(
        tmp_path,
        capsys,
        verify=served(27.4, 1) + served(100.0, 8),
        plain=plain(16.9, 1) + plain(32.0, 8),
    )
    ask.of("--from", run)
    assert ask.value("cycle") == "27.4 ms"
    assert "--requests 8" in ask.notes
    assert ask.value("accept length") == "2.5"
    assert ask.verdict.startswith("Speculation pays: 91.2 tok/s against 59.2 tok/s plain, 1.54 x")
    ask.of("--requests 8 --json", tmp_path / "it.json", "--from", run)
    assert ask.value("break-even") == "3.12"
    assert ask.value("speculative") == "200.0 tok/s"
    question = json.loads((tmp_path / "it.json").read_text())["asked"]
    assert (question["rows"], question["requests"]) == (4, 8)
    (chance,) = question["chances"]
    assert chance + chance**2 + chance**3 == pytest.approx(1.5)
    assert "no cycle of" in ask.of("--requests 3 --from", run).notes


def test_of_several_systems_it_asks_which_and_lists_how_to_say_it(
    ask: Asked, tmp_path: Path, capsys: Capture
) -> None:
    run = read(
        tmp_path,
        capsys,
        kimi_k25=served(30.0, 1),
        qwen3_8b=lines.steady(10.0, accept=2.0),
        qwen3_8b_plain=lines.steady(8.0, graph=None),
    )
    ask.of("--from", run)
    assert ask.status == 2
    listed = [line.split("\t") for line in ask.lines if line.startswith("point")]
    assert [(cells[1], cells[-1]) for cells in listed] == [
        ("kimi-k2.5, vllm", "--point kimi_k25.log"),
        ("qwen3-8b, sglang", "--point qwen3_8b.log"),
    ]
    assert "2 cycles of 2 systems; choose one, such as --point qwen3_8b.log" in ask.notes
    for words in ("--point qwen3_8b.log", "--point qwen3-8b"):
        ask.of(f"{words} --from", run)
        assert ask.value("break-even") == "1.25"
    ask.of("--point kimi --from", run)
    assert "plain decoding: give --step-ms" in " ".join(ask.lines)
    ask.of("--point llama --from", run)
    assert "no cycle of" in ask.notes
    assert "'llama'" in ask.notes


def test_a_serving_benchmark_gives_a_cycle(ask: Asked, tmp_path: Path, capsys: Capture) -> None:
    """A TPOT of 10 ms at an acceptance of 2.6 is a cycle of 26 ms."""
    result = (
        '{"backend": "vllm", "model_id": "zai-org/GLM-5.1", "max_concurrency": 1, "completed": 9, '
        '"median_ttft_ms": 90.0, "median_tpot_ms": 10.0, "spec_decode_acceptance_length": 2.6}'
    )
    run = read(tmp_path, capsys, bench=result, glm51_plain=plain(20.0, 1))
    ask.of("--from", run)
    assert ask.value("cycle") == "26 ms"
    assert ask.value("break-even") == "1.30"


def test_a_run_with_a_line_and_a_log_takes_the_line_unless_a_log_is_named(
    ask: Asked, tmp_path: Path, capsys: Capture
) -> None:
    run = read(tmp_path, capsys, verify=served(30.0, 1), plain=plain(12.0, 1))
    passes = [
        kernel(
            "stub",
            1000.0 * (10 + rows),
            id=f"p{rows}",
            part="forward",
            op="forward",
            dims={"rows": rows, "requests": 1, "model": "kimi-k2.5"},
            launch="graph",
        )
        for rows in (1, 2, 4)
    ]
    stub = write(tmp_path / "stub.jsonl", [GPU, *passes])
    ask.of("--rows 4 --accept-length 2 --from", run, "--from", stub)
    assert ask.value("verify") == "14 ms"
    assert "1 cycle of logs, too; --point names one" in ask.notes
    ask.of("--point verify --from", run, "--from", stub)
    assert ask.value("cycle") == "30 ms"
    assert "line" not in [name for name, _, _ in ask.rows("number")]


def test_a_point_needs_a_run_and_a_run_a_log(ask: Asked, tmp_path: Path) -> None:
    assert "of --from RUN" in ask.of("--point x").refused
    stub = write(tmp_path / "stub.jsonl", [GPU, kernel("own", 1.0)])
    assert "read the log of a server (python -m ingest)" in ask.of("--from", stub).refused
