"""A pass of a GPU without each part and with each part alone, captured where the whole pass was."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from graphs import ablation, capture
from graphs._stub.asked import PassMode
from graphs._stub.messages import Ablated
from graphs._stub.timing import Runnable
from graphs._stub.work import OUTSIDE, WARM_UP_S, Work, facts_of, rule_of, timer_of
from graphs.capture import CaptureBroke, RecordedNothing
from graphs.stub import Pass
from verifyscope.alternate import alternate, warm_up
from verifyscope.clock import Timer
from verifyscope.stats import summarise


def take_apart(work: Work) -> None:
    """Time the pass without each part and with each part alone, in turn."""
    mode: PassMode = "graph" if "graph" in work.modes else "eager"
    parts = work.stub.parts
    passes = {
        ablation.WHOLE: work.stub.full(),
        **{ablation.name_without(part): work.stub.without({part}) for part in parts},
        **{ablation.name_only(part): work.stub.only({part}) for part in parts},
    }
    if mode == "eager":
        passes[ablation.NOTHING] = work.stub.without(parts)
    timers: dict[str, Timer] = {}
    for name, one in passes.items():
        timers[name] = timer_of(work, _as(work, mode, one))
        work.beat()
    rule = rule_of(work)
    warm_up(timers, seconds=WARM_UP_S, now=work.ranks.now)
    with work.device.conditions() as conditions:
        rounds = alternate(timers, rule=rule, now=work.ranks.now)
    by_part = work.seen[mode].by_part
    account = ablation.account(rounds, parts, in_context=by_part)
    work.send(
        Ablated(
            mode=mode,
            account=account,
            samples=rounds.samples,
            facts=facts_of(rounds, rule),
            reduce_by_rank_s=_reduces(work, by_part),
            conditions=conditions.summary(),
            throttled=conditions.throttled(),
        )
    )


def _as(work: Work, mode: PassMode, passed: Pass) -> Runnable:
    if mode == "eager":
        return passed
    try:
        found = capture.capture(passed, outside=OUTSIDE[mode], recorder=work.recorder)
        found.require_nodes()
        return found
    except RecordedNothing as error:
        return _Nothing(str(error))
    except CaptureBroke as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise error.__cause__ from None
        raise RuntimeError(f"a pass without some parts could not be captured: {error}") from error


@dataclass(frozen=True, slots=True)
class _Nothing:
    """What a pass without a node is timed as: not at all, with the reason."""

    reason: str

    def run(self) -> None:
        raise RecordedNothing(self.reason)

    def restore(self) -> None:
        return


def _reduces(work: Work, by_part: Mapping[str, tuple[float, ...]] | None) -> tuple[float, ...]:
    """Return what each rank spent in the all-reduces of the layers, waiting included."""
    own = (by_part or {}).get("all_reduce", ())
    if not work.ranks.agree(bool(own)):
        return ()
    return tuple(row[0] for row in work.ranks.gathered([summarise(own).median]))
