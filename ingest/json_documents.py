"""JSON of other tools, decoded into typed objects: bounded in size and depth, NaN read as absent.

Python writes NaN and Infinity, which JSON does not have: such a document is read again by a decoder
that takes them as null. What is no whole JSON is one line that says so.
"""

import json
import re
from collections.abc import Iterator
from typing import BinaryIO, TypeVar

import msgspec

from ingest.opening import Unreadable

LARGEST_BYTES = 32 * 2**20
_DEEPEST = 64
_NOT_JSON = re.compile(rb"[:\[,\s]-?(?:NaN|Infinity)\b")

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def whole(stream: BinaryIO, file: str, type_: type[_Struct]) -> _Struct:
    """Return the one object of a file; `Unreadable` in a line if it is none of `type_`."""
    data = stream.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise Unreadable(
            f"{file} is over {LARGEST_BYTES // 2**20} MiB; give one without raw samples"
        )
    return decoded(data, file, type_)


def lines(stream: BinaryIO, file: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers; `Unreadable` for one that is too long."""
    number = 0
    while data := stream.readline(LARGEST_BYTES + 1):
        number += 1
        if len(data) > LARGEST_BYTES:
            raise Unreadable(
                f"{file}:{number} is over {LARGEST_BYTES // 2**20} MiB; give one without raw "
                f"samples"
            )
        if data.strip():
            yield number, data


def decoded(data: bytes, place: str, type_: type[_Struct]) -> _Struct:
    """Return the object that `data` holds."""
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        raise Unreadable(f"{place}: {error}; give the file as the tool wrote it") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, msgspec.DecodeError) and _NOT_JSON.search(data):
            return _without_nan(data, place, type_)
        raise Unreadable(f"{place} is no whole JSON ({error}); give it whole") from None


def depth(data: bytes) -> int:
    """Return how deep brackets nest, those in strings counted too: an upper bound."""
    deepest = level = 0
    for found in re.finditer(rb"[\[\]{}]", data):
        level += 1 if found[0] in b"[{" else -1
        deepest = max(deepest, level)
    return deepest


def _without_nan(data: bytes, place: str, type_: type[_Struct]) -> _Struct:
    if depth(data) > _DEEPEST:
        raise Unreadable(f"{place} nests deeper than {_DEEPEST}; no known tool writes that")
    try:
        found = json.loads(data, parse_constant=lambda _: None)
        return msgspec.convert(found, type_)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise Unreadable(f"{place} is no whole JSON ({error}); give it whole") from None
