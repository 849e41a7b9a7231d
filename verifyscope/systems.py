"""Which files are of one system: what they name must not contradict, and must not be a guess.

    glm-5.1, rtx-pro-6000, vllm, tp 8       and    glm-5.1               one system
    qwq-32b                                 and    deepseek-r1           two
    nothing named                           and    nothing named         one, where no others are

Two systems are apart in an aspect that both name and name differently. Files that are nowhere
apart are one group: whoever gives a log with speculation and one without means them to be compared.
Where some are apart, the others are sorted to them: a file belongs to the one group that it agrees
with in an aspect and is apart from in none; one that could be of several, or names nothing, stays
alone.

A model is written as in `verifyscope.models`: family, version, size (qwen3-30b-a3b). Two are apart
in what both say: "kimi" and "kimi-k2.5" may be one, "glm-4.5" and "glm-4.5-air" are not.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from verifyscope.records import Measurement, Value

Aspect = Literal["model", "gpu", "engine", "version", "tp"]
ASPECTS: tuple[Aspect, ...] = ("model", "gpu", "engine", "version", "tp")
_KEYS: dict[Aspect, str] = {
    "model": "model",
    "gpu": "gpu",
    "engine": "engine",
    "version": "engine_version",
    "tp": "tp",
}
_SAME = "same_system"
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?b")
_ACTIVE = re.compile(r"[ae]\d+b")
_FAMILY = re.compile(r"[a-z]+(?:-oss)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What a file names of its system; None is not said. version: of the engine, as 0.20."""

    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    version: str | None = None
    tp: int | None = None

    def value(self, aspect: Aspect) -> str | None:
        """Return one aspect as text."""
        found = {
            "model": self.model,
            "gpu": self.gpu,
            "engine": self.engine,
            "version": self.version,
            "tp": None if self.tp is None else str(self.tp),
        }
        return found[aspect]

    def words(self) -> str:
        """Return "glm-5.1, rtx-pro-6000, vllm 0.20, tp 8", or nothing."""
        engine = " ".join(word for word in (self.engine, self.version) if word)
        tp = "" if self.tp is None else f"tp {self.tp}"
        return ", ".join(word for word in (self.model, self.gpu, engine, tp) if word)

    def filled(self, other: "System") -> "System":
        """Return this system with what only `other` says."""
        return System(
            model=self.model or other.model,
            gpu=self.gpu or other.gpu,
            engine=self.engine or other.engine,
            version=self.version or other.version,
            tp=self.tp or other.tp,
        )


def apart(one: System, other: System, but: Collection[Aspect] = ()) -> Aspect | None:
    """Return the first aspect that both name and name differently; None where there is none.

    but: aspects that may differ.
    """
    return next((each for each in ASPECTS if each not in but and _differ(each, one, other)), None)


def groups(systems: Sequence[System], but: Collection[Aspect] = ()) -> list[list[int]]:
    """Return the places of the systems that count as one, each place in one group."""
    places: dict[System, list[int]] = {}
    for place, one in enumerate(systems):
        places.setdefault(one, []).append(place)
    # What is named alike goes the same way: many files are of few systems.
    distinct = list(places)
    aspects = [aspect for aspect in ASPECTS if aspect not in but]
    together, alone = _groups(list(range(len(distinct))), distinct, aspects)
    found = [[place for at in group for place in places[distinct[at]]] for group in together]
    found += [[place] for at in alone for place in places[distinct[at]]]
    return sorted((sorted(group) for group in found), key=lambda group: group[0])


def common(systems: Sequence[System]) -> System:
    """Return what systems of one group name together, the most precise of each aspect."""
    whole = System()
    for one in sorted(systems, key=lambda each: -len(each.model or "")):
        whole = whole.filled(one)
    return whole


def as_method(system: System, *, same: bool) -> dict[str, Value]:
    """Return what a record's `method` holds of its system; `of_record` reads it back.

    same: the user says that all files of the command are of one system.
    """
    known = {_KEYS[aspect]: system.value(aspect) for aspect in ASPECTS}
    told: dict[str, Value] = {name: value for name, value in known.items() if value is not None}
    return {**told, _SAME: True} if same else told


