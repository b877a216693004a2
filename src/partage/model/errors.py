"""The error tree.

    PartageError
    ├── InvalidValue          a value breaks its own rule (a negative amount, a malformed quantity)
    │   └── InvalidQuantity   text that is not a Kubernetes quantity
    ├── InvalidDocument       a document cannot be decoded as its kind (file, document, field)
    ├── InvalidRecord         an allocation record is malformed or contradicts another
    └── LedgerError           a change that would break the ledger's laws; always a bug in the caller

An expected refusal (a pod that must wait) is a `Refusal` value, not an error.
"""

import difflib
from collections.abc import Iterable
from typing import Final

import msgspec


class PartageError(Exception):
    """The root of everything this package raises on purpose."""


class InvalidValue(PartageError, ValueError):
    """A value that breaks its own rule."""


class InvalidQuantity(InvalidValue):
    """Text that is not a Kubernetes quantity."""


class InvalidDocument(PartageError):
    """A document that cannot be decoded as its Kubernetes kind.

    The message names the file, the document and the field.
    """


class InvalidRecord(PartageError):
    """An allocation record that is malformed, or that contradicts another of the same pod."""


class LedgerError(PartageError):
    """A change that would break a rule of the ledger."""


UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors that decoders raise: no JSON, no YAML, no UTF-8, another shape, or nested too deeply."""


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a message on an unknown name: the known one that is most like it; empty for none."""
    near = difflib.get_close_matches(name, [*known], n=1)
    return f"; did you mean {near[0]}?" if near else ""
