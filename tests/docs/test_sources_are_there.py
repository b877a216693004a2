"""What code and pages cite is in the repository: a page of docs/sources with that section, or a decision."""

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


def citations(text: str) -> Iterator[tuple[str, str]]:
    """Page and section of each citation."""
    for page, numbers in CITED.findall(re.sub(r"\n\s*", " ", text)):
        for number in re.findall(NUMBER, numbers):
            yield page, number


def test_every_cited_section_is_there() -> None:
    """By page and number."""
    found = [(name, *one) for name, text in TEXTS.items() for one in citations(text)]
    assert len(found) > 90
    assert [one for one in found if one[2] not in SECTIONS.get(one[1], ())] == []


def test_every_cited_page_is_there() -> None:
    """Without a section too."""
    for name, text in TEXTS.items():
        for page in re.findall(r"docs/sources/(\w+)\.md", text):
            assert (SOURCES / f"{page}.md").is_file(), name


def test_every_cited_decision_is_there() -> None:
    """By its number."""
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("docs/sources/hami.md 1.1 to 1.4 and 4.6; x", ["1.1", "1.4", "4.6"]),
        ("(docs/sources/koordinator.md\n    3.5a, chart 1.8) is", ["3.5"]),
        ("docs/sources/koordinator.md 13, Q15", ["13"]),
    ],
)
def test_sections_are_read(text: str, found: list[str]) -> None:
    """In lists, over lines, with a letter; not what else has a number."""
    assert [number for _, number in citations(text)] == found
