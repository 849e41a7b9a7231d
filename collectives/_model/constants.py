"""The constants of NCCL's cost model by version: latencies in us, bandwidths in GB/s (1e9 bytes/s).

    constants((2, 29))       those of the last release of 2.29; (2, 29, 2) those of that release

Read from src/graph/tuning.cc of the releases 2.18.1 to 2.30.7, tag by tag. What changed when:

    2.18.3   the hop of Tree Simple; a plain tree costs 15 % of its bandwidth
    2.19     the hop of Tree Simple becomes 28 us: Tree Simple is never picked up to 2.22
    2.21     LL moves half of the bus, before a quarter; its ceiling on Hopper is 141 GB/s, not 87.7
    2.23     the base of Tree Simple is 8.4 us, before 0; its hop is 4 us again; PAT
    2.25     Blackwell has ceilings of its own, before it counts as Hopper
    2.28, 2.29.2, 2.29.7   the ceilings of Blackwell

Which row counts: by the GPUs of one node; LL between nodes goes by the processor's vendor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Version = tuple[int, ...]
Hop = Literal["nvlink", "pci", "net"]
Latencies = Mapping[tuple[str, str], float]

FIRST, LAST = (2, 18), (2, 30)
_LATEST_PATCH = 99

# By protocol: ll, ll128, simple.
_Row = tuple[float, float, float]
# Ceilings by nodes: one, two, more.
_Ceilings = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What one version puts into the formulas of `_cost_model`; `*_gb_s` are ceilings by nodes.

    ll_share: the part of the bus that Ring LL moves; for other functions than all-reduce on one
        node `ll_share_of_others`. ring_ll128_alone: the part of Ring LL128 with one GPU a node.
    extra_net_hop: up to 2.22 a ring over nodes counts 2 x nodes hops of the network, not
        2 x (nodes - 1), and takes the ring's own network latency with one GPU a node, too.
    """

    version: Version
    base_us: Latencies
    hop_us: Mapping[Hop, Latencies]
    nvls_us: float
    nvls_efficiency: float | None
    ll_gb_s: _Ceilings
    ring_ll128_gb_s: _Ceilings
    tree_ll128_gb_s: _Ceilings
    tree_gb_s: _Ceilings
    ll_share: float
    ll_share_of_others: float
    ring_ll128_alone: float
    plain_tree: float
    pat_share: float | None
    extra_net_hop: bool
    ll128_capabilities: tuple[int, ...] | None
    ll128_paths: tuple[str, ...]


# By GPU class, or for LL between nodes Intel, AMD.
_LL = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
_LL128 = {"volta": (20.0, 20.0, 20.0), "ampere": (20.0, 20.0, 20.0)}
_TREE = {"volta": (26.5, 18.5, 10.0), "ampere": (24.0, 23.6, 17.8), "hopper": (38.7, 41.4, 36.0)}
_NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}

_RING_HOPS: Mapping[Hop, _Row] = {
    "nvlink": (0.6, 1.9, 3.4),
    "pci": (1.0, 2.5, 5.7),
    "net": (2.7, 4.0, 14.0),
}
_TREE_HOPS: Mapping[Hop, tuple[float, float]] = {
    "nvlink": (0.6, 1.25),
    "pci": (1.0, 1.9),
    "net": (5.0, 8.5),
}


