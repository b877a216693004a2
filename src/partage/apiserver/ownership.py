"""Field owners: the sets behind `metadata.managedFields`, and their comparison.

A path is a tuple of elements as `FieldsV1` writes them: `f:spec`, `k:{"name":"main"}`, `v:"a"`.
A manager owns leaves: scalars, empty containers, values that are replaced as a whole, and the items of
lists that merge by key.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from partage.apiserver.decoding import go_text
from partage.wire.field_types import Type

Path = tuple[str, ...]

_ITEM: Final = object()
_PLAIN: Final = Type("any")
_MAP: Final = Type("map", item=_PLAIN)
_OWN: Final = frozenset(
    {
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        ("f:metadata", "f:name"),
        ("f:metadata", "f:namespace"),
        ("f:metadata", "f:creationTimestamp"),
        ("f:metadata", "f:selfLink"),
        ("f:metadata", "f:uid"),
        ("f:metadata", "f:clusterName"),
        ("f:metadata", "f:generation"),
        ("f:metadata", "f:resourceVersion"),
        ("f:metadata", "f:generateName"),
        ("f:metadata", "f:deletionTimestamp"),
        ("f:metadata", "f:deletionGracePeriodSeconds"),
    }
)
_DEFAULTS: Final = {"protocol": "TCP"}
"""Defaults for absent keys of list items."""

_EXPECTED: Final[Mapping[str, tuple[str, tuple[type, ...]]]] = {
    "bool": ("boolean", (bool,)),
    "int": ("numeric (int or float)", (int, float)),
    "list": ("list", (list,)),
    "long": ("numeric (int or float)", (int, float)),
    "map": ("map", (dict,)),
    "string": ("string", (str,)),
    "struct": ("map", (dict,)),
}
"""Required types of an applied value, by the form of its type, in words and in Python's types."""
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def leaves(value: Mapping[str, Any], type_: Type) -> dict[Path, Any]:
    """Every path that can have an owner, with its value, without the server's own; list items and map entries are marks."""
    found: dict[Path, Any] = {}
    _walk(value, type_, (), found)
    return {
        path: value
        for path, value in found.items()
        if path not in _OWN and path[:2] != ("f:metadata", "f:managedFields")
    }


def _walk(value: Any, type_: Type, at: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, Mapping) and value and not type_.atomic:
        struct = type_.form == "struct"
        for key, inner in value.items():
            field = type_.fields.get(key) if struct else None
            path = (*at, f"f:{key}")
            if field is None and isinstance(inner, Mapping) and inner:
                found[path] = _ITEM
            _walk(inner, within(type_, key), path, found)
        return
    if isinstance(value, list) and value and type_.listing == "map":
        for index, item in enumerate(value):
            path = (*at, item_key(item, type_, index))
            found[path] = _ITEM
            _walk(item, type_.item or _PLAIN, path, found)
        return
    if isinstance(value, list) and value and type_.listing == "set":
        for item in value:
            found[(*at, set_item(item))] = item
        return
    found[at] = value


def within(type_: Type, key: str) -> Type:
    """The type of a field or of a map's entry; a map where the type knows none."""
    field = type_.fields.get(key) if type_.form == "struct" else None
    return field.type if field else type_.item or _MAP


def item_key(item: Any, type_: Type, index: int) -> str:
    """A list item's element in a path: its keys, or its place without any of them."""
    if not isinstance(item, Mapping):
        return f"i:{index}"
    keys = {
        key: item.get(key, _DEFAULTS.get(key))
        for key in type_.keys
        if key in item or key in _DEFAULTS
    }
    return "k:" + _encode(keys).decode() if keys else f"i:{index}"


def set_item(item: Any) -> str:
    """A set item's element in a path: its value."""
    return "v:" + _encode(item).decode()


def to_document(paths: Iterable[Path]) -> dict[str, Any]:
    """The `fieldsV1` of a set of paths."""
    document: dict[str, Any] = {}
    known = set(paths)
    for path in sorted(known):
        at = document
        for element in path:
            at = at.setdefault(element, {})
    for path in known:
        at = document
        for element in path:
            at = at[element]
        if at:
            at["."] = {}
    return document


def to_paths(document: Any, at: Path = ()) -> set[Path]:
    """The set of paths of a `fieldsV1`; ignores malformed parts."""
    found: set[Path] = set()
    if not isinstance(document, Mapping):
        return found
    for element, inner in document.items():
        if element == ".":
            found.add(at)
        elif isinstance(inner, Mapping) and inner:
            found |= to_paths(inner, (*at, element))
        else:
            found.add((*at, element))
    return found


def untyped(value: Any, type_: Type, at: Path = ()) -> Iterator[str]:
    """Violations of an applied object's type: other fields, other values, duplicate items."""
    expected = _EXPECTED.get(type_.form)
    if expected is not None and value is not None and not isinstance(value, expected[1]):
        shown = f"&{{{go_text(value)}}}"
        if type_.form == "string":
            shown = f"&value.valueUnstructured{{Value:{go_text(value)}}}"
        elif type_.form in ("int", "long") and isinstance(value, str):
            shown = "string"
        yield f"{readable(at)}: expected {expected[0]}, got {shown}"
    elif isinstance(value, Mapping) and type_.form in ("struct", "map"):
        for key, inner in sorted(value.items()):
            field = type_.fields.get(key) if type_.form == "struct" else None
            path = (*at, f"f:{key}")
            if type_.form == "struct" and field is None:
                if not type_.open:
                    yield f"{readable(path)}: field not declared in schema"
                continue
            yield from untyped(inner, field.type if field else (type_.item or _PLAIN), path)
    elif isinstance(value, list) and type_.item is not None:
        seen: set[str] = set()
        for index, item in enumerate(value):
            name = item_key(item, type_, index)
            if name in seen and type_.listing == "map":
                yield f"{readable(at)}: duplicate entries for key {readable((name,))}"
            seen.add(name)
            yield from untyped(item, type_.item, (*at, name))


def readable(path: Path) -> str:
    """A path in the form of conflicts: `.spec.containers[name="main"].image`."""
    text = ""
    for element in path:
        kind, _colon, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = msgspec.json.decode(rest)
            text += (
                "[" + ",".join(f"{k}={_encode(v).decode()}" for k, v in sorted(keys.items())) + "]"
            )
        else:
            text += f"[{'=' if kind == 'v' else ''}{rest}]"
    return text
