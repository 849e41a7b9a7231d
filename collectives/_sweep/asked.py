"""The command line of a sweep becomes a `Spec`: every value checked, every default filled in."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collectives._others import entries
from collectives._sweep import axes, backend, plan, points
from collectives._sweep.collective import Collective
from collectives._sweep.combination import Combination
from collectives._sweep.nccl_library import NcclLibrary
from collectives._sweep.nodes import Launched
from collectives._sweep.operations import OPERATIONS
from collectives._sweep.spec import FEWEST_STARTS, Spec
from verifyscope import units
from verifyscope.errors import UsageError, choose

_DEFAULT_RANKS = 8
_GRAPHS = "graphs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options as they were typed; see their help."""

    ops: str
    ranks: int | None
    backend: str | None
    model: str | None
    tokens: str | None
    min_bytes: str | None
    max_bytes: str | None
    dtype: str
    algos: str | None
    protos: str | None
    channels: str | None
    buffer_bytes: str | None
    p2p_level: str | None
    p2p: str | None
    graph_files: Sequence[str]
    gpu_orders: Sequence[str]
    bind: str | None
    launches: Sequence[str]
    allow_ll128: bool
    force: bool
    depth: int | None
    iterations: int | None
    batches: int | None
    warmup: int
    starts: int
    stress_calls: int
    timeout: float
    nccl: NcclLibrary | None = None
    others: str | None = None


def specs(given: Options, place: Launched | None) -> tuple[Spec, ...]:
    """Return what `given` asks for, one spec for each collective; `UsageError` says what is wrong.

    It names the first value that is not allowed.
    """
    words = dict.fromkeys(word.strip() for word in given.ops.split(","))
    names = [choose("collective", word, list(OPERATIONS)) for word in words]
    if given.others is not None and "all_reduce" not in names:
        raise UsageError("--others are all-reduces; give --op all_reduce, or leave them out")
    return tuple(_spec(given, place, OPERATIONS[name]) for name in names)


def _spec(given: Options, place: Launched | None, collective: Collective) -> Spec:
    moved_by, op = backend.find(given.backend or "nccl"), collective.name
    if given.nccl is not None and not moved_by.chooses:
        raise UsageError(f"{moved_by.name} uses no NCCL; leave --nccl out")
    ranks = _ranks(given.ranks, place)
    local_ranks = ranks if place is None else place.local_ranks
    dtype = _dtype(given.dtype, moved_by, ranks, summed=collective.redop != "none")
    found_points = points.points(
        on_device=moved_by.on_device,
        dtype=dtype,
        model=given.model,
        tokens=None if given.tokens is None else units.parse_list(given.tokens, units.parse_count),
        min_bytes=None if given.min_bytes is None else units.parse_bytes(given.min_bytes),
        max_bytes=None if given.max_bytes is None else units.parse_bytes(given.max_bytes),
        parts=ranks if collective.split else 1,
        in_place=collective.in_place is not None,
    )
    depth = given.depth or moved_by.depth or points.calls_in_a_pass(given.model)
    made = Spec(
        op=op,
        backend=moved_by.name,
        ranks=ranks,
        local_ranks=local_ranks,
        dtype=dtype,
        points=found_points,
        combinations=(
            *_combinations(given, moved_by, op=op, ranks=ranks, local_ranks=local_ranks),
            *_others(given, moved_by, op=op, dtype=dtype, ranks=ranks, local_ranks=local_ranks),
        ),
        depth=depth,
        iterations=moved_by.iterations if given.iterations is None else given.iterations,
        batches=moved_by.batches if given.batches is None else given.batches,
        warmup=given.warmup,
        starts=given.starts,
        timeout_s=given.timeout,
        stress_calls=given.stress_calls,
        nccl=None if given.nccl is None else given.nccl.version,
    )
    _in_range(given, made)
    return made


def _in_range(given: Options, made: Spec) -> None:
    for option, value, low, high in (
        ("--gpus", made.ranks, 1, points.MOST_RANKS),
        ("--depth", made.depth if given.depth is None else given.depth, 2, 10_000),
        ("--iterations", made.iterations, 1, 1_000_000),
        ("--batches", made.batches, 1, 1_000_000),
        ("--warmup", made.warmup, 0, 1_000_000),
        ("--starts", made.starts, FEWEST_STARTS, 100),
        ("--stress-calls", made.stress_calls, 1, 1_000_000),
        ("--timeout", made.timeout_s, 1, 86_400),
    ):
        if not low <= value <= high:
            raise UsageError(f"{option} {value:g} is out of range; give {low} to {high}")


def _ranks(given: int | None, place: Launched | None) -> int:
    if place is None:
        return _DEFAULT_RANKS if given is None else given
    if given not in (None, place.ranks):
        raise UsageError(
            f"--gpus {given}, but torchrun started {place.ranks} ranks; leave --gpus out"
        )
    return place.ranks


def _dtype(given: str, moved_by: backend.Backend, ranks: int, *, summed: bool) -> str:
    choose("dtype", given, list(points.DTYPE_BYTES))
    if not given.startswith("float8"):
        return given
    if not moved_by.on_device:
        raise UsageError(f"{moved_by.name} has no {given}; give --backend nccl, or another --dtype")
    if summed and ranks > points.MOST_EXACT[given]:
        raise UsageError(
            f"sums of {given} over {ranks} ranks cannot be checked: whole numbers are exact up to "
            f"{points.MOST_EXACT[given]}; give another --dtype"
        )
    return given


def _combinations(
    given: Options, moved_by: backend.Backend, *, op: str, ranks: int, local_ranks: int
) -> tuple[Combination, ...]:
    return plan.combinations(
        plan.Asked(
            op=op,
            backend=moved_by,
            ranks=ranks,
            local_ranks=local_ranks,
            axes=axes.parse(
                algos=given.algos,
                protos=given.protos,
                channels=given.channels,
                buffer_bytes=given.buffer_bytes,
                p2p_level=given.p2p_level,
                p2p=given.p2p,
                graph_files=given.graph_files,
                gpu_orders=given.gpu_orders,
                bind=given.bind,
                launches=given.launches,
            ),
            allow_ll128=given.allow_ll128,
            force=given.force,
            environment=os.environ,
        )
    )


def _others(
    given: Options, moved_by: backend.Backend, *, op: str, dtype: str, ranks: int, local_ranks: int
) -> Iterator[Combination]:
    """Yield the all-reduces of others: all, unless the plan was narrowed or they are named."""
    narrowed = given.algos is not None or given.protos is not None
    usual = entries.NONE if narrowed else entries.ALL
    if op == "all_reduce":
        setting = entries.Setting(
            on_device=moved_by.on_device, dtype=dtype, ranks=ranks, local_ranks=local_ranks
        )
        yield from entries.planned(given.others or usual, setting)


def with_own_graphs(asked: Spec, folder: Path) -> Spec:
    """Copy the graph files into the run's folder, and name them there: a run holds no paths."""
    made = []
    for known in asked.combinations:
        if known.graph_file is not None:
            source = Path(known.graph_file)
            place = Path(_GRAPHS) / source.name
            (folder / _GRAPHS).mkdir(parents=True, exist_ok=True)
            (folder / place).write_bytes(source.read_bytes())
            known = replace(known, graph_file=str(place))
        made.append(known)
    return replace(asked, combinations=tuple(made))