def constants(version: Version, *, capability: int, nodes: int = 1, amd: bool = False) -> Constants:
    """Return the constants of `version` for GPUs of `capability` (10 x major + minor).

    A version without a patch is the last release of it. After LAST, those of LAST.
    amd: the processors are AMD's; it counts between nodes only.
    """
    if version < FIRST:
        raise ValueError(f"NCCL {'.'.join(map(str, version))} is before 2.18, the first one known")
    exact = min((*version[:3], _LATEST_PATCH)[:3], (*LAST, _LATEST_PATCH))
    gpu = _gpu_class(exact, capability)
    return Constants(
        version=version,
        base_us=_base(exact),
        hop_us=_hops(exact),
        nvls_us=25.0 if exact >= (2, 21) else 23.0,
        nvls_efficiency=_NVLS_EFFICIENCY.get(gpu, 0.0) if exact >= (2, 28) else None,
        ll_gb_s=_ll(exact, gpu if nodes == 1 else "ampere" if amd else "volta"),
        ring_ll128_gb_s=_ring_ll128(exact, gpu),
        tree_ll128_gb_s=_tree_ll128(exact, gpu),
        tree_gb_s=_tree(exact, gpu),
        ll_share=0.5 if exact >= (2, 21) else 0.25,
        ll_share_of_others=0.5 if exact >= (2, 21) else 1 / 3,
        ring_ll128_alone=0.92 if exact >= (2, 23) else 0.7,
        plain_tree=0.85 if exact >= (2, 18, 3) else 1.0,
        pat_share=None if exact < (2, 23) else 0.85 if exact < (2, 24) else 0.75,
        extra_net_hop=exact < (2, 23),
        ll128_capabilities=_ll128_capabilities(exact),
        ll128_paths=("LOC", "NVL", "NVB") if exact >= (2, 18, 3) else ("LOC", "NVL"),
    )


def _gpu_class(version: Version, capability: int) -> str:
    newest = "blackwell" if version >= (2, 25) else "hopper"
    if capability >= 100:
        return newest
    return "hopper" if capability >= 90 else "ampere" if capability >= 80 else "volta"


def _base(version: Version) -> Latencies:
    tree_simple = 8.4 if version >= (2, 23) else 0.0
    rows = {"tree": (6.8, 14.0, tree_simple), "ring": (6.6, 14.0, 8.4), "pat": (8.0, 8.0, 8.0)}
    return _by_protocol(rows)


def _hops(version: Version) -> Mapping[Hop, Latencies]:
    tree_simple: Mapping[Hop, float] = {"nvlink": 4.0, "pci": 4.0, "net": 14.0}
    if version < (2, 18, 3) or (2, 19) <= version < (2, 23):
        tree_simple = {"nvlink": 28.0, "pci": 28.0, "net": 28.0}
    elif version < (2, 19):
        tree_simple = {"nvlink": 4.0, "pci": 6.0, "net": 14.0}
    return MappingProxyType(
        {
            hop: _by_protocol({"ring": ring, "tree": (*_TREE_HOPS[hop], tree_simple[hop])})
            for hop, ring in _RING_HOPS.items()
        }
    )


def _by_protocol(rows: Mapping[str, _Row]) -> Latencies:
    return MappingProxyType(
        {
            (algorithm, protocol): value
            for algorithm, row in rows.items()
            for protocol, value in zip(("ll", "ll128", "simple"), row, strict=True)
        }
    )


def _ll(version: Version, row: str) -> _Ceilings:
    return _LL["ampere"] if row == "hopper" and version < (2, 21) else _LL[row]


def _ring_ll128(version: Version, gpu: str) -> _Ceilings:
    if gpu == "hopper":
        return (36.7, 36.7, 36.7)
    if gpu != "blackwell":
        return _LL128[gpu]
    if version < (2, 28, 7):
        return (73.4, 73.4, 73.4)
    if version < (2, 29):
        return (73.4, 34.6, 73.4)
    return (34.5, 34.6, 34.5) if version < (2, 29, 7) else (40.0, 40.0, 40.0)


def _tree_ll128(version: Version, gpu: str) -> _Ceilings:
    if gpu == "hopper":
        return (36.7, 36.7, 29.0 if version >= (2, 18, 3) else 36.7)
    if gpu != "blackwell":
        return _LL128[gpu]
    return (73.4, 73.4, 58.0) if version < (2, 28) else (55.6, 31.67, 20.0)


def _tree(version: Version, gpu: str) -> _Ceilings:
    if gpu == "hopper" and version < (2, 18, 3):
        return (38.7, 41.4, 33.0)
    if gpu != "blackwell":
        return _TREE[gpu]
    return (77.4, 82.8, 72.0) if version < (2, 28) else (70.0, 42.8, 24.0)


def _ll128_capabilities(version: Version) -> tuple[int, ...] | None:
    """Return the only capabilities with LL128; None where every one from 7.0 on has it."""
    if version >= (2, 27):
        return None
    return (70, 80, 90, 100, 120) if version >= (2, 25) else (70, 80, 90)
