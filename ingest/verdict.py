"""All conclusions on a set of files, and the one sentence that stands first."""

from collections.abc import Sequence

from ingest import (
    model_findings,
    pair_findings,
    rank_findings,
    run_findings,
    speculation_findings,
    step_findings,
    trace_findings,
)
from ingest.conclusions import ORDER, Conclusion
from ingest.facts import Facts
from ingest.model_findings import Machine
from verifyscope.records import Finding, Measurement


def conclusions(
    all_facts: Sequence[Facts], *, plain_s: float | None = None, machine: Machine | None = None
) -> list[Conclusion]:
    """Return what the files say, alone and together.

    plain_s: a plain step that the user knows; machine: what floors of models are counted for.
    """
    return [
        *rank_findings.conclusions(all_facts),
        *trace_findings.conclusions(all_facts),
        *step_findings.conclusions(all_facts),
        *speculation_findings.conclusions(all_facts, plain_s),
        *pair_findings.conclusions(all_facts),
        *model_findings.conclusions(all_facts, machine),
        *(one for facts in all_facts for one in run_findings.conclusions(facts)),
    ]


def verdict(
    concluded: Sequence[Conclusion],
    findings: Sequence[Finding],
    times: Sequence[Measurement],
    *,
    counted: str = "nothing was timed",
) -> str:
    """Return the first line to print.

    findings: those that formats made themselves; times: measurements to describe where nothing is
    concluded; counted: what to say where those do not either.
    """
    standing: list[Conclusion | Finding] = [one for one in concluded if one.verdict]
    standing += [one for one in findings if one.name in ORDER]
    if standing:
        return min(standing, key=_place).sentence
    steps = next((one for one in times if one.op == "step" and one.median_s), None)
    if steps is not None and steps.median_s is not None:
        rate = int(steps.dims.get("requests", 1)) / steps.median_s
        return (
            f"plain decoding takes {steps.median_s * 1e3:.2f} ms a step at {steps.case}: "
            f"{rate:.1f} tokens/s"
        )
    if findings:
        return findings[0].sentence
    return f"{counted}; nothing in them looks wrong"


def _place(conclusion: Conclusion | Finding) -> tuple[int, float]:
    known = ORDER.index(conclusion.name) if conclusion.name in ORDER else len(ORDER)
    return known, -(conclusion.worth_s or 0.0)
