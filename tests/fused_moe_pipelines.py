"""What a block of `fused_moe` in Triton waits for, by its machine code; for a worker process."""

import re
from collections.abc import Mapping, Sequence

import torch

from kernels import _cubin, find_op
from kernels._compile import compile_only
from kernels._registry import find_case
from kernels._sass import Instruction

Waits = Mapping[str, tuple[int, ...]]

_BRANCH = re.compile(r"\bBRA\b.*?0x([0-9a-f]+)")
# Of groups of copies to shared memory, so many may be under way still.
_WAIT = re.compile(r"\bDEPBAR\.LE SB0, 0x([0-9a-f]+)")


def waits(item: tuple[str, int]) -> Waits:
    """Return for a gate case and a capability, by kernel, what each copying loop leaves under way.

    0 means that a loop waits for all that it has issued.
    """
    case, capability = item
    op = find_op("fused_moe")
    inputs = op.inputs(find_case(op, case), torch.device("cpu"))
    with compile_only(capability) as built:
        op.implementations["triton"].run(inputs)
    codes = _cubin.disassembled([one.cubin for one in built], capability=capability)
    found: dict[str, tuple[int, ...]] = {}
    for one, code in zip(built, codes, strict=True):
        if loops := [*_copying_loops(code)]:
            found[one.kernel] = tuple(map(_left, loops))
    return found


def _copying_loops(code: Sequence[Instruction]) -> list[list[str]]:
    loops = []
    for one in code:
        branch = _BRANCH.search(one.text)
        if branch and (first := int(branch[1], 16)) < one.address:
            body = [inside.text for inside in code if first <= inside.address <= one.address]
            if any("LDGSTS" in text for text in body):
                loops.append(body)
    return loops


def _left(body: list[str]) -> int:
    return min(int(wait[1], 16) for text in body if (wait := _WAIT.search(text)))
