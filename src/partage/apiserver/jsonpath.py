"""The simple JSONPaths of definitions, for printer columns and scale subresources.

Dotted names, quoted names, indexes, `[*]` and equality filters, as in
`.status.conditions[?(@.type=="Ready")].status`. Any other expression finds nothing.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

_STEP: Final = re.compile(
    r"\.(?P<name>(?:[^.\[\]\\'\"]|\\.)+)"
    r"|\[(?P<index>-?\d+|\*)\]"
    r"|\[['\"](?P<quoted>[^'\"]+)['\"]\]"
    r"|\[\?\(\s*@\.(?P<key>[\w.\-/]+)\s*==\s*['\"]?(?P<want>[^'\")]*)['\"]?\s*\)\]"
)
_Step = tuple[str, str, str]


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[_Step, ...] | None:
    text = path.strip().strip("{}").removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    found: list[_Step] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            return None
        if match["key"] is not None:
            found.append(("filter", match["key"], match["want"]))
        elif match["index"] is not None:
            found.append(("index", match["index"], ""))
        else:
            found.append(("name", match["quoted"] or match["name"].replace("\\.", "."), ""))
        at = match.end()
    return tuple(found)


def find_all(value: Any, path: str) -> list[Any]:
    """All values at `path`."""
    steps = _steps(path)
    if steps is None:
        return []
    found = [value]
    for kind, name, want in steps:
        found = [inner for outer in found for inner in _step(outer, kind, name, want)]
    return found


def find(value: Any, path: str) -> Any:
    """The first value at `path`; None without any."""
    found = find_all(value, path)
    return found[0] if found else None


def _step(value: Any, kind: str, name: str, want: str) -> list[Any]:
    if kind == "name":
        if isinstance(value, Mapping):
            return [value[name]] if name in value else []
        return []
    items = (
        list(value.values())
        if isinstance(value, Mapping) and kind == "index" and name == "*"
        else value
        if isinstance(value, list)
        else []
    )
    if kind == "filter":
        return [
            item for item in items if isinstance(item, Mapping) and str(item.get(name)) == want
        ]
    if name == "*":
        return items
    index = int(name) if len(name) < 10 else len(items)
    return [items[index]] if -len(items) <= index < len(items) else []
