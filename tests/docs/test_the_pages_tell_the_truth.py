"""Commands, captures, links and lists in the pages are true."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from partage.cli.up import up
from published.captures import captures, comes_out, commands, output, refreshed

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
COMMANDS = sorted({(page, line) for page in PAGES for line in commands(page.read_text("utf-8"))})
CAPTURES = [(page, *one) for page in PAGES for one in captures(page.read_text("utf-8"))]
ANSWERS = ("schedule", "explain", "top", "inspect")
"""Commands that a reader types to see what they print."""


@pytest.mark.parametrize(
    ("page", "line"), COMMANDS, ids=[f"{page.name}: {line}" for page, line in COMMANDS]
)
def test_a_command_in_a_page_works(page: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make` names a target there is; `partage` runs and ends well."""
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(line, comments=True)

    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in arguments)
    else:
        assert program == "partage"
        if arguments[0] == "up":  # runs until it is ended: only its arguments are judged
            assert up.make_context("up", arguments[1:])
        else:
            assert output(line)


@pytest.mark.parametrize(
    ("page", "line", "shown"), CAPTURES, ids=[f"{page.name}: {line}" for page, line, _ in CAPTURES]
)
def test_a_page_shows_what_comes_out(
    page: Path, line: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, but for those of `…`; `make conformance` brings README up to date."""
    monkeypatch.chdir(ROOT)

    assert comes_out(shown, output(line)), f"{page}: not what `{line}` prints"


def test_no_answer_is_missing() -> None:
    """A command behind a prompt whose point is its answer has one below it."""
    shown = {(page, line) for page, line, _ in CAPTURES}

    assert [
        (page, line)
        for page, line in COMMANDS
        if line.split()[0] == "partage"
        and line.split()[1] in ANSWERS
        and (page, line) not in shown
    ] == []


def test_a_gap_stands_for_lines_that_are_there() -> None:
    """Lines in their order, whole; `…` for one or more."""
    printed = "a\nb\nc\n"

    assert comes_out("a\n…\nc\n", printed)
    assert comes_out("…\nc\n", printed)
    assert not comes_out("a\nc\n", printed)
    assert not comes_out("a\n", printed)
    assert not comes_out("…\nb\nc\n…\n", printed)
    assert not comes_out("c\n…\na\n", printed)


def test_a_capture_is_replaced_and_other_blocks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a block of one partage command with output below it is replaced."""
    monkeypatch.chdir(ROOT)
    kept = "```console\n$ make run\n$ make test\n```\n"
    stale = "```console\n$ partage schedule examples/metax\nold\n```\n"

    page = refreshed(kept + stale)

    assert page.startswith(kept)
    assert "old" not in page
    assert "test-metax-sGPU" in page


def test_a_command_that_fails_is_no_capture() -> None:
    """A command that ends with 2 is an error, not an output."""
    with pytest.raises(ValueError, match="exit 2"):
        output("partage schedule no-such-file")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_a_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    """Relative links exist; an anchor is a heading of the page it leads to."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in _anchors(found), target


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_layer_is_in_the_code_map() -> None:
    """Each package that the import contract names has its row in ARCHITECTURE.md."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = config["tool"]["importlinter"]["contracts"][0]
    layers = {name.strip() for line in contract["layers"] for name in line.split("|")}
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Code map")[1]

    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table.split("## Invariants")[0], re.MULTILINE)

    assert {name for row in rows for name in re.findall(r"\w+", row)} >= layers


def test_every_decision_is_listed_and_has_its_sections() -> None:
    """The index names each page; each says what it does not do and what else was weighed, or why it went."""
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for page in folder.glob("0*.md"):
        text = page.read_text(encoding="utf-8")
        assert page.name in index
        went = "\n**Status.** superseded" in text
        rest = ("Why it went",) if went else ("Non-goals", "Alternatives", "History")
        for section in ("Context", "Decision", *rest):
            assert f"\n## {section}\n" in text, page
