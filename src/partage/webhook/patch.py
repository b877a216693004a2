"""Collects changes of one object as JSON Patch operations (RFC 6902).

It creates absent parents, so that a container with requests and no limits can get limits.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

Path = tuple[str | int, ...]


class Patch:
    """Operations, and their result.

    Attributes:
        operations: in the order of their application.
        result: the object after them. It shares with the given one, which stays unchanged, what no operation is in: a
            copy of all of a large pod would take most of the time of its review.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.operations: list[dict[str, Any]] = []
        self.result: dict[str, Any] = dict(document)

    def put(self, path: Path, value: Any) -> None:
        """Set a value and create absent maps on the path; no operation if it exists already."""
        here: Any = self.result
        for depth, step in enumerate(path[:-1]):
            there = _own(here, step)
            if there is None:
                # The rest of the path becomes one operation.
                made: Any = value
                for inner in reversed(path[depth + 1 :]):
                    made = {inner: made}
                self._write(here, path[: depth + 1], made)
                return
            here = there
        last = path[-1]
        if isinstance(here, dict) and here.get(last) == value and last in here:
            return
        self._write(here, path, value)

    def append(self, path: Path, value: Any) -> None:
        """Add a value to the end of a list, and create an absent list."""
        here: Any = self.result
        for step in path:
            here = _own(here, step)
            if here is None:
                self.put(path, [value])
                return
        here.append(deepcopy(value))
        self._add("add", (*path, "-"), value)

    def _write(self, parent: Any, path: Path, value: Any) -> None:
        last = path[-1]
        known = isinstance(parent, dict) and last in parent
        parent[last] = deepcopy(value)
        self._add("replace" if known else "add", path, value)

    def _add(self, operation: str, path: Path, value: Any) -> None:
        pointer = "".join(f"/{_escaped(step)}" for step in path)
        self.operations.append({"op": operation, "path": pointer, "value": deepcopy(value)})


def _own(parent: Any, step: str | int) -> Any:
    """A part of a list or map, copied first, because the given object has it too; None if it is absent."""
    found = parent[step] if isinstance(step, int) else parent.get(step)
    if isinstance(found, dict | list):
        parent[step] = found = found.copy()
    return found


def _escaped(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")
