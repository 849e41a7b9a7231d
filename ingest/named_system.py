"""The system that a log names: model, GPU, engine and its version, tensor parallelism.

    model_path='/models/Kimi-K2.5'   --model zai-org/GLM-5.1   vllm serve Qwen/Qwen3-8B
    vLLM API server version 0.10.1   device_name=NVIDIA_H100_80GB_HBM3
    # Kimi-K2.6 + eagle3-mla, k=3, TP8, 8x RTX PRO 6000          (a heading)
    06_vllm_glm51_mtp3_8x_rtxpro6000.log                         (the file's name)

Arguments count before headings: lines without a time among the first of a file. Where the content
says nothing of an aspect, the file's name does: people name files so that they tell them apart.
What one place names with several values it does not know ("kimi_vs_qwen.txt").

Of a model its family, version and size are kept; of an unknown family the last part of its path, if
it reads like a model's name (foo-7b).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingest.facts import Facts
from ingest.named_settings import whole
from verifyscope.privacy import redacted
from verifyscope.systems import System

_HEADING_LINES = 60
_LONGEST_HEADING = 200
_LONGEST_ARGUMENTS = 2**16

_FAMILIES = (
    r"gpt[-_ ]?oss|kimi|deepseek|chatglm|glm|qwen|qwq|llama|mixtral|ministral|devstral|mistral|"
    r"minimax|gemma|phi|nemotron|grok|hunyuan|ernie|longcat|mimo|olmo|granite|falcon|internlm|"
    r"baichuan|exaone"
)
_VARIANTS = "air|flash|coder|next|vl|omni|mini|max|scout|maverick|distill|exp"
_PART = (
    rf"(?:\d{{1,2}}x\d{{1,3}}b|\d{{1,4}}(?:\.\d{{1,2}})?b|[ae]\d{{1,3}}b|"
    rf"[krvm]?\d{{1,2}}(?:[._]\d{{1,2}})?|{_VARIANTS})(?![A-Za-z0-9])"
)
_MODEL = re.compile(
    rf"(?<![A-Za-z])(?P<family>{_FAMILIES})(?![A-Za-z]|[-_ .]?cpp)"
    rf"(?P<rest>(?: (?=[krv]\d|\d+\.\d|\d+b))?(?:[-_]?{_PART}){{0,6}})",
    re.IGNORECASE,
)
_DISTILLED = re.compile(r"(?<=distill)[-_](?:qwen|llama)(?=[-_\d])", re.IGNORECASE)
_GPU = re.compile(
    r"(?<![A-Za-z0-9])(?:\d{1,3}x[ _-]?)?(?:(?:nvidia|geforce|tesla|amd|instinct)[ _-]{1,2}){0,3}"
    r"(?P<gpu>rtx[ _-]?pro[ _-]?\d{4}|rtx[ _-]?a?\d{4}(?:[ _-]?(?:ada|super|ti|d\b))?|"
    r"(?<=x)[345]0[6-9]0(?:ti|d)?|gb[23]00|gh200|[bh][123]00|[ah]800|h20|a10g?|a16|a30|a40|a100|"
    r"l4|l20|l40s?|t4|v100|p100|mi\d{3}x?)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_ENGINE = re.compile(r"(?<![A-Za-z])(sglang|vllm|tensorrt[-_ ]?llm|trt[-_]?llm)", re.IGNORECASE)
_TP = re.compile(r"(?<![A-Za-z0-9])tp[ =]?([1-9]\d{0,2})(?![A-Za-z0-9])", re.IGNORECASE)
_STAMP = re.compile(r"\d\d:\d\d:\d\d|\b(?:INFO|WARNING|ERROR|DEBUG)\b")

_DRAFT = re.compile(r"spec\w*_config['\"]?\s?[:=]\s?\w*[({][^)}]{0,2000}[)}]")
_ARGUMENT = re.compile(
    r"(?:(?<![A-Za-z_-])(?:model_path|model|served_model_name)['\"]?\s?[:=]\s?\[?['\"]"
    r"(?P<named>[^'\"]{1,300})['\"]|"
    r"(?<![\w-])--(?:model|model-path|served-model-name)[= ]['\"]?(?P<option>[^\s'\"]{1,300})|"
    r"\bvllm serve (?P<served>[^\s'\"-][^\s'\"]{0,300}))"
)
_VERSION = re.compile(
    r"(?P<engine>vLLM API server|LLM engine|sglang)\s(?:version |\()?v?(?P<version>\d+\.\d+)",
    re.IGNORECASE,
)
_DEVICE = re.compile(r"device_name=([\w-]{2,80})")
_DIGEST = re.compile(r"[0-9a-f]{12,}")
_PLAIN = re.compile(r"(?=.*-)(?=.*\d)[a-z0-9][\w.-]{1,60}")  # foo-7b: no folder, no user


@dataclass(slots=True)
class Reader:
    """Reads a log line by line; `system` is what it names."""

    said: System = field(default_factory=System)
    headings: list[str] = field(default_factory=list)

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if line <= _HEADING_LINES and len(text) <= _LONGEST_HEADING and not _STAMP.search(text):
            self.headings.append(text)
        if "rgs" in text or "LLM engine" in text or "--model" in text or "vllm serve" in text:
            self.said = self.said.filled(System(model=_argument(text[:_LONGEST_ARGUMENTS])))
        if "ersion" in text or "LLM engine" in text or "sglang" in text:
            self._version(text)
        if "device_name=" in text and (device := _DEVICE.search(text)):
            self.said = self.said.filled(System(gpu=gpu_of(device[1])))

    @property
    def system(self) -> System:
        """Return what arguments say, then headings."""
        return self.said.filled(of_words("\n".join(self.headings)))

    def _version(self, text: str) -> None:
        found = _VERSION.search(text)
        if found is not None:
            engine = "sglang" if found["engine"].lower() == "sglang" else "vllm"
            self.said = self.said.filled(System(engine=engine, version=found["version"]))


def system_of(facts: Facts) -> System:
    """Return the system of a file: what it holds, else its name."""
    engines = {one.engine for one in facts.steps if one.engine in ("sglang", "vllm")}
    devices = {gpu_of(one.device_name) for one in facts.traces if one.device_name}
    devices |= {gpu_of(one.name) for one in facts.gpus if one.name}
    held = System(
        model=None if facts.model is None else _only(models_in(facts.model.name)),
        gpu=_only(devices - {None}),
        engine=_only(engines),
        tp=whole(facts.settings, "tp_size", "tensor_parallel_size"),
    )
    name = of_words(facts.file)
    if facts.traces:  # the TP of its name is a rank
        name = System(model=name.model, gpu=name.gpu, engine=name.engine)
    return held.filled(facts.system).filled(name)


def of_words(text: str) -> System:
    """Return what free words name: a heading, or the name of a file."""
    flat = re.sub(r"(?<=[A-Za-z0-9])_(?=tp\d)", " ", text)
    engines = {found.lower().replace("_", "-") for found in _ENGINE.findall(text)}
    tps = set(_TP.findall(flat.replace("_", " ")))
    tp = _only(tps)
    return System(
        model=_only(models_in(text)),
        gpu=_only({_gpu(found["gpu"]) for found in _GPU.finditer(text.replace("_", " "))}),
        engine=_only(engines),
        tp=None if tp is None else int(tp),
    )


def models_in(text: str) -> set[str]:
    """Return the models that a text names, as `verifyscope.models` writes them."""
    return {_model(found) for found in _MODEL.finditer(_DISTILLED.sub("", text))}


def gpu_of(device_name: str) -> str | None:
    """Return the GPU of a name as the driver prints it."""
    found = _GPU.search(device_name.replace("_", " "))
    return None if found is None else _gpu(found["gpu"])


def _only(found: "set[str] | set[str | None]") -> str | None:
    return next(iter(found)) if len(found) == 1 else None


def _model(found: re.Match[str]) -> str:
    family = re.sub(r"[-_ ]", "-", found["family"].lower()).replace("gptoss", "gpt-oss")
    parts = list(_parts(found["rest"].lower()))
    joined = "" if family == "qwen" and parts and parts[0][0].isdigit() else "-"
    return family + (joined + "-".join(parts) if parts else "")


def _parts(rest: str) -> Iterator[str]:
    for part in re.findall(_PART, rest):
        # "51" of a file's name is 5.1: no family has a version above nine yet.
        version = re.fullmatch(r"([krvm]?\d)[._]?(\d)", part)
        yield f"{version[1]}.{version[2]}" if version else part


def _gpu(name: str) -> str:
    flat = re.sub(r"[ _-]", "", name.lower())
    flat = f"rtx{flat}" if flat[0] in "345" else flat
    flat = flat.removesuffix("x") if flat.startswith("mi") else flat
    return flat.replace("rtxpro", "rtx-pro-") if "pro" in flat else flat.replace("rtx", "rtx-")


def _argument(text: str) -> str | None:
    """Return the model of a line of arguments; the drafter's is not looked at."""
    found = _ARGUMENT.search(_DRAFT.sub("", text))
    if found is None:
        return None
    return model_of(next(value for value in found.groups() if value))


def model_of(path: str) -> str | None:
    """Return the model of a path or of a name on a hub; None where it names none."""
    known = models_in(path.replace("/", " "))
    if known:
        return max(known, key=len)
    last = redacted(path.lower().rstrip("/").rpartition("/")[2])
    return last if _PLAIN.fullmatch(last) and not _DIGEST.search(last) else None
