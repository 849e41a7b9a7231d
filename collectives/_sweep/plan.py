"""Which combinations a sweep runs, which it only lists, and why.

NCCL's own choice, then {ring, tree} x {LL, Simple} for each variation of the further axes. LL128 is
run only where it is allowed, and is then `unsafe`; what one PCIe machine does not have (NVLS,
CollNet, ...) is listed as unsupported with the reason, and run only by force. No list with ^ is
ever made but ^LL128. Tree is for all-reduce, PAT for all-gather and reduce-scatter between machines
with one GPU each; an all-to-all is sends and receives, of which NCCL chooses no algorithm.
Sources: NCCL 2.18 to 2.31, src/graph/tuning.cc, ncclPatEnable there.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from collectives._sweep.axes import Axes
from collectives._sweep.backend import Backend
from collectives._sweep.combination import (
    ALGORITHM_TOKENS,
    CHOICE_VARIABLES,
    NOT_LL128,
    Combination,
)
from ingest.nccl_names import FUNCTIONS, UnknownToken, allowed
from verifyscope.errors import UsageError

MOST_COMBINATIONS = 200
_USUAL_ALGORITHMS = ("ring", "tree")
_USUAL_PROTOCOLS = ("ll", "simple")
_OTHERS = tuple(name for name in ALGORITHM_TOKENS if name not in _USUAL_ALGORITHMS)
_REASONS = {
    "nvls": "needs NVSwitch multicast and capability 9.0; one PCIe machine has no NVSwitch",
    "nvlstree": "needs NVLS, and NCCL turns it off on one machine",
    "collnetdirect": "needs a CollNet plugin and NCCL_COLLNET_ENABLE=1",
    "collnetchain": "needs a CollNet plugin and NCCL_COLLNET_ENABLE=1",
}
# NCCL has these for an all-reduce only; PAT for what is not one.
_FOR_ALL_REDUCE = ("tree", "nvlstree", "collnetchain")
_PAT_IS_FOR = ("all_gather", "reduce_scatter")
_BASELINE = "what it chooses by itself: all others are compared with this"
# Why what is run is worth running.
_WORTH = {
    "ring": "a ring, bandwidth for all sizes",
    "tree": "a tree, on one machine a chain a channel",
    "ll": "LL has the least latency and sends every byte twice",
    "simple": "Simple has all the bandwidth and more latency",
    "pat": "PAT takes fewer steps than a ring",
}
_UNSAFE = (
    "NCCL keeps LL128 off PCIe: stores may be seen out of order and corrupt data; integrity is "
    "stressed before it is timed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a plan is made of. environment: the user's own, for settings that are kept as set."""

    op: str
    backend: Backend
    ranks: int
    local_ranks: int
    axes: Axes
    allow_ll128: bool = False
    force: bool = False
    environment: Mapping[str, str]


def combinations(asked: Asked) -> tuple[Combination, ...]:
    """Return what is run and what is listed, in their order; no two have one label."""
    found = list(dict.fromkeys(_all(asked)))
    by_label: dict[str, Combination] = {}
    for known in found:
        other = by_label.setdefault(known.label, known)
        if other.environment() != known.environment():
            raise UsageError(f"two graph files are named alike ({known.label}); rename one of them")
    if len(by_label) > MOST_COMBINATIONS:
        raise UsageError(
            f"{len(by_label)} combinations are planned, at most {MOST_COMBINATIONS} are allowed; "
            f"give fewer values on an axis"
        )
    return tuple(by_label.values())


def _all(asked: Asked) -> Iterator[Combination]:
    yield Combination(backend=asked.backend.name, reason=_BASELINE)
    chooses = asked.backend.chooses and asked.op in FUNCTIONS
    own = tuple(
        (name, asked.environment[name]) for name in CHOICE_VARIABLES if name in asked.environment
    )
    if own and chooses and asked.ranks > 1:
        yield _as_set(asked, own)
    explicit = asked.axes.algorithms is not None or asked.axes.protocols is not None
    for variation in _variations(asked):
        if variation != Combination(backend=asked.backend.name):
            yield _judged(asked, replace(variation, reason="NCCL's own choice in this variation"))
        if not chooses and not explicit:
            continue
        for algorithm, protocol in _pairs(asked.axes, allow_ll128=asked.allow_ll128):
            if algorithm is not None or protocol is not None:
                yield _judged(asked, replace(variation, algorithm=algorithm, protocol=protocol))
    if chooses and not explicit and asked.ranks > 1:
        yield from _listed(asked)


def _variations(asked: Asked) -> Iterator[Combination]:
    axes = asked.axes
    for channels, buffer, level, p2p, graph, order, bind, launch in itertools.product(
        axes.channels,
        axes.buffers,
        axes.p2p_levels,
        axes.p2p,
        axes.graph_files,
        axes.gpu_orders,
        axes.bindings,
        axes.launches,
    ):
        if order and len(order) != asked.local_ranks:
            raise UsageError(
                f"--gpu-order names {len(order)} devices for {asked.local_ranks} ranks of a "
                f"machine; name one for each rank"
            )
        if p2p is False and level is not None:
            continue  # without P2P a distance means nothing
        yield Combination(
            backend=asked.backend.name,
            channels=channels,
            buffer_bytes=buffer,
            p2p_level=level,
            p2p=p2p,
            graph_file=graph,
            gpu_order=order,
            bind=bind,
            launch=launch,
        )


