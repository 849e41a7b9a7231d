"""What `fused_moe` is compared with: every row has its kind, architectures, range of T and reason.

And torch's own: the grouped product never waits for the device, the loop says that it does.
"""

import importlib
import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

import kernels.moe
from kernels import Case, _flashinfer
from kernels._registry import modules
from kernels.moe import fused_moe
from kernels.moe import fused_moe_flashinfer_frost as frost
from kernels.moe import fused_moe_torch_grouped as grouped
from kernels.moe._baselines import Baseline
from kernels.moe.fused_moe import OP
from tests import flashinfer_stand_in as stand_in
from tests.flashinfer_cases import use
from tests.moe_cases import drawn, error_of, point

MEASURING = Path(__file__).resolve().parent.parent / "MEASURING.md"
BASELINES = {
    value.name: value
    for name in modules(kernels.moe.__path__, "kernels.moe")
    for value in vars(importlib.import_module(name)).values()
    if isinstance(value, Baseline)
}
DYNAMIC = (DataDependentOutputException, DynamicOutputShapeException)


# ---- Every row ----


def test_every_baseline_is_declared_with_its_kind_and_architectures() -> None:
    found = {name: one for name, one in OP.implementations.items() if one.kind != "own"}
    assert set(found) == set(BASELINES)
    for name, one in found.items():
        assert one.kind == BASELINES[name].kind
        assert one.needs.capabilities == BASELINES[name].capabilities
        assert len(BASELINES[name].why) > 20


