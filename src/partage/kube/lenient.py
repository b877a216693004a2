"""JSON that API servers pass on and decoders reject: odd parts are left out, and the rest is read.

An author of an object may nest some of its fields thousands of levels deep, or write half of a surrogate pair or other
bytes than UTF-8 into them: API servers store `managedFields` unchanged, and also the data of drivers in ResourceClaims.
A decoder fails at Python's limit, even in a field that it skips, and so does the whole page of a list. The devices of an
object with such a text would count as free. No field that the program reads is nested that deep.

An author may also write a megabyte of anything beside the odd part, so repairs take about 20 ms a megabyte whatever it
holds: nothing here looks at single characters.
"""

import re
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T_co = TypeVar("T_co", covariant=True)

UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of a document that is malformed or of another type."""
ODD: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Those that a repair may cure."""
_DEEPEST: Final = 128
"""Levels to keep; objects of Kubernetes have some twenty."""
_BLOCK: Final = 2**20
"""Bytes of one block of the search, at least."""
_NO_ESCAPE: Final = re.compile(rb"[^\\]{12}")
"""No escape ends or goes on behind this: the longest, a surrogate pair, has as many bytes."""
_ASCII: Final = bytes(range(128)) + b"?" * 128
_NO_DIGIT: Final = 16
_DIGITS: Final = bytes(
    int(chr(byte), 16) if chr(byte) in "0123456789abcdefABCDEF" else _NO_DIGIT
    for byte in range(256)
)
"""The value of each character as a hexadecimal digit."""


class Decoder(Protocol[T_co]):
    """A decoder of JSON to one type."""

    def decode(self, data: bytes | msgspec.Raw, /) -> T_co:
        """The value."""


def decode(decoder: Decoder[T_co], data: bytes | msgspec.Raw) -> T_co:
    """The decoder's value of a document, without odd parts in unread fields. Raises the errors of `UNDECODABLE`."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except ODD:
        return decoder.decode(repaired(bytes(data)))


def repaired(data: bytes) -> bytes:
    """The document with 0 in place of each object and list that is nested too deeply, and no broken text.

    U+FFFD replaces half of a surrogate pair; in a document that is not UTF-8, a question mark each byte beyond ASCII.
    """
    import numpy as np  # noqa: PLC0415 # a tenth of a second and 20 MiB, for a rare case

    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.translate(_ASCII)
    kept: list[bytes] = []
    quotes = level = end = 0
    while end < len(data):
        start, end = end, _end_of_block(data, end)
        # As long as the block, and a backslash begins an escape of another character.
        plain = data[start:end].replace(b"\\\\", b"__")
        written = np.frombuffer(data[start:end], np.uint8).copy()
        _fill_halves(np.frombuffer(plain, np.uint8), written)
        # Here a quotation mark begins or ends a text.
        block = np.frombuffer(plain.replace(b'\\"', b"__"), np.uint8)
        quoted = np.cumsum(block == ord('"'), dtype=np.uint8)  # its last bit is right
        outside = (quoted + np.uint8(quotes)) & 1 == 0
        kind = block | 0x20  # { and [, } and ] differ in one bit
        opens = (kind == ord("{")) & outside
        closes = (kind == ord("}")) & outside
        levels = np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int32) + level
        first = opens & (levels == _DEEPEST + 1)
        last = closes & (levels == _DEEPEST)
        written[first] = ord("0")
        kept.append(written[first | ((levels <= _DEEPEST) & ~last)].tobytes())
        quotes, level = (quotes + int(quoted[-1])) & 1, int(levels[-1])
    return b"".join(kept)


def _end_of_block(data: bytes, start: int) -> int:
    """The end of the block from here, within no escape and between no two of a pair."""
    if start + _BLOCK >= len(data):
        return len(data)
    found = _NO_ESCAPE.search(data, start + _BLOCK)
    return found.end() if found else len(data)


def _fill_halves(plain: "NDArray[np.uint8]", written: "NDArray[np.uint8]") -> None:
    """Replace each half of a surrogate pair that stands alone; `plain`: a backslash begins an escape."""
    import numpy as np  # noqa: PLC0415 # see above

    begins = plain[:-5] == ord("\\")
    begins &= plain[1:-4] == ord("u")
    begins &= (plain[2:-3] | 0x20) == ord("d")
    at = np.flatnonzero(begins)
    digits = np.frombuffer(_DIGITS, np.uint8)
    third, fourth, fifth = (digits[plain[at + i]] for i in (3, 4, 5))
    half = (third >= 8) & (np.maximum(third, np.maximum(fourth, fifth)) < _NO_DIGIT)
    at, high = at[half], third[half] < 12
    pairs = high[:-1] & ~high[1:] & (np.diff(at) == 6)
    alone = np.ones(at.size, np.bool_)
    alone[:-1] &= ~pairs
    alone[1:] &= ~pairs
    at = at[alone]
    for place, digit in enumerate(b"fffd", 2):
        written[at + place] = digit
