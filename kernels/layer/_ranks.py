"""What a rank of tensor parallelism holds of the models in `verifyscope/models.py`: widths, heads.

TP: the numbers of ranks. ROWS: how many tokens a pass has, from a decode step of one request to 16
requests of 16 drafts. Sizes that ranks do not divide are left out: no engine splits those.
"""

from collections.abc import Iterator

import torch

from verifyscope.models import TABLE, Model

TP = (1, 2, 4, 8)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEW_AND_MANY = (1, 16)
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def intermediates(model: Model) -> Iterator[int]:
    """Yield the width of an expert, and of the dense MLP where a layer has one."""
    if model.moe is not None:
        yield model.moe.intermediate
    if model.dense_layers:
        yield model.dense_intermediate


def mlp_widths() -> list[int]:
    """Return the widths between the two products of an MLP that a rank can have, each once."""
    return sorted(
        {
            width // tp
            for model in TABLE.values()
            for width in intermediates(model)
            for tp in TP
            if width % tp == 0
        }
    )


def hidden_widths() -> list[int]:
    """Return the widths of the residual stream, each once."""
    return sorted({model.hidden for model in TABLE.values()})
