"""Adds a check to the agent's files, so that the agent does not trust a file that a disk has changed.

JSON with one changed digit is still JSON, and may contain a smaller grant. Each document, and each line of the journal,
therefore ends in a checksum, written as blanks and tabs. Readers that do not know it read the same document. A document
without a check is an older agent's, and is trusted.
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
    """The document. Raises `InvalidDocument`: it differs from the written one."""
    document = text.rstrip(_SIGNS)
    check = text[len(document) :]
    if check and check != _check(document):
        raise InvalidDocument("it is not as it was written: its checksum is another one")
    return document


def _check(document: bytes) -> bytes:
    found = zlib.crc32(document)
    return bytes(_SIGNS[found >> bit & 1] for bit in range(_BITS))
