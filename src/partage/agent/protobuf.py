"""A small table-driven codec of protocol buffers (proto3), for the few messages a node agent speaks.

A message is a frozen dataclass by being a `Message`; its fields say their number and kind:

    class Mount(Message):
        destination: str = text(1)
        options: tuple[str, ...] = texts(4)

Only what containerd's NRI and the kubelet's interfaces use is here: varints, texts, bytes, messages,
lists of texts and messages, maps of texts. A field that is not declared is skipped, as the format asks; a
declared one with another wire type is an error, since guessing would inject something that was not asked for.

Source: the published encoding of protocol buffers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from functools import cache
from typing import Any, ClassVar, Final, Self, TypeVar, dataclass_transform

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
"""Messages inside messages; far more than any that is spoken, far less than the stack holds."""


class _Kind(Enum):
    INTEGER = auto()
    NATURAL = auto()
    FLAG = auto()
    TEXT = auto()
    BLOB = auto()
    MESSAGE = auto()
    TEXTS = auto()
    MESSAGES = auto()
    MAP = auto()


_NUMBERS: Final = frozenset({_Kind.INTEGER, _Kind.NATURAL, _Kind.FLAG})


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    kind: _Kind
    of: "type[Message] | None" = None
    name: str = ""

    @property
    def type(self) -> "type[Message]":
        assert self.of is not None  # noqa: S101 # declared with one
        return self.of


def integer(number: int) -> Any:
    """An int32, int64 or enum field; 0 when absent."""
    return field(default=0, metadata={_KEY: _Field(number, _Kind.INTEGER)})


def natural(number: int) -> Any:
    """A uint32 or uint64 field; 0 when absent."""
    return field(default=0, metadata={_KEY: _Field(number, _Kind.NATURAL)})


def flag(number: int) -> Any:
    """A bool field."""
    return field(default=False, metadata={_KEY: _Field(number, _Kind.FLAG)})


def text(number: int) -> Any:
    """A string field."""
    return field(default="", metadata={_KEY: _Field(number, _Kind.TEXT)})


def blob(number: int) -> Any:
    """A bytes field."""
    return field(default=b"", metadata={_KEY: _Field(number, _Kind.BLOB)})


def message(number: int, of: "type[Message]") -> Any:
    """A message field; None when absent."""
    return field(default=None, metadata={_KEY: _Field(number, _Kind.MESSAGE, of)})


def texts(number: int) -> Any:
    """A repeated string field, as a tuple."""
    return field(default=(), metadata={_KEY: _Field(number, _Kind.TEXTS)})


def messages(number: int, of: "type[Message]") -> Any:
    """A repeated message field, as a tuple."""
    return field(default=(), metadata={_KEY: _Field(number, _Kind.MESSAGES, of)})


def text_map(number: int) -> Any:
    """A map of strings to strings."""
    return field(default_factory=dict, metadata={_KEY: _Field(number, _Kind.MAP)})


M = TypeVar("M", bound="Message")


@dataclass_transform(frozen_default=True)
class Message:
    """What all messages can do."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        """Makes a frozen dataclass of each message."""
        dataclass(frozen=True)(cls)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The message in some bytes. Raises `Malformed`: they are not one."""
        return _decode(cls, memoryview(data), 0)

    def encode(self) -> bytes:
        """The message's bytes; fields with their default are left out, maps are in key order."""
        out = bytearray()
        for one in _table(type(self)).values():
            _write(out, one, getattr(self, one.name))
        return bytes(out)


def _table(of: Any) -> dict[int, _Field]:
    return _declared(of)


@cache
def _declared(of: Any) -> dict[int, _Field]:
    declared = [(one.name, one.metadata[_KEY]) for one in fields(of)]
    return {f.number: _Field(f.number, f.kind, f.of, name) for name, f in declared}


# --- writing ---------------------------------------------------------------------------------


def _write(out: bytearray, one: _Field, value: Any) -> None:
    if one.kind in _NUMBERS:
        if value:
            put_number(out, one.number << 3 | VARINT)
            put_number(out, int(value))
        return
    for item in _items(one.kind, value):
        put_bytes(out, one.number, _payload(item))


def _items(kind: _Kind, value: Any) -> tuple[Any, ...]:
    """What a field repeats: nothing for a default, one for a single value."""
    if kind is _Kind.MAP:
        return tuple((key, value[key]) for key in sorted(value))
    if kind in {_Kind.TEXTS, _Kind.MESSAGES}:
        return tuple(value)
    empty = value is None or (not isinstance(value, Message) and not value)
    return () if empty else (value,)


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
    # What came in as broken text goes out the same.
    return value.encode("utf-8", "surrogateescape")


# --- reading ---------------------------------------------------------------------------------


def raw_fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Every field of a message as it stands: its number, its bytes with the key, and its payload.

    The payload of numbers is empty. For who passes on what others wrote.

    Raises:
        Malformed: the bytes are no message.
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


def _decode(of: type[M], data: memoryview, depth: int) -> M:
    if depth > _DEEPEST:
        raise Malformed(f"{of.__name__}: messages inside messages, more than {_DEEPEST} deep")
    table = _table(of)
    try:
        values = _values(table, data, depth)
    except Malformed as error:
        raise Malformed(f"{of.__name__}: {error}") from None
    for one in table.values():
        if one.kind in {_Kind.TEXTS, _Kind.MESSAGES} and one.name in values:
            values[one.name] = tuple(values[one.name])
    return of(**values)


def _values(table: dict[int, _Field], data: memoryview, depth: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for number, wire, value in pieces(data):
        one = table.get(number)
        if one is None:
            continue
        expected = VARINT if one.kind in _NUMBERS else LENGTH
        if wire != expected:
            raise Malformed(f"field {one.name} has wire type {wire}, not {expected}")
        _take(values, one, value, depth)
    return values


def _take(values: dict[str, Any], one: _Field, value: Any, depth: int) -> None:
    match one.kind:
        case _Kind.INTEGER:
            values[one.name] = signed(value)
        case _Kind.NATURAL:
            values[one.name] = value
        case _Kind.FLAG:
            values[one.name] = bool(value)
        case _Kind.TEXT:
            values[one.name] = _text(value)
        case _Kind.BLOB:
            values[one.name] = bytes(value)
        case _Kind.MESSAGE:
            values[one.name] = _decode(one.type, value, depth + 1)
        case _Kind.TEXTS:
            values.setdefault(one.name, []).append(_text(value))
        case _Kind.MESSAGES:
            values.setdefault(one.name, []).append(_decode(one.type, value, depth + 1))
        case _Kind.MAP:
            key, held = _pair(value)
            values.setdefault(one.name, {})[key] = held


def _pair(data: memoryview) -> tuple[str, str]:
    found = {1: "", 2: ""}
    for number, wire, value in pieces(data):
        if number in found:
            if wire != LENGTH:
                raise Malformed(f"a map's entry has wire type {wire}, not {LENGTH}")
            found[number] = _text(value)
    return found[1], found[2]


def _text(value: Any) -> str:
    # Process environments may hold any bytes; they must not stop a container that is none of ours.
    return str(bytes(value), "utf-8", "surrogateescape")
