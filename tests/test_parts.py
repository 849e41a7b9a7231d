"""One list of parts and classes; what remains is neither."""

import pytest

from verifyscope import parts


def test_every_part_is_in_one_known_class_and_every_class_can_be_reached() -> None:
    assert set(parts.PARTS.values()) <= set(parts.CLASSES)
    assert set(parts.CLASSES) - set(parts.PARTS.values()) == set()


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("attention", "attention"),
        ("routed_experts", "moe"),
        ("attention_projections", "dense_gemm"),
        ("router", "dense_gemm"),
        ("shared_expert", "dense_gemm"),
        ("lm_head", "dense_gemm"),
        ("all_reduce", "all_reduce"),
        ("embedding_all_reduce", "all_reduce"),
        ("logits_all_gather", "other_collective"),
    ],
)
def test_a_part_is_in_the_class_that_the_design_gives_it(part: str, name: str) -> None:
    assert parts.class_of(part) == name


def test_remainders_are_neither_parts_nor_classes() -> None:
    for remainder in (parts.IDLE, parts.UNEXPLAINED):
        assert remainder not in parts.PARTS
        assert remainder not in parts.CLASSES


def test_an_unknown_part_is_named_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"no part 'attn' .*; parts: attention, routing"):
        parts.class_of("attn")
