"""Custom resources: their shape, defaults and rules, from a definition's structural schema.

It applies only types, required fields, enumerations, lengths, ranges, patterns, unknown fields and defaults.
It does not interpret CEL rules (`x-kubernetes-validations`), `oneOf` and its like, or formats. Patterns are those of
RE2, as in a genuine server, whose search takes no more than linear time. They are left out without google-re2 (which
the extra `claims` brings), and where pattern or texts are very long.
"""

from collections.abc import Hashable, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final, cast

from partage.apiserver.problems import Problems, cut
from partage.apiserver.strategic import mark
from partage.wire.field_types import META, Field, ListKind, Type, catalogue

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_DEEPEST: Final = 100
_LONGEST: Final = 1024
"""Characters of a pattern."""
_MEMORY: Final = 2**20
"""Bytes of a pattern's program."""


def shape(schema: Mapping[str, Any] | None, depth: int = 0) -> Type:
    """The `Type` of a schema; `check` handles scalars."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return Type("any")
    keep = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    kind = schema.get("type")
    if kind == "array":
        listing = schema.get("x-kubernetes-list-type")
        return Type(
            "list",
            item=shape(schema.get("items"), depth + 1),
            listing=cast("ListKind", listing) if listing in ("map", "set") else "atomic",
            keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
        )
    if kind != "object":
        return Type("any")
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        return Type("map", item=shape(more, depth + 1), atomic=atomic)
    properties = schema.get("properties") or {}
    if not properties and (keep or more is True):
        return Type("any")
    fields = {
        name: Field(name, shape(inner, depth + 1), required=name in schema.get("required", ()))
        for name, inner in properties.items()
    }
    return Type("struct", fields=fields, atomic=atomic, open=keep)


def complete(schema: Mapping[str, Any] | None) -> Type:
    """The shape of whole objects: the schema's, with apiVersion, kind and metadata."""
    found = shape(schema)
    if found.form != "struct":
        found = Type("struct", open=True)
    found.fields["apiVersion"] = Field("apiVersion", Type("any"))
    found.fields["kind"] = Field("kind", Type("any"))
    found.fields["metadata"] = Field("metadata", catalogue()[f"{META}ObjectMeta"], required=True)
    return found


def fill(value: Any, schema: Mapping[str, Any]) -> None:
    """Fills in the schema's defaults, in place."""
    if isinstance(value, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if (
                "default" in inner
                and value.get(name) is None
                and not (inner.get("nullable") and name in value)
            ):
                value[name] = deepcopy(inner["default"])
            if name in value:
                fill(value[name], inner)
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping):
            for name in value:
                if name not in (schema.get("properties") or {}):
                    fill(value[name], more)
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for item in value:
            fill(item, schema["items"])


def check(value: Any, schema: Mapping[str, Any], field: str, problems: Problems) -> None:
    """Reports violations of the schema in `value`."""
    if value is None:
        if not schema.get("nullable"):
            _wrong(value, schema.get("type", "object"), field, problems)
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            _wrong(value, "integer,string", field, problems)
        return
    kind = schema.get("type")
    if kind in _TYPES and not _is(value, kind):
        _wrong(value, kind, field, problems)
        return
    if "enum" in schema:
        known, texts = _known(schema["enum"], problems)
        if mark(value) not in known:
            problems.unsupported(field, value, texts)
    if isinstance(value, dict):
        _object(value, schema, field, problems)
    elif isinstance(value, list):
        _array(value, schema, field, problems)
    elif isinstance(value, str):
        _string(value, schema, field, problems)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _number(value, schema, field, problems)


def _known(values: list[Any], problems: Problems) -> tuple[frozenset[Hashable], list[str]]:
    """The values of an enumeration, and their sorted texts, once for an object: each item of a list may ask."""
    found = problems.enumerations.get(id(values))
    if found is None:
        found = frozenset(map(mark, values)), sorted(map(str, values))
        problems.enumerations[id(values)] = found
    return found


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _wrong(value: Any, kind: str, field: str, problems: Problems) -> None:
    name = {
        type(None): "null",
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }.get(type(value), "string")
    problems.wrong_type(field, name, f'{field} in body must be of type {kind}: "{name}"')


def _join(field: str, name: str) -> str:
    return cut(f"{field}.{name}" if field else name)


def _object(
    value: dict[str, Any], schema: Mapping[str, Any], field: str, problems: Problems
) -> None:
    properties = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            problems.required(_join(field, name))
    for name, inner in properties.items():
        if name in value:
            check(value[name], inner, _join(field, name), problems)
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        for name, inner in value.items():
            if name not in properties:
                check(inner, more, _join(field, name), problems)
    _size(len(value), schema, "Properties", field, value, problems)


def _array(value: list[Any], schema: Mapping[str, Any], field: str, problems: Problems) -> None:
    if isinstance(schema.get("items"), Mapping):
        for index, item in enumerate(value):
            check(item, schema["items"], f"{field}[{index}]", problems)
    _size(len(value), schema, "Items", field, len(value), problems)
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    listing = schema.get("x-kubernetes-list-type")
    if listing == "set" or (listing == "map" and keys):
        seen: set[Hashable] = set()
        for index, item in enumerate(value):
            key = item
            if listing == "map":
                key = {k: item.get(k) for k in keys} if isinstance(item, dict) else {}
            known = len(seen)
            seen.add(mark(key))
            if len(seen) == known:
                problems.duplicate(f"{field}[{index}]", key)


def _string(value: str, schema: Mapping[str, Any], field: str, problems: Problems) -> None:
    _size(len(value), schema, "Length", field, value, problems)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        known = _pattern(pattern) if len(pattern) <= _LONGEST else None
        problems.steps -= len(value) * known.programsize if known is not None else 0
        if known is not None and problems.steps >= 0 and not known.search(value):
            problems.invalid(field, value, f"{field} in body should match '{pattern}'")


@lru_cache(maxsize=512)
def _pattern(text: str) -> Any:
    """The compiled pattern; None for one that RE2 does not know, or finds too large."""
    try:
        import re2  # noqa: PLC0415 # of an extra
    except ImportError:
        return None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        return re2.compile(text, options)
    except (re2.error, UnicodeEncodeError):
        return None


def _number(value: float, schema: Mapping[str, Any], field: str, problems: Problems) -> None:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and value < least:
        problems.invalid(
            field, value, f"{field} in body should be greater than or equal to {least}"
        )
    if most is not None and value > most:
        problems.invalid(field, value, f"{field} in body should be less than or equal to {most}")


def _size(
    size: int, schema: Mapping[str, Any], what: str, field: str, value: Any, problems: Problems
) -> None:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    unit = {"Length": "chars long", "Items": "items", "Properties": "properties"}[what]
    if isinstance(least, int) and size < least:
        problems.invalid(field, value, f"{field} in body should have at least {least} {unit}")
    if isinstance(most, int) and size > most:
        if what == "Length":
            problems.too_long(field, most)
        elif what == "Items":
            problems.too_many(field, size, most)
        else:
            problems.invalid(field, value, f"{field} in body should have at most {most} {unit}")
