"""What looks wrong in an NCCL log: graphs, transports, peer access, versions, choices.

Each finding has the lines that show it and what to do next. Findings on settings are in
`nccl_setting_findings`.
"""

from collections.abc import Iterator, Sequence

from ingest.nccl_facts import (
    FAR_PATHS,
    NVLINK_PATHS,
    RING,
    Choice,
    Communicator,
    NcclLog,
    Search,
    Setting,
    Transport,
)
from ingest.nccl_findings import Suspicion
from ingest.nccl_setting_findings import about_settings

# With a graph that was found, LL is NCCL's choice up to about a megabyte on PCIe; a failed search
# makes it Simple from 2 KB (4 ranks) or 4 KB (8 ranks) on.
EARLY_SIMPLE_BYTES = 16 * 2**10
# What a ring over one channel of 0.1 GB/s prints as its bandwidth, and nothing that works does.
NO_BANDWIDTH_GB_S = 0.15

_Shown = tuple[tuple[int | None, str], ...]


def suspicions(log: NcclLog) -> Iterator[Suspicion]:
    """Yield what looks wrong, the graphs first."""
    yield from _about_graphs(log)
    yield from _about_transports(log)
    yield from _about_peer_access(log)
    yield from _about_acs(log)
    yield from about_settings(log)
    yield from _about_choices(log)
    yield from _about_the_start(log)
    yield from _about_warnings(log)


def _about_graphs(log: NcclLog) -> Iterator[Suspicion]:
    failed = [known for known in log.searches if known.simple_order]
    shown: _Shown = tuple((known.line, _pattern(known)) for known in failed)
    shown += tuple((f.line, f"pattern {f.pattern}: simple order") for f in log.fallbacks)
    believed = [
        entry
        for entry in log.entries
        if (entry.function, entry.algorithm, entry.protocol) == ("all_reduce", "ring", "simple")
        and 0 < entry.bandwidth_gb_s < NO_BANDWIDTH_GB_S
    ]
    shown += tuple((e.line, f"ring/simple at {e.bandwidth_gb_s} GB/s") for e in believed)
    early = _early_simple(log)
    if shown:
        yield Suspicion(
            name="graph-simple-order",
            sentence="the search for a graph failed: NCCL believes that the GPUs are joined by "
            "0.1 GB/s on one channel, and takes ring/simple for every size of a verify pass",
            evidence=shown,
            next_action=_GRAPH_ACTION,
        )
    elif early:
        yield Suspicion(
            name="graph-simple-order",
            sentence=f"all-reduce takes ring/simple from {early[0].size_bytes} B on: so early it "
            "is the sign of a failed search for a graph",
            evidence=tuple((c.line, f"{c.size_bytes} B -> {c.name}") for c in early),
            next_action="log the GRAPH subsystem, too; " + _GRAPH_ACTION,
            confidence="likely",
        )


_GRAPH_ACTION = (
    "give NCCL a graph (NCCL_GRAPH_FILE), or NCCL_PROTO=LL; measure both with "
    "python -m collectives.sweep"
)


def _pattern(known: Search) -> str:
    return (
        f"pattern {known.pattern}, {known.channels} channels x {known.intra_gb_s:g} GB/s, "
        f"{known.intra_path}"
    )


def _early_simple(log: NcclLog) -> list[Choice]:
    """Return calls that took ring/simple at a size that is LL's, where nothing forced them."""
    if log.searches or log.plugins_that_choose or "NCCL_PROTO" in log.effective():
        return []
    return [
        known
        for known in log.choices
        if known.name == "ring/simple"
        and known.function == "all_reduce"
        and known.size_bytes <= EARLY_SIMPLE_BYTES
    ]


def _about_transports(log: NcclLog) -> Iterator[Suspicion]:
    shm = [known for known in log.transports if known.kind == "shm"]
    if shm:
        yield from _about_shm(log, shm)
    one_node = any(known.nodes == 1 and known.ranks > 1 for known in log.communicators)
    several = any(known.nodes not in (None, 1) for known in log.communicators)
    net = [known for known in log.transports if known.kind == "net"]
    if net and one_node and not several:
        yield Suspicion(
            name="net-on-one-node",
            sentence="ranks of one node talk through the network: neither peer access nor shared "
            "memory is allowed",
            evidence=tuple((known.line, _way(known)) for known in net),
            next_action="unset NCCL_P2P_DISABLE and NCCL_SHM_DISABLE; in containers share /dev/shm",
        )


