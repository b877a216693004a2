"""Fields of protocol buffers come back as they were written, and other bytes are an error that says where they are wrong."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.wire.protobuf import (
    LENGTH,
    VARINT,
    Malformed,
    number_at,
    pieces,
    put_bytes,
    put_number,
    signed,
    wrapped,
)

FIELDS = st.lists(
    st.tuples(st.integers(1, 2**29 - 1), st.integers(0, 2**64 - 1) | st.binary(max_size=300)),
    max_size=8,
)


@given(FIELDS)
def test_fields_come_back_in_order(fields: list[tuple[int, int | bytes]]) -> None:
    """Numbers and pieces, whatever their size."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, bytes):
            put_bytes(out, number, value)
        else:
            put_number(out, number << 3 | VARINT)
            put_number(out, value)

    found = [
        (number, bytes(value) if wire == LENGTH else value)
        for number, wire, value in pieces(memoryview(out))
    ]

    assert found == fields


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_number_may_be_negative(value: int) -> None:
    """It is written as the number of 64 bits that has the same."""
    out = bytearray()
    put_number(out, value)

    written, end = number_at(memoryview(out), 0)

    assert (signed(written), end) == (value, len(out))


def test_words_of_a_fixed_size_are_pieces() -> None:
    """Words have eight or four bytes."""
    data = bytes([1 << 3 | 1]) + struct.pack("<d", 0.5) + bytes([2 << 3 | 5]) + b"abcd"

    assert [(number, bytes(value)) for number, _, value in pieces(memoryview(data))] == [
        (1, struct.pack("<d", 0.5)),
        (2, b"abcd"),
    ]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\x80", "a number is cut off"),
        (b"\x80" * 10 + b"\x01", "more than ten bytes"),
        (b"\xff" * 9 + b"\x7f", "more than 64 bits"),
        (b"\x00\x00", "0 is no number of a field"),
        (wrapped(1, b"abc")[:-1], "field 1 has 2 of 3 bytes"),
        (bytes([1 << 3 | 3]), "field 1 has wire type 3"),
        (bytes([1 << 3 | 5]) + b"abc", "field 1 has 3 of 4 bytes"),
    ],
)
def test_other_bytes_are_an_error(data: bytes, told: str) -> None:
    """A runtime or a client may send anything."""
    with pytest.raises(Malformed, match=told):
        list(pieces(memoryview(data)))


@given(st.binary(max_size=64))
def test_no_bytes_are_a_fault(data: bytes) -> None:
    """They are read, or refused."""
    try:
        read = sum(1 for _ in pieces(memoryview(data)))
    except Malformed:
        return
    assert read <= len(data)
