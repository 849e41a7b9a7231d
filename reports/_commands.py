"""The commands that would tell what a report does not know, with what is known filled in."""

from reports._markdown import code
from reports._subject import Subject
from verifyscope.records import Value

SPECULATION = "python -m reports.speculation --from RUN"
DIAGNOSE = "python -m verifyscope.diagnose --model MODEL --tp N"
INGEST = "python -m ingest SERVER.log"


def replay(subject: Subject, where: str = "--device cuda") -> str:
    """Return the command that runs the layers of the pass, or predicts it."""
    words = {name: _known(subject, name) for name in ("model", "tp", "rows", "context")}
    named = {"model": "MODEL", "tp": "N", "rows": "ROWS"}
    given = [
        f"--{name} {value if value is not None else named[name]}"
        for name, value in words.items()
        if value is not None or name in named
    ]
    requests = _known(subject, "requests")
    if isinstance(requests, int) and requests > 1:
        given.append(f"--requests {requests}")
    return code(f"python -m graphs.replay {' '.join(given)} {where}")


def sweep(subject: Subject) -> str:
    """Return the command that measures all-reduces of the pass on this host."""
    model, tp, rows = (_known(subject, name) for name in ("model", "tp", "rows"))
    requests = _known(subject, "requests")
    if isinstance(rows, int) and isinstance(requests, int):
        rows *= requests  # a message holds the rows of all requests
    if model is None or tp is None:
        return code("python -m collectives.sweep")
    tokens = f" --tokens {rows}" if rows is not None else ""
    return code(f"python -m collectives.sweep --gpus {tp} --model {model}{tokens}")


def _known(subject: Subject, name: str) -> Value | None:
    """Return a dim of the pass; of a stub that was shrunk the sizes are no model's."""
    if not subject.measured or subject.is_whole:
        return subject.dim(name)
    return subject.dim(name) if name == "rows" else None
