"""The lines of NCCL 2.18 to 2.32 that say one thing each, and what they say.

An entry of `FORMATS` is a word that the line holds, its pattern, and the fact it makes. What takes
more than a line to understand is in `nccl_communicators` and `nccl_tables`. Values of settings are
as they stand there: whoever keeps them decides what may be told.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ingest import nccl_facts as facts
from ingest import nccl_names as names

_Make = Callable[[re.Match[str], int | None, int], facts.Fact]
_FLOAT = r"(-?\d{1,9}(?:\.\d{1,9})?)"


@dataclass(frozen=True, slots=True)
class _Format:
    word: str
    pattern: re.Pattern[str]
    make: _Make


def read(text: str, *, process: int | None, line: int) -> Iterator[facts.Fact]:
    """Yield what the text of a message says by itself: one fact, or the distances of one GPU."""
    if text.startswith("GPU/"):
        yield from distances(text, line)
        return
    for known in FORMATS:
        if known.word in text:
            found = known.pattern.search(text)
            if found:
                yield known.make(found, process, line)
                return


def distances(text: str, line: int) -> Iterator[facts.Path]:
    """Yield the way to each other GPU in a row: `GPU/CE000 :GPU/0-cf000 (4/24.0/PHB)`."""
    for bandwidth, kind in _DISTANCE.findall(text):
        if kind != "LOC":
            yield facts.Path(kind=kind, gb_s=float(bandwidth), line=line)


_DISTANCE = re.compile(r"GPU/\S+ \(\d+/(\d{1,9}(?:\.\d{1,9})?)/([A-Z0-9]{3})\)")


def _library(found: re.Match[str], process: int | None, line: int) -> facts.Library:
    return facts.Library(version=found[1], process=process, line=line)


def _setting(found: re.Match[str], process: int | None, line: int) -> facts.Setting:
    # Whole numbers are printed with a full stop behind them, words without.
    value = found[2][:-1] if re.fullmatch(r"-?\d+\.", found[2]) else found[2]
    return facts.Setting(
        name=found[1], value=value, origin="environment", process=process, line=line
    )


def _injected(found: re.Match[str], process: int | None, line: int) -> facts.Setting:
    value = found[2].strip("\"'")
    return facts.Setting(name=found[1], value=value, origin="plugin", process=process, line=line)


def _search(found: re.Match[str], process: int | None, line: int) -> facts.Search:
    pattern, cross_nic, channels, intra, inter, near, far, same = found.groups()
    return facts.Search(
        pattern=int(pattern),
        cross_nic=int(cross_nic),
        channels=int(channels),
        intra_gb_s=float(intra),
        inter_gb_s=float(inter),
        intra_path=near,
        inter_path=far,
        same_channels=same != "0",
        communicator=None,
        line=line,
    )


def _fallback(found: re.Match[str], process: int | None, line: int) -> facts.Fallback:
    return facts.Fallback(pattern=int(found[1]), line=line)


def _choice(found: re.Match[str], process: int | None, line: int) -> facts.Choice:
    function, size, algorithm, protocol, time, low, high = found.groups()
    return facts.Choice(
        function=names.function(function) if function else None,
        size_bytes=int(size),
        algorithm=names.algorithm(algorithm),
        protocol=names.protocol(protocol),
        process=process,
        channels=(int(low), int(high)) if low else None,
        time_us=float(time) if time else None,
        line=line,
    )


def _symmetric(found: re.Match[str], process: int | None, line: int) -> facts.Choice:
    return facts.Choice(
        function=names.function(found[1]),
        size_bytes=int(found[2]),
        algorithm="symmetric",
        protocol=None,
        process=process,
        channels=(0, int(found[4]) - 1),
        kernel=found[3],
        line=line,
    )


def _call(found: re.Match[str], process: int | None, line: int) -> facts.Call:
    return facts.Call(
        function=names.function(found[1]),
        elements=int(found[2]),
        datatype=int(found[3]),
        process=process,
        line=line,
    )


def _transport(found: re.Match[str], process: int | None, line: int) -> facts.Transport:
    kinds: dict[str, facts.TransportKind] = {"P2P": "p2p", "SHM": "shm", "NET": "net"}
    return facts.Transport(
        kind=kinds[found[3]],
        way=found[3] + found[4],
        source=int(found[1]),
        target=int(found[2]),
        line=line,
    )


def _channels(found: re.Match[str], process: int | None, line: int) -> facts.Channels:
    collective, nvls, p2p, per_peer = (int(number) for number in found.groups())
    return facts.Channels(
        collective=collective, nvls=nvls, p2p=p2p, p2p_per_peer=per_peer, line=line
    )


def _ring(found: re.Match[str], process: int | None, line: int) -> facts.Ring:
    channel, before, rank, after = (int(number) for number in found.groups())
    return facts.Ring(channel=channel, before=before, rank=rank, after=after, line=line)


def _peer_access(found: re.Match[str], process: int | None, line: int) -> facts.PeerAccess:
    capable = None if found[2] is None else found[2] == "1"
    return facts.PeerAccess(allowed=found[1] == "1", capable=capable, line=line)


def _refused_by_nccl(found: re.Match[str], process: int | None, line: int) -> facts.Refusal:
    return facts.Refusal(first=int(found[1]), second=int(found[2]), by="NCCL", line=line)


def _refused_by_driver(found: re.Match[str], process: int | None, line: int) -> facts.Refusal:
    return facts.Refusal(first=int(found[1]), second=int(found[2]), by="driver", line=line)


def _plugin(found: re.Match[str], process: int | None, line: int) -> facts.Plugin:
    kinds: dict[str, facts.PluginKind] = {
        "TUNER": "tuner",
        "NET": "net",
        "ENV": "env",
        "PROFILER": "profiler",
    }
    return facts.Plugin(kind=kinds[found[1]], name=found[2], line=line)


def _remark(kind: facts.RemarkKind) -> _Make:
    def make(found: re.Match[str], process: int | None, line: int) -> facts.Remark:
        return facts.Remark(kind=kind, line=line)

    return make


def _format(word: str, pattern: str, make: _Make) -> _Format:
    return _Format(word, re.compile(pattern), make)


FORMATS = (
    # 2.20 to 2.22 without a function and in numbers, 2.23 in numbers, from 2.24 on in words.
    _format(
        " Bytes -> Algo ",
        r"(?:\b([A-Za-z]\w{2,30}): )?(?<!\d)(\d{1,19}) Bytes -> Algo (\w+) proto (\w+)"
        r"(?: time (\d{1,12}(?:\.\d{1,9})?))?(?: channel\{Lo\.\.Hi\}=\{(\d{1,9})\.\.(\d{1,9})\})?",
        _choice,
    ),
    _format(
        " Bytes -> Kernel ",
        r"(\w+) \[Symmetric\]: (\d{1,19}) Bytes -> Kernel (\w+) nchannels (\d{1,4}) ",
        _symmetric,
    ),
    _format(
        ": opCount ",
        r"(\w+): opCount \w+ .*?\bcount (\d{1,19}) datatype (\d{1,3}) ",
        _call,
    ),
    _format(
        " via ",
        r": (\d{1,9})\[\w+\] -> (\d{1,9})\[\w+\] (?:\[(?:send|receive)\] )?via (P2P|SHM|NET)(\S*)",
        _transport,
    ),
    _format(" set by environment to ", r"(\w+) set by environment to (.*\S)", _setting),
    _format("TUNER/Plugin: ", r"(NCCL_TUNER_PLUGIN) set to (\S+)", _setting),
    _format("Adding ", r"Adding (\w+)=(\S*) to environment", _injected),
    _format(
        "NET/OFI Setting ", r"Setting (\w+)(?: environment variable)? to (\"?[^\s\"]+)", _injected
    ),
    _format(
        "Pattern ",
        r"Pattern (\d{1,9}), crossNic (\d{1,9}), nChannels (\d{1,9}), bw "
        + _FLOAT
        + "/"
        + _FLOAT
        + r", type ([A-Z0-9]{3})/([A-Z0-9]{3}), sameChannels (\d{1,9})",
        _search,
    ),
    _format(
        "Could not find a path",
        r"Could not find a path for pattern (\d{1,9}), falling back to simple order",
        _fallback,
    ),
    _format("Ring ", r"Ring (\d{1,9}) : (\d{1,9}) -> (\d{1,9}) -> (\d{1,9})", _ring),
    _format(
        " coll channels",
        r"(\d{1,9}) coll channels, (?:\d+ collnet channels, )?(\d{1,9}) nvls channels, "
        r"(\d{1,9}) p2p channels, (\d{1,9}) p2p channels per peer",
        _channels,
    ),
    _format(
        "Check P2P Type",
        r"Check P2P Type (?:intraNodeP2pSupport|isAllDirectP2p) (\d) directMode \d"
        r"(?: isAllCudaP2p (\d))?",
        _peer_access,
    ),
    _format(
        "P2P is disabled",
        r"P2P is disabled between (?:NVLINK )?connected GPUs (\d{1,9}) and (\d{1,9})",
        _refused_by_nccl,
    ),
    _format(
        "Could not enable P2P",
        r"Could not enable P2P between dev (\d{1,9})\S* and dev (\d{1,9})",
        _refused_by_driver,
    ),
    _format(
        "/Plugin: ",
        r"(TUNER|ENV|NET|PROFILER)/Plugin: (?:Using|Loaded)(?: (?:tuner|net) plugin)? "
        r"(?!internal)(\S+(?: \(v\d+\))?)",
        _plugin,
    ),
    _format(
        "NCCL version ",
        r"(?<!with )NCCL version (\d{1,4}\.\d{1,4}(?:\.\d{1,4})?(?:\+[\w.]*\w)?)",
        _library,
    ),
    _format(
        " nccl==",
        r"\b(?:vLLM|sglang) is using nccl==(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)",
        _library,
    ),
    _format("ReqRedir+", r"ACSCtl:.*\bReqRedir\+", _remark("acs-redirect")),
    _format("ACS is enabled", r"HINT: .*ACS is enabled", _remark("acs-hint")),
    _format(
        "P2P test failed",
        r"lacks GPU P2P capability or P2P test failed",
        _remark("peer-test-failed"),
    ),
)