def _about_shm(log: NcclLog, shm: Sequence[Transport]) -> Iterator[Suspicion]:
    """Say why ranks talk through the host's memory, as far as the log tells it."""
    shown: _Shown = tuple((known.line, _way(known)) for known in shm[:3])
    settings = log.effective()
    disabled, level = settings.get("NCCL_P2P_DISABLE"), settings.get("NCCL_P2P_LEVEL")
    if disabled is not None and disabled.value != "0":
        yield Suspicion(
            name="shm-because-p2p-disabled",
            sentence="ranks talk through the host's memory because NCCL_P2P_DISABLE is set",
            evidence=((disabled.line, f"NCCL_P2P_DISABLE={disabled.value}"), *shown),
            next_action="measure with --p2p on and off; keep it off only if that is faster or the "
            "write test fails (python -m collectives.host)",
        )
        return
    if log.refusals:
        return  # `p2p-refused` says it
    yield _because_of_the_way(log, shm, level)


def _because_of_the_way(log: NcclLog, shm: Sequence[Transport], level: Setting | None) -> Suspicion:
    """Return the finding that the way is too long, or that the log does not tell."""
    shown: _Shown = tuple((known.line, _way(known)) for known in shm[:3])
    far = [known for known in log.paths if known.kind in FAR_PATHS]
    # A failed search says SYS whatever the way is.
    searches = [known for known in log.searches if not known.simple_order]
    far_searches = [known for known in searches if known.intra_path in FAR_PATHS]
    if far or far_searches:
        limit = f"NCCL_P2P_LEVEL={level.value}" if level else "the default level PXB"
        return Suspicion(
            name="shm-because-p2p-level",
            sentence=f"ranks talk through the host's memory: their way is farther than {limit} "
            "allows",
            evidence=(
                *shown,
                *((known.line, f"{known.kind} at {known.gb_s:g} GB/s") for known in far),
                *((known.line, _pattern(known)) for known in far_searches),
                *(((level.line, limit),) if level else ()),
            ),
            next_action="check peer access with python -m collectives.host, then measure "
            "NCCL_P2P_LEVEL=SYS against it: on some machines the host's memory is faster",
            confidence="likely",
        )
    return Suspicion(
        name="shm-transport",
        sentence="ranks talk through the host's memory; the log does not say why",
        evidence=shown,
        next_action="log the GRAPH subsystem, too, and check peer access with "
        "python -m collectives.host",
        confidence="hint",
    )


def _way(known: Transport) -> str:
    return f"{known.source} -> {known.target} via {known.way}"


def _about_peer_access(log: NcclLog) -> Iterator[Suspicion]:
    if log.refusals:
        pairs = sorted({(known.first, known.second) for known in log.refusals})
        by = " and ".join(sorted({known.by for known in log.refusals}))
        yield Suspicion(
            name="p2p-refused",
            sentence=f"{by} refuses peer access between {len(pairs)} pairs of GPUs",
            evidence=tuple((r.line, f"{r.first} and {r.second}: {r.by}") for r in log.refusals),
            next_action="GeForce cards have no peer access; else look at IOMMU, ACS and the driver "
            "with python -m collectives.host",
        )
    failed = [known for known in log.remarks if known.kind == "peer-test-failed"]
    peers = [known for known in log.transports if known.kind == "p2p"]
    capable = [known for known in log.peer_access if known.capable or known.allowed]
    if failed and (peers or capable):
        yield Suspicion(
            name="p2p-capable-but-failed-write-verify",
            sentence="the driver says that the GPUs reach each other and NCCL relies on it, and a "
            "write test of the engine failed: values may be lost in silence",
            evidence=(
                *((known.line, "the engine's test of peer access failed") for known in failed),
                *((known.line, _way(known)) for known in peers[:3]),
                *((known.line, "NCCL: all GPUs reach each other") for known in capable),
            ),
            next_action="run python -m collectives.host; until its write test passes, set "
            "NCCL_P2P_DISABLE=1",
            confidence="likely",
        )


def _about_acs(log: NcclLog) -> Iterator[Suspicion]:
    redirect = [known for known in log.remarks if known.kind == "acs-redirect"]
    hints = [known for known in log.remarks if known.kind == "acs-hint"]
    if redirect or hints:
        yield Suspicion(
            name="acs-redirect",
            sentence="PCIe access control (ACS) sends what GPUs write to each other up to the "
            "processor and back: slower, and with an IOMMU it may hang",
            evidence=(
                *((known.line, "ReqRedir+") for known in redirect),
                *((known.line, "NCCL names ACS as a cause") for known in hints),
            ),
            next_action="turn it off on the bridges (setpci ECAP_ACS+6.w=0000, as root) or in the "
            "firmware, and see python -m collectives.host",
            confidence="sure" if redirect else "likely",
        )


