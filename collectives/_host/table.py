"""A host as rows that begin with what they are: host, setting, nccl, gpu, pair, together, found.

A dash is what no text says and nobody tried.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import median

from collectives._host.facts import Gpu, Host, Pair, Rate
from collectives._host.peer_findings import bytes_per_s
from collectives._host.summary import access_control, gpus, paths
from ingest import gpu_findings
from ingest.conclusions import Conclusion, Seen, listed
from ingest.nccl_log_records import verdict
from verifyscope import cli, units

_NONE = "-"
_GPU_HEADER = (
    *("", "GPU", "name", "address", "NUMA"),
    *("link now", "under load", "at most", "from host", "to host"),
)
_Row = tuple[str, ...]
_FOUND_HEADER = ("", "finding", "sure?", "where", "what it says", "what to do")


def show(host: Host, found: Sequence[Conclusion]) -> None:
    """Print all that is known, the machine first, what is wrong last."""
    sections: tuple[tuple[_Row, list[_Row]], ...] = (
        (("", "what", "how"), list(chain(_machine(host), _settings(host), _nccl(host)))),
        (
            _GPU_HEADER,
            [_gpu(host, gpu) for gpu in host.gpus],
        ),
        (
            ("", "GPUs", "path", "P2P", "writes", "one way", "other way", "both at once"),
            [_pair(host, pair) for pair in _pairs(host)],
        ),
        (("", "GPUs", "writes", "each", "all", "values"), list(_together(host))),
    )
    cli.print_tables(sections)
    if found:
        print()
        if cli.is_terminal(sys.stdout):
            _tell(found)
        else:
            cli.print_rows(list(_found(found)), _FOUND_HEADER)


def _tell(found: Sequence[Conclusion]) -> None:
    """Print findings for a person: no table holds two sentences a row."""
    for one in found:
        cli.print_finding(
            f"found {one.name} ({one.confidence}), {_where(one)}",
            one.sentence,
            f"next: {one.next_action}" if one.next_action else "",
        )


def _machine(host: Host) -> Iterator[_Row]:
    missing = f"none: {host.why_no_gpu}" if host.why_no_gpu else "not in these texts"
    yield "host", "GPUs", gpus(host) if host.count else missing
    if host.pairs:
        yield "host", "paths", paths(host) or "not known"
    if host.processor is not None:
        where = {True: ", a virtual machine", None: ", virtual or not is not known"}
        yield (
            "host",
            "processor",
            host.processor + ("" if host.saved else where.get(host.virtual, "")),
        )
    if host.nodes:
        named = "; ".join(f"{node.index}: {node.processors or 'no'}" for node in host.nodes)
        yield "host", "NUMA nodes", f"{len(host.nodes)} (processors {named})"
    yield "host", "IOMMU", "not known" if host.iommu is None else _iommu(host)
    yield "host", "ACS", access_control(host)
    for name, value in host.parameters.items():
        yield "host", f"kernel {name}", value
    for name, value in host.driver.items():
        yield "host", f"driver {name}", value
    if host.tried is not None and host.tried.why_not:
        yield "host", "links, writes", f"not tried: {host.tried.why_not}"
    visible = () if host.tried is None else host.tried.visible
    if visible and len(visible) < len(host.gpus):
        few = listed([str(gpu) for gpu in visible])
        yield "host", "seen by CUDA", f"GPU {few} of {len(host.gpus)}: nothing else was tried"
    if host.probed is not None:
        yield "host", "first all-reduce", _probed(host)


def _iommu(host: Host) -> str:
    if host.iommu is None:
        return "not known"
    shown = dict.fromkeys(seen.value for seen in host.iommu.seen)
    return f"{host.iommu.mode} ({'; '.join(list(shown)[:3])})"


def _probed(host: Host) -> str:
    probed = host.probed
    if probed is None or probed.why_not:
        return f"not tried: {probed.why_not if probed else ''}"
    if probed.broken is not None:
        return f"{'hangs' if probed.broken.kind == 'hang' else 'fails'}: {probed.broken.reason}"
    wrong = f"{probed.wrong} values wrong" if probed.wrong else "every value right"
    return f"{probed.ranks} ranks, {wrong}"


def _settings(host: Host) -> Iterator[_Row]:
    """Yield the settings of NCCL: this environment's, configuration files', and what logs show."""
    for name, value in host.environment.items():
        if name.startswith("NCCL_"):
            yield "setting", name, f"{value} (environment)"
    for known in host.configuration.settings:
        yield "setting", known.name, f"{known.value} ({known.file}:{known.line})"
    for name, setting in host.nccl.log.effective().items() if host.nccl else ():
        told = host.nccl.place(setting.line)[0] if host.nccl else ""
        yield "setting", name, f"{setting.value} ({setting.origin}, by {told})"


def _nccl(host: Host) -> Iterator[_Row]:
    if host.nccl is None:
        return
    log, names = host.nccl.log, dict.fromkeys(host.nccl.names)
    yield "nccl", ", ".join(names), verdict(log, ()).sentence
    for known in dict.fromkeys(log.searches):
        failed = ", simple order: the search failed" if known.simple_order else ""
        yield (
            "nccl",
            f"pattern {known.pattern}",
            f"{known.channels} x {known.intra_gb_s:g} GB/s over {known.intra_path}{failed}",
        )
    ways: dict[str, list[str]] = {}
    for transport in log.transports:
        ways.setdefault(transport.way, []).append(f"{transport.source}-{transport.target}")
    for way, ends in ways.items():
        few = f"{', '.join(ends[:8])}{', ...' if len(ends) > 8 else ''}"
        yield "nccl", f"via {way}", f"{len(ends)} ways: {few}"
    for plugin in log.plugins:
        yield "nccl", f"{plugin.kind} plugin", plugin.name


def _gpu(host: Host, gpu: Gpu) -> _Row:
    rates: dict[bool, str] = {}
    for copy in host.tried.copies if host.tried else ():
        if copy.gpu == gpu.index:
            rates[copy.to_gpu] = units.rate(copy.size_bytes / median(copy.seconds))
    idle, loaded = gpu.idle, gpu.loaded
    return (
        "gpu",
        str(gpu.index),
        idle.name or _NONE,
        idle.bus or _NONE,
        _NONE if gpu.node is None else str(gpu.node),
        _now(idle),
        _NONE if loaded is None else _link(loaded.generation, loaded.width),
        _link(idle.generation_most, idle.width_most),
        rates.get(True, _NONE),
        rates.get(False, _NONE),
    )


def _now(state: gpu_findings.Gpu) -> str:
    """Return the link as found: at rest it may have trained down."""
    link = _link(state.generation, state.width)
    if link == _NONE or state.busy:
        return link
    return f"{link}, {'load not known' if state.readings.use is None else 'idle'}"


def _link(generation: float | None, width: float | None) -> str:
    if generation is None and width is None:
        return _NONE
    return f"PCIe {'?' if generation is None else f'{generation:.0f}'} " + (
        "x?" if width is None else f"x{width:.0f}"
    )


def _pairs(host: Host) -> list[Pair]:
    """Return the pairs; where nobody tells their paths, those that were tried."""
    if host.pairs or host.tried is None:
        return list(host.pairs)
    return [
        Pair(first=one.writer, second=one.target, path=None, seen=Seen("", None, ""))
        for one in host.tried.access
        if one.writer < one.target
    ]


def _pair(host: Host, pair: Pair) -> _Row:
    one, other = (pair.first, pair.second), (pair.second, pair.first)
    rates = {} if host.tried is None else {(r.kind, r.writes): r for r in host.tried.rates}
    return (
        "pair",
        f"{pair.first}-{pair.second}",
        pair.path or _NONE,
        _access(host, pair),
        _writes(host, pair),
        _rate(rates.get(("alone", (one,)))),
        _rate(rates.get(("alone", (other,)))),
        _rate(rates.get(("both ways", (one, other)))),
    )


def _access(host: Host, pair: Pair) -> str:
    if pair.refused:
        return f"no: {pair.refused}"
    ends = {pair.first, pair.second}
    access = [] if host.tried is None else list(host.tried.access)
    able = [one.able for one in access if {one.writer, one.target} == ends]
    if able:
        return "yes" if all(able) else "no: CUDA says so"
    return "yes, by the driver" if pair.asked else _NONE


def _writes(host: Host, pair: Pair) -> str:
    ends = {pair.first, pair.second}
    checks = [] if host.tried is None else list(host.tried.checks)
    tried = [check for check in checks if {check.writer, check.target} == ends]
    if not tried:
        return _NONE
    lost, wrong = sum(check.lost for check in tried), sum(check.wrong for check in tried)
    if lost or wrong:
        return f"{lost} lost, {wrong} changed"
    ways = {(check.writer, check.way) for check in tried}
    return "all arrived" if len(ways) == 4 else f"arrived, {len(ways)} of 4 ways tried"


def _rate(rate: Rate | None) -> str:
    return _NONE if rate is None else units.rate(bytes_per_s(rate))


def _together(host: Host) -> Iterator[_Row]:
    for rate in host.tried.rates if host.tried else ():
        if rate.kind in ("ring", "all to all"):
            whole = bytes_per_s(rate)
            members = listed([str(gpu) for gpu in sorted({pair[0] for pair in rate.writes})])
            yield (
                "together",
                members,
                f"{len(rate.writes)}, {rate.kind}",
                units.rate(whole / len(rate.writes)),
                units.rate(whole),
                f"{rate.wrong} words wrong" if rate.wrong else "all arrived",
            )


def _found(found: Sequence[Conclusion]) -> Iterator[_Row]:
    for one in found:
        yield (
            "found",
            one.name,
            one.confidence,
            _where(one),
            one.sentence,
            one.next_action or _NONE,
        )


def _where(one: Conclusion) -> str:
    first = next(iter(one.seen), None)
    if first is None:
        return _NONE
    return first.file if first.line is None else f"{first.file}:{first.line}"
