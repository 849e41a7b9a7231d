"""What to say where a Python lacks a package of others: one line, and no traceback.

`python -m ingest` imports typer before anything of it can look; each folder's `__init__` is
imported before that, and calls `watch`. The standard library is all that is imported here.
"""

import sys
from types import TracebackType

FLOORS = ("kernels", "collectives", "graphs", "ingest", "reports", "suites")


def watch() -> None:
    """Say it in one line, should this process end by such an import; only of a command of ours."""
    started = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if "-m" in sys.orig_argv else []
    if started and started[0].partition(".")[0] in ("verifyscope", *FLOORS):
        sys.excepthook = _end


def sentence(module: str) -> str | None:
    """Return what to do where `module` cannot be imported; None if it is one of ours."""
    package = module.partition(".")[0]
    if package in ("verifyscope", *FLOORS):
        return None
    return (
        f"this Python lacks {package}; after `make setup` activate .venv, or in the checkout "
        f"`python -m verifyscope.install here` adds what the project needs, and changes nothing "
        f"that is here"
    )


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        said = sentence(error.name)
        if said is not None:
            command = sys.orig_argv[sys.orig_argv.index("-m") + 1]
            print(f"python -m {command}: {said}", file=sys.stderr)
            return
    sys.__excepthook__(kind, error, trace)