def test_the_table_in_measuring_says_what_is_declared() -> None:
    _, _, after = MEASURING.read_text(encoding="utf-8").partition(
        "\n## What experts are compared with\n"
    )
    lines = re.findall(r"^\| `.*\|$", after.partition("\n## ")[0], re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {row[0] for row in rows} == {f"`{name}`" for name in BASELINES}
    assert len(rows) == len(BASELINES)
    for name, *cells in rows:
        one = BASELINES[name.strip("`")]
        assert cells == [
            one.kind.removeprefix("baseline-"),
            ", ".join(one.formats),
            ", ".join(f"{each / 10:.1f}" for each in one.capabilities) or "any",
            f"{one.rows[0]} to {one.rows[1]}",
            one.why,
        ]


@pytest.mark.parametrize("baseline", BASELINES.values(), ids=lambda one: one.name)
def test_outside_of_its_range_of_t_and_its_formats_there_is_a_reason(
    baseline: Baseline, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    monkeypatch.setattr(frost, "compiler_version", lambda: "4.8.0")
    refuses = OP.implementations[baseline.name].needs.refuses
    fewest, most = baseline.rows
    for form in ("bf16", "fp8", "int4"):
        for tokens in (1, 2, 7, 8, 9, 16, 17, 255, 256, 257):
            reason = refuses(point(tokens, form, sizes=(256, 256)))
            if form not in baseline.formats:
                assert f"not in {form}" in str(reason)
            elif fewest <= tokens <= most:
                assert reason is None
            else:
                assert f"takes {fewest} to {most} tokens, not {tokens}" in str(reason)


@pytest.mark.parametrize(
    ("capability", "form", "tokens", "names"),
    [
        (90, "bf16", 4, {"flashinfer_cutlass", "torch_grouped"}),
        (100, "bf16", 4, {"flashinfer_cutlass", "torch_grouped"}),
        (120, "bf16", 4, {"flashinfer_cutlass"}),
        (90, "fp8", 4, {"flashinfer_cutlass_unpacked"}),
        (120, "int4", 8, {"flashinfer_cutlass_unpacked", "flashinfer_frost"}),
        (120, "int4", 9, {"flashinfer_cutlass_unpacked", "flashinfer_frost_twice"}),
        # Nothing of the same work: the row that is left says so in its kind.
        (120, "int4", 17, {"flashinfer_cutlass_unpacked"}),
        (90, "int4", 32, {"flashinfer_cutlass_unpacked"}),
        (100, "int4", 32, {"flashinfer_cutlass_unpacked", "flashinfer_mxint4"}),
        (80, "int4", 4, set()),
    ],
)
def test_who_is_beside_a_kernel_of_ours_on_an_architecture(
    capability: int, form: str, tokens: int, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    monkeypatch.setattr(frost, "compiler_version", lambda: "4.8.0")
    monkeypatch.setattr(_flashinfer, "device_capability", lambda: capability)
    case = point(tokens, form, sizes=(256, 256))
    found = {name for name in BASELINES if OP.implementations[name].needs.refuses(case) is None}
    assert found == {"torch", *names}


# ---- torch ----


@pytest.mark.parametrize(
    "case",
    [
        point(1, "bf16"),
        point(7, "bf16", top_k=3, routing="tree50"),
        point(4, "bf16", top_k=3, routing="holes"),
        point(4, "bf16", routing="one"),
        point(3, "bf16", top_k=3, routing="twice"),
    ],
)
def test_the_grouped_product_computes_the_op(case: Case) -> None:
    inputs = drawn(case)
    prepared = OP.implementations["torch_grouped"].prepare(inputs)
    assert error_of(prepared.outputs(), inputs) <= OP.tolerance.row
    assert prepared.facts["torch"] == torch.__version__
    assert prepared.facts["backend"] == "torch.nn.functional.grouped_mm"


def test_where_nobody_has_an_expert_the_grouped_product_is_zero() -> None:
    inputs = drawn(point(3, "bf16"))
    inputs["ids"].fill_(-1)
    assert not OP.implementations["torch_grouped"].run(inputs)["y"].any()


def test_choices_are_sorted_by_expert_and_those_of_none_come_last() -> None:
    ids = torch.tensor([[3, -1, 0], [0, 4, 3]], dtype=torch.int32)
    shape = fused_moe.Shape(tokens=2, top_k=3, experts=4, hidden=32, intermediate=32, shared=0)
    every = torch.arange(4, dtype=torch.int32)
    experts, order, ends = grouped.sorted_choices(ids, shape=shape, every=every)
    assert experts.tolist() == [0, 0, 3, 3, 4, 4]
    assert order.tolist() == [2, 3, 0, 5, 1, 4]
    assert (ends.tolist(), ends.dtype) == ([2, 2, 2, 4], torch.int32)


def test_the_grouped_product_asks_the_host_for_nothing_and_the_loop_does() -> None:
    with FakeTensorMode():  # tensors without values: whoever asks for one raises
        given = fused_moe.Given(
            x=torch.empty(4, 96, dtype=torch.bfloat16),
            ids=torch.empty(4, 2, dtype=torch.int32),
            weights=torch.empty(4, 2),
            gate_up=torch.empty(6, 64, 96, dtype=torch.bfloat16),
            gate_up_scales=torch.empty(0),
            down=torch.empty(6, 96, 32, dtype=torch.bfloat16),
            down_scales=torch.empty(0),
        )
        multiply = grouped.product()
        assert multiply is not None
        y = grouped._computed(given, multiply, torch.arange(6, dtype=torch.int32))
        assert (y.shape, y.dtype) == ((4, 96), torch.bfloat16)
        inputs = {name: getattr(given, name) for name in given.__slots__ if "shared" not in name}
        with pytest.raises(DYNAMIC):
            OP.implementations["torch"].run(inputs)


def test_an_older_torch_is_a_reason_or_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = OP.implementations["torch_grouped"].needs.refuses
    monkeypatch.delattr(torch.nn.functional, "grouped_mm")
    assert refuses(point(1, "bf16")) is None
    inputs = drawn(point(3, "bf16"))
    prepared = OP.implementations["torch_grouped"].prepare(inputs)
    assert prepared.facts["backend"] == "torch._grouped_mm"
    assert error_of(prepared.outputs(), inputs) <= OP.tolerance.row
    monkeypatch.delattr(torch, "_grouped_mm")
    assert "has no grouped_mm; it came with 2.8" in str(refuses(point(1, "bf16")))
    with pytest.raises(RuntimeError, match="has no grouped_mm"):
        OP.implementations["torch_grouped"].prepare(inputs)


@pytest.mark.parametrize(
    "case", [point(5, form, sizes=(128, 128), shared=32) for form in ("bf16", "fp8", "int4")]
)
def test_the_loop_computes_every_format_and_a_shared_expert(case: Case) -> None:
    inputs = drawn(case)
    assert error_of(OP.implementations["torch"].run(inputs), inputs) <= OP.tolerance.row
