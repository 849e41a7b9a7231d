"""Logs as people bring them: shipped, coloured, cut, in another encoding, of several servers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest import reading
from ingest.facts import Facts
from ingest.printing import Shown
from ingest.shipped import shipping_of
from ingest.verdict import conclusions
from tests import serving_lines as lines
from tests.report_sample import CPU
from verifyscope.records import Finding, Measurement

SGLANG = lines.steady(10.0, accept=2.0, running=4, windows=8)
VLLM = "".join(lines.vllm(30.0, running=2, second=at) for at in range(6))
TABLE = (
    "Target verify: 29.47 ms/cyc (97.0%)\nTarget verify: 29.49 ms/cyc (97.0%)\n"
    "Run 1/2: 2048 tokens in 33.88s = 60.4 tok/s\nRun 2/2: 2048 tokens in 31.26s = 65.5 tok/s\n"
)
MATRIX = "tok/s\nconc no_mtp mtp3\n1 59.0 95.6\n8 251.5 201.5\n"


def stamp(at: int) -> str:
    return f"2026-01-05T10:00:{at:02d}.{at * 1234567:09d}Z"


SHIPPED: dict[str, Callable[[int, str], str]] = {
    "compose": lambda at, line: f"sglang-1  | {line}",
    "compose -t": lambda at, line: f"sglang-1  | {stamp(at)} {line}",
    "docker -t": lambda at, line: f"{stamp(at)} {line}",
    "node": lambda at, line: f"{stamp(at)} stdout F {line}",
    "kubectl": lambda at, line: f"[pod/llm-0/server] {stamp(at)} {line}",
    "json-file": lambda at, line: json.dumps({"log": f"{line}\n", "time": stamp(at)}),
    "journalctl": lambda at, line: f"Jan 05 10:00:{at:02d} box python3[4711]: {line}",
    "journalctl iso": lambda at, line: f"2026-01-05T10:00:{at:02d}+0000 box llm.sh[4711]: {line}",
    "logging": lambda at, line: f"2026-01-05 10:00:{at:02d},123 - bench - INFO - {line}",
    "grafana": lambda at, line: f'2026-01-05 10:00:{at:02d},"{line}"',
    "colours": lambda at, line: f"\x1b[32m{line[:30]}\x1b[0m\x1b[1;34m{line[30:]}\x1b[0m",
}


def read(folder: Path, data: bytes) -> list[Measurement | Finding | Facts]:
    path = folder / "it.log"
    path.write_bytes(data)
    return list(reading._records(path, Shown("it.log"), CPU, reading._Told()))


def seen(folder: Path, data: bytes | str) -> list[tuple[str, str, float | None, int | None]]:
    """Return op, case, median and count of each time in a file."""
    found = read(folder, data if isinstance(data, bytes) else data.encode())
    return [
        (one.op, one.case, one.median_s, one.count) for one in found if isinstance(one, Measurement)
    ]


@pytest.mark.parametrize("how", SHIPPED)
@pytest.mark.parametrize("text", [SGLANG, VLLM, TABLE, MATRIX], ids=["s", "v", "table", "matrix"])
def test_a_shipped_log_says_what_it_said(tmp_path: Path, how: str, text: str) -> None:
    shipped = "".join(f"{SHIPPED[how](at, line)}\n" for at, line in enumerate(text.splitlines()))
    assert seen(tmp_path, shipped) == seen(tmp_path, text) != []


def test_lines_of_several_containers_are_told_apart(tmp_path: Path) -> None:
    other = "".join(lines.vllm(60.0, running=2, second=at) for at in range(6)).splitlines()
    plain = "".join(lines.plain_vllm(12.0, running=2, second=at) for at in range(12)).splitlines()
    mixed = zip(VLLM.splitlines(), other, plain, strict=True)
    text = "".join(f"a-1  | {x}\nb-1  | {y}\nc-1  | {z}\n" for x, y, z in mixed)
    found = seen(tmp_path, text)
    assert [op for op, _, _, _ in found] == ["cycle", "cycle", "step"]
    assert [median for _, _, median, _ in found] == pytest.approx([0.030, 0.060, 0.012], rel=1e-3)


def test_a_table_of_bars_and_a_kernels_log_are_not_shipped() -> None:
    assert shipping_of("| a | b |\n| 1 | 2 |\n| 3 | 4 |\n") is None
    assert shipping_of("Jan 05 10:00:00 box kernel: NVRM: Xid\n" * 5) is None
    assert shipping_of("2026-01-05T10:00:00+0000 box kernel: NVRM: Xid\n" * 5) is None
    assert shipping_of(SGLANG) is None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_any_unicode_is_read_with_windows_ends_of_lines(tmp_path: Path, encoding: str) -> None:
    data = SGLANG.replace("\n", "\r\n").encode(encoding)
    assert seen(tmp_path, data) == seen(tmp_path, SGLANG)


@pytest.mark.parametrize("hole", [10, 70_000, 200_000])
def test_a_hole_of_zeros_costs_no_line(tmp_path: Path, hole: int) -> None:
    assert seen(tmp_path, b"\0" * hole + TABLE.encode()) == seen(tmp_path, TABLE)
    middle = SGLANG.encode()[:500] + b"\0" * 5000 + SGLANG.encode()[500:]
    assert seen(tmp_path, middle) == seen(tmp_path, SGLANG)


def test_a_rotated_log_begins_and_ends_within_a_line(tmp_path: Path) -> None:
    text = SGLANG[60:-90]
    ((op, case, median, count),) = seen(tmp_path, text)
    assert (op, case, count) == ("cycle", "4 running, graph", 6)
    assert median == pytest.approx(0.010)


def arguments(**settings: object) -> str:
    said = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"[2026-01-05 10:00:00] server_args=ServerArgs({said})\n"


def test_a_server_that_starts_again_with_other_arguments_is_another_file(tmp_path: Path) -> None:
    kimi = {"model_path": "/m/Kimi-K2.5", "speculative_num_draft_tokens": 4}
    text = (
        arguments(**kimi, tp_size=8)
        + lines.steady(30.0, accept=2.0)
        + arguments(**kimi, tp_size=4)
        + lines.steady(50.0, accept=2.0)
        + arguments(**kimi, tp_size=4)
        + lines.steady(50.0, accept=2.0)
    )
    found = read(tmp_path, text.encode())
    times = [one for one in found if isinstance(one, Measurement)]
    assert [(one.ranks, one.count) for one in times] == [(8, 6), (4, 12)]
    assert [one.median_s for one in times] == pytest.approx([0.030, 0.050], rel=1e-3)
    assert [one.origin.file for one in times if one.origin] == ["it.log", "it.log (server 2)"]
    assert not [one for one in found if isinstance(one, Finding)]


def test_two_servers_of_one_log_are_compared_where_they_are_of_one_model() -> None:
    spec = arguments(model_path="/m/Kimi-K2.5", tp_size=8) + lines.steady(30.0, accept=2.0)
    plain = arguments(model_path="/m/Kimi-K2.5", tp_size=8, dtype="bf16") + lines.steady(12.0)
    other = plain.replace("Kimi-K2.5", "Qwen3-8B")
    for text, expected in ((spec + plain, True), (spec + other, False)):
        facts = [one for one in lines.read(text) if isinstance(one, Facts)]
        concluded = {one.name for one in conclusions(facts)}
        assert ("break-even" in concluded) == expected
        assert ("systems-apart" in concluded) != expected


@pytest.mark.parametrize("name", ["nccl_new.txt", "nccl_old.txt", "nccl_tagged.txt"])
@pytest.mark.parametrize("how", ["compose", "compose -t", "node", "journalctl"])
def test_a_shipped_table_of_collectives_says_what_it_said(
    tmp_path: Path, how: str, name: str
) -> None:
    text = (Path(__file__).parent / "data" / name).read_text()
    shipped = "".join(
        f"{SHIPPED[how](at % 60, line)}\n" for at, line in enumerate(text.splitlines())
    )
    assert seen(tmp_path, shipped) == seen(tmp_path, text) != []
