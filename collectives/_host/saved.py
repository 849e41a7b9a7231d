"""Saved texts of a machine become one `Host`: nvidia-smi, lspci, the kernel, NCCL, by content.

A file may hold several of them (nvidia-bug-report.log does); gzip is read, too. Every file must say
something: one that does not is an error that lists what is read.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from collectives._attest.logs import Logs
from collectives._host.facts import Gpu, Host, Iommu, Kernel, Listed, Pair
from ingest import gpu_findings, kernel_log, lspci, nccl_log_records, nvidia_smi, topology
from ingest.conclusions import Seen
from ingest.kernel_log import mode_of
from ingest.log import Log, as_utf_8, numbered_lines
from ingest.lspci import Device
from ingest.nccl_log import Reader
from ingest.opening import Unreadable, opened
from ingest.topology import Matrix
from verifyscope import cli
from verifyscope.errors import UsageError
from verifyscope.privacy import redacted

READ = (
    "nvidia-smi topo -m, nvidia-smi -q (text or -x), lspci -vvv, dmesg or /proc/cmdline, NCCL logs"
)
_PART_BYTES = 2**20
_OVERLAP_BYTES = 2**12


def read(paths: Sequence[Path]) -> Host:
    """Return what the files say of one machine; `UsageError` for a file that says nothing."""
    found = _Found()
    for path in paths:
        name = redacted(path.name if str(path) != "-" else "stdin", relative_paths=True)
        try:
            with opened(path) as (stream, _):
                found.names.append(name)
                if not found.take(stream, name):
                    raise UsageError(f"{path} says nothing of a host; what is read: {READ}")
        except Unreadable as error:
            raise UsageError(str(error)) from None
    for note in found.doubled:
        cli.note(note)
    return found.host()


@dataclass(slots=True)
class _Found:
    """What the files said up to here."""

    names: list[str] = field(default_factory=list)
    states: list[tuple[str, gpu_findings.Gpu]] = field(default_factory=list)
    matrix: tuple[str, Matrix] | None = None
    listed: Listed | None = None
    command: tuple[Mapping[str, str], Seen] | None = None
    kernel: Kernel | None = None
    nccl: Reader = field(default_factory=Reader)
    nccl_names: list[str] = field(default_factory=list)
    nccl_starts: list[int] = field(default_factory=list)
    nccl_lines: int = 0
    doubled: list[str] = field(default_factory=list)

    def take(self, stream: BinaryIO, name: str) -> bool:
        """Read a file in every form that it has a sign of; say whether it said anything."""
        head = as_utf_8(stream.read(_PART_BYTES))
        if nvidia_smi.recognises_xml(head):
            stream.seek(0)
            return self._xml(stream, name)
        readers: tuple[tuple[Callable[[bytes], bool], Callable[[BinaryIO, str], bool]], ...] = (
            (nvidia_smi.recognises, self._smi),
            (topology.recognises, self._topology),
            (lspci.recognises, self._lspci),
            (kernel_log.recognises, self._kernel),
            (nccl_log_records.recognises, self._nccl),
        )
        said = False
        for sign, reader in readers:
            stream.seek(0)
            if _anywhere(sign, stream):
                stream.seek(0)
                said = reader(stream, name) or said
        return said

    def _xml(self, stream: BinaryIO, name: str) -> bool:
        log = Log(file=name, lines=iter(()), environment="", command="", stream=stream)
        return self._keep_states(nvidia_smi.gpus_of_xml(log), name)

    def _smi(self, stream: BinaryIO, name: str) -> bool:
        return self._keep_states(list(nvidia_smi.gpus(numbered_lines(stream))), name)

    def _keep_states(self, states: Sequence[gpu_findings.Gpu], name: str) -> bool:
        if states and self.states:
            self._second(name, "nvidia-smi -q", self.states[0][0])
        self.states = self.states or [(name, state) for state in states]
        return bool(states)

    def _topology(self, stream: BinaryIO, name: str) -> bool:
        matrix = topology.read_matrix(numbered_lines(stream))
        if matrix.rows and self.matrix:
            self._second(name, "nvidia-smi topo -m", self.matrix[0])
        self.matrix = self.matrix or ((name, matrix) if matrix.rows else None)
        return bool(matrix.rows)

    def _lspci(self, stream: BinaryIO, name: str) -> bool:
        devices = lspci.read_devices(numbered_lines(stream))
        if devices.all and self.listed:
            self._second(name, "lspci", self.listed.file)
        self.listed = self.listed or (Listed(file=name, devices=devices) if devices.all else None)
        return bool(devices.all)

    def _kernel(self, stream: BinaryIO, name: str) -> bool:
        known = kernel_log.read_kernel_log(numbered_lines(stream))
        if known.parameters_line is not None and self.command is None:
            words = " ".join(f"{key}={value}" for key, value in known.parameters.items())
            self.command = (known.parameters, Seen(name, known.parameters_line, words))
        if not known.empty:
            self.kernel = self.kernel or Kernel(file=name, log=known)
        return not known.empty or known.parameters_line is not None

    def _nccl(self, stream: BinaryIO, name: str) -> bool:
        """Read a log on from where the one before it ended: each rank may have a file."""
        start = self.nccl_lines
        for number, text in numbered_lines(stream):
            self.nccl_lines = start + number
            self.nccl.take(self.nccl_lines, text)
        self.nccl_names.append(name)
        self.nccl_starts.append(start)
        return True

    def _second(self, name: str, what: str, first: str) -> None:
        self.doubled.append(f"{name}: its {what} is not used, that of {first} is")

    def host(self) -> Host:
        """Return all that was said, put together by PCI address and by number."""
        return Host(
            saved=tuple(self.names),
            processor=None if self.kernel is None else self.kernel.log.processor,
            gpus=tuple(self._gpus()),
            pairs=tuple(self._pairs()),
            iommu=self._iommu(),
            parameters={} if self.command is None else self.command[0],
            kernel=self.kernel,
            lspci=self.listed,
            nccl=self._logs(),
        )

    def _logs(self) -> Logs | None:
        if not self.nccl_names:
            return None
        return Logs(
            log=self.nccl.log(),
            names=tuple(self.nccl_names),
            starts=tuple(self.nccl_starts),
            processes=(),
        )

    def _gpus(self) -> list[Gpu]:
        """Return the GPUs of nvidia-smi -q; without it those of the matrix, else of lspci."""
        devices = [] if self.listed is None else self.listed.devices.gpus
        if self.states:
            by_address = {device.address: device for device in devices}
            return [
                self._gpu(state, file, by_address.get(state.bus or ""))
                for file, state in self.states
            ]
        if self.matrix is not None:
            file, matrix = self.matrix
            # lspci lists in the order of addresses, as nvidia-smi counts.
            same = len(devices) == len(matrix.rows)
            matched = devices if same else [None] * len(matrix.rows)
            return [
                self._gpu(_state(row.gpu, row.line, device), file, device)
                for row, device in zip(matrix.rows, matched, strict=True)
            ]
        file = "" if self.listed is None else self.listed.file
        return [
            self._gpu(_state(at, device.line, device), file, device)
            for at, device in enumerate(devices)
        ]

    def _gpu(self, state: gpu_findings.Gpu, file: str, device: Device | None) -> Gpu:
        node, node_seen = self._node(state.index, device)
        return Gpu(
            index=state.index,
            idle=replace(state, name=redacted(state.name or "not known")),
            node=node,
            node_seen=node_seen,
            group=None if device is None or device.group is None else str(device.group),
            seen=Seen(file, state.line, state.bus or f"GPU {state.index}"),
        )

    def _node(self, index: int, device: Device | None) -> tuple[int | None, Seen | None]:
        """Return the NUMA node of a GPU and where it stands: the matrix, else lspci."""
        if self.matrix is not None:
            for row in self.matrix[1].rows:
                if row.gpu == index and row.node is not None:
                    return row.node, Seen(self.matrix[0], row.line, f"GPU {index}: node {row.node}")
        if device is not None and device.node is not None and self.listed is not None:
            value = f"GPU {index}: node {device.node}"
            return device.node, Seen(self.listed.file, device.line, value)
        return None, None

    def _pairs(self) -> list[Pair]:
        if self.matrix is None:
            return []
        file, matrix = self.matrix
        return [
            Pair(first=row.gpu, second=other, path=path, seen=Seen(file, row.line, path))
            for row, other, path in matrix.pairs()
        ]

    def _iommu(self) -> Iommu | None:
        """Return what the kernel was told, else says, else what groups in lspci show."""
        asked = None if self.command is None else mode_of(self.command[0])
        said = None if self.kernel is None else self.kernel.log.mode
        if self.command is not None and asked is not None and (asked == "off" or said is None):
            return Iommu(mode=asked, seen=(self.command[1],))
        if self.kernel is not None and said is not None:
            words = f"default domain type: {said}"
            seen = Seen(self.kernel.file, self.kernel.log.mode_line, words)
            return Iommu(mode=said, seen=(seen,))
        grouped = (
            []
            if self.listed is None
            else [d for d in self.listed.devices.all if d.group is not None]
        )
        if self.listed is not None and grouped:
            first = grouped[0]
            seen = Seen(self.listed.file, first.line, f"{first.address}: group {first.group}")
            return Iommu(mode="on", seen=(seen,))
        return None


def _state(index: int, line: int, device: Device | None) -> gpu_findings.Gpu:
    """Return a GPU as lspci tells it, if it does."""
    if device is None:
        return gpu_findings.Gpu(index=index, line=line)
    return gpu_findings.Gpu(
        index=index,
        line=line,
        bus=device.address,
        name=_product(device.name),
        generation=_generation(device.speed_gt_s),
        generation_most=_generation(device.speed_most_gt_s),
        width=device.width,
        width_most=device.width_most,
    )


def _product(name: str) -> str:
    """Return what lspci calls a GPU, by its product where the text has one in brackets."""
    product = re.search(r"\[(?!AMD|10de)([^\]:]+)\]", name)
    return product[1] if product else name.removeprefix("NVIDIA Corporation ").split(" (rev")[0]


def _generation(speed_gt_s: float | None) -> float | None:
    """Return the generation of PCIe that has this rate; None for one that no generation has."""
    rates = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
    return None if speed_gt_s is None else rates.get(speed_gt_s)


def _anywhere(sign: Callable[[bytes], bool], stream: BinaryIO) -> bool:
    """Say whether some part of a file has a sign; the first part may be UTF-16."""
    part = as_utf_8(stream.read(_PART_BYTES))
    before = b""
    while part:
        if sign(before + part):
            return True
        before, part = part[-_OVERLAP_BYTES:], stream.read(_PART_BYTES)
    return False
