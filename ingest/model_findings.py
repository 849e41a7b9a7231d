"""What configs say: bytes and floor time of a pass and a draft step, and whether two fit.

    floor = bytes read / (GPUs x bandwidth): no pass can be faster; what it takes is measured
    elsewhere

Two targets are one architecture where every number is equal, a drop-in replacement where all
shapes are and only formats, rope or limits differ. A drafter fits a target where hidden size and
vocabulary agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import combinations

from ingest.conclusions import Conclusion, Seen, listed
from ingest.facts import Facts
from ingest.model_configs import Drafter, mtp_step_bytes
from ingest.number import short
from verifyscope import units
from verifyscope.model_sizes import sizes
from verifyscope.models import Model

ROWS = (1, 4)
_SHAPES = (
    "hidden",
    "layers",
    "dense_layers",
    "heads",
    "attention",
    "dense_intermediate",
    "moe",
    "vocab",
)
_NO_SHAPE = ("scoring", "correction_bias", "routed_scaling", "norm_top_k")
_MOST_DIFFERENCES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What floors are counted for: a bandwidth of one GPU, and how many share the weights."""

    title: str
    bytes_per_s: float
    tp: int = 1

    def floor(self, size: float) -> str:
        """Return the least time to read `size` bytes, with what it is counted for."""
        return units.seconds(size / self.bytes_per_s / self.tp)

    def words(self) -> str:
        """Return what the floors are counted for."""
        return f"on {self.tp} x {self.title}" if self.tp > 1 else f"on {self.title}"


NOWHERE = Machine(title="1 TB/s", bytes_per_s=1e12)


def conclusions(all_facts: Sequence[Facts], machine: Machine | None) -> Iterator[Conclusion]:
    """Yield what the configs among the files say, alone and in pairs."""
    where = machine or NOWHERE
    for facts in all_facts:
        if facts.model is not None:
            yield _size(facts.file, facts.model, where)
        if facts.drafter is not None:
            yield _draft_size(facts.file, facts.drafter, where)
    for old, new in combinations(all_facts, 2):
        if old.model is not None and new.model is not None:
            yield _pair((old.file, old.model), (new.file, new.model))
        for target, draft in ((old, new), (new, old)):
            if target.model is not None and draft.drafter is not None:
                yield _fits((target.file, target.model), (draft.file, draft.drafter))


def _size(file: str, model: Model, where: Machine) -> Conclusion:
    stored = sizes(model)
    one, several = (sizes(model, rows=rows).read_bytes for rows in ROWS)
    apart = ", if rows choose experts apart," if model.moe else ""
    passes = (
        f"{units.bytes_(one)} ({where.floor(one)}) for {ROWS[0]} row and{apart} "
        f"{units.bytes_(several)} ({where.floor(several)}) for {ROWS[1]} rows"
    )
    mtp = ""
    if model.mtp_layers:
        step = mtp_step_bytes(model)
        mtp = f"; a draft step of its MTP layer {units.bytes_(step)} ({where.floor(step)})"
    parts = sorted(stored.stored.items(), key=lambda item: -item[1])[:5]
    return Conclusion(
        name="model-size",
        sentence=f"{model.layers} layers of {model.hidden}, {short(stored.elements / 1e9)} "
        f"billion weights "
        f"in {units.bytes_(stored.stored_bytes)}; a pass reads {passes}, floors "
        f"{where.words()}{mtp}",
        seen=tuple(Seen(file, None, f"{name} {units.bytes_(size)}") for name, size in parts),
        next_action="python -m graphs.replay --predict counts all-reduces, cache and each rank's "
        "part"
        if where is not NOWHERE
        else "--gpu and --tp count the floors for a machine",
    )


def _draft_size(file: str, draft: Drafter, where: Machine) -> Conclusion:
    once = f", and {units.bytes_(draft.once_bytes)} of fc once a cycle" if draft.once_bytes else ""
    kind = "latent attention" if draft.latent else "grouped attention"
    return Conclusion(
        name="drafter-size",
        sentence=f"{draft.kind} drafter: {draft.layers} layer{'s' * (draft.layers > 1)} of "
        f"{draft.hidden}, "
        f"{kind}, {draft.draft_vocab:,} words; a draft step reads at least "
        f"{units.bytes_(draft.step_bytes)} ({where.floor(draft.step_bytes)} {where.words()}){once}",
        seen=(Seen(file, None, f"{units.bytes_(draft.step_bytes)} a step"),),
    )


def _pair(old: tuple[str, Model], new: tuple[str, Model]) -> Conclusion:
    (old_file, a), (new_file, b) = old, new
    differ = [name for name in _differences(a, b) if name != "name"]
    shapes = [name for name in differ if _is_shape(name)]
    if not differ:
        words = "the same architecture: every number is equal"
    elif not shapes:
        words = f"a drop-in replacement: all shapes are equal, {_shown(a, b, differ)} differ"
    else:
        words = f"different architectures: {_shown(a, b, shapes)}"
    return Conclusion(
        name="model-pair",
        sentence=f"{old_file} and {new_file} are {words}",
        seen=tuple(
            Seen(file, None, f"{name} {_value(model, name)}")
            for name in differ[:4]
            for file, model in (old, new)
        ),
        next_action="times of one are no times of the other" if shapes else None,
    )


def _is_shape(name: str) -> bool:
    return name.partition(".")[0] in _SHAPES and name.rpartition(".")[2] not in _NO_SHAPE


def _differences(a: object, b: object, path: str = "") -> Iterator[str]:
    """Yield the paths of what differs between two values of one kind, down to the numbers."""
    if a == b:
        return
    if is_dataclass(a) and type(a) is type(b):
        for one in fields(a):
            inner = f"{path}.{one.name}".lstrip(".")
            yield from _differences(getattr(a, one.name), getattr(b, one.name), inner)
    else:
        yield path


def _value(model: object, path: str) -> str:
    for name in path.split("."):
        model = getattr(model, name, None)
    return type(model).__name__ if is_dataclass(model) else str(model)


def _shown(a: Model, b: Model, names: Sequence[str]) -> str:
    words = [f"{name} ({_value(a, name)}, {_value(b, name)})" for name in names[:_MOST_DIFFERENCES]]
    more = len(names) - len(words)
    return listed([*words, f"{more} more"] if more > 0 else words)


def _fits(target: tuple[str, Model], draft: tuple[str, Drafter]) -> Conclusion:
    (target_file, model), (draft_file, drafter) = target, draft
    pairs = (
        ("hidden size", drafter.target_hidden, model.hidden),
        ("vocabulary", drafter.vocab, model.vocab),
    )
    wrong = [f"{name} {own:,} and {its:,}" for name, own, its in pairs if own != its]
    seen = tuple(
        Seen(file, None, f"{name} {value:,}")
        for name, own, its in pairs
        for file, value in ((draft_file, own), (target_file, its))
    )
    if wrong:
        return Conclusion(
            name="drafter-mismatch",
            sentence=f"{draft_file} does not fit {target_file}: {listed(wrong)}",
            seen=seen,
            next_action="take the drafter that was trained for this target",
        )
    share = drafter.step_bytes / sizes(model).read_bytes
    return Conclusion(
        name="drafter-fits",
        sentence=f"{draft_file} fits {target_file}: hidden {model.hidden:,}, vocabulary "
        f"{model.vocab:,}; "
        f"a draft step reads {share * 100:.2g} % of what a plain pass does",
        seen=seen,
    )
