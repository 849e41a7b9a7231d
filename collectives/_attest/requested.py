"""What was asked for: NCCL's settings in the environment, and any that the command names itself.

    NCCL_PROTO=LL python -m collectives.attest -- python server.py       the environment
    python -m collectives.attest -- NCCL_PROTO=LL python server.py       the command
    python -m collectives.attest -- bash -c 'NCCL_PROTO=LL exec ./serve' a script in it
    python -m collectives.attest --expect NCCL_PROTO=LL -- ./serve       said by hand

Only settings of `verifyscope/settings.py` are looked at; a value loses folders and addresses. What
only switches NCCL's log on is no request.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from verifyscope import settings
from verifyscope.errors import UsageError

SUBSYSTEMS = ("INIT", "ENV", "GRAPH", "TUNING")
PATTERN = "nccl.%h.%p.log"
_LOGGING = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
# torch's own, nccl-tests' own: NCCL never reads them, whatever their names say.
_NOT_OF_NCCL = ("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_TESTS_")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def is_of_nccl(name: str) -> bool:
    """Say whether NCCL itself reads the listed setting `name`."""
    return name.startswith("NCCL_") and not name.startswith(_NOT_OF_NCCL)


def requested(
    environment: Mapping[str, str], command: Sequence[str], expected: Sequence[str]
) -> dict[str, str]:
    """Return what was asked for by name, fit for a record; what is said last counts.

    environment: of this process; command: the words of the server; expected: NAME=VALUE words.
    """
    given = {name: value for name, value in environment.items() if is_of_nccl(name)}
    given |= dict(_named_in(command))
    for word in expected:
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            raise UsageError(f"--expect {_shown(word)} is no setting; give one like NCCL_PROTO=LL")
        if not settings.in_force({found[1]: found[2]}):
            raise UsageError(
                f"--expect {found[1]}: not on the list of settings that may be told "
                f"(verifyscope/settings.py); name another one"
            )
        given[found[1]] = found[2]
    wanted = settings.in_force(given)
    return {name: value for name, value in wanted.items() if value and name not in _LOGGING}


def split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the settings that stand before a command, as a shell has them, and the command."""
    before: dict[str, str] = {}
    for at, word in enumerate(words):
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            return before, list(words[at:])
        before[found[1]] = found[2]
    return before, []


def logging(environment: Mapping[str, str], folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return what switches NCCL's log on, into `folder`, and a sentence on each own wish.

    More than is needed (TRACE, further subsystems) is left as the user has it.
    """
    level, subsystems = "INFO", ",".join(SUBSYSTEMS)
    said: list[str] = []
    own = environment.get("NCCL_DEBUG", "").upper()
    if own == "TRACE":
        level = own
    elif own not in ("", level):
        said.append(f"NCCL_DEBUG={own} becomes INFO: less says nothing of settings")
    words = environment.get("NCCL_DEBUG_SUBSYS", "").upper()
    if words.startswith("^"):
        said.append(f"NCCL_DEBUG_SUBSYS={words} becomes {subsystems}: a ^ list may leave them out")
    elif words:
        listed = [word.strip() for word in words.split(",") if word.strip()]
        more = [] if "ALL" in listed else [one for one in SUBSYSTEMS if one not in listed]
        subsystems = ",".join([*listed, *more])
        if more:
            said.append(f"NCCL_DEBUG_SUBSYS={words} becomes {subsystems}")
    if environment.get("NCCL_DEBUG_FILE"):
        said.append("NCCL_DEBUG_FILE is replaced: each process gets a file; --out keeps them")
    file = str(folder.resolve()).replace("%", "%%") + f"/{PATTERN}"
    return {
        "NCCL_DEBUG": level,
        "NCCL_DEBUG_SUBSYS": subsystems,
        "NCCL_DEBUG_FILE": file,
    }, said


def logging_in(command: Sequence[str]) -> list[str]:
    """Return the settings of NCCL's log that a command sets by itself, against ours."""
    return [name for name, _ in _assigned(command) if name in _LOGGING]


def _named_in(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from ((name, value) for name, value in _assigned(command) if name in settings.SETTINGS)


def _assigned(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield NAME=VALUE words: of `env` and of containers, and those in a script of a shell."""
    for word in command:
        found = _ASSIGNMENT.fullmatch(word)
        if "=" in word and any(letter.isspace() for letter in word):
            yield from _assigned_in_script(word)
        elif found is not None:
            yield found[1], found[2]


def _assigned_in_script(text: str) -> Iterator[tuple[str, str]]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        for word in lexer:
            found = _ASSIGNMENT.fullmatch(word)
            if found is not None:
                yield found[1], found[2]
    except ValueError:  # a quote that stays open: what stands before it is read
        return


def _shown(word: str) -> str:
    """Return the name in a word that is no setting; its value may be anything."""
    return repr(word.partition("=")[0])
