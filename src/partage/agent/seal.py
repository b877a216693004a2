"""A check at the end of what the agent keeps, so that it is not believed after a disk has changed it.

JSON with one digit changed is still JSON, and says that less is held. So each document, and each line of the journal, ends
in a checksum, written as blanks and tabs: readers that know nothing of it read the same document. One without
a check is an older agent's, and is believed.
"""

import zlib
from typing import Final

from partage.model.errors import InvalidDocument

_BITS: Final = 32
_SIGNS: Final = b" \t"


def sealed(document: bytes) -> bytes:
    """A document with its check; it ends in no white space."""
    return document + _check(document)


def unsealed(text: bytes) -> bytes:
    """The document. Raises `InvalidDocument`: it is not as it was written."""
    document = text.rstrip(_SIGNS)
    check = text[len(document) :]
    if check and check != _check(document):
        raise InvalidDocument("it is not as it was written: its checksum is another one")
    return document


def _check(document: bytes) -> bytes:
    found = zlib.crc32(document)
    return bytes(_SIGNS[found >> bit & 1] for bit in range(_BITS))
