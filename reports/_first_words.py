"""What a report begins with, as plain text: its verdict, and what is worth most.

For a person in a terminal, and for programs: `python -m reports.build --verdict` prints it. The
page's contract is here alone: a paragraph that begins with MARK, and the paragraphs right behind it
that begin in bold, too.
"""

import re

MARK = "**Verdict.** "
_MARKUP = re.compile(r"\\([^A-Za-z0-9\s])|[*`]")


def first_words(page: str) -> list[str]:
    """Return the paragraphs of report.md's verdict without markup; none where it has none."""
    found: list[str] = []
    for paragraph in page.split("\n\n"):
        is_verdict = paragraph.startswith(MARK)
        if found and (is_verdict or not paragraph.startswith("**")):
            break
        if is_verdict or found:
            found.append(_MARKUP.sub(r"\1", " ".join(paragraph.split())))
    return found
