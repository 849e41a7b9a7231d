"""NCCL's words for functions, algorithms and protocols, and what NCCL_ALGO and NCCL_PROTO allow.

One name for one thing, however it is spelled: `CollNetDirect` of the settings and of the tables,
`COLLNET_DIRECT` of the calls and 2 of NCCL 2.20 to 2.23 are all "collnetdirect". A function has the
project's own name: `AllReduce` is "all_reduce".

    allowed("NCCL_PROTO", "LL,Simple", "all_reduce")      frozenset({"ll", "simple"})
    allowed("NCCL_PROTO", "^Simple", "all_reduce")        frozenset({"ll", "ll128"}), a trap: what
        a list names or leaves over counts as asked for, so LL128 runs without its safety gate
    allowed("NCCL_ALGO", "allreduce:tree", "broadcast")   None: NCCL decides

The grammar is that of NCCL 2.24 and later: `[function:][^]token,token;function:...`, any case.
Source: parseList in src/graph/tuning.cc of NCCL 2.18 to 2.30.
"""

import re

from ingest import number

FUNCTIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")

_WORDS = {"NCCL_ALGO": ALGORITHMS, "NCCL_PROTO": PROTOCOLS}
_FUNCTION_BY_KEY = {name.replace("_", ""): name for name in FUNCTIONS} | {
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class UnknownToken(ValueError):
    """A word that NCCL does not know: up to 2.23 it is passed over, from 2.24 on it is an error."""


def function(text: str) -> str:
    """Return the project's name of NCCL's function `text`: "AllReduce" -> "all_reduce"."""
    known = _FUNCTION_BY_KEY.get(text.lower().replace("_", ""))
    return known or _CAPITAL.sub("_", text).lower()


def algorithm(text: str) -> str:
    """Return the name of an algorithm that is written as a word or as a number."""
    return _name(text, ALGORITHMS)


def protocol(text: str) -> str:
    """Return the name of a protocol that is written as a word or as a number."""
    return _name(text, PROTOCOLS)


def _name(text: str, known: tuple[str, ...]) -> str:
    at = number.count(text)
    if at is not None and at < len(known):
        return known[at]
    return text.strip().lower().replace("_", "")


def allowed(variable: str, value: str, function_name: str) -> frozenset[str] | None:
    """Return what `variable`=`value` leaves for a function; None where it says nothing of it.

    `UnknownToken` names a word that is no function, algorithm or protocol.
    """
    known, found = _WORDS[variable], None
    for at, entry in enumerate(value.split(";")):
        prefix, colon, words = entry.rpartition(":")
        if colon and _FUNCTION_BY_KEY.get(prefix.strip().lower()) not in FUNCTIONS:
            raise UnknownToken(f"{prefix.strip()!r} is no function")
        if at and not colon:
            raise UnknownToken(f"{entry.strip()!r} has no function before it")
        tokens = _tokens(words, known)
        if not colon or _FUNCTION_BY_KEY[prefix.strip().lower()] == function_name:
            inverted = words.strip().startswith("^")
            found = frozenset(known) - tokens if inverted else tokens
    return found


def _tokens(words: str, known: tuple[str, ...]) -> frozenset[str]:
    tokens = frozenset(word.strip().lower() for word in words.strip().lstrip("^").split(","))
    unknown = sorted(tokens - set(known) - {""})
    if unknown:
        raise UnknownToken(f"{unknown[0]!r} is none of {', '.join(known)}")
    return tokens - {""}
