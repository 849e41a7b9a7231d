"""What the records do not tell, and the command that would: once, in one place of the report.

The sections say what they lack of their own; a part of which there is nothing at all is one line.
"""

from collections.abc import Iterable, Sequence

from reports._collected import Collected, is_collective
from reports._markdown import code


def missing(
    found: Collected,
    *,
    of_the_pass: Sequence[str],
    of_attention: Sequence[str],
    of_experts: Sequence[str],
) -> list[str]:
    """Return a line for each thing that is missing; those given are what the sections lack."""
    lines = [*of_the_pass, *of_attention, *of_experts, *_collectives(found), *_logs(found)]
    return list(dict.fromkeys(lines))


def _collectives(found: Collected) -> Iterable[str]:
    if any(one.source == "measured" for one in found.collectives):
        return
    reasons = dict.fromkeys(one.status for one in found.not_run if is_collective(one))
    why = f" ({', '.join(reasons)}: see above)" if reasons else ""
    yield f"**Collectives**: none was measured here{why}: {code('python -m collectives.sweep')}."


def _logs(found: Collected) -> Iterable[str]:
    every = (*found.kernels, *found.collectives, *found.traces)
    if not any(one.source == "imported" for one in every):
        yield (
            "**A server**: no log, trace or table of one was read, so nothing is known of cycles "
            f"and acceptance: {code('python -m ingest FILE...')}."
        )
