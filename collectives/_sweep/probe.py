"""Whether NCCL did what a combination asks for: the status of each point, decided from its probe.

    corrupt      a value was wrong, eagerly or captured
    ignored      a setting is not in effect on every rank, or NCCL's log shows another algorithm,
                 protocol, number of channels or transport than was asked for
    unsupported  NCCL says that it has no such algorithm or protocol here, or cannot say what it
                 has; another implementation does not take the size
    ok           right values, and all that was asked for is shown; its time may be published

Where nothing is asked for, what NCCL chose is noted and nothing can be ignored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from collectives._sweep.combination import NOT_LL128, Combination
from collectives._sweep.job import Launch
from collectives._sweep.journal import Verdict
from collectives._sweep.messages import Joined
from collectives._sweep.points import Point
from ingest.nccl_facts import Choice, NcclLog
from verifyscope.records import Status

_SAYS_CHOICES = (2, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a probe showed. wrong: values by point and launch. log: None where nothing logs.

    nccl: the version that was asked for in place of torch's. refused: why a point can't run.
    """

    op: str
    combination: Combination
    ranks: tuple[Joined, ...]
    wrong: Mapping[tuple[Point, Launch], int]
    log: NcclLog | None
    nccl: str | None = None
    refused: Mapping[Point, str] = field(default_factory=dict)


def verdicts(probe: Probe, points: Iterable[Point]) -> tuple[Verdict, ...]:
    """Return the verdict of each point, by its position."""
    general = next(_ignored(probe), None)
    effective = settings(probe)
    return tuple(_verdict(probe, at, point, general, effective) for at, point in enumerate(points))


def refusal(log: NcclLog | None) -> str | None:
    """Return NCCL's warning that it has no such algorithm or protocol, if it gave one."""
    texts = [known.text for known in log.warned] if log is not None else []
    return next((text for text in texts if "o algorithm/protocol" in text.lower()), None)


def settings(probe: Probe) -> dict[str, str]:
    """Return what is in effect for all points: settings by name, versions, files, plugins."""
    combination, log = probe.combination, probe.log
    found: dict[str, str] = {}
    names = dict.fromkeys(name for rank in probe.ranks for name in rank.read_back.settings)
    for name in names:
        found[name] = _together(rank.read_back.settings.get(name) for rank in probe.ranks)
    facts = dict.fromkeys(name for rank in probe.ranks for name in rank.read_back.facts)
    for name in facts:
        found[name] = _together(rank.read_back.facts.get(name) for rank in probe.ranks)
    if any(rank.read_back.nccl for rank in probe.ranks):
        found["nccl"] = _together(rank.read_back.nccl for rank in probe.ranks)
    if combination.bind is not None:
        found["bind"] = _together(rank.read_back.bound for rank in probe.ranks)
    if combination.gpu_order:
        found["gpu_order"] = ",".join(str(rank.device) for rank in probe.ranks)
    files = dict.fromkeys(
        f"{file.name}: " + " ".join(f"{name}={value}" for name, value in file.settings.items())
        for rank in probe.ranks
        for file in rank.read_back.files
    )
    if files:
        found["configuration_file"] = "; ".join(files)
    if log is not None:
        found |= _said(log)
    return found


def _said(log: NcclLog) -> dict[str, str]:
    """Return what NCCL's log says of the whole communicator."""
    injected = {s.name: s.value for s in log.settings if s.origin == "plugin"}
    plugins = dict.fromkeys(f"{known.kind} {known.name}" for known in log.plugins)
    kinds = sorted({known.kind for known in log.transports})
    said = {
        "plugin": "; ".join(plugins),
        "set_by_plugin": " ".join(f"{name}={value}" for name, value in injected.items()),
        "transport": "+".join(kinds),
        "nccl_version": log.loaded.version if log.loaded is not None else "",
        "graph": ", ".join(
            dict.fromkeys(
                f"pattern {known.pattern}: {known.channels} x {known.intra_gb_s:g} GB/s"
                for known in log.searches
            )
        ),
    }
    return {name: text for name, text in said.items() if text}


def _together(values: Iterable[str | None]) -> str:
    """Return the value that all ranks share; else each with its ranks."""
    by_value: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault("not set" if value is None else value, []).append(str(rank))
    if len(by_value) == 1:
        return next(iter(by_value))
    return ", ".join(f"{value} (rank {' '.join(ranks)})" for value, ranks in by_value.items())


def _verdict(
    probe: Probe, at: int, point: Point, general: str | None, effective: Mapping[str, str]
) -> Verdict:
    wrong = sum(count for (known, _), count in probe.wrong.items() if known == point)
    choices = _choices(probe, point)
    seen = dict(effective) | _chosen(choices)
    status: Status = "ok"
    reason = None
    if point in probe.refused:
        status, reason = "unsupported", probe.refused[point]
    elif wrong:
        status, reason = "corrupt", f"{wrong} values are wrong in the probe; it is not timed"
    elif general is not None:
        status, reason = "ignored", general
    elif why := _other_choice(probe, point, choices):
        status, reason = why
    return Verdict(
        point=at, status=status, reason=reason, effective=seen, proof=_proof(probe, choices)
    )


def _choices(probe: Probe, point: Point) -> list[Choice]:
    if probe.log is None:
        return []
    return [
        known
        for known in probe.log.choices
        if known.size_bytes == point.size_bytes and known.function in (None, probe.op)
    ]


