"""What is concluded of several files is of one system; what names too little is left alone."""

from pathlib import Path

import pytest

from ingest import one_system
from ingest.conclusions import Conclusion
from ingest.facts import Facts
from ingest.named_system import Reader, gpu_of, of_words, system_of
from ingest.verdict import conclusions, verdict
from tests import serving_lines as lines
from verifyscope.systems import Aspect, System, apart, groups

FOUNDING = (
    "Target verify: 29.47 ms/cyc (97.0%)\nTarget verify: 29.48 ms/cyc (97.0%)\n"
    "Target verify: 29.49 ms/cyc (97.0%)\n"
)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("06_vllm_glm51_mtp3_8x_rtxpro6000.log", "glm-5.1, rtx-pro-6000, vllm"),
        ("02_sglang_qwq32b_no_eagle_baseline.log", "qwq-32b, sglang"),
        ("01_sglang_eagle3_qwen3-8b_tp2_a800.log", "qwen3-8b, a800, sglang, tp 2"),
        ("kimi_k25_plain.log", "kimi-k2.5"),
        ("kimi_vs_qwen.txt", ""),
        ("GLM-5.1-NVFP4 TP8 8x RTX PRO 6000, ctx 0", "glm-5.1, rtx-pro-6000, tp 8"),
        ("# Kimi K2.6 + eagle3-mla, k=3, TP8", "kimi-k2.6, tp 8"),
        ("DeepSeek-R1-Distill-Qwen-32B", "deepseek-r1-distill-32b"),
        ("Qwen3-30B-A3B on 8xH200", "qwen3-30b-a3b, h200"),
        ("gpt-oss-120b tp4", "gpt-oss-120b, tp 4"),
        ("llama.cpp, and the ring of 8 GPUs", ""),
        ("verify.log", ""),
    ],
)
def test_words_name_a_system(name: str, words: str) -> None:
    assert of_words(name).words() == words


@pytest.mark.parametrize(
    ("line", "system"),
    [
        (
            "server_args=ServerArgs(model_path='/home/alice/kimi-k2.5', "
            "speculative_draft_model_path='/x/llama-eagle3')",
            System(model="kimi-k2.5"),
        ),
        (
            "non-default args: {'speculative_config': {'method': 'eagle3', 'model': 'x/qwen3'}, "
            "'model': 'moonshotai/Kimi-K2.5'}",
            System(model="kimi-k2.5"),
        ),
        ("vllm serve acme/Foo-7B --port 8000", System(model="foo-7b", engine="vllm")),
        ("args: model='/data/snapshots/0123456789abcdef0123'", System()),
        ("args: model='/home/alice/model'", System()),
        ("args: model='/home/alice'", System()),
        (
            "Initializing a V1 LLM engine (v0.11.0) with config: model='zai-org/GLM-5.1'",
            System(model="glm-5.1", engine="vllm", version="0.11"),
        ),
        ("config device_name=NVIDIA_H100_80GB_HBM3.json", System(gpu="h100")),
        ("10:00:00 INFO a prompt on Llama-3.1-8B", System()),
    ],
)
def test_a_line_of_a_log_names_a_system(line: str, system: System) -> None:
    reader = Reader()
    reader.take(9, line)
    assert reader.system == system


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("AMD Instinct MI300X", "mi300"),
        ("Some Card 9", None),
    ],
)
def test_a_driver_names_a_gpu(device: str, gpu: str | None) -> None:
    assert gpu_of(device) == gpu


@pytest.mark.parametrize(
    ("one", "other", "aspect"),
    [
        (System(model="kimi-k2.5"), System(model="kimi"), None),
        (System(model="kimi-k2.5"), System(model="kimi-k2.6"), "model"),
        (System(model="glm-4.5"), System(model="glm-4.5-air"), "model"),
        (System(model="qwen3-30b-a3b"), System(model="qwen3-30b"), None),
        (System(model="qwen3-8b"), System(model="qwen3-235b-a22b"), "model"),
        (System(model="foo-7b"), System(model="bar-7b"), "model"),
        (System(gpu="h100", tp=8), System(gpu="h100", tp=4), "tp"),
        (System(engine="vllm"), System(), None),
    ],
)
def test_two_systems_are_apart_where_both_name_something_else(
    one: System, other: System, aspect: str | None
) -> None:
    assert apart(one, other) == apart(other, one) == aspect


def test_files_that_are_nowhere_apart_are_one_system() -> None:
    assert groups([System(), System()]) == [[0, 1]]
    assert groups([System(model="kimi"), System(gpu="h100"), System()]) == [[0, 1, 2]]


TP: Aspect = "tp"


def test_where_some_are_apart_what_could_be_of_either_stays_alone() -> None:
    kimi, qwen = System(model="kimi-k2.5", engine="vllm"), System(model="qwen3-8b", engine="sglang")
    assert groups([kimi, qwen, System()]) == [[0], [1], [2]]
    assert groups([kimi, qwen, System(engine="sglang")]) == [[0], [1, 2]]
    assert groups([kimi, qwen, System(tp=8), System(tp=8)]) == [[0], [1], [2], [3]]
    assert groups([kimi, qwen, System(model="kimi")]) == [[0, 2], [1]]
    four, eight = System(model="kimi", tp=4), System(model="kimi", tp=8)
    assert groups([four, eight, System(model="kimi"), qwen]) == [[0], [1], [2], [3]]
    assert groups([four, eight, System(model="kimi"), qwen], but=[TP]) == [[0, 1, 2], [3]]


