"""What a decoder's error leaves out: the entry of a map that it is about, and fields that a kind does not have.

The decoder's messages name fields and places in lists, but have `[...]` for any entry of a map.
A person with forty labels needs the key, so this module searches the value for that entry.

Kubernetes' own tables list the fields of a kind. Kinds that they lack, and fields that may contain
anything, are not checked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import inspect

from partage.model.errors import meant
from partage.wire.field_types import Type, catalogue

_DEEPEST: Final = 100


def misspelt(kind: str, own: str, value: Any, most: int) -> list[str]:
    """Notes on unknown fields; `own`: the kind's API group, for a manifest without an apiVersion."""
    if not isinstance(value, Mapping):
        return []
    group, _slash, version = str(value.get("apiVersion") or "v1").rpartition("/")
    package = (group or own).partition(".")[0] or "core"
    shape = catalogue().get(f"io.k8s.api.{package}.{version}.{kind}")
    return list(islice(_unknown(value, shape, "", 0), most)) if shape else []


def _unknown(value: Any, shape: Type, where: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        return
    if isinstance(value, list) and shape.form == "list" and shape.item:
        for index, item in enumerate(value):
            yield from _unknown(item, shape.item, f"{where}[{index}]", depth + 1)
    elif isinstance(value, Mapping) and shape.form == "map" and shape.item:
        for name, inner in value.items():
            yield from _unknown(inner, shape.item, f"{where}.{name}", depth + 1)
    elif isinstance(value, Mapping) and shape.form == "struct" and not shape.open:
        for name, inner in value.items():
            field = shape.fields.get(name)
            path = f"{where}.{name}".removeprefix(".")
            if field is not None:
                yield from _unknown(inner, field.type, path, depth + 1)
                continue
            yield f"field {path} is not known and does nothing{meant(str(name), shape.fields)}"


def alternatives(message: str, shape: Any) -> str:
    """What a shape knows in place of a decoder's unknown field or value, as the end of a message; empty for others.

    `message`: such as "Object contains unknown field `modle` - at `$.spec`".
    """
    match = _OTHER.fullmatch(message)
    if match is None:
        return ""
    info = _plain_info(inspect.type_info(shape))
    for step in _STEP.finditer(match["at"] or ""):
        info = _plain_info(_inside(info, step))
    if isinstance(info, inspect.StructType):
        return meant(match["field"] or "", [one.encode_name for one in info.fields])
    values = info.values if isinstance(info, inspect.LiteralType) else ()
    known = ", ".join(str(one) for one in values if one != "")
    return f"; write one of {known}" if known else ""


def _inside(info: Any, step: re.Match[str]) -> Any:
    """The type one step further in; None for none that is known."""
    if step["field"] is not None:
        fields = info.fields if isinstance(info, inspect.StructType) else ()
        return next((one.type for one in fields if one.encode_name == step["field"]), None)
    if step["place"] is not None:
        return getattr(info, "item_type", None)
    return getattr(info, "value_type", None)


def _plain_info(info: Any) -> Any:
    """A type without its bounds, and without null."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(info, inspect.UnionType):
        info = next((one for one in info.types if not isinstance(one, inspect.NoneType)), None)
    return info


_OTHER: Final = re.compile(
    r"(?:Object contains unknown field `(?P<field>[^`]*)`|Invalid enum value .*?)(?: - at `(?P<at>\$[^`]*)`)?",
    re.DOTALL,
)
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
        if (found := _find(inner, rest, got)) is not None:
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
