"""What NCCL did, was told, and will do here: from its log, its configuration files, the paths.

A log is evidence; where none tells it, the paths give an expectation, and it says that it is one.
"""

from collections.abc import Iterator

from collectives._attest.logs import Logs
from collectives._host.facts import HERE, NEAR_PATHS, Host
from ingest.conclusions import Conclusion, Seen, listed
from ingest.nccl_log_findings import suspicions
from verifyscope import hardware

# What a log says of calls and of itself, not of the host.
_NOT_OF_THE_HOST = ("choices-at-enqueue-only", "choice-not-logged", "log-not-whole")
_BLACKWELL = 100
_AMD_GB_S, _SLOWEST_SEARCHED_GB_S = 16, 18


def conclusions(host: Host) -> Iterator[Conclusion]:
    """Yield what logs show, what files set, and what is to be expected."""
    if host.nccl is not None:
        yield from _of_log(host, host.nccl)
    yield from _configuration(host)
    yield from _expected_transport(host)
    yield from _expected_graph(host)


def _of_log(host: Host, logs: Logs) -> Iterator[Conclusion]:
    for found in suspicions(logs.log):
        by_lspci = found.name == "acs-redirect" and host.lspci is not None
        if found.name in _NOT_OF_THE_HOST or by_lspci:
            continue
        yield Conclusion(
            name=found.name,
            sentence=found.sentence,
            seen=tuple(Seen(*logs.place(line), value) for line, value in found.evidence),
            next_action=found.next_action,
            confidence=found.confidence,
        )


def _configuration(host: Host) -> Iterator[Conclusion]:
    """Say what files set without anybody's asking, and which of their lines do nothing."""
    files, dead = host.configuration.settings, host.configuration.dead
    injected = {known.name for known in files}
    settings = () if host.nccl is None else host.nccl.log.settings
    from_log = [
        known
        for known in settings
        if known.origin == "configuration file" and known.name not in injected
    ]
    if files or from_log:
        named = [f"{known.name}={known.value}" for known in files]
        named += [f"{known.name}={known.value}" for known in from_log]
        yield Conclusion(
            name="config-injected-env",
            sentence=f"a configuration file, not the environment, sets {', '.join(named)}",
            seen=(
                *(Seen(k.file, k.line, f"{k.name}={k.value}") for k in files),
                *(Seen(*_place(host, k.line), f"{k.name}={k.value}") for k in from_log),
            ),
            next_action="the environment wins over such a file: set it there, or take the line out",
        )
    if dead:
        yield Conclusion(
            name="config-line-without-effect",
            sentence=f"lines of a configuration file set no setting of NCCL: "
            f"{listed(list(dict.fromkeys(known.name for known in dead)))} stand there with spaces "
            "or `export` around the name, which NCCL takes as a part of it",
            seen=tuple(Seen(known.file, known.line, known.name) for known in dead),
            next_action="write NAME=VALUE from the first column on, without spaces around =",
        )


def _expected_transport(host: Host) -> Iterator[Conclusion]:
    """Say which pairs NCCL sends through the host's memory by default, where no log shows it."""
    level = host.environment.get("NCCL_P2P_LEVEL", "").upper()
    told = level or host.environment.get("NCCL_P2P_DISABLE", "0") != "0"
    shown = host.nccl is not None and bool(host.nccl.log.transports)
    far = [pair for pair in host.pairs if pair.kind not in (None, *NEAR_PATHS)]
    # A pair that has no access at all is another finding's.
    far = [pair for pair in far if not pair.refused]
    if told or shown or not far or host.count <= 2:
        return
    yield Conclusion(
        name="shm-because-p2p-level",
        sentence=f"expected, no log shows it: with more than 2 GPUs NCCL lets {len(far)} of "
        f"{len(host.pairs)} pairs talk through the host's memory, because their path is farther "
        "than its default level PXB",
        seen=tuple(pair.seen for pair in far),
        next_action="measure NCCL_P2P_LEVEL=SYS against it once writes between these GPUs are "
        "known to arrive: on some machines the host's memory is faster",
        confidence="likely",
    )


def _expected_graph(host: Host) -> Iterator[Conclusion]:
    """Say where the search for a ring must fail by NCCL's own numbers, where no log shows it.

    Up to 2.30 a way between NUMA nodes of AMD counts 16 GB/s, and the slowest ring that is searched
    for from capability 10.0 on has 18.
    """
    if host.nccl is not None and (host.nccl.log.searches or host.nccl.log.entries):
        return
    nodes = {gpu.node for gpu in host.gpus if gpu.node is not None}
    across = [pair for pair in host.pairs if pair.kind == "SYS"]
    if len(nodes) == 1 or not across or not _is_amd(host) or "NCCL_GRAPH_FILE" in host.environment:
        return
    known = [hardware.match(gpu.idle.name or "") for gpu in host.gpus]
    capable = [gpu for gpu in known if gpu is not None and gpu.capability is not None]
    if len(capable) < len(host.gpus) or any((g.capability or 0) < _BLACKWELL for g in capable):
        return
    yield Conclusion(
        name="graph-simple-order",
        sentence="expected, no log shows it: NCCL up to 2.30 finds no ring over these GPUs: "
        f"it counts {_AMD_GB_S} GB/s between NUMA nodes of AMD and searches for no ring below "
        f"{_SLOWEST_SEARCHED_GB_S}; it then takes ring/simple for every size of a verify pass",
        seen=tuple(pair.seen for pair in across),
        next_action="log NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,GRAPH and look for "
        "`Pattern 4 ... bw 0.1`; then give NCCL a graph (NCCL_GRAPH_FILE), or NCCL_PROTO=LL",
        confidence="hint",
    )


def _place(host: Host, line: int) -> tuple[str, int | None]:
    return (HERE, None) if host.nccl is None else host.nccl.place(line)


def _is_amd(host: Host) -> bool:
    if host.processor is not None:
        return "AMD" in host.processor or "EPYC" in host.processor
    bridges = [] if host.lspci is None else host.lspci.devices.between_gpus
    return any("Advanced Micro Devices" in bridge.name for bridge in bridges)
