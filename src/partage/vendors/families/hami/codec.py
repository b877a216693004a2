"""HAMi's text for a pod's devices, and its ways to write a device's identity.

One device is `<uuid>,NVIDIA,<MiB>,<percent>` closed by `:`, one container is the run of its devices closed by `;`. A
container without devices keeps its empty slot. A suffix on the UUID marks a hardware instance of the first MIG
generation: `GPU-x[<geometry>-<slot>]`.

Source: docs/sources/hami.md 1.5 (all versions), 1.6 and 13 (cases 28, 31, 38).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from partage.model.errors import InvalidRecord

NVIDIA: Final = "NVIDIA"
"""HAMi's word for the vendor in every encoded device."""

_ESCAPES: Final = (("%", "%25"), (",", "%2C"), (":", "%3A"), (";", "%3B"))
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_MIG: Final = re.compile(r"(?P<uuid>[^\[\]]+)\[(?P<geometry>[0-9]{1,4})-(?P<slot>[0-9]{1,4})\]")


@dataclass(frozen=True, slots=True)
class ContainerDevice:
    """One device of one container as HAMi writes it.

    Attributes:
        uuid: the card, with the suffix of a hardware instance if it has one.
        cores: compute in percent of a card.
        type: HAMi's word for the vendor.
    """

    uuid: str
    memory_mib: int
    cores: int
    type: str = NVIDIA


@dataclass(frozen=True, slots=True)
class MigMark:
    """Which slot of which geometry a hardware instance takes; both count from 0."""

    uuid: str
    geometry: int
    slot: int


def encode_pod_devices(containers: Sequence[Sequence[ContainerDevice]]) -> str:
    """The text for the devices of each container, in the pod's order, init containers first.

    Separators inside a UUID, which no NVIDIA card has, are written as `%2C` and so on, so the text can always be read
    back.
    """
    return "".join("".join(map(_encode, devices)) + ";" for devices in containers)


def decode_pod_devices(text: str) -> tuple[tuple[ContainerDevice, ...], ...]:
    """The devices of each container; the exact inverse of `encode_pod_devices`.

    Raises `InvalidRecord`: the text does not have this form; the message quotes the faulty part.
    """
    return tuple(
        tuple(map(_decode_device, _parts(part, ":", "device "))) for part in _parts(text, ";", "")
    )


def parse_mig_uuid(text: str) -> MigMark:
    """`GPU-x[1-2]` as card, geometry 1 and slot 2. Raises `InvalidRecord`: a part is missing."""
    match = _MIG.fullmatch(text)
    if match is None:
        raise InvalidRecord(
            f"{_short(text)} does not name a hardware instance as UUID[geometry-slot]"
        )
    return MigMark(match["uuid"], int(match["geometry"]), int(match["slot"]))


def _encode(device: ContainerDevice) -> str:
    uuid, kind = _escape(device.uuid), _escape(device.type)
    return f"{uuid},{kind},{device.memory_mib},{device.cores}:"


def _parts(text: str, end: str, what: str) -> list[str]:
    """The parts of a text that each ends with a mark. Raises `InvalidRecord`: the last one does not."""
    if text and not text.endswith(end):
        raise InvalidRecord(f"{what}{_short(text)} does not end with {end!r}")
    return text[:-1].split(end) if text else []


def _decode_device(text: str) -> ContainerDevice:
    fields = text.split(",")
    if len(fields) != 4:
        raise InvalidRecord(f"device {_short(text)} has {len(fields)} fields instead of 4")
    uuid, kind, memory, cores = fields
    if not uuid or not kind:
        raise InvalidRecord(f"device {_short(text)} lacks its UUID or type")
    if not _NUMBER.fullmatch(memory) or not _NUMBER.fullmatch(cores):
        raise InvalidRecord(f"device {_short(text)}: memory and cores must be whole numbers")
    return ContainerDevice(_unescape(uuid), int(memory), int(cores), _unescape(kind))


def _escape(text: str) -> str:
    for plain, escaped in _ESCAPES:
        text = text.replace(plain, escaped)
    return text


def _unescape(text: str) -> str:
    for plain, escaped in reversed(_ESCAPES):
        text = text.replace(escaped, plain)
    return text


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
