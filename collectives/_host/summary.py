"""A host in a sentence: its GPUs, how they are joined, what is in the way, what to look at."""

from collections import Counter
from collections.abc import Iterator, Sequence

from collectives._host.facts import Host
from ingest import lspci
from ingest.conclusions import Conclusion, Seen, listed
from ingest.topology import NEAREST

_HARMLESS = ("idle-link-is-not-a-fault", "acs-not-readable")


def summary(host: Host, found: Sequence[Conclusion]) -> Conclusion:
    """Return the finding that stands for the host as a whole."""
    return Conclusion(
        name="collective-host",
        sentence="; ".join(filter(None, (gpus(host), paths(host), *_states(host), _look(found)))),
        seen=tuple(_seen(host)),
    )


def gpus(host: Host) -> str:
    """Return "8 x NVIDIA H200, PCIe 5 x16" and the like."""
    if not host.count:
        return "no GPU"
    names = Counter(gpu.idle.name or "GPU" for gpu in host.gpus) or Counter({"GPU": host.count})
    links = dict.fromkeys(
        f"PCIe {gpu.idle.generation_most:.0f} x{gpu.idle.width_most:.0f}"
        for gpu in host.gpus
        if gpu.idle.generation_most and gpu.idle.width_most
    )
    counted = [f"{count} x {name}" for name, count in names.items()]
    return ", ".join((*counted, *links))


def paths(host: Host) -> str:
    """Return "12 NODE and 16 SYS pairs" and the like; empty where no text has them."""
    kinds = Counter(pair.kind for pair in host.pairs if pair.kind)
    words = [
        f"{kinds[name]} {'NVLink' if name == 'NV' else name}" for name in NEAREST if kinds[name]
    ]
    return f"{listed(words)} pair{'s' * (sum(kinds.values()) > 1)}" if words else ""


def access_control(host: Host) -> str:
    """Return how ACS stands, or why it is not known."""
    if host.lspci is not None:
        return lspci.described(host.lspci.devices)
    return f"not known: {host.why_no_lspci}" if host.why_no_lspci else "not known: no lspci -vvv"


def _states(host: Host) -> Iterator[str]:
    if host.iommu is not None:
        yield f"IOMMU {host.iommu.mode}"
    if host.lspci is not None:
        yield f"ACS {access_control(host)}"


def _look(found: Sequence[Conclusion]) -> str:
    names = dict.fromkeys(one.name for one in found if one.name not in _HARMLESS)
    return f"look at {', '.join(names)}" if names else "nothing looks wrong"


def _seen(host: Host) -> Iterator[Seen]:
    yield from (gpu.seen for gpu in host.gpus[:1])
    yield from (pair.seen for pair in host.pairs[:1])
    if host.iommu is not None:
        yield from host.iommu.seen[:1]
