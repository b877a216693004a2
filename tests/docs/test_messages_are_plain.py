"""What people read says who does what: `nobody`, `is told` and their like go around a subject.

Pages, help, what the program prints, every docstring and comment (those of tests too), the sources in Go, C and
JavaScript, scripts, and the chart's values, templates and rules. What is not source, and every message, has the
field's words besides: a card is allocated and not given out, a pod is evicted and not sent away.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from partage.cli.main import main

ROOT = Path(__file__).parents[2]
PHRASES = re.compile(
    r"\b(nobody|whoever|somebody|everybody|who waits|given back|gives? back"
    r"|(is|are|was|were|be|been|being|gets) told)\b",
    re.IGNORECASE,
)
UNCOMMON = re.compile(
    r"\b((?<!-)anew|as ever|told|tells? of|booked|in vain|want of|shall|put right|looked after"
    r"|afresh|tells (no|its|the|it)|does not tell|became of|went away|let go|past the (library|record)|(is|are) kept (by|to)|keeps shares"
    r"|(giv(e|es|en|ing)|gave|hand(s|ed|ing)?) out|(sent|sends?|sending)( [\w ]{1,30})? away|way to the internet)\b",
    re.IGNORECASE,
)
"""Words that an engineer who learnt English second has to look up, or that stand for one of the field's."""
LONGEST_CLAUSE = 46
"""Words between two marks that end a thought: a reader holds no more in one go."""
EXCEPTIONS = {"given back"}
"""A word of the dashboard's history, which programs read; pages quote it."""
RECORDS = ("CHANGELOG.md", "docs/decisions/")
"""Written once, at their time, and not changed later."""
NAMES = re.compile(r"`[^`]*`|\]\([^)]*\)|" + "|".join(f'"{one}"' for one in EXCEPTIONS))
"""Code, and where links lead: names of tests and files, which a page quotes as they are."""
LONGEST = {
    "docs/performance.md": 5500,
    "docs/isolation.md": 5043,
    "docs/reference/agent.md": 3300,
    "docs/reliability.md": 3401,
}
"""Pages that grow by each repair, and three quarters of the words that each had in 0.1.0."""
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "native/*.md")
    for path in sorted(ROOT.glob(pattern))
    if not str(path.relative_to(ROOT)).startswith(RECORDS)
]
INSTALLED = [
    *sorted((ROOT / "deploy/helm").rglob("*.*")),
    *sorted((ROOT / "deploy/integrations").rglob("*.*")),
    ROOT / "deploy/observability/alerts.yaml",
]
OTHERS = [
    path
    for pattern in (
        *("kube-scheduler/**/*.go", "tests/cluster/**/*.go", "native/**/*.[ch]"),
        *("src/partage/dashboard/static/*.*", "docs/scripts/*.js", "docs/stylesheets/*.css"),
        *("deploy/**/*.*", "examples/**/*.yaml", "bench/**/*.py", "tests/cluster/*.c"),
        *(
            "Makefile",
            "native/Makefile",
            "Dockerfile*",
            "*.toml",
            "*.yml",
            "tests/**/run",
            "**/build",
        ),
    )
    for path in sorted(ROOT.glob(pattern))
    if path.is_file()
    and path.suffix not in {".json", ".md", ".png", ".pyc", ".svg", ".woff2"}
    and not str(path.relative_to(ROOT)).startswith((".venv", "build"))
]
"""Sources in other languages, scripts and settings."""
TEXT = re.compile(r'"((?:[^"\\\n]|\\.)* (?:[^"\\\n]|\\.)*)"|`([^`\n]* [^`\n]*)`')
"""A text of more than a word in Go, C or JavaScript."""


def printed(tree: ast.Module) -> Iterator[ast.Constant]:
    """Strings that are no docstrings."""
    alone = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in alone:
            yield one


def hits(path: Path, *phrases: re.Pattern[str]) -> list[str]:
    """Lines of a file that have one of the phrases outside of names."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {hit[0]!r}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for phrase in phrases
        if (hit := phrase.search(NAMES.sub("", line)))
    ]


def remarks(path: Path) -> list[str]:
    """Lines of docstrings and comments that have one of the phrases: the other texts of a test are data."""
    with path.open("rb") as file:
        tokens = [
            one for one in tokenize.tokenize(file.readline) if one.string.startswith(("#", '"""'))
        ]
    return [
        f"{path.relative_to(ROOT)}:{number}: {hit[0]!r}"
        for one in tokens
        if one.type == tokenize.COMMENT or not one.line[: one.start[1]].strip()
        for number, line in enumerate(one.string.splitlines(), one.start[0])
        if (hit := PHRASES.search(NAMES.sub("", line)))
    ]


