"""NCCL's words and the grammar of NCCL_ALGO and NCCL_PROTO."""

from collections.abc import Sequence

import pytest

from ingest import nccl_names


@pytest.mark.parametrize(
    ("variable", "value", "function", "left"),
    [
        ("NCCL_PROTO", "LL,Simple", "all_reduce", {"ll", "simple"}),
        ("NCCL_PROTO", "ll128", "all_reduce", {"ll128"}),
        ("NCCL_PROTO", "^Simple", "all_reduce", {"ll", "ll128"}),
        ("NCCL_PROTO", "^LL128", "all_reduce", {"ll", "simple"}),
        ("NCCL_PROTO", "LL;allreduce:^LL", "all_reduce", {"ll128", "simple"}),
        ("NCCL_PROTO", "LL;allreduce:^LL", "broadcast", {"ll"}),
        ("NCCL_ALGO", "allreduce:tree", "broadcast", None),
        ("NCCL_ALGO", "Ring,CollNetDirect;AllReduce:NVLSTree", "all_reduce", {"nvlstree"}),
    ],
)
def test_what_a_list_leaves_over_is_nccl_s_grammar(
    variable: str, value: str, function: str, left: set[str] | None
) -> None:
    assert nccl_names.allowed(variable, value, function) == left


@pytest.mark.parametrize("value", ["LL,Foo", "allsum:LL", "LL;Simple"])
def test_a_word_that_nccl_does_not_know_is_named(value: str) -> None:
    with pytest.raises(nccl_names.UnknownToken):
        nccl_names.allowed("NCCL_PROTO", value, "all_reduce")


def test_a_name_is_one_however_it_is_spelled() -> None:
    spelled: Sequence[str] = ("CollNetDirect", "COLLNET_DIRECT", "collnetdirect", "2")
    assert {nccl_names.algorithm(text) for text in spelled} == {"collnetdirect"}
    assert [nccl_names.protocol(text) for text in ("0", "LL128", "SIMPLE")] == [
        "ll",
        "ll128",
        "simple",
    ]
    assert nccl_names.function("ReduceScatter") == "reduce_scatter"
    assert nccl_names.function("AlltoAll") == "all_to_all"


def test_a_number_of_thousands_of_digits_is_no_algorithm() -> None:
    assert nccl_names.algorithm("1") == "ring"
    assert nccl_names.algorithm("9" * 5000) == "9" * 5000
