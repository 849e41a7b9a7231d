"""A page of Markdown as one self-contained HTML file: no script, no network, nothing to load.

It looks as report.html does (reports/page.css). Raw HTML is off: what came from a record shows as
text, and the browser is told to load nothing and to run nothing, whatever the page holds.
"""

import base64
import hashlib
import html
import re
from pathlib import Path

_STYLE = Path(__file__).parent.parent / "page.css"
_COMMENT = re.compile(r"\A<!--.*?-->\s*", re.DOTALL)


def document(markdown: str, *, title: str) -> str:
    """Return the HTML document of a page; the comment that it begins with is left out."""
    from markdown_it import MarkdownIt

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = str(renderer.render(_COMMENT.sub("", markdown)))
    for plain, shown in (
        ("<table>", '<div class="frame" tabindex="0"><table>'),
        ("</table>", "</table></div>"),
        (' style="text-align:right"', ' class="right"'),
        ("</h1>\n<p>", '</h1>\n<p class="verdict">'),
    ):
        body = body.replace(plain, shown)
    style = _STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'sha256-{digest}'\">\n"
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