def said(*files: tuple[str, str], plain_ms: float | None = None, same: bool = False) -> list[str]:
    """Return the names of what is concluded of files (name, text)."""
    return [one.name for one in concluded(*files, plain_ms=plain_ms, same=same)]


def concluded(
    *files: tuple[str, str], plain_ms: float | None = None, same: bool = False
) -> list[Conclusion]:
    facts = [lines.facts_of(text, name) for name, text in files]
    plain_s = None if plain_ms is None else plain_ms * 1e-3
    return conclusions(facts, plain_s=plain_s, same_system=same)


VERIFY = lines.steady(30.0, accept=2.0)
PLAIN = lines.steady(12.0, graph=None)
BARE = ("verify (default backend)    ~400 ms\n", "Plain decode: 10.25 ms/tok\n")


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ((("a.log", VERIFY), ("b.log", PLAIN)), "break-even"),
        ((("a.log", BARE[0]), ("b.log", BARE[1])), "verify-slower-than-plain"),
        (
            (
                ("a.log", "".join(lines.vllm(50.0, running=4, second=at) for at in range(3))),
                ("b.log", "".join(lines.plain_vllm(37.3, running=16, second=at) for at in (1, 2))),
            ),
            "verify-slower-than-plain-rows-matched",
        ),
        ((("a.log", FOUNDING), ("b.log", FOUNDING.replace("29.4", "19.4"))), "unexplained"),
    ],
)
def test_every_comparison_of_files_is_of_one_system(
    files: tuple[tuple[str, str], tuple[str, str]], name: str
) -> None:
    (first, one), (second, other) = files
    compared = [found for found in said(*files) if found.startswith(name)]
    assert compared
    assert one_system.NAME not in said(*files)
    headings = ((f"deepseek-r1_{first}", one), (second, f"QwQ-32B, TP4\n{other}"))
    assert [found for found in said(*headings) if found.startswith(name)] == []
    assert one_system.NAME in said(*headings)
    together = said(*headings, same=True)
    assert [found for found in together if found.startswith(name)] == compared
    assert one_system.NAME not in together


def test_tp_and_version_are_settings_of_what_is_compared_before_and_after() -> None:
    old, new = FOUNDING, FOUNDING.replace("29.4", "19.4")
    found = concluded(("tp4_a.log", old), ("tp8_a.log", new))
    (effect,) = [one for one in found if one.name == "setting-with-effect"]
    assert effect.sentence.startswith("tp (4 and 8) changed it: Target verify takes ")
    assert "break-even" not in said(("tp4.log", FOUNDING), ("tp8.log", PLAIN))


def test_one_line_says_what_was_not_compared_and_how_to_say_that_it_belongs_together() -> None:
    found = concluded(("deepseek-r1.log", BARE[0]), ("qwq32b.log", BARE[1]), ("x.log", PLAIN))
    (line,) = [one for one in found if one.name == one_system.NAME]
    assert line.sentence == (
        "not compared, as these logs are not of one system: deepseek-r1.log (deepseek-r1); "
        "qwq32b.log (qwq-32b); x.log (sglang)"
    )
    assert "--same-system" in (line.next_action or "")
    assert not line.verdict


def test_a_given_plain_step_is_of_one_system() -> None:
    kimi, qwen = ("kimi.log", FOUNDING), ("qwen.log", FOUNDING)
    assert "break-even" in said(kimi, plain_ms=12.12)
    assert said(kimi, qwen, plain_ms=12.12, same=True).count("break-even") == 2
    both = concluded(kimi, qwen, plain_ms=12.12)
    assert "break-even" not in [one.name for one in both]
    assert "--plain-ms is of one system and was not used" in both[0].sentence


def test_the_verdict_names_the_file_where_several_systems_were_given() -> None:
    found = concluded(("kimi.log", FOUNDING + "Plain: 82.5 tok/s\n"), ("qwen.log", VERIFY))
    assert verdict(found, [], [], several=True).startswith("kimi.log: verify 29.48 ms, 97 % of")
    alone = concluded(("a.log", FOUNDING), ("b.log", PLAIN))
    assert verdict(alone, [], [], several=True).startswith("verify 29.48 ms, 97 % of")


def test_what_a_file_holds_counts_before_what_it_is_called() -> None:
    facts = lines.facts_of("Kimi-K2.5, TP8\n" + VERIFY, "qwen3-8b_vllm_h100.log")
    assert system_of(facts).words() == "kimi-k2.5, h100, sglang, tp 8"
    assert system_of(Facts(file=str(Path("notes.txt")))) == System()


def test_records_say_of_which_system_they_are() -> None:
    (record,) = lines.times_of("GLM-5.1 TP8 8x RTX PRO 6000\n" + VERIFY)
    told = {name: record.method.get(name) for name in ("model", "gpu", "engine", "tp")}
    assert told == {"model": "glm-5.1", "gpu": "rtx-pro-6000", "engine": "sglang", "tp": "8"}
    (record,) = lines.times_of(VERIFY)
    assert "model" not in record.method
