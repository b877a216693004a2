"""Strategic merge patch: a merge patch that knows how the lists of built-in kinds merge.

Lists with a merge key merge item by item, lists of plain values with the strategy `merge` become
unions. Directives: `$patch` (`replace`, `delete`, `merge`), `$deleteFromPrimitiveList/<field>`,
`$setElementOrder/<field>`, `$retainKeys`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from partage.apiserver.decoding import go_text
from partage.apiserver.patch import PatchError, Unmergeable
from partage.wire.field_types import Field, Type

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
_PLAIN: Final = Type("any")
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def strategic_patch(value: Mapping[str, Any], patch: Any, type_: Type) -> dict[str, Any]:
    """`value` with `patch` merged in, lists by the rules of `type_`. Raises `PatchError`: malformed, no merge key."""
    if not isinstance(patch, Mapping):
        raise PatchError("a strategic merge patch is an object")
    return _merge_map(dict(value), patch, type_)


def _field(type_: Type, name: str) -> Field:
    found = type_.fields.get(name) if type_.form == "struct" else None
    if found is not None:
        return found
    inner = type_.item if type_.form == "map" and type_.item is not None else _PLAIN
    return Field(name, inner)


def _merge_map(value: dict[str, Any], patch: Mapping[str, Any], type_: Type) -> dict[str, Any]:
    directive = patch.get(_PATCH)
    if directive == "replace":
        fresh: dict[str, Any] = _clean(patch)
        return fresh
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise Unmergeable(f"unknown patch type: {directive} in map: {go_text(dict(patch))}")
    if _RETAIN in patch:
        value = {key: inner for key, inner in value.items() if key in _strings(patch[_RETAIN])}
    _drop(value, patch)
    for key, inner in patch.items():
        if key in (_PATCH, _RETAIN) or key.startswith((_DELETE, _ORDER)):
            continue
        merged = None if inner is None else _merge(value.get(key), inner, _field(type_, key))
        if merged is None:
            value.pop(key, None)
        else:
            value[key] = merged
    for key, inner in patch.items():
        if key.startswith(_ORDER):
            name = key.removeprefix(_ORDER)
            if isinstance(value.get(name), list) and isinstance(inner, list):
                value[name] = _ordered(value[name], inner, _field(type_, name).merge_key)
    return value


def _drop(value: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """Removes the items that the patch names from lists of plain values, in place."""
    for key, inner in patch.items():
        if key.startswith(_DELETE):
            name = key.removeprefix(_DELETE)
            gone = set(map(mark, _strings(inner)))
            if isinstance(value.get(name), list):
                value[name] = [item for item in value[name] if mark(item) not in gone]


def _merge(value: Any, patch: Any, field: Field) -> Any:
    if isinstance(patch, Mapping):
        if patch.get(_PATCH) == "delete":
            return None
        base = dict(value) if isinstance(value, Mapping) else {}
        return _merge_map(base, patch, field.type)
    if not isinstance(patch, list) or field.patch != "merge":
        return _clean(patch)
    have = value if isinstance(value, list) else []
    if not field.merge_key:
        return union(have, patch)
    return _merge_items(list(have), patch, field)


def _merge_items(have: list[Any], patch: list[Any], field: Field) -> list[Any]:
    key, item_type = field.merge_key, field.type.item or _PLAIN
    fresh: list[Any] = []
    for item in patch:
        if not isinstance(item, Mapping):
            raise PatchError(f"a list item of {field.name} is not an object")
        if item.get(_PATCH) == "replace" and set(item) == {_PATCH}:
            have = []
    places: dict[Hashable, list[int]] = {}
    for index, old in enumerate(have):
        if isinstance(old, Mapping):
            places.setdefault(mark(old.get(key)), []).append(index)
    gone: set[int] = set()
    for item in patch:
        directive = item.get(_PATCH)
        if directive == "replace" and set(item) == {_PATCH}:
            continue
        if key not in item:
            raise Unmergeable(f"map: {go_text(item)} does not contain declared merge key: {key}")
        name = mark(item[key])
        if directive == "delete":
            gone.update(places.pop(name, ()))
        elif name in places:
            at = places[name][0]
            have[at] = _merge_map(dict(have[at]), item, item_type)
        else:
            fresh.append(_merge_map({}, item, item_type))
    return [old for index, old in enumerate(have) if index not in gone] + fresh


def union(have: Sequence[Any], more: Iterable[Any]) -> list[Any]:
    """The values of the first, and those of the second that it lacks."""
    there = set(map(mark, have))
    return [*have, *(item for item in more if mark(item) not in there)]


def mark(value: Any) -> Hashable:
    """What equal values have in common; comparing each of many with all others would take too long."""
    return _encode(value) if isinstance(value, Mapping | list) else value


def _ordered(items: list[Any], order: list[Any], key: str) -> list[Any]:
    """Items in the given order; others keep their place after their predecessor."""

    def name(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, Mapping) else item

    wanted: dict[Hashable, int] = {}
    for number, item in enumerate(order):
        wanted.setdefault(mark(name(item)), number)
    told = [item for item in items if mark(name(item)) in wanted]
    told.sort(key=lambda item: wanted[mark(name(item))])
    if len(told) == len(items):
        return told
    rest = [(at, item) for at, item in enumerate(items) if mark(name(item)) not in wanted]
    for index, item in rest:
        told.insert(min(index, len(told)), item)
    return told


def _strings(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise PatchError("a directive's value is not a list")
    return value


def _clean(value: Any) -> Any:
    """A value without a patch's directives and nulls."""
    if isinstance(value, Mapping):
        return {
            key: _clean(inner)
            for key, inner in value.items()
            if inner is not None
            and key not in (_PATCH, _RETAIN)
            and not key.startswith((_DELETE, _ORDER))
        }
    if isinstance(value, list):
        return [
            _clean(item)
            for item in value
            if not (isinstance(item, Mapping) and item.get(_PATCH) == "delete")
        ]
    return value
