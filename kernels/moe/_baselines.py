"""What a baseline of `fused_moe` is: its kind and why, its formats, architectures and range of T.

A `Baseline` is declared once, beside its adapter. It makes the reasons of `refuses`, checks the
inputs of a plan, and is what the table of baselines in MEASURING.md is held to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels import Case, Needs, _flashinfer
from kernels.moe import _formats
from kernels.moe._fused_moe_cases import MOST_TOKENS
from verifyscope.records import Kind

if TYPE_CHECKING:
    from kernels.moe.fused_moe import Given

Reason = str
_REPEATING = ("one", "twice")  # routings that hold an expert twice in a row of ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """One baseline, and what it takes.

    what: its name in a reason. why: what makes it of its kind, one line, for records and the table.
    rows: the fewest and the most tokens. elsewhere: which baseline has those that this one has not.
    capabilities: all of those it runs on, none between; empty: any device. multiples: of which the
    hidden size and the intermediate size a rank must be. absent: ids may name no expert. repeated:
    a row of ids may hold an expert twice. shared: it adds a shared expert.
    """

    name: str
    kind: Kind
    what: str
    why: str
    formats: tuple[str, ...]
    capabilities: tuple[int, ...]
    rows: tuple[int, int] = (1, MOST_TOKENS)
    elsewhere: str = ""
    multiples: tuple[int, int] = (1, 1)
    most_top_k: int | None = None
    absent: bool = True
    repeated: bool = True
    shared: bool = False

    def needs(
        self, *packages: str, more: Callable[[Case], Reason | None] = lambda case: None
    ) -> Needs:
        """Return what an implementation of it needs; `more` says what the library refuses."""
        return Needs(
            capabilities=self.capabilities,
            packages=packages,
            refuses=lambda case: self.refuses(case) or more(case),
        )

    def refuses(self, case: Case) -> Reason | None:
        """Say why this cannot compute `case`, whatever is installed; None if it can."""
        routing, top_k = case.dims["routing"], case.number("top_k")
        form, sizes = str(case.dims["format"]), (case.number("hidden"), case.number("intermediate"))
        return (
            _formats.why_not_sizes(form, hidden=sizes[0], intermediate=sizes[1])
            or self._format(form)
            or self._tokens(case.number("rows"))
            or self._sizes(*sizes, top_k)
            or self._shared(case.number("shared"))
            or (self._absent() if routing == "holes" else None)
            or (self._repeated() if routing in _REPEATING and top_k > 1 else None)
            or self._device()
        )

    def check(self, given: Given) -> None:
        """Hold inputs to the same rules; ValueError with the reason. Waits for the device."""
        shape, ids = given.shape, given.ids
        beyond = bool(((ids < 0) | (ids >= shape.experts)).any())
        ordered = torch.where((ids < 0) | (ids >= shape.experts), -1, ids).sort(-1).values
        twice = bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any())
        why = (
            self._format(given.format.name)
            or self._tokens(shape.tokens)
            or self._sizes(shape.hidden, shape.intermediate, shape.top_k)
            or self._shared(shape.shared)
            or (self._absent() if beyond else None)
            or (self._repeated() if twice else None)
        )
        if why:
            raise ValueError(why)

    def _format(self, name: str) -> Reason | None:
        if name in self.formats:
            return None
        return f"{self.what} takes experts in {' and '.join(self.formats)}, not in {name}"

    def _tokens(self, count: int) -> Reason | None:
        fewest, most = self.rows
        if fewest <= count <= most:
            return None
        return f"{self.what} takes {fewest} to {most} tokens, not {count}{self.elsewhere}"

    def _sizes(self, hidden: int, intermediate: int, top_k: int) -> Reason | None:
        for size, multiple, name in (
            (hidden, self.multiples[0], "a hidden size"),
            (intermediate, self.multiples[1], "an intermediate size a rank"),
        ):
            if size % multiple:
                return f"{self.what} needs {name} that {multiple} divides; got {size}"
        if self.most_top_k is not None and top_k > self.most_top_k:
            return f"{self.what} takes up to {self.most_top_k} experts a token, not {top_k}"
        return None

    def _shared(self, size: int) -> Reason | None:
        if self.shared or not size:
            return None
        return f"{self.what} adds no shared expert, and one of {size} a rank is given"

    def _absent(self) -> Reason | None:
        if self.absent:
            return None
        return f"{self.what} reads weights at any id: give none below 0 or from E on"

    def _repeated(self) -> Reason | None:
        if self.repeated:
            return None
        return f"{self.what} may lose an expert that a token names a second time"

    def _device(self) -> Reason | None:
        capability = _flashinfer.device_capability()
        if capability is None or not self.capabilities or capability in self.capabilities:
            return None
        known = ", ".join(f"{one / 10:.1f}" for one in self.capabilities)
        return f"{self.what} runs on capabilities {known}; this device has {capability / 10:.1f}"
