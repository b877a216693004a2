"""Problems that validation finds in an object, in the genuine server's wording."""

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from partage.apiserver.status import Cause

_MOST: Final = 1000
"""Problems of one object; a body of a few megabytes may have a million."""
_STEPS: Final = 5 * 10**7
"""A second's work at worst: characters times the size of their pattern's program."""
_LONGEST: Final = 1024
"""Characters of a value, an enumeration or the way to a field in a message."""


class Problems:
    """Collects causes; an empty collection means that the object is valid.

    Attributes:
        relaxed: whether names may have upper-case letters, which the genuine server refuses.
        enumerations: the values of schemas' enumerations and their texts, by the identity of their list.
        steps: steps that patterns may still take over the object's texts.
    """

    def __init__(self, *, relaxed: bool = False) -> None:
        self.relaxed = relaxed
        self.causes: list[Cause] = []
        self.enumerations: dict[int, tuple[frozenset[Hashable], list[str]]] = {}
        self.steps = _STEPS

    def __bool__(self) -> bool:
        return bool(self.causes)

    def name(self, text: str) -> str:
        """A name in the form for its rule."""
        return text.lower() if self.relaxed else text

    def invalid(self, field: str, value: Any, why: str) -> None:
        """A value that breaks a rule."""
        self._add("FieldValueInvalid", field, f"Invalid value: {_shown(value)}: {why}")

    def required(self, field: str, why: str = "") -> None:
        """A value that is missing."""
        self._add("FieldValueRequired", field, "Required value" + (f": {why}" if why else ""))

    def forbidden(self, field: str, why: str) -> None:
        """A field that may not be set, or changed, here."""
        self._add("FieldValueForbidden", field, f"Forbidden: {why}")

    def duplicate(self, field: str, value: Any) -> None:
        """A value that must be unique and is not."""
        self._add("FieldValueDuplicate", field, f"Duplicate value: {_shown(value)}")

    def once(self, field: str, value: Hashable, seen: set[Any]) -> None:
        """Reports a value that an earlier item has, and adds it to those `seen`."""
        if value in seen:
            self.duplicate(field, value)
        seen.add(value)

    def unsupported(self, field: str, value: Any, known: Iterable[str]) -> None:
        """A value outside an enumeration, whose values are listed in the given order, the first ones of many."""
        if len(self.causes) >= _MOST:
            return
        names = cut(", ".join(f'"{name}"' for name in islice(known, _LONGEST)))
        self._add(
            "FieldValueNotSupported",
            field,
            f"Unsupported value: {_shown(value)}: supported values: {names}",
        )

    def too_long(self, field: str, limit: int) -> None:
        """A value longer than its limit."""
        self._add("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")

    def too_many(self, field: str, count: int, limit: int) -> None:
        """A list with more items than it may have."""
        why = f"Too many: {count}: must have at most {limit} items"
        self._add("FieldValueTooMany", field, why)

    def absent(self, field: str, value: Any, why: str = "") -> None:
        """A reference to an absent object."""
        self._add(
            "FieldValueNotFound",
            field,
            f"Not found: {_shown(value)}" + (f": {why}" if why else ""),
        )

    def wrong_type(self, field: str, value: Any, why: str) -> None:
        """A value of a type that the schema does not allow."""
        self._add("FieldValueTypeInvalid", field, f"Invalid value: {_shown(value)}: {why}")

    def _add(self, reason: str, field: str, message: str) -> None:
        if len(self.causes) < _MOST:
            self.causes.append(Cause(reason, field or "<nil>", message))


def _shown(value: Any) -> str:
    """A value in the form of messages, cut if long."""
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        text = repr(value)
    return cut(text)


def cut(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
