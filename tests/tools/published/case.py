"""What one printed manifest or result becomes: an input, expectations, and a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Case", "Elsewhere", "Expectation", "Misprint", "Verdict", "observe"]

Path = tuple[str | int, ...]


class Verdict(StrEnum):
    """How a row ends."""

    OK = "pass"
    MISPRINT = "pass; the print has a misprint"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A place in the program's JSON and what must be there.

    Attributes:
        path: `("exit",)`; or `("pods", "namespace/name", …)`; or `("nodes", name, …)`. Pods and
            nodes are looked up by name, lists by number, mappings by key.
        value: what must be there; for a mapping, these keys with these values, others are free.
    """

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Case:
    """One row that is checked.

    Attributes:
        id: its name, unique, beginning with the document's number.
        printed: what the document prints or says.
        documents: the input as YAML, several documents apart by `---`.
        expected: what must come out.
        how: how the outcome is compared with the print.
        arguments: further arguments of `partage schedule`.
        misprint: what the print has wrong, if this row is concerned.
    """

    id: str
    printed: str
    documents: str
    expected: tuple[Expectation, ...]
    how: str = "values equal the print"
    arguments: tuple[str, ...] = ()
    misprint: str = ""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A printed thing that this command cannot show.

    Attributes:
        number: the document's number.
        printed: what it prints.
        by: what does it, or why nothing does.
        test: the test that shows it; empty where nothing does it.
    """

    number: str
    printed: str
    by: str
    test: str = ""


@dataclass(frozen=True, slots=True)
class Misprint:
    """What a document prints wrong, and what is implemented instead."""

    number: str
    printed: str
    meant: str
    implemented: str


def observe(output: Mapping[str, Any], path: Path) -> Any:
    """What the output has at a path; None where it has nothing."""
    place: Any = output
    for step in path:
        found = _step(place, step)
        if found is None:
            return None
        place = found
    return place


def _step(place: Any, step: str | int) -> Any:
    if isinstance(place, Mapping):
        return place.get(step)
    if isinstance(place, list) and isinstance(step, int):
        return place[step] if step < len(place) else None
    if isinstance(place, list):
        return next((item for item in place if _name(item) == step), None)
    return None


def _name(item: Mapping[str, Any]) -> str:
    namespace = item.get("namespace")
    return f"{namespace}/{item['name']}" if namespace else str(item.get("name"))
