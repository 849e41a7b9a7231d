"""The section of machines: what was measured on what, and in what several environments differ."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from reports import _text
from reports._collected import Collected
from reports._markdown import code, table, text
from reports._text import NOT_KNOWN
from verifyscope.records import Environment, GpuState

AllFacts = Mapping[str, Mapping[str, str]]

_MOST_SIDE_BY_SIDE = 4
_MOST_DIFFERENCES = 60
_VERSION, _SETTING = "version of ", "setting "


def facts(environment: Environment) -> dict[str, str]:
    """Return what is known of an environment, by name, as Markdown."""
    commit = None if environment.commit is None else code(environment.commit)
    changed = " with uncommitted changes" if environment.dirty else ""
    known: dict[str, str | None] = {
        "processor": f"{text(environment.processor)}, {environment.cores:,} cores",
        "memory": _text.size(environment.memory_bytes),
        "system": text(environment.system),
        "GPUs": _gpus(environment.gpus),
        "driver": _plain(environment.driver),
        "CUDA of the driver": _plain(environment.cuda_driver),
        "commit": commit and commit + changed,
        "Python": text(environment.python),
    }
    for name, version in environment.versions.items():
        known[f"{_VERSION}{code(name)}"] = text(version)
    for name, value in environment.settings.items():
        known[f"{_SETTING}{code(name)}"] = code(value)
    return {name: NOT_KNOWN if value is None else value for name, value in known.items()}


def all_facts(found: Collected) -> AllFacts:
    """Return the facts of each environment, by its letter."""
    return {found.letter(name): facts(one) for name, one in found.environments.items()}


def shared_table(all_facts: AllFacts) -> str:
    """Return what all environments have in common."""
    every = list(all_facts.values())
    first = every[0]
    shared = {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in every) and value != NOT_KNOWN
    }
    lines = [
        (name, value) for name, value in shared.items() if not name.startswith((_VERSION, _SETTING))
    ]
    for prefix, label in ((_VERSION, "versions"), (_SETTING, "settings")):
        words = [
            f"{name.removeprefix(prefix)} {value}"
            for name, value in shared.items()
            if name.startswith(prefix)
        ]
        if words:
            lines.append((label, ", ".join(words)))
    return table(("", "in all of them" if len(every) > 1 else ""), lines, align="ll")


def unknown_facts(all_facts: AllFacts) -> list[str]:
    """Return the names of what no environment knows."""
    every = list(all_facts.values())
    return [name for name in every[0] if all(one.get(name) == NOT_KNOWN for one in every)]


def difference_table(every: AllFacts) -> str:
    """Return what differs: side by side, or, for many environments, value by value."""
    names = dict.fromkeys(name for one in every.values() for name in one)
    differing = [name for name in names if len({one.get(name) for one in every.values()}) > 1]
    if len(every) <= _MOST_SIDE_BY_SIDE:
        lines = [
            (name, *(one.get(name, NOT_KNOWN) for one in every.values()))
            for name in differing[:_MOST_DIFFERENCES]
        ]
        return table(("", *every), lines, align="l" * (1 + len(every)))
    lines = [line for name in differing for line in _by_value(name, every)]
    return table(("", "value", "environments"), lines[:_MOST_DIFFERENCES], align="lll")


def machine(environment: Environment) -> str:
    """Return a machine in a few words: its GPUs, or its processor."""
    if environment.gpus:
        counts = Counter(gpu.name for gpu in environment.gpus)
        return ", ".join(f"{count} x {text(name)}" for name, count in counts.items())
    return f"{text(environment.processor)}, {environment.cores:,} cores, no GPU"


def named(environment: str, found: Collected, *, lettered: bool = True) -> str:
    """Return the machine of an environment, `lettered` where there are several."""
    known = found.environments.get(environment)
    if known is None:
        return "a machine that no record describes"
    letter = f"{found.letter(environment)}: " if lettered and len(found.environments) > 1 else ""
    return letter + machine(known)


def _by_value(name: str, every: AllFacts) -> list[tuple[str, str, str]]:
    letters: dict[str, list[str]] = {}
    for letter, one in every.items():
        letters.setdefault(one.get(name, NOT_KNOWN), []).append(letter)
    return [(name, value, _text.listed(who, most=12)) for value, who in letters.items()]


def _gpus(gpus: tuple[GpuState, ...]) -> str:
    if not gpus:
        return "none"
    counts = Counter(msgspec.structs.replace(gpu, index=0) for gpu in gpus)
    return "; ".join(f"{count} x {_gpu(gpu)}" for gpu, count in counts.items())


def _gpu(gpu: GpuState) -> str:
    words: list[str] = []
    if gpu.memory_bytes is not None:
        words.append(_text.size(gpu.memory_bytes))
    if gpu.capability is not None:
        words.append(f"capability {text(gpu.capability)}")
    if gpu.multiprocessors is not None:
        words.append(f"{gpu.multiprocessors} SMs")
    if gpu.l2_bytes is not None:
        words.append(f"L2 {_text.size(gpu.l2_bytes)}")
    if gpu.sm_max_mhz is not None:
        words.append(f"SM up to {gpu.sm_max_mhz:,} MHz")
    if gpu.memory_max_mhz is not None:
        words.append(f"memory up to {gpu.memory_max_mhz:,} MHz")
    if gpu.power_limit_w is not None:
        words.append(f"limit {gpu.power_limit_w:g} W")
    if gpu.pcie_generation is not None and gpu.pcie_width is not None:
        words.append(f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}")
    for name, on in (("ECC", gpu.ecc), ("MIG", gpu.mig)):
        if on is not None:
            words.append(f"{name} {'on' if on else 'off'}")
    return f"{text(gpu.name)} ({', '.join(words)})" if words else text(gpu.name)


def _plain(given: str | None) -> str | None:
    return None if given is None else text(given)
