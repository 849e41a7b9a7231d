"""What each lever would give, alone and together with those above it.

    rest        = pass now x (1 / share - 1)          draft and host; 0 where no share is given
    tokens/s    = requests x accepted / (pass + rest)
    break-even  = (pass + rest) / plain token, which the same levers make faster

A lever changes a `Setting` (how the pass is launched, how long an all-reduce is, ...); `simulate`
says what a pass takes in a setting. Where the pass was observed, what the simulation does not
explain stays: pass = simulated + (observed - simulated now). No pass is ever below the byte floor
of its rows: one that would be is held there and says so.

Without a known acceptance there is a range: 1 to as many tokens as there are rows. Fewer rows keep
the chance of a draft to be accepted: accepted = 1 + p + ... + p^(rows - 1), from which p is found.
Seconds throughout; nothing here knows where a number comes from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from verifyscope import speculation
from verifyscope.records import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a pass is run. all_reduce_scale is of its time now; `accepted` None is not known."""

    rows: int
    launch: Launch
    all_reduce_scale: float = 1.0
    fused_norms: bool = False
    experts_at_floor: bool = False
    attention_at_floor: bool = False
    accepted: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A lever by name: what it changes, and where its size comes from.

    `apply` is None where that is not known, and then `how` says what to give.
    """

    name: str
    how: str
    apply: Callable[[Setting], Setting] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a setting is worth. tokens_per_s: of all requests, the least and the most, equal where
    it is known.

    held: the pass would be below its byte floor and is held there.
    """

    pass_s: float
    tokens_per_s: tuple[float, float]
    break_even: float | None
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A lever alone and with all those above it; both None where its size is not known."""

    name: str
    how: str
    alone: Worth | None
    together: Worth | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """What a pass stands in: the rest of a cycle, a plain token, and what nobody can beat.

    plain_s: a plain token in a setting, None where it is not known. floor_s: the byte floor of a
    pass of so many rows. observed_s: the pass as somebody saw it. requests: at once in it.
    """

    simulate: Callable[[Setting], float]
    floor_s: Callable[[int], float]
    plain_s: Callable[[Setting], float] | None = None
    observed_s: float | None = None
    share: float | None = None
    requests: int = 1

    def now_s(self, now: Setting) -> float:
        """Return the pass as it is."""
        return self.simulate(now) if self.observed_s is None else self.observed_s


def table(now: Setting, levers: Sequence[Lever], cycle: Cycle) -> list[Row]:
    """Return a row for now and one for each lever, in their order."""
    rows = [_row("now", "nothing changed", now, now, now=now, cycle=cycle)]
    so_far = now
    for lever in levers:
        if lever.apply is None:
            rows.append(Row(name=lever.name, how=lever.how, alone=None, together=None))
            continue
        so_far = lever.apply(so_far)
        rows.append(_row(lever.name, lever.how, lever.apply(now), so_far, now=now, cycle=cycle))
    return rows


def worth(setting: Setting, *, now: Setting, cycle: Cycle) -> Worth:
    """Return what a setting is worth beside `now`."""
    now_s = cycle.now_s(now)
    rest_s = 0.0 if cycle.share is None else speculation.cycle_s(now_s, share=cycle.share) - now_s
    unexplained_s = now_s - cycle.simulate(now)
    wanted_s, floor_s = cycle.simulate(setting) + unexplained_s, cycle.floor_s(setting.rows)
    pass_s = max(wanted_s, floor_s)
    cycle_s = pass_s + rest_s
    most = setting.rows if setting.accepted is None else setting.accepted
    least = 1.0 if setting.accepted is None else setting.accepted
    return Worth(
        pass_s=pass_s,
        tokens_per_s=(
            cycle.requests * speculation.tokens_per_s(least, cycle_s=cycle_s),
            cycle.requests * speculation.tokens_per_s(most, cycle_s=cycle_s),
        ),
        break_even=None
        if cycle.plain_s is None
        else speculation.break_even_accepted(cycle_s, plain_token_s=cycle.plain_s(setting)),
        held=wanted_s < floor_s,
    )


def fewer_rows(setting: Setting, rows: int) -> Setting:
    """Return `setting` with so many rows, each draft as likely to be accepted as before."""
    if setting.accepted is None or rows >= setting.rows:
        return replace(setting, rows=min(rows, setting.rows))
    chance = speculation.chain_step_acceptance(setting.accepted, drafts=setting.rows - 1)
    accepted = speculation.chain_accepted(chance, drafts=rows - 1)
    return replace(setting, rows=rows, accepted=accepted)


def _row(
    name: str, how: str, alone: Setting, together: Setting, *, now: Setting, cycle: Cycle
) -> Row:
    return Row(
        name=name,
        how=how,
        alone=worth(alone, now=now, cycle=cycle),
        together=worth(together, now=now, cycle=cycle),
    )
