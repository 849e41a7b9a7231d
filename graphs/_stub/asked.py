"""What a measurement of passes is asked for: a `Case` is one pass, a `Job` runs it on ranks.

Nothing here needs torch: what is typed becomes these, and they travel to the ranks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from graphs.layers import Forward, forward
from verifyscope.errors import UsageError, choose
from verifyscope.models import Formats, Model, fp8_blocks, integer_groups
from verifyscope.records import Mode, Value

ReduceKind = Literal["none", "one-rank", "delay", "real"]
PathName = Literal["auto", "direct", "sorted"]
PassMode = Literal["eager", "graph", "piecewise", "collectives-outside"]
DeviceName = Literal["cpu", "cuda"]

PASS_MODES: tuple[PassMode, ...] = get_args(PassMode)
FORMS: tuple[Mode, ...] = get_args(Mode)
PATHS: tuple[PathName, ...] = get_args(PathName)
# What `--impl` chooses; attention is that of the model. mlp: a whole MLP (the shared expert, that
# of dense layers) by one op of kernels/ and not by torch's products, as it is where that is absent.
KINDS = ("attention", "moe", "routing", "norm", "rope", "activation", "mlp")
MOST_ROWS = 32  # a word of the tree's mask has a bit a row
_QUANTS: Mapping[str, Formats] = {
    "bf16": Formats(),
    "fp8": Formats(
        attention=fp8_blocks(),
        dense_mlp=fp8_blocks(),
        shared_expert=fp8_blocks(),
        routed_experts=fp8_blocks(),
    ),
    "int4": Formats(routed_experts=integer_groups()),
}
QUANTS = tuple(_QUANTS)


@dataclass(frozen=True, slots=True)
class Reduce:
    """How the collectives run: not at all, as calls of one rank, as a delay, or for real.

    delay_s: of each all-reduce; the all-gather of the logits has another size and is left out.
    """

    kind: ReduceKind
    delay_s: float | None = None

    def __str__(self) -> str:
        return self.kind if self.delay_s is None else f"delay:{self.delay_s * 1e6:g}us"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pass. `shrunk` says that the model's sizes are not its own but fit for a CPU.

    impl: the implementation of each of KINDS that was named. weight_sets: None leaves the number
    of distinct layers to memory and cache.
    """

    model: Model
    tp: int
    rows: int
    context: int
    requests: int
    tree: str
    attention: Mode
    path: PathName
    reduce: Reduce
    impl: tuple[tuple[str, str], ...] = ()
    weight_sets: int | None = None
    shrunk: bool = False
    page_size: int = 64
    seed: int = 0

    def forward(self) -> Forward:
        """Return the ops of the pass; `UsageError` if the model cannot be split."""
        return forward(
            self.model,
            tp=self.tp,
            rows=self.rows,
            context=self.context,
            requests=self.requests,
            mode="decode" if self.rows == 1 else "verify",
        )

    @property
    def name(self) -> str:
        """Return the case as records name it."""
        several = f"-requests{self.requests}" if self.requests > 1 else ""
        return (
            f"{self.model.name}-tp{self.tp}-rows{self.rows}-context{self.context}{several}"
            f"-layers{self.model.layers}-{self.reduce}"
        )

    def dims(self) -> dict[str, Value]:
        """Return the numbers of the case, as every record of it has them."""
        return {
            "model": self.model.name,
            "tp": self.tp,
            "rows": self.rows,
            "requests": self.requests,
            "context": self.context,
            "tree": self.tree,
            "layers": self.model.layers,
            "all_reduce": str(self.reduce),
            "shrunk": self.shrunk,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One case on `ranks` fresh processes of one kind of device.

    without: modes that are left out, because a capture of them broke before. time_cap_s: for the
    rounds of the modes, and again for those of the ablation. timeout_s: without any progress.
    """

    case: Case
    device: DeviceName
    ranks: int
    modes: tuple[PassMode, ...]
    ablate: bool
    time_cap_s: float
    timeout_s: float
    without: tuple[PassMode, ...] = ()

    @property
    def joined(self) -> bool:
        """Say whether the processes form a group: to talk, or for a collective of one."""
        return self.ranks > 1 or self.case.reduce.kind in ("one-rank", "real")


def quantised(model: Model, name: str | None) -> Model:
    """Return the model with the weights of `--quant`; as it is where that was not given."""
    if name is None:
        return model
    return replace(model, formats=_QUANTS[choose("--quant", name, list(QUANTS))])


def cut(model: Model, layers: int | None) -> Model:
    """Return the model's first `layers` layers, embedding and head included."""
    if layers is None:
        return model
    if not 1 <= layers <= model.layers:
        raise UsageError(f"--layers {layers}, but {model.name} has {model.layers}; give 1 to that")
    if layers == model.layers:
        return model
    # Another name, so that nobody takes the times of a part of a model for those of the whole.
    return replace(
        model,
        name=f"{model.name}-first-{layers}",
        layers=layers,
        dense_layers=min(model.dense_layers, layers),
    )


def reduces(text: str) -> list[Reduce]:
    """Read `none`, `one-rank`, `real`, `delay:33us`, or several delays: `delay:10us,33us`."""
    if text in ("none", "one-rank", "real"):
        return [Reduce(_kind(text))]
    given = text.removeprefix("delay:")
    if given == text or not given:
        raise UsageError(
            f"unknown --all-reduce {text!r}; give none, one-rank, real or a delay such as "
            f"delay:33us or delay:10us,33us"
        )
    return [Reduce("delay", _microseconds(part)) for part in given.split(",")]


def _kind(text: str) -> ReduceKind:
    return next(kind for kind in get_args(ReduceKind) if kind == text)


def _microseconds(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("us"))
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e6:
        raise UsageError(
            f"--all-reduce delay:{text} is no time above zero; give microseconds, delay:33us"
        )
    return value * 1e-6


def implementations(text: str) -> tuple[tuple[str, str], ...]:
    """Read `attention=flashinfer,moe=triton`; the names are looked up where the kernels are."""
    found: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        kind, is_there, name = word.partition("=")
        if not is_there or not name:
            raise UsageError(
                f"--impl {word!r} names no implementation; give attention=triton, or several "
                f"with commas between"
            )
        choose("--impl", kind, list(KINDS))
        if kind in found:
            raise UsageError(f"--impl names {kind} twice: {found[kind]} and {name}; give one")
        found[kind] = name
    return tuple(found.items())


def modes(text: str) -> tuple[PassMode, ...]:
    """Read the modes that are asked for; eager is always among them, for others are held to it."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    given = [choose("--modes", word, list(PASS_MODES)) for word in words]
    return tuple(mode for mode in PASS_MODES if mode in given or mode == "eager")


def tree_for(rows: int) -> str:
    """Return how EAGLE drafts so many tokens: a chain of few, wider trees of more."""
    return "chain" if rows < 4 else "eagle4" if rows < 12 else "eagle8"


def require_rows(rows: Sequence[int]) -> None:
    """Raise `UsageError` for more rows than the word of a tree's mask has bits."""
    for count in rows:
        if count > MOST_ROWS:
            raise UsageError(
                f"--rows {count} is more than a tree of drafts holds here; give 1 to {MOST_ROWS}, "
                f"or more --requests"
            )
