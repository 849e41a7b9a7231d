"""What `nvidia-smi -q` and `-q -x` say of each GPU: link, power, clocks, use. Nothing else is read.

Both forms become the same paths of lower-case words ("gpu link info/pcie generation/current"), and
those the typed `Gpu`. UUIDs, serial numbers, processes and their paths are never looked at.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree

from ingest import gpu_findings
from ingest.facts import Read
from ingest.gpu_findings import MOST_GPUS, Gpu, Readings
from ingest.log import Log
from ingest.opening import Unreadable
from ingest.pci_address import normal

LARGEST_XML_BYTES = 32 * 2**20
_MOST_VALUES = 5000

_LOG_SIGN = re.compile(rb"^=+NVSMI LOG=+", re.MULTILINE)
_XML_SIGN = b"<nvidia_smi_log"
_TITLE = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_LINE = re.compile(r"( *)([A-Za-z][^:]{0,60}?)\s*(?::\s?(.*))?")
_VALUE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s?(?:%|W|MHz|MiB|x|C)?")

_Paths = Mapping[str, str]


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is the text of `nvidia-smi -q`."""
    return _LOG_SIGN.search(head) is not None


def recognises_xml(head: bytes) -> bool:
    """Say whether a file that begins with `head` is the XML of `nvidia-smi -q -x`."""
    return _XML_SIGN in head[:4096]


def read(log: Log) -> Iterator[Read]:
    """Yield what the text says of its GPUs."""
    yield from gpu_findings.findings(list(gpus(log.lines)), log)


def read_xml(log: Log) -> Iterator[Read]:
    """Yield what the XML says of its GPUs."""
    yield from gpu_findings.findings(gpus_of_xml(log), log)


def gpus_of_xml(log: Log) -> list[Gpu]:
    """Return the GPUs of the XML; entities are refused, nothing is fetched.

    `Unreadable` for what is too large, holds entities or is no whole XML.
    """
    data = log.stream.read(LARGEST_XML_BYTES + 1)
    if len(data) > LARGEST_XML_BYTES or b"<!ENTITY" in data or b"\0" in data:
        raise Unreadable(f"{log.file} is no output of nvidia-smi -q -x: it is too large or odd")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        raise Unreadable(f"{log.file} is no whole XML ({error}); give it whole") from None
    found = []
    for at, element in enumerate(root.findall("gpu")[:MOST_GPUS]):
        paths: dict[str, str] = {}
        _walk(element, "", paths)
        found.append(_gpu(at, None, paths, element.get("id", "")))
    return found


def gpus(lines: Iterable[tuple[int, str]]) -> Iterator[Gpu]:
    """Yield each GPU of the text once its block is over."""
    start: int | None = None
    paths: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    found, bus = 0, ""
    for number, text in lines:
        if title := _TITLE.match(text):
            if start is not None:
                yield _gpu(found, start, paths, bus)
                found += 1
            start, paths, stack, bus = number, {}, [], title[1]
            if found >= MOST_GPUS:
                return
            continue
        line = _LINE.fullmatch(text.rstrip()) if start is not None and text.strip() else None
        if line is None:
            continue
        depth, name, value = len(line[1]), line[2].strip().lower(), line[3]
        while stack and stack[-1][0] >= depth:
            stack.pop()
        if value is None:
            stack.append((depth, name))
        elif len(paths) < _MOST_VALUES:
            paths.setdefault("/".join([*(word for _, word in stack), name]), value.strip())
    if start is not None:
        yield _gpu(found, start, paths, bus)


def _walk(element: ElementTree.Element, path: str, paths: dict[str, str], depth: int = 0) -> None:
    for child in element:
        name = f"{path}/{child.tag.replace('_', ' ').lower()}".lstrip("/")
        if len(child) and depth < 12:
            _walk(child, name, paths, depth + 1)
        elif len(paths) < _MOST_VALUES:
            paths.setdefault(name, (child.text or "").strip())


def _gpu(index: int, line: int | None, paths: _Paths, bus: str) -> Gpu:
    return Gpu(
        index=index,
        line=line,
        bus=normal(bus),
        name=_first(paths, "product name"),
        generation=_number(paths, "pcie generation/current", "current link gen"),
        generation_most=_number(paths, "pcie generation/max", "max link gen"),
        width=_number(paths, "link width/current", "current link width"),
        width_most=_number(paths, "link width/max", "max link width"),
        state=_first(paths, "performance state"),
        readings=Readings(
            use=_number(paths, "utilization/gpu", "utilization/gpu util"),
            power_w=_number(
                paths,
                "instantaneous power draw",
                "instant power draw",
                "average power draw",
                "power draw",
            ),
            limit_w=_number(paths, "current power limit", "enforced power limit", "power limit"),
            clock_mhz=_number(paths, "clocks/sm", "clocks/sm clock"),
        ),
        default_limit_w=_number(paths, "default power limit"),
        slowed=tuple(sorted(_slowed(paths))),
    )


def _first(paths: _Paths, *ends: str) -> str | None:
    """Return the first value whose path ends so; parts that are not on the GPU itself are not."""
    for end in ends:
        for path, value in paths.items():
            named = (path == end or path.endswith(f"/{end}")) and "module" not in path
            if named and value not in ("", "N/A", "[N/A]"):
                return value
    return None


def _number(paths: _Paths, *ends: str) -> float | None:
    found = _first(paths, *ends)
    value = _VALUE.fullmatch(found) if found else None
    return float(value[1]) if value else None


def _slowed(paths: _Paths) -> Iterator[str]:
    """Yield the reasons why clocks are held down, those that idleness explains left out."""
    for path, value in paths.items():
        parent, _, name = path.rpartition("/")
        reasons = "event" in parent or "throttle" in parent
        word = re.sub(r"^clocks (?:event|throttle) reason(?:s)? ", "", name)
        if reasons and value == "Active" and "idle" not in word and "counters" not in parent:
            yield word
