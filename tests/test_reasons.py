"""What a record says of an error: its kind and first line, without folders and addresses."""

import pytest

from verifyscope.errors import reason_of
from verifyscope.privacy import redacted_words


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no such page\nat line 3"), "ValueError: no such page"),
        (
            OSError("cannot open /home/someone/lib/a.so: denied"),
            "OSError: cannot open a.so: denied",
        ),
        (RuntimeError("no peer at 10.0.0.7:29500"), "RuntimeError: no peer at <address>"),
        (RuntimeError("\n  CUDA error: 700  \n"), "RuntimeError: CUDA error: 700"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_reason_is_one_line_that_names_no_place(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_a_rate_is_no_path() -> None:
    assert (
        redacted_words("1.02 TB/s is 102.0 % of 1.00 TB/s") == "1.02 TB/s is 102.0 % of 1.00 TB/s"
    )
