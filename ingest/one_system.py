"""What is concluded of several files is of one system: here the files are sorted, for all findings.

    plain steps, rows matched, cliffs       every aspect must agree (`verifyscope.systems`)
    before and after one setting            TP and the engine's version may differ, as settings do
    ranks, power beside traces, layers      every aspect must agree

Models, drafters and their configs are held against each other whatever they name: that is their
question. Where files are not compared, one conclusion says which, and how to say that they belong
together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ingest.conclusions import Conclusion, Seen, listed
from ingest.facts import Facts
from ingest.named_system import system_of
from ingest.pair_findings import AS_SETTINGS
from verifyscope import systems
from verifyscope.systems import Aspect, System

NAME = "systems-apart"
_MOST_SHOWN = 12
_MOST_FILES = 4

Groups = list[list[Facts]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """The files of a command, by system: those that serve, the same by setting, and traces.

    rest: what is compared with nothing.
    """

    served: Groups
    by_setting: Groups
    traced: Groups
    rest: list[Facts]

    @property
    def is_one(self) -> bool:
        """Say whether all cycles are of one system."""
        return sum(any(facts.speculates for facts in group) for group in self.served) < 2


def sort(all_facts: Sequence[Facts], *, same_system: bool) -> Sorted:
    """Return the files by system; all are of one where the user says so."""
    served = [facts for facts in all_facts if facts.serves]
    traced = [one for one in all_facts if one.traces or one.gpus or one.model is not None]
    known = [*served, *traced]
    return Sorted(
        served=_together(served, same_system=same_system),
        by_setting=_together(served, but=AS_SETTINGS, same_system=same_system),
        traced=_together(traced, same_system=same_system),
        rest=[one for one in all_facts if all(one is not other for other in known)],
    )


def not_compared(found: Sorted, *, plain_given: bool) -> list[Conclusion]:
    """Return which files were held apart, in one conclusion each for logs and for traces."""
    said = []
    for what, groups in (("logs", found.served), ("traces", found.traced)):
        told = [group for group in groups if any(one.serves or one.traces for one in group)]
        if len(told) < 2:
            continue
        unused = what == "logs" and plain_given and not found.is_one
        more = "; --plain-ms is of one system and was not used" if unused else ""
        said.append(
            Conclusion(
                name=NAME,
                sentence=f"not compared, as these {what} are not of one system: {_shown(told)}"
                f"{more}",
                seen=tuple(
                    Seen(one.file, None, system_of(one).words() or "names no system")
                    for group in told
                    for one in group
                ),
                next_action="give the files of one system by themselves, or --same-system where "
                "all of these are of one",
                verdict=False,
            )
        )
    return said


def words_of(group: Sequence[Facts]) -> str:
    """Return what the files of a group name together: "glm-5.1, vllm"."""
    return systems.common([system_of(facts) for facts in group]).words()


def _together(
    files: Sequence[Facts], but: Sequence[Aspect] = (), *, same_system: bool
) -> list[list[Facts]]:
    if same_system:
        return [list(files)] if files else []
    # A file whose formats give several facts is one place.
    names = list(dict.fromkeys(facts.file for facts in files))
    known = {name: System() for name in names}
    for facts in files:
        known[facts.file] = known[facts.file].filled(system_of(facts))
    places = systems.groups([known[name] for name in names], but)
    return [
        [facts for facts in files if facts.file in {names[place] for place in group}]
        for group in places
    ]


def _shown(groups: Sequence[Sequence[Facts]]) -> str:
    said, silent = [], []
    for group in groups:
        files = list(dict.fromkeys(facts.file for facts in group))
        words = words_of(group)
        if words:
            said.append(f"{_few(files)} ({words})")
        else:
            silent += files
    shown = said[:_MOST_SHOWN]
    if len(said) > len(shown):
        shown.append(f"{len(said) - len(shown)} more")
    if silent:
        shown.append(f"{_few(silent)} (names no system)")
    return "; ".join(shown)


def _few(files: Sequence[str]) -> str:
    more = len(files) - _MOST_FILES
    return listed([*files[:_MOST_FILES], *([f"{more} more"] if more > 0 else [])])
