"""What the kernels of experts in Triton are made of: unpacking, and whose unit a program has.

Unpacking is interpreted; the assembly that a GPU runs instead is executed here, instruction by
instruction, by what PTX says they do.
"""

import re
from collections.abc import Callable, Sequence

import pytest
import torch
import triton
import triton.language as tl

from kernels import _execute
from kernels.moe._experts_triton import ROWS, squeezed, unit_of
from kernels.moe._formats import widened
from kernels.moe._unpack_triton import (
    FP8_ASSEMBLY,
    INT4_ASSEMBLY,
    pairs,
    unpack_fp8,
    unpack_int4,
)

DEVICE = _execute.device()
BYTES = torch.arange(256, dtype=torch.uint8)
# Of every exponent that a scale may have, and mantissas that make products round, both ways.
SCALES = torch.tensor([1.0, -0.0078125, 1.0078125, 0.501953125, 1.9921875, 3e-38, 1e30, 0.0])


# ---- PTX, as far as it is used ----


def _halves(word: int) -> torch.Tensor:
    """Return the two bfloat16 of a register, the lower first, as float64."""
    bits = torch.tensor([word & 0xFFFF, word >> 16], dtype=torch.int32)
    return bits.to(torch.uint16).view(torch.bfloat16).double()


def _packed(values: torch.Tensor) -> int:
    low, high = values.to(torch.bfloat16).view(torch.uint16).int().tolist()
    return int(low | high << 16)


def _fma(a: int, b: int, c: int) -> int:
    # Exact in float64: products of 8 bits each, and what is added is 0, or a whole number of few.
    return _packed(_halves(a) * _halves(b) + _halves(c))


def _prmt(a: int, b: int, selector: int) -> int:
    source = (a | b << 32).to_bytes(8, "little")
    chosen = bytes(source[selector >> 4 * n & 7] for n in range(4))
    return int.from_bytes(chosen, "little")


def _lop3(a: int, b: int, c: int, table: int) -> int:
    found = 0
    for bit in range(32):
        row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)
        found |= (table >> row & 1) << bit
    return found


_INSTRUCTIONS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "prmt.b32": _prmt,
    "shr.u32": lambda a, count: a >> count,
    "and.b32": lambda a, b: a & b,
    "lop3.b32": _lop3,
    "fma.rn.bf16x2": _fma,
}


def executed(assembly: str, inputs: Sequence[int], *, outputs: int) -> list[int]:
    """Return the output registers of `assembly`; inputs are those behind them."""
    registers = {f"${outputs + n}": value for n, value in enumerate(inputs)}

    def value(text: str) -> int:
        return registers[text] if text in registers else int(text, 0)

    for line in assembly.strip("{} \n").splitlines():
        text = line.strip().rstrip(";")
        if text.startswith(".reg"):
            continue
        name, target, operands = re.fullmatch(r"(\S+) (\S+), (.*)", text).groups()  # type: ignore[union-attr]  # else the test fails, and says where
        registers[target] = _INSTRUCTIONS[name](*map(value, operands.split(", ")))
    return [registers[f"${n}"] for n in range(outputs)]


def word(values: torch.Tensor) -> int:
    """Return four bytes, or two bfloat16, as a register."""
    return int.from_bytes(bytes(values.contiguous().view(torch.uint8).tolist()), "little")


def bits(values: torch.Tensor) -> list[int]:
    return values.to(torch.bfloat16).view(torch.uint16).int().flatten().tolist()


def test_the_reading_of_ptx_is_right() -> None:
    assert _prmt(0xDDCCBBAA, 0, 0x4140) == 0x00BB00AA
    assert _prmt(0xDDCCBBAA, 0x44332211, 0x7610) == 0x4433BBAA
    assert _lop3(0b1100, 0b1010, 0b0001, 0xEA) == 0b1001  # (a and b) or c
    assert _lop3(0xF0, 0xCC, 0xAA, 0x80) == 0x80
    assert _fma(0x40003F80, 0x40404040, 0xBF80BF80) == 0x40A04000  # 1 x 3 - 1, 2 x 3 - 1
    # Ties to even: 257 lies between 256 and 258, 259 between 258 and 260.
    assert bits(torch.tensor([257.0, 259.0])) == bits(torch.tensor([256.0, 260.0]))


