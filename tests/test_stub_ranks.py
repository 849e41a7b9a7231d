"""Real ranks on this CPU: what they measure, what is recorded, and what becomes of lost ones."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphs import measure
from graphs._stub import growth, launch, shrunken
from graphs._stub.asked import Case, Job, Reduce, reduces
from graphs._stub.growth import Point
from graphs._stub.launch import Holder
from tests import injected_holder
from verifyscope import passes, records, runs
from verifyscope.models import TABLE
from verifyscope.parts import PARTS, class_of
from verifyscope.records import Measurement

_ROOT = Path(__file__).resolve().parent.parent
_COMMAND = (
    *(sys.executable, "-m", "graphs.replay", "--model", "qwen3-30b-a3b", "--device", "cpu"),
    *("--rows", "4", "--context", "32", "--seconds", "0.05"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Measurement]]:
    """Two gloo ranks, from the command line."""
    path = tmp_path_factory.mktemp("run") / "records.jsonl"
    done = subprocess.run(
        [*_COMMAND, "--records", str(path)], cwd=_ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = [one for one in records.read([path]) if isinstance(one, Measurement)]
    return done.stdout, found


def _of(found: list[Measurement], op: str) -> list[Measurement]:
    return [one for one in found if one.op == op]


def test_a_pass_of_two_ranks_is_measured_and_says_what_it_is(
    run: tuple[str, list[Measurement]],
) -> None:
    (whole,) = _of(run[1], passes.FORWARD)
    assert (whole.source, whole.implementation, whole.launch) == ("measured", "stub", "eager")
    assert (whole.ranks, whole.cache, whole.status) == (2, "warm", "ok")
    assert whole.dims["model"] == "qwen3-30b-a3b-shrunk"
    assert whole.dims["all_reduce"] == "real"
    assert whole.dims["shrunk"] is True
    assert whole.median_s is not None
    ranks = [whole.method[f"rank_{rank}_median_s"] for rank in range(2)]
    # The slowest rank of each round is no faster than any rank alone.
    assert whole.median_s >= max(float(one) for one in ranks) * 0.999
    assert whole.method["impl_attention"] == "torch"


def test_each_part_is_out_once_alone_once_and_where_it_stands_once(
    run: tuple[str, list[Measurement]],
) -> None:
    expected = {"attention", "routed_experts", "all_reduce", "embedding_all_reduce", "metadata"}
    for op in (passes.WITHOUT, passes.ONLY, passes.IN_CONTEXT):
        parts = [one.part for one in _of(run[1], op)]
        assert len(set(parts)) == len(parts)
        assert expected | {"logits_all_gather", "lm_head", "norms"} <= set(parts) <= set(PARTS)


def test_the_account_closes_with_what_it_leaves_unexplained(
    run: tuple[str, list[Measurement]],
) -> None:
    (account,) = _of(run[1], passes.ACCOUNT)
    method = account.method
    assert account.median_s is not None
    parts = [one.median_s or 0.0 for one in _of(run[1], passes.IN_CONTEXT)]
    assert float(method["in_context_sum_s"]) == pytest.approx(sum(parts), rel=0.5)
    for name in ("marginal", "isolated", "in_context"):
        left = float(method[f"{name}_unexplained_s"])
        share = float(method[f"{name}_unexplained_share"])
        assert share == pytest.approx(left / account.median_s)
        assert (
            float(method[f"{name}_unexplained_low_s"])
            <= left
            <= float(method[f"{name}_unexplained_high_s"])
        )
    skew = float(method["all_reduce_skew_s"])
    by_rank = [float(method[f"rank_{rank}_all_reduce_s"]) for rank in range(2)]
    assert skew == pytest.approx(max(by_rank) - min(by_rank))


def test_a_marginal_cost_is_recorded_beside_the_pass_that_lacks_the_part(
    run: tuple[str, list[Measurement]],
) -> None:
    for one in _of(run[1], passes.WITHOUT):
        low, cost, high = (float(one.method[f"cost{end}_s"]) for end in ("_low", "", "_high"))
        assert low <= cost <= high
        assert one.median_s is not None


def test_the_profiler_sees_every_class_that_the_parts_have(
    run: tuple[str, list[Measurement]],
) -> None:
    parts = {class_of(one.part) for one in _of(run[1], passes.IN_CONTEXT)}
    seen = _of(run[1], passes.CLASS)
    assert {one.part for one in seen} == parts
    assert {one.method["by"] for one in seen} == {"spans"}
    assert all(one.median_s for one in seen)


def _point(rows: int, context: int, *samples: float, reduce: str = "none") -> Point:
    case = replace(_job(0).case, rows=rows, context=context, reduce=reduces(reduce)[0])
    return Point(case=case, mode="graph", samples=samples or (1.0,))


def test_time_over_rows_and_over_context_are_lines_through_passes_alike_in_all_else() -> None:
    points = [
        _point(1, 1024, *[3e-3] * 5),
        _point(4, 1024, *[6e-3] * 5),
        _point(1, 8192, *[3e-3] * 5),
        _point(4, 8192, *[6.03e-3] * 5),
        _point(4, 8192, *[9e-3] * 5, reduce="delay:33us"),
    ]
    found = {(one.line.axis, one.line.other): one for one in growth.growths(points)}
    assert set(found) == {("rows", 1024), ("rows", 8192), ("context", 1), ("context", 4)}
    line = found["rows", 1024].line
    assert (line.base_s, line.slope_s) == pytest.approx((2e-3, 1e-3))
    assert found["rows", 1024].grows == "grows"
    # Eight times the context and half a percent more time: it does not hang on the context.
    assert found["context", 4].grows == found["context", 1].grows == "does not grow"
    assert growth.sentence(found["rows", 1024]) == (
        "time over rows at context 1024, graph: 2.00 ms + 1.00 ms each; 4 against 1 is x 2.00 "
        "(2.00 to 2.00): grows"
    )


def test_two_samples_are_too_few_to_say_whether_a_pass_grows() -> None:
    points = [_point(1, 64, 1e-3, 1e-3), _point(2, 64, 2e-3, 2e-3)]
    (found,) = growth.growths(points)
    assert found.grows == "unsure"


def test_all_of_one_case_share_an_id_and_rows_of_a_table_are_tab_separated(
    run: tuple[str, list[Measurement]],
) -> None:
    assert len({one.method["pass"] for one in run[1]}) == 1
    rows_of = [line.split("\t") for line in run[0].splitlines() if not line.startswith("#")]
    assert {len(cells) for cells in rows_of} <= {8, 9, 10}
    assert {tuple(cells[:2]) for cells in rows_of} == {("4", "32")}


def _job(seed: int, *, ranks: int = 2, **more: Any) -> Job:
    case = Case(
        model=shrunken.shrunken(TABLE["llama-3.1-70b"]),
        tp=2,
        rows=2,
        context=16,
        requests=1,
        tree="chain",
        attention="verify",
        path="auto",
        reduce=Reduce("real" if ranks > 1 else "none"),
        shrunk=True,
        seed=seed,
    )
    fields: dict[str, Any] = {
        "case": case,
        "device": "cpu",
        "ranks": ranks,
        "modes": ("eager",),
        "ablate": False,
        "time_cap_s": 0.05,
        "timeout_s": 5.0,
    }
    return Job(**{**fields, **more})


@pytest.fixture(scope="module")
def holder() -> Iterator[Holder]:
    with launch.holder("tests.injected_holder") as started:
        yield started


def _measured(holder: Holder, job: Job, folder: Path) -> tuple["measure._Case", list[Measurement]]:
    with runs.start(folder / "records.jsonl", "replay") as run:
        case = measure._Case(job, run)
        case.run(holder)
    read = records.read([folder / "records.jsonl"])
    return case, [one for one in read if isinstance(one, Measurement)]


@pytest.mark.parametrize(
    ("seed", "status", "reason"),
    [
        (injected_holder.DIES, "error", r"rank 1 \(pid \d+\) ended with status 7\. the last words"),
        (injected_holder.RAISES, "error", r"rank 1 \(pid \d+\) raised ValueError: a wrong number"),
        (injected_holder.RUNS_OUT, "skipped", "rank 1 needs more memory than is free: MemoryError"),
        (injected_holder.HANGS, "hang", r"rank 1 \(pid \d+\) holds up the others; no progress for"),
    ],
)
def test_a_lost_rank_ends_its_case_and_what_was_measured_before_is_kept(
    holder: Holder, tmp_path: Path, seed: int, status: str, reason: str
) -> None:
    job = _job(seed, timeout_s=2.0 if seed == injected_holder.HANGS else 20.0)
    case, found = _measured(holder, job, tmp_path)
    whole, lost = found
    assert (whole.op, whole.status, whole.median_s) == (passes.FORWARD, "ok", 2e-3)
    assert (lost.op, lost.status, lost.median_s) == (passes.ACCOUNT, status, None)
    assert lost.reason is not None
    assert re.match(reason, lost.reason)
    assert len(case.problems) == 1
    assert case.refused == []
    # The next job of the same holder has fresh ranks.
    _, after = _measured(holder, _job(0), tmp_path / "after")
    assert [one.status for one in after] == ["ok"]


def test_a_job_after_the_holder_died_finds_a_fresh_one(holder: Holder, tmp_path: Path) -> None:
    _, found = _measured(holder, _job(0), tmp_path)
    assert [one.status for one in found] == ["ok"]
    process = holder.process
    process.kill()
    process.wait()
    _, after = _measured(holder, _job(0), tmp_path / "after")
    assert [one.status for one in after] == ["ok"]
    assert holder.process.pid != process.pid


def test_a_refusal_is_no_failure_and_says_what_to_give(holder: Holder, tmp_path: Path) -> None:
    case, found = _measured(holder, _job(injected_holder.REFUSES), tmp_path)
    assert case.problems == []
    assert case.refused == ["this cannot be had here; give another"]
    assert [(one.status, one.reason) for one in found] == [("skipped", case.refused[0])]


def test_a_mode_that_cannot_be_captured_is_recorded_and_the_rest_begins_again(
    holder: Holder, tmp_path: Path
) -> None:
    job = _job(injected_holder.BREAKS, ranks=1, modes=("eager", "graph"))
    case, found = _measured(holder, job, tmp_path)
    broke, whole = found
    assert (broke.launch, broke.status) == ("graph", "error")
    assert broke.reason == "capture failed at experts_down: it asks the host"
    assert (whole.launch, whole.status) == ("eager", "ok")
    assert len(case.problems) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "3"], "qwen3-30b-a3b-shrunk with 16 heads cannot be split over 3 ranks"),
        (["--layers", "49"], "--layers 49, but qwen3-30b-a3b has 48"),
        (["--rows", "33"], "--rows 33 is more than a tree of drafts holds here; give 1 to 32"),
        (["--modes", "graph"], "--device cpu runs eager passes only; leave --modes out"),
        (["--modes", "fast"], "unknown --modes 'fast'; known: eager, graph, piecewise"),
        (["--all-reduce", "nccl"], "unknown --all-reduce 'nccl'; give none, one-rank, real"),
        (["--all-reduce", "real", "--tp", "1"], "needs ranks to reduce over; give --tp 2 or more"),
        (["--gpus", "4", "--tp", "2"], "--all-reduce real needs a process a rank; give --gpus 2"),
        (["--gpus", "2", "--all-reduce", "none"], "--all-reduce none is of one process; leave"),
        (["--impl", "attention"], "--impl 'attention' names no implementation; give attention="),
        (["--impl", "heads=torch"], "unknown --impl 'heads'; known: attention, moe, routing"),
        (["--impl", "moe=torch,moe=triton"], "--impl names moe twice: torch and triton; give one"),
        (["--attention", "prefill"], "unknown --attention 'prefill'; known: verify, decode, ext"),
        (["--moe", "fused"], "unknown --moe 'fused'; known: auto, direct, sorted"),
        (["--quant", "int8"], "unknown --quant 'int8'; known: bf16, fp8, int4"),
        (["--tree", "bush"], "unknown --tree 'bush'; known: chain, star, binary, eagle4, eagle8"),
        (["--seconds", "0"], "--seconds 0 is out of range; give seconds above 0, to a day"),
        (["--predict", "h200"], "give --device cpu or --device cuda to measure a stub, or"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from graphs import replay
    from verifyscope import cli

    command = ["--model", "qwen3-30b-a3b", "--device", "cpu", *arguments]
    with pytest.raises(SystemExit) as ended:
        cli.run(replay.app, "python -m graphs.replay", command)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_gpu_that_is_not_there_is_said_before_torch_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from graphs import replay
    from verifyscope import cli, driver

    monkeypatch.setattr(driver, "look", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.run(replay.app, "python -m graphs.replay", ["--model", "kimi-k2.5", "--device", "cuda"])
    assert ended.value.code == 2
    assert "--device cuda needs 1 GPU, but no NVIDIA GPU was found; give --device cpu" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("kind", ["one-rank", "real"])
def test_collectives_without_nccl_are_refused_with_what_to_give(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed

    from graphs._stub import worker
    from verifyscope.errors import UsageError

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    job = _job(0, device="cuda")
    job = replace(job, case=replace(job.case, reduce=reduces(kind)[0]))
    with pytest.raises(UsageError, match=rf"--all-reduce {kind} needs NCCL, and torch .* without"):
        worker._require_nccl(job)
    delayed = replace(job, ranks=1, case=replace(job.case, reduce=reduces("delay:33us")[0]))
    worker._require_nccl(delayed)


def test_what_a_rank_refuses_is_one_line_with_exit_status_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [*_COMMAND, "--impl", "moe=best", "--records", str(tmp_path / "r.jsonl")],
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith("records: ")]
    assert len(lines) == 1
    assert "--impl moe=best: no such implementation; known: torch" in lines[0]
