"""All conclusions on a set of files, and the one sentence that stands first."""

from collections.abc import Sequence

from ingest import (
    model_findings,
    one_system,
    pair_findings,
    rank_findings,
    run_findings,
    speculation_findings,
    step_findings,
    trace_findings,
)
from ingest.conclusions import Conclusion
from ingest.facts import Facts
from ingest.model_findings import Machine
from verifyscope.first_findings import OF_LOGS
from verifyscope.records import Finding, Measurement


def conclusions(
    all_facts: Sequence[Facts],
    *,
    plain_s: float | None = None,
    machine: Machine | None = None,
    same_system: bool = False,
) -> list[Conclusion]:
    """Return what the files say, alone and together; together only those of one system.

    plain_s: a plain step that the user knows; machine: what floors of models are counted for;
    same_system: the user says that all files are of one.
    """
    found = one_system.sort(all_facts, same_system=same_system)
    given_s = plain_s if found.is_one else None
    alone = [[facts] for facts in found.rest]
    return [
        *one_system.not_compared(found, plain_given=plain_s is not None),
        *(one for group in found.traced for one in rank_findings.conclusions(group)),
        *(one for group in found.traced for one in trace_findings.conclusions(group)),
        *(one for group in (*found.served, *alone) for one in step_findings.conclusions(group)),
        *(
            one
            for group in found.served
            for one in speculation_findings.conclusions(group, given_s)
        ),
        *(one for group in found.by_setting for one in pair_findings.conclusions(group)),
        *model_findings.conclusions(all_facts, machine),
        *(one for facts in all_facts for one in run_findings.conclusions(facts)),
    ]


def verdict(
    concluded: Sequence[Conclusion],
    findings: Sequence[Finding],
    times: Sequence[Measurement],
    *,
    counted: str = "nothing was timed",
    several: bool = False,
) -> str:
    """Return the first line to print.

    findings: those that formats made themselves; times: measurements to describe where nothing is
    concluded; counted: what to say where those do not either; several: name the file, of several.
    """
    standing: list[Conclusion | Finding] = [one for one in concluded if one.verdict]
    standing += [one for one in findings if one.name in OF_LOGS]
    if standing:
        first = min(standing, key=_place)
        apart = any(one.name == one_system.NAME for one in concluded)
        return f"{_of_file(first, named=apart) if several else ''}{first.sentence}"
    steps = next((one for one in times if one.op == "step" and one.median_s), None)
    if steps is not None and steps.median_s is not None:
        rate = int(steps.dims.get("requests", 1)) / steps.median_s
        return (
            f"plain decoding takes {steps.median_s * 1e3:.2f} ms a step at {steps.case}: "
            f"{rate:.1f} tokens/s"
        )
    if findings:
        return f"{_of_file(findings[0], named=True) if several else ''}{findings[0].sentence}"
    if concluded:
        return f"{counted}; {min(concluded, key=_place).sentence}"
    return f"{counted}; nothing in them looks wrong"


def _of_file(one: Conclusion | Finding, *, named: bool) -> str:
    """Return "a.log: " where a conclusion is of one file, or, `named`, begins with one."""
    seen = one.seen if isinstance(one, Conclusion) else one.evidence
    files = list(dict.fromkeys(each.file for each in seen))
    known = len(files) == 1 or (named and files)
    return f"{files[0]}: " if known and files[0] not in one.sentence else ""


def _place(conclusion: Conclusion | Finding) -> tuple[int, float]:
    known = OF_LOGS.index(conclusion.name) if conclusion.name in OF_LOGS else len(OF_LOGS)
    return known, -(conclusion.worth_s or 0.0)
