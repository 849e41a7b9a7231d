"""A model's layers as one rank of tensor parallelism runs them: shapes, bytes and kernels are real.

Built from graphs/layers.py, op by op, on the implementations of kernels/; weights and inputs are
normal random (int4 nibbles uniform), never zeros. The residual stream and all between flows from
step to step, so that each step needs what those before it gave. Values mean nothing.

    built = stub.build(case, device, rank=0, ranks=1, free_bytes=..., cache_bytes=...)
    built.run()                       # one pass, eager
    built.without({"attention"}).run()

Weights and caches: every layer has its own where all fit; else as many distinct ones as keep a
layer out of the L2 until its turn comes again (graphs/_stub/memory.py). Beside the ops of layers.py
a pass has the step `positions` (part metadata), which works out positions and cache slots on the
device. Attention that plans on the host has planned before (`plan_once` does it again).

Errors: `UsageError` for what does not fit, is computed by no kernel here, or is named wrongly.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from graphs._stub import blocks, memory
from graphs._stub.asked import Case
from graphs._stub.cache import Drafts, Metadata, drafts, pages
from graphs._stub.chosen import Choice
from graphs._stub.drawing import Drawing, Layer, drawing
from graphs._stub.memory import Held
from graphs._stub.step import Bound, Flow, Step
from graphs.layers import Forward, Section
from verifyscope.records import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a pass does for a step: computes it, or hands on what it gave in a full pass."""

    step: Step
    computes: bool
    run: Callable[[Flow], object] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The calls of a pass in order; the parts of `out` are not computed.

    A tensor that is handed on and then changed in place is put back by `restore`, which is for
    before a pass and never timed.
    """

    out: frozenset[str]
    calls: tuple[Call, ...] = field(repr=False)
    flow: Flow = field(repr=False)
    changed: tuple[tuple[torch.Tensor, torch.Tensor], ...] = field(repr=False, default=())

    def run(self) -> torch.Tensor:
        """Run the pass; return the logits."""
        flow = self.flow
        for call in self.calls:
            call.run(flow)
        return flow["logits"]

    def restore(self) -> None:
        """Put back what passes before have changed in place."""
        for tensor, kept in self.changed:
            tensor.copy_(kept)

    @property
    def left(self) -> tuple[Step, ...]:
        """Return the steps that are computed."""
        return tuple(call.step for call in self.calls if call.computes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stub:
    """A built case. `facts` are what was chosen, for records; `sets` the distinct layers."""

    case: Case
    forward: Forward
    steps: tuple[Step, ...] = field(repr=False)
    metadata: Metadata = field(repr=False)
    drafts: Drafts = field(repr=False)
    sets: tuple[Held, ...]
    facts: Mapping[str, Value]
    attentions: tuple[Bound, ...] = field(repr=False)
    flow: Flow = field(repr=False, default_factory=dict)
    kept: dict[int, dict[str, torch.Tensor]] = field(repr=False, default_factory=dict)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts of the steps, in the order in which a pass meets them."""
        return tuple(dict.fromkeys(step.part for step in self.steps))

    def full(self) -> Pass:
        """Return the pass with all parts."""
        return self.without(frozenset())

    def only(self, parts: Collection[str]) -> Pass:
        """Return the pass with nothing but `parts`."""
        return self.without(frozenset(self.parts) - frozenset(parts))

    def without(self, parts: Collection[str]) -> Pass:
        """Return the pass without `parts`."""
        if parts and not self.kept:
            self._keep()
        out = frozenset(parts)
        calls: list[Call] = []
        changed: list[tuple[torch.Tensor, torch.Tensor]] = []
        handed: dict[str, tuple[int, Step, torch.Tensor]] = {}  # by name: which call, of what
        for at, step in enumerate(self.steps):
            if step.part not in out:
                for name in step.in_place:
                    if name in handed:
                        place, of, kept = handed.pop(name)
                        own = kept.clone()  # what is changed in place is no other pass's
                        calls[place] = _handing(of, name, own)
                        changed.append((own, kept))
                calls.append(Call(step=step, computes=True, run=step.run))
                for name in step.writes:
                    handed.pop(name, None)
                continue
            for name in step.writes:
                handed[name] = len(calls), step, self.kept[at][name]
                calls.append(_handing(step, name, self.kept[at][name]))
        return Pass(out=out, calls=tuple(calls), flow=self.flow, changed=tuple(changed))

    def replan(self) -> None:
        """Plan every layer's attention for the lengths that now stand there, as an engine does."""
        for one in self.attentions:
            one.prepared.replan()

    @property
    def plans(self) -> bool:
        """Say whether attention plans on the host at all."""
        return any(one.prepared.stages for one in self.attentions)

    def plan_once(self) -> None:
        """Plan attention for one step: engines do it once, for all layers together."""
        self.attentions[0].prepared.replan()

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Within the block attention is prepared anew for the lengths that now stand there."""
        with contextlib.ExitStack() as stack:
            for one in self.attentions:
                stack.enter_context(one.renewed())
            yield

    def _keep(self) -> None:
        """Run a full pass and keep what each step gives."""
        for at, step in enumerate(self.steps):
            step.run(self.flow)
            self.kept[at] = {name: self.flow[name].clone() for name in step.writes}


def build(
    case: Case,
    device: torch.device,
    *,
    rank: int = 0,
    ranks: int = 1,
    free_bytes: int,
    cache_bytes: int | None,
) -> Stub:
    """Build a case as rank `rank` of `ranks` processes.

    free_bytes: what tensors may take; cache_bytes: the L2, None where passes are not made cold.
    """
    asked = case.forward()
    sets = memory.plan(
        asked,
        free_bytes=free_bytes,
        cache_bytes=cache_bytes,
        wanted=case.weight_sets,
        page_size=case.page_size,
    )
    given = drafts(case)
    choice = Choice(device=device, named=dict(case.impl), form=case.attention, path=case.path)
    drawn = drawing(case, device, rank=rank, ranks=ranks, choice=choice, drafts=given)
    steps = [_metadata_step(drawn.metadata)]
    for section, held in zip(asked.sections, sets, strict=True):
        first = sum(1 for step in steps if step.layer is not None and step.name == "input_norm")
        steps += _section(drawn, section, held, first=first)
    return Stub(
        case=case,
        forward=asked,
        steps=tuple(steps),
        metadata=drawn.metadata,
        drafts=given,
        sets=sets,
        facts=_facts(drawn, sets),
        attentions=tuple(drawn.attentions),
    )


def _section(drawn: Drawing, section: Section, held: Held, *, first: int) -> list[Step]:
    """Build the distinct layers of a section and lay them out in turn."""
    distinct: list[Sequence[Step]] = []
    for number in range(held.sets):
        generator = torch.Generator(drawn.device)
        generator.manual_seed(_seed(drawn, section.name, number))
        cache = None
        if section.is_layer:
            cache = pages(
                drawn.model.attention,
                drawn.drafts,
                page_size=drawn.case.page_size,
                kv_heads=drawn.kv_heads,
                generator=generator,
                device=drawn.device,
            )
        layer = Layer(drawing=drawn, generator=generator, cache=cache)
        distinct.append(tuple(blocks.steps(layer, section)))
    found = []
    for number in range(section.count):
        at = first + number if section.is_layer else None
        found += [replace(step, layer=at) for step in distinct[number % held.sets]]
    return found


def _seed(drawn: Drawing, section: str, number: int) -> int:
    """Return a seed of its own for each rank, section and distinct layer."""
    sections = ("embedding", "dense", "experts", "head")
    place = (drawn.rank * len(sections) + sections.index(section)) * 4096 + number
    return drawn.case.seed * 1_000_003 + place


def _metadata_step(metadata: Metadata) -> Step:
    def run(flow: Flow) -> None:
        metadata.step()

    return Step(name="positions", part="metadata", layer=None, covers=(), writes=(), run=run)


def _handing(step: Step, name: str, tensor: torch.Tensor) -> Call:
    def hand_on(flow: Flow) -> None:
        flow[name] = tensor

    return Call(step=step, computes=False, run=hand_on)


def _facts(drawn: Drawing, sets: Sequence[Held]) -> dict[str, Value]:
    facts: dict[str, Value] = {f"impl_{kind}": name for kind, name in drawn.choice.taken.items()}
    copied = sorted(name for name, how in drawn.how.items() if how == "copied")
    if copied:
        facts["copied_into"] = ", ".join(copied)
    layers = [one for one in sets if one.section in ("dense", "experts")]
    facts["weight_sets"] = sum(one.sets for one in layers)
    facts["held_bytes"] = sum(one.bytes for one in sets)
    return facts
