"""Products with weights, as a rank of a model has them: random, in the format of the part.

    y[r, n] = sum_k x[r, k] w[n, k]          w of [n, k], as checkpoints and engines hold it
    batch   y[h] = x[h] w[h]                 w of [h, k, n]

bf16 is torch's product (cuBLAS). fp8 is torch's scaled product, of x in fp8: one scale a tensor
here and not one for 128 x 128, so that as many weights are read and 4 bytes fewer for 16,384. A
batched product of fp8 widens its weights once, as engines do when they fold kv_b: bf16 then.
Weights are normal with variance 1 / k, so that y varies as x does.

Errors: `UsageError` for a format that no product here takes.
Source: torch._scaled_mm of torch 2.5 to 2.14.
"""

from collections.abc import Callable

import torch

from graphs.ops import Op
from verifyscope.errors import UsageError
from verifyscope.models import WeightFormat

Product = Callable[[torch.Tensor], torch.Tensor]
_FP8 = torch.float8_e4m3fn


def must_be_known(part: str, given: WeightFormat) -> None:
    """Raise `UsageError` unless a dense product of this format can be computed."""
    if given.bits not in (8, 16) or (given.bits == 8 and given.arithmetic != "fp8"):
        raise UsageError(
            f"{part} has weights of {given.name}, for which no dense product is here; give "
            f"--quant bf16, fp8 or int4 (int4: the routed experts alone)"
        )


def normal(
    *sizes: int, generator: torch.Generator, device: torch.device, scale: float = 1.0
) -> torch.Tensor:
    """Return normal bf16 of standard deviation `scale`."""
    drawn = torch.randn(sizes, generator=generator, device=device, dtype=torch.bfloat16)
    return drawn.mul_(scale) if scale != 1.0 else drawn


def product(
    op: Op,
    given: WeightFormat,
    *,
    generator: torch.Generator,
    device: torch.device,
    out: torch.Tensor | None = None,
) -> Product:
    """Draw the weights of a linear op and return its product; `out` is where the result goes."""
    inputs, outputs = int(op.shape["inputs"]), int(op.shape["outputs"])
    w = normal(outputs, inputs, generator=generator, device=device, scale=inputs**-0.5)
    if given.bits == 16:
        w_t = w.t()  # [inputs, outputs]
        if out is None:
            return lambda x: torch.mm(x, w_t)
        return lambda x: torch.mm(x, w_t, out=out)
    must_be_known(op.part, given)
    return _scaled(w, inputs)


def _scaled(w: torch.Tensor, inputs: int) -> Product:
    """Return the product in fp8; the scale of x is a constant, as with calibrated activations."""
    stretch = inputs**0.5  # normal numbers of variance 1 lie well within e4m3
    w_t = (w * stretch).to(_FP8).t()
    one = torch.ones((), device=w.device)
    w_scale = torch.full((), 1 / stretch, device=w.device)

    def call(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch._scaled_mm(
            x.to(_FP8), w_t, scale_a=one, scale_b=w_scale, out_dtype=torch.bfloat16
        )
        return found

    return call


def batched(
    op: Op, *, generator: torch.Generator, device: torch.device, out: torch.Tensor
) -> Product:
    """Draw the weights of a batch of products by head; `out` [rows, heads, outputs] takes them.

    x [rows, heads, inputs], of any strides.
    """
    heads, inputs, outputs = (int(op.shape[name]) for name in ("batch", "inputs", "outputs"))
    w = normal(heads, inputs, outputs, generator=generator, device=device, scale=inputs**-0.5)
    by_head = out.transpose(0, 1)  # [heads, rows, outputs]

    def call(x: torch.Tensor) -> torch.Tensor:
        torch.bmm(x.transpose(0, 1), w, out=by_head)
        return out

    return call
