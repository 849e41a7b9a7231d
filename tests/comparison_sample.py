"""Two runs made up as real ones look: kernels and a sweep with samples, their noise, a change."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tests.report_sample import GPU, US, collective, kernel, write
from verifyscope.records import Environment, Measurement, Record, Samples
from verifyscope.stats import summarise


def noisy(
    median_s: float, *, seed: int, count: int = 30, noise: float = 0.01, tail: float = 0.05
) -> tuple[float, ...]:
    """Return samples as a quiet GPU gives them: 1 % of noise, and some that are much longer."""
    generator = np.random.default_rng(seed)
    values = median_s * np.exp(noise * generator.standard_normal(count))
    values[generator.random(count) < tail] *= 1.4
    return tuple(float(value) for value in values)


def timed(one: Measurement, samples: Sequence[float]) -> tuple[Measurement, Samples]:
    """Return a row that has the median and interval of its samples, and those."""
    found = summarise(samples)
    row = msgspec.structs.replace(
        one,
        median_s=found.median,
        low_s=found.low,
        high_s=found.high,
        p90_s=found.p90,
        p99_s=found.p99,
        count=found.count,
    )
    return row, Samples(id=row.id, seconds=tuple(samples))


def rows(
    *,
    seed: int,
    kernels: Mapping[str, float],
    cases: int = 10,
    environment: str = "gpu",
    noise: float = 0.01,
) -> list[tuple[Measurement, Samples]]:
    """Return rows of each kernel, by what its times are multiplied with."""
    return [
        timed(
            kernel(
                name,
                1.0,
                id=f"{environment}-{name}-{case}-{seed}",
                case=f"case{case}",
                environment=environment,
            ),
            noisy((20 + 3 * case) * US * factor, seed=seed + 1000 * case + at, noise=noise),
        )
        for at, (name, factor) in enumerate(kernels.items())
        for case in range(cases)
    ]


def sweep(
    *, seed: int, factor: float = 1.0, environment: str = "gpu", **changes: object
) -> list[Measurement]:
    """Return rows of a sweep of three fresh starts each, 2 % apart."""
    found = []
    for at, size in enumerate(2**n for n in range(13, 21)):
        starts = noisy(
            (30 + size / 20_000) * US * factor, seed=seed + at, count=3, noise=0.02, tail=0
        )
        median = sorted(starts)[1]
        found.append(
            collective(
                size,
                median / US,
                id=f"{environment}-sweep-{size}-{seed}",
                implementation="nccl",
                environment=environment,
                launch="graph",
                depth=122,
                low_s=min(starts),
                high_s=max(starts),
                count=300,
                method={f"start_{n}_median_s": one for n, one in enumerate(starts)},
                **changes,
            )
        )
    return found


def run(
    folder: Path,
    environment: Environment,
    timed_rows: Sequence[tuple[Measurement, Samples]],
    others: Sequence[Record] = (),
) -> Path:
    """Write a run with its samples, and return its folder."""
    write(folder / "records.jsonl", [environment, *(row for row, _ in timed_rows), *others])
    write(folder / "samples.jsonl", [samples for _, samples in timed_rows])
    return folder


YESTERDAY = msgspec.structs.replace(GPU, id="yesterday", created="2026-08-01T10:00:00+00:00")
TODAY = msgspec.structs.replace(
    GPU,
    id="today",
    created="2026-08-02T10:00:00+00:00",
    commit="fedcba987654",
    settings={},
    driver="580.95.05",
)
