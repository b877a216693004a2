"""What a selector of a claim may read of a device.

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
    """What an expression may read of a device.

    Attributes:
        attributes: by domain and name: texts, whole numbers, truths, lists of them, or `Version`.
        capacity: by domain and name.
        shared: it may be allocated several times.
    """

    driver: str
    attributes: Mapping[str, Mapping[str, Any]]
    capacity: Mapping[str, Mapping[str, Quantity]]
    shared: bool = False


@dataclass(frozen=True, order=True)
class Version:
    """A semantic version; one before a release is less than it."""

    numbers: tuple[int, int, int]
    release: bool = True
    before: str = ""

    @staticmethod
    def parse(text: str) -> "Version | None":
        """The version of a text; None where it is none."""
        match = _VERSION.fullmatch(text[:_LONGEST_VERSION])
        if match is None:
            return None
        numbers = int(match[1]), int(match[2]), int(match[3])
        return Version(numbers, match[4] is None, match[4] or "")
