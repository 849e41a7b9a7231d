"""A host becomes records: what was timed on it, and each finding; and one JSON of all of it.

A rate's `median_s` is until all writes of a sample had arrived, launch included, and `dims` say
between which GPUs. A sample whose values were wrong has no time.
"""

from collections.abc import Iterator, Sequence

import msgspec

from collectives._host.facts import Host, HostCopy, Rate
from collectives._host.summary import access_control, summary
from ingest.conclusions import Conclusion
from verifyscope import stats
from verifyscope.records import Environment, Finding, Measurement, Value


def records(
    host: Host, found: Sequence[Conclusion], environment: Environment
) -> Iterator[Measurement | Finding]:
    """Yield what was measured, then the host as a whole, then what is wrong with it."""
    if host.tried is not None:
        yield from (_copy(copy, environment) for copy in host.tried.copies)
        yield from (_rate(host, rate, environment) for rate in host.tried.rates)
    for one in (summary(host, found), *found):
        yield one.finding(environment=environment.id, command=environment.command)


def as_json(host: Host, found: Sequence[Conclusion]) -> bytes:
    """Return all that is known as JSON; devices other than GPUs and bridges above them are not."""
    devices = None if host.lspci is None else host.lspci.devices
    known = {
        "summary": summary(host, found).sentence,
        "saved": host.saved,
        "processor": host.processor,
        "virtual": host.virtual,
        "gpus": host.gpus,
        "pairs": host.pairs,
        "numa_nodes": host.nodes,
        "iommu": host.iommu,
        "access_control": access_control(host),
        "bridges": [] if devices is None else devices.between_gpus,
        "kernel": host.parameters,
        "driver": host.driver,
        "environment": host.environment,
        "configuration": host.configuration,
        "nccl": None if host.nccl is None else host.nccl.log,
        "tried": host.tried,
        "probed": host.probed,
        "findings": found,
    }
    return msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n"


def _copy(copy: HostCopy, environment: Environment) -> Measurement:
    way = "host-to-gpu" if copy.to_gpu else "gpu-to-host"
    return _timed(
        op="host_copy",
        case=f"{way}-{copy.gpu}",
        dims={"bytes": copy.size_bytes, "gpu": copy.gpu, "to_gpu": copy.to_gpu},
        seconds=copy.seconds,
        moved_bytes=copy.size_bytes,
        environment=environment,
    )


def _rate(host: Host, rate: Rate, environment: Environment) -> Measurement:
    kind = rate.kind.replace(" ", "-")
    if rate.kind in ("alone", "both ways"):
        writer, target = rate.writes[0]
        pair = host.pair(writer, target)
        case = f"{kind}-{writer}-{target}"
        dims: dict[str, Value] = {"writer": writer, "target": target}
        if pair is not None and pair.path is not None:
            dims["path"] = pair.path
    else:
        case, dims = f"{kind}-{len(rate.writes)}", {}
    dims |= {"bytes": rate.size_bytes, "writes": len(rate.writes), "together": rate.kind}
    return _timed(
        op="peer_write",
        case=case,
        dims=dims,
        seconds=rate.seconds,
        moved_bytes=rate.size_bytes * len(rate.writes),
        environment=environment,
        wrong=rate.wrong,
    )


def _timed(
    *,
    op: str,
    case: str,
    dims: dict[str, Value],
    seconds: Sequence[float],
    moved_bytes: int,
    environment: Environment,
    wrong: int = 0,
) -> Measurement:
    found = stats.summarise(seconds)
    return Measurement(
        source="measured",
        part="copy",
        op=op,
        implementation="torch copy",
        kind="baseline-direct",
        case=case,
        status="corrupt" if wrong else "ok",
        reason=f"{wrong} words of 8 bytes differ" if wrong else None,
        dims=dims,
        launch="eager",
        median_s=None if wrong else found.median,
        low_s=None if wrong else found.low,
        high_s=None if wrong else found.high,
        count=len(seconds),
        touched_bytes=moved_bytes,
        method={"clock": "host, all GPUs synchronised before and after"},
        environment=environment.id,
        command=environment.command,
        commit=environment.commit,
    )
