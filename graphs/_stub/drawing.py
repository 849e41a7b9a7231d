"""What the steps of a stub share while they are built: sizes, kernels, drafts, random numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from graphs._stub import linear
from graphs._stub.asked import Case
from graphs._stub.cache import Drafts, Metadata, Pages
from graphs._stub.chosen import Choice
from graphs._stub.step import Bound, Flow, How, follows
from kernels import Case as KernelCase
from kernels import Inputs
from kernels.layer import cos_sin_table
from verifyscope.models import Gqa, Mla, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A case on its device, as one of `ranks` processes.

    how, shared: for each step that is prepared, what `follows` has found, and the tensors that
    stand for what flows in: all layers have the same, so that memory is used again. attentions:
    what attends, of each distinct layer.
    """

    case: Case
    device: torch.device
    rank: int
    ranks: int
    choice: Choice
    drafts: Drafts
    metadata: Metadata
    cos_sin: torch.Tensor
    how: dict[str, How] = field(default_factory=dict)
    shared: dict[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    attentions: list[Bound] = field(default_factory=list)

    @property
    def model(self) -> Model:
        """Return the model."""
        return self.case.model

    @property
    def rows(self) -> int:
        """Return the rows of all requests."""
        return self.case.rows * self.case.requests

    @property
    def heads(self) -> int:
        """Return the query heads of a rank."""
        return self.model.heads // self.case.tp

    @property
    def kv_heads(self) -> int:
        """Return the key-value heads of a rank; 1 of latent attention."""
        attention = self.model.attention
        return 1 if isinstance(attention, Mla) else max(1, attention.kv_heads // self.case.tp)

    @property
    def latent(self) -> Mla:
        """Return the sizes of latent attention; TypeError if it is none."""
        if not isinstance(self.model.attention, Mla):
            raise TypeError(f"{self.model.name} has no latent attention")
        return self.model.attention

    @property
    def grouped(self) -> Gqa:
        """Return the sizes of grouped-query attention; TypeError if it is none."""
        if not isinstance(self.model.attention, Gqa):
            raise TypeError(f"{self.model.name} has no grouped-query attention")
        return self.model.attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One distinct layer while it is drawn: `generator` draws its weights; its own cache."""

    drawing: Drawing
    generator: torch.Generator
    cache: Pages | None = None

    def normal(self, *sizes: int, scale: float = 1.0) -> torch.Tensor:
        """Return normal bf16."""
        return linear.normal(
            *sizes, generator=self.generator, device=self.drawing.device, scale=scale
        )

    def bound(
        self, name: str, *, kind: str, op: str, fits: KernelCase, inputs: Inputs, like: Flow
    ) -> Bound:
        """Prepare the chosen implementation of `op` for the step `name`.

        like: tensors as those that will flow in, by the names of the op's inputs.
        """
        drawing = self.drawing
        implementation = drawing.choice.of(kind, op, fits)
        if name not in drawing.how:
            drawing.how[name] = follows(implementation, inputs, like)
            drawing.shared[name] = dict(like)
        found = Bound(implementation, inputs, drawing.shared[name], drawing.how[name])
        if kind == "attention":
            drawing.attentions.append(found)
        return found

    def norm(
        self, name: str, like: torch.Tensor, *, heads: int = 1, residual: torch.Tensor | None = None
    ) -> Bound:
        """Draw the weight of a norm of rows like `like`, and prepare it."""
        width = like.shape[-1]
        flowing = {"x": like} if residual is None else {"x": like, "residual": residual}
        dims = {
            "rows": len(like),
            "heads": heads,
            "width": width,
            "step": like.stride(0),
            "residual": "none" if residual is None else "added",
        }
        return self.bound(
            name,
            kind="norm",
            op="rms_norm",
            fits=KernelCase(name=f"{name}, {len(like)} x {heads} x {width}", dims=dims),
            inputs={
                "weight": 1 + self.normal(width, scale=0.25),
                "eps": self.drawing.model.rms_eps,
            },
            like=flowing,
        )


def drawing(
    case: Case, device: torch.device, *, rank: int, ranks: int, choice: Choice, drafts: Drafts
) -> Drawing:
    """Begin to draw a case."""
    attention = case.model.attention
    dims = attention.rope_dim if isinstance(attention, Mla) else attention.head_dim
    return Drawing(
        case=case,
        device=device,
        rank=rank,
        ranks=ranks,
        choice=choice,
        drafts=drafts,
        metadata=Metadata(case, drafts, device),
        cos_sin=cos_sin_table(
            case.model.rope, dims=dims, positions=case.context + case.rows, device=device
        ),
    )
