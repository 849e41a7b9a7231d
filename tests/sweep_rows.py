"""Rows of a sweep that nobody measured: times from a formula, with noise from a seeded generator.

seconds of a sample = formula(bytes) x (noise of its start) x (noise of its own), both normal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from verifyscope import stats
from verifyscope.records import Launch, Measurement, Value

US = 1e-6
TOKENS = (1, 2, 4, 8, 16, 32)
HIDDEN_BYTES = 14_336  # a row of Kimi-K2.5 in bfloat16
SIZES = tuple(
    sorted({*(2**power for power in range(13, 24)), *(one * HIDDEN_BYTES for one in TOKENS)})
)
MODES: tuple[tuple[Launch, int, float], ...] = (
    ("eager", 1, 9.0),
    ("eager", 122, 2.0),
    ("graph", 1, 3.0),
    ("graph", 122, 0.0),
)
Formula = Callable[[int], float]


def line(alpha_us: float, gb_s: float) -> Formula:
    """Return seconds = alpha + bytes / bandwidth."""
    return lambda size: alpha_us * US + size / (gb_s * 1e9)


SLOW, LL = line(48, 25), line(20, 14)  # they meet at 28 us / (1/14 - 1/25) ns = 891 kB
WHOLE: Mapping[str, Formula] = {
    "nccl": SLOW,
    "nccl ring/ll": LL,
    "nccl ring/simple": line(47, 28),
    "nccl tree/ll": line(16, 4),
    "nccl ring/ll128": line(22, 24),
    "torch one-shot": line(8, 2),
}


def row(
    implementation: str,
    size: int,
    seconds: float,
    *,
    generator: np.random.Generator,
    start_noise: float = 0.005,
    sample_noise: float = 0.01,
    starts: int = 3,
    samples: int = 20,
    **changes: Any,
) -> Measurement:
    """Return the record of one row as a sweep writes it, of a formula's time and noise."""
    own = seconds * (1 + start_noise * generator.standard_normal(starts))
    drawn = own[:, None] * (1 + sample_noise * generator.standard_normal((starts, samples)))
    medians = [float(np.median(start)) for start in drawn]
    whole = stats.summarise(drawn.ravel().tolist())
    words = implementation.split()[1:2] or [""]
    algorithm, _, protocol = words[0].partition("/")
    dims: dict[str, Value] = {
        "bytes": size,
        "elements": size // 2,
        "dtype": "bfloat16",
        "in_place": True,
        "redop": "sum",
    }
    if size % HIDDEN_BYTES == 0 and size // HIDDEN_BYTES in TOKENS:
        dims |= {"tokens": size // HIDDEN_BYTES, "model": "kimi-k2.5"}
    method: dict[str, Value] = {"starts": starts, "clock": "made up"}
    method |= {f"start_{at}_median_s": median for at, median in enumerate(medians)}
    fields: dict[str, Any] = {
        "source": "measured",
        "part": "all_reduce",
        "op": "all_reduce",
        "implementation": implementation,
        "kind": "baseline-direct",
        "case": f"{size}B-bfloat16-in-place",
        "status": "ok",
        "dims": dims,
        "launch": "graph",
        "depth": 122,
        "requested": settings(algorithm, protocol),
        "effective": {"algorithm": algorithm, "protocol": protocol, "channels": "4"}
        if protocol
        else {},
        "median_s": whole.median,
        "low_s": min(whole.low, *medians),
        "high_s": max(whole.high, *medians),
        "p99_s": whole.p99,
        "count": whole.count,
        "ranks": 8,
        "method": method,
        "environment": "gpu",
        "command": "python -m collectives.sweep --gpus 8",
    }
    return Measurement(**(fields | changes))


def whole_sweep() -> list[Measurement]:
    """Return a sweep of all axes that matter to a report: modes, directions, statuses, beliefs."""
    found: list[Measurement] = []
    for launch, depth, more_us in MODES:
        for in_place in (True, False):
            for one in sweep(_raised(WHOLE, more_us), launch=launch, depth=depth):
                found.append(_as_recorded(one, in_place=in_place))
    found += [*_not_timed(), *_believed()]
    return found


def _raised(formulas: Mapping[str, Formula], more_us: float) -> dict[str, Formula]:
    def raised(formula: Formula) -> Formula:
        return lambda size: formula(size) + more_us * US

    return {name: raised(formula) for name, formula in formulas.items()}


def _as_recorded(one: Measurement, *, in_place: bool) -> Measurement:
    """Return a row with what a probe would add: proof, what NCCL ran, flags, settings read back."""
    size = one.dims["bytes"]
    changes: dict[str, Any] = {
        "dims": one.dims | {"in_place": in_place},
        "case": f"{size}B-bfloat16-{'in-place' if in_place else 'out-of-place'}",
        "proof": f"NCCL's log of the probe, line 412: {size} Bytes; read back on 8 of 8 ranks",
    }
    if one.implementation == "nccl":
        changes["effective"] = {"algorithm": "ring", "protocol": "simple", "channels": "4"}
    elif one.effective:
        changes["effective"] = one.effective | one.requested
    else:
        changes["proof"] = None
    if "ll128" in one.implementation:
        changes["flags"] = ("unsafe",)
    return msgspec.structs.replace(one, **changes)


def _not_timed() -> Iterator[Measurement]:
    generator = np.random.default_rng(2)
    lost: dict[str, Any] = {
        "median_s": None,
        "low_s": None,
        "high_s": None,
        "count": None,
        "p99_s": None,
    }
    for size in SIZES:
        taken = {"algorithm": "ring", "protocol": "ll", "channels": "4", "NCCL_PROTO": "LL"}
        yield row(
            "nccl tree/simple",
            size,
            1.0,
            generator=generator,
            status="ignored" if size < 2**20 else "hang",
            reason="asked for tree/simple, NCCL took ring/ll"
            if size < 2**20
            else "rank 3 did not come back within 60 s",
            effective=taken,
            **lost,
        )
    yield row(
        "nccl nvls/simple",
        8,
        1.0,
        generator=generator,
        case="every-size",
        dims={},
        launch=None,
        depth=None,
        status="unsupported",
        reason="NVLS needs NVSwitch",
        requested={"NCCL_ALGO": "NVLS", "NCCL_PROTO": "Simple"},
        effective={},
        **lost,
    )


def _believed() -> Iterator[Measurement]:
    """Yield what a cost model would say, of which nothing was measured."""
    for size in SIZES:
        cells = {"ring/ll": line(20.6, 13.7)(size), "ring/simple": line(88.2, 27.4)(size)}
        for name, seconds in cells.items():
            algorithm, _, protocol = name.partition("/")
            yield Measurement(
                source="predicted",
                part="all_reduce",
                op="all_reduce",
                implementation="nccl",
                kind="baseline-direct",
                case=f"{size}B-{algorithm}-{protocol}",
                status="ok",
                dims={"bytes": size, "algorithm": algorithm, "protocol": protocol},
                flags=("chosen",) if seconds == min(cells.values()) else (),
                median_s=seconds,
                ranks=8,
                method={
                    "from": "NCCL's cost model",
                    "nccl_version": "2.29.7",
                    "ring_channels": 2,
                    "ring_gb_s": 24.0,
                },
                environment="gpu",
                command="python -m collectives.predict --ranks 8",
            )


def settings(algorithm: str, protocol: str) -> dict[str, str]:
    """Return the variables of a combination."""
    if not protocol:
        return {}
    names = {
        "nvls": "NVLS",
        "ring": "Ring",
        "tree": "Tree",
        "ll": "LL",
        "ll128": "LL128",
        "simple": "Simple",
    }
    return {"NCCL_ALGO": names[algorithm], "NCCL_PROTO": names[protocol]}


def sweep(
    formulas: Mapping[str, Formula],
    *,
    seed: int = 1,
    sizes: Sequence[int] = SIZES,
    **options: Any,
) -> Iterator[Measurement]:
    """Yield a row for each implementation and size."""
    generator = np.random.default_rng(seed)
    for implementation, formula in formulas.items():
        for size in sizes:
            yield row(implementation, size, formula(size), generator=generator, **options)
