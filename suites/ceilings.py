"""What memory and matrix units of this machine really give, and what other rows are held to.

    python -m suites.ceilings [--records FILE]

The memory ceiling is the best of read, write and copy, in bytes a second; rows that write less than
a tenth of what they touch are held to the read ceiling alone. The matrix ceiling is the best rate
for a dtype, in flops a second. A cold row that is faster than 102 % of its memory ceiling is void:
something was not read from memory, or not at all. The empty kernel is reported, never subtracted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from verifyscope import cli, roofline, units
from verifyscope.errors import Failure, UsageError
from verifyscope.records import Measurement, Value
from verifyscope.roofline import Cost, Roof

PARTS = ("memory_ceiling", "matrix_ceiling", "empty_kernel")
VOID_ABOVE = 1.02
SMALLEST_WALK_BYTES = {"cuda": 2**30, "cpu": 2**28}
CACHES_TO_WALK = 3
_READ_DOMINATED = 0.1

app = cli.app("Measure what this machine's memory and matrix units really give.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Measured rates: bytes a second by op, flops a second by dtype, seconds of an empty kernel.

    empty_s: one that is launched alone; node_s: one in a CUDA graph of many, each behind the other.
    """

    memory: Mapping[str, float] = field(default_factory=dict)
    matrix: Mapping[str, float] = field(default_factory=dict)
    empty_s: float | None = None
    node_s: float | None = None

    def memory_for(self, cost: Cost) -> tuple[str, float] | None:
        """Return the name and rate of the ceiling that a row of this cost is held to."""
        read = self.memory.get("memory_read")
        if read is not None and cost.written_bytes < _READ_DOMINATED * cost.touched_bytes:
            return "memory_read", read
        return max(self.memory.items(), key=lambda item: item[1], default=None)

    def method_for(self, cost: Cost) -> dict[str, Value]:
        """Return what a record says of the ceiling that it is held to."""
        ceiling = self.memory_for(cost)
        return {"ceiling": ceiling[0], "ceiling_bytes_per_s": ceiling[1]} if ceiling else {}

    def floor_s(self, cost: Cost, dtype: str) -> float | None:
        """Return the least seconds for `cost` at these rates; None without a memory ceiling."""
        found = self.roof(cost, dtype)
        return None if found is None else found.roof_s

    def roof(
        self,
        cost: Cost,
        dtype: str,
        *,
        nodes: int | None = None,
        reachable_share: float = roofline.REACHABLE_SHARE,
    ) -> Roof | None:
        """Return the roof of `cost` and `nodes` launches; None without a memory ceiling."""
        ceiling = self.memory_for(cost)
        if ceiling is None:
            return None
        return roofline.roof(
            cost,
            bytes_per_s=ceiling[1],
            flops_per_s=self.matrix.get(dtype),
            nodes=nodes,
            node_s=self.node_s,
            reachable_share=reachable_share,
        )

    def why_void(self, cost: Cost, median_s: float) -> str | None:
        """Say why a cold time cannot be true; None if it can, or if there is no ceiling."""
        ceiling = self.memory_for(cost)
        if ceiling is None:
            return None
        name, limit = ceiling
        rate = cost.touched_bytes / median_s
        if rate <= VOID_ABOVE * limit:
            return None
        return (
            f"{units.rate(rate)} is {units.percent(rate / limit)} of the measured {name} ceiling "
            f"of {units.rate(limit)}: not all of it came from memory"
        )


def from_records(records: list[Measurement]) -> Ceilings:
    """Return the best of what was measured; what fits a cache or is too small is no ceiling."""
    memory: dict[str, float] = {}
    matrix: dict[str, float] = {}
    empty: list[float] = []
    nodes: list[float] = []
    for record in records:
        if record.median_s is None or {"fits-cache", "too-small"} & set(record.flags):
            continue
        if record.part == "memory_ceiling" and record.touched_bytes:
            rate = record.touched_bytes / record.median_s
            memory[record.op] = max(rate, memory.get(record.op, 0.0))
        elif record.part == "matrix_ceiling" and record.flops:
            dtype = str(record.dims["dtype"])
            matrix[dtype] = max(record.flops / record.median_s, matrix.get(dtype, 0.0))
        elif record.part == "empty_kernel":
            (nodes if record.launch == "graph" else empty).append(record.median_s)
    return Ceilings(
        memory=memory,
        matrix=matrix,
        empty_s=min(empty, default=None),
        node_s=min(nodes, default=None),
    )


def comes_from_memory(cost: Cost, cache_bytes: int | None) -> bool:
    """Say whether doing this again and again reads memory, not the last cache."""
    return cache_bytes is not None and cost.touched_bytes >= CACHES_TO_WALK * cache_bytes


def is_ceiling_of_memory(cost: Cost, cache_bytes: int | None, *, device: str) -> bool:
    """Say whether this much touched on a "cuda" or "cpu" device shows its memory's rate.

    Where the cache's size is not known, the smallest walk must do.
    """
    least = max(CACHES_TO_WALK * (cache_bytes or 0), SMALLEST_WALK_BYTES[device])
    return cost.touched_bytes >= least


@app.command()
def ceilings(
    records: Annotated[
        Path | None, typer.Option(help="Append the records to this file; else a folder in runs/.")
    ] = None,
    max_time_s: Annotated[
        float, typer.Option(help="Seconds for each case, unless it is steady before.")
    ] = 1.0,
) -> None:
    """Measure, record and print the ceilings of this machine."""
    if not 0 < max_time_s < float("inf"):
        raise UsageError(f"--max-time-s {max_time_s} is no time; give seconds above 0, such as 1")
    from suites import _session
    from verifyscope import runs

    with runs.start(records, "ceilings") as run:
        session = _session.Session(
            bench=_session.bench_of_this_machine(),
            run=run,
            limits=_session.Limits(max_time_s=max_time_s),
        )
        found = session.ceiling_records()
        cli.print_rows(
            [_row(record) for record in found],
            header=(
                *("op", "implementation", "case", "launch"),
                *("median", "rate", "status", "reason"),
            ),
        )
        cli.note(f"records: {run.path}")
    if any(record.status in ("failed", "error", "void") for record in found):
        raise Failure("not every ceiling could be measured; the table says why")


def _row(record: Measurement) -> tuple[str, ...]:
    rate = ""
    if record.median_s and record.part == "matrix_ceiling" and record.flops:
        rate = f"{record.flops / record.median_s / 1e12:.4g} TFLOP/s"
    elif record.median_s and record.part == "memory_ceiling" and record.touched_bytes:
        rate = units.rate(record.touched_bytes / record.median_s)
    median = "" if record.median_s is None else units.seconds(record.median_s)
    reason = record.reason or ", ".join(record.flags)
    name = (record.op, record.implementation, record.case, record.launch or "")
    return (*name, median, rate, record.status, reason)


if __name__ == "__main__":
    cli.run(app, "python -m suites.ceilings")