def helps(command: click.Command, name: str = "partage") -> Iterator[tuple[str, str]]:
    """The help of a command and of all below it."""
    yield name, command.help or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            if one := command.get_command(context, word):
                yield from helps(one, f"{name} {word}")


def test_messages_name_the_subject() -> None:
    """Messages, help texts of options, metrics, findings, advice."""
    found = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        for one in printed(ast.parse(file.read_text(encoding="utf-8"))):
            text = str(one.value)
            hit = PHRASES.search(text) or (" " in text and UNCOMMON.search(text))
            if hit and text not in EXCEPTIONS:
                found.append(f"{file.relative_to(ROOT)}:{one.lineno}: {hit[0]!r} in {text[:80]!r}")
    assert found == []


def test_pages_name_the_subject() -> None:
    """All that are not records of their time."""
    assert len(PAGES) > 60
    assert [hit for path in PAGES for hit in hits(path, PHRASES, UNCOMMON)] == []


@pytest.mark.parametrize(("page", "most"), LONGEST.items())
def test_long_pages_stay_as_short_as_they_became(page: str, most: int) -> None:
    """Bars between cells are no words. What is new replaces something, or is on another page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    words = [word for word in text.split() if re.search(r"\w", word)]
    assert len(words) <= most


def clauses(text: str) -> Iterator[str]:
    """What stands between full stops, colons and semicolons; of prose alone, not of tables, code and links' ends."""
    prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line for line in prose.splitlines() if not line.lstrip().startswith("|")]
    for block in re.split(r"\n\s*\n|\n\s*(?:\*|\d+\.) ", "\n".join(lines)):
        yield from re.split(r"(?<=[.:;!?])\s", block)


def test_pages_have_one_thought_at_a_time() -> None:
    """No clause is too long to be read once."""
    words = {
        clause: sum(bool(re.search(r"[A-Za-z]", one)) for one in clause.split())
        for path in PAGES
        for clause in clauses(path.read_text(encoding="utf-8"))
    }

    assert len(words) > 5000
    assert [clause for clause, count in words.items() if count > LONGEST_CLAUSE] == []


def test_what_is_installed_names_the_subject() -> None:
    """Comments of the chart's values and templates, rules, dashboards."""
    assert len(INSTALLED) > 30
    assert [hit for path in INSTALLED for hit in hits(path, PHRASES, UNCOMMON)] == []


def test_functions_and_comments_name_the_subject() -> None:
    """Every line of the sources."""
    files = sorted((ROOT / "src/partage").rglob("*.py"))
    assert len(files) > 300
    assert [hit for path in files for hit in hits(path, PHRASES)] == []


def test_tests_name_the_subject() -> None:
    """Their docstrings and comments, which say what is proven."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 600
    assert [hit for path in files for hit in remarks(path)] == []


def test_sources_in_other_languages_name_the_subject() -> None:
    """Their comments as those of Python; and their messages have the field's words."""
    there = {str(path.relative_to(ROOT)): path for path in OTHERS}
    assert {path.suffix for path in OTHERS} >= {".go", ".c", ".h", ".js", ".css", ".yaml", ""}
    assert len(there) > 200

    found = [hit for path in there.values() for hit in hits(path, PHRASES)]
    for name, path in there.items():
        if path.suffix in {".go", ".c", ".h", ".js"}:
            texts = TEXT.finditer(path.read_text(encoding="utf-8"))
            found += [f"{name}: {one[0]}" for one in texts if UNCOMMON.search(one[0])]
    assert found == []


@pytest.mark.parametrize(("name", "text"), list(helps(main)), ids=lambda one: one[:30])
def test_help_names_the_subject(name: str, text: str) -> None:
    """What `--help` says first."""
    assert not PHRASES.search(text), name
    assert not UNCOMMON.search(text), name


def test_the_phrases_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message, a line of a page and a test's remark are searched; names are not."""
    tree = ast.parse('def f():\n    """Nobody."""\n    return "whoever comes"\n')
    assert [bool(PHRASES.search(str(one.value))) for one in printed(tree)] == [True]
    page = tmp_path / "page.md"
    page.write_text(
        "Nobody.\n`test_nobody` and [x](y#nobody)\nThe pod is\nIt is told.\nSent away\n"
    )
    test = tmp_path / "test.py"
    test.write_text('"""Of `nobody`.\n\nNobody.\n"""\nname = "nobody"  # is told\n')
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert remarks(test) == ["test.py:3: 'Nobody'", "test.py:5: 'is told'"]
    assert hits(page, PHRASES) == ["page.md:1: 'Nobody'", "page.md:4: 'is told'"]
    assert hits(page, UNCOMMON) == ["page.md:4: 'told'", "page.md:5: 'Sent away'"]
