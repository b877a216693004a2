"""The parts of a device that a claim's selector may read.

Source: Kubernetes API resource.k8s.io/v1 at v1.36 (`DeviceAttribute`); semver.org 2.0.0.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from partage.model.quantity import Quantity

_LONGEST_VERSION: Final = 64
_VERSION: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
)


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


@dataclass(frozen=True, order=True)
class Version:
    """A semantic version; a pre-release is less than its release."""

    numbers: tuple[int, int, int]
    release: bool = True
    before: str = ""

    @staticmethod
    def parse(text: str) -> "Version | None":
        """The version of a text; None if it is none."""
        match = _VERSION.fullmatch(text[:_LONGEST_VERSION])
        if match is None:
            return None
        numbers = int(match[1]), int(match[2]), int(match[3])
        return Version(numbers, match[4] is None, match[4] or "")
