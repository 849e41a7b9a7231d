"""What lies between the GPUs: NUMA nodes, access control (ACS) and the IOMMU.

NVLink goes around all of it: what follows is said only where some pair of GPUs crosses PCIe.
"""

from collections import defaultdict
from collections.abc import Iterator

from collectives._host.facts import HERE, Gpu, Host, Pair
from ingest import kernel_log, lspci
from ingest.conclusions import Conclusion, Seen, listed

_NEAR = ("PIX", "PXB")


def conclusions(host: Host) -> Iterator[Conclusion]:
    """Yield what makes the way between GPUs longer or unsafe."""
    if host.kernel is not None:
        for one in kernel_log.conclusions(host.kernel.log, host.kernel.file):
            if one.name != "kernel-settings":  # the table says it
                yield one
    if host.count > 1 and not _all_linked(host):
        redirects = list(_access_control(host))
        yield from redirects
        yield from _iommu(host, any(one.name == "acs-redirect" for one in redirects))
        yield from _numa(host)


def _all_linked(host: Host) -> bool:
    return bool(host.pairs) and all(pair.kind == "NV" for pair in host.pairs)


def _access_control(host: Host) -> Iterator[Conclusion]:
    """Yield what lspci says; where it may not say it, what the IOMMU's groups show."""
    found = (
        [] if host.lspci is None else list(lspci.conclusions(host.lspci.devices, host.lspci.file))
    )
    known = host.lspci is not None and any(
        bridge.acs is not None for bridge in host.lspci.devices.between_gpus
    )
    if not known:
        yield from _isolated(host)
    yield from found
    if host.lspci is None and not host.saved:
        yield Conclusion(
            name="acs-not-readable",
            sentence=f"whether ACS is on is not known: {host.why_no_lspci}",
            seen=(Seen(HERE, "lspci", host.why_no_lspci or ""),),
            next_action="run this as root where lspci is, or give what lspci -vvv prints as a file",
            confidence="hint",
        )


def _isolated(host: Host) -> Iterator[Conclusion]:
    """Find GPUs behind one switch that the kernel keeps apart: only ACS lets it do that."""
    by_index = {gpu.index: gpu for gpu in host.gpus}
    apart: list[tuple[Pair, Gpu, Gpu]] = []
    for pair in host.pairs:
        one, other = by_index.get(pair.first), by_index.get(pair.second)
        if one is None or other is None or pair.kind not in _NEAR:
            continue
        if one.group is not None and other.group is not None and one.group != other.group:
            apart.append((pair, one, other))
    if apart and "pcie_acs_override" not in host.parameters:
        yield Conclusion(
            name="acs-redirect",
            sentence=f"{len(apart)} pairs of GPUs behind one switch are in IOMMU groups of their "
            "own: when the machine started ACS kept them apart, so that what they write to each "
            "other goes up to the processor and back",
            seen=tuple(
                Seen(
                    pair.seen.file,
                    pair.seen.line,
                    f"GPU {one.index} in group {one.group}, GPU {other.index} in {other.group}",
                )
                for pair, one, other in apart
            ),
            next_action="run lspci -vvv as root: ReqRedir+ on a bridge above them proves it, and "
            "setpci may have turned it off since",
            confidence="hint",
        )


def _iommu(host: Host, redirects: bool) -> Iterator[Conclusion]:
    if host.iommu is None or host.iommu.mode != "translated":
        return
    checks = () if host.tried is None else host.tried.checks
    passed = bool(checks) and all(check.right for check in checks)
    rest = (
        "; the writes between the GPUs arrived all the same"
        if passed
        else "; with ACS that redirects, first collectives have hung"
    )
    yield Conclusion(
        name="iommu-translated",
        sentence="the IOMMU translates what GPUs send to each other" + rest,
        seen=host.iommu.seen,
        next_action="boot with iommu=pt (AMD: or amd_iommu=off), unless virtual machines need it; "
        "until then NCCL_P2P_DISABLE=1 where a collective hangs",
        confidence="likely" if redirects and not passed else "hint",
    )


def _numa(host: Host) -> Iterator[Conclusion]:
    nodes: dict[int, list[Gpu]] = defaultdict(list)
    for gpu in host.gpus:
        if gpu.node is not None:
            nodes[gpu.node].append(gpu)
    if len(nodes) > 1:
        named = "; ".join(
            f"node {node}: GPU {listed([str(gpu.index) for gpu in gpus])}"
            for node, gpus in sorted(nodes.items())
        )
        yield Conclusion(
            name="numa-split",
            sentence=f"the GPUs are on {len(nodes)} NUMA nodes ({named}): every ring over all of "
            "them crosses between nodes, where NCCL believes in little bandwidth",
            seen=tuple(
                gpu.node_seen or Seen(gpu.seen.file, gpu.seen.line, f"GPU {gpu.index}: node {node}")
                for node, gpus in sorted(nodes.items())
                for gpu in gpus
            ),
            next_action="bind each rank to its GPU's node (collectives.sweep --bind numa), and see "
            "which graph NCCL's search finds",
        )
    unknown = [gpu for gpu in host.gpus if gpu.node is None]
    if unknown and len(host.nodes) > 1:
        yield Conclusion(
            name="numa-not-known",
            sentence=f"the firmware does not say on which of {len(host.nodes)} NUMA nodes GPU "
            f"{listed([str(gpu.index) for gpu in unknown])} is",
            seen=tuple(Seen(gpu.seen.file, gpu.seen.line, "no node") for gpu in unknown),
            next_action="look at the board's manual; give NCCL a topology (NCCL_TOPO_FILE)",
            confidence="hint",
        )