# ---- int4 ----


def meant_int4(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return [even, odd] weights of bytes that have a scale each, by `_formats`, as bits."""
    columns = packed.view(-1, 1).expand(-1, 16)  # a group of one byte
    wide = widened(columns.contiguous(), scale.view(-1, 1))
    return wide[:, :2].T


def test_the_assembly_unpacks_every_byte_with_any_scale() -> None:
    for scale in SCALES.bfloat16():
        even, odd = meant_int4(BYTES, scale.expand(256))
        for first in range(0, 256, 4):
            four = slice(first, first + 4)
            both = word(scale.expand(2))
            got = executed(INT4_ASSEMBLY, [word(BYTES[four]), both, both], outputs=4)
            want = [*even[four].view(2, 2), *odd[four].view(2, 2)]
            assert got == [_packed(one) for one in want], (scale, first)


def test_each_byte_has_the_scale_in_its_place() -> None:
    packed, scale = torch.tensor([0x1F, 0xE2, 0x3D, 0xC4], dtype=torch.uint8), SCALES[:4].bfloat16()
    even, odd = meant_int4(packed, scale)
    got = executed(INT4_ASSEMBLY, [word(packed), word(scale[:2]), word(scale[2:])], outputs=4)
    assert got == [_packed(one) for one in (*even.view(2, 2), *odd.view(2, 2))]
    assert len(set(got)) == 4


@triton.jit
def _int4_of(packed_ptr, scale_ptr, even_ptr, odd_ptr):
    at = tl.arange(0, 256)
    even, odd = unpack_int4(tl.load(packed_ptr + at), tl.load(scale_ptr + at))
    tl.store(even_ptr + at, even)
    tl.store(odd_ptr + at, odd)


def test_the_kernel_gives_the_same_bits() -> None:
    for scale in SCALES.bfloat16():
        scales = scale.expand(256).contiguous().to(DEVICE)
        got = [scales.new_empty(256) for _ in range(2)]
        _int4_of[(1,)](BYTES.to(DEVICE), scales, *got)
        want = meant_int4(BYTES, scale.expand(256))
        assert [bits(one.cpu()) for one in got] == [bits(one) for one in want]


# ---- fp8 ----


def test_the_assembly_widens_every_e4m3_number_and_its_nan_becomes_480() -> None:
    want = BYTES.view(torch.float8_e4m3fn).float()
    want = torch.where(want.isnan(), torch.where(BYTES > 127, -480.0, 480.0), want)
    got = []
    for first in range(0, 256, 4):
        for register in executed(FP8_ASSEMBLY, [word(BYTES[first : first + 4])], outputs=2):
            got += [register & 0xFFFF, register >> 16]
    assert got == bits(want)
    assert want[1] == 2**-9  # the smallest, subnormal


@triton.jit
def _fp8_of(packed_ptr, wide_ptr):
    at = tl.arange(0, 256)
    tl.store(wide_ptr + at, unpack_fp8(tl.load(packed_ptr + at)))


def test_the_kernel_widens_every_e4m3_number() -> None:
    got = torch.empty(256, dtype=torch.bfloat16, device=DEVICE)
    _fp8_of[(1,)](BYTES.to(DEVICE), got)
    want = BYTES.view(torch.float8_e4m3fn).float()
    assert bits(got.cpu()) == bits(torch.where(want.isnan(), got.cpu().float(), want))


# ---- pairs of tokens' numbers ----


@triton.jit
def _pairs_of(both_ptr, even_ptr, odd_ptr):
    at = tl.arange(0, 128)
    even, odd = pairs(tl.load(both_ptr + at))
    tl.store(even_ptr + at, even)
    tl.store(odd_ptr + at, odd)


@pytest.mark.parametrize("sign", [1, -1])
def test_pairs_are_even_and_odd_neighbours(sign: int) -> None:
    x = sign * torch.arange(1, 257).bfloat16().to(DEVICE)
    even, odd = x.new_empty(128), x.new_empty(128)
    _pairs_of[(1,)](x.view(torch.int32), even, odd)
    assert torch.equal(even, x[::2])
    assert torch.equal(odd, x[1::2])


# ---- Units ----


@triton.jit
def _unit_of(ids_ptr, sorted_slots_ptr, block_experts_ptr, expert_ptr, slot_ptr, few_ptr,
             tokens, top_k, experts, is_sorted):  # fmt: skip
    unit = tl.program_id(0)
    expert, slot = unit_of(
        unit, ids_ptr, sorted_slots_ptr, block_experts_ptr, tokens, top_k, experts, is_sorted
    )
    tl.store(expert_ptr + unit, expert)
    tl.store(slot_ptr + unit * 16 + tl.arange(0, 16), slot)
    tl.store(few_ptr + unit * 8 + tl.arange(0, 8), squeezed(slot))


def units(ids: Sequence[Sequence[int]], *, experts: int) -> list[tuple[int, list[int], list[int]]]:
    """Return the expert, the slots and the squeezed slots of each unit of the direct path."""
    given = torch.tensor(ids, dtype=torch.int32, device=DEVICE)
    count, (tokens, top_k) = given.numel(), given.shape
    expert, slot, few = (given.new_empty(count, *size) for size in ((), (16,), (8,)))
    _unit_of[(count,)](given, given, given, expert, slot, few, tokens, top_k, experts, 0)
    return [*zip(expert.tolist(), slot.tolist(), few.tolist(), strict=True)]


def filled(slots: list[int], size: int) -> list[int]:
    return slots + [-1] * (size - len(slots))


def test_the_first_choice_of_an_expert_has_all_its_rows_and_the_others_nothing() -> None:
    found = units([[3, 0], [5, 3], [3, 3], [0, -1], [6, 3]], experts=6)
    assert [expert for expert, _, _ in found] == [3, 0, 5, *[-1] * 7]
    rows = {expert: (slot, few) for expert, slot, few in found if expert >= 0}
    # A row is a token; of two equal choices it is the first.
    assert rows[3] == (filled([0, 3, 4, -1, 9], ROWS), filled([0, 3, 4, 9], 8))
    assert rows[0] == (filled([1, -1, -1, 6], ROWS), filled([1, 6], 8))
    assert rows[5] == (filled([-1, 2], ROWS), filled([2], 8))


@pytest.mark.parametrize(("tokens", "top_k"), [(16, 2), (2, 16)])
def test_a_unit_holds_16_tokens_and_16_choices(tokens: int, top_k: int) -> None:
    ids = [[(3 * token + 7 * choice) % 20 for choice in range(top_k)] for token in range(tokens)]
    found = units(ids, experts=20)
    flat = [one for row in ids for one in row]
    for unit, (expert, slot, _) in enumerate(found):
        if flat.index(flat[unit]) != unit:
            assert expert == -1
            continue
        assert expert == flat[unit]
        assert slot == [
            ids[row].index(expert) + row * top_k if row < tokens and expert in ids[row] else -1
            for row in range(ROWS)
        ]


def test_a_sorted_unit_is_a_block_of_slots() -> None:
    ids = torch.zeros(3, 2, dtype=torch.int32, device=DEVICE)
    slots = ids.new_tensor([1, 4, *[6] * 14, 0, 2, 3, *[6] * 13, *[6] * 16])
    owners = ids.new_tensor([2, 5, -1])
    expert, slot, few = ids.new_empty(3), ids.new_empty(3, 16), ids.new_empty(3, 8)
    _unit_of[(3,)](ids, slots, owners, expert, slot, few, 3, 2, 6, 1)
    assert expert.tolist() == [2, 5, -1]
    assert slot.tolist()[:2] == [filled([1, 4], 16), filled([0, 2, 3], 16)]
    assert few.tolist()[:2] == [filled([1, 4], 8), filled([0, 2, 3], 8)]
