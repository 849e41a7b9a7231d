"""Which implementation of kernels/ computes each part of a stub.

A name stands for its forms, too: `triton` is `triton_decode` where --attention says decode, and
`triton_direct` where --moe says direct. What was not named is the first of `PREFERRED` that runs
here; what was named and cannot run here is a `UsageError` with the reason and what can.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from graphs._stub.asked import PathName
from kernels import Case, Implementation, find_op
from verifyscope.errors import UsageError
from verifyscope.records import Mode

PREFERRED: Mapping[str, tuple[str, ...]] = {
    "cuda": ("triton", "cupy", "torch"),
    "cpu": ("torch",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Chooses for one device: `named` is --impl; `form` that of attention, `path` that of experts.

    `taken` fills with what was chosen and, where the first choice could not be had, why not.
    """

    device: torch.device
    named: Mapping[str, str]
    form: Mode
    path: PathName
    taken: dict[str, str] = field(default_factory=dict)

    def of(self, kind: str, op: str, case: Case) -> Implementation:
        """Return the implementation of `op`, which is of this kind, for `case`."""
        known = find_op(op).implementations
        if kind in self.named:
            found, why = self._one(kind, self.named[kind], known, case)
            if found is None:
                raise UsageError(f"--impl {kind}={self.named[kind]}: {why}")
            self.taken[kind] = found.name
            return found
        reasons: list[str] = []
        for name in PREFERRED[self.device.type]:
            found, why = self._one(kind, name, known, case)
            if found is not None:
                self.taken[kind] = "; ".join([found.name, *reasons])
                return found
            reasons.append(f"not {name}: {why}")
        raise UsageError(f"nothing here computes {op} for {case.name}: {'; '.join(reasons)}")

    def _one(
        self, kind: str, name: str, known: Mapping[str, Implementation], case: Case
    ) -> tuple[Implementation | None, str]:
        """Return what `name` stands for, or why there is nothing."""
        family = [one for one in known.values() if one.name == name]
        family += [one for one in known.values() if one.name.startswith(f"{name}_")]
        if not family:
            return None, f"no such implementation; known: {', '.join(known)}"
        fitting = [one for one in family if self._fits(kind, name, one)]
        if not fitting:
            return None, self._misfit(kind)
        reasons = []
        for one in fitting:
            why = one.why_not(self.device, case)
            if why is None:
                return one, ""
            reasons.append(f"{one.name} {why}" if len(fitting) > 1 else why)
        return None, "; ".join(reasons)

    def _fits(self, kind: str, name: str, one: Implementation) -> bool:
        if kind == "attention":
            return (one.mode or "verify") == self.form
        if kind == "moe" and self.path != "auto":
            return one.name.endswith(f"_{self.path}")
        return kind != "moe" or one.name == name or not one.name.endswith(("_direct", "_sorted"))

    def _misfit(self, kind: str) -> str:
        if kind == "attention":
            return f"it has no form for --attention {self.form}"
        return f"it has no path for --moe {self.path}; leave that out"
