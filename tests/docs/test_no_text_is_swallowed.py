"""What pages say is seen: no `<NAME>` that a browser takes for a tag, no braces that become attributes, no cell too many, no joined lines."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reference.pages import values_page

markdown = pytest.importorskip("markdown", reason="mkdocs-material is not installed (group docs)")
pytest.importorskip("pymdownx", reason="mkdocs-material is not installed (group docs)")

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
EXTENSIONS = ("attr_list", "md_in_html", "tables", "pymdownx.superfences", "pymdownx.highlight")
TEXT = {"a", "blockquote", "br", "code", "div", "em", "hr", "img", "p", "pre", "span", "strong"}
TABLES = {"table", "tbody", "td", "th", "thead", "tr"}
TAGS = {"details", "summary", "li", "ol", "ul", *(f"h{n}" for n in range(1, 7)), *TEXT, *TABLES}
ATTRIBUTES = {"alt", "class", "href", "id", "src", "start", "style", "title"}


class _Tags(HTMLParser):
    """Collects what a browser would not show of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that pages do not use, or an attribute that they do not, was text."""
        if tag not in TAGS or any(name not in ATTRIBUTES for name, _ in attrs):
            self.found.append(str(self.get_starttag_text()))

    def handle_data(self, data: str) -> None:
        """An escape that is seen was escaped twice, or stands in code."""
        if "&lt;" in data or "&#" in data:
            self.found.append(data.strip())


def swallowed(text: str) -> list[str]:
    """The parts of a page that a reader of the site would not see as they were written."""
    tags = _Tags()
    tags.feed(markdown.markdown(text, extensions=list(EXTENSIONS)))
    tags.close()
    return tags.found + ragged(text) + joined(text)


def ragged(text: str) -> list[str]:
    """Rows with more or fewer cells than their table's head: the site leaves out a cell too many."""
    found, width = [], 0
    for line in re.sub(r"(?ms)^```.*?^```|`[^`\n]*`|\\\|", "", text).splitlines():
        cells = line.count("|") if line.startswith("|") else 0
        if width and cells not in {0, width}:
            found.append(line)
        width = width if width and cells else cells
    return found


def joined(text: str) -> list[str]:
    """Lines of a picture that were two: an arrow to the right has no arrow up or down beside it."""
    return [line for line in text.splitlines() if "──>" in line and re.search(r" [v^] ", line)]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_a_page_shows_all_its_text(page: Path) -> None:
    """Every tag and attribute of the built page is one that pages use."""
    assert not swallowed(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "by <vendor>-<model>; empty",
        "| a |\n| --- |\n| before: - {name: shop, online: true} |\n",
        "```\nsource &lt;(partage completion bash)\n```\n",
        "| a | b |\n| --- | --- |\n| `x|y` | 1 |\n| 1 | all memory | same |\n",
        "```\nengine ──decisions──> wire ^  families read  │\n```\n",
    ],
    ids=["a name", "braces", "code escaped twice", "a cell too many", "a picture on one line"],
)
def test_text_that_is_lost_is_noticed(text: str) -> None:
    """Each of these stood on a page."""
    assert swallowed(text)


def test_a_comment_of_a_value_is_shown_as_it_stands() -> None:
    """Angle brackets and examples in the chart's comments reach the reader."""
    page = values_page("# By <vendor>, such as:\n# - {name: shop, online: true}\npermits: []\n")

    assert not swallowed(page)
    assert "By &lt;vendor&gt;" in markdown.markdown(page, extensions=list(EXTENSIONS))
    assert "`- {name: shop, online: true}`" in page
