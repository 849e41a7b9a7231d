"""Rows of a sweep that nobody measured: times from a formula, with noise from a seeded generator.

seconds of a sample = formula(bytes) x (noise of its start) x (noise of its own), both normal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from verifyscope import stats
from verifyscope.records import Measurement, Value

US = 1e-6
TOKENS = (1, 2, 4, 8, 16, 32)
HIDDEN_BYTES = 14_336  # a row of Kimi-K2.5 in bfloat16
SIZES = tuple(
    sorted({*(2**power for power in range(13, 24)), *(one * HIDDEN_BYTES for one in TOKENS)})
)
Formula = Callable[[int], float]


def line(alpha_us: float, gb_s: float) -> Formula:
    """Return seconds = alpha + bytes / bandwidth."""
    return lambda size: alpha_us * US + size / (gb_s * 1e9)


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


def settings(algorithm: str, protocol: str) -> dict[str, str]:
    """Return the variables of a combination."""
    if not protocol:
        return {}
    names = {"ring": "Ring", "tree": "Tree", "ll": "LL", "ll128": "LL128", "simple": "Simple"}
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
