"""Records that look like those of a real run, made up: each helper makes one line of it."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from verifyscope.records import (
    Compiled,
    Environment,
    Evidence,
    Finding,
    GpuState,
    Measurement,
    Origin,
    Record,
    Samples,
    Value,
    encoded,
)

US = 1e-6
GPU = Environment(
    id="gpu",
    created="2026-08-01T10:00:00+00:00",
    command="pytest suites/ --benchmark-only",
    commit="0123456789ab",
    dirty=False,
    system="Linux 6.8",
    processor="AMD EPYC 9355",
    cores=64,
    memory_bytes=2**40,
    python="3.12.4",
    driver="580.82.07",
    cuda_driver="13.0",
    gpus=tuple(
        GpuState(
            index=index,
            name="NVIDIA RTX PRO 6000",
            memory_bytes=102_642_155_520,
            capability="12.0",
            pcie_generation=5,
            pcie_width=16,
            power_limit_w=600.0,
            ecc=True,
        )
        for index in range(8)
    ),
    versions={"torch": "2.13.0", "triton": "3.7.1"},
    settings={"NCCL_PROTO": "LL"},
)
CPU = Environment(
    id="cpu",
    created="2026-08-01T09:00:00+00:00",
    command="pytest suites/",
    commit="0123456789ab",
    dirty=True,
    system="Linux 6.8",
    processor="Laptop",
    cores=8,
    python="3.12.4",
    versions={"torch": "2.13.0+cpu"},
)


def kernel(implementation: str, median_us: float | None, **changes: object) -> Measurement:
    """Return a cold kernel row on the GPU; without a time it is skipped."""
    base = Measurement(
        source="measured",
        part="attention",
        op="tree_attention",
        implementation=implementation,
        case="t4-l8k",
        status="skipped" if median_us is None else "ok",
        reason="needs a CUDA device; this machine has none" if median_us is None else None,
        dims={"rows": 4, "context": 8192},
        mode="verify",
        launch="graph",
        depth=64,
        cache="cold",
        median_s=None if median_us is None else median_us * US,
        low_s=None if median_us is None else 0.99 * median_us * US,
        high_s=None if median_us is None else 1.01 * median_us * US,
        touched_bytes=30e6,
        floor_s=20e-6,
        method={"clock": "cuda-graph", "input_sets": 64},
        conditions={"sm_mhz": 2430.0},
        environment="gpu",
        command="pytest suites/",
    )
    return msgspec.structs.replace(base, **changes)


def collective(size_bytes: int, median_us: float | None, **changes: object) -> Measurement:
    """Return a row of a measured sweep of 8 ranks, out of place."""
    dims: dict[str, Value] = {"bytes": size_bytes, "dtype": "bfloat16", "in_place": False}
    base = Measurement(
        source="measured",
        part="all_reduce",
        op="all_reduce",
        implementation="gloo",
        case=f"{size_bytes}B-bfloat16-out-of-place",
        status="ok" if median_us is not None else "hang",
        reason=None if median_us is not None else "rank 3 did not come back",
        kind="baseline-direct",
        dims=dims,
        median_s=None if median_us is None else median_us * US,
        ranks=8,
        method={"iterations": 20},
        environment="cpu",
        command="python -m collectives.sweep --gpus 8",
    )
    return msgspec.structs.replace(base, **changes)


def imported(size_bytes: int, median_us: float, *, file: str = "log.txt") -> Measurement:
    """Return a row of somebody's nccl-tests output, which has no interval."""
    return collective(
        size_bytes,
        median_us,
        source="imported",
        implementation="nccl",
        origin=Origin(file=file, line=size_bytes),
        method={"sample": "mean over back-to-back calls"},
    )


def predicted(part: str, call_us: float | None, calls: int, **dims: Value) -> Measurement:
    """Return a part of a predicted pass; without a time it says what to give."""
    collective_part = part in ("all_reduce", "logits_all_gather")
    return Measurement(
        source="predicted",
        part=part,
        op=part,
        implementation="roofline",
        case="kimi",
        status="skipped" if call_us is None else "ok",
        reason="not known: give --all-reduce-us" if call_us is None else None,
        dims={
            "model": "kimi-k2.5",
            "tp": 8,
            "rows": 4,
            "requests": 1,
            "context": 8192,
            "gpu": "rtx-pro-6000-server",
            "calls": calls,
            **({} if collective_part else {"weight_bytes": 1e6, "kv_bytes": 0.0}),
            **dims,
        },
        median_s=None if call_us is None else call_us * US,
        floor_s=None if collective_part or call_us is None else call_us * US,
        touched_bytes=None if collective_part else 2e6,
        method={"bytes_per_s": 1.5e12, "bandwidth": "the table", "time": "given"},
        environment="cpu",
        command="python -m graphs.replay",
    )


def built(kernel: str, capability: int, **changes: object) -> Compiled:
    """Return a kernel that passed the compile gate."""
    base = Compiled(
        op="tree_attention",
        implementation="triton",
        kernel=kernel,
        case="tiny",
        capability=capability,
        registers=128,
        spilled_bytes=0,
        shared_bytes=50_688,
        shared_limit_bytes=101_376,
        declared=("tensor_core",),
        found=("tensor_core",),
        failure=None,
        environment="cpu",
        command="python -m kernels --compile",
        commit=None,
    )
    return msgspec.structs.replace(base, **changes)


def whole_run() -> list[Record]:
    """Return a run that has something for each section."""
    return [
        GPU,
        CPU,
        *(
            kernel(name, us * (1 + 0.04 * (rows - 1)), case=f"t{rows}-l8k", dims=dims, kind=kind)
            for rows in (1, 2, 4, 8)
            for dims in [{"rows": rows, "context": 8192}]
            for name, us, kind in (
                ("triton", 24.0, "own"),
                ("cupy", 31.0, "own"),
                ("flashinfer", 28.0, "baseline-direct"),
            )
        ),
        kernel("triton", 12.0, cache="warm"),
        kernel("torch", 1900.0, environment="cpu", launch="eager", depth=None, cache="warm"),
        *(kernel("cupy", None, case=f"case{n}", environment="cpu") for n in range(500)),
        kernel("sdpa", None, status="failed", reason="disagrees with the reference: out"),
        kernel("sdpa", None, status="void", reason="1.90 TB/s is 119 % of the read ceiling"),
        *(collective(2**n, 900.0 + 2**n / 1000) for n in range(13, 21)),
        collective(
            57_344,
            1000.0,
            dims={
                "bytes": 57_344,
                "dtype": "bfloat16",
                "in_place": False,
                "tokens": 4,
                "model": "kimi-k2.5",
            },
            low_s=950 * US,
            high_s=1100 * US,
            p99_s=2000 * US,
        ),
        collective(2**21, None),
        *(imported(2**n, 30.0 + 2**n / 20_000) for n in range(13, 21)),
        predicted("routed_experts", 60.0, 60, distinct_experts=31.0),
        predicted("attention_projections", 30.0, 61),
        predicted("all_reduce", None, 122),
        *(built("_attend", capability) for capability in (80, 89, 90, 100, 120)),
        built("_merge", 120, failure="spills 64 B", spilled_bytes=64),
        Finding(
            name="slow_all_reduce",
            sentence="An all-reduce takes 2.1 times its best.",
            evidence=(Evidence(file="log.txt", at=7, value="86.1 us"),),
            next_action="try NCCL_PROTO=LL",
            worth_s=5.3e-3,
            confidence="likely",
        ),
    ]


def write(path: Path, lines: Sequence[Record | Samples]) -> Path:
    """Write the lines to `path` and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(encoded, lines)))
    return path
