"""The page of what Kubernetes expects of a DRA driver names tests: each is there, by its name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/dra-driver.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")]


def test_each_expectation_names_a_test_or_says_why_there_is_none() -> None:
    """Tests that the page names are defined where claims are tested, on a genuine node where it says so."""
    known = {
        name: path.parts[-2]
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(
            r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE
        )
    }
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    told = re.findall(r"`(test_\w+)(\.py)?`", PAGE)
    assert len(told) > 40
    for name, file in told:
        assert f"{name}.py" in files if file else name in known, name
    for row in ROWS:
        expectation, _, held = row.strip("| ").partition(" | ")
        if held.strip("-") and expectation != "expectation":
            why = r"does not apply|do not apply|kubelet's own doing|control plane's|not served"
            assert "`test_" in held or re.search(why, held), expectation
        if held.startswith("on a genuine node"):
            first = held.split("`")[1]
            assert known[first] == "cluster", first
