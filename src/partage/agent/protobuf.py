"""A small table-driven codec of protocol buffers (proto3), for the few messages of a node agent.

A message is a frozen dataclass that derives from `Message`; its fields declare their number and kind:

    class Mount(Message):
        destination: str = text(1)
        options: tuple[str, ...] = texts(4)

It supports only the types that containerd's NRI and the kubelet's interfaces use: varints, texts, bytes, messages,
lists of texts and messages, maps of texts. A field that is not declared is skipped, as the format asks. A
declared field with another wire type is an error, since a guess would inject something that was not asked for.

Source: the published encoding of protocol buffers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, ClassVar, Final, Self, TypeVar, cast, dataclass_transform

from partage.wire.protobuf import (
    LENGTH,
    VARINT,
    Malformed,
    number_at,
    pieces,
    put_bytes,
    put_number,
    signed,
)

_KEY: Final = "protobuf"
_DEEPEST: Final = 32
"""Nesting of messages; far more than any message has, far less than the stack holds."""


@dataclass(frozen=True, slots=True)
class _Field:
    """The decoder of a field: numbers that `read` makes of a varint, or values that it makes of bytes at a depth."""

    number: int
    wire: int
    read: Callable[..., Any]
    many: Callable[[Any], Any] | None = None
    name: str = ""


def _field(default: Any, number: int, wire: int, read: Callable[..., Any]) -> Any:
    return field(default=default, metadata={_KEY: _Field(number, wire, read)})


def _repeated(number: int, read: Callable[..., Any]) -> Any:
    return field(default=(), metadata={_KEY: _Field(number, LENGTH, read, tuple)})


def integer(number: int) -> Any:
    """An int32, int64 or enum field; 0 when absent."""
    return _field(0, number, VARINT, signed)


def natural(number: int) -> Any:
    """A uint32 or uint64 field; 0 when absent."""
    return _field(0, number, VARINT, int)


def flag(number: int) -> Any:
    """A bool field."""
    return _field(False, number, VARINT, bool)


def text(number: int) -> Any:
    """A string field."""
    return _field("", number, LENGTH, _text)


def blob(number: int) -> Any:
    """A bytes field."""
    return _field(b"", number, LENGTH, _bytes)


def message(number: int, of: "type[Message]") -> Any:
    """A message field; None if absent."""
    return _field(None, number, LENGTH, partial(_decode, of))


def texts(number: int) -> Any:
    """A repeated string field, as a tuple."""
    return _repeated(number, _text)


def messages(number: int, of: "type[Message]") -> Any:
    """A repeated message field, as a tuple."""
    return _repeated(number, partial(_decode, of))


def text_map(number: int, kept: Callable[[bytes], bool] | None = None) -> Any:
    """A map of strings to strings; of a received one, only the entries whose key is `kept`."""
    read = _pair if kept is None else partial(_kept_pair, kept)
    return field(default_factory=dict, metadata={_KEY: _Field(number, LENGTH, read, dict)})


M = TypeVar("M", bound="Message")


@dataclass_transform(frozen_default=True)
class Message:
    """The base of all messages."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a message. Raises `Malformed`: the bytes are none."""
        return _decode(cls, memoryview(data), -1)

    def encode(self) -> bytes:
        """The message's bytes; fields with their default are left out, maps are in key order."""
        out, kind = bytearray(), cast("Any", type(self))
        for one in _table(kind).values():
            _write(out, one, getattr(self, one.name))
        return bytes(out)


class Empty(Message):
    """A message without fields."""


@cache
def _table(of: Any) -> dict[int, _Field]:
    declared = [replace(one.metadata[_KEY], name=one.name) for one in fields(of)]
    return {one.number: one for one in declared}


def _write(out: bytearray, one: _Field, value: Any) -> None:
    if one.wire == VARINT:
        if value:
            put_number(out, one.number << 3 | VARINT)
            put_number(out, int(value))
        return
    if one.many is None:
        value = () if value is None or value in ("", b"") else (value,)
    for item in sorted(value.items()) if one.many is dict else value:
        put_bytes(out, one.number, _payload(item))


