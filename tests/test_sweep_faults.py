"""The whole command with a backend that goes wrong on purpose: each fault has its status.

One sweep has all faults at once: it goes on after each, and ends with 1 and a readable table.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ingest.nccl_log import read_log
from verifyscope.records import Measurement, Reader

ROOT = Path(__file__).resolve().parent.parent
SIZES = ("--gpus", "2", "--backend", "injected", "--min-bytes", "1K", "--max-bytes", "4K")
# What must appear in no file of a run.
CANARIES = {
    "HF_TOKEN": "hf_canaryhuggingface",
    "VLLM_API_KEY": "canaryvllmkey",
    "NCCL_COMM_ID": "10.99.88.77:45678",
    "NCCL_DEBUG_FILE": "/home/canaryuser/logs/nccl.txt",
    "NCCL_HOSTID": "canaryhost-7",
    "MY_OWN_SETTING": "canaryunlisted",
}
FAULTS = {
    "ring/ll": "hang",
    "ring/simple": "crash@1",
    "tree/ll": "corrupt",
    "tree/simple": "ignored",
    "nvls/simple": "refused",
    "ring/ll128": "bits",
    "tree/ll128": "raise",
    "pat/simple": "plugin",
    "nvlstree/simple": "silent",
    "collnetchain/simple": "plugin@2",
    "collnetdirect/simple": "raise@2",
}


class Ended(NamedTuple):
    """A sweep that is over."""

    status: int
    out: str
    err: str
    folder: Path

    def rows(self) -> list[Measurement]:
        found = Reader(self.folder / "r.jsonl")
        return [r for r in found if isinstance(r, Measurement) and r.op == "all_reduce"]

    def statuses(self) -> dict[str, set[tuple[str, str]]]:
        """Return statuses and reasons of the eager rows, by combination."""
        found: dict[str, set[tuple[str, str]]] = {}
        for row in self.rows():
            if row.launch != "graph" and row.implementation.startswith("injected"):
                name = row.implementation.partition(" ")[2]
                found.setdefault(name, set()).add((row.status, row.reason or ""))
        return found


def run(folder: Path, *options: str, faults: dict[str, str], **environment: str) -> Ended:
    said = ",".join(f"{name}={fault}" for name, fault in faults.items())
    (folder / "starts").mkdir(exist_ok=True)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.injected_sweep", *SIZES, *options),
            *("--records", str(folder / "r.jsonl")),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "SWEEP_FAULTS": said,
            "SWEEP_STARTS": str(folder / "starts"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Ended(done.returncode, done.stdout, done.stderr, folder)


@pytest.fixture(scope="module")
def all_faults(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    options = ("--timeout", "2", "--allow-ll128", "--force", "--stress-calls", "3")
    return run(tmp_path_factory.mktemp("faults"), *options, faults=FAULTS, **CANARIES)


def test_each_fault_has_its_status_and_the_sweep_goes_on(all_faults: Ended) -> None:
    found = all_faults.statuses()
    assert found[""] == {("ok", "")}
    ((status, reason),) = found["ring/ll"]
    assert status == "hang"
    assert reason == (
        "no rank is behind, all of 0 to 1 are in all_reduce call 5; no progress for 2 s "
        "(--timeout); at 2048B-bfloat16-out-of-place in the probe"
    )
    ((status, reason),) = found["ring/simple"]
    assert status == "error"
    assert re.fullmatch(
        r"rank 1 \(pid \d+\) was ended by SIGKILL; at 2048B-bfloat16-out-of-place in start 1 of 3",
        reason,
    )
    assert found["tree/ll"] == {
        ("ok", ""),
        ("corrupt", "6 values are wrong in the probe; it is not timed"),
    }
    assert found["tree/simple"] == {("ignored", "asked for tree/simple, NCCL took ring/simple")}
    ((status, reason),) = found["nvls/simple"]
    assert (status, reason.startswith("NCCL: Error : no algorithm/protocol available for")) == (
        "unsupported",
        True,
    )
    ((status, reason),) = found["tree/ll128"]
    assert status == "error"
    assert "raised ValueError: no such link; at 2048B" in reason
    assert found["pat/simple"] == {("ignored", "NCCL_PROTO is LL on rank 0, not Simple")}
    # What was in effect in the probe and is not in a later start: no start counts.
    assert found["collnetchain/simple"] == {
        ("ignored", "NCCL_PROTO is LL on rank 0, not Simple in start 2 of 3")
    }
    assert found["nvlstree/simple"] == {("ignored", "NCCL's log shows no choice for 1024 B")} | {
        ("ignored", f"NCCL's log shows no choice for {size} B") for size in (2048, 4096)
    }


def test_one_wrong_bit_in_the_stress_withholds_all_times_of_ll128(all_faults: Ended) -> None:
    ((status, reason),) = all_faults.statuses()["ring/ll128"]
    assert status == "corrupt"
    assert re.match(
        r"integrity stress: of \d+ calls 3 left other bits on another rank, .* at 4096 B$", reason
    )
    rows = [r for r in all_faults.rows() if r.implementation == "injected ring/ll128"]
    assert all("unsafe" in row.flags for row in rows)
    assert (all_faults.folder / "starts" / "injected-ring-ll128-0").read_text() == "ps"


def test_the_sweep_ends_with_1_a_table_and_a_line_that_names_what_failed(all_faults: Ended) -> None:
    assert all_faults.status == 1
    last = all_faults.err.splitlines()[-1]
    assert last.startswith("python -m tests.injected_sweep: 10 of 12 combinations did not come th")
    assert (
        "injected ring/ll (hang), injected ring/ll128 (corrupt), injected ring/simple (err" in last
    )
    assert "it said: a word before the end" in all_faults.err
    overview = all_faults.out[all_faults.out.index("# all_reduce, in place") :].splitlines()
    words = [line.split() for line in overview if line.startswith("#  1024")]
    ends = {line[3]: line[-1] for line in words if len(line) > 3 and "/" in line[3]}
    assert ends["ring/ll"] == "hang"
    assert ends["ring/simple"] == "error"
    assert ends["tree/simple"] == "ignored"
    assert ends["ring/ll128"] == "corrupt"
    assert "# injected nvls/simple: unsupported: NCCL: Error : no algorithm" in all_faults.out
    assert "# Test failure" not in all_faults.out  # no combination was lost among its rows


def test_a_time_stands_only_where_the_probe_said_ok(all_faults: Ended) -> None:
    for row in all_faults.rows():
        assert (row.median_s is not None) == (row.status == "ok")
        if row.status == "ok":
            name = row.implementation.partition(" ")[2]
            assert name in ("", "tree/ll")
            assert row.method["starts"] in (3, 4)
            assert row.effective["protocol"] == (name.partition("/")[2] or "ll")
            assert "Bytes -> " in (row.proof or "")
    started = {path.name: path.read_text() for path in (all_faults.folder / "starts").glob("*-0")}
    assert started["injected-ring-ll-0"] == "p"
    assert started["injected-ring-simple-0"] == "pt"
    assert started["injected-tree-simple-0"] == "p"
    assert started["injected-tree-ll-0"].startswith("pttt")


def test_the_log_of_each_probe_is_kept_and_can_be_read_again(all_faults: Ended) -> None:
    probes = all_faults.folder / "probe"
    assert {path.name for path in probes.iterdir()} >= {"injected", "injected-ring-ll"}
    kept = (probes / "injected" / "rank-0.nccl.log").read_text()
    read = read_log(enumerate(kept.splitlines(), 1))
    assert {choice.size_bytes for choice in read.choices} == {1024, 2048, 4096}
    assert read.loaded is not None
    assert read.loaded.version == "2.29.7+cuda12.9"


def test_nothing_private_is_in_any_file_of_a_run(all_faults: Ended) -> None:
    words = [value.rpartition("/")[0] or value for value in CANARIES.values()]
    words += ["canary", "10.99.88.77", "secret-host", "secret-user", "10.20.30.40"]
    files = [path for path in all_faults.folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        text = path.read_text()
        for word in words:
            assert word not in text, f"{word} is in {path.name}"
    for word in words:
        assert word not in all_faults.out + all_faults.err


def test_a_fault_in_a_later_start_keeps_the_samples_of_the_first(all_faults: Ended) -> None:
    rows = [r for r in all_faults.rows() if r.implementation == "injected collnetdirect/simple"]
    eager = [row for row in rows if row.launch == "eager"]
    assert {row.status for row in eager} == {"error"}
    assert all("in start 2 of 3" in (row.reason or "") for row in eager)
    found = Reader(all_faults.folder / "samples.jsonl").samples()
    samples = {line.id: line.seconds for line in found}
    assert all(len(samples[row.id]) >= 2 for row in eager)
