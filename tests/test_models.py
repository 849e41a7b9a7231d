"""Models by name and from config.json: the same numbers, or one line that says what is wrong."""

import json
import os
from pathlib import Path

import pytest

from verifyscope import models
from verifyscope.errors import UsageError
from verifyscope.models import BF16, TABLE, find_model, from_config

_DEEPSEEK: dict[str, object] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "torch_dtype": "bfloat16",
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
}
_KIMI_ROPE = {
    "type": "yarn",
    "factor": 32.0,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
_KIMI_K2: dict[str, object] = _DEEPSEEK | {
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "rope_theta": 50000.0,
    "rope_scaling": _KIMI_ROPE,
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "num_nextn_predict_layers": 0,
}
_INT4: dict[str, object] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
            },
        }
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
}
_KIMI_K25: dict[str, object] = {
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "vision_config": {"vt_hidden_size": 1152},
    "text_config": _KIMI_K2
    | {
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-05,
        "rope_scaling": _KIMI_ROPE | {"factor": 64.0, "beta_fast": 32.0},
        "quantization_config": _INT4,
    },
}
_QWEN3_30B: dict[str, object] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
}
_QWEN3_235B: dict[str, object] = _QWEN3_30B | {
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
}
_LLAMA_70B: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "torch_dtype": "bfloat16",
}
_PUBLISHED = {
    "kimi-k2": _KIMI_K2,
    "kimi-k2.5": _KIMI_K25,
    "deepseek-v3": _DEEPSEEK,
    "qwen3-235b-a22b": _QWEN3_235B,
    "qwen3-30b-a3b": _QWEN3_30B,
    "llama-3.1-70b": _LLAMA_70B,
}


