"""A recommendation as the configuration file of NCCL's example tuner plugin: a rule for every size.

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
    allreduce,0,458752,ring,ll,4,1,8,-1,-1

The plugin asks for one channel wherever no rule matches or a rule says -1 channels, so every size
has a rule and every rule the channels that were seen. Where nothing is recommended that is NCCL's
own choice as its log had it; between two sizes that of the smaller one; above the largest, where
NCCL was not yet at Simple, ring/simple, which no one measured here. Lines stay under 256 letters.
Source: plugins/tuner/example/plugin.c of NCCL 2.28 to 2.30.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from verifyscope.contests import Contest
from verifyscope.records import Measurement
from verifyscope.sweep_conclusion import SweepConclusion

HEADER = (
    "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,"
    "regBuff"
)
LAST_BYTE = 2**64 - 1
_TYPES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
_ALGORITHMS = {
    "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain",
    "nvlstree": "nvls_tree",
}


class NoRules(Exception):
    """There can be no file; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What to take from the first to the last of these bytes."""

    low_bytes: int
    high_bytes: int
    algorithm: str
    protocol: str
    channels: int

    @property
    def choice(self) -> tuple[str, str, int]:
        """Return what is taken."""
        return self.algorithm, self.protocol, self.channels


def text(found: Sequence[SweepConclusion]) -> str:
    """Return the file for all collectives that have a recommendation; `NoRules` for none."""
    wanted = [one for one in found if one.recommended.ranges and one.contest.op in _TYPES]
    if not wanted:
        raise NoRules("nothing is recommended")
    lines = ["# The example tuner plugin gives a collective without a rule here one channel."]
    lines.append(f"# {HEADER}")
    for one in wanted:
        lines += [_line(rule, one.contest) for rule in rules(one)]
    return "\n".join(lines) + "\n"


def rules(found: SweepConclusion) -> tuple[Rule, ...]:
    """Return the rules of one collective, from 0 to LAST_BYTE without a gap."""
    contest, recommended = found.contest, found.recommended
    default = contest.times(contest.default)
    sizes = list(default)
    if not sizes:
        raise NoRules("the default has no time")
    own = {size: _choice(default[size]) for size in sizes}
    made = [_rule(0, sizes[0] - 1, own[sizes[0]])] if sizes[0] else []
    for at, size in enumerate(sizes):
        name = recommended.at(size)
        taken = own[size] if name is None else _choice(contest.rows[name][size])
        end = sizes[at + 1] - 1 if at + 1 < len(sizes) else size
        made.append(_rule(size, size, taken))
        between = at + 1 < len(sizes) and recommended.at(sizes[at + 1]) is not None
        made.append(_rule(size + 1, end, taken if between else own[size]))
    made.append(_rule(sizes[-1] + 1, LAST_BYTE, _beyond(own[sizes[-1]])))
    return tuple(_joined(made))


def _choice(row: Measurement) -> tuple[str, str, int]:
    """Return what NCCL ran in a row, with its channels."""
    said = row.effective
    channels = said.get("channels", "")
    if not ("algorithm" in said and "protocol" in said and channels.isdigit()):
        size = row.dims.get("bytes")
        raise NoRules(f"what {row.implementation} ran at {size} B is not known with its channels")
    return said["algorithm"], said["protocol"], int(channels)


def _beyond(last: tuple[str, str, int]) -> tuple[str, str, int]:
    _, protocol, channels = last
    return last if protocol == "simple" else ("ring", "simple", channels)


def _rule(low: int, high: int, choice: tuple[str, str, int]) -> Rule:
    algorithm, protocol, channels = choice
    return Rule(
        low_bytes=low,
        high_bytes=high,
        algorithm=algorithm,
        protocol=protocol,
        channels=channels,
    )


def _joined(made: Iterable[Rule]) -> Iterator[Rule]:
    """Yield the rules, neighbours that say the same as one, those without a byte left out."""
    open_rule: Rule | None = None
    for rule in made:
        if rule.high_bytes < rule.low_bytes:
            continue
        if open_rule is not None and open_rule.choice == rule.choice:
            open_rule = replace(open_rule, high_bytes=rule.high_bytes)
            continue
        if open_rule is not None:
            yield open_rule
        open_rule = rule
    if open_rule is not None:
        yield open_rule


def _line(rule: Rule, contest: Contest) -> str:
    words = (
        _TYPES[contest.op],
        rule.low_bytes,
        rule.high_bytes,
        _ALGORITHMS.get(rule.algorithm, rule.algorithm),
        rule.protocol,
        rule.channels,
        contest.nodes,
        -1 if contest.ranks is None else contest.ranks,
        -1,
        -1,
    )
    return ",".join(map(str, words))