def of_record(one: Measurement) -> System:
    """Return the system that a record names: in `method`, else in the pass that it is of."""
    words = {aspect: one.method.get(key) for aspect, key in _KEYS.items()}
    text = {aspect: word for aspect, word in words.items() if isinstance(word, str)}
    tp = text.get("tp", str(one.ranks or ""))
    model = one.dims.get("model")
    return System(
        model=text.get("model") or (model if isinstance(model, str) else None),
        gpu=text.get("gpu"),
        engine=text.get("engine"),
        version=text.get("version"),
        tp=int(tp) if tp.isdecimal() and int(tp) else None,
    )


def is_said_to_be_one(one: Measurement) -> bool:
    """Say whether the user said that all files of the record's command are of one system."""
    return one.method.get(_SAME) is True


def _groups(
    places: list[int], systems: Sequence[System], aspects: Sequence[Aspect]
) -> tuple[list[list[int]], list[int]]:
    """Return the groups, and what belongs to none of them or to several."""
    for at, aspect in enumerate(aspects):
        named = [place for place in places if systems[place].value(aspect) is not None]
        if not any(_differ(aspect, systems[a], systems[b]) for a in named for b in named):
            continue
        classes, alone = _classes(aspect, named, systems)
        for place in places:
            if place in named:
                continue
            fits = [one for one in classes if _belongs(place, one, systems, aspects)]
            (fits[0] if len(fits) == 1 else alone).append(place)
        split = [_groups(one, systems, aspects[at + 1 :]) for one in classes]
        return (
            [group for together, _ in split for group in together],
            alone + [place for _, rest in split for place in rest],
        )
    return ([places] if places else []), []


def _classes(
    aspect: Aspect, named: Sequence[int], systems: Sequence[System]
) -> tuple[list[list[int]], list[int]]:
    """Return those that name one thing, and those whose word may mean several of these."""
    classes: list[list[int]] = []
    alone: list[int] = []
    for place in sorted(named, key=lambda each: -len(systems[each].value(aspect) or "")):
        fits = [
            one
            for one in classes
            if not any(_differ(aspect, systems[place], systems[other]) for other in one)
        ]
        if not fits:
            classes.append([place])
        else:
            (fits[0] if len(fits) == 1 else alone).append(place)
    return classes, alone


def _belongs(
    place: int, group: Sequence[int], systems: Sequence[System], aspects: Sequence[Aspect]
) -> bool:
    """Say whether a file agrees with one of a group in something, and is apart from none."""
    mine = systems[place]
    if any(_differ(aspect, mine, systems[other]) for other in group for aspect in aspects):
        return False
    return any(
        mine.value(aspect) is not None and systems[other].value(aspect) is not None
        for other in group
        for aspect in aspects
    )


def _differ(aspect: Aspect, one: System, other: System) -> bool:
    a, b = one.value(aspect), other.value(aspect)
    if a is None or b is None:
        return False
    return _models_differ(a, b) if aspect == "model" else a != b


def _models_differ(one: str, other: str) -> bool:
    a, b = _parts(one), _parts(other)
    if a[0] != b[0]:
        return True
    if "" in (one.removeprefix(a[0]), other.removeprefix(b[0])):
        return False  # a family alone
    return a[3] != b[3] or any(x != y for x, y in zip(a[1:3], b[1:3], strict=True) if x and y)


def _parts(model: str) -> tuple[str, str, str, frozenset[str]]:
    """Return family, version, size and what else a name says: experts in use say no more."""
    family = _FAMILY.match(model)
    if family is None:
        return model, "", "", frozenset()
    words = [word for word in model[family.end() :].split("-") if word]
    size = next((word for word in words if _SIZE.fullmatch(word)), "")
    rest = [word for word in words if word != size and not _ACTIVE.fullmatch(word)]
    version = next((word for word in rest if any(letter.isdigit() for letter in word)), "")
    return family[0], version, size, frozenset(word for word in rest if word != version)
