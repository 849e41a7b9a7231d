"""What comes out of a record shows as it was written, and numbers with the digits they have."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from reports import _text
from reports._markdown import code, table, text

_renderer = MarkdownIt("commonmark").enable("table")
_plain = st.text(
    st.characters(
        codec="utf-8", exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc", "Cf", "Cn", "Co")
    )
    | st.sampled_from(" |`*_<>[]&#~$\\-+=.1"),
    min_size=1,
    max_size=40,
)


def _shown(tokens: Sequence[object]) -> str:
    words = []
    for token in tokens:
        assert isinstance(token, Token)
        if token.type in ("text", "code_inline", "text_special"):
            words.append(token.content)
        words.append(_shown(token.children or []))
    return "".join(words)


@settings(deadline=None, derandomize=True, max_examples=400)
@given(_plain)
def test_text_shows_as_it_was_written_on_its_own_in_a_list_and_in_a_table(plain: str) -> None:
    once = " ".join(plain.split())
    assert _shown(_renderer.parse(text(plain))) == once
    assert _shown(_renderer.parse(f"- {text(plain)}")) == once
    for cell in (text(plain), code(plain)):
        page = table(("a", "b"), [(cell, "x")], align="lr")
        tokens = _renderer.parse(page)
        assert [token.type for token in tokens].count("td_open") == 2, page
        assert _shown(tokens) == f"ab{once}x"


def test_a_table_is_aligned_in_its_source_and_a_long_cell_does_not_widen_it() -> None:
    assert table(("name", "n"), [("a", "1"), ("b" * 60, "22")], align="lr") == (
        f"| name |   n |\n| ---- | --: |\n| a    |   1 |\n| {'b' * 60} |  22 |"
    )


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (_text.interval(23.4e-6, low_s=23.1e-6, high_s=23.9e-6), "23.4 us (23.1–23.9)"),
        (_text.interval(10e-6, low_s=9.98e-6, high_s=10.12e-6), "10.0 us (9.98–10.1)"),
        (_text.interval(1e-3, low_s=2e-7, high_s=2.5), "1.00 ms (0.000200–2500)"),
        (_text.interval(1e-3, low_s=None, high_s=2e-3), "1.00 ms"),
        (_text.interval(None, low_s=1e-3, high_s=2e-3), "–"),
        (_text.share(1.0, 3.0), "33 %"),
        (_text.share(0.0873, 1.0), "8.7 %"),
        (_text.share(1e-9, 1.0), "under 0.1 %"),
        (_text.share(1.0, 0.0), "–"),
        (_text.ratio(0.8349), "0.83"),
        (_text.ratio(12.34), "12.3"),
        (_text.ratio(1234.5), "1234"),
        (_text.plural(1, "row"), "1 row"),
        (_text.plural(1234, "row"), "1,234 rows"),
        (_text.listed("abcdefgh", most=6), "a, b, c, d, e, f and 2 more"),
        (_text.listed("abcdefg", most=6), "a, b, c, d, e, f, g"),
    ],
)
def test_numbers_print_with_the_digits_that_they_are_worth(shown: str, expected: str) -> None:
    assert shown == expected


def test_a_change_has_its_sign_and_a_time_below_zero_is_one() -> None:
    assert [_text.change(one) for one in (1.2e-3, -3e-6, 0.0)] == ["+1.20 ms", "-3.00 us", "0"]
    assert [_text.duration(one) for one in (-500e-6, None)] == ["-500 us", "–"]
