"""What is tried between GPUs: which writes and rates, what becomes of a hang; and torch's part."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectives._host import peer_tests, peers
from collectives._host.facts import Access, Broken, Check, HostCopy, Link, Rate, Tried
from collectives._host.peer_tests import ROUNDS, SAMPLES, SIZES_BYTES, WAYS, Differed, Message, run
from tests.fake_nvml import H200, FakeNvml
from tests.fake_peers import FakePeers
from verifyscope import nvml

WORDS = ROUNDS * sum(SIZES_BYTES) // 8


def tried(gpus: FakePeers) -> list[Message]:
    said: list[Message] = []
    run(gpus, said.append)
    return said


def of(kind: type[Any], said: list[Message]) -> list[Any]:
    return [message for message in said if isinstance(message, kind)]


def test_two_right_gpus_are_tried_in_both_ways_and_timed_alone_and_together() -> None:
    gpus = FakePeers(numbers=(0, 3))
    said = tried(gpus)
    assert of(Link, said)[:2] == [
        Link(gpu=0, loaded=False, generation=1, width=16),
        Link(gpu=0, loaded=True, generation=5, width=16),
    ]
    copies = of(HostCopy, said)
    assert [(copy.gpu, copy.to_gpu) for copy in copies] == [
        (0, True), (0, False), (3, True), (3, False),
    ]  # fmt: skip
    assert copies[0].seconds == (copies[0].size_bytes / 2.0**34,) * SAMPLES
    assert of(Access, said) == [
        Access(writer=0, target=3, able=True),
        Access(writer=3, target=0, able=True),
    ]
    assert [(check.writer, check.target, check.way) for check in of(Check, said)] == [
        (writer, target, way) for writer, target in ((0, 3), (3, 0)) for way in WAYS
    ]
    assert {check.words for check in of(Check, said)} == {WORDS}
    assert [(rate.kind, rate.writes) for rate in of(Rate, said)] == [
        ("alone", ((0, 3),)),
        ("alone", ((3, 0),)),
        ("both ways", ((0, 3), (3, 0))),
    ]


def test_every_size_is_written_in_every_round_with_a_seed_of_its_own() -> None:
    gpus = FakePeers()
    tried(gpus)
    first = [entry[3:] for entry in gpus.written if entry[:3] == (0, 1, "kernel")]
    assert [size for size, _ in first] == [size for size in SIZES_BYTES for _ in range(ROUNDS)]
    assert len({seed for _, seed in first}) == len(first)


def test_three_gpus_are_timed_as_a_ring_and_all_to_all() -> None:
    rates = of(Rate, tried(FakePeers(numbers=(0, 1, 2), crowded=2.0)))
    ring, everyone = rates[-2:]
    assert (ring.kind, ring.writes) == ("ring", ((0, 1), (1, 2), (2, 0)))
    assert ring.seconds == (2.0 * ring.size_bytes / 2.0**34,) * SAMPLES
    assert (everyone.kind, len(everyone.writes)) == ("all to all", 6)


def test_gpus_that_cannot_reach_each_other_are_neither_written_to_nor_timed() -> None:
    gpus = FakePeers(numbers=(0, 1, 2), apart=frozenset({(0, 1), (1, 0)}))
    said = tried(gpus)
    assert not any(entry[:2] in ((0, 1), (1, 0)) for entry in gpus.written)
    kinds = [(rate.kind, rate.writes[0]) for rate in of(Rate, said)]
    assert ("alone", (0, 2)) in kinds
    assert not [kind for kind, pair in kinds if kind in ("ring", "all to all") or pair == (0, 1)]


def test_writes_that_did_not_arrive_are_counted_and_have_no_rate() -> None:
    fault = {(1, 0, "kernel"): Differed(lost=5, wrong=2)}
    said = tried(FakePeers(numbers=(0, 1, 2), faults=fault))  # type: ignore[arg-type]  # a literal
    (bad,) = [check for check in of(Check, said) if not check.right]
    count = ROUNDS * len(SIZES_BYTES)
    assert (bad.writer, bad.target, bad.way) == (1, 0, "kernel")
    assert (bad.lost, bad.wrong) == (5 * count, 2 * count)
    timed = {(rate.kind, rate.writes) for rate in of(Rate, said)}
    assert ("alone", ((0, 1),)) in timed
    assert ("alone", ((1, 0),)) not in timed
    assert ("both ways", ((0, 1), (1, 0))) not in timed
    assert "all to all" not in {kind for kind, _ in timed}
    assert "ring" in {kind for kind, _ in timed}  # 0 to 1 to 2 to 0 is without it


def test_values_that_are_wrong_only_together_are_counted() -> None:
    said = tried(FakePeers(together=Differed(lost=1, wrong=2)))
    assert [(rate.kind, rate.wrong) for rate in of(Rate, said)] == [
        ("alone", 0),
        ("alone", 0),
        ("both ways", 3 * SAMPLES),
    ]


def measured(mode: str, timeout_s: float = 20.0) -> Tried:
    command = (sys.executable, "-m", "tests.fake_peers", mode)
    return peers.measure(timeout_s=timeout_s, command=command)


def test_a_process_that_ends_has_said_all() -> None:
    found = measured("right")
    assert found.broken is None
    assert found.why_not is None
    assert found.visible == (0, 2)
    assert [len(part) for part in (found.links, found.copies, found.access)] == [4, 4, 2]
    assert [len(part) for part in (found.checks, found.rates)] == [4, 3]
    assert {check.writer for check in found.checks} == {0, 2}


def test_a_write_that_never_ends_is_named_and_what_was_before_it_is_kept() -> None:
    found = measured("hangs", timeout_s=1.0)
    assert found.broken == Broken(
        kind="hang",
        step="writes from GPU 1 to 0, copy engine",
        reason="it says nothing for 1 s",
        writes=((1, 0),),
    )
    assert [(check.writer, check.right) for check in found.checks] == [(0, True), (0, True)]
    assert found.rates == ()


def test_a_write_that_fails_says_the_drivers_word() -> None:
    found = measured("raises")
    assert found.broken == Broken(
        kind="error",
        step="writes from GPU 0 to 1, copy engine",
        reason="RuntimeError: CUDA error: an illegal memory access was encountered",
        writes=((0, 1),),
    )


def test_a_process_that_dies_says_its_last_line() -> None:
    assert measured("dies").broken == Broken(
        kind="error",
        step="the start of CUDA",
        reason="it ended with exit status 3: a last word of the driver",
    )
    before = measured("dies before").broken
    assert before is not None
    assert before.reason == "it ended with exit status 1: libcuda.so.1 is broken"


def test_a_process_without_cuda_says_why() -> None:
    assert measured("why not") == Tried(why_not="torch 9.9 is built without CUDA")


def test_the_real_process_says_why_torch_cannot() -> None:
    found = peers.measure(timeout_s=20.0)
    if found.why_not is None:
        pytest.skip("this machine has GPUs")
    assert "without CUDA" in found.why_not or "no GPU" in found.why_not


torch = pytest.importorskip("torch")


class FakeCuda:
    """The part of torch.cuda that is used, on places of this CPU.

    outlasts: the event, counted from 1, from which on copies outlast the reading of a link.
    """

    def __init__(self, count: int, uuids: tuple[str, ...] = (), outlasts: int = 99) -> None:
        self.count, self.uuids, self.outlasts = count, uuids, outlasts
        self.events = 0
        self.entered: list[Any] = []

    def device_count(self) -> int:
        return self.count

    def synchronize(self, device: Any = None) -> None:
        pass

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        return bool(device != peer_device)

    def get_device_properties(self, device: Any) -> Any:
        return SimpleNamespace(uuid=self.uuids[device]) if self.uuids else SimpleNamespace()

    def Stream(self, device: Any) -> Any:
        return SimpleNamespace(device=device)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.entered.append(stream)
        try:
            yield
        finally:
            self.entered.remove(stream)

    def Event(self) -> Any:
        self.events += 1
        ended = self.events < self.outlasts
        return SimpleNamespace(record=lambda stream: None, query=lambda: ended)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    from collectives._host import torch_gpus

    monkeypatch.setattr(peer_tests, "SIZES_BYTES", (4096, 14_336))
    monkeypatch.setattr(peer_tests, "RATE_BYTES", 2**16)
    monkeypatch.setattr(torch_gpus, "_LOAD_BYTES", 2**12)
    monkeypatch.setattr(torch_gpus, "_TRAINING_S", 0.0)


def gpus_of(cuda: FakeCuda, driver: nvml.Driver | None = None) -> Any:
    from collectives._host.torch_gpus import TorchGpus

    return TorchGpus(
        cuda,
        driver or nvml.Driver(why_not="none"),
        device=lambda place: torch.device("cpu", place),
        pinned=False,
    )


@pytest.mark.usefixtures("small")
def test_torchs_part_writes_what_it_compares() -> None:
    said: list[Message] = []
    run(gpus_of(FakeCuda(3)), said.append)
    checks, rates = of(Check, said), of(Rate, said)
    assert len(checks) == 12
    assert all(check.right and check.words == ROUNDS * (4096 + 14_336) // 8 for check in checks)
    assert {rate.kind for rate in rates} == {"alone", "both ways", "ring", "all to all"}
    assert not any(rate.wrong for rate in rates)
    assert all(second > 0 for rate in rates for second in rate.seconds)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("spoil", "lost", "wrong"),
    [
        (lambda target, source: target, 128, 0),  # a write that never arrives
        (lambda target, source: torch.Tensor.fill_(target, 7), 0, 128),
    ],
)
def test_what_a_copy_loses_or_changes_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., Any], lost: int, wrong: int
) -> None:
    gpus = gpus_of(FakeCuda(2))
    real = torch.Tensor.copy_
    monkeypatch.setattr(
        torch.Tensor, "copy_", lambda target, source, non_blocking=False: spoil(target, source)
    )
    for way in WAYS:
        assert gpus.write(0, 1, way=way, size_bytes=1024, seed=1) == Differed(
            lost=lost, wrong=wrong
        )
    monkeypatch.setattr(torch.Tensor, "copy_", real)
    assert gpus.write(0, 1, way="kernel", size_bytes=1024, seed=1) == Differed(lost=0, wrong=0)


@pytest.mark.usefixtures("small")
def test_each_write_of_several_has_streams_of_its_own_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda(3)
    gpus = gpus_of(cuda)
    real, seen = torch.Tensor.copy_, []

    def copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
        if non_blocking:
            seen.append([(id(stream), stream.device.index) for stream in cuda.entered])
        return real(target, source)

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    writes = ((0, 1), (1, 2), (2, 0))
    gpus.write_together(writes, size_bytes=1024)
    assert [[place for _, place in streams] for streams in seen] == [
        [target, writer] for writer, target in writes
    ] * 2  # once to set peer access up, once timed
    timed = [name for streams in seen[3:] for name, _ in streams]
    assert len(set(timed)) == 6


def test_a_pattern_depends_on_place_and_seed_alone() -> None:
    from collectives._host.torch_gpus import pattern

    cpu = torch.device("cpu")
    one, again, other = pattern(4096, 1, cpu), pattern(4096, 1, cpu), pattern(4096, 2, cpu)
    assert torch.equal(one, again)
    assert not bool((one == other).any())
    assert len(set(one.tolist())) == 4096
    ones = sum(int((one >> bit & 1).sum()) for bit in range(64))
    assert abs(ones / (64 * 4096) - 0.5) < 0.01  # each bit is tried as 0 and as 1


@pytest.mark.usefixtures("small")
def test_a_link_counts_as_loaded_only_if_the_copies_outlast_the_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = {**H200, "nvmlDeviceGetCurrPcieLinkGeneration": 5}
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([described]))
    uuid = str(H200["nvmlDeviceGetUUID"]).removeprefix("GPU-")
    with nvml.session() as driver:
        assert gpus_of(FakeCuda(1, (uuid,)), driver).link_under_load(0) is None
        slow = FakeCuda(1, (uuid,), outlasts=3)
        assert gpus_of(slow, driver).link_under_load(0) == (5, 16)
        assert slow.events == 3


def test_gpus_have_nvmls_numbers_whatever_cuda_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = [f"GPU-{digit * 8}-2222-3333-4444-555555555555" for digit in "ab"]
    fake = FakeNvml([{**H200, "nvmlDeviceGetUUID": uuid} for uuid in uuids])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with nvml.session() as driver:
        swapped = tuple(uuid.removeprefix("GPU-") for uuid in reversed(uuids))
        assert gpus_of(FakeCuda(2, swapped), driver).numbers == (1, 0)
    assert gpus_of(FakeCuda(2)).numbers == (0, 1)


def test_nothing_of_a_child_outlives_its_reader(tmp_path: Path) -> None:
    from collectives._host import child

    code = (
        "import os, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"Path({str(tmp_path / 'pids')!r}).write_text(f'{{os.getpid()}} {{inner.pid}}')\n"
        "time.sleep(600)\n"
    )
    command = (sys.executable, "-c", code)
    (last,) = child.messages(command, timeout_s=1.0, start_s=1.5)
    assert last == child.Lost("hang", "it says nothing for 1.5 s")
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    until = time.monotonic() + 10
    while any(map(runs, pids)) and time.monotonic() < until:
        time.sleep(0.01)  # it is killed; the system takes it away a moment later
    assert not any(map(runs, pids))


def runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return state.rsplit(")", 1)[1].split()[0] != "Z"
