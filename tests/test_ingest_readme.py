"""What README shows of an ingest is what the command says."""

import re
from pathlib import Path

from ingest.verdict import verdict
from tests.serving_lines import concluded

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_verdict_in_readme_is_that_of_the_lines_in_readme() -> None:
    text = README.read_text(encoding="utf-8").partition("## A log instead of a benchmark")[2]
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    log = "".join(line.strip() + "\n" for line in blocks[0].splitlines())
    found = concluded(log, plain_ms=12.12)
    assert verdict([*found.values()], [], []) == blocks[1].strip()
    for name, words in (
        ("share-bound", "1.94 x the tokens/s, halving all that is not verify 1.02 x"),
        (
            "run-outlier",
            "run 3 is no run like the others; the mean is 59.6 tokens/s by run and 59.1",
        ),
    ):
        assert words in found[name].sentence