def _chosen(choices: list[Choice]) -> dict[str, str]:
    """Return the algorithm, protocol and channels of a size; several where calls differ."""
    columns: dict[str, dict[str, None]] = {"algorithm": {}, "protocol": {}, "channels": {}}
    for known in choices:
        columns["algorithm"][known.kernel or known.algorithm] = None
        if known.protocol is not None:
            columns["protocol"][known.protocol] = None
        if known.channel_count is not None:
            columns["channels"][str(known.channel_count)] = None
    return {name: ", ".join(words) for name, words in columns.items() if words}


def _other_choice(probe: Probe, point: Point, choices: list[Choice]) -> tuple[Status, str] | None:
    """Return why a size does not run as asked, where an algorithm or a protocol was asked for."""
    asked = probe.combination
    if asked.algorithm is None and asked.protocol is None:
        return None
    if not choices:
        return _silent(probe, point)
    for known in choices:
        if asked.algorithm not in (None, known.algorithm):
            return "ignored", f"asked for {asked.choice}, NCCL took {known.name}"
        if asked.protocol == NOT_LL128:
            if known.protocol == "ll128":
                return "ignored", f"asked for all but LL128, NCCL took {known.name}"
        elif asked.protocol not in (None, known.protocol):
            return "ignored", f"asked for {asked.choice}, NCCL took {known.name}"
    return None


def _silent(probe: Probe, point: Point) -> tuple[Status, str]:
    version = probe.log.loaded if probe.log is not None else None
    if version is not None and version.number < _SAYS_CHOICES:
        return "unsupported", (
            f"NCCL {version.version} does not log what it chooses (2.20 and later do): nothing "
            f"would show what was timed"
        )
    return "ignored", f"NCCL's log shows no choice for {point.size_bytes} B"


def not_in_effect(
    asked: Combination, ranks: Sequence[Joined], *, nccl: str | None = None
) -> Iterator[str]:
    """Yield what of a combination, and of the NCCL to take, the ranks do not read back as asked."""
    for rank in ranks:
        if nccl not in (None, rank.read_back.nccl):
            yield f"asked for NCCL {nccl}, rank {rank.rank} has {rank.read_back.nccl or 'none'}"
    for name, value in asked.environment().items():
        shown = _shown(name, value)
        for rank in ranks:
            found = rank.read_back.settings.get(name)
            if found is None or found.casefold() != shown.casefold():
                yield f"{name} is {found or 'not set'} on rank {rank.rank}, not {shown}"
    for rank in ranks:
        if asked.bind == "numa" and rank.read_back.bound != "numa":
            yield f"rank {rank.rank} is bound to {rank.read_back.bound}"
        if asked.gpu_order:
            device = asked.gpu_order[rank.rank % len(asked.gpu_order)]
            if rank.device != device:
                yield f"rank {rank.rank} has device {rank.device}, not {device}"


def _ignored(probe: Probe) -> Iterator[str]:
    """Yield what of the combination is not in effect, whatever the size."""
    asked = probe.combination
    yield from not_in_effect(asked, probe.ranks, nccl=probe.nccl)
    for name, value in asked.environment().items():
        if name.startswith("NCCL_"):
            yield from _unread(probe.log, name, _shown(name, value))
    if probe.log is not None:
        yield from _other_ways(asked, probe.log)


def _shown(name: str, value: str) -> str:
    """Return the value as it is read back: a path as its file name."""
    return PurePath(value).name if name == "NCCL_GRAPH_FILE" else value


def _unread(log: NcclLog | None, name: str, value: str) -> Iterator[str]:
    """Yield why a setting that is there has no effect: nobody read it, or another value was read.

    A plugin that sets a variable itself comes after whoever started the process.
    """
    if log is None:
        yield f"{name} is set, and nothing here reads it"
        return
    if (name, value) == ("NCCL_P2P_DISABLE", "0"):
        return  # NCCL says nothing of it; the transports do
    read = [known for known in log.settings if known.name == name]
    if not any(known.origin == "environment" for known in read):
        yield f"NCCL read no {name}: this version does not know it, or nothing needed it"
    for known in read:
        if known.value.casefold() != value.casefold():
            who = "a plugin set" if known.origin == "plugin" else "NCCL read"
            yield f"{who} {name}={known.value}, not {value}"


def _other_ways(asked: Combination, log: NcclLog) -> Iterator[str]:
    """Yield where channels and transports are not those that were asked for."""
    for known in log.channels:
        if asked.channels is not None and known.collective != asked.channels:
            yield f"asked for {asked.channels} channels, NCCL made {known.collective}"
    kinds = {known.kind for known in log.transports}
    if asked.p2p is False and "p2p" in kinds:
        yield "asked for no P2P, and ranks talk over P2P"
    if asked.p2p is True and kinds and "p2p" not in kinds:
        yield f"asked for P2P, and ranks talk over {' and '.join(sorted(kinds))}"


def _proof(probe: Probe, choices: list[Choice]) -> str | None:
    """Return what shows it: the line of the choice, and the ranks whose settings were read back."""
    words = []
    if choices:
        known = choices[0]
        channels = "" if known.channels is None else f" on channels {known.channels[0]}"
        if known.channels is not None and known.channels[1] != known.channels[0]:
            channels += f" to {known.channels[1]}"
        said = f"{known.size_bytes} Bytes -> {known.name}{channels}"
        words.append(f"NCCL's log of the probe, line {known.line}: {said}")
    if probe.nccl is not None:
        same = sum(rank.read_back.nccl == probe.nccl for rank in probe.ranks)
        words.append(f"NCCL {probe.nccl} loaded on {same} of {len(probe.ranks)} ranks")
    asked = probe.combination.environment()
    if asked:
        same = sum(all(name in rank.read_back.settings for name in asked) for rank in probe.ranks)
        words.append(f"settings read back on {same} of {len(probe.ranks)} ranks")
    return "; ".join(words) or None
