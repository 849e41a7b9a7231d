"""What looks wrong with the settings in an NCCL log: injected, ignored, refused, not everywhere.

What NCCL read counts as set; that it took effect shows only in what it chose. A setting that
reached some processes and not others is the commonest fault of engines that start workers.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ingest.nccl_facts import NcclLog, Setting
from ingest.nccl_findings import Suspicion
from ingest.nccl_names import FUNCTIONS, UnknownToken, allowed

_LISTS = ("NCCL_ALGO", "NCCL_PROTO")
_ERRORS_SINCE = (2, 24)


def about_settings(log: NcclLog) -> Iterator[Suspicion]:
    """Yield what looks wrong with settings."""
    yield from _injected(log)
    yield from _ll128_past_gate(log)
    yield from _unknown_words(log)
    yield from _not_followed(log)
    yield from _refused(log)
    yield from _not_everywhere(log)
    yield from _tuner(log)


def unseen(log: NcclLog, requested: Mapping[str, str]) -> Iterator[Suspicion]:
    """Yield the settings that were asked for and that no process says it read.

    requested: by name, what a launcher or a person asked for. Only what NCCL prints when it reads
    it is judged, and only where the ENV subsystem is logged at all.
    """
    if not log.settings:
        return
    read = {known.name for known in log.settings}
    for name, value in requested.items():
        if name in PRINTED and name not in read:
            yield Suspicion(
                name="setting-ignored",
                sentence=f"{name} was asked for and no process says that it read it",
                evidence=((None, f"asked for: {name}={value}"),),
                next_action="set it in the environment of the workers themselves, not of the "
                "launcher, and look again",
            )


# Settings that NCCL prints with the ENV subsystem as soon as a communicator starts.
PRINTED = frozenset({"NCCL_ALGO", "NCCL_PROTO", "NCCL_GRAPH_FILE", "NCCL_P2P_LEVEL"})


def _injected(log: NcclLog) -> Iterator[Suspicion]:
    found = [known for known in log.settings if known.origin == "plugin"]
    if found:
        named = ", ".join(dict.fromkeys(f"{known.name}={known.value}" for known in found))
        yield Suspicion(
            name="plugin-injected-env",
            sentence=f"a plugin, not the user, set {named}",
            evidence=tuple((known.line, f"{known.name}={known.value}") for known in found),
            next_action="set these yourself, or NCCL_NET_PLUGIN=none on one node, then measure",
        )


def _ll128_past_gate(log: NcclLog) -> Iterator[Suspicion]:
    for known in _of(log, "NCCL_PROTO"):
        if "^" in known.value and _any_function_allows(known, "ll128"):
            yield Suspicion(
                name="ll128-past-gate",
                sentence=f"NCCL_PROTO={known.value} leaves LL128 over, and what a ^ list leaves "
                "over counts as asked for: LL128 runs past its safety gate, on PCIe, too",
                evidence=((known.line, f"NCCL_PROTO={known.value}"),),
                next_action="list what is wanted instead (NCCL_PROTO=LL,Simple), or use ^LL128",
            )


def _any_function_allows(known: Setting, word: str) -> bool:
    try:
        sets = [allowed(known.name, known.value, function) for function in FUNCTIONS]
    except UnknownToken:
        return False
    return any(left is not None and word in left for left in sets)


def _unknown_words(log: NcclLog) -> Iterator[Suspicion]:
    """Up to 2.23 NCCL passes over a word that it does not know."""
    library = log.loaded
    if library is None or library.number >= _ERRORS_SINCE:
        return
    for known in (*_of(log, "NCCL_ALGO"), *_of(log, "NCCL_PROTO")):
        try:
            allowed(known.name, known.value, "all_reduce")
        except UnknownToken as error:
            yield Suspicion(
                name="setting-ignored",
                sentence=f"{known.name}={known.value}: {error}, and NCCL {library.version} passes "
                "over it in silence",
                evidence=((known.line, f"{known.name}={known.value}"),),
                next_action="correct the word; by function is possible from NCCL 2.24 on",
            )


def _not_followed(log: NcclLog) -> Iterator[Suspicion]:
    """A choice that the setting of its process, or of all, does not allow."""
    for variable in _LISTS:
        shown: list[tuple[int | None, str]] = []
        for choice in log.choices:
            setting = log.effective(choice.process).get(variable)
            taken = choice.algorithm if variable == "NCCL_ALGO" else choice.protocol
            if setting is None or taken is None:
                continue
            try:
                left = allowed(variable, setting.value, choice.function or "all_reduce")
            except UnknownToken:
                continue
            if left is not None and taken not in left:
                shown += [
                    (setting.line, f"{variable}={setting.value}"),
                    (choice.line, f"{choice.size_bytes} B -> {choice.name}"),
                ]
        if shown:
            yield Suspicion(
                name="setting-ignored",
                sentence=f"{shown[0][1]} is set and NCCL took something else: {shown[1][1]}",
                evidence=tuple(dict.fromkeys(shown)),
                next_action="up to NCCL 2.23 an impossible wish falls back to Ring; look for a "
                "tuner plugin, and for a later NCCL",
            )


def _refused(log: NcclLog) -> Iterator[Suspicion]:
    for words, name, next_action in (
        (
            "o algorithm/protocol",
            "combination-unavailable",
            "NVLS needs NVSwitch, CollNet a plugin, PAT is no all-reduce: ask for Ring or Tree",
        ),
        ("when parsing", "setting-refused", "correct the word: NCCL does not start with it"),
        ("must have a prefix", "setting-refused", "only the first entry may be without a function"),
    ):
        shown = [known for known in log.warned if words in known.text]
        if shown:
            yield Suspicion(
                name=name,
                sentence=f"NCCL refuses what was asked for: {shown[0].text}",
                evidence=tuple((known.line, known.text) for known in shown),
                next_action=next_action,
            )


def _not_everywhere(log: NcclLog) -> Iterator[Suspicion]:
    """Settings that only some of the ranks' processes read, or read with another value."""
    members = {m.process for known in log.communicators for m in known.members} - {None}
    by_name: dict[str, dict[str, list[Setting]]] = defaultdict(lambda: defaultdict(list))
    speaking: set[int | None] = set()
    for known in log.settings:
        if known.origin != "plugin" and known.process in members:
            by_name[known.name][known.value].append(known)
            speaking.add(known.process)
    for name, by_value in by_name.items():
        reached = {known.process for found in by_value.values() for known in found}
        missing = len(speaking - reached) if name in PRINTED else 0
        if len(by_value) > 1 or missing:
            values = ", ".join(f"{name}={value}" for value in by_value)
            lacking = f"; {missing} processes do not name it" if missing else ""
            yield Suspicion(
                name="setting-not-everywhere",
                sentence=f"the ranks do not agree: {values}{lacking}",
                evidence=tuple(
                    (known.line, f"{name}={value}")
                    for value, found in by_value.items()
                    for known in found
                ),
                next_action="set it in the environment of every worker; ranks that differ may hang",
            )


def _tuner(log: NcclLog) -> Iterator[Suspicion]:
    if log.plugins_that_choose:
        named = log.plugins_that_choose[0]
        yield Suspicion(
            name="tuner-plugin",
            sentence=f"the tuner plugin {named.name} may choose instead of NCCL's own model",
            evidence=tuple((known.line, known.name) for known in log.plugins_that_choose),
            next_action="compare with NCCL_TUNER_PLUGIN=none",
            confidence="hint",
        )


def _of(log: NcclLog, name: str) -> list[Setting]:
    """Return the different values of a setting, each once."""
    found = {known.value: known for known in reversed(log.settings) if known.name == name}
    return list(found.values())
