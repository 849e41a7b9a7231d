"""What the layers of a stub hold, and how many distinct ones a device is given.

    held(layer)    = all its weights, every expert of them, and its cache
    touched(layer) = what a pass reads of it: of the experts only those that are chosen
    sets           = all layers where they fit, else the least with sets x touched >= 3 x L2

Fewer would leave a layer's weights in the L2 until the pass comes back to them. Bytes throughout.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from graphs.layers import Forward, Section
from graphs.ops import ELEMENT_BYTES, Op
from verifyscope.errors import UsageError
from verifyscope.units import bytes_

CACHES_TO_PASS = 3
# For activations, workspaces of kernels, graphs and what torch does not use again at once.
USABLE_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes that a section's layer holds and reads, and how many distinct layers there are."""

    section: str
    layers: int
    layer_bytes: int
    touched_bytes: int
    sets: int

    @property
    def bytes(self) -> int:
        """Return what all distinct layers take."""
        return self.sets * self.layer_bytes


def plan(
    asked: Forward, *, free_bytes: int, cache_bytes: int | None, wanted: int | None, page_size: int
) -> tuple[Held, ...]:
    """Choose the distinct layers of each section; `UsageError` if what is needed does not fit.

    cache_bytes: of the L2; None where passes are not made cold. wanted: the number that was given.
    """
    whole = [_held(asked, one, page_size) for one in asked.sections]
    usable = int(free_bytes * USABLE_SHARE)
    if wanted is not None:
        chosen = [_with(one, min(wanted, one.layers)) for one in whole]
        _require(asked, chosen, usable, f"with --weight-sets {wanted}")
        return tuple(chosen)
    if _bytes(whole) <= usable:
        return tuple(whole)
    cold = [_with(one, _coldest(one, cache_bytes)) for one in whole]
    _require(asked, cold, usable, "in the fewest distinct layers that stay cold")
    return tuple(cold)


def free_host_bytes() -> int:
    """Return what this machine's memory has left for processes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def held_bytes(op: Op) -> float:
    """Return the bytes of all weights of an op, also of experts that nobody chose."""
    shape = op.shape
    if "distinct" in shape:
        return op.weight_bytes / shape["distinct"] * shape["experts"]
    if op.part == "embedding":
        return shape["vocab"] * shape["width"] * ELEMENT_BYTES
    return op.weight_bytes


def _held(asked: Forward, section: Section, page_size: int) -> Held:
    held = sum(map(held_bytes, section.ops))
    for op in section.ops:
        if op.part == "attention":
            tokens = asked.asked.context + asked.asked.rows
            pages = asked.asked.requests * -(-tokens // page_size) + 3
            held += pages * page_size * op.shape["entry"] * ELEMENT_BYTES
    touched = sum(op.weight_bytes + op.kv_bytes for op in section.ops)
    return Held(
        section=section.name,
        layers=section.count,
        layer_bytes=math.ceil(held),
        touched_bytes=math.ceil(touched),
        sets=section.count,
    )


def _with(one: Held, sets: int) -> Held:
    return Held(
        section=one.section,
        layers=one.layers,
        layer_bytes=one.layer_bytes,
        touched_bytes=one.touched_bytes,
        sets=sets,
    )


def _coldest(one: Held, cache_bytes: int | None) -> int:
    if cache_bytes is None or not one.touched_bytes:
        return 1
    return max(1, min(one.layers, math.ceil(CACHES_TO_PASS * cache_bytes / one.touched_bytes)))


def _bytes(several: list[Held]) -> int:
    return sum(one.bytes for one in several)


def _require(asked: Forward, chosen: list[Held], usable: int, how: str) -> None:
    needed = _bytes(chosen)
    if needed > usable:
        given = asked.asked
        raise UsageError(
            f"{given.model.name} at --tp {given.tp} takes {bytes_(needed)} a rank {how}, and "
            f"{bytes_(usable)} can be used here; give a larger --tp, fewer --layers, a smaller "
            f"--context or fewer --requests"
        )
