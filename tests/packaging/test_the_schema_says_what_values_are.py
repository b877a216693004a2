"""The chart's schema describes its values in the words of values.yaml, which editors then show."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "deploy"))
import generate  # noqa: E402 # a script beside what it writes

from partage.testing.reference.pages import value_comments  # noqa: E402 # after the path

SCHEMA = generate.CHART / "values.schema.json"
VALUES = generate.CHART / "values.yaml"


def _described(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    for name, below in node.get("properties", {}).items():
        if "description" in below:
            yield ".".join((*path, name)), below["description"]
        yield from _described(below, (*path, name))


def test_the_schema_is_what_the_comments_make_of_it() -> None:
    """A comment that changes is told by `deploy/generate.py schema`."""
    assert SCHEMA.read_text() == generate.schema()["values.schema.json"], (
        "run deploy/generate.py schema"
    )


def test_every_comment_is_a_description() -> None:
    """No value that is explained is missing from the schema."""
    found = dict(_described(json.loads(SCHEMA.read_text())))

    assert found == value_comments(VALUES.read_text())
    assert found["scheduler.leaseDuration"].startswith("Seconds after which others take over")
