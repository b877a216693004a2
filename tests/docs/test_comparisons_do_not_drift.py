"""Pages that compare with the originals say what the program does: their tests exist, and what is later does not.

A row of docs/compatibility whose last cell says *same* names the tests that show it, as `test_name` or
`test_name[id]`. One that says *later* names a word, in backticks, that would be in the program if the thing were.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from partage.vendors.catalog import ADAPTING
from published.cases import ELSEWHERE

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "compatibility.md"
PAGES: Final = sorted(PAGE.with_suffix("").glob("*.md"))
_NAMED: Final = re.compile(r"`(test_\w+)(?:\[([^`\]]+)\])?`")


def _rows() -> Iterator[tuple[str, str, str]]:
    """Page and line, first cell and last cell of each row, heads and rules left out."""
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            if not line.startswith("| ") or line.startswith("| ---"):
                continue
            cells = [cell.strip() for cell in line.strip().strip("|").split(" |")]
            yield f"{page.name}:{number}", cells[0], cells[-1]


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
def test_a_row_that_says_same_names_its_tests(line: str, first: str, last: str) -> None:
    """Each of them exists."""
    assert _NAMED.search(last), f"{line}: {first}: no test is named"
    assert not _missing(last), f"{line}: {first}"


@pytest.mark.parametrize(("line", "first", "last"), LATER)
def test_what_a_row_calls_later_is_not_there(line: str, first: str, last: str) -> None:
    """The word that it names occurs nowhere in the program."""
    (word,) = re.findall(r"`([^`]+)`", last)
    places = [p for p in (ROOT / "src").rglob("*.py") if word in p.read_text(encoding="utf-8")]

    assert not places, f"{line}: {first}: {word} is in {places[0]}"


def test_the_summary_counts_the_rows() -> None:
    """It has the same, fixed and later rows of each system."""
    counted = re.findall(
        r"^\| \[([^\]]+)\]\(([^)#]+)#?([^)]*)\) \| (\d+) \| (\d+) \| (\d+) \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )

    assert {PAGE.parent / page for _, page, *_ in counted} == set(PAGES)
    for name, page, section, *numbers in counted:
        text = (PAGE.parent / page).read_text(encoding="utf-8")
        parts = re.split(r"^## ", text, flags=re.MULTILINE)
        titles = {
            re.sub(r"\W+", "-", part.split("\n", maxsplit=1)[0].lower()): part for part in parts
        }
        rows = titles[section] if section else text
        found = [
            len(re.findall(rf"^\| .* \| {word}\b[^|]*\|$", rows, re.MULTILINE))
            for word in ("same", "fixed", "later")
        ]
        assert [int(one) for one in numbers] == found, name


@pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row.printed[:40])
def test_what_conformance_does_not_show_is_shown_elsewhere(row: object) -> None:
    """Each printed thing that the command cannot show has a test, or a reason why nothing does it."""
    test, by = getattr(row, "test", ""), getattr(row, "by", "")

    assert test in _tests() if test else by.startswith("never: ")


COMPARISON: Final = {
    "compute and memory of a card in parts": "test_amounts",
    "limits kept on the card": "test_each_card_has_limits_of_its_own",
    "hardware instances made on demand": "test_a_bound_pod_gets_its_instances_and_gives_them_back",
    "cards and RDMA cards placed together": "test_network_cards_come_from_the_primarys_switches",
    "manifests of several protocols on one card": "test_pods_of_four_protocols_share_cards",
    "ResourceClaims and names on one card": "test_a_claim_and_three_protocols_share_one_card",
    "two pods bind on a node at once": "test_a_thousand_pods_created_at_once_are_all_bound",
    "gangs, queues, fair shares of teams": "test_gated_pods_may_still_move_and_be_let_go",
    "making room: preemption of shares": "test_an_important_pod_preempts",
    "making room: moving pods": "test_a_plan_of_restarts_is_printed_as_shown",
    "why a pod waits": "test_get_describe_and_explain",
    "taking decisions again offline": "test_a_record_of_a_genuine_cluster_is_replayed_to_the_same_decisions",
    "a page to look at": "test_the_page_and_what_it_loads_come_from_here_alone",
}
"""Rows of docs/comparison.md in which Partage's cell claims something, and a test that shows it."""
ABSENT: Final = {"cards over the network": "remoting", "in production": ""}
"""Rows in which it says no, and a word that would be in the program if it were yes."""


def _compared() -> dict[str, str]:
    """Partage's cell of each row."""
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    table = text.split("| Partage |\n", maxsplit=1)[1].split("\n\n", maxsplit=1)[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    return {cells[0]: cells[-1] for cells in rows[1:]}


def test_what_the_comparison_claims_for_partage_is_shown() -> None:
    """A yes has its test, a no is not in the program, the vendors are those that the program knows."""
    cells = _compared()
    vendors = cells.pop("vendors of cards")

    assert cells.keys() == {*COMPARISON, *ABSENT}
    assert not [row for row in COMPARISON if re.match(r"no\b", cells[row])]
    assert not [row for row in ABSENT if not re.match(r"no\b", cells[row])]
    assert not [test for test in COMPARISON.values() if test not in _tests()]
    found = {family.name for family in ADAPTING} | {"nvidia"}
    assert {name.strip().lower() for name in vendors.partition(";")[0].split(",")} == found
    source = "".join(p.read_text("utf-8") for p in (ROOT / "src").rglob("*.py"))
    assert not [word for word in ABSENT.values() if word and word in source]
    assert cells["in production"].startswith(f"no: {version('partage').rpartition('.')[0]}, ")


def test_a_name_that_no_test_has_is_noticed() -> None:
    """The check itself: an unknown test, and an unknown case of a known one."""
    assert _missing("same: `test_that_never_was`") == ["test_that_never_was"]
    assert _missing("`test_a_hami_case_holds[no-such-case]`") == ["test_a_hami_case_holds"]
    assert not _missing("`test_a_hami_case_holds[12-memory]`")
    assert len(SAME) > 70
    assert LATER
