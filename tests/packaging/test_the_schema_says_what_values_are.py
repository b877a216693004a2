"""The chart's schema describes its values in the words of values.yaml, which editors then show."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import generate

ROOT = Path(__file__).parents[2]

from reference.pages import value_comments, values_page  # noqa: E402 # after the path

SCHEMA = generate.CHART / "values.schema.json"
VALUES = generate.CHART / "values.yaml"
PAGE = ROOT / "docs" / "reference" / "values.md"
HELMS_OWN = {"global"}
"""It is no value of this chart: helm passes a parent chart's down by this name."""
ROW = re.compile(r"^\| `([^`]+)` \| [^|]*\| [^|]*\w[^|]*\|$", re.MULTILINE)
"""A row of the page with words in its last cell."""


def _described(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    for name, below in node.get("properties", {}).items():
        if "description" in below:
            yield ".".join((*path, name)), below["description"]
        yield from _described(below, (*path, name))


def test_the_schema_is_what_the_comments_make_of_it() -> None:
    """When a comment changes, `deploy/generate.py schema` brings it up to date."""
    assert SCHEMA.read_text() == generate.schema()["values.schema.json"], (
        "run deploy/generate.py schema"
    )


def test_the_readme_is_what_the_values_make_of_it() -> None:
    """When a value changes, `deploy/generate.py schema` brings it up to date."""
    made = generate.readme()["README.md"]
    assert (generate.CHART / "README.md").read_text() == made, "run deploy/generate.py schema"
    assert "| `scheduler.podAnnotations` |" in made


def test_every_comment_is_a_description() -> None:
    """No value that is explained is missing from the schema."""
    found = dict(_described(json.loads(SCHEMA.read_text())))

    assert found == value_comments(VALUES.read_text())
    assert found["scheduler.leaseDuration"].startswith("Seconds after which others take over")


def _ends(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where the schema goes no deeper: the values that people set."""
    for name, below in node.get("properties", {}).items():
        if below.get("properties"):
            yield from _ends(below, (*path, name))
        else:
            yield (*path, name)


def test_every_value_is_described() -> None:
    """A user who sets a value finds what it does, in the editor and in the reference."""
    schema = json.loads(SCHEMA.read_text())
    ends = {".".join(path) for path in _ends(schema)} - HELMS_OWN
    told = {name for name, description in _described(schema) if description.strip()}
    shown = {found[1] for found in ROW.finditer(PAGE.read_text())}

    assert len(ends) > 100, "not the whole chart"
    assert ends <= told, f"no comment in values.yaml: {sorted(ends - told)}"
    assert ends <= shown, f"no words in values.md: {sorted(ends - shown)}"
    assert {".".join(path) for path in _ends(schema)} >= HELMS_OWN


def test_a_list_that_stands_below_its_name_is_shown() -> None:
    """Lists of one line each are a default like any other, with a comment or without."""
    page = values_page("agent:\n  tolerations:\n    - operator: Exists\n")

    assert "| `agent.tolerations` | `[{operator: Exists}]` |" in page
