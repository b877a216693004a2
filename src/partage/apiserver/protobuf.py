"""Kubernetes' protobuf bodies as plain values.

kubectl's `create` subcommands and Go controllers send built-in kinds this way, without trying
JSON first. Only reading is supported: answers are JSON, which all of them accept. An envelope
(`k8s` and a zero byte, then a `runtime.Unknown`) holds apiVersion, kind and the object itself,
which is read by the numbers that the schema tables have.
"""

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from partage.wire.field_types import Field, Numbers, Type

MEDIA: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_DEEPEST: Final = 60
Piece = tuple[int, int | bytes]


class ProtobufError(ValueError):
    """The bytes are no such message."""


def envelope(body: bytes) -> tuple[str, str, bytes]:
    """The apiVersion, kind and inner bytes of a body.

    Raises:
        ProtobufError: it is no envelope.
    """
    if not body.startswith(_MAGIC):
        raise ProtobufError("the body does not begin as Kubernetes' protobuf does")
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
    """The object that a message of a struct's type stands for.

    Raises:
        ProtobufError: the bytes do not fit the type.
    """
    return _message(raw, type_.numbers, 0)


def _message(raw: bytes, numbers: Numbers, depth: int) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise ProtobufError(f"messages are nested deeper than {_DEEPEST}")
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
        return _signed(_number(piece))
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
        return _signed(_number(parts.get(2, 0)))
    if form == "list" and type_.item is not None:
        return [_value(type_.item, piece, _DEEPEST) for _number_, piece in _pieces(raw)]
    try:
        return msgspec.json.decode(_bytes(parts.get(1, b"null")) or b"null")
    except msgspec.MsgspecError as error:
        raise ProtobufError(f"embedded JSON is malformed: {error}") from error


def _time(parts: dict[int, int | bytes], *, micro: bool) -> str | None:
    seconds = _signed(_number(parts.get(1, 0)))
    nanos = _signed(_number(parts.get(2, 0)))
    if not parts:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ProtobufError(f"{seconds} seconds are no time") from error
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{max(nanos, 0) // 1000 % 10**6:06d}Z" if micro else f"{text}Z"


def _pieces(raw: bytes) -> Iterator[Piece]:
    """The numbered pieces of a message: numbers as they are, everything else as bytes."""
    at, end = 0, len(raw)
    while at < end:
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(raw, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ProtobufError(f"wire type {wire} is not known")
        piece = raw[at : at + size]
        at += size
        if len(piece) != size:
            raise ProtobufError("the message is cut off")
        yield number, piece if wire == 2 else int.from_bytes(piece, "little")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
        shift += 7
    raise ProtobufError("a number is cut off")


def _packed(raw: bytes) -> Iterator[int]:
    at = 0
    while at < len(raw):
        value, at = _varint(raw, at)
        yield _signed(value)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _bytes(piece: int | bytes) -> bytes:
    if isinstance(piece, int):
        raise ProtobufError("a number stands where a message belongs")
    return piece


def _number(piece: int | bytes) -> int:
    if isinstance(piece, bytes):
        raise ProtobufError("a message stands where a number belongs")
    return piece


def _text(piece: int | bytes) -> str:
    try:
        return _bytes(piece).decode()
    except UnicodeDecodeError as error:
        raise ProtobufError("a text is not UTF-8") from error
