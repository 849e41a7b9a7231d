"""`nvidia-smi topo -m`: how each pair of GPUs is joined, counted by class.

NV# is NVLink; PIX, PXB, PHB, NODE and SYS are PCIe paths, the farther the later. A class is not a
speed: without peer access pairs under one switch may be slower than pairs across sockets.
"""

import re
from collections import Counter
from collections.abc import Iterator

from ingest.conclusions import Conclusion, Seen, listed
from ingest.facts import Read
from ingest.log import Log

SIGN = re.compile(
    rb"^(?:\x1b\[\d*m)?\s*(?:\x1b\[\d*m)?GPU0(?:\x1b\[\d*m)?\s+(?:\x1b\[\d*m)?(?:GPU1\b|X\s)",
    re.MULTILINE,
)
_ROW = re.compile(r"\s*GPU(\d{1,3})((?:\s+(?:X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|NVL))+)\b.*")
_NEAREST = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` holds such a matrix."""
    return SIGN.search(head) is not None


def read(log: Log) -> Iterator[Read]:
    """Yield what the matrix says."""
    rows: dict[int, tuple[int, list[str]]] = {}
    for line, text in log.lines:
        found = _ROW.fullmatch(text)
        if found and len(rows) < 256:
            rows[int(found[1])] = (line, found[2].split())
    pairs: Counter[str] = Counter()
    for gpu, (_, classes) in rows.items():
        for other, name in enumerate(classes[: len(rows)]):
            if other > gpu and name != "X":
                pairs["NV" if name.startswith("NV") else name] += 1
    if not pairs:
        return
    first = next(iter(rows.values()))[0]
    yield _conclusion(pairs, len(rows), Seen(log.file, first, _words(pairs))).finding(
        environment=log.environment, command=log.command
    )


def _conclusion(pairs: Counter[str], gpus: int, seen: Seen) -> Conclusion:
    linked = pairs["NV"] > 0
    rest = "" if linked else ": no NVLink, every all-reduce crosses PCIe"
    far = not linked and pairs["SYS"] > 0
    return Conclusion(
        name="topology",
        sentence=f"{gpus} GPUs, pairs by path: {_words(pairs)}{rest}"
        + (", some of it between sockets" if far else ""),
        seen=(seen,),
        next_action="a path's class is not its speed: sweep the all-reduces with python -m "
        "collectives.sweep, and see what NCCL's graph search found",
        verdict=False,
    )


def _words(pairs: Counter[str]) -> str:
    order = [name for name in _NEAREST if pairs[name]]
    return listed([f"{pairs[name]} {'NVLink' if name == 'NV' else name}" for name in order])
