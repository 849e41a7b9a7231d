"""What each op of a pass takes where somebody measured it, and its floor where nobody did.

Of several implementations the fastest counts, for a part can be had as fast as that; of a
collective NCCL's own table, where there is one. Measured times go before published ones. Between
two sizes a time is linear, outside of them it is not known. A collective without a source is not
known, and never 0.

Attention of several rows that only tables of decoding have is bounded from above: as many sequences
as there are rows read the cache that often, a verify once. A time that is below the floor of its
own bytes at the nominal bandwidth did not come from memory and is left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from graphs._predicted import interpolation
from graphs._predicted.interpolation import Between
from graphs._predicted.points import Point
from graphs.layers import Pass
from graphs.ops import Op
from graphs.prediction import Line, Prediction
from verifyscope.models import Mla
from verifyscope.records import Value
from verifyscope.roofline import floor_s

Basis = Literal["given", "measured", "public", "floor", "not known"]
_COLLECTIVES: Mapping[str, str] = {
    "all_reduce": "all_reduce",
    "embedding_all_reduce": "all_reduce",
    "logits_all_gather": "all_gather",
}
_PREFERRED = "nccl"
_TWO_BYTES = ("bfloat16", "float16", "half")
_SHARED = ("shared_expert_gate_up", "shared_expert_down")
_ROUTED = ("experts_gate_up", "experts_down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """An op's line and the seconds of one call by somebody's measure, else by its floor.

    bound: the time is an upper bound here; how: whose it is, and for which case.
    """

    line: Line
    seconds: float | None
    basis: Basis
    how: str
    bound: bool = False

    @property
    def pass_s(self) -> float | None:
        """Return the seconds of all calls of a pass."""
        return None if self.seconds is None else self.seconds * self.line.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Components added up. `complete` is False if some of them are not known."""

    seconds: float
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which points tell of an op: what they must say, and along which dim they may differ.

    fixed: dims that must have one of these values where a point names them; needed: those that it
    must name. shares: the ops that one call of such a point does together, in each layer.
    """

    part: str
    fixed: Mapping[str, tuple[Value, ...]]
    needed: tuple[str, ...]
    axis: str
    at: int
    shares: tuple[str, ...]
    ranks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    seconds: float
    how: str
    implementation: str
    bound: bool = False


def components(prediction: Prediction, points: Sequence[Point]) -> tuple[Component, ...]:
    """Return a component for each line of a prediction, in its order."""
    return tuple(_component(line, prediction, points) for line in prediction.lines)


def total(found: Iterable[Component]) -> Total:
    """Return the sum over a pass."""
    passes = [one.pass_s for one in found]
    known = [seconds for seconds in passes if seconds is not None]
    return Total(seconds=sum(known), complete=len(known) == len(passes))


def _component(line: Line, prediction: Prediction, points: Sequence[Point]) -> Component:
    collective = line.op.message_bytes is not None
    if collective and line.seconds is not None:
        return Component(line=line, seconds=line.seconds, basis="given", how=line.how)
    for basis in ("measured", "public"):
        mine = [point for point in points if point.basis == basis]
        found = _own(line, prediction, mine) or _best(line, prediction, mine)
        if found is not None:
            return Component(
                line=line,
                seconds=found.seconds,
                basis="measured" if basis == "measured" else "public",
                how=found.how,
                bound=found.bound,
            )
    if collective:
        return Component(line=line, seconds=None, basis="not known", how=line.how)
    return Component(line=line, seconds=line.seconds, basis="floor", how="bytes and flops")


def _own(line: Line, prediction: Prediction, points: Sequence[Point]) -> _Found | None:
    """Return the time of this very op on this very pass, as a run of the layers records it."""
    asked = prediction.forward.asked
    wanted: dict[str, Value] = {
        "model": asked.model.name,
        "tp": asked.tp,
        "rows": asked.rows,
        "requests": asked.requests,
        "context": asked.context,
    }
    same = [
        point
        for point in points
        if (point.part, point.op) == (line.op.part, line.op.name)
        and all(point.dim(name) == value for name, value in wanted.items())
    ]
    if not same:
        return None
    best = min(same, key=lambda point: point.seconds)
    how = f"{best.implementation}; {best.origin}"
    return _Found(seconds=best.seconds, how=how, implementation=best.implementation)


def _best(line: Line, prediction: Prediction, points: Sequence[Point]) -> _Found | None:
    """Return the fastest that is known of an op, as this op's share of it."""
    for wanted, bound in _wanted(line.op, prediction.forward.asked, points):
        share = _share(line, prediction, wanted.shares)
        found = [
            replace(one, seconds=one.seconds * share, bound=bool(bound))
            for one in _all(wanted, points, note=bound)
            if one.seconds * share >= _quickest_s(line, prediction)
        ]
        preferred = [one for one in found if one.implementation.startswith(_PREFERRED)]
        if line.op.message_bytes is not None and preferred:
            found = preferred
        if found:
            return min(found, key=lambda one: one.seconds)
    return None


def _wanted(op: Op, asked: Pass, points: Sequence[Point]) -> Iterator[tuple[_Wanted, str]]:
    """Yield what to look for, the best first, each with what to say of it."""
    if op.part in _COLLECTIVES:
        yield _collective(op, asked), ""
    elif op.part == "attention":
        exact = _attention(asked, rows=asked.rows, requests=asked.requests)
        yield exact, ""
        sequences = _next_batch(exact, points, least=asked.all_rows)
        if sequences is not None and asked.mode != "extend":
            rows = f"{asked.rows} rows" + (f" of {asked.requests}" if asked.requests > 1 else "")
            words = f" for {sequences} sequences, an upper bound for {rows}"
            yield _attention(asked, rows=1, requests=sequences), words
    elif op.name in _ROUTED or op.name in _SHARED or op.part in ("routing", "align"):
        yield _of_experts(op, asked), ""


