"""Which imported files are of one system, by what their records say (`verifyscope.systems`).

Files that one command read are sorted together; those of another command are other files, whatever
they are called. What a person gave on a command line is a file of that command.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from verifyscope import systems
from verifyscope.records import Measurement
from verifyscope.systems import System

File = tuple[object, ...]
COMMAND_LINE = "command line"
_SERVED = ("cycle", "forward", "generation", "draft", "host")
_ENGINES = ("sglang", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Systems:
    """The files of each system, and what these name of it; a file that is not here is alone."""

    groups: dict[File, tuple[File, ...]]
    named: dict[File, str]
    speculating_by: dict[File, int]

    def files_with(self, one: Measurement) -> tuple[File, ...]:
        """Return the files of the system that a record is of, its own among them."""
        return self.groups.get(file(one), (file(one),))

    def first_file(self, one: Measurement) -> File:
        """Return what stands for the system that a record is of."""
        return self.files_with(one)[0]

    def words(self, one: Measurement) -> str:
        """Return "glm-5.1, vllm, tp 8", or "" where its files name nothing."""
        return self.named.get(file(one), "")

    def speculating(self, one: Measurement) -> int:
        """Return how many systems speculate in what the command of a record read."""
        return self.speculating_by.get(file(one)[2:], 0)


def of(records: Iterable[Measurement]) -> Systems:
    """Return the systems of all imported files that serve."""
    commands: dict[File, dict[File, list[Measurement]]] = {}
    for one in records:
        if one.source == "imported" and one.part in _SERVED and place(one) != COMMAND_LINE:
            files = commands.setdefault(file(one)[2:], {})
            files.setdefault(file(one), []).append(one)
    groups: dict[File, tuple[File, ...]] = {}
    named: dict[File, str] = {}
    speculating: dict[File, int] = {}
    for command, files in commands.items():
        known = {name: _system(of_file) for name, of_file in files.items()}
        for members in _sorted(files, known):
            words = systems.common([known[name] for name in members]).words()
            groups.update(dict.fromkeys(members, tuple(members)))
            named.update(dict.fromkeys(members, words))
        speculating[command] = len(
            {
                groups[name][0]
                for name, of_file in files.items()
                if any(one.mode == "verify" for one in of_file)
            }
        )
    return Systems(groups=groups, named=named, speculating_by=speculating)


def which(records: Iterable[Measurement], some: Sequence[Measurement]) -> str:
    """Return of how many systems some of the records are: "of 5 systems"."""
    known = of(records)
    count = len({known.first_file(one) for one in some})
    return f"of {count} systems" if count > 1 else "of one system by their files"


def place(one: Measurement) -> str:
    """Return the file of a record."""
    return one.implementation if one.origin is None else one.origin.file


def file(one: Measurement) -> File:
    """Return what tells the file of a record from others: the command that read it, too."""
    return ("log", place(one), one.command, one.environment)


def _sorted(
    files: dict[File, list[Measurement]], known: dict[File, System]
) -> Sequence[Sequence[File]]:
    names = list(files)
    if any(systems.is_said_to_be_one(one) for of_file in files.values() for one in of_file):
        return [names]
    return [[names[at] for at in group] for group in systems.groups(list(known.values()))]


def _system(of_file: Sequence[Measurement]) -> System:
    """Return what the records of a file name; an engine is known by its lines, too."""
    found = systems.common([systems.of_record(one) for one in of_file])
    engines = {one.implementation for one in of_file if one.implementation in _ENGINES}
    if found.engine is None and len(engines) == 1:
        return replace(found, engine=engines.pop())
    return found
