"""Text nested deeper than any decoder goes is bad input wherever bad input is expected."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.agent.differences import read_findings
from partage.agent.notes import read_notes
from partage.apiserver.persistence import UnreadableState, load
from partage.apiserver.storage import Store
from partage.model.errors import UNREADABLE, InvalidDocument

SOURCES = Path(__file__).parents[2] / "src" / "partage"
DEEP = f'{{"x": {"[" * 9000}{"]" * 9000}}}'
JSON = {"MsgspecError", "DecodeError", "UNREADABLE"}


def handlers() -> Iterator[tuple[str, set[str]]]:
    """Every place that catches an error of JSON, with the names of all that it catches."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Try):
                continue
            names = {
                one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")
                for handler in node.handlers
                if handler.type is not None
                for one in ast.walk(handler.type)
            }
            if names & JSON:
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", names


def test_who_expects_bad_json_expects_deep_json() -> None:
    """The decoder raises `RecursionError` for it, which is none of its own errors."""
    found = dict(handlers())

    assert len(found) > 40
    deep = {"RecursionError", "UNREADABLE"}
    assert [place for place, names in found.items() if not names & deep] == []
    assert RecursionError in UNREADABLE


def test_notes_of_a_node_that_are_nested_too_deeply_are_none() -> None:
    """An account that can change a Node can write its notes, and doctor reads the notes of all nodes."""
    assert read_notes(f'[{{"code": "x", "y": {DEEP}}}]') == ()


def test_a_file_that_is_nested_too_deeply_is_a_damaged_one(tmp_path: Path) -> None:
    """A program that starts says so, and which."""
    path = tmp_path / "state.json"
    path.write_text(DEEP)

    with pytest.raises(InvalidDocument):
        read_findings(path)
    with pytest.raises(UnreadableState):
        load(path, Store())