def _pairs(axes: Axes, *, allow_ll128: bool) -> Iterator[tuple[str | None, str | None]]:
    usual = ("ll", "ll128", "simple") if allow_ll128 else _USUAL_PROTOCOLS
    protocols: Sequence[str | None] = axes.protocols or usual
    for algorithm in axes.algorithms or _USUAL_ALGORITHMS:
        # What has one protocol only is listed once, unless the protocols were named.
        one = axes.protocols is None and algorithm in _OTHERS
        for protocol in ("simple",) if one else protocols:
            yield algorithm, protocol


def _listed(asked: Asked) -> Iterator[Combination]:
    """Yield what one PCIe machine does not run, so that nobody looks for it in vain."""
    pairs = [] if asked.allow_ll128 else [(name, "ll128") for name in _USUAL_ALGORITHMS]
    for algorithm, protocol in [*pairs, *((name, "simple") for name in _OTHERS)]:
        bare = Combination(backend=asked.backend.name, algorithm=algorithm, protocol=protocol)
        yield _judged(asked, bare)


def _as_set(asked: Asked, own: tuple[tuple[str, str], ...]) -> Combination:
    bare = Combination(backend=asked.backend.name, own=own)
    if not switches_ll128_on(dict(own), asked.op):
        return replace(bare, reason="the settings of your own environment, as they are")
    if asked.allow_ll128:
        return replace(bare, verdict="unsafe", reason=_UNSAFE)
    return replace(
        bare,
        verdict="unsupported",
        reason="your own environment switches LL128 on; --allow-ll128 runs it",
    )


def _judged(asked: Asked, known: Combination) -> Combination:
    """Return the combination with its verdict; force runs all but LL128."""
    why_not = _why_not(asked, known)
    if known.protocol == "ll128" and not asked.allow_ll128:
        why = "LL128 is off on PCIe and may corrupt data there; --allow-ll128 runs it"
        return replace(known, verdict="unsupported", reason=why_not or why)
    verdict = known.verdict
    words = (_WORTH.get(word or "") for word in (known.algorithm, known.protocol))
    reason = known.reason or "; ".join(filter(None, words)) or "named on the command line"
    if known.protocol == "ll128":
        verdict, reason = "unsafe", _UNSAFE
    if why_not is None:
        return replace(known, verdict=verdict, reason=reason)
    if asked.force:
        return replace(known, verdict=verdict, reason=f"by --force, although: {why_not}")
    return replace(known, verdict="unsupported", reason=why_not)


def _why_not(asked: Asked, known: Combination) -> str | None:
    if not asked.backend.chooses and known.environment():
        return f"{asked.backend.name} reads no settings of NCCL"
    chosen = known.algorithm is not None or known.protocol is not None
    if asked.ranks == 1 and chosen:
        return "one rank has nobody to talk to: NCCL chooses nothing"
    if asked.op not in FUNCTIONS and chosen:
        return f"{asked.op} is sends and receives: NCCL has no algorithm to choose for it"
    return None if known.algorithm is None else _lacks(asked, known.algorithm, known.protocol)


def _lacks(asked: Asked, algorithm: str, protocol: str | None) -> str | None:
    """Return why NCCL has no such algorithm for a collective on these machines."""
    token = ALGORITHM_TOKENS[algorithm]
    if algorithm in _FOR_ALL_REDUCE and asked.op != "all_reduce":
        return f"NCCL has {token} for all-reduce only"
    if algorithm == "pat" and asked.op not in _PAT_IS_FOR:
        return "NCCL has it for all-gather and reduce-scatter only"
    if algorithm == "pat" and asked.local_ranks > 1:
        return f"NCCL has it with one GPU a machine, here are {asked.local_ranks}"
    if algorithm in _REASONS:
        return _REASONS[algorithm]
    if algorithm in _OTHERS and protocol not in (None, "simple", NOT_LL128):
        return f"NCCL has {token} with Simple only"
    return None


def switches_ll128_on(settings: Mapping[str, str], op: str = "all_reduce") -> bool:
    """Say whether NCCL_PROTO asks for LL128, by name or by what a list with ^ leaves over."""
    value = settings.get("NCCL_PROTO", "")
    try:
        left = allowed("NCCL_PROTO", value, op) if value else None
    except UnknownToken:
        return "^" in value
    return left is not None and "ll128" in left


def warnings(settings: Mapping[str, str], *, of: str = "your environment") -> Iterator[str]:
    """Yield what a person should know of their own settings before anything runs."""
    for name in CHOICE_VARIABLES:
        value = settings.get(name, "")
        if "^" not in value:
            continue
        if name == "NCCL_PROTO" and switches_ll128_on(settings):
            yield (
                f"{name}={value} of {of} switches LL128 on past its safety gate: what "
                f"a list with ^ leaves over counts as asked for; name what is to be used instead"
            )
        elif value.upper() != "^LL128":
            yield (
                f"{name}={value} of {of} is a list with ^: what it leaves over counts "
                f"as asked for; name what is to be used instead"
            )
