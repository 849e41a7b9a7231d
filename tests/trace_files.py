"""Small traces to read: Kineto JSON of a few kernels, and sqlite exports with few tables."""

import gzip
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from ingest import kineto, rank_findings, trace_faults, trace_findings
from ingest.conclusions import Conclusion
from ingest.facts import Facts
from ingest.kernel_classes import Pattern, ours
from ingest.log import Log
from ingest.trace import Trace
from ingest.trace_facts import TraceFacts, facts_of
from ingest.trace_faults import Faults

LAYER = (
    "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)",
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal",
    "multimem_all_reduce_kernel",
    "fused_moe_kernel",
    "multimem_all_reduce_kernel",
)


@dataclass
class Kineto:
    """A trace that is being written; times are microseconds."""

    events: list[dict[str, Any]] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    correlation: int = 0

    def gpu(self, name: str, ts: float, dur: float, **more: Any) -> None:
        """Add a kernel, or with cat= something else that a GPU did."""
        args = {"device": 0, "stream": 7, "correlation": more.pop("correlation", self.correlation)}
        args |= {key: more.pop(key) for key in ("device", "stream", "bytes") if key in more}
        event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts}
        self.events.append({**event, "dur": dur, **more, "args": args})

    def call(self, name: str, ts: float, dur: float) -> int:
        """Add a call of the host; what it launches follows."""
        self.correlation += 1
        event = {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": 9, "ts": ts}
        self.events.append({**event, "dur": dur, "args": {"correlation": self.correlation}})
        return self.correlation

    def annotation(self, name: str, ts: float, dur: float) -> None:
        """Add what the host was in."""
        event = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": 9}
        self.events.append({**event, "ts": ts, "dur": dur})

    def eager(self, kernels: Sequence[str], ts: float, *, dur: float, every: float) -> float:
        """Launch kernels one by one, `every` microseconds; return when the last one ends."""
        for name in kernels:
            self.call("cudaLaunchKernel", ts, 3)
            self.gpu(name, ts + 4, dur)
            ts += every
        return ts - every + 4 + dur

    def graph(self, kernels: Sequence[str], ts: float, *, dur: float, gap: float = 1.0) -> float:
        """Launch kernels as one graph; return when the last one ends."""
        self.call("cudaGraphLaunch", ts, 10)
        ts += 12
        for name in kernels:
            self.gpu(name, ts, dur)
            ts += dur + gap
        return ts - gap

    def bytes(self, **dump: Any) -> bytes:
        """Return the file."""
        return json.dumps({**self.header, "traceEvents": self.events}, **dump).encode()


def ranked(rank: int, world: int, **times: Sequence[float]) -> Kineto:
    """Return a trace of one rank with the calls of some collectives, by kernel, in microseconds."""
    made = Kineto(header={"distributedInfo": {"rank": rank, "world_size": world}})
    ts = 0.0
    for name, lengths in times.items():
        for dur in lengths:
            made.gpu(name, ts, dur)
            ts += dur + 1
    return made


def log_of(data: bytes, file: str = "t.json", patterns: tuple[Pattern, ...] = ()) -> Log:
    return Log(
        file=file,
        lines=iter(()),
        environment="here",
        command="test",
        stream=BytesIO(data),
        patterns=patterns,
    )


def read(data: bytes, file: str = "t.json") -> tuple[list[Trace], Faults]:
    return kineto.traces(log_of(data, file))


def facts(data: bytes) -> TraceFacts:
    """The facts of the only GPU of a file."""
    (trace,), _ = read(data)
    return facts_of(trace, ours())


def concluded(*files: bytes) -> dict[str, Conclusion]:
    """What files say alone and together, by name; the first of each."""
    found: dict[str, Conclusion] = {}
    for one in _conclusions(files):
        found.setdefault(one.name, one)
    return found


def _conclusions(files: Sequence[bytes]) -> Iterator[Conclusion]:
    told = []
    for number, data in enumerate(files):
        traces, faults = read(data, f"t{number}.json")
        yield from trace_faults.conclusions(faults, traces)
        made = tuple(facts_of(trace, ours()) for trace in traces)
        told.append(Facts(file=f"t{number}.json", traces=made))
    yield from rank_findings.conclusions(told)
    yield from trace_findings.conclusions(told)


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def nsys(path: Path, *, kernels: int = 0, **tables: Sequence[Sequence[Any]]) -> Path:
    """Write an export: `kernels` of 1 ms with 10 us between them, and rows of other tables."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        names = ["gemm_nn", "void at::native::elementwise_add<float>(float*)"]
        names += ["cudaGraphLaunch_v10000", "cudaLaunchKernel_v7000"]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names, 1))
        database.execute(
            'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, "end" INTEGER, deviceId '
            "INTEGER, streamId INTEGER, correlationId INTEGER, demangledName INTEGER)"
        )
        begun = [1_010_000 * number for number in range(kernels)]
        rows = [(at, at + 1_000_000, 0, 7, n, n % 2 + 1) for n, at in enumerate(begun)]
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?)", rows)
        for name, values in tables.items():
            columns = {
                "CUPTI_ACTIVITY_KIND_RUNTIME": 'start, "end", correlationId, nameId',
                "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": 'start, "end", deviceId, graphId',
                "TARGET_INFO_GPU": "id, name",
                "TARGET_INFO_SYSTEM_ENV": "name, value",
                "NVTX_EVENTS": 'start, "end", text',
            }[name]
            database.execute(f"CREATE TABLE {name} ({columns})")
            places = ",".join("?" * len(columns.split(",")))
            database.executemany(f"INSERT INTO {name} VALUES ({places})", values)
    database.close()
    return path
