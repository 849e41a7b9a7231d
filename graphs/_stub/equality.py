"""Whether a captured pass follows another step: other lengths, another tree, other pages.

Between capture and replay the tensors that describe the step are filled anew, and attention plans
again where it plans at all. The logits of the replay must be those of an eager pass whose attention
was prepared for the new step: bit for bit, or, where eager passes differ from each other, within
NOISE times that.

    error = max over rows of |got - want| / |want|, norms over the row
"""

from collections.abc import Callable, Mapping

import torch

from graphs._stub.asked import PassMode
from graphs._stub.cache import others
from graphs._stub.messages import Replayed
from graphs._stub.timing import Runnable
from graphs.stub import Stub

NOISE = 4.0


def check(
    stub: Stub,
    captured: Mapping[PassMode, Runnable],
    *,
    synchronize: Callable[[], None],
) -> list[Replayed]:
    """Hold each captured mode to eager on steps like the first one and unlike it."""
    found: list[Replayed] = []
    for changed, drafts in [("", stub.drafts), *others(stub.case)]:
        stub.metadata.fill(drafts)
        replays = {mode: _replayed(stub, one) for mode, one in captured.items()}
        with stub.renewed():
            want = stub.full().run().clone()
            again = stub.full().run().clone()
        synchronize()
        noise = row_error(again, want)
        found += [_judged(mode, changed, got, want, noise) for mode, got in replays.items()]
    stub.metadata.fill(stub.drafts)
    stub.replan()
    synchronize()
    return found


def row_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest relative error of a row; infinite where `got` is not finite."""
    difference = (got.double() - want.double()).norm(dim=-1)
    error = float((difference / want.double().norm(dim=-1)).max())
    return error if error == error else float("inf")


def _replayed(stub: Stub, one: Runnable) -> torch.Tensor:
    stub.replan()
    got = one.run()
    if not isinstance(got, torch.Tensor):
        raise TypeError("a captured pass gave no logits")
    return got.clone()


def _judged(
    mode: PassMode, changed: str, got: torch.Tensor, want: torch.Tensor, noise: float
) -> Replayed:
    error = row_error(got, want)
    problem = None
    if error > NOISE * noise:
        spread = f", and eager from itself by {noise:.1e}" if noise else ""
        problem = f"differs from eager by {error:.1e} of a row{spread}"
    return Replayed(
        mode=mode,
        changed=changed,
        bitwise=torch.equal(got, want),
        error=error,
        problem=problem,
    )