def _written(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", TABLE)
def test_the_table_is_what_the_published_config_says(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    _written(folder, _PUBLISHED[name])
    assert from_config(folder) == TABLE[name]
    assert find_model(str(folder / "config.json")) == TABLE[name]
    assert find_model(name.upper()) is TABLE[name]


def test_weights_are_counted_with_their_scales() -> None:
    assert BF16.bytes_of(10) == 20
    assert models.integer_groups(4, 32).bytes_of(5_505_024) == 2_752_512 + 344_064
    assert models.fp8_blocks().bytes_of(7168 * 2048) == 7168 * 2048 + 56 * 16 * 4


def test_only_the_routed_experts_of_kimi_k25_are_int4() -> None:
    formats = TABLE["kimi-k2.5"].formats
    assert formats.routed_experts.name == "int4 group 32"
    assert {formats.attention, formats.shared_expert, formats.dense_mlp, formats.lm_head} == {BF16}


def test_modules_that_an_fp8_checkpoint_keeps_are_bf16() -> None:
    quantization = {
        "quant_method": "fp8",
        "weight_block_size": [128, 64],
        "modules_to_not_convert": ["model.layers.60.self_attn", "model.layers.60.mlp.gate"],
    }
    formats = from_config(_DEEPSEEK | {"quantization_config": quantization}).formats
    assert formats.attention == formats.lm_head == BF16
    assert formats.routed_experts.name == "fp8 block 128x64"
    assert formats.shared_expert.arithmetic == "fp8"


def test_a_decoder_without_a_query_latent_and_a_nested_deepseek_are_read() -> None:
    assert from_config(_DEEPSEEK | {"q_lora_rank": None}).attention == models.Mla(
        q_lora_rank=None, kv_lora_rank=512, nope_dim=128, rope_dim=64, value_dim=128
    )
    nested = {"model_type": "kimi_k25", "text_config": _DEEPSEEK}
    assert from_config(nested).formats == TABLE["deepseek-v3"].formats


def test_positions_are_read_where_newer_configs_put_them() -> None:
    newer = {key: value for key, value in _LLAMA_70B.items() if not key.startswith("rope")}
    newer["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    assert from_config(newer).rope == models.Rope(theta=10_000.0)


def test_the_softmax_scale_is_of_the_heads_before_absorption_and_holds_yarns_factor() -> None:
    # mscale = 0.1 ln(factor) + 1: 1.4159 for 64, 1.3466 for 32, 1.3689 for 40; 192 dims a query.
    assert TABLE["kimi-k2.5"].softmax_scale == pytest.approx(0.144680, abs=1e-6)
    assert TABLE["kimi-k2"].softmax_scale == pytest.approx(0.130861, abs=1e-6)
    assert TABLE["deepseek-v3"].softmax_scale == pytest.approx(0.1352337788608801, rel=1e-12)
    assert TABLE["llama-3.1-70b"].softmax_scale == pytest.approx(128**-0.5)
    without = _DEEPSEEK | {"rope_scaling": {"type": "yarn", "factor": 40}}
    assert from_config(without).softmax_scale == pytest.approx(192**-0.5)


def test_a_head_without_its_own_size_has_its_share_of_the_hidden_size() -> None:
    assert from_config(_LLAMA_70B).attention == models.Gqa(kv_heads=8, head_dim=128)


_BROKEN: list[tuple[dict[str, object], str]] = [
    ({"model_type": "gpt_oss"}, "unknown model_type 'gpt_oss'; known: deepseek_v3, kimi_k2,"),
    ({"hidden_size": "wide"}, r"Expected `int`, got `str` - at `\$.hidden_size`"),
    ({"hidden_size": 0}, r"Expected `int` >= 1 - at `\$.hidden_size`"),
    ({"num_experts_per_tok": 300}, "num_experts_per_tok must be at most the 256 experts"),
    ({"moe_layer_freq": 2}, "moe_layer_freq must be 1"),
    ({"torch_dtype": "float32"}, "torch_dtype must be bfloat16 or float16"),
    ({"rope_theta": None}, "rope_theta is missing"),
    ({"rope_scaling": {"type": "longrope"}}, "unknown rope type 'longrope'; known: default,"),
    ({"quantization_config": {"quant_method": "awq"}}, "unknown quantization 'awq'; known: fp8"),
    ({"quantization_config": {"quant_method": "fp8"}}, "known: fp8 with weight_block_size"),
    (
        {"quantization_config": {"quant_method": "compressed-tensors"}},
        "only one group of symmetric 4- or 8-bit integers",
    ),
    ({"quantization_config": _INT4 | {"ignore": ["re:("]}}, r"'re:\(' in ignore is no pattern"),
]


@pytest.mark.parametrize(("change", "message"), _BROKEN)
def test_what_a_config_says_that_is_not_known_is_named(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        from_config(_DEEPSEEK | change)


def test_a_missing_field_is_named_with_its_file(tmp_path: Path) -> None:
    config = {key: value for key, value in _DEEPSEEK.items() if key != "kv_lora_rank"}
    path = _written(tmp_path, config)
    with pytest.raises(UsageError, match=r"config.json: .*missing required field `kv_lora_rank`"):
        from_config(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"{", "is no JSON"),
        (b'{"model_type": "llama", "hidden_size": 81', "is no JSON"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "is no JSON"),
        (b'{"model_type": "\xff"}', "is no JSON"),
        (b'{"deep": ' + b"[" * 100_000, "is no JSON"),
        (b"[1]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `model_type`"),
        (b" " * (4 * 2**20 + 1), "over 4 MiB"),
    ],
)
def test_a_file_that_is_no_config_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        find_model(str(path))


def test_what_is_no_model_and_no_file_lists_what_is_known(tmp_path: Path) -> None:
    for name in ("kimi-k3", "", "k" * 5000, "a\0b", str(tmp_path / "absent.json")):
        with pytest.raises(UsageError, match=r"unknown model .*; known: kimi-k2, kimi-k2\.5, .*"):
            find_model(name)
    with pytest.raises(UsageError, match="is no file"):
        find_model(str(tmp_path))  # a folder without a config.json
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is no file"):
        find_model(str(pipe))
