"""The parts of a device that a claim's selector may read.

Source: Kubernetes API resource.k8s.io/v1 at v1.36 (`DeviceAttribute`); semver.org 2.0.0.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from partage.model.quantity import Quantity

_LONGEST_VERSION: Final = 64
_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_PART: Final = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PART}(?:\.{_PART})*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


class Failure(str):
    """Why an expression has no answer for a device, where Kubernetes' own evaluation fails too."""

    __slots__ = ()


@dataclass(frozen=True)
class DeviceView:
    """A device as an expression may read it.

    Attributes:
        attributes: by domain and name: texts, whole numbers, booleans, lists of them, or `Version`.
        capacity: by domain and name.
        shared: whether it may be allocated several times.
    """

    driver: str
    attributes: Mapping[str, Mapping[str, Any]]
    capacity: Mapping[str, Mapping[str, Quantity]]
    shared: bool = False


_Identifier = tuple[bool, int, str]
"""A part of a pre-release: whether it is a word, its number, and the word. Numbers come before words."""


@dataclass(frozen=True, order=True)
class Version:
    """A semantic version; a pre-release is less than its release."""

    numbers: tuple[int, int, int]
    release: bool = True
    before: tuple[_Identifier, ...] = ()

    @staticmethod
    def parse(text: str) -> "Version | None":
        """The version of a text; None if it is none."""
        match = _VERSION.fullmatch(text) if len(text) <= _LONGEST_VERSION else None
        if match is None:
            return None
        numbers = int(match[1]), int(match[2]), int(match[3])
        before = match[4].split(".") if match[4] else ()
        parts = ((False, int(one), "") if one.isdecimal() else (True, 0, one) for one in before)
        return Version(numbers, match[4] is None, tuple(parts))
