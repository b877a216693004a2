"""The table of attacks in docs/reliability.md is the one that `make hostile` runs, and its tests are there."""

import re
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS / "tools"))

from attacks import ATTACKS, Attack, Tally, table  # noqa: E402 # of the tools' folder


def test_the_page_has_the_table() -> None:
    """As `tests/tools/attacks.py --table` prints it."""
    assert table() in (TESTS.parent / "docs/reliability.md").read_text("utf-8")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: one.tried[:40])
def test_its_tests_are_there(attack: Attack) -> None:
    """Each exists by file and name."""
    for one in attack.tests:
        file, _, name = one.partition("::")
        text = (TESTS / file).read_text("utf-8")
        assert not name or re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE), one


def test_what_got_through_is_said() -> None:
    """A test that failed, and one that is not there; not so what a machine cannot try."""
    attack = Attack("tenant", "x", "y", ("a.py::test_b", "c.py"))
    tally = Tally()
    assert hash(
        tally
    )  # pytest keeps its plugins in sets where folders have a conftest of their own
    assert tally.verdict(attack) == "GOT THROUGH"
    tally.skipped = {"tests/c.py::test_d"}
    assert tally.verdict(attack) == "not tried here"
    tally.passed = {"tests/a.py::test_b[x]", "tests/a.py::test_bc", "tests/c.py::test_e"}
    assert tally.verdict(attack) == "held (2)"
    tally.failed = {"tests/a.py::test_b[y]"}
    assert tally.verdict(attack) == "GOT THROUGH"