def _collective(op: Op, asked: Pass) -> _Wanted:
    return _Wanted(
        part=_COLLECTIVES[op.part],
        fixed={"dtype": _TWO_BYTES, "in_place": (False,)},
        needed=("bytes",),
        axis="bytes",
        at=op.message_bytes or 0,
        shares=(op.name,),
        ranks=asked.tp,
    )


def _attention(asked: Pass, *, rows: int, requests: int) -> _Wanted:
    attention = asked.model.attention
    fixed: dict[str, tuple[Value, ...]] = {"rows": (rows,), "requests": (requests,)}
    if isinstance(attention, Mla):
        fixed |= {
            "heads": (asked.heads,),
            "latent": (attention.kv_lora_rank,),
            "rope": (attention.rope_dim,),
        }
        needed = ("rows", "requests", "heads", "latent", "context")
    else:
        fixed |= {
            "q_heads": (asked.heads,),
            "kv_heads": (max(1, attention.kv_heads // asked.tp),),
            "head_dim": (attention.head_dim,),
        }
        needed = ("rows", "requests", "q_heads", "kv_heads", "context")
    return _Wanted(
        part="attention",
        fixed=fixed | {"kv": ("bf16", "bfloat16")},
        needed=needed,
        axis="context",
        at=asked.context,
        shares=("attention",),
    )


def _of_experts(op: Op, asked: Pass) -> _Wanted:
    moe = asked.model.moe
    fixed: dict[str, tuple[Value, ...]] = {}
    if moe is not None:
        fixed = {"experts": (moe.experts,), "top_k": (moe.top_k,)}
    needed: tuple[str, ...] = ("rows", "experts")
    shares: tuple[str, ...] = (op.name,)
    if moe is not None and op.name in (*_ROUTED, *_SHARED):
        routed = op.name in _ROUTED
        formats = asked.model.formats
        form = formats.routed_experts if routed else formats.shared_expert
        width = moe.intermediate // asked.tp * (1 if routed else moe.shared_experts)
        fixed = (fixed if routed else {}) | {
            "hidden": (asked.model.hidden,),
            "intermediate": (width,),
            "format": (form.name.partition(" ")[0],),
            "shared": (0,),
            "routing": ("uniform", "balanced"),
        }
        needed = ("rows", "hidden", "intermediate", *(("experts",) if routed else ()))
        shares = _ROUTED if routed else _SHARED
    return _Wanted(
        part=op.part,
        fixed=fixed,
        needed=needed,
        axis="rows",
        at=asked.all_rows,
        shares=shares,
    )


def _next_batch(exact: _Wanted, points: Sequence[Point], *, least: int) -> int | None:
    """Return the fewest sequences of one token, at least `least`, that there are points of."""
    others = {name: values for name, values in exact.fixed.items() if name != "requests"}
    alike = [
        point.whole("requests") for point in points if _tells(point, exact, others | {"rows": (1,)})
    ]
    return min((count for count in alike if count is not None and count >= least), default=None)


def _all(wanted: _Wanted, points: Sequence[Point], *, note: str) -> Iterator[_Found]:
    """Yield the time of each implementation that has one at the wanted size; `note` is said."""
    groups: dict[tuple[str, str | None, str], list[tuple[int, float]]] = {}
    for point in points:
        size = point.whole(wanted.axis)
        if size is not None and not point.settings and _tells(point, wanted, wanted.fixed):
            key = (point.implementation, point.launch, point.origin)
            groups.setdefault(key, []).append((size, point.seconds))
    for (implementation, launch, origin), times in groups.items():
        found = interpolation.at(wanted.at, interpolation.medians(times))
        if found is not None:
            name = implementation if launch is None else f"{implementation} {launch}"
            how = f"{name}{_where(wanted, found)}{note}; {origin}"
            yield _Found(seconds=found.seconds, how=how, implementation=implementation)


def _tells(point: Point, wanted: _Wanted, fixed: Mapping[str, tuple[Value, ...]]) -> bool:
    return (
        point.part == wanted.part
        and (wanted.ranks is None or point.ranks == wanted.ranks)
        and all(name in point.dims for name in wanted.needed)
        and all(point.dims[name] in values for name, values in fixed.items() if name in point.dims)
    )


def _where(wanted: _Wanted, found: Between) -> str:
    if found.below == found.above:
        return ""
    unit = "B" if wanted.axis == "bytes" else wanted.axis
    return f" between {found.below:,} and {found.above:,} {unit}"


def _share(line: Line, prediction: Prediction, shares: Sequence[str]) -> float:
    """Return this op's part of what one call does together, by their floors."""
    if len(shares) == 1:
        return 1.0
    floors = [
        one.seconds or 0.0
        for one in prediction.lines
        if one.section == line.section and one.op.name in shares
    ]
    return (line.seconds or 0.0) / sum(floors) if sum(floors) else 1 / len(shares)


def _quickest_s(line: Line, prediction: Prediction) -> float:
    """Return what the op's bytes take at the nominal bandwidth; a collective has no such bytes."""
    nominal = prediction.gpu.dram_bytes_per_s
    if line.op.message_bytes is not None or nominal is None:
        return 0.0
    fastest = max(nominal, prediction.bandwidth.bytes_per_s)
    return floor_s(line.op.cost, bytes_per_s=fastest, flops_per_s=None)
