"""What was tried between the GPUs: access, writes that did not arrive, rates that do not add up.

A driver that says "can access peer" names a capability; only writes that were compared prove it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import median

from collectives._host.facts import HERE, Broken, Check, Host, Rate, Tried
from ingest.conclusions import Conclusion, Seen, listed
from ingest.topology import NEAREST
from verifyscope import units

# Launching and noise explain a few percent between one write and several at once, not this much.
SHARED_BELOW = 0.7
# A write that goes through the host's memory crosses two links, one after the other at worst.
SLOW_BELOW = 0.5
NEAR_BELOW = 0.9
_UNTIL = (
    "set NCCL_P2P_DISABLE=1 (and the engine's --disable-custom-all-reduce) until this passes; then "
    "turn off ACS redirection and the IOMMU's translation, or try another driver"
)


def conclusions(host: Host) -> Iterator[Conclusion]:
    """Yield what was found by trying, and what the driver says before that."""
    yield from _access(host)
    if host.tried is not None:
        yield from _wrong(host.tried)
        if host.tried.broken is not None:
            yield _broken_test(host.tried.broken)
        yield from _at_once(host.tried)
        yield from _against_the_host(host.tried)
        yield from _by_path(host)
    if host.probed is not None:
        yield from _probe(host)


def _access(host: Host) -> Iterator[Conclusion]:
    """Say where the driver, or CUDA, lets no GPU reach another one."""
    refused: dict[tuple[int, int], str] = {
        (pair.first, pair.second): pair.refused for pair in host.pairs if pair.refused
    }
    asked = sum(pair.asked for pair in host.pairs)
    if host.tried is not None and host.tried.access:
        both = {(one.writer, one.target): one.able for one in host.tried.access}
        refused = {
            (a, b): refused.get((a, b), "CUDA says so")
            for a, b in both
            if a < b and not (both[a, b] and both.get((b, a), False))
        }
        asked = len(both) // 2
    if not refused:
        return
    reasons = ", ".join(dict.fromkeys(refused.values()))
    none = len(refused) == asked
    which = "no GPU reaches another one" if none else f"{len(refused)} of {asked} pairs do not "
    which += "" if none else "reach each other"
    yield Conclusion(
        name="no-p2p" if none else "p2p-partial",
        sentence=f"{which} ({reasons}): NCCL goes through the host's memory there",
        seen=tuple(Seen(HERE, f"GPU {a} and {b}", why) for (a, b), why in sorted(refused.items())),
        next_action="GeForce cards have no peer access; on others look at the driver, the IOMMU "
        "and the firmware (large BARs); measure what there is with python -m collectives.sweep",
    )


def _wrong(tried: Tried) -> Iterator[Conclusion]:
    """Say which writes did not arrive, one at a time or several at once."""
    failed = [check for check in tried.checks if not check.right]
    crowded = [rate for rate in tried.rates if rate.wrong]
    if not failed and not crowded:
        return
    pairs = {(check.writer, check.target) for check in tried.checks}
    bad = {(check.writer, check.target) for check in failed}
    lost, wrong = sum(c.lost for c in failed), sum(c.wrong for c in failed)
    words = sum(check.words for check in failed)
    how = (
        f"on {len(bad)} of {len(pairs)} ways {lost} of {words} words were lost and {wrong} changed"
        if failed
        else f"only where several write at once: {sum(rate.wrong for rate in crowded)} words"
    )
    yield Conclusion(
        name="p2p-capable-but-failed-write-verify",
        sentence="the driver says that the GPUs reach each other, and what one wrote was not what "
        f"the other had: {how}",
        seen=(
            *(Seen(HERE, _ways(check), _counted(check)) for check in failed),
            *(Seen(HERE, _crowd(rate), f"{rate.wrong} words wrong") for rate in crowded),
        ),
        next_action=_UNTIL,
    )


def _broken_test(broken: Broken) -> Conclusion:
    if not broken.writes:
        return Conclusion(
            name="gpu-test-broken",
            sentence=f"{broken.step} {_ended(broken)}: nothing after it was tried",
            seen=(Seen(HERE, broken.step, broken.reason),),
            next_action="look at dmesg (Xid, AER) and at who else uses the GPUs, then run it again",
        )
    return Conclusion(
        name="p2p-write-hangs" if broken.kind == "hang" else "p2p-write-fails",
        sentence=f"{broken.step} {_ended(broken)}: nothing after it was tried, and a collective "
        "would hang or fail like this",
        seen=(Seen(HERE, broken.step, broken.reason),),
        next_action=_UNTIL,
    )


def _ended(broken: Broken) -> str:
    return "did not come back" if broken.kind == "hang" else f"failed ({broken.reason})"


def _at_once(tried: Tried) -> Iterator[Conclusion]:
    """Find writes that are much slower beside others than alone."""
    alone = alone_rates(tried)
    slow: list[tuple[Rate, float]] = []
    for rate in tried.rates:
        if rate.kind == "alone" or not all(pair in alone for pair in rate.writes):
            continue
        share = _expected_s(rate, alone) / median(rate.seconds)
        if share < SHARED_BELOW:
            slow.append((rate, share))
    if slow:
        worst, share = min(slow, key=lambda one: one[1])
        yield Conclusion(
            name="concurrent-writes-slow",
            sentence=f"{_crowd(worst)}: the slowest has {units.percent(share)} of what the same "
            "writes do alone: they share a link or a bridge, as the ranks of a collective do",
            seen=tuple(
                Seen(HERE, _crowd(rate), f"{units.percent(share)} of the rate alone")
                for rate, share in slow
            ),
            next_action="look which GPUs have an uplink in common (nvidia-smi topo -m, lspci -tv); "
            "an order of GPUs that crosses it less (collectives.sweep --gpu-order) may be faster",
        )


def _expected_s(rate: Rate, alone: Mapping[tuple[int, int], float]) -> float:
    """Return the seconds if a GPU's link were all that its own writes, or those to it, share."""
    busy: Mapping[tuple[str, int], list[float]] = defaultdict(list)
    for writer, target in rate.writes:
        seconds = rate.size_bytes / alone[writer, target]
        busy["from", writer].append(seconds)
        busy["to", target].append(seconds)
    return max(map(sum, busy.values()))


