"""Configs of targets and drafters: sizes that agree with the layer lists, and what fits."""

import json
from io import BytesIO
from typing import Any

import pytest

from graphs.layers import forward
from ingest import model_configs
from ingest.facts import Facts
from ingest.log import Log
from ingest.model_findings import Machine, conclusions
from ingest.opening import Unreadable
from verifyscope import models
from verifyscope.model_sizes import sizes

TARGET: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "_name_or_path": "/home/alice/secret",
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
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
}
DRAFT: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 2048,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12_288,
    "vocab_size": 151_936,
    "draft_vocab_size": 32_000,
    "torch_dtype": "bfloat16",
}


def read(config: dict[str, Any] | bytes, file: str = "config.json") -> Facts:
    data = config if isinstance(config, bytes) else json.dumps(config).encode()
    assert model_configs.recognises(data)
    log = Log(file=file, lines=iter(()), environment="here", command="test", stream=BytesIO(data))
    (facts,) = model_configs.read(log)
    assert isinstance(facts, Facts)
    return facts


def said(*configs: dict[str, Any], machine: Machine | None = None) -> dict[str, str]:
    """The sentences on configs, by name of the finding."""
    found = [read(config, f"{letter}.json") for letter, config in zip("abc", configs, strict=False)]
    return {one.name: one.sentence for one in conclusions(found, machine)}


@pytest.mark.parametrize("name", list(models.TABLE))
@pytest.mark.parametrize("rows", [1, 4])
def test_the_bytes_of_a_pass_are_those_of_the_layer_list(name: str, rows: int) -> None:
    model = models.TABLE[name]
    by_op = forward(model, tp=1, rows=rows, context=0).weight_bytes
    assert sizes(model, rows=rows).read_bytes == pytest.approx(by_op, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek-v3", 671), ("qwen3-235b-a22b", 235), ("llama-3.1-70b", 70.6)]
)
def test_the_weights_are_as_many_as_the_models_are_named_for(name: str, billions: float) -> None:
    assert sizes(models.TABLE[name]).elements / 1e9 == pytest.approx(billions, rel=2e-3)


def test_a_target_gives_its_size_and_floors() -> None:
    machine = Machine(title="GPU", bytes_per_s=1e12, tp=2)
    sentence = said(TARGET, machine=machine)["model-size"]
    assert sentence.startswith("48 layers of 2048, 30.5 billion weights in 61.1 GB; ")
    assert "a pass reads 6.08 GB (3.04 ms) for 1 row" in sentence
    assert "15.7 GB (7.83 ms) for 4 rows, floors on 2 x GPU" in sentence


def test_an_eagle_3_drafter_gives_the_bytes_of_a_step() -> None:
    drafter = read(DRAFT).drafter
    assert drafter is not None
    attention = 2 * 2048 * (32 + 8) * 128 + 32 * 128 * 2048
    layer = attention + 3 * 2048 * 12_288
    assert drafter.kind == "EAGLE-3"
    assert drafter.step_bytes == 2 * (layer + 32_000 * 2048)
    assert drafter.once_bytes == 2 * 3 * 2048 * 2048


def test_a_latent_drafter_and_an_mtp_layer_have_steps_too() -> None:
    latent = DRAFT | {"kv_lora_rank": 512, "q_lora_rank": 1536}
    drafter = read(latent).drafter
    assert drafter is not None
    assert drafter.latent
    query = 32 * 192
    attention = 4096 * 1536 + 1536 * query + 4096 * 576 + 512 * 32 * 256 + 32 * 128 * 2048
    assert drafter.step_bytes == 2 * (attention + 3 * 2048 * 12_288 + 32_000 * 2048)
    step = model_configs.mtp_step_bytes(models.TABLE["deepseek-v3"])
    assert 2.5e9 < step < 3e9


def test_a_drafter_fits_where_hidden_size_and_vocabulary_agree() -> None:
    assert "drafter-fits" in said(TARGET, DRAFT)
    assert said(TARGET, DRAFT | {"hidden_size": 4096})["drafter-mismatch"] == (
        "b.json does not fit a.json: hidden size 4,096 and 2,048"
    )
    assert "drafter-fits" in said(TARGET, DRAFT | {"hidden_size": 4096, "target_hidden_size": 2048})
    assert "drafter-mismatch" in said(DRAFT | {"vocab_size": 128_256}, TARGET)


def test_two_targets_are_the_same_a_replacement_or_different() -> None:
    assert said(TARGET, TARGET)["model-pair"].endswith(
        "the same architecture: every number is equal"
    )
    longer = TARGET | {"max_position_embeddings": 262_144}
    assert said(TARGET, longer)["model-pair"] == (
        "a.json and b.json are a drop-in replacement: all shapes are equal, max_positions (40960, "
        "262144) differ"
    )
    wider = TARGET | {"num_experts": 256}
    assert said(TARGET, wider)["model-pair"] == (
        "a.json and b.json are different architectures: moe.experts (128, 256)"
    )


def test_nothing_of_a_config_but_numbers_is_said() -> None:
    assert "alice" not in " ".join(said(TARGET, DRAFT).values())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"model_type": "llama", "hidden_size": ' + b"[" * 5000, "nests deeper than 32"),
        (b'{"model_type": "llama", "hidden_size": 1', "no whole JSON"),
        (b'{"model_type": "nope", "hidden_size": 1}', "unknown model_type 'nope'"),
        (b'{"model_type": "llama", "hidden_size": 1e300, "draft_vocab_size": 2}', "hidden_size"),
        (b'{"model_type": "llama", "hidden_size": NaN, "draft_vocab_size": 2}', "hidden_size"),
    ],
)
def test_what_is_no_config_is_one_line(data: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        read(data)
