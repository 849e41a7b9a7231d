"""FlashInfer's small ops as 0.6.18 and 0.7.4 declare them, computed in torch on the CPU.

The functions with the wheels' signatures hand over to `KERNELS`, which stand where the compiled
modules do, with their arguments in their order: the tests put those behind a real wheel's Python.
Sums are float32 and rounded where the kernels round.
"""

from types import ModuleType, SimpleNamespace

import torch


def _silu_and_mul(out: torch.Tensor, input: torch.Tensor, enable_pdl: bool) -> None:
    gate, up = input.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)


def _rmsnorm(
    out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, eps: float, enable_pdl: bool
) -> None:
    wide = input.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out.copy_(wide * scale * weight.float())


def _fused_add_rmsnorm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, enable_pdl: bool
) -> None:
    total = input.float() + residual.float()
    residual.copy_(total)
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    input.copy_(total * scale * weight.float())


def _apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    pos_ids: torch.Tensor,
    interleave: bool,
) -> None:
    """Rotate; where a load would leave the table's memory, IndexError, as a sanitizer would say."""
    rotated = cos_sin_cache.shape[1]
    # Of the sines of eight interleaved dims four are used, and eight are loaded.
    last = (int(pos_ids.max()) + 1) * rotated + (4 if interleave else 0)
    if 4 * last > cos_sin_cache.untyped_storage().nbytes():
        raise IndexError("the kernel reads 16 bytes behind the table")
    cos, sin = cos_sin_cache[pos_ids.long()].chunk(2, dim=-1)
    for x, out in ((q, q_rope), (k, k_rope)):
        out.copy_(x)
        wide = x[..., :rotated].float()
        half = rotated // 2
        first = slice(0, rotated, 2) if interleave else slice(0, half)
        second = slice(1, rotated, 2) if interleave else slice(half, rotated)
        a, b = wide[..., first], wide[..., second]
        out[..., first] = (a * cos[:, None] - b * sin[:, None]).to(x.dtype)
        out[..., second] = (b * cos[:, None] + a * sin[:, None]).to(x.dtype)


def _tinygemm(
    input: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, use_pdl: bool = False
) -> None:
    out.copy_(input.float() @ weight.float().T)


KERNELS = SimpleNamespace(
    silu_and_mul=_silu_and_mul,
    rmsnorm=_rmsnorm,
    fused_add_rmsnorm=_fused_add_rmsnorm,
    apply_rope_pos_ids_cos_sin_cache=_apply_rope,
    tinygemm2_nobias_op=_tinygemm,
)


def silu_and_mul(
    input: torch.Tensor, out: torch.Tensor | None = None, enable_pdl: bool | None = None
) -> torch.Tensor:
    """Return silu of the first half times the second."""
    out = input.new_empty(*input.shape[:-1], input.shape[-1] // 2) if out is None else out
    KERNELS.silu_and_mul(out, input, bool(enable_pdl))
    return out


def rmsnorm(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """Return the scaled rows."""
    out = torch.empty_like(input) if out is None else out
    KERNELS.rmsnorm(out, input, weight, eps, bool(enable_pdl))
    return out


def fused_add_rmsnorm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """Add in place, then scale in place."""
    KERNELS.fused_add_rmsnorm(input, residual, weight, eps, bool(enable_pdl))


def apply_rope_with_cos_sin_cache(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rotated queries and keys, of the shapes that are given."""
    if cos_sin_cache.dtype != torch.float32:
        raise ValueError("cos_sin_cache should be float32")
    outs = torch.empty_like(query), torch.empty_like(key)
    q, k, q_out, k_out = (x.view(len(x), -1, head_size) for x in (query, key, *outs))
    KERNELS.apply_rope_pos_ids_cos_sin_cache(
        q, k, q_out, k_out, cos_sin_cache, positions, not is_neox
    )
    return outs


def tinygemm_bf16(
    input: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    use_pdl: bool = False,
) -> None:
    """Multiply by the transposed weight."""
    if input.shape[1] % 64 or weight.shape[0] % 16 or input.dtype != torch.bfloat16:
        raise ValueError("input_features must be a multiple of 64, output_features of 16, bfloat16")
    KERNELS.tinygemm2_nobias_op(input, weight, out, use_pdl)


def modules() -> dict[str, ModuleType]:
    """Return the modules of `flashinfer` that hold these, by name."""
    held = {
        "activation": (silu_and_mul,),
        "norm": (rmsnorm, fused_add_rmsnorm),
        "rope": (apply_rope_with_cos_sin_cache,),
        "gemm": (tinygemm_bf16,),
    }
    found = {}
    for name, functions in held.items():
        found[name] = ModuleType(f"flashinfer.{name}")
        vars(found[name]).update({one.__name__: one for one in functions})
    return found
