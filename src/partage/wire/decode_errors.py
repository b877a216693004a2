"""Finds the entry of a map that a decoder's error is about.

The decoder's messages name fields and places in lists, but have `[...]` for any entry of a map.
A person with forty labels needs the key, so this module searches the value for that entry.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_MESSAGE: Final = re.compile(r".*, got `(?P<got>\w+)` - at `(?P<path>\$[^`]*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<field>[^.\[]+)|\[(?P<place>[0-9]+)\]|\[\.\.\.\]")
_TYPES: Final = ((bool, "bool"), (int, "int"), (float, "float"), (str, "str"), (list, "array"))


def with_keys(message: str, value: Any) -> str:
    """The message with keys in place of `[...]`; unchanged if none is found.

    `message`: of the decoder, such as "Expected `str`, got `int` - at `$.metadata.labels[...]`". `value`: the decoded
    value, as plain values.
    """
    match = _MESSAGE.fullmatch(message)
    if match is None or "[...]" not in match["path"]:
        return message
    found = _find(value, list(_STEP.finditer(match["path"])), match["got"])
    return message if found is None else message.replace(match["path"], f"${found}")


def _find(value: Any, steps: Sequence[re.Match[str]], got: str) -> str | None:
    """The path along the steps to the first value of type `got`, with keys."""
    if not steps:
        return "" if _type_of(value) == got else None
    step, rest = steps[0], steps[1:]
    for label, inner in _entries(value, step):
        found = _find(inner, rest, got)
        if found is not None:
            return label + found
    return None


def _entries(value: Any, step: re.Match[str]) -> list[tuple[str, Any]]:
    """The values after one step, each with its notation in a path."""
    if step["place"] is not None:
        place = int(step["place"])
        inside = isinstance(value, list) and place < len(value)
        return [(step.group(), value[place])] if inside else []
    if not isinstance(value, Mapping):
        return []
    if step["field"] is not None:
        return [(step.group(), value.get(step["field"]))]
    return [(f"[{key}]", inner) for key, inner in value.items()]


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "object")
