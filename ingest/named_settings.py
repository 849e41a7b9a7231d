"""The settings that a server log names, by an exact list: nothing else of an argument line is read.

    server_args=ServerArgs(tp_size=8, ...)      non-default args: {'tensor_parallel_size': 8, ...}
    --speculative-attention-mode decode         NCCL_PROTO=Simple

Keys, paths, hosts and users cannot get into a record: only the names in SETTINGS, each with the
reason why it is there, and the variables of `verifyscope.settings`, with values that are one plain
word. The first value of a name counts; a later other one is kept as `changed`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ingest.facts import Setting
from verifyscope import settings
from verifyscope.privacy import redacted

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "attention_backend": "which attention kernels",
        "decode_attention_backend": "which attention kernels for decode",
        "prefill_attention_backend": "which attention kernels for prompts",
        "speculative_attention_mode": "whether verify uses decode or prompt kernels",
        "speculative_draft_attention_backend": "which attention kernels for drafts",
        "enable_flashinfer_mla": "which latent attention kernels",
        "sampling_backend": "which sampling kernels",
        "moe_runner_backend": "which expert kernels",
        "moe_a2a_backend": "how tokens reach their experts",
        "speculative_moe_runner_backend": "which expert kernels for drafts",
        "speculative_algorithm": "how drafts are made",
        "speculative_num_steps": "passes of the drafter a cycle",
        "speculative_eagle_topk": "width of the draft tree",
        "speculative_num_draft_tokens": "rows of a verify pass a request",
        "num_speculative_tokens": "drafted tokens a cycle",
        "disable_cuda_graph": "launch of every kernel by the host",
        "enforce_eager": "launch of every kernel by the host",
        "cudagraph_mode": "which parts of a pass are in a graph",
        "cuda_graph_max_bs": "largest batch with a graph",
        "disable_cuda_graph_padding": "which batches have a graph",
        "enable_torch_compile": "fused elementwise kernels",
        "disable_overlap_schedule": "host work beside or between passes",
        "async_scheduling": "host work beside or between passes",
        "enable_two_batch_overlap": "communication beside computation",
        "tp_size": "how many GPUs share a layer",
        "tensor_parallel_size": "how many GPUs share a layer",
        "dp_size": "replicas",
        "data_parallel_size": "replicas",
        "ep_size": "how many GPUs share the experts",
        "pp_size": "stages",
        "pipeline_parallel_size": "stages",
        "decode_context_parallel_size": "how many GPUs share a context",
        "enable_expert_parallel": "how experts are split",
        "enable_dp_attention": "attention is not split over heads",
        "disable_custom_all_reduce": "which all-reduce kernels",
        "enable_mscclpp": "which all-reduce kernels",
        "enable_symm_mem": "which all-reduce kernels",
        "enable_nccl_nvls": "in-switch reduction",
        "dtype": "bytes of activations",
        "quantization": "bytes of weights",
        "kv_cache_dtype": "bytes of the cache",
        "page_size": "how token counts move",
        "max_running_requests": "load",
        "max_num_seqs": "load",
        "max_num_batched_tokens": "prompt tokens beside decode",
        "chunked_prefill_size": "prompt tokens beside decode",
        "enable_prefix_caching": "prompt work",
        "decode_log_interval": "steps a log line",
    }
)
SIGNS = (b"ServerArgs(", b"non-default args:", b"--speculative", b"speculative_config")
_ALIASES = {"tp": "tp_size", "dp": "dp_size", "ep": "ep_size"}
_COUNTS_ONLY = ("decode_log_interval",)

_VALUE = r"[A-Za-z0-9][\w.+]{0,40}(?:-[\w.+]+){0,6}"
_NAMED = re.compile(rf"\b([a-z][a-z_]{{1,50}})['\"]?(?:=|: )['\"]?({_VALUE})(?![\w/:@])")
_OPTION = re.compile(
    rf"(?<![\w-])--([a-z][a-z_-]{{1,50}})(?:[= ](?!-)({_VALUE})(?![\w/:@]))?(?=[\s'\"]|$)"
)
_VARIABLE = re.compile(r"(?<![\w$])([A-Z][A-Z0-9_]{3,60})=([\w^.,:+-]{1,40})(?![\w/@])")
_FAMILY = re.compile("_[A-Z0-9_]+=")  # a quick look


@dataclass(slots=True)
class Reader:
    """Reads a log line by line; `found` holds the settings by name."""

    found: dict[str, Setting] = field(default_factory=dict)
    changed: dict[str, Setting] = field(default_factory=dict)

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if "rgs" in text or "LLM engine" in text or "speculative_config" in text:
            for name, value in _NAMED.findall(text):
                self._add(line, name, value)
        if "--" in text:
            for name, value in _OPTION.findall(text):
                self._add(line, name.replace("-", "_"), value)
        if "=" in text and _FAMILY.search(text):
            for name, value in _VARIABLE.findall(text):
                self._variable(line, name, value)

    def _add(self, line: int, name: str, value: str) -> None:
        name = _ALIASES.get(name, name)
        if name in SETTINGS and value not in ("None", "null"):
            self._keep(line, name, redacted(value) if value else "True")

    def _variable(self, line: int, name: str, value: str) -> None:
        if name in settings.SETTINGS and not any(word in name for word in settings.NEVER):
            self._keep(line, name, redacted(value))

    def _keep(self, line: int, name: str, value: str) -> None:
        known = self.found.setdefault(name, Setting(line=line, value=value))
        if known.value != value:
            self.changed.setdefault(name, Setting(line=line, value=value))


def difference(
    old: Mapping[str, Setting], new: Mapping[str, Setting]
) -> dict[str, tuple[str, str]]:
    """Return what two files name differently, the values of both; "not named" is a value."""
    names = [name for name in dict.fromkeys([*old, *new]) if name not in _COUNTS_ONLY]
    pairs = {name: (_value(old, name), _value(new, name)) for name in names}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def _value(found: Mapping[str, Setting], name: str) -> str:
    return found[name].value if name in found else "not named"


def whole(found: Mapping[str, Setting], *names: str) -> int | None:
    """Return the first of `names` that is a whole number above zero."""
    for name in names:
        if name in found and re.fullmatch(r"[1-9]\d{0,6}", found[name].value):
            return int(found[name].value)
    return None
