"""All-reduces of others in the table: probed, timed and recorded by real ranks, through stand-ins.

And bound to what is installed here: torch's operations, CuPy, FlashInfer's package.
"""

import inspect
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from collectives import sweep
from collectives._others import cupy_nccl, entries, flashinfer_pcie, symmetric_memory
from collectives._others.entries import Setting
from collectives._sweep import launch, worker
from collectives._sweep.backend import NCCL, Backend, Member, Prepared, Unsupported
from collectives._sweep.combination import Combination
from collectives._sweep.job import Job
from collectives._sweep.launch import ForkServer, Group, Probed, RankFailed, Result
from tests import other_libraries as stand_ins
from tests.sweep_jobs import EAGER, IN_A_ROW, a_job, some_points
from verifyscope import cli
from verifyscope.records import Finding, Measurement, Reader

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with launch.fork_server() as started:
        yield started


def job_of(backend: Backend, **others: object) -> Job:
    job = a_job(sizes=(1024, 2048), timings=(EAGER, IN_A_ROW), backend=backend)
    combination = Combination(backend=backend.name)
    return replace(job, combination=combination, **others)  # type: ignore[arg-type]  # its fields


EVERY = {**stand_ins.BACKENDS, "fused": stand_ins.FUSED}


@pytest.mark.parametrize("name", [name for name in EVERY if name != "flashinfer_pcie"])
def test_each_sums_right_in_both_directions_one_call_after_the_other(
    server: ForkServer, name: str
) -> None:
    found = [k for k in launch.results(server, job_of(EVERY[name])) if isinstance(k, Result)]
    assert [known.wrong for known in found] == [0] * 8
    assert {(known.point.in_place, known.timing.depth) for known in found} == {
        (False, 1),
        (False, 4),
        (True, 1),
        (True, 4),
    }


def test_a_size_that_is_not_taken_is_refused_in_the_probe_and_the_others_are_right(
    server: ForkServer,
) -> None:
    job = job_of(stand_ins.BACKENDS["flashinfer_pcie"], purpose="probe")
    found = list(launch.results(server, job))
    probed = {k.point.size_bytes: k for k in found if isinstance(k, Probed)}
    assert (probed[1024].wrong, probed[1024].refused) == (0, None)
    assert probed[2048].refused == "FlashInfer 0.7.99 does not take 2048 B"
    (group,) = (known for known in found if isinstance(known, Group))
    assert group.ranks[1].read_back.facts == {
        "flashinfer": "0.7.99",
        "flashinfer_profile": "rootcplx",
        "flashinfer_tuned": "no",
    }


def test_what_cannot_run_here_is_unsupported_and_names_no_rank(server: ForkServer) -> None:
    with pytest.raises(RankFailed) as lost:
        list(launch.results(server, job_of(stand_ins.WITHOUT, purpose="probe")))
    assert (lost.value.kind, lost.value.reason) == (
        "unsupported",
        "torch 2.99 has no symm_mem.two_shot_all_reduce_out",
    )


def member(job: Job, rank: int = 0) -> Member:
    return Member(
        job=job, rank=rank, device=torch.device("cpu"), store=Store(), alive=lambda: _Block()
    )


class _Block:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


