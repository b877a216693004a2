"""Pages that compare with the originals say what the program does: their tests exist, and what is later does not.

A row of docs/compatibility.md whose last cell says *same* names the tests that show it, as `test_name` or
`test_name[id]`. One that says *later* names a word, in backticks, that would be in the program if the thing were.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from partage.testing.conformance.cases import ELSEWHERE

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "compatibility.md"
_NAMED: Final = re.compile(r"`(test_\w+)(?:\[([^`\]]+)\])?`")


def _rows() -> Iterator[tuple[int, str, str]]:
    """Line number, first cell and last cell of each row, heads and rules left out."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.startswith("| ") or line.startswith("| ---"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split(" |")]
        yield number, cells[0], cells[-1]


@cache
def _tests() -> dict[str, tuple[str, ...]]:
    """Every test by name, with the text of the files that have it."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for part in ast.parse(text).body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                found[part.name] = (*found.get(part.name, ()), text)
    return found


def _missing(cell: str) -> list[str]:
    """Tests that a cell names and that are not there."""
    return [
        name
        for name, case in _NAMED.findall(cell)
        if not any(not case or f'id="{case}"' in text for text in _tests().get(name, ()))
    ]


SAME: Final = [row for row in _rows() if re.match(r"same\b", row[2])]
LATER: Final = [row for row in _rows() if re.match(r"later\b", row[2])]


@pytest.mark.parametrize(("line", "first", "last"), SAME)
def test_a_row_that_says_same_names_its_tests(line: int, first: str, last: str) -> None:
    """And each of them exists."""
    assert _NAMED.search(last), f"docs/compatibility.md:{line}: {first}: no test is named"
    assert not _missing(last), f"docs/compatibility.md:{line}: {first}"


@pytest.mark.parametrize(("line", "first", "last"), LATER)
def test_what_a_row_calls_later_is_not_there(line: int, first: str, last: str) -> None:
    """The word that it names occurs nowhere in the program."""
    (word,) = re.findall(r"`([^`]+)`", last)
    places = [p for p in (ROOT / "src").rglob("*.py") if word in p.read_text(encoding="utf-8")]

    assert not places, f"docs/compatibility.md:{line}: {first}: {word} is in {places[0]}"


@pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row.printed[:40])
def test_what_conformance_does_not_show_is_shown_elsewhere(row: object) -> None:
    """Each printed thing that the command cannot show has a test, or a reason why nothing does it."""
    test, by = getattr(row, "test", ""), getattr(row, "by", "")

    assert test in _tests() if test else by.startswith("never: ")


def test_a_name_that_no_test_has_is_noticed() -> None:
    """The check itself: an unknown test, and an unknown case of a known one."""
    assert _missing("same: `test_that_never_was`") == ["test_that_never_was"]
    assert _missing("`test_a_hami_case_holds[no-such-case]`") == ["test_a_hami_case_holds"]
    assert not _missing("`test_a_hami_case_holds[12-memory]`")
    assert len(SAME) > 70
    assert LATER
