"""Identities of devices: those that belong to one device alone, and those of devices without one."""

import re
from typing import Final

from partage.model.device import DeviceType

PCI_ADDRESS: Final = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
"""A pattern of addresses as documents write them, with or without the domain."""


def is_worldwide(uuid: str) -> bool:
    """Whether an identity can be that of one card alone; a PCI address is one on each machine that has such a slot."""
    return bool(uuid) and re.fullmatch(PCI_ADDRESS, uuid) is None


def made_of_number(node: str, kind: DeviceType, minor: int) -> str:
    """The identity for a device that its Device object gives none."""
    return f"{node}-{kind}-{minor}"
