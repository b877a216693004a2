"""Simulates devices: any model of card, on a simulated machine, with faults on demand.

For trials, lessons and tests: a file describes the hardware, and a change of the file breaks a card.
The cluster in one process creates its nodes' devices here too.

    {"model": "H100-80GB-HBM3", "cards": 8, "rdma": 4, "functions": 8, "faults": "0,2=Xid 79"}
"""

import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from partage.agent.discovery.found import Found, Inventory, Roots
from partage.agent.discovery.models import MODELS, CardModel
from partage.model.device import Device, DeviceType, Topology, VirtualFunction
from partage.model.errors import InvalidDocument, InvalidQuantity, InvalidRecord
from partage.model.quantity import Quantity
from partage.vendors.traits import ROWS, files_known, traits_of
from partage.wire.documents import typed
from partage.wire.yaml_values import YamlError, yaml_values

_SPACE: Final = uuid.UUID("c9c6d9d5-4a4e-5b67-8a0f-3f4d8e0c5a11")
"""The name space of simulated cards' identities, so that a card keeps its own."""

_BUSES: Final = 8
"""Buses behind a PCIe switch for its cards, and equally many for its network cards."""
_NICS: Final = _BUSES
_SWITCHES: Final = 15
_TARGET: Final = re.compile(r"(?:(?P<type>gpu|rdma|fpga)-)?(?P<minor>[0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class SimulatedHardware:
    """The devices of one simulated machine, spread over `numa_nodes`; `cards_per_switch`: behind one PCIe switch."""

    name: str
    model: str
    make: CardModel
    cards: int = 1
    nics: int = 0
    functions: int = 0
    numa_nodes: int = 2
    cards_per_switch: int = 2


class DescribedCards(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The cards of a simulated machine in its owner's description."""

    model: str
    cards: Annotated[int, Meta(ge=0, le=64)] = 1
    vendor: str = ""
    memory: str | None = None
    driver: str | None = None
    numa_nodes: Annotated[int, Meta(ge=1, le=16)] = 2
    cards_per_switch: Annotated[int, Meta(ge=1, le=64)] = 2

    def make(self, where: str) -> CardModel:
        """The model of the cards: known, or described in full. Raises `InvalidDocument`; `where` begins its text."""
        known, vendor = MODELS.get(self.model), self.vendor.lower()
        if vendor and not files_known(vendor):
            names = ", ".join(row.name for row in ROWS if row.own)
            raise InvalidDocument(f"{where}vendor: {self.vendor!r} is not one of {names}")
        if known is None and (not self.vendor or self.memory is None):
            raise InvalidDocument(
                f"{where}model: {self.model!r} is not one of {', '.join(MODELS)}; any other "
                "model needs vendor and memory beside it"
            )
        make = known or CardModel(vendor, 0)
        try:
            memory = make.memory if self.memory is None else Quantity.parse(self.memory).floor()
        except InvalidQuantity as error:
            raise InvalidDocument(f"{where}memory: {error}") from error
        return replace(
            make,
            vendor=vendor or make.vendor,
            memory=max(memory, 0),
            driver=make.driver if self.driver is None else self.driver,
        )


class _File(DescribedCards, frozen=True, forbid_unknown_fields=True, rename="camel"):
    rdma: Annotated[int, Meta(ge=0, le=64)] = 0
    functions: Annotated[int, Meta(ge=0, le=256)] = 0
    faults: str = ""


def simulate(
    hardware: SimulatedHardware,
    ill: Collection[tuple[str, int]] = (),
    why: str = "declared unhealthy",
) -> Inventory:
    """The result of a search of that machine. `ill`: type and minor of unhealthy devices. `why`: their fault."""
    found = [_card(hardware, minor) for minor in range(hardware.cards)]
    found += [_nic(hardware, minor) for minor in range(hardware.nics)]
    return Inventory(tuple(_health(one, ill, why) for one in found))


def discover_simulated(roots: Roots, name: str, more: str = "") -> Inventory:
    """The devices in the file of simulated devices, which `Inventory.problems` reports if it cannot be read.

    `more`: faults beside those of the file, as `faulty` reads them.
    """
    if roots.simulated is None:
        return Inventory()
    try:
        hardware, faults = read_hardware(roots.simulated, name)
        known = {(one.type.value, one.minor) for one in simulate(hardware).devices}
        ill, why = faulty(faults, known) if faults else (set(), "")
    except (InvalidDocument, InvalidRecord) as error:
        return Inventory(problems=(f"simulated devices: {error}",))
    try:
        others, reason = faulty(more, known) if more else (set(), "")
    except InvalidRecord as error:
        return replace(simulate(hardware, ill, why), problems=(f"simulated faults: {error}",))
    return simulate(hardware, ill | others, reason or why)


def read_hardware(file: Path, name: str) -> tuple[SimulatedHardware, str]:
    """The machine that a file describes, and the text of its faults. Raises `InvalidDocument`: it names the field."""
    try:
        documents = yaml_values(file.read_bytes())
        if len(documents) != 1:
            raise InvalidDocument(
                f"{file}: {len(documents) or 'no'} documents; it must be one, such as "
                "'model: A100-SXM4-80GB'"
            )
        given = typed(documents[0], _File, str(file))
    except OSError as error:
        raise InvalidDocument(
            f"{file}: {error.strerror}; name a file that describes devices"
        ) from error
    except YamlError as error:
        raise InvalidDocument(f"{file}: {error}") from error
    make = given.make(f"{file}: field ")
    counts = given.cards, given.rdma, given.functions, given.numa_nodes, given.cards_per_switch
    return SimulatedHardware(name, given.model, make, *counts), given.faults


def faulty(text: str, known: Collection[tuple[str, int]]) -> tuple[set[tuple[str, int]], str]:
    """The devices that a text declares unhealthy, and their fault.

    `0,2` are cards, `rdma-0` another device, `all` every one; the reason follows `=`. `known`: type and minor of the
    existing devices. Raises `InvalidRecord`: the text contains something else, or there is no such device.
    """
    listed, _, reason = text.partition("=")
    if listed.strip() == "all":
        return set(known), reason.strip() or "declared unhealthy"
    found: set[tuple[str, int]] = set()
    for word in filter(None, (part.strip() for part in listed.split(","))):
        match = _TARGET.fullmatch(word)
        target = (match["type"] or "gpu", int(match["minor"])) if match else ("", -1)
        if target not in known:
            have = ", ".join(f"{kind}-{minor}" for kind, minor in sorted(known)) or "none"
            raise InvalidRecord(f"{word!r} is no device of this node (it has {have})")
        found.add(target)
    return found, reason.strip() or "declared unhealthy"


def _health(one: Found, ill: Collection[tuple[str, int]], why: str) -> Found:
    if (one.device.type.value, one.device.minor) not in ill:
        return one
    device = replace(one.device, healthy=False, health_detail=why)
    return replace(one, device=device, reason="DeviceUnhealthy")


def _card(hardware: SimulatedHardware, minor: int) -> Found:
    make = hardware.make
    bus = divmod(minor % hardware.cards_per_switch, _BUSES)
    device = Device(
        type=DeviceType.GPU,
        minor=minor,
        uuid=_identity(hardware, minor),
        vendor=make.vendor,
        model=hardware.model,
        memory_bytes=make.memory,
        extras=tuple(sorted((name, int(units)) for name, units in make.units.items())),
        topology=_topology(hardware, minor, hardware.cards, bus),
    )
    return Found(
        device, product=make.product or hardware.model, driver=make.driver, percent=make.percent
    )


def _identity(hardware: SimulatedHardware, minor: int) -> str:
    """In the format of the vendor's own tools."""
    plain = str(uuid.uuid5(_SPACE, f"{hardware.name}/{minor}"))
    return traits_of(hardware.make.vendor).identity.format(plain=plain, minor=minor)


def _nic(hardware: SimulatedHardware, minor: int) -> Found:
    # Spread evenly over the cards' PCIe switches, so that joint placement finds pairs.
    places = max(hardware.cards, hardware.nics)
    slot = (minor // _BUSES, _NICS + minor % _BUSES)
    at = _topology(hardware, minor * places // hardware.nics, places, slot)
    bus = at.bus.removesuffix(":00.0")
    functions = tuple(
        VirtualFunction(
            index, f"{bus}:{(index + 1) // 8:02x}.{(index + 1) % 8}", {"type": "general"}
        )
        for index in range(hardware.functions)
    )
    return Found(
        Device(type=DeviceType.RDMA, minor=minor, uuid=at.bus, topology=at, functions=functions)
    )


def _topology(
    hardware: SimulatedHardware, place: int, places: int, bus: tuple[int, int]
) -> Topology:
    """A place of `places` evenly spread ones. `bus`: the PCI domain of the device's switch, and the bus behind it."""
    numa = place * hardware.numa_nodes // max(places, 1)
    group, switch = divmod(place // hardware.cards_per_switch, _SWITCHES)
    root = _BUSES * 2 * (1 + switch)
    return Topology(
        numa=numa,
        pcie=f"pci{group:04x}:{root:02x}",
        bus=f"{16 * group + bus[0]:04x}:{root + bus[1]:02x}:00.0",
        socket=numa,
    )
