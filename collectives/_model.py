"""Stand-in for `verifyscope.models.find_model` until that module is in this checkout."""

from dataclasses import dataclass

from verifyscope.errors import choose

_HIDDEN = {"kimi-k2.5": 7168, "llama-3.1-70b": 8192}


@dataclass(frozen=True)
class Model:
    """A model's name and hidden size."""

    name: str
    hidden: int


def find_model(name: str) -> Model:
    """Return the model of this name."""
    return Model(name, _HIDDEN[choose("model", name, list(_HIDDEN))])
