"""Which drivers and architectures qGPU supports.

The qGPU document names three architectures and four driver branches with their last minor; a later page adds cards and
branches. An unrecognised one is admitted with a warning; a recognised one that is not listed is refused.

Source: the qGPU document; docs/sources/qgpu.md 1.3 (page of January 2026).
"""

import re
from collections.abc import Mapping
from typing import Final

from partage.vendors import names

DRIVERS: Final[Mapping[int, tuple[int, int, int] | None]] = {
    450: (450, 102, 4),
    470: (470, 161, 3),
    515: (515, 65, 1),
    525: (525, 89, 2),
    535: None,  # this one and those below by the later page
    550: None,
    570: None,
}
"""Driver branches, each with its last supported version; None if no bound is published."""
ARCHITECTURES: Final = ("Volta", "Turing", "Ampere", "Ada")
"""The last one by the later page."""

_MODELS: Final[Mapping[str, str]] = {
    "Kepler": "K10 K20 K40 K40M K80",
    "Maxwell": "M4 M10 M40 M60",
    "Pascal": "P4 P6 P40 P100 1080",
    "Volta": "V100 V100S",
    "Turing": "T4 T4G T10 2080",
    "Ampere": "A2 A10 A10G A10M A16 A30 A40 A100 A800 A2000 A4000 A4500 A5000 A5500 A6000 3080 3090",
    "Ada": "ADA L2 L4 L20 L40 L40S 4080 4090 4090D",
    "Hopper": "H20 H100 H200 H800 GH200",
    "Blackwell": "BLACKWELL B100 B200 B300 GB200 GB300 5090",
}
_BY_TOKEN: Final = {token: name for name, tokens in _MODELS.items() for token in tokens.split()}
_DECISIVE: Final = ("ADA", "BLACKWELL")
"""Words that decide before numbers, because an RTX 6000 Ada is not a Quadro RTX 6000."""

_TOKEN: Final = re.compile(r"[0-9A-Z]+")
_VERSION: Final = re.compile(r"([0-9]{1,5})\.([0-9]{1,5})(?:\.([0-9]{1,5}))?")


def architecture_of(model: str) -> str | None:
    """The architecture of a card by its model name; None if the name is not recognised."""
    tokens = _TOKEN.findall(model.upper())
    ordered = (*(t for t in _DECISIVE if t in tokens), *tokens)
    return next((_BY_TOKEN[token] for token in ordered if token in _BY_TOKEN), None)


def driver_version(labels: Mapping[str, str]) -> tuple[int, int, int] | None:
    """The driver's version triple from the label that has it; None if none is readable."""
    texts = [labels.get(name, "") for name in names.QGPU_DRIVER_LABELS]
    texts += [
        ".".join(value for name in parts if (value := labels.get(name, "").strip()))
        for parts in names.QGPU_DRIVER_PARTS
    ]
    for text in texts:
        match = _VERSION.fullmatch(text.strip())
        if match is not None:
            return int(match[1]), int(match[2]), int(match[3] or 0)
    return None


def driver_problem(version: tuple[int, int, int]) -> str:
    """Why the driver is outside the table; empty if it is inside."""
    shown = format_version(version)
    branch = version[0]
    if branch not in DRIVERS:
        branches = ", ".join(map(str, DRIVERS))
        return f"driver {shown} is of no branch that qGPU supports ({branches})"
    last = DRIVERS[branch]
    if last is None or version <= last:
        return ""
    return (
        f"driver {shown} is newer than {format_version(last)}, "
        f"the last of branch {branch} that qGPU supports"
    )


def format_version(version: tuple[int, int, int]) -> str:
    """A version as NVIDIA prints it, the last number with two digits: `450.102.04`."""
    return f"{version[0]}.{version[1]}.{version[2]:02}"
