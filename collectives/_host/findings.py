"""What is wrong with a machine as a collective host, the worst first, each with its evidence.

What one text says alone is concluded where that text is read (`ingest`); here is what follows from
several facts together. A finding is "sure" where it was seen or tried, "likely" where only its
consequence is inferred, a "hint" where it may be harmless.
"""

from collections.abc import Iterator, Sequence

from collectives._host import link_findings, nccl_findings, path_findings, peer_findings
from collectives._host.facts import Host
from ingest.conclusions import Conclusion
from verifyscope.records import Confidence

# What makes values wrong or stops a server comes first, then what makes it slow. What is not named
# here comes last.
ORDER = (
    "corrupt-values",
    "p2p-capable-but-failed-write-verify",
    "p2p-write-hangs",
    "collective-hangs",
    "p2p-write-fails",
    "collective-fails",
    "iommu-faults",
    "gpu-xid",
    "collective-spin",
    "graph-simple-order",
    "ll128-on-pcie",
    "ll128-past-gate",
    "acs-redirect",
    "iommu-translated",
    "no-p2p",
    "p2p-partial",
    "p2p-refused",
    "net-on-one-node",
    "shm-because-p2p-disabled",
    "shm-because-p2p-level",
    "shm-transport",
    "plugin-injected-env",
    "config-injected-env",
    "config-line-without-effect",
    "narrow-link",
    "slot-below-card",
    "gpus-of-different-links",
    "pcie-errors",
    "concurrent-writes-slow",
    "p2p-slower-than-host",
    "near-slower-than-far",
    "numa-split",
)
# Wrong values and hangs that were met here: the command fails.
FAILED = (
    "corrupt-values",
    "p2p-capable-but-failed-write-verify",
    "p2p-write-hangs",
    "p2p-write-fails",
    "collective-hangs",
    "collective-fails",
)
_SUREST: tuple[Confidence, ...] = ("sure", "likely", "hint")


def conclusions(host: Host) -> list[Conclusion]:
    """Return all that is wrong, the worst first."""
    found = [
        *peer_findings.conclusions(host),
        *path_findings.conclusions(host),
        *nccl_findings.conclusions(host),
        *link_findings.conclusions(host),
    ]
    return sorted(found, key=_place)


def failed(host: Host, found: Sequence[Conclusion]) -> Iterator[str]:
    """Yield the names of what was tried on the machine at hand and went wrong."""
    if not host.saved:
        yield from dict.fromkeys(one.name for one in found if one.name in FAILED)


def _place(one: Conclusion) -> tuple[int, int]:
    known = ORDER.index(one.name) if one.name in ORDER else len(ORDER)
    return known, _SUREST.index(one.confidence)
