"""A measured point becomes a record: a median with its interval, or why there is none.

`dims` hold bytes, elements, dtype, redop and in_place, and tokens and model where the size comes
from a model. `requested` are the NCCL settings of the environment; `effective` stays empty: nothing
here proves that they took effect.
"""

from collections.abc import Sequence

from collectives._sweep.launch import Group, RankFailed, Result
from collectives._sweep.plan import Job, Point
from verifyscope import bandwidth
from verifyscope.records import Environment, Measurement, Value

_EXPOSED_SHARE = 0.1


def measurement(
    job: Job, group: Group, result: Result, *, before: Result | None, environment: Environment
) -> Measurement:
    """Return the record of `result`; `before` is the next smaller size in the same direction."""
    wrong = None
    if result.wrong:
        checked = result.point.elements * job.ranks * (job.iterations + job.warmup)
        wrong = f"{result.wrong} of {checked} values are wrong; the time is withheld"
    summary = None if wrong else result.summary
    return Measurement(
        source="measured",
        part=job.collective.name,
        op=job.collective.name,
        implementation=job.backend,
        kind="baseline-direct",
        case=case(job, result.point),
        status="corrupt" if wrong else "ok",
        reason=wrong,
        dims=_dims(job, result.point),
        launch="eager" if job.backend == "nccl" else None,
        flags=_flags(job, result, before),
        requested=_requested(job, environment),
        median_s=summary.median if summary else None,
        low_s=summary.low if summary else None,
        high_s=summary.high if summary else None,
        p90_s=summary.p90 if summary else None,
        p99_s=summary.p99 if summary else None,
        count=summary.count if summary else None,
        ranks=job.ranks,
        method=_method(job, group, result),
        environment=environment.id,
        command=environment.command,
        commit=environment.commit,
    )


def lost(
    job: Job, group: Group | None, point: Point, failed: RankFailed, *, environment: Environment
) -> Measurement:
    """Return the record of the point in which a rank was lost."""
    return Measurement(
        source="measured",
        part=job.collective.name,
        op=job.collective.name,
        implementation=job.backend,
        kind="baseline-direct",
        case=case(job, point),
        status=failed.kind,
        reason=failed.reason,
        dims=_dims(job, point),
        requested=_requested(job, environment),
        ranks=job.ranks,
        method={} if group is None else _method(job, group, None),
        environment=environment.id,
        command=environment.command,
        commit=environment.commit,
    )


def case(job: Job, point: Point) -> str:
    """Return the name of a point, such as "57344B-bfloat16-out-of-place"."""
    direction = "in-place" if point.in_place else "out-of-place"
    return f"{point.size_bytes}B-{job.dtype}-{direction}"


def _dims(job: Job, point: Point) -> dict[str, Value]:
    dims: dict[str, Value] = {
        "bytes": point.size_bytes,
        "elements": point.elements,
        "dtype": job.dtype,
        "in_place": point.in_place,
        "redop": job.collective.redop,
    }
    if point.tokens is not None and point.model is not None:
        dims |= {"tokens": point.tokens, "model": point.model}
    return dims


def _flags(job: Job, result: Result, before: Result | None) -> tuple[str, ...]:
    both: Sequence[Result] = () if before is None or before.wrong else (before, result)
    exposed = result.exposed > _EXPOSED_SHARE * job.iterations
    found = {
        "non-monotone": bool(bandwidth.drops([known.summary.median for known in both])),
        "single-rank": job.ranks == 1,
        "launch-exposed": exposed,
    }
    return tuple(name for name, is_so in found.items() if is_so)


def _requested(job: Job, environment: Environment) -> dict[str, str]:
    if job.backend != "nccl":
        return {}
    return {name: value for name, value in environment.settings.items() if "NCCL" in name}


def _method(job: Job, group: Group, result: Result | None) -> dict[str, Value]:
    first = group.ranks[0]
    on_device = job.backend == "nccl"
    method: dict[str, Value] = {
        "iterations": job.iterations,
        "warmup": job.warmup,
        "sample": "maximum over ranks of end - start, after a barrier",
        "clock": "CUDA events behind a spin of 1 ms" if on_device else "perf_counter of the host",
        "checked": "every value of every call",
        "out_of_place": "copy into the output, then reduced there",
        "device": first.name,
        "nccl_version" if on_device else "torch_version": first.library_version,
    }
    if on_device and result is not None:
        method["launch_exposed"] = result.exposed
    return method
