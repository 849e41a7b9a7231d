"""Every kernel compiles for every GPU generation we name, fits it, spills nothing, and is wide."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels import _cubin, _gate, _sass, _select
from kernels._compile import Built, BuiltUnit, compile_only
from kernels._points import Selection, Unit
from kernels._raw import RawKernel
from kernels._sass import Instruction
from kernels._workers import Conditions
from verifyscope.hardware import SHARED_BYTES_PER_BLOCK
from verifyscope.occupancy import occupancy
from verifyscope.records import Compiled

TARGETS = tuple(SHARED_BYTES_PER_BLOCK)
TESTS = Path(__file__).parent
# What `make test` can take where no cache is warm; a count, since times depend on the machine.
MOST_BUILDS = 1300

pytestmark = pytest.mark.skipif(_cubin.why_not() is not None, reason=str(_cubin.why_not()))


def gate(units: list[Unit]) -> list[BuiltUnit]:
    """Build in processes of their own: this one may hold Triton's interpreter instead."""
    conditions = Conditions(processes=2, timeout_s=600, environment={"TRITON_INTERPRET": "0"})
    return [*_gate.built(units, conditions=conditions, most_at_once=16)]


def rows_of(built: list[BuiltUnit]) -> list[Compiled]:
    return [row for unit in built for row in unit.rows]


def check_all(*, long: bool) -> int:
    """Hold all kernels to the gate; return how many distinct builds that took."""
    units = _select.units(Selection(), list(TARGETS), long=long)
    units.sort(key=lambda unit: unit.capability)  # as few batches as can be
    built = gate(units)
    rows = rows_of(built)
    assert {
        f"{row.op}/{row.implementation} {row.case} sm_{row.capability}": row.failure
        for row in rows
        if row.failure
    } == {}
    assert all(row.registers and row.occupancy and row.waves for row in rows)
    done = {(row.op, row.implementation, row.capability) for row in rows}
    assert done == {(unit.op, unit.implementation, unit.capability) for unit in units}
    return len({build for unit in built for build in unit.builds})


def test_every_kernel_passes_the_gate_of_every_gpu() -> None:
    builds = check_all(long=False)
    assert builds <= MOST_BUILDS, (
        f"{builds} distinct builds are more than {MOST_BUILDS}, half a second of CPU time each: "
        f"name each tile once in gate_cases, and the other combinations in long_gate_cases"
    )


@pytest.mark.long
def test_every_dtype_and_page_size_passes_the_gate_of_every_gpu() -> None:
    check_all(long=True)


def test_the_gate_finds_what_is_there_how_it_fills_a_gpu_and_what_is_wrong(
    more_ops: Callable[..., None],
) -> None:
    more_ops(TESTS / "ops", TESTS / "wrong_ops")
    selection = Selection(ops=("decode_attention", "rms_scale", "too_much"))
    rows = rows_of(gate(_select.units(selection, [80, 120], long=False)))

    def of(op: str, implementation: str, capability: int = 120) -> list[Compiled]:
        name = (op, implementation, capability)
        return [row for row in rows if (row.op, row.implementation, row.capability) == name]

    # Real shapes decide; the tiny cases are built only where there is nothing else.
    (attention,), (scale,) = of("decode_attention", "triton"), of("rms_scale", "triton")
    assert (attention.case, attention.found) == ("gate-dim-128", ("tensor_core", "wide_load"))
    assert (scale.case, scale.found) == ("gate-hidden-7168", ("wide_load",))
    (raw,) = of("decode_attention", "cupy")
    assert (raw.case, raw.shared_bytes) == ("gate-dim-128", 32 + 4 * 128)
    assert [row.failure for row in (attention, scale, raw, *of("rms_scale", "cupy"))] == [None] * 4
    # A block of 4 warps for each of 16 heads, on the GPUs that the capabilities stand for.
    for capability, multiprocessors in ((80, 108), (120, 188)):
        (row,) = of("decode_attention", "cupy", capability)
        assert row.registers is not None
        assert (row.threads, row.grid_blocks, row.multiprocessors) == (128, 16, multiprocessors)
        held = occupancy(
            capability=capability, registers=row.registers, shared_bytes=544, threads=128
        )
        assert (row.resident_blocks, row.occupancy) == (held.blocks, held.share)
        assert row.limited_by == held.limited_by
        assert row.waves == pytest.approx(16 / (multiprocessors * held.blocks))

    (product,) = of("too_much", "whole-matrix")
    assert "wants 131072 B of shared memory a block, sm_120 has 101376" in str(product.failure)
    assert (product.resident_blocks, product.limited_by, product.waves) == (0, "shared", None)
    assert [row.failure for row in of("too_much", "whole-matrix", 80)] == [None]
    (spilling,) = of("too_much", "spills")
    assert spilling.spilled_bytes is not None
    assert spilling.spilled_bytes >= 4 * 64
    assert "spilling spills: " in str(spilling.failure)
    (crowded,) = of("too_much", "too-many-threads")
    assert (crowded.threads, crowded.resident_blocks, crowded.limited_by) == (1024, 0, "registers")
    assert "registers for each of 1024 threads, a multiprocessor has 65536" in str(crowded.failure)
    (without,) = of("too_much", "no-tensor-core")
    assert without.failure == (
        "declares tensor_core and wide_load, but no such instruction is in its kernels"
    )
    (broken,) = of("too_much", "does-not-compile")
    assert 'unknown.cu(2): error: identifier "no_such_name" is undefined' in str(broken.failure)
    assert (broken.registers, broken.occupancy, broken.waves) == (None, None, None)
    (nothing,) = of("too_much", "launches-nothing")
    assert nothing.failure == "launched no kernel"


