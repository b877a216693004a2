"""A device as its node reports it: its identity, its amounts, its position.

Amounts are in base units: compute in thousandths of a card (milli), memory in bytes, slots in sharers. Protocol units
are converted once, when they are read or written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from partage.model.cutting import Cutting
from partage.model.errors import InvalidValue
from partage.model.mig import MigAxis, MigSlice

MILLI: Final = 1000
"""Compute of one whole card."""

SEATS: Final = 63
"""Containers that can take turns on one card: the enforcement library has a seat for each."""

UNLIMITED_SLOTS: Final = 100
"""Sharers of a card whose protocol names no limit: one per percent."""


class DeviceType(StrEnum):
    """The types of device that a node can hold."""

    GPU = "gpu"
    RDMA = "rdma"
    FPGA = "fpga"


class SliceMode(StrEnum):
    """How a card is cut by its node's configuration."""

    SHARE = "hami-core"  # by software, any amount
    MIG = "mig"  # into hardware instances
    EITHER = "either"  # as the first pod on it needs, until the last pod leaves


@dataclass(frozen=True, slots=True)
class Topology:
    """The position of a device.

    Attributes:
        numa: NUMA node; -1 when unknown.
        pcie: PCIe root or switch.
        bus: PCI address, may be empty.
        socket: CPU socket; -1 when unknown.
    """

    numa: int
    pcie: str
    bus: str = ""
    socket: int = -1


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """A virtual function of a network card: its number, PCI address and the labels of its group."""

    minor: int
    bus_id: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForeignInstance:
    """A hardware instance on a card that Partage did not make.

    Attributes:
        instance: its profile and place.
        uuids: the known UUIDs of the devices in it.
    """

    instance: MigSlice
    uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device of one node.

    Attributes:
        minor: its number on the node, unique within the type.
        uuid: its lasting identity (a PCI address for network cards).
        vendor: lower-case vendor name as in the node's labels; empty when unknown.
        model: model name as reported; type filters match against it.
        healthy: an unhealthy device offers nothing.
        core_milli: compute it offers; 1000 a card, more with core scaling.
        memory_bytes: memory it offers, scaling included.
        slots: how many sharers it may have.
        extras: native units beside compute and memory (name, total), such as AI cores.
        labels: properties that a request may select by.
        cordoned: closed to new pods by its operator.
        hidden_from: protocols that their own configuration keeps away from this card.
        vendor_cut: shares of it are cut by its vendor's own plugin.
        cutting: hardware instances into which it may be cut; None if into none.
        axis: instances that its own driver reports as possible; None if it was not asked.
        foreign: hardware instances on it that are not Partage's.
        uncuttable: why it gives no instances before an operator acts; empty if nothing is wrong.
        registrar: the protocol that registered the card with more sharers than its requests name elsewhere; such
            requests use `slots` here.
        doubt: why the pods on it are uncertain; it takes no new pod meanwhile.
        seated: each container with a share of it takes a seat, so containers that share one request are sharers too.
    """

    type: DeviceType
    minor: int
    uuid: str
    vendor: str = ""
    model: str = ""
    healthy: bool = True
    core_milli: int = MILLI
    memory_bytes: int = 0
    slots: int = UNLIMITED_SLOTS
    extras: tuple[tuple[str, int], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    topology: Topology | None = None
    functions: tuple[VirtualFunction, ...] = ()
    mode: SliceMode = SliceMode.SHARE
    cordoned: bool = False
    hidden_from: frozenset[str] = frozenset()
    health_detail: str = ""
    vendor_cut: bool = False
    cutting: Cutting | None = None
    axis: MigAxis | None = None
    foreign: tuple[ForeignInstance, ...] = ()
    uncuttable: str = ""
    doubt: str = ""
    registrar: str = ""
    seated: bool = False

    def __post_init__(self) -> None:
        if self.minor < 0:
            raise InvalidValue(f"device {self.uuid!r}: minor {self.minor} is negative")
        if self.core_milli < 0 or self.memory_bytes < 0 or self.slots < 0:
            amounts = f"{self.core_milli} milli, {self.memory_bytes} bytes, {self.slots} slots"
            raise InvalidValue(f"device {self.uuid!r}: of {amounts} one is negative")


@dataclass(frozen=True, slots=True)
class Partition:
    """A set of cards that may be allocated together (cards behind one link).

    Attributes:
        minors: its cards, ascending.
        score: preference; higher is better.
        bandwidth: ring bandwidth in bits per second, if the table contains it.
    """

    minors: tuple[int, ...]
    score: int = 1
    bandwidth: int | None = None
