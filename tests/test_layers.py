"""The layer list gives the bytes and calls that the founding case was worked out with."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import ops
from graphs.layers import Forward, forward
from graphs.ops import Op
from verifyscope.errors import UsageError
from verifyscope.models import BF16, TABLE, Formats, Gqa, Mla, Model, Moe
from verifyscope.parts import PARTS

KIMI = TABLE["kimi-k2.5"]
BANDWIDTH = 1.5e12


def _pass(rows: int, *, context: int = 8192, tp: int = 8, model: Model = KIMI) -> Forward:
    return forward(model, tp=tp, rows=rows, context=context)


def _layer(asked: Forward, name: str, part: str) -> list[Op]:
    sections = {section.name: section for section in asked.sections}
    return [op for op in sections[name].ops if op.part == part]  # type: ignore[index] # a str


def _weights(found: list[Op]) -> float:
    return sum(op.weight_bytes for op in found)


def _op(asked: Forward, name: str) -> Op:
    return next(op for op, _ in asked.calls() if op.name == name)


def test_a_layer_of_kimi_k25_holds_51_8_mb_of_projections_of_which_30_3_on_every_rank() -> None:
    asked = _pass(4)
    assert _weights(_layer(asked, "experts", "attention_projections")) == 51_773_440
    whole = _op(asked, "q_a_proj").weight_bytes + _op(asked, "kv_a_proj").weight_bytes
    assert round(whole / 1e6, 1) == 30.3
    assert _weights(_layer(asked, "dense", "attention_projections")) == 51_773_440


def test_a_layer_holds_11_0_mb_of_shared_expert_5_5_of_router_and_3_10_an_expert_slice() -> None:
    asked = _pass(4)
    assert round(_weights(_layer(asked, "experts", "shared_expert")) / 1e6, 1) == 11.0
    assert round(_weights(_layer(asked, "experts", "router")) / 1e6, 1) == 5.5
    routed = _layer(asked, "experts", "routed_experts")
    assert _weights(routed) / routed[0].shape["distinct"] == pytest.approx(3_096_576)
    assert KIMI.formats.routed_experts.bytes_of(3 * 7168 * 2048 / 8) == 3_096_576


@pytest.mark.parametrize(
    ("rows", "distinct"), [(1, 8.0), (2, 15.8), (3, 23.5), (4, 31.0), (8, 59.5), (16, 109.8)]
)
def test_distinct_experts_grow_with_the_rows_as_expected(rows: int, distinct: float) -> None:
    assert round(_op(_pass(rows), "experts_down").shape["distinct"], 1) == distinct


@pytest.mark.parametrize(
    ("rows", "gigabytes", "milliseconds"),
    [
        (1, 6.0, 4.0),
        (2, 7.5, 5.0),
        (3, 8.9, 5.9),
        (4, 10.3, 6.9),
        (8, 15.6, 10.4),
        (16, 24.9, 16.6),
    ],
)
def test_a_forward_reads_the_weights_that_the_founding_case_counted(
    rows: int, gigabytes: float, milliseconds: float
) -> None:
    weights = _pass(rows).weight_bytes
    assert round(weights / 1e9, 1) == gigabytes
    assert round(weights / BANDWIDTH * 1e3, 1) == milliseconds


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_the_cache_of_8k_is_read_once_whatever_the_rows_in_0_4_ms(rows: int) -> None:
    kv_bytes = _pass(rows).kv_bytes
    assert kv_bytes == 61 * 8192 * 1152
    assert round(kv_bytes / BANDWIDTH * 1e3, 1) == 0.4


@pytest.mark.parametrize(("rows", "message"), [(4, 57_344), (3, 43_008), (1, 14_336)])
def test_the_layers_make_122_all_reduces_and_embedding_and_logits_stand_apart(
    rows: int, message: int
) -> None:
    calls: dict[str, int] = {}
    messages: dict[str, set[int | None]] = {}
    for op, count in _pass(rows).calls():
        calls[op.part] = calls.get(op.part, 0) + count
        messages.setdefault(op.part, set()).add(op.message_bytes)
    assert calls["all_reduce"] == 122
    assert messages["all_reduce"] == messages["embedding_all_reduce"] == {message}
    assert calls["embedding_all_reduce"] == calls["logits_all_gather"] == 1
    assert messages["logits_all_gather"] == {rows * 163_840 * 2}


def test_one_rank_has_no_collectives_and_all_the_weights() -> None:
    alone = _pass(1, tp=1, model=TABLE["llama-3.1-70b"])
    assert all(op.message_bytes is None for op, _ in alone.calls())
    # 70.6e9 parameters less the embedding, of which one row is read
    assert alone.weight_bytes == pytest.approx(2 * (70.55e9 - 128_256 * 8192), rel=1e-3)


def test_key_value_heads_are_split_down_to_one_a_rank() -> None:
    llama = TABLE["llama-3.1-70b"]
    entries = {tp: _op(_pass(1, tp=tp, model=llama), "attention").shape["entry"] for tp in (1, 8)}
    assert entries == {1: 2 * 8 * 128, 8: 2 * 128}
    qwen = _pass(1, tp=8, model=TABLE["qwen3-235b-a22b"])
    assert _op(qwen, "attention").shape["entry"] == 2 * 128  # 4 heads over 8 ranks: one each
    assert qwen.kv_bytes == 94 * 8192 * 2 * 128 * 2
    assert _op(qwen, "qkv_proj").shape["outputs"] == (8 + 2) * 128


def test_attention_sees_the_context_and_the_drafted_rows_before_it() -> None:
    attention = _op(_pass(4, context=1000), "attention")
    pairs = 1001 + 1002 + 1003 + 1004
    assert attention.flops == 2 * pairs * 8 * (576 + 512)
    assert attention.read_bytes == 4 * (8 * 576 + 576) * 2
    assert attention.written_bytes == 4 * 8 * 512 * 2


def test_requests_multiply_rows_and_cache_but_not_weights_outside_of_experts() -> None:
    one, two = _pass(4), forward(KIMI, tp=8, rows=4, context=8192, requests=2)
    assert two.kv_bytes == 2 * one.kv_bytes
    assert _op(two, "mlp_all_reduce").message_bytes == 2 * 57_344
    assert round(_op(two, "experts_down").shape["distinct"], 1) == 59.5
    assert _op(two, "o_proj").weight_bytes == _op(one, "o_proj").weight_bytes
    assert _op(two, "attention").flops == 2 * _op(one, "attention").flops


def test_extend_unfolds_keys_and_values_and_has_logits_of_the_last_row_only() -> None:
    folded = forward(KIMI, tp=8, rows=64, context=1024, mode="verify")
    unfolded = forward(KIMI, tp=8, rows=64, context=1024, mode="extend")
    assert unfolded.kv_bytes == folded.kv_bytes == 61 * 1024 * 1152
    assert _op(unfolded, "kv_b_proj").shape["rows"] == 1024 + 64
    assert _op(unfolded, "attention").flops < _op(folded, "attention").flops / 3
    assert _op(unfolded, "lm_head").shape["rows"] == 1
    assert _op(folded, "lm_head").shape["rows"] == 64
    parts = [_weights(_layer(f, "experts", "attention_projections")) for f in (folded, unfolded)]
    assert parts[0] == parts[1] == 51_773_440


def test_one_row_is_decode_and_more_are_verify() -> None:
    assert _pass(1).asked.mode == "decode"
    assert _pass(2).asked.mode == "verify"


def test_fp8_blocks_halve_what_is_quantised_and_are_computed_in_fp8() -> None:
    deepseek = TABLE["deepseek-v3"]
    quantised = _op(_pass(1, model=deepseek), "o_proj")
    plain = _op(_pass(1, model=replace(deepseek, formats=Formats())), "o_proj")
    assert quantised.weight_bytes == plain.weight_bytes / 2 * (1 + 4 / 16_384)
    assert (quantised.arithmetic, plain.arithmetic) == ("fp8", "bf16")
    assert _op(_pass(1, model=deepseek), "lm_head").arithmetic == "bf16"


@pytest.mark.parametrize("model", TABLE.values(), ids=lambda model: model.name)
@pytest.mark.parametrize("mode", ["decode", "verify", "extend"])
def test_each_op_is_of_a_known_part_and_the_same_wherever_its_name_stands(
    model: Model, mode: str
) -> None:
    asked = forward(model, tp=4, rows=3, context=512, mode=mode)  # type: ignore[arg-type] # a Mode
    by_name: dict[str, Op] = {}
    for section in asked.sections:
        names = [op.name for op in section.ops]
        assert len(set(names)) == len(names)
        for op in section.ops:
            assert by_name.setdefault(op.name, op) == op
            assert op.part in PARTS
            moved = (op.weight_bytes, op.kv_bytes, op.read_bytes, op.written_bytes, op.flops)
            assert all(amount >= 0 for amount in moved)
            assert (op.cost.touched_bytes > 0) == (op.message_bytes is None)
    assert sum(section.count for section in asked.sections if section.is_layer) == model.layers


def test_a_query_without_a_latent_is_projected_in_one_step() -> None:
    assert isinstance(KIMI.attention, Mla)
    attention = replace(KIMI.attention, q_lora_rank=None)
    asked = _pass(1, model=replace(KIMI, attention=attention))
    assert _op(asked, "q_proj").weight_bytes == BF16.bytes_of(7168 * 8 * 192)
    assert "q_a_proj" not in {op.name for op, _ in asked.calls()}


@pytest.mark.parametrize(
    ("name", "tp", "allowed"),
    [
        ("kimi-k2.5", 7, "1, 2, 4, 8, 16, 32, 64"),
        ("kimi-k2.5", 128, "1, 2, 4, 8, 16, 32, 64"),
        ("llama-3.1-70b", 3, "1, 2, 4, 8, 16, 32, 64"),
        ("qwen3-30b-a3b", 6, "1, 2, 4, 8, 16, 32"),
    ],
)
def test_ranks_that_do_not_divide_the_model_are_refused_with_those_that_do(
    name: str, tp: int, allowed: str
) -> None:
    with pytest.raises(UsageError, match=rf"{name} .* over {tp} ranks; it can over {allowed}$"):
        _pass(1, tp=tp, model=TABLE[name])


def test_a_key_value_head_is_never_cut() -> None:
    odd = replace(TABLE["llama-3.1-70b"], attention=Gqa(kv_heads=8, head_dim=128), heads=96)
    with pytest.raises(UsageError, match=r"over 12 ranks; it can over 1, 2, 4, 8, 16, 32$"):
        _pass(1, tp=12, model=odd)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(experts=st.integers(2, 512), rows=st.integers(1, 300), data=st.data())
def test_distinct_experts_lie_between_one_rows_choice_and_all(
    experts: int, rows: int, data: st.DataObject
) -> None:
    moe = Moe(experts=experts, top_k=data.draw(st.integers(1, experts)), intermediate=64)
    distinct = ops.expected_distinct_experts(moe, rows=rows)
    more = ops.expected_distinct_experts(moe, rows=rows + 1)
    slack = 1e-9 * experts
    assert moe.top_k - slack <= distinct <= min(experts, rows * moe.top_k) + slack
    assert distinct <= more + slack
