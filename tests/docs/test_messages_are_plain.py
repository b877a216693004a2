"""What the program prints says who does what: `nobody`, `is told` and their like go around a subject.

Docstrings and comments are not looked at.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
PHRASES = re.compile(
    r"\b(nobody|whoever|somebody|everybody|who waits|is told|are told|given back|gives? back)\b",
    re.IGNORECASE,
)
EXCEPTIONS = {"given back"}
"""A word of the page's history, which programs read."""


def printed(tree: ast.Module) -> Iterator[ast.Constant]:
    """Strings that are no docstrings."""
    alone = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in alone:
            yield one


def test_messages_name_the_subject() -> None:
    """Messages, help texts, metrics, findings, advice."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        for one in printed(ast.parse(file.read_text(encoding="utf-8"))):
            text = str(one.value)
            if text not in EXCEPTIONS and (hit := PHRASES.search(text)):
                found.append(
                    f"{file.relative_to(SOURCE)}:{one.lineno}: {hit[0]!r} in {text[:80]!r}"
                )
    assert found == []


def test_the_phrases_are_found() -> None:
    """In a message, and not in a docstring."""
    tree = ast.parse('def f():\n    """Nobody."""\n    return "whoever comes"\n')
    assert [bool(PHRASES.search(str(one.value))) for one in printed(tree)] == [True]
