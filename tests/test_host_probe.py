"""A first all-reduce over the GPUs of a host, in processes of its own, and the log it leaves."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectives._attest.logs import Logs
from collectives._host import probe
from collectives._host.facts import Broken, Probed


def probed(mode: str, timeout_s: float = 20.0) -> tuple[Probed, Logs | None]:
    def start(folder: Path) -> Sequence[str]:
        return (sys.executable, "-m", "tests.fake_probe", mode, str(folder))

    return probe.probe(2, timeout_s=timeout_s, command=start)


def test_a_first_all_reduce_brings_nccls_log_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    found, logs = probed("right")
    assert found == Probed(ranks=2)
    assert logs is not None
    log = logs.log
    assert (len(log.processes), [known.count for known in log.searches]) == (2, [2])
    assert [(known.source, known.target) for known in log.transports] == [(0, 1), (1, 0)]
    assert logs.place(log.transports[1].line) == ("nccl probe", 6)
    origins = {known.name: known.origin for known in log.settings}
    assert origins == {"NCCL_PROTO": "environment", "NCCL_ALGO": "configuration file"}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("wrong", Probed(ranks=2, wrong=10)),
        ("why not", Probed(why_not="torch 9.9 has no NCCL")),
        (
            "dies",
            Probed(ranks=2, broken=Broken(
                kind="error", step="a first all-reduce over 2 GPUs", reason="rank 1 died")),
        ),
        (
            "hangs",
            Probed(ranks=2, broken=Broken(
                kind="hang", step="a first all-reduce over 2 GPUs",
                reason="it says nothing for 1 s")),
        ),
    ],
)  # fmt: skip
def test_what_becomes_of_a_first_all_reduce(mode: str, expected: Probed) -> None:
    found, logs = probed(mode, timeout_s=1.0 if mode == "hangs" else 20.0)
    assert found == expected
    assert (logs is None) == (mode == "why not")


def test_two_real_processes_sum_and_compare() -> None:
    pytest.importorskip("torch")

    def start(folder: Path) -> Sequence[str]:
        module = "collectives._host.probe_process"
        return (sys.executable, "-m", module, "gloo", "2", str(folder))

    assert probe.probe(2, timeout_s=60.0, command=start) == (Probed(ranks=2), None)


def test_a_torch_without_cuda_has_no_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from collectives._host import probe_process

    monkeypatch.setattr(torch.version, "cuda", None)
    assert probe_process.why_not("nccl") == f"torch {torch.__version__} is built without CUDA"
    assert probe_process.why_not("gloo") is None


def test_wrong_sums_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from collectives._host.probe_process import wrong_values

    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda held: None)
    assert wrong_values(0, 1, 4096, cpu) == 0
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda held: held.mul_(2))
    assert wrong_values(0, 1, 4096, cpu) == 2048 - 8  # 8 of 2048 places hold 0
