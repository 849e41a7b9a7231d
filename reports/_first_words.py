"""What a report begins with, as plain text: its verdict, and what is worth most.

For a person in a terminal, and for programs: `python -m reports.build --verdict` prints it. The
page's contract is here alone: a paragraph that begins with MARK, the paragraphs right behind it
that begin in bold, too, and the rows of the first table if its first column is WORTH_MOST.
"""

import re
from collections.abc import Iterator

MARK = "**Verdict.** "
WORTH_MOST = "worth most, each alone"
_MARKUP = re.compile(r"\\([^A-Za-z0-9\s])|[*`]")
_CELL = re.compile(r"(?<!\\)\|")


def first_words(page: str) -> list[str]:
    """Return the paragraphs of report.md's verdict without markup; none where it has none."""
    paragraphs = page.partition("\n## ")[0].split("\n\n")
    found: list[str] = []
    for paragraph in paragraphs:
        is_verdict = paragraph.startswith(MARK)
        if found and (is_verdict or not paragraph.startswith("**")):
            break
        if is_verdict or found:
            found.append(_plain(paragraph))
    return [*found, *_worth(paragraphs)] if found else []


def _worth(paragraphs: list[str]) -> Iterator[str]:
    """Yield a line for each action: what it is, what it saves, known how and confirmed by."""
    table = next((one for one in paragraphs if one.startswith(f"| {WORTH_MOST} ")), "")
    for row in table.splitlines()[2:]:
        what, saves, tokens, known, confirm = (_plain(cell) for cell in _CELL.split(row)[1:-1])
        rate = "" if tokens == "–" else f", {tokens} tok/s"
        yield f"Worth {saves}{rate} ({known}): {what}; confirmed by {confirm}"


def _plain(words: str) -> str:
    return _MARKUP.sub(r"\1", " ".join(words.split()))
