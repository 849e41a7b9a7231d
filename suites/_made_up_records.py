"""Records that nobody measured, as many as asked for, shaped like those of months of runs.

Of a hundred: 42 kernels (eight ops, four implementations, cold and warm, in two environments), 24
rows of sweeps (eight combinations of NCCL's settings, four timing modes), 15 of imported tables, 6
of imported nccl-tests logs, 3 parts of predicted passes, 6 skips with a reason and 4 kernel builds;
a finding for each 500. The same bytes for the same number and day.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

from verifyscope.records import (
    Compiled,
    Environment,
    Evidence,
    Finding,
    GpuState,
    Measurement,
    Origin,
    Record,
)

_OPS: Mapping[str, str] = {
    "tree_attention": "attention",
    "mla_verify": "attention",
    "lse_merge": "attention",
    "fused_moe": "routed_experts",
    "moe_align": "align",
    "skinny_gemm": "attention_projections",
    "rms_norm": "norms",
    "silu_mul": "activation",
}
_IMPLEMENTATIONS = {
    "triton": "own",
    "cupy": "own",
    "flashinfer": "baseline-direct",
    "torch": "baseline-composed",
}
_ROWS = (1, 2, 3, 4, 6, 8, 16, 32)
_COMBINATIONS = ("", "ring/ll", "ring/ll128", "ring/simple", "tree/ll", "tree/simple", "tree/ll128")
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
_MODES = (("eager", 1), ("eager", 122), ("graph", 1), ("graph", 122))
_REASONS = (
    "needs a CUDA device; this machine has none",
    "needs flashinfer of at least 0.6; 0.5.3 is installed",
    "sm_120 has 99 KB of shared memory a block; the kernel asks for 164 KB",
)
_PREDICTED = ("routed_experts", "attention_projections", "attention", "norms", "router", "lm_head")


def records(count: int, *, day: int = 1) -> Iterator[Record]:
    """Yield about `count` records of the `day`th day, which differs from others in its driver."""
    generator = random.Random(f"{count} {day}")
    environments = [_environment(day, number) for number in range(3)]
    yield from environments
    names = [one.id for one in environments]
    for share, rows in (
        (0.42, _kernels(generator, names[:2], status="ok")),
        (0.24, _sweeps(generator, names[:2])),
        (0.15, _tables(generator, names[0])),
        (0.06, _logs(generator, names[0])),
        (0.03, _parts(names[0])),
        (0.06, _kernels(generator, names[2:], status="skipped")),
        (0.04, _builds(names[0])),
        (0.002, _findings()),
    ):
        yield from itertools.islice(rows, int(share * count))


def _environment(day: int, number: int) -> Environment:
    gpus = [
        GpuState(
            index=index,
            name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
            memory_bytes=102_642_155_520,
            capability="12.0",
            power_limit_w=600.0 - 100 * number,
        )
        for index in range(8 if number < 2 else 0)
    ]
    return Environment(
        id=f"day{day:04}at{number}",
        created=f"2026-{1 + day // 28 % 12:02}-{1 + day % 28:02}T10:0{number}:00+00:00",
        command="pytest suites/ --benchmark-only",
        commit=f"{day:012x}",
        system="Linux 6.8",
        processor="AMD EPYC 9355",
        cores=64,
        python="3.12.4",
        driver=f"580.{day}.{number}",
        gpus=tuple(gpus),
        versions={"torch": "2.13.0", "triton": "3.7.1"},
        settings={"NCCL_PROTO": "LL"} if number else {},
    )


def _timed(generator: random.Random, seconds: float) -> dict[str, Any]:
    """Return a median near `seconds`, its interval, percentiles and a count of samples."""
    median = seconds * generator.gauss(1, 0.01)
    return {
        "status": "ok",
        "median_s": median,
        "low_s": median * generator.uniform(0.98, 0.999),
        "high_s": median * generator.uniform(1.001, 1.02),
        "p90_s": median * generator.uniform(1.02, 1.1),
        "p99_s": median * generator.uniform(1.1, 1.9),
        "count": generator.randrange(20, 400),
    }


def _measurement(generator: random.Random, **fields: Any) -> Measurement:
    name = f"{generator.getrandbits(64):016x}"
    return Measurement(**({"id": name, "source": "measured"} | fields))


def _kernels(
    generator: random.Random, environments: list[str], *, status: str
) -> Iterator[Measurement]:
    for number in itertools.count():
        context = 1024 * (number + 1)
        points = itertools.product(_OPS, _ROWS, _IMPLEMENTATIONS, ("cold", "warm"), environments)
        for op, rows, implementation, cache, environment in points:
            seconds = 8e-6 + 1e-6 * len(op) + 4e-10 * context * (1 + 0.04 * rows)
            seconds *= 1 + 0.2 * len(implementation) / 10
            timed = (
                _timed(generator, seconds)
                if status == "ok"
                else {"status": status, "reason": _REASONS[generator.randrange(len(_REASONS))]}
            )
            yield _measurement(
                generator,
                part=_OPS[op],
                op=op,
                implementation=implementation,
                kind=_IMPLEMENTATIONS[implementation],
                case=f"t{rows}-l{context}",
                dims={"rows": rows, "context": context, "heads": 16},
                mode="verify" if rows > 1 else "decode",
                launch="graph",
                depth=64,
                cache=cache,
                touched_bytes=4096.0 * context,
                flops=65536.0 * context * rows,
                floor_s=seconds / 2,
                method={"clock": "cuda-graph", "input_sets": 64, "stopped_by": "width"},
                conditions={"sm_mhz": 2430.0, "power_w": generator.randrange(200, 600)},
                environment=environment,
                command="pytest suites/ --benchmark-only",
                commit="0123456789ab",
                **timed,
            )


def _sweeps(generator: random.Random, environments: list[str]) -> Iterator[Measurement]:
    """Yield sweep after sweep; of each combination one size is ignored, and one hangs."""
    for number in itertools.count():
        op, ranks = _COLLECTIVES[number % 3], (8, 4, 2)[number // 3 % 3]
        sizes = [2**power * (1 + number // 9) for power in range(10, 26)]
        points = itertools.product(environments, _MODES, _COMBINATIONS, (True, False), sizes)
        for environment, (launch, depth), combination, in_place, size in points:
            algorithm, _, protocol = combination.partition("/")
            named = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol} if combination else {}
            where = sizes.index(size) + 3 * _COMBINATIONS.index(combination)
            lost = {3: "ignored", 21: "hang"}.get(where)
            yield _measurement(
                generator,
                part=op,
                op=op,
                implementation=f"nccl {combination}".rstrip(),
                kind="baseline-direct",
                case=f"{size}B-bfloat16-{'in-place' if in_place else 'out-of-place'}",
                dims={
                    "bytes": size,
                    "elements": size // 2,
                    "dtype": "bfloat16",
                    "in_place": in_place,
                },
                launch=launch,
                depth=depth,
                requested=named,
                effective={"algorithm": algorithm or "ring", "protocol": protocol or "ll"},
                proof="NCCL's log of the probe; read back on 8 of 8 ranks",
                ranks=ranks,
                method={"starts": 3, "clock": "perf_counter of the host", "samples": "20 20 20"},
                environment=environment,
                command="python -m collectives.sweep --gpus 8",
                **(
                    {"status": lost, "reason": f"asked for {combination}, NCCL took ring/ll"}
                    if lost
                    else _timed(generator, (20 + 7 * len(protocol)) * 1e-6 + size / 2e10)
                ),
            )


def _tables(generator: random.Random, environment: str) -> Iterator[Measurement]:
    for number in itertools.count():
        engine = ("vllm", "sglang", "trtllm")[number % 3]
        points = itertools.product((1, 2, 4, 8, 16, 32, 64), (64, 128, 256), (1024, 2048, 4096))
        for line, (rows, experts, width) in enumerate(points, 2):
            yield _measurement(
                generator,
                source="imported",
                part="routed_experts",
                op="fused_moe",
                implementation=f"{engine}_moe",
                kind="baseline-different-work",
                case=f"t{rows}-e{experts}-i{width}-fp8",
                status="ok",
                dims={
                    "rows": rows,
                    "experts": experts,
                    "top_k": 8,
                    "hidden": 7168,
                    "width": width,
                    "dtype": "fp8",
                },
                median_s=generator.uniform(2e-5, 4e-4),
                method={"sample": "as printed in a table", "device": "NVIDIA H200"},
                environment=environment,
                command="python -m ingest tables/*.csv --records tables.jsonl",
                origin=Origin(f"{engine}_{number}.csv", line),
            )


def _logs(generator: random.Random, environment: str) -> Iterator[Measurement]:
    for number in itertools.count():
        for line, (power, in_place) in enumerate(
            itertools.product(range(10, 30), (False, True)), 9
        ):
            size = 2**power
            yield _measurement(
                generator,
                source="imported",
                part="all_reduce",
                op="all_reduce",
                implementation="nccl",
                kind="baseline-direct",
                case=f"{size}B-float-{'in-place' if in_place else 'out-of-place'}",
                status="ok",
                dims={"bytes": size, "dtype": "float", "in_place": in_place, "redop": "sum"},
                median_s=generator.gauss(1, 0.02) * (3e-5 + size / 4e10),
                ranks=8,
                method={"sample": "mean over back-to-back calls", "in_place": in_place},
                environment=environment,
                command="python -m ingest logs/*.log --records logs.jsonl",
                origin=Origin(f"nccl-tests-{number}.log", line),
            )


def _parts(environment: str) -> Iterator[Measurement]:
    for number in itertools.count():
        for at, part in enumerate(_PREDICTED):
            seconds = (10 + 5 * at) * 1e-6 * (1 + number / 100)
            yield Measurement(
                id=hashlib.sha256(f"{environment} {part} {number}".encode()).hexdigest()[:16],
                source="predicted",
                part=part,
                op=part,
                implementation="roofline",
                case=f"kimi-k2.5-tp8-rows{1 + number}",
                status="ok",
                dims={
                    "model": "kimi-k2.5",
                    "tp": 8,
                    "rows": 1 + number,
                    "requests": 1,
                    "context": 8192,
                    "gpu": "rtx-pro-6000-server",
                    "calls": 61,
                    "weight_bytes": 1e6,
                    "kv_bytes": 0.0,
                },
                median_s=seconds,
                touched_bytes=2e6,
                floor_s=seconds,
                method={"bytes_per_s": 1.5e12, "bandwidth": "the table", "time": "roofline"},
                environment=environment,
                command="python -m graphs.replay --predict rtx-pro-6000-server",
            )


def _builds(environment: str) -> Iterator[Compiled]:
    for number in itertools.count():
        points = itertools.product(_OPS, ("triton", "cupy"), (80, 89, 90, 100, 120))
        for op, implementation, capability in points:
            yield Compiled(
                op=op,
                implementation=implementation,
                kernel=f"_{op}_{number % 7}",
                case=f"t{number}",
                capability=capability,
                registers=64 + number % 128,
                spilled_bytes=0,
                shared_bytes=50_688,
                shared_limit_bytes=101_376,
                declared=("tensor_core",),
                found=("tensor_core",),
                failure=None,
                environment=environment,
                command="python -m kernels --compile",
                commit=None,
            )


def _findings() -> Iterator[Finding]:
    for number in itertools.count():
        yield Finding(
            name="slow_all_reduce",
            sentence=f"An all-reduce takes {2 + number / 100:.2f} times its best",
            evidence=(Evidence(file=f"server-{number}.log", at=7, value="86.1 us"),),
            next_action="try NCCL_PROTO=LL",
            worth_s=5.3e-3 / (1 + number),
            confidence="likely",
        )