def _about_choices(log: NcclLog) -> Iterator[Suspicion]:
    if log.choices:
        first = log.choices[0]
        yield Suspicion(
            name="choices-at-enqueue-only",
            sentence="what NCCL chose is printed by rank 0 when a call is enqueued or captured, "
            "never when a graph is replayed: these counts are not how often it ran",
            evidence=((first.line, f"{first.size_bytes} B -> {first.name}, {first.count} x"),),
            next_action="take the choice by size from them, and times from a run without logging",
            confidence="hint",
        )
    elif log.calls:
        yield Suspicion(
            name="choice-not-logged",
            sentence="calls are logged and what NCCL chose for them is not: " + _why_silent(log),
            evidence=tuple((c.line, f"{c.function} of {c.elements}") for c in log.calls[:3]),
            next_action="log TUNING of rank 0 (NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING,COLL), with "
            "NCCL 2.20 or later",
        )
    unsafe = [
        known
        for known in log.searches
        if known.channels and known.intra_path not in NVLINK_PATHS
        if known.pattern == RING and not known.simple_order
    ]
    ll128 = [known for known in log.choices if known.protocol == "ll128"]
    if ll128 and unsafe:
        yield Suspicion(
            name="ll128-on-pcie",
            sentence="LL128 is in use where GPUs are joined by PCIe: it needs stores of 128 bytes "
            "to arrive in order, and wrong values come without an error",
            evidence=(
                *((known.line, f"{known.size_bytes} B -> {known.name}") for known in ll128),
                *((known.line, _pattern(known)) for known in unsafe),
            ),
            next_action="take LL128 out of NCCL_PROTO, or prove it with the stress of "
            "python -m collectives.sweep --allow-ll128",
        )


def _why_silent(log: NcclLog) -> str:
    library = log.loaded
    if library is not None and library.number < (2, 20):
        return f"NCCL {library.version} does not print it"
    ranks = {member.rank for known in log.communicators for member in known.members}
    if ranks and 0 not in ranks:
        return "this is not rank 0, and no other rank prints it"
    return "the TUNING subsystem is not logged, or this is not rank 0"


def _about_the_start(log: NcclLog) -> Iterator[Suspicion]:
    versions = {known.number: known.version for known in log.libraries}
    if len(versions) > 1:
        yield Suspicion(
            name="mixed-nccl-versions",
            sentence=f"processes load different versions of NCCL: {', '.join(versions.values())}",
            evidence=tuple((known.line, known.version) for known in log.libraries),
            next_action="make every worker load one library (LD_PRELOAD, VLLM_NCCL_SO_PATH)",
        )
    for known in log.communicators:
        waiting = [member for member in known.members if not member.ready]
        if waiting and _is_whole(known):
            yield Suspicion(
                name="communicator-not-ready",
                sentence=f"{len(waiting)} of {known.ranks} ranks began their start and never ended "
                "it: a rank hangs, died, or the log ends here",
                evidence=tuple((m.line, f"rank {m.rank} on GPU {m.device}") for m in waiting),
                next_action="look for a process that died; with peer access see "
                "python -m collectives.host",
                confidence="likely",
            )


def _is_whole(known: Communicator) -> bool:
    """Say whether the log shows how such starts end, or all ranks of this one."""
    return len(known.members) == known.ranks or any(member.ready for member in known.members)


def _about_warnings(log: NcclLog) -> Iterator[Suspicion]:
    if log.warned:
        total = sum(known.count for known in log.warned)
        yield Suspicion(
            name="nccl-warnings",
            sentence=f"NCCL warns {total} times, of {len(log.warned)} things",
            evidence=tuple((w.line, f"{w.place} {w.text}".strip()) for w in log.warned),
        )
    if log.dropped or log.torn:
        yield Suspicion(
            name="log-not-whole",
            sentence=f"rows that were cut and do not count: {len(log.torn)}; facts beyond what is "
            f"kept: {log.dropped}",
            evidence=tuple((line, "a row without its end") for line in log.torn[:3]),
            next_action="give each process a file of its own (NCCL_DEBUG_FILE=nccl.%h.%p.log)",
        )