class Store:
    """A store of one process."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value

    def get(self, key: str) -> bytes:
        return self.kept[key].encode()


def test_memory_that_cannot_be_shared_is_a_reason() -> None:
    library = stand_ins.SymmetricMemory()
    library.far = "GPU 0 has no access to GPU 3"
    with pytest.raises(Unsupported, match="GPU 0 has no access to GPU 3"):
        symmetric_memory.prepared(member(a_job()), library, symmetric_memory.one_shot)

    class Failing(stand_ins.SymmetricMemory):
        def allocate(self, elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
            raise RuntimeError("pidfd_getfd: Operation not permitted, in /usr/lib/torch.so")

    with pytest.raises(Unsupported, match="no symmetric memory here: RuntimeError: pidfd_getfd: O"):
        symmetric_memory.prepared(member(a_job()), Failing(), symmetric_memory.one_shot)


def test_sizes_that_symmetric_memory_does_not_take_are_refused() -> None:
    made = symmetric_memory.prepared(
        member(a_job()), stand_ins.SymmetricMemory(), symmetric_memory.one_shot
    )
    point = some_points(sizes=(1024, 1024))[0]
    assert made.why_not(point) is None
    assert made.why_not(replace(point, size_bytes=1022)) == (
        "torch's symmetric memory takes multiples of 4 B"
    )


def test_flashinfer_has_one_workspace_of_whole_packs_and_gets_rows_of_a_model() -> None:
    asked: list[int] = []

    class Library(stand_ins.FlashInfer):
        def workspace(self, elements: int, dtype: torch.dtype) -> stand_ins.Workspace:
            asked.append(elements)
            return Shapes(elements)

    shapes: list[tuple[int, ...]] = []

    class Shapes(stand_ins.Workspace):
        def all_reduce(self, inp: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(inp.shape))
            return out.copy_(inp)

    points = some_points(sizes=(32, 32), model="kimi-k2.5")
    job = a_job(sizes=(64, 64))
    job = replace(job, tasks=tuple(replace(job.tasks[0], point=point) for point in points))
    made = flashinfer_pcie.prepared(member(job), Library())
    assert asked == [4 * 7168]
    source, output = torch.ones(4 * 7168).bfloat16(), torch.zeros(4 * 7168).bfloat16()
    made.run(output, source)
    made.run(source, source)
    assert shapes == [(4, 7168), (4, 7168)]
    assert output.sum() == 4 * 7168
    assert made.why_not(replace(points[0], size_bytes=2**24)) == (
        "its workspace is made for 8388608 B at most"
    )


def test_a_workspace_that_cannot_be_made_is_a_reason() -> None:
    class Library(stand_ins.FlashInfer):
        def build(self) -> None:
            raise FileNotFoundError("no nvcc at /usr/local/cuda/bin/nvcc")

    with pytest.raises(Unsupported, match=r"FlashInfer 0.7.99: FileNotFoundError: no nvcc at nvcc"):
        flashinfer_pcie.prepared(member(a_job()), Library())


def test_cupy_says_which_nccl_it_calls_and_what_that_lacks() -> None:
    made = cupy_nccl.prepared(member(a_job()), stand_ins.CuPy())
    assert (made.nccl, made.facts) == ("2.28.3", {"cupy": "14.99"})

    class Old(stand_ins.CuPy):
        def number(self) -> int:
            return 22105

    job = replace(a_job(), dtype="float8_e4m3fn")
    with pytest.raises(Unsupported, match=r"NCCL 2.21.5 has no float8_e4m3fn; 2.24 and later have"):
        cupy_nccl.prepared(member(job), Old())


def test_float8_is_tried_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensor: torch.Tensor) -> None:
        raise TypeError(f"{tensor.dtype} is not supported for NCCL reductions")

    monkeypatch.setattr(torch.distributed, "all_reduce", refuse)
    job = replace(a_job(backend=NCCL), dtype="float8_e5m2")
    with pytest.raises(
        Unsupported, match=r"float8_e5m2 is not reduced here: TypeError: torch.float"
    ):
        NCCL.prepare(member(job))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: None)
    assert isinstance(NCCL.prepare(member(job)), Prepared)


def test_the_operations_that_are_called_are_those_of_this_torch() -> None:
    schemas = {
        str(schema)
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("symm_mem::")
    }
    for name, sent in (
        ("one_shot_all_reduce_out", "Tensor input"),
        ("one_shot_all_reduce_copy_out", "Tensor symm_buffer, Tensor local_input"),
        ("two_shot_all_reduce_out", "Tensor(a!) input"),
    ):
        assert any(
            re.match(
                rf"symm_mem::{name}\({re.escape(sent)}, str reduce_op, str group_name, "
                r"Tensor\(\w!\) (out|output)\) -> Tensor",
                schema,
            )
            for schema in schemas
        ), name
    real = symmetric_memory._Torch()
    assert real.operation("two_shot_all_reduce_out") is not None
    assert real.operation("three_shot_all_reduce_out") is None


def test_cupy_without_an_nccl_is_a_reason_and_no_error() -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from collectives._others import cupy_nccl\n"
        "from collectives._sweep.backend import Unsupported\n"
        "try:\n    print(cupy_nccl._CuPy().number() > 21800)\n"
        "except Unsupported as why:\n    print(why)"
    )
    pytest.importorskip("cupy")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert re.fullmatch(
        r"True\n|CuPy \S+ (finds no libnccl.so.2|can't be imported: .*)\n", done.stdout
    )


@pytest.mark.filterwarnings("ignore")
def test_flashinfer_of_another_version_is_a_reason() -> None:
    pytest.importorskip("flashinfer")
    if entries._flashinfer(setting()) is None:
        pytest.skip("this FlashInfer has it")
    with pytest.raises(
        Unsupported, match=r"FlashInfer .* has no PcieIpcAllReduceWorkspace; 0.7 has"
    ):
        flashinfer_pcie._FlashInfer()


@pytest.mark.filterwarnings("ignore")
def test_the_workspace_of_an_installed_flashinfer_is_called_as_it_wants() -> None:
    comm = pytest.importorskip("flashinfer.comm")
    workspace = getattr(comm, flashinfer_pcie.WORKSPACE, None)
    if workspace is None:
        pytest.skip("this FlashInfer has none")
    given = {"group": None, "max_numel": 8, "dtype": torch.bfloat16}
    inspect.signature(workspace.__init__).bind("self", **given)
    inspect.signature(workspace.all_reduce).bind("self", "tensor", out="tensor")
    inspect.signature(workspace.supports).bind("self", "tensor")
    inspect.signature(workspace.rebind_stream).bind("self")


def setting(**others: object) -> Setting:
    made = Setting(on_device=True, dtype="bfloat16", ranks=8, local_ranks=8)
    return replace(made, **others)  # type: ignore[arg-type]  # its fields


def reasons(known: Setting, monkeypatch: pytest.MonkeyPatch, version: str | None) -> dict[str, str]:
    monkeypatch.setattr(entries, "_installed", lambda distribution: version)
    found = entries.planned("all", known)
    return {c.label: c.reason for c in found if c.verdict == "unsupported"}


def test_a_plan_knows_what_cannot_run_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert reasons(setting(), monkeypatch, "0.7.4") == {}
    assert reasons(setting(), monkeypatch, "0.6.18.post1") == {
        "flashinfer_pcie": "FlashInfer 0.6.18.post1 has no PcieIpcAllReduceWorkspace; 0.7 has"
    }
    assert reasons(setting(), monkeypatch, None) == {
        "flashinfer_pcie": "FlashInfer is not installed"
    }
    half = reasons(setting(dtype="float16", ranks=6, local_ranks=6), monkeypatch, "0.7.4")
    assert half == {
        "symm_mem_one_shot": "torch's symmetric memory sums bfloat16 and float32 only",
        "symm_mem_two_shot": "torch has a two-shot for 2, 4 or 8 ranks",
        "flashinfer_pcie": "FlashInfer's PCIe all-reduce is for 2, 4 or 8 ranks",
    }
    two = reasons(setting(local_ranks=4), monkeypatch, "0.7.4")
    assert set(two.values()) == {"it reaches the GPUs of one machine only"}
    assert set(two) == {*stand_ins.NAMES} - {"cupy_nccl"}
    assert (
        "one rank"
        in reasons(setting(ranks=1, local_ranks=1), monkeypatch, "0.7.4")["symm_mem_one_shot"]
    )
    cpu = reasons(setting(on_device=False), monkeypatch, "0.7.4")
    assert cpu == dict.fromkeys(
        stand_ins.NAMES, "it needs GPUs; --backend nccl measures it beside NCCL"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert reasons(setting(), monkeypatch, "0.7.4")["cupy_nccl"] == "CuPy is not installed"


def test_others_are_planned_unless_the_plan_is_narrowed_or_they_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def labels(*options: str) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            cli.run(sweep.application, sweep.PROGRAM, ["--plan", *options])
        assert ended.value.code == 0
        rows = (line.split("\t")[0] for line in capsys.readouterr().out.splitlines())
        return [label for label in rows if not label.startswith("nccl")]

    assert labels() == [*stand_ins.NAMES]
    assert labels("--algos", "ring") == []
    assert labels("--algos", "ring", "--others", "cupy_nccl") == ["cupy_nccl"]
    assert labels("--others", "none") == []
    assert labels("--op", "all_gather") == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--others", "oneshot"), "unknown other all-reduce 'oneshot'; known: symm_mem_one_shot,"),
        (("--others", "all", "--op", "all_gather"), "--others are all-reduces; give --op all_red"),
    ],
)
def test_a_wrong_name_is_one_line_and_status_2(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, options)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_others_stand_in_the_table_and_the_records_with_what_crossovers_read(
    tmp_path: Path,
) -> None:
    records = tmp_path / "r.jsonl"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.injected_sweep", "--backend", "injected"),
            *("--gpus", "2", "--min-bytes", "1K", "--max-bytes", "2K", "--algos", "default"),
            *("--protos", "default", "--others", "all", "--records", str(records)),
        ],
        cwd=ROOT,
        env={**os.environ, "SWEEP_OTHERS": "1", "SWEEP_ABSENT": "symm_mem_two_shot"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, f"records: {records}\n")
    found = [*Reader(records)]
    rows = [r for r in found if isinstance(r, Measurement) and r.op == "all_reduce"]
    by_name = {name: [r for r in rows if r.implementation == name] for name in stand_ins.NAMES}
    for name in ("symm_mem_one_shot", "cupy_nccl"):
        timed = [row for row in by_name[name] if row.launch == "eager"]
        assert {row.status for row in timed} == {"ok"}
        assert len(timed) == 2 * 2 * 2  # sizes, directions, isolated and in a row
        for row in timed:
            assert {"bytes", "in_place", "dtype"} <= {*row.dims}
            assert {f"start_{at}_median_s" for at in range(3)} <= {*row.method}
    staged = by_name["symm_mem_one_shot"][0]
    assert (
        staged.method["out_of_place"] == "copy into symmetric memory, then reduced into the output"
    )
    assert staged.effective["torch"] == "2.99"
    assert by_name["cupy_nccl"][0].effective["nccl"] == "2.28.3"
    assert "out_of_place" not in by_name["cupy_nccl"][0].method
    two_shot = {(r.status, r.reason) for r in by_name["symm_mem_two_shot"]}
    assert two_shot == {("unsupported", "torch 2.99 has no symm_mem.two_shot_all_reduce_out")}
    flashinfer = {r.dims["bytes"]: r for r in by_name["flashinfer_pcie"] if r.launch == "eager"}
    assert [flashinfer[size].status for size in (1024, 2048)] == ["ok", "unsupported"]
    assert flashinfer[2048].reason == "FlashInfer 0.7.99 does not take 2048 B"
    # The end of the sweep compares each with the default.
    end = done.stdout[done.stdout.index("# all_reduce, 2 ranks, bfloat16, in place") :]
    for name in ("symm_mem_one_shot", "cupy_nccl", "flashinfer_pcie"):
        assert re.search(rf"^#   {name} is (faster|slower|neither)", end, re.M)
    assert all(isinstance(known.sentence, str) for known in found if isinstance(known, Finding))


def test_a_rank_that_compiles_counts_as_moving_and_then_starts_from_nothing() -> None:
    counters = [5, 5]
    with worker._kept_alive(counters, 1):
        until = time.monotonic() + 10
        while counters[1] == 5 and time.monotonic() < until:
            time.sleep(0.05)
        assert counters == [5, 1]
    assert counters == [5, 0]