def _payload(item: Any) -> bytes:
    if isinstance(item, str):
        return _utf8(item)
    if isinstance(item, bytes):
        return item
    if isinstance(item, Message):
        return item.encode()
    pair = bytearray()
    for number, part in enumerate(item, 1):
        put_bytes(pair, number, _utf8(part))
    return bytes(pair)


def _utf8(value: str) -> bytes:
    # Broken text that was received is sent unchanged.
    return value.encode("utf-8", "surrogateescape")


def field_of(data: bytes | memoryview, *path: int) -> Any:
    """The first value at a path of fields, without reading what follows it; None if there is none. Raises `Malformed`."""
    found: Any = memoryview(data)
    for number in path:
        if not isinstance(found, memoryview):
            return None
        found = next((value for one, _, value in pieces(found) if one == number), None)
    return found


def text_of(data: bytes, *path: int) -> str:
    """The text there, as a message has it; empty if there is none. Raises `Malformed`."""
    found = field_of(data, *path)
    return str(found, "utf-8", "surrogateescape") if isinstance(found, memoryview) else ""


def raw_fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Every field of a message of others unchanged: its number, its bytes with the key, and its payload.

    The payload of numbers is empty. Raises `Malformed`.
    """
    held = memoryview(data)
    at = 0
    for number, wire, value in pieces(held):
        begin, at = at, number_at(held, at)[1]
        if wire == LENGTH:
            at = number_at(held, at)[1] + len(value)
        elif wire == VARINT:
            at = number_at(held, at)[1]
        else:
            at += len(value)
        yield number, data[begin:at], bytes(value) if wire == LENGTH else b""


def _decode(of: type[M], data: memoryview, around: int) -> M:
    """Decode a message that is nested in `around` less one others."""
    depth = around + 1
    if depth > _DEEPEST:
        raise Malformed(f"{of.__name__}: messages inside messages, more than {_DEEPEST} deep")
    try:
        return of(**_values(of, data, depth))
    except Malformed as error:
        raise Malformed(f"{of.__name__}: {error}") from None


def _values(of: Any, data: memoryview, depth: int) -> dict[str, Any]:
    table, values = _table(of), dict[str, Any]()
    for number, wire, value in pieces(data):
        one = table.get(number)
        if one is None:
            continue
        if wire != one.wire:
            raise Malformed(f"field {one.name} has wire type {wire}, not {one.wire}")
        if wire == VARINT:
            values[one.name] = one.read(value)
        elif one.many is None:
            values[one.name] = one.read(value, depth)
        elif (item := one.read(value, depth)) is not None:
            values.setdefault(one.name, []).append(item)
    for one in table.values():
        if one.many is not None and one.name in values:
            values[one.name] = one.many(values[one.name])
    return values


def _pair(data: memoryview, _depth: int) -> tuple[str, str]:
    found = {1: "", 2: ""}
    for number, wire, value in pieces(data):
        if number in found:
            if wire != LENGTH:
                raise Malformed(f"a map's entry has wire type {wire}, not {LENGTH}")
            found[number] = _text(value)
    return found[1], found[2]


def _kept_pair(
    kept: Callable[[bytes], bool], data: memoryview, depth: int
) -> tuple[str, str] | None:
    """The same, or None. A key comes first as runtimes write it, and a short one is judged without reading its entry."""
    if len(data) > 1 and data[0] == 1 << 3 | LENGTH and data[1] < 0x80:
        if not kept(bytes(data[2 : 2 + data[1]])):
            return None
        return _pair(data, depth)
    pair = _pair(data, depth)
    return pair if kept(_utf8(pair[0])) else None


def _text(value: Any, _depth: int = 0) -> str:
    # Process environments may contain any bytes; they must not stop a container that is not ours.
    return str(bytes(value), "utf-8", "surrogateescape")


def _bytes(value: memoryview, _depth: int) -> bytes:
    return bytes(value)
