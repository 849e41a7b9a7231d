"""What a diagnosis plans, with GPUs and without: commands that exist, shares that fit."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.report_sample import CPU, GPU, kernel
from verifyscope import _diagnosis_shares as shares
from verifyscope import diagnose, driver, job
from verifyscope._diagnosis_steps import Asked, Folder, Here, more_of_prediction, selection, steps
from verifyscope.errors import UsageError
from verifyscope.job import Step
from verifyscope.models import find_model
from verifyscope.records import encoded

ROOT = Path(__file__).resolve().parent.parent
RTX = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def planned(gpus: int, **fields: Any) -> dict[str, Step]:
    """Return the steps by the module that each runs."""
    given: dict[str, Any] = {"model": "kimi-k2.5", "tp": 8} | fields
    asked = Asked(**given)
    here = Here(gpus=(RTX,) * gpus, entry="rtx-pro-6000-server" if gpus else None)
    made = steps(asked, here, Folder(ROOT / "runs/x", "runs/x"), find_model(asked.model))
    found = {}
    for step in made:
        module = step.command[2]
        found["predict" if "--predict" in step.command and module != "pytest" else module] = step
    assert len(found) == len(made)
    return found


def words(step: Step) -> str:
    return " ".join(step.command[2:])


@pytest.mark.parametrize("gpus", [0, 1, 2, 8])
@pytest.mark.parametrize("minutes", [1, 2, 5, 10, 60])
def test_shares_add_up_to_the_minutes_and_each_is_enough(gpus: int, minutes: float) -> None:
    found = planned(gpus, minutes=minutes, logs=("a.log",), compile=("90",))
    run = [step for step in found.values() if not step.why_not]
    assert sum(step.limit_s for step in run) == pytest.approx(minutes * 60)
    assert all(step.limit_s >= step.least_s > 0 for step in run)
    assert all(step.limit_s == 0 for step in found.values() if step.why_not)


def test_too_few_minutes_leave_out_what_is_worth_least_and_say_how_many_are_enough() -> None:
    found = planned(8, minutes=1.0)
    assert {name for name, step in found.items() if step.why_not} == {
        *("pytest", "graphs.replay", "collectives.sweep")
    }
    assert found["pytest"].why_not == "no time for it: --minutes 2.2 has time for all"
    assert not any(step.why_not for step in planned(8, minutes=2.2).values())
    with pytest.raises(
        UsageError, match=r"--minutes 0\.3 is too little .* 29 s; give 0\.5 or more"
    ):
        planned(0, minutes=0.3)
    planned(0, minutes=0.5)


def test_without_a_gpu_the_cpu_does_what_it_can() -> None:
    found = planned(0)
    assert found["collectives.host"].why_not == "needs a GPU"
    assert "--gpus 8 --model kimi-k2.5 --tokens 1,4 --backend gloo" in words(
        found["collectives.sweep"]
    )
    assert "--device cpu --rows 4 --seconds 1" in words(found["graphs.replay"])
    assert "--benchmark-max-time=0.2" in words(found["pytest"])
    assert "--predict rtx-pro-6000-server" in words(found["predict"])
    assert "--predict h200" in words(planned(0, gpu="h200")["predict"])


def test_one_gpu_has_nobody_to_reduce_with_and_its_passes_wait_as_long_as_others_did() -> None:
    found = planned(1, rows=3)
    assert found["collectives.sweep"].why_not == "one GPU has nobody to reduce with"
    assert found["collectives.host"].why_not == ""
    stub = words(found["graphs.replay"])
    assert "--device cuda --tp 8 --rows 3,1 --context 8k --all-reduce delay:33us" in stub


def test_several_gpus_are_ranks_where_they_are_enough() -> None:
    two, eight = planned(2), planned(8)
    assert "--gpus 2 --model" in words(two["collectives.sweep"])
    assert "--all-reduce delay:33us" in words(two["graphs.replay"])
    assert "--gpus 8 --model" in words(eight["collectives.sweep"])
    assert "--gpus 8 --records" in words(eight["graphs.replay"])
    assert "backend" not in words(eight["collectives.sweep"])


@pytest.mark.parametrize(
    ("minutes", "narrowed"), [(3, "--protos default"), (10, "--algos ring"), (30, "8,16 --records")]
)
def test_a_sweep_has_as_many_combinations_as_its_share_has_time_for(
    minutes: float, narrowed: str
) -> None:
    assert narrowed in words(planned(8, minutes=minutes)["collectives.sweep"])


def test_one_rank_has_no_all_reduce() -> None:
    found = planned(1, model="qwen3-30b-a3b", tp=1)
    assert found["collectives.sweep"].why_not == "--tp 1 has no all-reduce"
    assert "--all-reduce" not in words(found["graphs.replay"])


def test_look_only_leaves_the_gpus_alone() -> None:
    found = planned(8, look_only=True)
    for name in ("collectives.sweep", "graphs.replay", "pytest"):
        assert found[name].why_not == "--look-only touches no GPU"
    assert "collectives.host --look-only" in words(found["collectives.host"])
    assert found["predict"].why_not == ""


def test_a_gpu_that_the_table_lacks_is_predicted_for_by_another_name() -> None:
    asked = Asked(model="kimi-k2.5", tp=8)
    folder = Folder(ROOT / "x", "x")
    made = steps(asked, Here(gpus=("NVIDIA T4",)), folder, find_model("kimi-k2.5"))
    (step,) = [one for one in made if "predicted" in one.name]
    assert step.why_not == "NVIDIA T4 is not in verifyscope/hardware.py; --gpu names another"


def test_what_the_person_knows_goes_to_the_steps_that_use_it() -> None:
    found = planned(
        0, logs=("a.log", "b.log"), observed_ms="29.48", earlier_ms="19", plain_ms="12.12",
        accept_length="2", rows=3, context="32k", requests=2,
    )  # fmt: skip
    assert words(found["ingest"]) == (
        "ingest a.log b.log --plain-ms 12.12 --records runs/x/records.jsonl"
    )
    assert (
        "--tp 8 --rows 3 --context 32k --requests 2 --predict rtx-pro-6000-server --observed-ms "
        "29.48 --plain-ms 12.12 --earlier-ms 19 --accepted 2" in words(found["predict"])
    )


def test_kernels_are_those_of_the_model_and_its_rows() -> None:
    asked = Asked(model="kimi-k2.5", tp=8, rows=5, context="10k")
    assert selection(find_model("kimi-k2.5"), asked, many=True) == (
        "((mla_verify and -h8- and -l8k-) or rms_norm or (fused_moe and -kimi-k2.5-tp8- and "
        "-uniform) or moe_routing or moe_align or shared_expert) and (-t1- or -t6- or -t16-)"
    )
    llama = Asked(model="llama-3.1-70b", tp=8)
    assert selection(find_model("llama-3.1-70b"), llama, many=False) == (
        "((tree_attention and -h8x1- and -l8k-) or rms_norm) and (-t1- or -t4-)"
    )
    assert "-k" not in planned(0, expression="")["pytest"].command
    assert planned(0, expression="rope")["pytest"].skip_statuses == {5: "-k rope selects no case"}


def test_a_single_time_of_a_log_is_taken_where_the_person_gave_none(tmp_path: Path) -> None:
    theirs = {"source": "imported", "part": "forward"}
    verify = kernel("a", 29_480.0, op="verify", mode="verify", **theirs)
    step = kernel("a", 12_120.0, op="step", mode="decode", **theirs)
    own = kernel("own", 5.0)
    folder = Folder(tmp_path, "x")

    def more(*lines: Any, measured: bool = False, **fields: Any) -> list[str]:
        folder.records.write_bytes(b"".join(encoded(line) for line in (GPU, CPU, *lines)))
        asked = Asked(model="kimi-k2.5", tp=8, **fields)
        return more_of_prediction(folder, asked, measured=measured)

    assert more(verify, step) == ["--observed-ms", "29.48", "--plain-ms", "12.12"]
    assert more(verify, step, observed_ms="30") == ["--plain-ms", "12.12"]
    assert more(verify, verify, step) == ["--plain-ms", "12.12"]
    # A step of more requests, and a verify of another model, are of no pass that was asked about.
    busy = msgspec.structs.replace(step, dims={"requests": 8})
    other = msgspec.structs.replace(verify, method={"model": "glm-5.1"})
    assert more(busy, other) == []
    assert more(busy, requests=8) == ["--plain-ms", "12.12"]
    assert more(own, measured=True) == ["--measured", "x/records.jsonl"]
    assert more(own) == more(verify, measured=True, observed_ms="30") == []
    folder.records.unlink()
    assert more_of_prediction(folder, Asked(model="kimi-k2.5", tp=8), measured=True) == []


def test_each_option_that_a_step_gives_is_one_of_its_command() -> None:
    for gpus in (0, 1, 8):
        for name, step in planned(
            gpus, look_only=gpus == 1, logs=("a",), plain_ms="1", observed_ms="2", earlier_ms="1",
            accept_length="1", compile=("90",), minutes=60,
        ).items():  # fmt: skip
            if name != "pytest":
                told = _help(step.command[2])
                given = {word for word in step.command if word.startswith("--")}
                assert {word for word in given if word not in told} == set(), name


_HELP: dict[str, str] = {}


def _help(module: str) -> str:
    if module not in _HELP:
        command = [sys.executable, "-m", module, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        _HELP[module] = done.stdout
    return _HELP[module]


def said(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, str]:
    """Return the exit status and the one line on stderr."""
    status: object = None
    try:
        status = diagnose.main(["--model", "kimi-k2.5", *given])
    except SystemExit as end:
        status = end.code
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1, error
    assert isinstance(status, int)
    return status, error.removeprefix("python -m verifyscope.diagnose: ").strip()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("", "no GPU is here to count; give --tp, such as --tp 8"),
        ("--tp 8 --minutes 0.1", "--minutes 0.1 is too little"),
        ("--tp 8 --minutes 0", "--minutes 0 is out of range"),
        ("--tp 8 --minutes nan", "--minutes nan is out of range"),
        ("--tp 7", "kimi-k2.5 has 64 heads; --tp 7 cannot split them"),
        ("--tp 8 --rows 0", "count '0'"),
        ("--tp 8 --gpu t4", "unknown GPU 't4'"),
        ("--tp 8 --model nothing", "unknown model 'nothing'"),
        ("--tp 8 --log absent.log", "--log absent.log: no such file"),
        ("--tp 8 --observed-ms 0", "--observed-ms '0' is no number"),
        ("--tp 8 --plain-ms soon", "--plain-ms 'soon' is no number"),
        ("--tp 8 --earlier-ms 19", "--earlier-ms is held against an observed verify"),
        ("--tp 8 --rows 3 --accept-length 4", "--accept-length 4: a verify of 3 rows yields"),
        ("--tp 8 --out Makefile", "--out Makefile is a file"),
        ("--tp 8 --minuts 3", "unrecognized arguments: --minuts 3; 'python -m verifyscope.diag"),
    ],
)
def test_a_wrong_question_is_one_line_and_2(
    given: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "look", lambda: None)
    monkeypatch.chdir(ROOT)
    status, text = said(capsys, *given.split())
    assert status == 2
    assert text.startswith(line)


def test_a_folder_that_holds_a_run_is_not_mixed_with_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "records.jsonl").touch()
    status, text = said(capsys, "--tp", "8", "--out", str(tmp_path))
    assert (status, "holds a run; name another folder" in text) == (2, True)


def test_a_place_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "look", lambda: driver.Found(cuda=13000, gpus=(RTX,) * 8))
    (tmp_path / "file").touch()
    status, text = said(capsys, "--out", str(tmp_path / "file" / "run"))
    assert status == 1
    assert text == (
        f"{tmp_path / 'file' / 'run'}: not a directory; free some space or name another folder "
        f"with --out"
    )


def test_a_verifyscope_without_its_checkout_says_where_to_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose, "_ROOT", tmp_path)
    status, text = said(capsys, "--tp", "8")
    assert status == 2
    assert text.startswith("kernels, collectives, graphs, ingest, reports, suites are not beside")
    assert text.endswith("go to the checkout and run the same command there")


def test_a_python_without_the_base_packages_is_told_how_to_get_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "msgspec" else known(name),
    )
    status, text = said(capsys, "--tp", "8")
    assert status == 1
    assert text.startswith("this Python lacks msgspec, without which no step runs")
    assert "`python -m verifyscope.install here` (or `make setup-here`)" in text


def test_the_plan_is_a_script_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "look", lambda: None)
    run = tmp_path / "a run"
    assert diagnose.main(["--model", "kimi-k2.5", "--tp", "8", "--plan", "--out", str(run)]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    assert not run.exists()
    subprocess.run(["bash", "-n"], input=out, text=True, check=True)
    assert "# 2. links between GPUs, and a first all-reduce: not run: needs a GPU" in out
    assert f"-m verifyscope --json '{run}/machine.json' > '{run}/machine.txt'" in out


def test_help_imports_nothing_that_a_bare_python_lacks() -> None:
    code = (
        "import sys; before = set(sys.modules); from verifyscope import diagnose\n"
        "try: diagnose.main(['--help'])\n"
        "except SystemExit: pass\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "verifyscope", done.stderr


def test_the_shares_know_every_step() -> None:
    assert set(shares.SHARES) == set(shares.NAMES)
    assert job.lacking([]) == frozenset()
