"""JSON that API servers pass on and decoders reject: odd parts are left out, and the rest is read.

An author of an object may nest some of its fields thousands of levels deep, or write half of a surrogate pair into
them: API servers store `managedFields` unchanged, and also the data of drivers in ResourceClaims. A decoder fails at
Python's limit, even in a field that it skips, and so does the whole page of a list. The devices of an object with half
a pair would count as free. No field that the program reads is nested that deep.
"""

import re
from typing import Final, Protocol, TypeVar

import msgspec

T_co = TypeVar("T_co", covariant=True)

_DEEPEST: Final = 128
"""Levels to keep; objects of Kubernetes have some twenty."""
_BLOCK: Final = 2**20
"""Bytes of one block of the search."""
_ESCAPED: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)",
    re.DOTALL,
)
_HALF: Final = 6
"""Bytes of half a surrogate pair that stands alone; all other matches have two or twelve."""


class Decoder(Protocol[T_co]):
    """A decoder of JSON to one type."""

    def decode(self, data: bytes | msgspec.Raw, /) -> T_co:
        """The value."""


def decode(decoder: Decoder[T_co], data: bytes | msgspec.Raw) -> T_co:
    """The decoder's value of a document, without odd parts in unread fields; raises the decoder's errors."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except RecursionError:
        data = flattened(bytes(data))
    except (
        msgspec.DecodeError
    ):  # decoders report half a pair in several ways, and invalid JSON fails once more
        pass
    return decoder.decode(_ESCAPED.sub(_whole, bytes(data)))


def _whole(escaped: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if len(escaped[0]) == _HALF else escaped[0]


def flattened(data: bytes) -> bytes:
    """The document with 0 in place of each object and list that is nested too deeply."""
    import numpy as np  # noqa: PLC0415 # a tenth of a second and 20 MiB, for a rare case

    # As long as the document, and only with quotation marks that begin or end a text.
    plain = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    kept = bytearray()
    quotes = level = 0
    for start in range(0, len(data), _BLOCK):
        block = np.frombuffer(plain, np.uint8, min(_BLOCK, len(data) - start), start)
        quoted = np.cumsum(block == ord('"'), dtype=np.int32) + quotes
        outside = quoted % 2 == 0
        opens = ((block == ord("{")) | (block == ord("["))) & outside
        closes = ((block == ord("}")) | (block == ord("]"))) & outside
        levels = np.cumsum(opens.astype(np.int32) - closes, dtype=np.int32) + level
        first = opens & (levels == _DEEPEST + 1)
        last = closes & (levels == _DEEPEST)
        written = np.frombuffer(data, np.uint8, len(block), start).copy()
        written[first] = ord("0")
        kept += written[first | ((levels <= _DEEPEST) & ~last)].tobytes()
        quotes, level = int(quoted[-1]), int(levels[-1])
    return bytes(kept)
