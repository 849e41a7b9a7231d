"""The axes of a plan, parsed from the command line: each a list of values, None for "default".

A default leaves the axis to NCCL. Lists are separated by commas; a graph file, an order of GPUs and
a set of launch options hold commas themselves, so each is an option of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from collectives._sweep.combination import (
    ALGORITHM_TOKENS,
    LAUNCH_VARIABLES,
    PROTOCOL_TOKENS,
    Binding,
)
from verifyscope import units
from verifyscope.errors import UsageError, choose

DEFAULT = "default"
P2P_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
MOST_CHANNELS = 64
_SWITCHES = ("0", "1")
# What each launch option may be; None is any whole number.
_LAUNCH_VALUES: dict[str, tuple[str, ...] | None] = {
    "mode": ("parallel", "group"),
    "graph-mixing": _SWITCHES,
    "graph-register": _SWITCHES,
    "graph-stream-ordering": _SWITCHES,
    "order-implicit": _SWITCHES,
    "cta-policy": ("0", "1", "2"),
    "cga-cluster": None,
    "high-priority": _SWITCHES,
    "connections": None,
}
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Values by axis. `algorithms` and `protocols` are None where nothing was asked for."""

    algorithms: tuple[str | None, ...] | None = None
    protocols: tuple[str | None, ...] | None = None
    channels: tuple[int | None, ...] = (None,)
    buffers: tuple[int | None, ...] = (None,)
    p2p_levels: tuple[str | None, ...] = (None,)
    p2p: tuple[bool | None, ...] = (None,)
    graph_files: tuple[str | None, ...] = (None,)
    gpu_orders: tuple[tuple[int, ...], ...] = ((),)
    bindings: tuple[Binding | None, ...] = (None,)
    launches: tuple[tuple[tuple[str, str], ...], ...] = ((),)


def parse(
    *,
    algos: str | None = None,
    protos: str | None = None,
    channels: str | None = None,
    buffer_bytes: str | None = None,
    p2p_level: str | None = None,
    p2p: str | None = None,
    graph_files: Sequence[str] = (),
    gpu_orders: Sequence[str] = (),
    bind: str | None = None,
    launches: Sequence[str] = (),
) -> Axes:
    """Return the axes of these options; `UsageError` says what is allowed."""
    return Axes(
        algorithms=None if algos is None else _list(algos, _algorithm),
        protocols=None if protos is None else _list(protos, _protocol),
        channels=_list(channels, _channels),
        buffers=_list(buffer_bytes, units.parse_bytes),
        p2p_levels=_list(p2p_level, _p2p_level),
        p2p=_list(p2p, lambda word: choose("--p2p", word.lower(), ["on", "off"]) == "on"),
        graph_files=_several(graph_files, _graph_file, None),
        gpu_orders=_several(gpu_orders, _gpu_order, ()),
        bindings=_list(bind, _binding),
        launches=_several(launches, _launch, ()),
    )


def _list(text: str | None, parse_one: Callable[[str], _Value]) -> tuple[_Value | None, ...]:
    if text is None:
        return (None,)
    words = [word.strip() for word in text.split(",")]
    found = [None if word.lower() == DEFAULT else parse_one(word) for word in words]
    return tuple(dict.fromkeys(found))


def _several(
    texts: Sequence[str], parse_one: Callable[[str], _Value], default: _Value
) -> tuple[_Value, ...]:
    found = [default if text.lower() == DEFAULT else parse_one(text) for text in texts]
    return tuple(dict.fromkeys(found)) or (default,)


def _algorithm(word: str) -> str:
    return choose("algorithm", _name(word), [*ALGORITHM_TOKENS, DEFAULT])


def _protocol(word: str) -> str:
    return choose("protocol", _name(word), [*PROTOCOL_TOKENS, DEFAULT])


def _name(word: str) -> str:
    if word.startswith("^") and word.lower() != "^ll128":
        raise UsageError(
            f"{word!r} would switch LL128 on past its safety gate: what a list with ^ leaves over "
            f"counts as asked for; name what is to be used, or give ^LL128"
        )
    return word.lower().replace("_", "")


def _channels(word: str) -> int:
    count = units.parse_count(word)
    if not 1 <= count <= MOST_CHANNELS:
        raise UsageError(f"--channels {word} is out of range; give 1 to {MOST_CHANNELS}")
    return count


def _p2p_level(word: str) -> str:
    if word.isdigit():
        raise UsageError(
            f"--p2p-level {word} means different things to different guides; give a name: "
            f"{', '.join(P2P_LEVELS)}"
        )
    return choose("P2P level", word.upper(), list(P2P_LEVELS))


def _graph_file(text: str) -> str:
    path = Path(text)
    try:
        head = path.read_bytes()[:4096]
    except OSError as error:
        raise UsageError(
            f"cannot read --graph-file {text}: {error.strerror}; name an XML of NCCL's graphs"
        ) from error
    if b"<graphs" not in head:
        raise UsageError(
            f"--graph-file {text} has no <graphs>; give what NCCL_GRAPH_DUMP_FILE writes"
        )
    return str(path.resolve())


def _gpu_order(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.strip().isdigit() for word in words):
        raise UsageError(f"--gpu-order {text} is no list of device numbers, such as 0,2,1,3")
    found = tuple(int(word) for word in words)
    if len(set(found)) != len(found):
        raise UsageError(f"--gpu-order {text} names a device twice; each rank needs its own")
    return found


def _binding(word: str) -> Binding:
    return "numa" if choose("--bind", word.lower(), ["numa", "none"]) == "numa" else "none"


def _launch(text: str) -> tuple[tuple[str, str], ...]:
    """Parse "graph-mixing=0,graph-register=0"."""
    found: dict[str, str] = {}
    for entry in text.split(","):
        name, equals, value = entry.strip().partition("=")
        choose("launch option", name, list(LAUNCH_VARIABLES))
        allowed = _LAUNCH_VALUES[name]
        right = value.lower() in allowed if allowed is not None else value.isdigit()
        if not equals or not right:
            what = " or ".join(allowed) if allowed is not None else "a whole number"
            raise UsageError(f"--launch-option {entry.strip()!r}: {name} takes {what}")
        found[name] = value.upper() if name == "mode" else value
    return tuple(found.items())
