"""OpenAPI v2 as protobuf, the form that kubectl requests.

The messages are those of gnostic's OpenAPIv2.proto (github.com/google/gnostic-models), by number, and only those
that `openapi.v2` fills. As in a genuine server, the output omits anything that the format cannot express.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from partage.wire.protobuf import put_number, wrapped

MEDIA: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The answer's media type; clients ask with an `@` before the version."""

ASKED: Final = "proto-openapi.spec.v2"
"""Part of the Accept header of clients that want this form."""

_FIXED: Final = 1


class _Place(NamedTuple):
    """A value's place in a message.

    Attributes:
        form: `text`, `texts`, `flag`, `whole` (a number), `real`, `any`, or the name of a message.
        each: the field is repeated: a list's items, or a map's entries as messages of name and value.
        within: numbers of the messages around it, outermost first.
    """

    number: int
    form: str
    each: bool = False
    within: tuple[int, ...] = ()


_SCHEMA: Final = {
    "$ref": _Place(1, "text"),
    "format": _Place(2, "text"),
    "title": _Place(3, "text"),
    "description": _Place(4, "text"),
    "default": _Place(5, "any"),
    "multipleOf": _Place(6, "real"),
    "maximum": _Place(7, "real"),
    "exclusiveMaximum": _Place(8, "flag"),
    "minimum": _Place(9, "real"),
    "exclusiveMinimum": _Place(10, "flag"),
    "maxLength": _Place(11, "whole"),
    "minLength": _Place(12, "whole"),
    "pattern": _Place(13, "text"),
    "maxItems": _Place(14, "whole"),
    "minItems": _Place(15, "whole"),
    "uniqueItems": _Place(16, "flag"),
    "maxProperties": _Place(17, "whole"),
    "minProperties": _Place(18, "whole"),
    "required": _Place(19, "text", each=True),
    "enum": _Place(20, "any", each=True),
    "additionalProperties": _Place(21, "schema or flag"),
    "type": _Place(22, "text", within=(1,)),
    "items": _Place(23, "schema", within=(1,)),
    "allOf": _Place(24, "schema", each=True),
    "properties": _Place(25, "schema", each=True, within=(1,)),
}
_MESSAGES: Final[Mapping[str, Mapping[str, _Place]]] = {
    "document": {
        "swagger": _Place(1, "text"),
        "info": _Place(2, "info"),
        "paths": _Place(8, "path", each=True, within=(2,)),
        "definitions": _Place(9, "schema", each=True, within=(1,)),
    },
    "info": {"title": _Place(1, "text"), "version": _Place(2, "text")},
    "path": {
        "get": _Place(2, "operation"),
        "put": _Place(3, "operation"),
        "post": _Place(4, "operation"),
        "delete": _Place(5, "operation"),
        "patch": _Place(8, "operation"),
    },
    "operation": {
        "description": _Place(3, "text"),
        "operationId": _Place(5, "text"),
        "produces": _Place(6, "text", each=True),
        "consumes": _Place(7, "text", each=True),
        "parameters": _Place(8, "parameter", each=True),
        "responses": _Place(9, "response", each=True, within=(1,)),
    },
    "query": {
        "in": _Place(2, "text"),
        "description": _Place(3, "text"),
        "name": _Place(4, "text"),
        "type": _Place(6, "text"),
    },
    "response": {"description": _Place(1, "text")},
    "schema": _SCHEMA,
}
_EXTENSIONS: Final = {"document": 16, "operation": 13, "schema": 31}
"""A message's field for keys that begin with `x-`."""

_WRAPPED: Final = {"parameter": ((1, 2, 3), "query"), "response": ((1,), "response")}
"""Messages within others that choose between kinds; here all are of one kind."""


def encoded(document: Mapping[str, Any]) -> bytes:
    """A document of `openapi.v2`, with the names of its JSON form, as a message."""
    return _message("document", document)


def _message(name: str, value: Mapping[str, Any]) -> bytes:
    places, made = _MESSAGES[name], []
    for key, one in value.items():
        if one is None:
            continue
        if (place := places.get(key)) is not None:
            made.append(_field(place, one))
        elif key.startswith("x-") and name in _EXTENSIONS:
            made.append(wrapped(_EXTENSIONS[name], _named(key, _any(one))))
    return b"".join(made)


def _field(place: _Place, value: Any) -> bytes:
    *outer, inner = (place.number, *place.within)
    found = _repeated(inner, place, value) if place.each else _one(inner, place.form, value)
    for number in reversed(outer):
        found = wrapped(number, found)
    return found


def _repeated(number: int, place: _Place, value: Any) -> bytes:
    if isinstance(value, Mapping):
        entries = (_named(str(name), _content(place.form, one)) for name, one in value.items())
        return b"".join(wrapped(number, entry) for entry in entries)
    return b"".join(_one(number, place.form, one) for one in value)


def _one(number: int, form: str, value: Any) -> bytes:
    if form == "flag":
        return _key(number, 0) + (b"\x01" if value else b"\x00")
    if form == "whole":
        return _key(number, 0) + _number(int(value) & (2**64 - 1))
    if form == "real":
        return _key(number, _FIXED) + struct.pack("<d", value)
    return wrapped(number, _content(form, value))


def _content(form: str, value: Any) -> bytes:
    """The content of a field with a length."""
    if form == "text":
        return str(value).encode()
    if form == "any":
        return _any(value)
    if form == "schema or flag":
        return _one(2, "flag", value) if isinstance(value, bool) else _one(1, "schema", value)
    outer, inner = _WRAPPED.get(form, ((), form))
    found = _message(inner, value)
    for number in reversed(outer):
        found = wrapped(number, found)
    return found


def _any(value: Any) -> bytes:
    """A value of any kind, as YAML, which includes JSON."""
    return wrapped(2, msgspec.json.encode(value))


def _named(name: str, value: bytes) -> bytes:
    return wrapped(1, name.encode()) + wrapped(2, value)


def _key(number: int, wire: int) -> bytes:
    return _number(number << 3 | wire)


def _number(value: int) -> bytes:
    out = bytearray()
    put_number(out, value)
    return bytes(out)
