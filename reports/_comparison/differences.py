"""What else differs between two runs, and at which of their rows.

Each difference names the rows that it stands at: those whose two environments differ in it, that
were asked for or given other settings, or that saw other clocks, links or throttling while they
were measured. What was imported was measured elsewhere: the environment of its record is that of
whoever read the file, and says nothing about it.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from reports import _text
from reports._comparison.matching import Pair
from reports._comparison.runs import Run
from verifyscope import environment
from verifyscope.records import Environment, Measurement, Value

Kind = Literal["effective", "requested", "launch", "while measuring", "environment", "timing"]
KINDS: tuple[Kind, ...] = (
    *("effective", "requested", "launch", "while measuring", "environment", "timing"),
)
_GPU = re.compile(r"gpus\[(\d+)\]\.(\w+)")
_WHILE = {  # name in `conditions`: what it is called, its unit, the least change worth a line
    "sm_mhz_median": ("SM clock", "MHz", 0.01),
    "power_w_mean": ("power", "W", 0.05),
    "temperature_c_max": ("temperature", "degrees C", 0.05),
    "pcie_generation": ("PCIe generation under load", "", 0.01),
    "pcie_width": ("PCIe width under load", "lanes", 0.01),
}
_TIMING = ("clock", "sample")
_NOT_SET, _NONE = "not set", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs. field: as it is called where it was recorded, for who looks it up.

    rows: the numbers of the pairs that it stands at. factor: new over old where both are numbers
    that a time may follow.
    """

    kind: Kind
    field: str
    name: str
    old: str
    new: str
    rows: frozenset[int]
    factor: float | None = None


def differences(old: Run, new: Run, pairs: Sequence[Pair]) -> list[Difference]:
    """Return every difference that stands at a timed pair, or between the runs' environments."""
    found: dict[tuple[Kind, str, str, str], set[int]] = {}
    for number, pair in enumerate(pairs):
        for kind, field, before, after in _of_pair(old, new, pair):
            found.setdefault((kind, field, before, after), set()).add(number)
    said = [
        Difference(
            kind=kind,
            field=field,
            name=_name(kind, field),
            old=before,
            new=after,
            rows=frozenset(rows),
            factor=_factor(field, before, after),
        )
        for (kind, field, before, after), rows in found.items()
    ]
    return [*_together(said), *_while_measuring(pairs)]


def unknown(old: Run, new: Run) -> list[str]:
    """Return what no environment of the runs knows, of what often explains a change."""
    every = [*old.environments.values(), *new.environments.values()]
    wanted: dict[str, Callable[[Environment], object]] = {
        "driver": lambda one: one.driver,
        "commit": lambda one: one.commit,
        "CPU governor": lambda one: one.governor,
        "power limit": lambda one: any(gpu.power_limit_w is not None for gpu in one.gpus) or None,
        "NCCL": lambda one: next((v for v in one.versions if "nccl" in v), None),
    }
    lacking = [name for name, get in wanted.items() if all(get(one) is None for one in every)]
    seen = {name for run in (old, new) for row in run.rows for name in row.last.conditions}
    lacking += [words for name, (words, _, _) in _WHILE.items() if name not in seen]
    return lacking


def _of_pair(old: Run, new: Run, pair: Pair) -> Iterator[tuple[Kind, str, str, str]]:
    a, b = pair.old.last, pair.new.last
    for name, before, after in _changed(dict(a.requested), dict(b.requested)):
        yield "requested", name, before, after
    for name, before, after in _changed(dict(a.effective), dict(b.effective)):
        yield "effective", name, before, after
    if a.launch != b.launch:
        yield "launch", "launch", a.launch or "not known", b.launch or "not known"
    for name in _TIMING:
        timed, timed_now = a.method.get(name), b.method.get(name)
        if timed is not None and timed_now is not None and timed != timed_now:
            yield "timing", name, _text.value(timed), _text.value(timed_now)
    was, is_ = old.environment(pair.old), new.environment(pair.new)
    if was is not None and is_ is not None and was.id != is_.id:
        for one in environment.difference(was, is_):
            yield "environment", one.field, one.old, one.new
    for reason, before, after in _throttled(a, b):
        yield "while measuring", f"throttled: {reason}", before, after


