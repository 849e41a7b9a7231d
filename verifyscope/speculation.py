"""The arithmetic of speculative decoding: tokens a second = accepted tokens / seconds a cycle.

A cycle is one draft, one verify pass and what the host does between them. `accepted` is the
expected number of tokens that one cycle yields, the bonus token included: 1.0 is a drafter whose
every guess is refused. Seconds and tokens a second throughout; each function is one formula.
A time, rate or count that is not above zero raises ValueError.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from verifyscope import stats

_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a lever gives: seconds saved a cycle, and tokens a second without and with it."""

    saved_s: float
    before: float
    after: float

    @property
    def gain(self) -> float:
        """Return the change as a fraction of the rate without the lever."""
        return self.after / self.before - 1


def cycle_s(verify_s: float, *, share: float) -> float:
    """Return the cycle's seconds: verify / share, where share is verify's part of it, 0 .. 1."""
    _positive(verify_s=verify_s, share=share)
    if share > 1:
        raise ValueError(f"share must be at most 1, got {share}")
    return verify_s / share


def tokens_per_s(accepted: float, *, cycle_s: float) -> float:
    """Return accepted / cycle."""
    _positive(accepted=accepted, cycle_s=cycle_s)
    return accepted / cycle_s


def break_even_accepted(cycle_s: float, *, plain_token_s: float) -> float:
    """Return the accepted tokens at which speculation equals plain decoding: cycle / plain.

    By the whole cycle: draft and host are paid too. This is the number to decide by.
    """
    _positive(cycle_s=cycle_s, plain_token_s=plain_token_s)
    return cycle_s / plain_token_s


def break_even_accepted_by_verify(verify_s: float, *, plain_token_s: float) -> float:
    """Return the tokens a cycle of break-even if drafting and the host were free: verify / plain.

    The lower bound that a faster drafter can reach; never above `break_even_accepted`.
    """
    _positive(verify_s=verify_s, plain_token_s=plain_token_s)
    return verify_s / plain_token_s


def accepted_for(rate: float, *, cycle_s: float) -> float:
    """Return the accepted tokens a cycle that `rate` tokens a second need: rate x cycle."""
    _positive(rate=rate, cycle_s=cycle_s)
    return rate * cycle_s


def chain_acceptance(accepted: float) -> float:
    """Return the conditional acceptance a step of an endless chain: p = 1 - 1 / accepted.

    Each drafted token is accepted with p if all before it were, so that a cycle yields
    1 + p + p^2 + ... = 1 / (1 - p). A chain of finite length needs a higher p.
    """
    if not 1 <= accepted < float("inf"):
        raise ValueError(f"a cycle yields at least 1 token, got {accepted}")
    return 1 - 1 / accepted


def chain_accepted(step_acceptance: float, *, drafts: int) -> float:
    """Return what a chain of `drafts` tokens yields: 1 + p + p^2 + ... + p^drafts.

    Each drafted token is accepted with p = `step_acceptance`, 0 .. 1, if all before it were.
    """
    if not 0 <= step_acceptance <= 1:
        raise ValueError(f"the acceptance of a step is 0 to 1, got {step_acceptance}")
    return sum(step_acceptance**position for position in range(drafts + 1))


def chain_step_acceptance(accepted: float, *, drafts: int) -> float:
    """Return the p with which a chain of `drafts` tokens yields `accepted`: 1 .. drafts + 1."""
    if drafts < 1 or not 1 <= accepted <= drafts + 1:
        raise ValueError(f"{drafts} drafted tokens yield 1 to {drafts + 1}, got {accepted}")
    if accepted == 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        short = chain_accepted(middle, drafts=drafts) < accepted
        low, high = (middle, high) if short else (low, middle)
    return high


def worth(saved_s: float, *, cycle_s: float, accepted: float) -> Worth:
    """Return what `saved_s` less a cycle gives: accepted / cycle, and accepted / (cycle - saved).

    A negative `saved_s` is a lever that costs time. Acceptance is taken as unchanged.
    """
    if not saved_s < cycle_s:
        raise ValueError(f"cannot save {saved_s} s of a cycle of {cycle_s} s")
    return Worth(
        saved_s=saved_s,
        before=tokens_per_s(accepted, cycle_s=cycle_s),
        after=tokens_per_s(accepted, cycle_s=cycle_s - saved_s),
    )


def average_by_run(tokens: Sequence[float], seconds: Sequence[float]) -> float:
    """Return sum(tokens / seconds) / runs: the mean of the rates, each run counted alike."""
    pairs = _runs(tokens, seconds)
    return sum(count / time for count, time in pairs) / len(pairs)


def average_by_token(tokens: Sequence[float], seconds: Sequence[float]) -> float:
    """Return sum(tokens) / sum(seconds): the rate of all runs taken as one."""
    pairs = _runs(tokens, seconds)
    return sum(count for count, _ in pairs) / sum(time for _, time in pairs)


def run_z_scores(tokens: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """Return the modified z-score of each run's tokens / seconds; negative is slower.

    Take tokens and seconds as they were measured: rates rounded for print give other scores.
    """
    return stats.modified_z_scores([count / time for count, time in _runs(tokens, seconds)])


def outlier_runs(tokens: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """Return the positions of the runs that score above stats.OUTLIER_Z in absolute value."""
    scores = run_z_scores(tokens, seconds)
    return [at for at, score in enumerate(scores) if abs(score) > stats.OUTLIER_Z]


def _runs(tokens: Sequence[float], seconds: Sequence[float]) -> list[tuple[float, float]]:
    if not tokens or len(tokens) != len(seconds):
        raise ValueError(f"need tokens and seconds of each run, got {len(tokens)}, {len(seconds)}")
    for count, time in zip(tokens, seconds, strict=True):
        _positive(tokens=count, seconds=time)
    return list(zip(tokens, seconds, strict=True))


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be a number above zero, got {value}")
