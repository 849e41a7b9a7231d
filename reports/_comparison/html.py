"""A page of Markdown as one self-contained HTML file: no script, no network, nothing to load.

Markup in the Markdown is shown as text. Tables scroll sideways on a narrow screen, the first column
stays; colours follow the reader's light or dark setting, and verdicts are words before colours.
"""

import html
import re

_STYLE = """
:root { color-scheme: light dark; --line: #d0d4da; --head: #f2f4f7; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --line: #454b54; --head: #23272e; --link: #8ec1ff; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 78rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; }
h1 + p { font-size: 1.15rem; }
code { font-family: ui-monospace, monospace; font-size: .92em; overflow-wrap: break-word; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left;
  vertical-align: top; }
td { min-width: 6rem; max-width: 30rem; }
td[style*="right"] { min-width: 0; white-space: nowrap; }
td:first-child, th:first-child { background: Canvas; left: 0; min-width: 2rem; position: sticky; }
th { background: var(--head); white-space: nowrap; }
a { color: var(--link); }
@media (max-width: 40rem) { body { padding: .6rem; font-size: 14px; } }
"""
_COMMENT = re.compile(r"\A<!--.*?-->\s*", re.DOTALL)


def document(markdown: str, *, title: str) -> str:
    """Return the HTML document of a page; the comment that it begins with is left out."""
    from markdown_it import MarkdownIt

    # Raw HTML is off: what came from a record and was missed by the escaping shows as text.
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = str(renderer.render(_COMMENT.sub("", markdown)))
    body = body.replace("<table>", '<div class="table" tabindex="0"><table>')
    body = body.replace("</table>", "</table></div>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing may be loaded, whatever a page holds.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}</body>\n</html>\n"
    )
