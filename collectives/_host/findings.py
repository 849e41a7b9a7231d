"""What is wrong with a machine as a collective host, the worst first, each with its evidence.

What one text says alone is concluded where that text is read (`ingest`); here is what follows from
several facts together. A finding is "sure" where it was seen or tried, "likely" where only its
consequence is inferred, a "hint" where it may be harmless.
"""

from collections.abc import Iterator, Sequence

from collectives._host import link_findings, nccl_findings, path_findings, peer_findings
from collectives._host.facts import Host
from ingest.conclusions import Conclusion
from verifyscope.first_findings import OF_HOSTS
from verifyscope.records import Confidence

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
    known = OF_HOSTS.index(one.name) if one.name in OF_HOSTS else len(OF_HOSTS)
    return known, _SUREST.index(one.confidence)
