"""Decodes Kubernetes' protobuf bodies into plain values.

kubectl's `create` subcommands and Go controllers send built-in kinds as protobuf and do not try JSON first.
The server only reads protobuf. It answers in JSON, which all of them accept. An envelope (`k8s` and a zero byte,
then a `runtime.Unknown`) holds apiVersion, kind and the object itself. The schema tables have the numbers of
the object's fields.
"""

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from partage.model.errors import UNREADABLE
from partage.wire.field_types import Field, Numbers, Type
from partage.wire.protobuf import LENGTH, VARINT, Malformed, number_at, pieces, signed

MEDIA: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_DEEPEST: Final = 60
Piece = tuple[int, int | bytes]


def envelope(body: bytes) -> tuple[str, str, bytes]:
    """The apiVersion, kind and inner bytes of a body. Raises `Malformed`: it is no envelope."""
    if not body.startswith(_MAGIC):
        raise Malformed("the body does not begin as Kubernetes' protobuf does")
    version = kind = ""
    raw = b""
    for number, piece in _pieces(body[len(_MAGIC) :]):
        if number == 1 and isinstance(piece, bytes):
            for inner, text in _pieces(piece):
                if inner == 1:
                    version = _text(text)
                elif inner == 2:
                    kind = _text(text)
        elif number == 2 and isinstance(piece, bytes):
            raw = piece
    return version, kind, raw


def message(raw: bytes, type_: Type) -> dict[str, Any]:
    """The object of a message of a struct's type. Raises `Malformed`: the bytes do not fit the type."""
    return _message(raw, type_.numbers, 0)


def _message(raw: bytes, numbers: Numbers, depth: int) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise Malformed(f"messages are nested deeper than {_DEEPEST}")
    found: dict[str, Any] = {}
    for number, piece in _pieces(raw):
        field = numbers.get(number)
        if isinstance(field, dict):
            found.update(_message(_bytes(piece), field, depth + 1))
        elif field is not None:
            _put(found, field, piece, depth + 1)
    return found


def _put(found: dict[str, Any], field: Field, piece: int | bytes, depth: int) -> None:
    type_, name = field.type, field.name
    if type_.form == "list" and type_.item is not None:
        items = found.setdefault(name, [])
        if type_.item.form in ("int", "long") and isinstance(piece, bytes):
            items.extend(_packed(piece))
        else:
            items.append(_value(type_.item, piece, depth))
    elif type_.form == "map" and type_.item is not None:
        key, value = _entry(_bytes(piece), type_.item, depth)
        found.setdefault(name, {})[key] = value
    else:
        found[name] = _value(type_, piece, depth)


def _entry(raw: bytes, item: Type, depth: int) -> tuple[str, Any]:
    key = ""
    value: Any = {} if item.form == "struct" else [] if item.form == "list" else ""
    for number, piece in _pieces(raw):
        if number == 1:
            key = _text(piece)
        elif number == 2:
            value = _value(item, piece, depth)
    return key, value


def _value(type_: Type, piece: int | bytes, depth: int) -> Any:
    form = type_.form
    if form == "struct":
        return _message(_bytes(piece), type_.numbers, depth)
    if form == "string":
        return _text(piece)
    if form in ("int", "long"):
        return signed(_number(piece))
    if form == "bool":
        return bool(_number(piece))
    if form == "bytes":
        return base64.b64encode(_bytes(piece)).decode()
    if form == "float":
        return struct.unpack("<d", _number(piece).to_bytes(8, "little"))[0]
    return _special(type_, _bytes(piece))


def _special(type_: Type, raw: bytes) -> Any:
    """Quantities, times and others that are messages of their own."""
    form = type_.form
    parts = dict(_pieces(raw))
    if form == "quantity":
        return _text(parts.get(1, b"0"))
    if form in ("time", "microtime"):
        return _time(parts, micro=form == "microtime")
    if form == "intorstring":
        if parts.get(1):
            return _text(parts.get(3, b""))
        return signed(_number(parts.get(2, 0)))
    if form == "list" and type_.item is not None:
        return [_value(type_.item, piece, _DEEPEST) for _number_, piece in _pieces(raw)]
    try:
        return msgspec.json.decode(_bytes(parts.get(1, b"null")) or b"null")
    except UNREADABLE as error:
        raise Malformed(f"embedded JSON is malformed: {error}") from error


def _time(parts: dict[int, int | bytes], *, micro: bool) -> str | None:
    seconds = signed(_number(parts.get(1, 0)))
    nanos = signed(_number(parts.get(2, 0)))
    if not parts:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise Malformed(f"{seconds} seconds are no time") from error
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{max(nanos, 0) // 1000 % 10**6:06d}Z" if micro else f"{text}Z"


def _pieces(raw: bytes) -> Iterator[Piece]:
    """The numbered pieces of a message: numbers unchanged, all others as bytes."""
    for number, wire, value in pieces(memoryview(raw)):
        if wire in (VARINT, LENGTH):
            yield number, value if wire == VARINT else bytes(value)
        else:
            yield number, int.from_bytes(value, "little")


def _packed(raw: bytes) -> Iterator[int]:
    at = 0
    while at < len(raw):
        value, at = number_at(memoryview(raw), at)
        yield signed(value)


def _bytes(piece: int | bytes) -> bytes:
    if isinstance(piece, int):
        raise Malformed("a number stands where a message belongs")
    return piece


def _number(piece: int | bytes) -> int:
    if isinstance(piece, bytes):
        raise Malformed("a message stands where a number belongs")
    return piece


def _text(piece: int | bytes) -> str:
    try:
        return _bytes(piece).decode()
    except UnicodeDecodeError as error:
        raise Malformed("a text is not UTF-8") from error