def test_a_crash_costs_its_unit_and_not_those_that_are_built_beside_it(
    more_ops: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "rms_scale_crashing.py").write_text(
        "import os\n"
        "from kernels import Needs\n"
        "from kernels.rms_scale import OP\n"
        '@OP.implementation("crashes", needs=Needs(capabilities=(120,), packages=("cupy",)))\n'
        "def crashes(x):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    more_ops(TESTS / "ops", tmp_path)
    units = _select.units(Selection(ops=("rms_scale",)), [120], long=False)
    triton, *raw = gate(units)
    assert [unit.implementation for unit in units] == ["triton", "cupy", "crashes"]
    (crashed,) = raw.pop().rows
    assert crashed.failure == "its process crashed with SIGKILL"
    assert (crashed.implementation, crashed.case) == ("crashes", "gate-hidden-7168")
    for unit in (triton, *raw):
        assert [row.failure for row in unit.rows] == [None]
        assert (unit.launches, len(unit.builds)) == (1, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("static", [0, 64])
@pytest.mark.parametrize("dynamic", [0, 100])
def test_shared_memory_is_counted_to_the_byte(target: int, static: int, dynamic: int) -> None:
    declared = f"SHARED_ARRAY(float, a, {static}); a[threadIdx.x] = *y;" if static else ""
    declared += " DYNAMIC_SHARED(float, b); b[threadIdx.x & 7] = *y;" if dynamic else ""
    use = f"*y = {'a[1]' if static else '0'} + {'b[1]' if dynamic else '0'};"
    body = f"{declared} __syncthreads(); {use}"
    kernel = RawKernel("k", f'extern "C" __global__ void k(float* y) {{ {body} }}')
    with compile_only(target) as built:
        kernel((1,), (64,), torch.zeros(1), shared_bytes=dynamic)
    assert [one.shared_bytes for one in built] == [static * 4 + dynamic]


@pytest.mark.parametrize(("target", "limit"), SHARED_BYTES_PER_BLOCK.items())
def test_one_byte_too_much_is_named(target: int, limit: int) -> None:
    def kernel(shared_bytes: int) -> Built:
        return Built(
            kernel="k",
            capability=target,
            registers=32,
            local_bytes=0,
            shared_bytes=shared_bytes,
            threads=128,
            blocks=1,
        )

    assert kernel(limit).why_not is None
    assert f"sm_{target} has {limit}" in str(kernel(limit + 1).why_not)


def test_several_kernels_are_told_apart_in_one_disassembly() -> None:
    narrow = "y[threadIdx.x] = x[threadIdx.x];"
    wide = narrow.replace("y[", "((float4*)y)[").replace("x[", "((const float4*)x)[")
    sources = [wide, narrow, narrow + wide, narrow]
    with compile_only(120) as built:
        for number, body in enumerate(sources):
            parameters = "const float* x, float* y"
            source = f'extern "C" __global__ void k{number}({parameters}) {{ {body} }}'
            RawKernel(f"k{number}", source)((1,), (32,), torch.zeros(4), torch.zeros(4))
    codes = _cubin.disassembled([one.cubin for one in built], capability=120)
    assert [_sass.classes(code) for code in codes] == [("wide_load",), (), ("wide_load",), ()]


@pytest.mark.parametrize(
    ("instruction", "classes"),
    [
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4 ;", ("tensor_core",)),
        ("HGMMA.64x128x16.F32 R24, gdesc[UR8], R24 ;", ("tensor_core",)),
        ("UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11] ;", ("tensor_core",)),
        ("@!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;", ("wide_load",)),
        ("LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64] ;", ("wide_load",)),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R9], desc[UR4][R2.64] ;", ("wide_load",)),
        ("UTMALDG.2D [UR8], [UR4] ;", ("wide_load",)),
        ("LDG.E.LTC128B.64 R4, desc[UR4][R2.64] ;", ()),
        ("LDS.128 R4, [R2] ;", ()),
        ("STG.E.128 desc[UR4][R2.64], R4 ;", ()),
        ("IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;", ()),
    ],
)  # fmt: skip
def test_instructions_are_what_the_class_says(instruction: str, classes: tuple[str, ...]) -> None:
    assert _sass.classes([Instruction(0, instruction)]) == classes


LOOP = """
0 LDG.E.128 R4, [R2] ;
16 LDGSTS.E.BYPASS.128 [R9], desc[UR4][R2.64] ;
32 @!P1 LDG.E.64 R4, desc[UR4][R2.64] ;
48 PRMT R3, R4, 0x7770, RZ ;
64 LDG.E.U8 R4, desc[UR4][R2.64] ;
80 LDG.E R4, desc[UR4][R2.64] ;
96 HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
112 @P0 BRA 0x10 ;
128 LDS.128 R4, [R2] ;
144 BRA.U !UP0, 0x80 ;
160 @P1 BRA 0x0 ;
176 BRA 0xb0;
"""


def test_the_main_loop_is_the_innermost_that_loads_most() -> None:
    code = [
        Instruction(int(line.split()[0]), line.split(maxsplit=1)[1])
        for line in LOOP.split("\n")[1:-1]
    ]
    loop = _sass.main_loop(code)
    # From 0x10 to 0x70: seven instructions, 16 + 8 + 1 + 4 bytes.
    assert loop == _sass.Loop(instructions=7, loaded_bytes=29)
    assert (
        _sass.main_loop([*code[:4], Instruction(72, "UTMALDG.2D [UR8], [UR4] ;"), *code[4:]])
        is None
    )
    assert _sass.main_loop(code[8:10]) is None


def test_what_unpacking_costs_is_a_number_of_instructions_a_byte() -> None:
    load = "const uint4 v = x[i * 32 + threadIdx.x]; sum += float(v.x ^ v.y ^ v.z ^ v.w);"
    unpacked = "".join(
        f"sum += (v.{part} >> {4 * n} & 15) * s;" for part in "xyzw" for n in range(8)
    )
    load_and_unpack = f"const uint4 v = x[i * 32 + threadIdx.x]; {unpacked}"
    with compile_only(120) as built:
        for name, body in (("packed", load), ("unpacked", load_and_unpack)):
            source = (
                f'extern "C" __global__ void {name}(const uint4* x, float* y, int n, float s) {{ '
                f"float sum = 0;\n#pragma unroll 1\nfor (int i = 0; i < n; i++) {{ {body} }}\n"
                f"y[threadIdx.x] = sum; }}"
            )
            arguments = (torch.zeros(4), torch.zeros(4), np.int32(1), np.float32(1))
            RawKernel(name, source)((1,), (32,), *arguments)
    codes = _cubin.disassembled([one.cubin for one in built], capability=120)
    plain, much = (_sass.main_loop(code) for code in codes)
    assert plain is not None
    assert much is not None
    assert (plain.loaded_bytes, much.loaded_bytes) == (16, 16)
    # 32 nibbles: to shift, mask, convert and add each takes two instructions at the very least.
    assert much.instructions >= plain.instructions + 64
