"""The levers of the table What-if: what each changes, how much, and where that size comes from.

Graph capture, fused norms and faster parts follow from the prediction itself: a part can be as fast
as its floor and no faster. What another protocol or another all-reduce takes is given, measured
under a setting, or reported by others for such a machine; else it is not known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from graphs import what_if
from graphs._predicted import field, interpolation
from graphs._predicted.components import Component
from graphs._predicted.points import Point
from graphs.layers import Pass
from graphs.what_if import Lever, Setting
from verifyscope import units

_NORMS_AFTER = ("input_norm", "post_attention_norm", "final_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a user says of levers: seconds of an all-reduce, rows, accepted tokens."""

    protocol_s: float | None = None
    one_shot_s: float | None = None
    fewer_rows: int | None = None
    accepted: float | None = None


def levers(
    found: Sequence[Component], asked: Pass, *, gpu: str, points: Sequence[Point], sizes: Sizes
) -> list[Lever]:
    """Return the levers of a pass, in the order in which they are put together."""
    every = [Lever(name="graph capture", how="one launch, collectives captured", apply=_captured)]
    if asked.tp > 1:
        every += _of_all_reduces(found, asked, gpu=gpu, points=points, sizes=sizes)
        count = sum(one.line.calls for one in found if one.line.op.name in _NORMS_AFTER)
        every.append(
            Lever(
                name="fused norm",
                how=f"{count} norms run inside the all-reduce before them",
                apply=lambda setting: replace(setting, fused_norms=True),
            )
        )
    for name, part, apply in _FASTER:
        mine = [one for one in found if one.line.op.part == part]
        if mine:
            every.append(Lever(name=name, how=_to_floor(mine), apply=apply))
    return [*every, *(_of_speculation(asked, sizes) if asked.rows > 1 else ())]


def changed(found: Sequence[Component], setting: Setting) -> list[Component]:
    """Return the components of a pass as a setting has them."""
    kept = [one for one in found if not (setting.fused_norms and one.line.op.name in _NORMS_AFTER)]
    return [_changed(one, setting) for one in kept]


def _changed(one: Component, setting: Setting) -> Component:
    part = one.line.op.part
    at_floor = (part == "routed_experts" and setting.experts_at_floor) or (
        part == "attention" and setting.attention_at_floor
    )
    if at_floor and one.seconds is not None and one.line.seconds is not None:
        return replace(one, seconds=min(one.seconds, one.line.seconds))
    if part in ("all_reduce", "embedding_all_reduce") and one.seconds is not None:
        return replace(one, seconds=one.seconds * setting.all_reduce_scale)
    return one


def _captured(setting: Setting) -> Setting:
    return replace(setting, launch="graph")


def _faster_experts(setting: Setting) -> Setting:
    return replace(setting, experts_at_floor=True)


def _faster_attention(setting: Setting) -> Setting:
    return replace(setting, attention_at_floor=True)


_FASTER: tuple[tuple[str, str, Callable[[Setting], Setting]], ...] = (
    ("faster MoE", "routed_experts", _faster_experts),
    ("faster attention", "attention", _faster_attention),
)


def _of_all_reduces(
    found: Sequence[Component],
    asked: Pass,
    *,
    gpu: str,
    points: Sequence[Point],
    sizes: Sizes,
) -> list[Lever]:
    first = next(one for one in found if one.line.op.part == "all_reduce")
    size = first.line.op.message_bytes or 0
    protocol = _given(sizes.protocol_s, "--protocol-us") or _by_setting(points, asked, size)
    one_shot = _given(sizes.one_shot_s, "--one-shot-us")
    if field.counts_for(asked, gpu=gpu):
        protocol = protocol or _reported(field.PROTOCOL, size)
        one_shot = one_shot or _reported(field.ONE_SHOT, size)
    return [
        _all_reduce("protocol", protocol, first, "--protocol-us, or a sweep of it in --measured"),
        _all_reduce("one-shot all-reduce", one_shot, first, "--one-shot-us"),
    ]


def _all_reduce(
    name: str, time: tuple[float, str] | None, now: Component, what_to_give: str
) -> Lever:
    if time is None or now.seconds is None:
        missing = what_to_give if now.seconds is not None else "the all-reduce's time now"
        return Lever(name=name, how=f"not known: give {missing}", apply=None)
    seconds, source = time
    scale = min(1.0, seconds / now.seconds)
    words = f"{units.seconds(seconds)} and not {units.seconds(now.seconds)} each: {source}"
    if scale == 1:
        words = f"{units.seconds(seconds)}, no quicker than now: {source}"
    return Lever(
        name=name,
        how=words,
        apply=lambda setting: replace(
            setting, all_reduce_scale=min(setting.all_reduce_scale, scale)
        ),
    )


def _to_floor(mine: Sequence[Component]) -> str:
    if all(one.basis == "floor" for one in mine):
        return "counted at its floor already: no time of a kernel is known"
    if any(one.bound for one in mine):
        return "from an upper bound to the floor of its bytes, more than there is"
    return "at the floor of its bytes, the most there is"


def _of_speculation(asked: Pass, sizes: Sizes) -> list[Lever]:
    fewer = sizes.fewer_rows or asked.rows - 1
    most = sizes.accepted
    if most is None:
        how = "every draft accepted, the most there is"
    else:
        how = f"{most:g} tokens a pass, given"
    return [
        Lever(
            name="fewer rows",
            how=f"{fewer} of {asked.rows} rows, each draft as likely to be accepted",
            apply=lambda setting: what_if.fewer_rows(setting, fewer),
        ),
        Lever(
            name="higher acceptance",
            how=how,
            apply=lambda setting: replace(
                setting, accepted=min(float(setting.rows), most or float(setting.rows))
            ),
        ),
    ]


def _given(seconds: float | None, option: str) -> tuple[float, str] | None:
    return None if seconds is None else (seconds, f"given by {option}")


def _by_setting(points: Sequence[Point], asked: Pass, size: int) -> tuple[float, str] | None:
    """Return the fastest all-reduce that somebody measured under a setting."""
    groups: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for point in points:
        at = point.whole("bytes")
        if point.part == "all_reduce" and point.settings and point.ranks == asked.tp and at:
            words = " ".join(f"{name}={value}" for name, value in sorted(point.settings.items()))
            groups.setdefault((words, point.origin), []).append((at, point.seconds))
    timed = [
        (found.seconds, f"{words}; {origin}")
        for (words, origin), times in groups.items()
        if (found := interpolation.at(size, interpolation.medians(times))) is not None
    ]
    return min(timed, default=None)


def _reported(told: field.AllReduces, size: int) -> tuple[float, str] | None:
    found = interpolation.at(size, told.seconds)
    return None if found is None else (found.seconds, told.source)
