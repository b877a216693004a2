"""Numbered lists of the pages count on when they are rendered: python-markdown wants four spaces."""

import re
from pathlib import Path

import pytest

markdown = pytest.importorskip("markdown", reason="mkdocs-material is not installed (group docs)")
pytest.importorskip("pymdownx", reason="mkdocs-material is not installed (group docs)")

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
EXTENSIONS = ("attr_list", "md_in_html", "tables", "pymdownx.superfences")
SECTION = re.compile(r"(?=<h[1-6][ >])")
LIST = re.compile(r"<(/?)(ol|ul)\b")


def faults(text: str) -> list[str]:
    """What a reader would see wrong: a section whose numbers start again, a step that is no step."""
    html = markdown.markdown(text, extensions=list(EXTENSIONS))
    html = re.sub(r"<pre.*?</pre>", "", html, flags=re.DOTALL)
    found = []
    for section in SECTION.split(html):
        title = re.sub(r"<[^>]+>", "", section.split("\n", 1)[0])
        depth = numbered = 0
        for end, kind in LIST.findall(section):
            numbered += not end and kind == "ol" and depth == 0
            depth += -1 if end else 1
        if numbered > 1:
            found.append(f"{title}: {numbered} lists begin at 1")
        found += [
            f"{title}: {step}" for step in re.findall(r"(?m)^(?:<p>)?(\d+\. .{,40})", section)
        ]
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_numbers_of_steps_go_on(page: Path) -> None:
    """Every section has one numbered list at most, and each step is an item of it."""
    assert not faults(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "1. One\n\n   ```sh\n   a\n   ```\n\n2. Two\n",
        "1. One\n\n   More of it.\n2. Two\n",
    ],
    ids=["a block ends the list", "a step becomes text"],
)
def test_three_spaces_are_noticed(text: str) -> None:
    """The same with four spaces, and an empty line before the next step, is right."""
    assert faults(text)
    assert not faults(re.sub(r"(?m)^   ", "    ", text).replace("it.\n2", "it.\n\n2"))