def _changed(old: dict[str, str], new: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name, _NOT_SET), new.get(name, _NOT_SET)
        if before != after:
            yield name, before, after


def _throttled(old: Measurement, new: Measurement) -> Iterator[tuple[str, str, str]]:
    before, after = (
        {word for word in str(one.conditions.get("throttle_reasons", "")).split(", ") if word}
        for one in (old, new)
    )
    for reason in sorted(before ^ after):
        yield reason, *(("no", "yes") if reason in after else ("yes", "no"))


def _name(kind: Kind, field: str) -> str:
    if kind in ("requested", "effective"):
        return f"{field}, {kind}"
    if kind == "timing":
        return f"how it was timed: {field}"
    prefix, _, rest = field.partition(".")
    named = {"settings": f"setting {rest}", "versions": f"version of {rest}"}
    known = {
        "cuda_driver": "CUDA of the driver",
        "dirty": "uncommitted changes",
        "governor": "CPU governor",
        "cores": "CPU cores",
        "memory_bytes": "main memory",
        "python": "Python",
        "launch": "launch",
    }
    return named.get(prefix) or known.get(field, field)


_GPU_NAMES = {
    "name": "GPU",
    "memory_bytes": "GPU memory",
    "capability": "compute capability",
    "multiprocessors": "SMs",
    "l2_bytes": "L2",
    "sm_max_mhz": "highest SM clock, MHz",
    "memory_max_mhz": "highest memory clock, MHz",
    "power_limit_w": "power limit, W",
    "pcie_generation": "PCIe generation at most",
    "pcie_width": "PCIe width at most",
    "ecc": "ECC",
    "mig": "MIG",
}


def _together(said: Sequence[Difference]) -> list[Difference]:
    """Return the differences with those of several GPUs that are alike as one."""
    groups: dict[tuple[str, str, str], list[tuple[int, Difference]]] = {}
    found = []
    for one in said:
        gpu = _GPU.fullmatch(one.field) if one.kind == "environment" else None
        if gpu is None:
            found.append(one)
        elif gpu[2] != "index":
            groups.setdefault((gpu[2], one.old, one.new), []).append((int(gpu[1]), one))
    for (field, before, after), several in groups.items():
        numbers = sorted({number for number, _ in several})
        which = "GPU" if len(numbers) == 1 else "GPUs"
        found.append(
            Difference(
                kind="environment",
                field=f"gpus.{field}",
                name=f"{_GPU_NAMES.get(field, field)} of {which} {_spans(numbers)}",
                old=before,
                new=after,
                rows=frozenset[int]().union(*(one.rows for _, one in several)),
                factor=several[0][1].factor,
            )
        )
    return found


def _spans(numbers: Sequence[int]) -> str:
    """Return "0 to 7", or "0, 2, 5"."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{first} to {last}"
    return ", ".join(map(str, numbers))


def _while_measuring(pairs: Sequence[Pair]) -> Iterator[Difference]:
    """Yield what was sampled and differs over all rows by more than it wavers."""
    for field, (name, unit, least) in _WHILE.items():
        seen = [
            (number, before, after)
            for number, pair in enumerate(pairs)
            for before in [_number(pair.old.last.conditions.get(field))]
            for after in [_number(pair.new.last.conditions.get(field))]
            if before and after
        ]
        if not seen:
            continue
        before, after = (median(one[at] for one in seen) for at in (1, 2))
        if abs(math.log(after / before)) < least:
            continue
        yield Difference(
            kind="while measuring",
            field=field,
            name=f"{name} while measuring" + (f", {unit}" if unit else ""),
            old=f"{before:g}",
            new=f"{after:g}",
            rows=frozenset(number for number, _, _ in seen),
            factor=after / before,
        )


def _number(value: Value | None) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _factor(field: str, before: str, after: str) -> float | None:
    """Return new over old of a number that a time may follow."""
    gpu = _GPU.fullmatch(field)
    if gpu is None or gpu[2] not in (
        *("sm_max_mhz", "memory_max_mhz", "power_limit_w", "pcie_generation", "pcie_width"),
    ):
        return None
    try:
        old, new = float(before), float(after)
    except ValueError:
        return None
    return new / old if old > 0 and new > 0 else None
