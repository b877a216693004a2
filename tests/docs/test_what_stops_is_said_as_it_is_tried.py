"""The table of what stops while a part is away says what its tests try."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest
from outages import OUTAGES, Outage

ROOT: Final = Path(__file__).parents[2]
CLUSTER: Final = ROOT / "tests" / "cluster"
HEAD: Final = "## What stops when a part is away\n"


def _rows(page: str) -> dict[str, list[str]]:
    """Cells of each row of the table, by the first."""
    section = page.split(HEAD)[1].split("\n## ", maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in line.strip("| ").split(" |")] for line in lines]
    return {first: others for first, *others in cells}


PAGE: Final = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS: Final = _rows(PAGE)


def test_page_and_tests_have_the_same_rows() -> None:
    """None is left out on either side; the page states for all that running pods go on."""
    assert "In each row running pods go on" in PAGE
    assert list(ROWS) == [one.part for one in OUTAGES]


@pytest.mark.parametrize("outage", [pytest.param(o, id=o.id) for o in OUTAGES])
def test_a_row_says_what_is_tried(outage: Outage) -> None:
    """What becomes of new pods begins with the word that its test holds them to."""
    default, ours, devices, *_ = ROWS[outage.part]
    told = [re.sub(r"\W.*", "", cell.strip("*")) for cell in (default, ours, devices)]

    assert told == [outage.default, outage.ours, outage.devices]


@pytest.mark.parametrize("test", sorted({one.test for one in OUTAGES}))
def test_the_test_of_a_row_is_there(test: str) -> None:
    """Among those of the genuine cluster."""
    found = [
        part.name
        for path in CLUSTER.glob("test_*.py")
        for part in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(part, ast.FunctionDef)
    ]
    assert test in found
