"""The events of a Chrome trace (JSON), decoded chunk by chunk: memory is that of one chunk.

A chunk ends between two events. That `[` + chunk + `]` decodes as JSON proves the cut: within a
string or an object it would not. A chunk that does not decode is taken event by event; what is no
event is dropped and counted. Before and after the list stands the header (devices, rank); only the
named fields of it are read, so an environment in it never gets here.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO

import msgspec

from ingest.opening import Unreadable
from verifyscope.predictions import PREDICTED_TRACE

CHUNK_BYTES = 2**20
LARGEST_EVENT_BYTES = 2**24
LARGEST_HEADER_BYTES = 2**26
_LIST = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_PLACE = re.compile(r"\(byte (\d+)\)")
_ENDED = re.compile(rb"\s*\]")
_END = re.compile(rb"\}(?=\s*\])")
_MOST_JOINED = 16
_NAN = re.compile(rb"([:\[,\s])-?(?:NaN|Infinity|nan|inf)(?=[\s,\]}])")
_BAD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Number = float | str | None


class Args(msgspec.Struct, gc=False):
    """What an event says beside its times; only what is used is decoded."""

    device: Number = None
    stream: Number = None
    correlation: Number = None
    bytes: Number = None


class Event(msgspec.Struct, gc=False):
    """One event; microseconds."""

    cat: str | None = None
    name: str = ""
    ts: Number = None
    dur: Number = None
    tid: Number = None
    args: Args | list[object] | str | float | None = None


class Device(msgspec.Struct):
    """A GPU as the trace describes it."""

    id: int | float | str | None = None
    name: str | None = None


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


class Header(msgspec.Struct):
    """What stands beside the events."""

    deviceProperties: list[Device] = []
    distributedInfo: _Distributed | None = None
    predicted: bool = msgspec.field(default=False, name=PREDICTED_TRACE)


_events = msgspec.json.Decoder(list[Event])
_event = msgspec.json.Decoder(Event)
_header = msgspec.json.Decoder(Header)


@dataclass(slots=True)
class Reader:
    """Reads one trace. After `chunks`: its header, how many events were read and how many dropped.

    cut: the list of events does not end; headless: what stands beside it is no whole JSON;
    predicted: the header says that nothing of it was measured.
    """

    stream: BinaryIO
    file: str
    devices: list[Device] = field(default_factory=list)
    rank: int | None = None
    world: int | None = None
    events: int = 0
    dropped: int = 0
    cut: bool = False
    headless: bool = False
    predicted: bool = False
    _left: bytearray = field(default_factory=bytearray)
    _ended: bool = False
    _bare: bool = False

    def chunks(self) -> Iterator[list[Event]]:
        """Yield the events in the order of the file."""
        self._find_list()
        at_end = False
        while not (self._ended or at_end):
            part = self.stream.read(CHUNK_BYTES)
            at_end = not part
            self._left += part
            yield from self._decoded(at_end=at_end)
        if not self._ended:
            self.cut = True
        elif not self._bare:
            rest = bytes(self._left) + self.stream.read(LARGEST_HEADER_BYTES)
            self._read_header(b"{" + rest.lstrip().removeprefix(b","))

    def _find_list(self) -> None:
        """Read up to the first event."""
        head = self.stream.read(CHUNK_BYTES).removeprefix(b"\xef\xbb\xbf")
        if head.lstrip()[:1] == b"[":
            self._left += head.lstrip()[1:]
            self._bare = True
            return
        found, part = _LIST.search(head), head
        while found is None and part and len(head) < LARGEST_HEADER_BYTES:
            part = self.stream.read(CHUNK_BYTES)
            before, head = len(head), head + part
            found = _LIST.search(head, max(0, before - 64))
        if found is None:
            raise Unreadable(
                f"{self.file} is a trace without a list of events, or it is cut; give it whole"
            )
        self._left += head[found.end() :]
        self._read_header(head[: found.start()].rstrip().removesuffix(b",") + b"}")

    def _read_header(self, data: bytes) -> None:
        try:
            header = _header.decode(data)
        except _BAD:
            self.headless = True
            return
        self.devices += header.deviceProperties
        self.predicted |= header.predicted
        if header.distributedInfo is not None:
            self.rank = _whole(header.distributedInfo.rank)
            self.world = _whole(header.distributedInfo.world_size)

    def _decoded(self, *, at_end: bool) -> Iterator[list[Event]]:
        """Yield the whole events of what was read; the rest is left."""
        if at_end:
            cuts: Iterable[int] = (len(self._left),)
        else:
            cuts = islice(self._cuts(), _MOST_JOINED)
        found, cut = None, None
        for cut in cuts:
            found, more = self._whole_chunk(cut)
            if not more:
                break
        if cut is None:
            if len(self._left) > LARGEST_EVENT_BYTES:
                raise Unreadable(f"{self.file} holds an event of over 16 MiB; this is no trace")
            return
        if found is None:
            found = list(self._one_by_one(bytes(self._left[:cut]), at_end=at_end))
        elif not self._ended:
            del self._left[: cut + 1]
        self.events += len(found)
        yield found

    def _cuts(self) -> Iterator[int]:
        """Yield the commas between what may be two events, the last one first."""
        at = len(self._left)
        while (at := self._left.rfind(b"{", 0, at)) > 0:
            before = self._left[max(0, at - 256) : at].rstrip()
            if before.endswith(b",") and before[:-1].rstrip().endswith(b"}"):
                yield self._left.rfind(b",", 0, at)

    def _whole_chunk(self, cut: int) -> tuple[list[Event] | None, bool]:
        """Return the events up to `cut`, or to the end of the list.

        None where they are damaged, or, which the second says, the cut is within an event.
        """
        piece = b"".join((b"[", memoryview(self._left)[:cut], b"]"))
        try:
            return _events.decode(piece), False
        except _BAD as error:
            said = str(error)
        ended, place = _TRAILING.search(said), _PLACE.search(said)
        if ended is None:
            return None, "truncated" in said or (place is not None and int(place[1]) > cut)
        end = int(ended[1])  # in piece: past the bracket that ends the list
        try:
            found = _events.decode(memoryview(piece)[:end])
        except _BAD:
            return None, False
        del self._left[: end - 1]
        self._ended = True
        return found, False

    def _one_by_one(self, piece: bytes, *, at_end: bool) -> Iterator[Event]:
        """Yield the events of a damaged piece; what follows it, or the list, is left."""
        start, joined = 0, 0
        for end in (*(found.start() for found in _BETWEEN.finditer(piece)), len(piece)):
            text = piece[start:end].lstrip(b", \t\r\n")
            found = self._event(text)
            ended = None if found else self._end_of_list(text)
            if ended is not None:
                if ended:
                    yield _event.decode(_mended(text[:ended]))
                behind = self._left[end - len(text) + ended :]
                self._left, self._ended = behind.lstrip().removeprefix(b"]"), True
                return
            if found:
                yield found
            elif _open(text) and joined < _MOST_JOINED and not (at_end and end == len(piece)):
                joined += 1
                continue
            elif text.strip():
                self.dropped += 1
            start, joined = end, 0
        del self._left[: start + (start == len(piece))]

    def _event(self, text: bytes) -> Event | None:
        """Return the event; None if it is none."""
        try:
            return _event.decode(text)
        except _BAD:
            mended = _mended(text)
        try:
            return _event.decode(mended) if mended != text else None
        except _BAD:
            return None

    def _end_of_list(self, text: bytes) -> int | None:
        """Return where an event ends behind which the list does; None if it does not."""
        if _ENDED.match(text):
            return 0
        for found in islice(_END.finditer(text), _MOST_JOINED):
            if self._event(text[: found.start() + 1]):
                return found.start() + 1
        return None


def _mended(text: bytes) -> bytes:
    """Return `text` with NaN as null, and as UTF-8."""
    return _NAN.sub(rb"\1null", text).decode("utf-8", "replace").encode()


def _open(text: bytes) -> bool:
    """Say whether more may complete an event: its brackets are not closed yet."""
    return len(text) < LARGEST_EVENT_BYTES >> 4 and text.count(b"{") > text.count(b"}")


def _whole(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < 2**31 else None
