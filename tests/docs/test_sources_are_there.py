"""What code and pages cite is in the repository: a page of docs/sources with that section, or a decision.

What a section of docs/sources says leads to the files in which it was read.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "docs/sources"
NUMBER = r"\d+(?:\.\d+)*"
CITED = re.compile(
    rf"docs/sources/(\w+)\.md\s+({NUMBER}[a-d]?(?:(?:,? and |, | to )\(?{NUMBER}[a-d]?(?= |,|;|\.|\)|:|$))*)"
)
DECISIONS = re.compile(r"docs/decisions/(\d{4}(?:(?:, | and )\d{4})*)")
PAPERS = re.compile(
    r"(?<![/\w-])(?:koordinator|hami|qgpu-and-peers|kubernetes|mig|beyond-fgd|pains)\.md\b(?!\))"
    r"|\bperformance\.md \d"
    r"|\bDESIGN\b|\b[Ss]eeds? 00\d"
)
"""Papers that are not in the repository."""
ELSEWHERE = (
    "CHANGELOG.md",
    "docs/from/",
    "docs/sources/",
    "mkdocs.yml",
    "tests/docs/test_sources",
)
"""A record of its time, and pages beside one another."""


def texts() -> Iterator[tuple[str, str]]:
    """Every text file that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607 # the developer's own
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    for name in listed:
        if re.search(r"\.(py|md|go|c|h|yaml|sh|toml)$", name) and (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(encoding="utf-8")


TEXTS = dict(texts())
SECTIONS = {
    page.stem: set(re.findall(rf"^#+ ({NUMBER}) ", page.read_text("utf-8"), re.MULTILINE))
    for page in SOURCES.glob("*.md")
}

NUMBERED = re.compile(rf"^#+ ({NUMBER}) [^\n]*\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
PINNED = re.compile(
    r"https://github\.com/[\w.-]+/[\w.-]+/blob/(?:v\d+\.\d+\.\d+|[0-9a-f]{40})/\S+"
)
"""A file of a repository as it was at a tag or a commit."""
PUBLISHED = re.compile(
    r"https://(?:docs\.nvidia\.com/\S+\.html|(?:cloud\.tencent|www\.tencentcloud)\.com/document/product/\d+/\d+)"
)
"""A page of a maker whose programs are closed."""


def unlinked(page: str) -> Iterator[str]:
    """Sections with text of their own that lead to no file, and links that lead to no fixed one."""
    for number, body in NUMBERED.findall(page):
        targets = re.findall(r"\]\(([^)\s]+)\)", body)
        if body.strip() and not targets:
            yield number
        for target in targets:
            there = PINNED.fullmatch(target) or PUBLISHED.fullmatch(target)
            if target.startswith("https://") and not there:
                yield f"{number}: {target}"


def citations(text: str) -> Iterator[tuple[str, str]]:
    """Page and section of each citation."""
    for page, numbers in CITED.findall(re.sub(r"\n\s*", " ", text)):
        for number in re.findall(NUMBER, numbers):
            yield page, number


def test_every_cited_section_is_there() -> None:
    """Page and number are checked."""
    found = [(name, *one) for name, text in TEXTS.items() for one in citations(text)]
    assert len(found) > 90
    assert [one for one in found if one[2] not in SECTIONS.get(one[1], ())] == []


def test_every_cited_page_is_there() -> None:
    """A citation without a section counts too."""
    for name, text in TEXTS.items():
        for page in re.findall(r"docs/sources/(\w+)\.md", text):
            assert (SOURCES / f"{page}.md").is_file(), name


def test_every_cited_decision_is_there() -> None:
    """Its number is checked."""
    for name, text in TEXTS.items():
        for numbers in DECISIONS.findall(text):
            for number in re.findall(r"\d{4}", numbers):
                assert list((ROOT / "docs/decisions").glob(f"{number}-*.md")), (name, number)


def test_nothing_is_cited_that_is_not_in_the_repository() -> None:
    """Names of papers that only its authors had."""
    found = [
        f"{name}: {hit[0]}"
        for name, text in TEXTS.items()
        if not name.startswith(ELSEWHERE)
        for hit in PAPERS.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize("page", sorted(SECTIONS))
def test_every_section_leads_to_what_was_read(page: str) -> None:
    """It links files at a tag or a commit, or a published page, so that a reader can check each sentence."""
    assert list(unlinked((SOURCES / f"{page}.md").read_text("utf-8"))) == []


def test_a_section_without_a_file_is_noticed() -> None:
    """A branch moves on and is none; a heading that only has sections below it needs none."""
    file = "https://github.com/owner/name/blob/v1.2.0/pkg/file.go"
    branch = file.replace("v1.2.0", "main")
    page = f"# Page\n\n## 1 Parts\n\n### 1.1 Names\n\nText.\n\n### 1.2 Rules\n\nRead in [a]({file}).\n\n"
    assert list(unlinked(page + f"## 2 Series\n\n[b]({branch}).\n")) == ["1.1", f"2: {branch}"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("docs/sources/hami.md 1.1 to 1.4 and 4.6; x", ["1.1", "1.4", "4.6"]),
        ("(docs/sources/koordinator.md\n    3.5a, chart 1.8) is", ["3.5"]),
        ("docs/sources/koordinator.md 13, Q15", ["13"]),
    ],
)
def test_sections_are_read(text: str, found: list[str]) -> None:
    """They may be in lists, over lines, with a letter; other numbers do not count."""
    assert [number for _, number in citations(text)] == found
