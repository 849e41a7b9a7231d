"""report.html: the same page as report.md in one file that asks no network; other pages likewise.

The Markdown of the template is rendered, so that both pages say the same. Markup of a record was
escaped on its way into Markdown; here only the template's own folds pass as HTML, anything else
shows as text, and the browser is told to run one script alone, by its digest.
"""

import base64
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

import jinja2
from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from reports import _marks
from verifyscope.records import Measurement

PAGE = "report.html"
_REPORT, _DOCUMENT = "report.html.j2", "document.html.j2"
MOST_BYTES = 6_000_000
_PACKED = "\ue012"  # no record's text can hold it
_HERE = Path(__file__).parent
_OWN_IDS = (
    "one-pass",
    "packed",
    "records",
    "records-filter",
    "records-note",
    "records-rows",
    "tip",
)
_BEGINS_MARKUP = re.compile(r"[\n\\`*_\[\]!<&~]")
_SUMMARY = re.compile(r"<summary>(.*)</summary>")


def page(
    markdown: str,
    *,
    plots: Path | None,
    records: Mapping[str, Measurement],
    names: Mapping[str, str],
    packed: Callable[[int], str],
    drawing: str,
    places: Mapping[str, str],
) -> str:
    """Return the whole file.

    `plots` holds the images that `markdown` names, `records` those of its marks by id and `names`
    what the page calls them; `packed` gives the records for the page's own table in the letters
    that are left for them (reports/_packed.py), `drawing` is a timeline as SVG, `places` the HTML
    of paragraphs that are no more than a name of it.
    """
    scripts = ("tables.js", "page.js")
    shown = _shown(markdown, plots, records, names, scripts=scripts, places=places)
    whole = _template(_REPORT).render(drawing=drawing, packed=_PACKED, **shown)
    return whole.replace(_PACKED, packed(MOST_BYTES - len(whole.encode())), 1)


def document(markdown: str, *, plots: Path | None, records: Mapping[str, Measurement]) -> str:
    """Return a page without a table of all records; its tables sort and filter all the same."""
    names = {name: name for name in records}
    shown = _shown(markdown, plots, records, names, scripts=("tables.js",))
    return _template(_DOCUMENT).render(**shown)


def _shown(
    markdown: str,
    plots: Path | None,
    records: Mapping[str, Measurement],
    names: Mapping[str, str],
    *,
    scripts: Sequence[str],
    places: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return what each template shows."""
    tokens = _markdown().parse(markdown)
    _set_anchors(tokens)
    body = _Page(plots).render(tokens, _markdown().options, {})
    for place, html in (places or {}).items():
        body = body.replace(f"<p>{place}</p>", html)
    first, *sections = _sections(_marks.as_html(body, records, names))
    style, script = _file("page.css"), "".join(map(_file, scripts))
    return {
        "title": _title(markdown),
        "style": style,
        "style_digest": _digest(style),
        "script": script,
        "script_digest": _digest(script),
        "first": first,
        "sections": sections,
        "names": _names(tokens),
    }


def inline(markdown: str) -> str:
    """Return a line of Markdown as HTML; marks stay."""
    return str(_markdown().renderInline(markdown))


class _Page(RendererHTML):
    """Renders headings with anchors, tables in a frame that scrolls, and images inline."""

    def __init__(self, plots: Path | None) -> None:
        super().__init__()
        self._plots = plots
        self._heading = ""

    def heading_open(
        self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
    ) -> str:
        level = tokens[at].tag
        self._heading = _plain(tokens[at + 1])
        mark = "<!--section-->" if level == "h2" else ""
        return f'{mark}<{level} id="{tokens[at].meta["anchor"]}">'

    def table_open(
        self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
    ) -> str:
        """Name the table after the heading above it, for who cannot see where it stands."""
        return f'<div class="frame"><table><caption>{escape(self._heading)}</caption>'

    def table_close(
        self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
    ) -> str:
        return "</table></div>\n"

    def td_open(self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
        return _cell(tokens[at])

    def th_open(self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
        return _cell(tokens[at])

    def html_block(
        self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
    ) -> str:
        lines = tokens[at].content.splitlines()
        if lines and lines[0].startswith("<!-- Made by"):
            return ""
        return "".join(f"{self._fold(line)}\n" for line in lines)

    def html_inline(
        self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
    ) -> str:
        return escape(tokens[at].content)

    def image(self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[at]
        name, words = str(token.attrs["src"]), escape(unescapeAll(token.content))
        file = None if self._plots is None else self._plots / Path(name).name
        if file is None or not file.is_file():
            return f"<em>{words}</em>"
        content = base64.b64encode(file.read_bytes()).decode("ascii")
        return f'<img src="data:image/png;base64,{content}" alt="{words}" decoding="async">'

    def _fold(self, line: str) -> str:
        if line in ("<details>", "</details>"):
            return line
        found = _SUMMARY.fullmatch(line)
        if found is None:
            return escape(line)
        return f"<summary>{_markdown().renderInline(found[1])}</summary>"


def _cell(token: Token) -> str:
    scope = ' scope="col"' if token.tag == "th" else ""
    side = ' class="right"' if token.attrs.get("style") else ""
    return f"<{token.tag}{scope}{side}>"


@cache
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    markdown.core.ruler.at("inline", _inline)
    return markdown


def _inline(state: StateCore) -> None:
    """Take words in which no rule of CommonMark finds a beginning as they are: most cells."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        if _BEGINS_MARKUP.search(token.content) is None:
            token.children = [Token("text", "", 0, content=token.content)] if token.content else []
        else:
            token.children = []
            state.md.inline.parse(token.content, state.md, state.env, token.children)


def _sections(body: str) -> Iterator[str]:
    yield from body.split("<!--section-->")


def _set_anchors(tokens: Sequence[Token]) -> None:
    """Give each heading an anchor of its own, and none that the page itself uses."""
    taken = set(_OWN_IDS)
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            name = "-".join(re.findall(r"[a-z0-9]+", _plain(tokens[at + 1]).lower())) or "section"
            numbered = (f"{name}-{number}" for number in itertools.count(2))
            anchor = next(one for one in itertools.chain([name], numbered) if one not in taken)
            taken.add(anchor)
            token.meta["anchor"] = anchor


def _names(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Return the anchor and the words of each section."""
    return [
        (token.meta["anchor"], _plain(tokens[at + 1]))
        for at, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == "h2"
    ]


def _plain(token: Token) -> str:
    words = "".join(
        child.content for child in token.children or () if child.type in ("text", "code_inline")
    )
    return _marks.removed(words)


def _title(markdown: str) -> str:
    found = re.search(r"^# (.*)$", markdown, re.MULTILINE)
    return found[1] if found else "Report"


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")


@cache
def _template(name: str) -> jinja2.Template:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    return templates.get_template(name)
