"""The two errors that a person may meet: what was given, what is allowed, what to do.

`UsageError` ends a command with exit status 2, `Failure` with 1; neither prints a traceback.
"""

from verifyscope.privacy import redacted_words


class UsageError(Exception):
    """The command cannot do what was asked: an unknown name, a bad number, a wrong file."""


class Failure(Exception):
    """The command was right and the work failed: wrong values, a full disk, a dead rank."""


def choose(what: str, given: str, allowed: list[str]) -> str:
    """Return `given` if it is one of `allowed`; else raise `UsageError` that lists them."""
    if given in allowed:
        return given
    raise UsageError(f"unknown {what} {given!r}; known: {', '.join(allowed)}")


def reason_of(error: BaseException) -> str:
    """Return the kind and first line of `error`, fit for a record: no folder, no address."""
    text = redacted_words(next((line for line in str(error).splitlines() if line.strip()), ""))
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind
