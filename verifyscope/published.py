"""Times that others measured and published: what parts of a pass took on their machines.

`rows()` are those of published.csv, 287 rows of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0: see
published-LICENSE.txt, which says what was changed and what was left out); each names its source.
They are `public components`, never floors: somebody's kernel on somebody's host.

Sizes are bytes and elements, times of one call: microseconds in the file, seconds here. What a
column does not apply to is None. `part` is one of verifyscope.parts.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import msgspec

from verifyscope.parts import PARTS
from verifyscope.records import Value

FILE = Path(__file__).with_name("published.csv")
LICENCE = Path(__file__).with_name("published-LICENSE.txt")
LARGE_BYTES = 500e6


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A time of somebody's implementation of a part, on a GPU of verifyscope.hardware.

    bytes: the message of a collective, on a rank; of an all-gather the gathered whole.
    heads: of this rank, over one latent; requests: sequences at once; context: tokens of each, the
    new one included; rows: tokens a request; experts: of a layer, of which balanced routing touches
    distinct_experts.
    low_us, high_us: the ends where a point was measured twice.
    """

    part: str
    gpu: str
    implementation: str
    dtype: str
    median_us: float
    source: str
    ranks: int | None = None
    launch: str | None = None
    bytes: int | None = None
    heads: int | None = None
    latent: int | None = None
    rope: int | None = None
    requests: int | None = None
    context: int | None = None
    rows: int | None = None
    experts: int | None = None
    distinct_experts: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    inputs: int | None = None
    outputs: int | None = None
    touched_bytes: float | None = None
    low_us: float | None = None
    high_us: float | None = None

    def __post_init__(self) -> None:
        if self.part not in PARTS or not self.median_us > 0 or not self.source:
            raise ValueError(f"{self.part} of {self.median_us} us needs a part, a time, a source")

    @property
    def median_s(self) -> float:
        """Return the seconds of a call."""
        return self.median_us / 1e6

    @property
    def dims(self) -> Mapping[str, Value]:
        """Return the numbers that say which case it is, as in a record's dims."""
        given = {name: getattr(self, name) for name in _DIMS}
        known = {name: value for name, value in given.items() if value is not None}
        if self.part != "routed_experts":
            return known | {"dtype": self.dtype}
        return known | {"format": self.dtype, "routing": "balanced"}


COLUMNS = (
    *("part", "gpu", "ranks", "implementation", "launch", "dtype", "bytes", "heads", "latent"),
    *("rope", "requests", "context", "rows", "experts", "distinct_experts", "hidden"),
    *("intermediate", "inputs", "outputs", "touched_bytes", "median_us", "low_us", "high_us"),
    "source",
)
_DIMS = (
    *("bytes", "heads", "latent", "rope", "requests", "context", "rows", "experts"),
    *("distinct_experts", "hidden", "intermediate", "inputs", "outputs"),
)


@cache
def rows() -> tuple[Row, ...]:
    """Return all rows, in the order of the file."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            msgspec.convert({name: cell for name, cell in line.items() if cell}, Row, strict=False)
            for line in csv.DictReader(file)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Bytes a second of DRAM that others reached, to three digits; the ends of `count` rows."""

    bytes_per_s: float
    low: float
    high: float
    count: int
    source: str


@cache
def reached(gpu: str) -> Reached | None:
    """Return what products of at least LARGE_BYTES of weights reached on `gpu`; None without one.

    So many bytes come from memory whatever the benchmark: they are several times the L2.
    """
    found = [row for row in rows() if row.gpu == gpu and row.part == "dense_gemm"]
    rates = [
        row.touched_bytes / row.median_s
        for row in found
        if row.touched_bytes and row.touched_bytes >= LARGE_BYTES
    ]
    if not rates:
        return None
    return Reached(
        bytes_per_s=float(f"{median(rates):.3g}"),
        low=min(rates),
        high=max(rates),
        count=len(rates),
        source=found[0].source,
    )