def _against_the_host(tried: Tried) -> Iterator[Conclusion]:
    """Find pairs that are slower than the way over the host's memory may be."""
    host = {
        copy.gpu: copy.size_bytes / median(copy.seconds) for copy in tried.copies if copy.to_gpu
    }
    alone = alone_rates(tried)
    slow = {
        pair: rate
        for pair, rate in alone.items()
        if pair[1] in host and rate < SLOW_BELOW * host[pair[1]]
    }
    if slow:
        worst = min(slow, key=slow.__getitem__)
        yield Conclusion(
            name="p2p-slower-than-host",
            sentence=f"{len(slow)} of {len(alone)} ways between GPUs have less than half the rate "
            f"of a copy from the host; from GPU {worst[0]} to {worst[1]} {units.rate(slow[worst])} "
            f"against {units.rate(host[worst[1]])}",
            seen=tuple(
                Seen(HERE, f"GPU {a} to {b}", units.rate(rate)) for (a, b), rate in slow.items()
            ),
            next_action="measure NCCL_P2P_DISABLE=1 against it (collectives.sweep --p2p on,off): "
            "the host's memory may be faster here",
            confidence="likely",
        )


def _by_path(host: Host) -> Iterator[Conclusion]:
    """Find a nearer class of paths that is slower than a farther one."""
    by_class: Mapping[str, list[float]] = defaultdict(list)
    for (writer, target), rate in alone_rates(host.tried or Tried()).items():
        pair = host.pair(writer, target)
        if pair is not None and pair.kind is not None:
            by_class[pair.kind].append(rate)
    known = [(name, median(by_class[name])) for name in NEAREST if name in by_class]
    for (near, slow), (far, fast) in pairwise(known):
        if slow < NEAR_BELOW * fast:
            yield Conclusion(
                name="near-slower-than-far",
                sentence=f"{near} pairs write at {units.rate(slow)} and {far} pairs at "
                f"{units.rate(fast)}: the nearer ones are slower",
                seen=(
                    Seen(HERE, near, units.rate(slow)),
                    Seen(HERE, far, units.rate(fast)),
                ),
                next_action="look for ACS redirection and a shared uplink on the near ones",
                confidence="hint",
            )


def _probe(host: Host) -> Iterator[Conclusion]:
    probed = host.probed
    if probed is None:
        return
    if probed.broken is not None:
        hangs = probed.broken.kind == "hang"
        yield Conclusion(
            name="collective-hangs" if hangs else "collective-fails",
            sentence=f"{probed.broken.step} {_ended(probed.broken)}",
            seen=(Seen(HERE, probed.broken.step, probed.broken.reason),),
            next_action="try it with NCCL_P2P_DISABLE=1: if it ends then, peer access is at fault "
            "(ACS, IOMMU, driver); if not, with NCCL_SHM_DISABLE=1",
        )
    if probed.wrong:
        yield Conclusion(
            name="corrupt-values",
            sentence=f"{probed.wrong} sums of a first all-reduce over {probed.ranks} GPUs are "
            "wrong",
            seen=(Seen(HERE, "all-reduce", f"{probed.wrong} values"),),
            next_action="try it with NCCL_P2P_DISABLE=1 and with NCCL_PROTO=LL,Simple; measure "
            "nothing before it is right",
        )


def alone_rates(tried: Tried) -> dict[tuple[int, int], float]:
    """Return bytes a second of each write that ran alone, by writer and target."""
    return {
        rate.writes[0]: bytes_per_s(rate)
        for rate in tried.rates
        if rate.kind == "alone" and not rate.wrong
    }


def bytes_per_s(rate: Rate) -> float:
    """Return the bytes a second of all writes together, by the median sample."""
    return len(rate.writes) * rate.size_bytes / median(rate.seconds)


def _ways(check: Check) -> str:
    return f"GPU {check.writer} to {check.target} by {check.way}"


def _counted(check: Check) -> str:
    return f"{check.lost} lost and {check.wrong} changed of {check.words} words"


def _crowd(rate: Rate) -> str:
    if rate.kind == "both ways":
        return f"GPU {listed([str(gpu) for gpu in rate.writes[0]])} in both ways at once"
    kinds: dict[str, str] = {"ring": "a ring over all GPUs", "all to all": "all to all at once"}
    return kinds.get(rate.kind, f"GPU {rate.writes[0][0]} to {rate.writes[0][1]}")
