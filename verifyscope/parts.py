"""The one list of the parts that a verify pass is made of, and of the classes they fall into.

Stub, suites, ingest, budget and report name parts from here. `IDLE` and `UNEXPLAINED` are what
remains after the classes are added up; they are not classes. `cycle`, `forward`, `draft`, `host`
and `generation` are wholes that a log times (a cycle, a pass of the target, of the drafter, what
the host does, a token): they hold the other parts and are never added to them. Each class is a
part, too: of a kernel in somebody's trace no more than its class is known.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

Class = Literal[
    "attention",
    "moe",
    "dense_gemm",
    "all_reduce",
    "other_collective",
    "norm_elementwise",
    "embedding",
    "sampling",
    "metadata",
    "copy",
    "other_known",
    "unclassified",
]
CLASSES: tuple[Class, ...] = get_args(Class)

PARTS: Mapping[str, Class] = MappingProxyType(
    {
        "attention": "attention",
        "routing": "moe",
        "align": "moe",
        "routed_experts": "moe",
        "attention_projections": "dense_gemm",
        "router": "dense_gemm",
        "shared_expert": "dense_gemm",
        "dense_mlp": "dense_gemm",
        "lm_head": "dense_gemm",
        "all_reduce": "all_reduce",
        "embedding_all_reduce": "all_reduce",
        "logits_all_gather": "other_collective",
        "reduce_scatter": "other_collective",
        "all_gather": "other_collective",
        "all_to_all": "other_collective",
        "other_collective": "other_collective",
        "norms": "norm_elementwise",
        "rope": "norm_elementwise",
        "activation": "norm_elementwise",
        "embedding": "embedding",
        "sampling": "sampling",
        "metadata": "metadata",
        "copy": "copy",
        "cycle": "other_known",
        "forward": "other_known",
        "draft": "other_known",
        "host": "other_known",
        "generation": "other_known",
        "empty_kernel": "other_known",
        "memory_ceiling": "other_known",
        "matrix_ceiling": "other_known",
        "moe": "moe",
        "dense_gemm": "dense_gemm",
        "norm_elementwise": "norm_elementwise",
        "other_known": "other_known",
        "unclassified": "unclassified",
    }
)

IDLE = "idle"
UNEXPLAINED = "unexplained"


def class_of(part: str) -> Class:
    """Return the class of `part`; KeyError with the known parts if there is none."""
    if part not in PARTS:
        raise KeyError(f"no part {part!r} in verifyscope/parts.py; parts: {', '.join(PARTS)}")
    return PARTS[part]
