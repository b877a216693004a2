"""The encoding of protocol buffers, field by field: numbers, and pieces with a length.

Source: the published encoding of protocol buffers.
"""

from collections.abc import Iterator
from typing import Any, Final

from partage.model.errors import PartageError

VARINT: Final = 0
_FIXED64: Final = 1
LENGTH: Final = 2
_FIXED32: Final = 5
_WORD: Final = 1 << 64


class Malformed(PartageError):
    """Bytes that do not follow their protocol."""


def put_number(out: bytearray, value: int) -> None:
    """Write a number."""
    value &= _WORD - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_bytes(out: bytearray, number: int, data: bytes) -> None:
    """Write a field with a length."""
    put_number(out, number << 3 | LENGTH)
    put_number(out, len(data))
    out += data


def wrapped(number: int, payload: bytes) -> bytes:
    """A field with a length, as bytes."""
    out = bytearray()
    put_bytes(out, number, payload)
    return bytes(out)


def signed(value: int) -> int:
    """A number as a signed one."""
    return value - _WORD if value >= _WORD >> 1 else value


def number_at(data: memoryview, at: int) -> tuple[int, int]:
    """The number at this place, and its end. Raises `Malformed`."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise Malformed("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _WORD:
                raise Malformed("a number has more than 64 bits")
            return value, at
        shift += 7
        if shift > 63:
            raise Malformed("a number has more than ten bytes")


def pieces(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of every field. Raises `Malformed`."""
    at, end = 0, len(data)
    while at < end:
        # Numbers of one byte are read without a call: a tenant's pod may have 100,000 fields.
        key = data[at]
        if key < 0x80:
            at += 1
        else:
            key, at = number_at(data, at)
        number, wire = key >> 3, key & 7
        if not number or number >= 1 << 29:
            raise Malformed(f"{number} is no number of a field")
        if wire == VARINT:
            value, at = number_at(data, at)
            yield number, wire, value
            continue
        if wire == LENGTH:
            if at < end and data[at] < 0x80:
                length, at = data[at], at + 1
            else:
                length, at = number_at(data, at)
        elif wire in {_FIXED64, _FIXED32}:
            length = 8 if wire == _FIXED64 else 4
        else:
            raise Malformed(f"field {number} has wire type {wire}, which is not in use")
        if length > end - at:
            raise Malformed(f"field {number} has {end - at} of {length} bytes")
        yield number, wire, data[at : at + length]
        at += length
