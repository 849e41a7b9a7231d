"""`python -m collectives.host`: what it asks, prints and keeps."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from collectives import host as command
from collectives._attest.logs import Logs
from collectives._host import machine, peers, probe
from collectives._host.child import NO_TORCH
from collectives._host.facts import (
    Access,
    Broken,
    Check,
    Configuration,
    Host,
    HostCopy,
    Kernel,
    Link,
    Probed,
    Rate,
    Tried,
)
from ingest.kernel_log import read_kernel_log
from tests.test_host_findings import CONF, TRANSLATED, check, gpu, host, pair, rate
from tests.test_ingest_gpus import query, text
from tests.test_ingest_host import DMESG, GPU, bridge
from verifyscope import cli
from verifyscope.records import Environment, Finding, Measurement, Reader

MATRIX = (
    "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tPIX\tSYS\t0-31\t0\nGPU1\tPIX\t X \tSYS\t0-31\t0\nGPU2\tSYS\tSYS\t X \t32-63\t1\n"
)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(command.application, command.PROGRAM, arguments)
    return int(ended.value.code or 0)


def rows(text: str, kind: str) -> list[list[str]]:
    found = [line.split("\t") for line in text.splitlines()]
    return [cells[1:] for cells in found if cells[0] == kind]


@pytest.fixture
def out(tmp_path: Path) -> tuple[str, str]:
    return "--records", str(tmp_path / "host.jsonl")


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    contents = {
        "topo.txt": MATRIX,
        "smi.txt": text(query(bus="01"), query(bus="C2", generation=1, width=8), query(bus="E1")),
        "lspci.txt": bridge() + GPU.format(address="c2:00.0"),
        "dmesg.txt": DMESG,
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    return [str(tmp_path / name) for name in contents]


def here(monkeypatch: pytest.MonkeyPatch, found: Host, tried: Tried, probed: Probed) -> list[str]:
    """Let the machine at hand be `found`; return what is tried on it."""
    done: list[str] = []

    def measure(*, timeout_s: float) -> Tried:
        done.append(f"peers within {timeout_s:g} s")
        return tried

    def first(ranks: int, *, timeout_s: float) -> tuple[Probed, Logs | None]:
        done.append(f"probe of {ranks} ranks")
        return probed, None

    monkeypatch.setattr(machine, "look", lambda: found)
    monkeypatch.setattr(machine, "kernel_log", lambda: found.kernel)
    monkeypatch.setattr(peers, "measure", measure)
    monkeypatch.setattr(probe, "probe", first)
    return done


def test_saved_texts_are_judged_without_a_gpu(
    texts: list[str], out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*texts, *out) == 0
    printed = capsys.readouterr().out
    facts = {cells[0]: cells[1] for cells in rows(printed, "host")}
    assert facts["GPUs"] == "3 x NVIDIA Test GPU, PCIe 5 x16"
    assert facts["paths"] == "1 PIX and 2 SYS pairs"
    assert facts["IOMMU"] == "translated (default domain type: translated)"
    assert facts["ACS"] == "redirects on 1 of 1 bridges above GPUs: 0000:c0:01.1"
    assert rows(printed, "gpu")[1] == [
        *("1", "NVIDIA Test GPU", "0000:c2:00.0", "0"),
        *("PCIe 1 x8, idle", "-", "PCIe 5 x16", "-", "-"),
    ]
    assert [cells[:2] for cells in rows(printed, "pair")] == [
        ["0-1", "PIX"], ["0-2", "SYS"], ["1-2", "SYS"],
    ]  # fmt: skip
    found = {cells[0]: cells[1:] for cells in rows(printed, "found")}
    assert list(found)[:3] == ["iommu-faults", "gpu-xid", "acs-redirect"]
    assert found["acs-redirect"][:2] == ["sure", "lspci.txt:11"]
    assert found["iommu-translated"][:2] == ["likely", "dmesg.txt:3"]
    assert found["narrow-link"][:2] == ["sure", "smi.txt:38"]
    assert found["numa-split"][:2] == ["sure", "topo.txt:2"]


def test_records_hold_the_host_and_each_finding_with_its_evidence(
    texts: list[str], out: tuple[str, str]
) -> None:
    assert run(*texts, *out) == 0
    records = list(Reader(Path(out[1])))
    assert isinstance(records[0], Environment)
    findings = {one.name: one for one in records if isinstance(one, Finding)}
    assert findings["collective-host"].sentence.startswith(
        "3 x NVIDIA Test GPU, PCIe 5 x16; 1 PIX and 2 SYS pairs; IOMMU translated; ACS redirects on"
    )
    assert "look at iommu-faults, gpu-xid, acs-redirect" in findings["collective-host"].sentence
    redirect = findings["acs-redirect"]
    assert [(e.file, e.at) for e in redirect.evidence] == [("lspci.txt", 11)]
    assert all(one.environment == records[0].id for one in findings.values())


@pytest.mark.parametrize("option", ["--records", "--json"])
def test_a_place_that_cannot_be_written_is_known_before_anything_is_tried(
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tried = here(monkeypatch, host(2), Tried(), Probed())
    (tmp_path / "file").write_text("")
    asked = {"--records": str(tmp_path / "host.jsonl"), option: str(tmp_path / "file" / "host")}
    assert run(*(word for pair_ in asked.items() for word in pair_)) == 1
    assert "a part of this path is a file" in capsys.readouterr().err
    assert tried == []


def test_json_holds_all_of_it(texts: list[str], out: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "new" / "host.json"
    assert run(*texts, *out, "--json", str(path)) == 0
    found = json.loads(path.read_text())
    assert [one["idle"]["bus"] for one in found["gpus"]][1] == "0000:c2:00.0"
    assert [one["path"] for one in found["pairs"]] == ["PIX", "SYS", "SYS"]
    assert found["iommu"]["mode"] == "translated"
    assert [one["address"] for one in found["bridges"]] == ["0000:c0:01.1"]
    assert found["tried"] is None
    assert "acs-redirect" in [one["name"] for one in found["findings"]]


def test_an_nccl_log_gives_graphs_transports_and_settings(
    out: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "nccl.log"
    prefix = "a:1:1 [0] NCCL INFO "
    log.write_text(
        prefix + "NCCL version 2.29.7+cuda12.9\n"
        + prefix + "NET/OFI Setting NCCL_PROTO to \"simple\"\n"
        + prefix + "Pattern 4, crossNic 0, nChannels 1, bw 0.1/0.1, type SYS/PIX, sameChannels 1\n"
        + prefix + "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
        + prefix + "Channel 01 : 0[0] -> 1[1] via SHM/direct/direct\n"
    )  # fmt: skip
    assert run("--log", str(log), *out) == 0
    printed = capsys.readouterr().out
    assert ["GPUs", "not in these texts"] in rows(printed, "host")
    assert rows(printed, "setting") == [["NCCL_PROTO", "simple (plugin, by nccl.log)"]]
    assert rows(printed, "nccl")[1:] == [
        ["pattern 4", "1 x 0.1 GB/s over SYS, simple order: the search failed"],
        ["via SHM/direct/direct", "1 ways: 0-1"],
    ]
    assert [cells[0] for cells in rows(printed, "found")] == [
        "graph-simple-order", "shm-transport", "plugin-injected-env",
    ]  # fmt: skip


def test_the_logs_of_all_ranks_are_one(
    out: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.log").write_text(
            f"node1:{rank}:1 [{rank}] NCCL INFO NCCL_PROTO set by environment to LL\n"
            f"node1:{rank}:1 [{rank}] NCCL INFO Channel 00 : {rank}[{rank}] -> {1 - rank}"
            f"[{1 - rank}] via SHM/direct/direct\n"
        )
    both = [str(tmp_path / f"rank{rank}.log") for rank in (0, 1)]
    assert run(*both, *out) == 0
    printed = capsys.readouterr().out
    assert rows(printed, "setting") == [["NCCL_PROTO", "LL (environment, by rank0.log)"]]
    assert rows(printed, "nccl")[1:] == [["via SHM/direct/direct", "2 ways: 0-1, 1-0"]]
    (shm,) = [one for one in Reader(Path(out[1])) if getattr(one, "name", "") == "shm-transport"]
    assert isinstance(shm, Finding)
    assert [(e.file, e.at) for e in shm.evidence] == [("rank0.log", 2), ("rank1.log", 2)]


def test_without_a_gpu_and_a_file_what_is_known_is_said_and_then_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    nothing = Host(
        why_no_gpu="no NVIDIA driver: libnvidia-ml.so.1 is not found",
        why_no_lspci="lspci is not installed (package pciutils)",
        configuration=Configuration(settings=(CONF,)),
        iommu=TRANSLATED,
    )
    done = here(monkeypatch, nothing, Tried(), Probed())
    assert run() == 2
    printed = capsys.readouterr()
    assert done == []
    assert rows(printed.out, "host") == [
        ["GPUs", "none: no NVIDIA driver: libnvidia-ml.so.1 is not found"],
        ["IOMMU", "translated (DMA-FQ)"],
        ["ACS", "not known: lspci is not installed (package pciutils)"],
    ]
    assert rows(printed.out, "setting") == [["NCCL_PROTO", "LL (nccl.conf:3)"]]
    assert [cells[0] for cells in rows(printed.out, "found")] == ["config-injected-env"]
    (line,) = printed.err.splitlines()
    assert line.startswith(
        "python -m collectives.host: no GPU to judge (no NVIDIA driver: libnvidia-ml.so.1 is not "
        "found): run this on a machine with GPUs, or give saved texts of one"
    )
    assert list(tmp_path.iterdir()) == []


def tried(*checks: Check, **more: object) -> Tried:
    given: dict[str, object] = {
        "links": (Link(gpu=0, loaded=True, generation=5, width=16),),
        "access": (Access(writer=0, target=1, able=True), Access(writer=1, target=0, able=True)),
        "checks": checks or tuple(
            Check(writer=a, target=b, way=way, size_bytes=(8,), words=1, lost=0, wrong=0)
            for a, b in ((0, 1), (1, 0))
            for way in ("copy engine", "kernel")
        ),
        "rates": (
            rate("alone", (0, 1)),
            rate("alone", (1, 0), gb_s=21.0),
            rate("both ways", (0, 1), (1, 0), gb_s=18.0),
        ),
        "copies": (HostCopy(gpu=0, to_gpu=True, size_bytes=2**30, seconds=(2**30 / 25e9,)),),
        **more,
    }  # fmt: skip
    return Tried(**given)  # type: ignore[arg-type]  # each is what its field wants


def machine_of() -> Host:
    gpus = (gpu(0, generation=1), gpu(1, generation=1))
    return host(gpus=gpus, pairs=(pair(0, 1, "PIX", asked=True),))


def test_a_machine_with_gpus_is_tried_and_told(
    monkeypatch: pytest.MonkeyPatch, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    done = here(monkeypatch, machine_of(), tried(), Probed(ranks=2))
    assert run(*out, "--timeout", "7") == 0
    printed = capsys.readouterr()
    assert done == ["peers within 7 s", "probe of 2 ranks"]
    assert ["first all-reduce", "2 ranks, every value right"] in rows(printed.out, "host")
    first, second = rows(printed.out, "gpu")
    assert first[4:] == ["PCIe 1 x16, load not known", "PCIe 5 x16", "PCIe 5 x16", "25.0 GB/s", "-"]
    assert second[5] == "-"
    assert rows(printed.out, "pair") == [
        ["0-1", "PIX", "yes", "all arrived", "20.0 GB/s", "21.0 GB/s", "36.0 GB/s"]
    ]
    kept = [one for one in Reader(Path(out[1])) if isinstance(one, Measurement)]
    assert [(one.op, one.case, one.status) for one in kept] == [
        ("host_copy", "host-to-gpu-0", "ok"),
        ("peer_write", "alone-0-1", "ok"),
        ("peer_write", "alone-1-0", "ok"),
        ("peer_write", "both-ways-0-1", "ok"),
    ]
    assert kept[1].median_s == 2**30 / 20e9
    assert kept[1].dims == {
        "writer": 0, "target": 1, "path": "PIX", "bytes": 2**30, "writes": 1, "together": "alone",
    }  # fmt: skip
    assert kept[3].touched_bytes == 2**31


@pytest.mark.parametrize(
    ("trial", "probed", "name"),
    [
        (tried(check(lost=1)), Probed(ranks=2), "p2p-capable-but-failed-write-verify"),
        (tried(), Probed(ranks=2, wrong=3), "corrupt-values"),
        (
            tried(broken=Broken(kind="hang", step="s", reason="r", writes=((0, 1),))),
            Probed(ranks=2),
            "p2p-write-hangs",
        ),
        (
            tried(),
            Probed(ranks=2, broken=Broken(kind="hang", step="s", reason="silent for 60 s")),
            "collective-hangs",
        ),
    ],
)
def test_wrong_values_and_hangs_end_with_status_1_and_all_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    out: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    trial: Tried,
    probed: Probed,
    name: str,
) -> None:
    here(monkeypatch, machine_of(), trial, probed)
    assert run(*out) == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1] == (
        f"python -m collectives.host: this machine is not fit for collectives as it is: {name}"
    )
    assert rows(printed.out, "found")[0][0] == name
    names = [one.name for one in Reader(Path(out[1])) if isinstance(one, Finding)]
    assert names[:2] == ["collective-host", name]


def test_a_rate_with_wrong_values_has_no_time(
    monkeypatch: pytest.MonkeyPatch, out: tuple[str, str]
) -> None:
    wrong = Rate(kind="alone", writes=((0, 1),), size_bytes=8, seconds=(1.0,), wrong=2)
    here(monkeypatch, machine_of(), tried(rates=(wrong,)), Probed(ranks=2))
    assert run(*out) == 1
    rates = [one for one in Reader(Path(out[1])) if isinstance(one, Measurement)]
    assert (rates[1].status, rates[1].median_s) == ("corrupt", None)
    assert rates[1].reason == "2 words of 8 bytes differ"


def test_what_the_kernel_logs_during_the_tests_is_seen(
    monkeypatch: pytest.MonkeyPatch, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    here(monkeypatch, machine_of(), tried(), Probed(ranks=2))
    after = Kernel(file="dmesg", log=read_kernel_log(enumerate(DMESG.splitlines(), 1)))
    monkeypatch.setattr(machine, "kernel_log", lambda: after)
    assert run(*out) == 0
    found = {cells[0]: cells[1:] for cells in rows(capsys.readouterr().out, "found")}
    assert found["iommu-faults"][1] == "dmesg:4"


def test_only_gpus_that_cuda_sees_take_part_in_an_all_reduce(
    monkeypatch: pytest.MonkeyPatch, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    done = here(monkeypatch, host(4), tried(visible=(1, 3)), Probed(ranks=2))
    assert run(*out) == 0
    assert done[1] == "probe of 2 ranks"
    told = ["seen by CUDA", "GPU 1 and 3 of 4: nothing else was tried"]
    assert told in rows(capsys.readouterr().out, "host")


def test_without_torch_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert peers.measure(timeout_s=1.0).why_not == NO_TORCH
    assert probe.probe(2, timeout_s=1.0) == (Probed(why_not=NO_TORCH), None)


def test_look_only_touches_no_gpu(
    monkeypatch: pytest.MonkeyPatch, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    done = here(monkeypatch, machine_of(), tried(), Probed())
    assert run("--look-only", *out) == 0
    assert done == []
    assert rows(capsys.readouterr().out, "pair")[0][2:4] == ["yes, by the driver", "-"]


def test_what_could_not_be_tried_says_why(
    monkeypatch: pytest.MonkeyPatch, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    why = "torch 2.13.0+cpu is built without CUDA"
    here(monkeypatch, machine_of(), Tried(why_not=why), Probed(why_not=why))
    assert run(*out) == 0
    printed = capsys.readouterr().out
    assert ["links, writes", f"not tried: {why}"] in rows(printed, "host")
    assert ["first all-reduce", f"not tried: {why}"] in rows(printed, "host")


def test_a_person_gets_aligned_tables_with_headers(
    monkeypatch: pytest.MonkeyPatch,
    texts: list[str],
    out: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "is_terminal", lambda stream: True)
    assert run(*texts, *out) == 0
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if "link now" in line)
    row = lines[lines.index(header) + 1]
    assert row.index("0000:01:00.0") == header.index("address")
    assert "\t" not in "".join(lines)
    at = lines.index("found acs-redirect (sure), lspci.txt:11")
    assert lines[at + 1].startswith("  PCIe access control (ACS) redirects on 1 of 1 bridges")


def test_what_readme_shows_is_what_the_command_says(
    monkeypatch: pytest.MonkeyPatch, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    readme = Path(__file__).resolve().parent.parent / "README.md"
    section = readme.read_text(encoding="utf-8").partition("## What kind of host is this?")[2]
    report, said = re.findall(r"(?:^(?:    .*)?\n)+", section.partition("\n## ")[0], re.MULTILINE)[
        1:
    ]
    path = Path(out[1]).with_name("report.txt")
    path.write_text(textwrap.dedent(report).strip("\n") + "\n")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(cli, "is_terminal", lambda stream: True)
    assert run(str(path), *out) == 0
    assert capsys.readouterr().out.strip() == textwrap.dedent(said).strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--timeout", "0"), "--timeout 0 is out of range; give 1 to 86400"),
        (("missing.txt",), "missing.txt: no such file or directory; give a log"),
        (("--look", "x"), "lists what is allowed"),
    ],
)
def test_a_wrong_question_is_one_line(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_nothing_outside_the_list_of_settings_reaches_a_file(
    monkeypatch: pytest.MonkeyPatch, texts: list[str], out: tuple[str, str], tmp_path: Path
) -> None:
    canaries = {
        "HF_TOKEN": "canary-1",
        "VLLM_API_KEY": "canary-2",
        "NCCL_COMM_ID": "10.9.8.7:4711",
        "NCCL_DEBUG_FILE": "/home/canary-3/nccl.log",
    }
    for name, value in canaries.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "all.json"
    assert run(*texts, *out, "--json", str(path)) == 0
    whole = path.read_text() + Path(out[1]).read_text()
    for word in ("canary", "10.9.8.7", "secret", "4242", "alice", "UUID"):
        assert word not in whole


def test_help_starts_without_what_it_does_not_need() -> None:
    code = (
        "import sys; sys.argv = ['x', '--help']\n"
        "import runpy\n"
        "try: runpy.run_module('collectives.host', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'msgspec', 'pynvml', 'ingest.formats'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root,
                          env={**os.environ, "PYTHONPATH": str(root)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nvidia-bug-report" not in done.stderr
