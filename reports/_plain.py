"""Words of a record as plain text that is safe to show: one line, its letters in their order.

Control letters, overrides of the direction and private letters become blanks; what is too long for
a cell ends in how much of it is left out.
"""

LONGEST = 1000  # letters of a cell


def one_line(words: str) -> str:
    """Return the words on one line, without letters that do not show or that turn others."""
    if not words.isprintable():
        words = "".join(letter if letter.isprintable() else " " for letter in words)
    if "  " in words or words != words.strip():
        words = " ".join(words.split())
    return shortened(words)


def shortened(line: str) -> str:
    """Return a line of at most about LONGEST letters."""
    if len(line) <= LONGEST:
        return line
    return f"{line[:LONGEST]}… ({len(line) - LONGEST:,} letters more are in the record)"
