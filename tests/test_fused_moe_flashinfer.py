"""The FlashInfer baselines of `fused_moe`, on stand-ins of 0.6.18 and 0.7.4: conversions, refusals.

The stand-ins read weights as the libraries document them, so each conversion that an adapter
forgets is a wrong result here.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from kernels import Case, _flashinfer
from kernels.moe import _flashinfer_experts, _formats, fused_moe
from kernels.moe import fused_moe_flashinfer_cutlass as cutlass
from kernels.moe import fused_moe_flashinfer_frost as frost
from kernels.moe import fused_moe_flashinfer_mxint4 as mxint4
from kernels.moe._baselines import Baseline
from kernels.moe.fused_moe import OP
from tests import flashinfer_stand_in as stand_in
from tests.flashinfer_cases import VERSIONS, use
from tests.moe_cases import drawn, error_of, point

COMPILER = "4.8.1"


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frost, "compiler_version", lambda: COMPILER)


def run_right(name: str, case: Case) -> None:
    """Run an implementation that must serve `case`, and hold it to the reference."""
    implementation = OP.implementations[name]
    assert implementation.needs.refuses(case) is None
    inputs = drawn(case)
    prepared = implementation.prepare(inputs)
    prepared.call()["y"].fill_(float("nan"))  # each call computes afresh
    prepared.replan()
    assert error_of(prepared.outputs(), inputs) <= OP.tolerance.row


# ---- What is computed ----


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("flashinfer_cutlass", point(1, "bf16")),
        ("flashinfer_cutlass", point(5, "bf16", top_k=3, routing="tree50")),
        ("flashinfer_cutlass", point(4, "bf16", top_k=3, routing="holes")),
        ("flashinfer_cutlass_unpacked", point(3, "int4")),
        ("flashinfer_cutlass_unpacked", point(3, "int4", routing="holes")),
        ("flashinfer_cutlass_unpacked", point(4, "fp8", sizes=(128, 256))),
        ("flashinfer_mxint4", point(1, "int4", sizes=(256, 256))),
        ("flashinfer_mxint4", point(5, "int4", sizes=(512, 256), experts=3)),
        ("flashinfer_mxint4", point(4, "int4", sizes=(256, 512), experts=3, routing="holes")),
    ],
)
def test_what_both_versions_have_computes_the_op(
    name: str, case: Case, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made(version))
    run_right(name, case)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("flashinfer_frost", point(1, "int4", sizes=(128, 128))),
        ("flashinfer_frost", point(8, "int4", sizes=(256, 96), top_k=3)),  # padded to 128
        ("flashinfer_frost", point(3, "int4", sizes=(128, 32), routing="twice")),
        ("flashinfer_frost_twice", point(9, "int4", sizes=(128, 32))),
        ("flashinfer_frost_twice", point(16, "int4", sizes=(128, 96), routing="tree80")),
    ],
)
def test_the_frost_layer_computes_the_op(
    name: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    run_right(name, case)


def _not_swapped(rows: torch.Tensor) -> torch.Tensor:
    return rows.clone()


def _scales_of_all_rows_swapped(rows: torch.Tensor) -> torch.Tensor:
    half = _formats.halves_swapped(rows)
    return half if rows.dtype == torch.uint8 else rows.clone()


@pytest.mark.parametrize(
    ("owner", "function", "instead"),
    [
        (_flashinfer_experts, "up_first", _not_swapped),
        (_flashinfer_experts, "up_first", _scales_of_all_rows_swapped),
        (_formats, "flipped", _not_swapped),
    ],
)
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("flashinfer_frost", point(2, "int4", sizes=(128, 128))),
        ("flashinfer_mxint4", point(2, "int4", sizes=(256, 256))),
    ],
)
def test_a_conversion_that_is_left_out_fails_loudly(
    owner: ModuleType,
    function: str,
    instead: Callable[[torch.Tensor], torch.Tensor],
    name: str,
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    monkeypatch.setattr(owner, function, instead)
    inputs = drawn(case)
    assert error_of(OP.implementations[name].run(inputs), inputs) > 0.1


@pytest.mark.parametrize(
    ("name", "form"), [("flashinfer_cutlass", "bf16"), ("flashinfer_cutlass_unpacked", "int4")]
)
def test_cutlass_without_the_swap_fails_loudly(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    monkeypatch.setattr(_flashinfer_experts, "up_first", _not_swapped)
    inputs = drawn(point(2, form))
    assert error_of(OP.implementations[name].run(inputs), inputs) > 0.1


@pytest.mark.parametrize("function", ["shuffle_matrix_a", "shuffle_matrix_sf_a"])
def test_mxint4_rows_that_are_not_shuffled_fail_loudly(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = use(monkeypatch, stand_in.made("0.6.18"))

    def straight(input_tensor: torch.Tensor, epilogue_tile_m: int) -> torch.Tensor:
        flat = function == "shuffle_matrix_sf_a"
        return input_tensor.flatten() if flat else input_tensor

    monkeypatch.setattr(library, function, straight)
    inputs = drawn(point(2, "int4", sizes=(256, 256)))
    assert error_of(OP.implementations["flashinfer_mxint4"].run(inputs), inputs) > 0.1


# ---- How they are called ----


def test_cutlass_gets_its_workspace_and_adds_up_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in VERSIONS:
        library = use(monkeypatch, stand_in.made(version))
        # More than the scratch memory that is shared, 1,024 B here, and less.
        for rows in (1, 4):
            prepared = OP.implementations["flashinfer_cutlass"].prepare(drawn(point(rows, "bf16")))
            given = dict(library.fused_moe.calls)["cutlass_fused_moe"]
            assert given["workspace_buffer"].numel() == max(1024, rows * 2 * 256)
            assert given["use_fused_finalize"] is False
            assert given["tune_max_num_tokens"] == 256
            assert prepared.facts["workspace"] == "given"
            assert prepared.facts["finalize"] == "a kernel of its own, in order"


def test_what_an_older_cutlass_does_not_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    older = stand_in.made("0.6.5", without=["workspace_buffer", "use_fused_finalize"])
    use(monkeypatch, older)
    inputs = drawn(point(2, "bf16"))
    prepared = OP.implementations["flashinfer_cutlass"].prepare(inputs)
    assert error_of(prepared.outputs(), inputs) <= OP.tolerance.row
    assert prepared.facts["not_taken"] == "use_fused_finalize, workspace_buffer"
    assert prepared.facts["workspace"] == "allocated in each call"
    assert prepared.facts["finalize"] == "by atomics: runs differ"


def test_cutlass_that_takes_scratch_and_cannot_say_how_much_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = use(monkeypatch, stand_in.made("0.6.16"))
    del library.fused_moe.cutlass_fused_moe_workspace_size
    assert cutlass.calls(library) == (cutlass.EXPERTS, _flashinfer_experts.AUTOTUNE)
    prepared = OP.implementations["flashinfer_cutlass"].prepare(drawn(point(2, "bf16")))
    assert prepared.facts["workspace"] == "allocated in each call"


@pytest.mark.parametrize(
    ("tokens", "parts"), [(9, [5, 4]), (12, [6, 6]), (13, [7, 6]), (16, [8, 8])]
)
def test_nine_to_sixteen_tokens_are_two_calls_of_half_of_them(
    tokens: int, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = use(monkeypatch, stand_in.made("0.7.4"))
    prepared = OP.implementations["flashinfer_frost_twice"].prepare(
        drawn(point(tokens, "int4", sizes=(128, 32)))
    )
    (layer,) = library.fused_moe.MoELayer.made
    assert layer.most == 8
    layer.calls.clear()
    first, again = prepared.call()["y"], prepared.call()["y"]
    assert layer.calls == parts * 2
    assert first.data_ptr() == again.data_ptr()  # y is allocated once
    assert prepared.launches == 5


def test_frost_reads_an_expert_once_a_choice_and_its_form_cost_says_so() -> None:
    implementation = OP.implementations["flashinfer_frost"]
    inputs = drawn(point(6, "int4", sizes=(128, 32), top_k=2, routing="one"))
    assert implementation.form_cost is not None
    given = fused_moe.Given(**inputs)
    least, form = OP.cost(inputs), implementation.form_cost(inputs)
    assert fused_moe.counts(inputs)["distinct_experts"] == 1
    assert form.read_bytes - least.read_bytes == 11 * given.expert_bytes
    assert (form.flops, form.written_bytes) == (least.flops, least.written_bytes)


def test_packed_routing_is_an_id_above_the_bits_of_a_weight() -> None:
    ids = torch.tensor([[3, 383, -1]], dtype=torch.int32)
    weights = torch.tensor([[1.0, -0.5, 2.827]])
    packed = mxint4.packed_routing(ids, weights)
    assert packed.tolist() == [[3 << 16 | 0x3F80, 383 << 16 | 0xBF00, -65536 | 0x4035]]
    assert packed.dtype == torch.int32


def test_packing_is_what_an_engine_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    inputs = drawn(point(2, "int4", sizes=(256, 256)))
    prepared = OP.implementations["flashinfer_mxint4"].prepare(inputs)
    assert [stage.name for stage in prepared.stages] == ["pack"]
    inputs["weights"].mul_(-3.0)
    prepared.replan()
    assert error_of(prepared.outputs(), inputs) <= OP.tolerance.row


@pytest.mark.parametrize(
    ("baseline", "case", "backend"),
    [
        (cutlass.DIRECT, point(2, "bf16"), "cutlass"),
        (cutlass.UNPACKED, point(2, "int4"), "cutlass"),
        (frost.DIRECT, point(2, "int4", sizes=(128, 32)), "frost_low_latency"),
        (frost.TWICE, point(9, "int4", sizes=(128, 32)), "frost_low_latency"),
        (mxint4.DIRECT, point(2, "int4", sizes=(256, 256)), "trtllm-gen"),
    ],
)
def test_facts_name_the_version_the_backend_and_what_makes_it_of_its_kind(
    baseline: Baseline, case: Case, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    facts = OP.implementations[baseline.name].prepare(drawn(case)).facts
    assert (facts["flashinfer"], facts["backend"]) == ("0.7.4", backend)
    assert facts["work"] == baseline.why
    assert facts["tactics"] == "tuned in the plan"
    if backend == "frost_low_latency":
        assert facts["compiler"] == f"nvidia-cutlass-dsl {COMPILER}"


# ---- What is refused ----


@pytest.mark.parametrize(
    ("name", "case", "reason"),
    [
        (
            "flashinfer_cutlass",
            point(2, "int4"),
            "FlashInfer's cutlass_fused_moe takes experts in bf16, not in int4",
        ),
        (
            "flashinfer_cutlass_unpacked",
            point(2, "bf16"),
            "FlashInfer's cutlass_fused_moe on unpacked weights takes experts in int4 and fp8, not "
            "in bf16",
        ),
        (
            "flashinfer_cutlass",
            point(2, "bf16", shared=32),
            "FlashInfer's cutlass_fused_moe adds no shared expert, and one of 32 a rank is given",
        ),
        (
            "flashinfer_cutlass",
            point(2, "bf16", top_k=3, routing="twice"),
            "FlashInfer's cutlass_fused_moe may lose an expert that a token names a second time",
        ),
        (
            "flashinfer_cutlass",
            point(257, "bf16"),
            "FlashInfer's cutlass_fused_moe takes 1 to 256 tokens, not 257",
        ),
        (
            "flashinfer_frost",
            point(9, "int4", sizes=(128, 32)),
            "FlashInfer's Frost layer takes 1 to 8 tokens, not 9; flashinfer_frost_twice takes 9 "
            "to 16",
        ),
        (
            "flashinfer_frost_twice",
            point(8, "int4", sizes=(128, 32)),
            "FlashInfer's Frost layer in two calls takes 9 to 16 tokens, not 8; flashinfer_frost "
            "takes up to 8",
        ),
        (
            "flashinfer_frost_twice",
            point(17, "int4", sizes=(128, 32)),
            "FlashInfer's Frost layer in two calls takes 9 to 16 tokens, not 17; flashinfer_frost "
            "takes up to 8",
        ),
        (
            "flashinfer_frost",
            point(1, "int4", sizes=(96, 32)),
            "FlashInfer's Frost layer needs a hidden size that 128 divides; got 96",
        ),
        (
            "flashinfer_frost",
            point(1, "int4", sizes=(128, 32), experts=40, top_k=33),
            "FlashInfer's Frost layer takes up to 32 experts a token, not 33",
        ),
        (
            "flashinfer_frost",
            point(4, "int4", sizes=(128, 32), routing="holes"),
            "FlashInfer's Frost layer reads weights at any id: give none below 0 or from E on",
        ),
        (
            "flashinfer_mxint4",
            point(1, "int4", sizes=(256, 192)),
            "FlashInfer's trtllm_mxint4 experts needs an intermediate size a rank that 256 "
            "divides; got 192",
        ),
        (
            "flashinfer_mxint4",
            point(3, "int4", sizes=(256, 256), routing="one"),
            "FlashInfer's trtllm_mxint4 experts may lose an expert that a token names a second "
            "time",
        ),
        (
            "flashinfer_cutlass_unpacked",
            point(1, "fp8", sizes=(128, 192)),
            "fp8 needs an intermediate size a rank that 128 divides, the side of a block of one "
            "scale; got 192",
        ),
    ],
)
def test_a_case_that_is_not_served_has_its_reason(
    name: str, case: Case, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    assert OP.implementations[name].needs.refuses(case) == reason


@pytest.mark.parametrize(
    ("name", "case", "said"),
    [
        ("flashinfer_cutlass", point(2, "int4"), "takes experts in bf16, not in int4"),
        ("flashinfer_frost", point(9, "int4", sizes=(128, 32)), "takes 1 to 8 tokens, not 9"),
        ("flashinfer_frost_twice", point(8, "int4", sizes=(128, 32)), "9 to 16 tokens, not 8"),
        ("flashinfer_frost", point(4, "int4", sizes=(128, 32), routing="holes"), "at any id"),
        ("flashinfer_mxint4", point(2, "int4", sizes=(256, 192)), "that 256 divides; got 192"),
        (
            "flashinfer_mxint4",
            point(3, "int4", sizes=(256, 256), top_k=3, routing="twice"),
            "names a second time",
        ),
        ("flashinfer_cutlass", point(2, "bf16", shared=32), "one of 32 a rank is given"),
    ],
)
def test_inputs_that_are_not_served_are_refused_by_the_plan_too(
    name: str, case: Case, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    with pytest.raises(ValueError, match=said):
        OP.implementations[name].prepare(drawn(case))


def test_ids_that_name_nothing_are_no_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    inputs = drawn(point(2, "bf16", top_k=3))
    inputs["ids"][0] = torch.tensor([-1, 4, -1])
    inputs["ids"][1] = torch.tensor([7, 6, 0])  # 6 experts: 6 and 7 are none
    assert error_of(OP.implementations["flashinfer_cutlass"].run(inputs), inputs) <= 1e-2


def test_an_expert_that_cutlass_loses_would_have_been_a_wrong_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    monkeypatch.setattr(Baseline, "check", lambda self, given: None)
    for top_k, lost in ((2, False), (3, True)):
        inputs = drawn(point(3, "bf16", top_k=top_k, routing="twice"))
        got = OP.implementations["flashinfer_cutlass"].run(inputs)
        assert (error_of(got, inputs) > 0.1) == lost


@pytest.mark.parametrize(
    ("version", "compiler", "reason"),
    [
        ("0.6.18", COMPILER, "FlashInfer's Frost layer came with 0.7; 0.6.18 is installed"),
        ("0.7.4", None, "needs nvidia-cutlass-dsl 4.8 or newer; none is installed"),
        ("0.7.4", "4.7.2", "needs nvidia-cutlass-dsl 4.8 or newer; 4.7.2 is installed"),
        ("0.7.4", "4.10.0", None),
        ("0.7.4", "5.0", None),
    ],
)
def test_the_frost_layer_needs_a_version_and_its_compiler_and_no_nvcc(
    version: str, compiler: str | None, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made(version))
    monkeypatch.setattr(_flashinfer, "cannot_build", lambda: "no nvcc")
    monkeypatch.setattr(frost, "compiler_version", lambda: compiler)
    found = frost.DIRECT.needs("flashinfer", more=frost._refuses).refuses(
        point(1, "int4", sizes=(128, 32))
    )
    assert found is None if reason is None else reason in str(found)
    assert cutlass._refuses(point(1, "bf16")) == "no nvcc"


@pytest.mark.parametrize(
    ("name", "capability", "served"),
    [
        ("flashinfer_frost", 80, False),
        ("flashinfer_frost", 90, True),
        ("flashinfer_frost", 120, True),
        ("flashinfer_frost", 121, False),  # the same major number, and yet not built for
        ("flashinfer_mxint4", 103, True),
        ("flashinfer_mxint4", 110, False),
        ("flashinfer_mxint4", 120, False),
        ("flashinfer_cutlass_unpacked", 121, True),
        ("flashinfer_cutlass_unpacked", 86, False),
    ],
)
def test_a_device_that_the_library_does_not_name_is_refused(
    name: str, capability: int, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    monkeypatch.setattr(_flashinfer, "device_capability", lambda: capability)
    reason = OP.implementations[name].needs.refuses(point(4, "int4", sizes=(256, 256)))
    assert (reason is None) == served
    assert served or f"this device has {capability / 10:.1f}" in str(reason)


def test_a_library_without_given_routing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = use(monkeypatch, stand_in.made("0.6.2"))
    del library.fused_moe.trtllm_mxint4_block_scale_routed_moe
    assert OP.implementations["flashinfer_mxint4"].needs.refuses(
        point(1, "int4", sizes=(256, 256))
    ) == ("FlashInfer 0.6.2 has no fused_moe.trtllm_mxint4_block_scale_routed_moe")
