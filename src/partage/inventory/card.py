"""Views of single cards in the ledger, and facts derived from single devices and charges.

Values and pure functions; the ledger owns the state.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from partage.model.allocation import Charge
from partage.model.device import Device, DeviceType
from partage.model.mig import MigSlice, in_order
from partage.model.reason import ReasonCode
from partage.model.request import MayUse

Tree = tuple[tuple[int, ...], tuple[int, ...]]
"""The topology of a node's cards: by row, the number of the card's PCIe switch, and of its NUMA node."""

CEILING: Final = 2**52
"""The largest amount that the books count (4 PiB): larger ones would not fit the columns' sums."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Capacity that must not be allocated because of one pod.

    Attributes:
        types: types of which no device is allocated, because the pod holds some by an untrusted record.
        message: why, for readers of all namespaces.
        may_use: the devices that a pod without a record may be using. As many open devices that no pod holds are
            closed.
    """

    node: str
    types: tuple[DeviceType, ...]
    message: str
    may_use: tuple[MayUse, ...] = ()

    @property
    def brief(self) -> str:
        """Why, for pods of any namespace: it leaves out the pod's name and its record."""
        if self.may_use:
            return "a pod on the node asks for devices and has no record"
        return "a pod or claim on the node has a record that cannot be trusted"


@dataclass(slots=True)
class Card:
    """A copy of one card's state, for decisions card by card.

    Attributes:
        row: its position in the columns.
        core_free: compute left, milli.
        memory_free: memory left, bytes.
        slots_free: sharers it may still take.
        tenants: sharers it has.
        closed: why it takes no pod, or None.
        closed_detail: more about that; it names no pod, because pods of any namespace see it.
        extras_free: native units left.
        functions_taken: PCI addresses of its virtual functions in use.
        instances: hardware instances on it, by start; those added for a decision are last.
        holders: the pod of each instance as `namespace/name`, in the same order.
        takes_instances: whether another instance may be made on it at all.
        foreign: foreign instances on it that no pod's record names, by start.
    """

    device: Device
    row: int
    core_free: int
    memory_free: int
    slots_free: int
    tenants: int
    closed: ReasonCode | None = None
    closed_detail: str = ""
    extras_free: dict[str, int] | None = None
    functions_taken: frozenset[str] = frozenset()
    instances: tuple[MigSlice, ...] = ()
    holders: tuple[str, ...] = ()
    takes_instances: bool = False
    foreign: tuple[MigSlice, ...] = ()

    @property
    def occupied(self) -> tuple[MigSlice, ...]:
        """Every instance on it, foreign ones included, by start."""
        return in_order((*self.instances, *self.foreign))


def tree_of(cards: Sequence[Device]) -> Tree | None:
    """The topology of the cards; None if there are none, or if one card's position is unknown."""
    switches: dict[tuple[int, str], int] = {}
    numas: dict[int, int] = {}
    places: list[tuple[int, int]] = []
    for card in cards:
        there = card.topology
        if there is None or not there.pcie:
            return None
        switch = switches.setdefault((there.numa, there.pcie), len(switches))
        places.append((switch, numas.setdefault(there.numa, len(numas))))
    return (tuple(s for s, _ in places), tuple(n for _, n in places)) if places else None


_NO_DOUBLES: Final[frozenset[tuple[DeviceType, int]]] = frozenset()


def doubles(devices: Sequence[Device]) -> frozenset[tuple[DeviceType, int]]:
    """Devices of one type with the same UUID or minor: they may be one device reported twice."""
    named = [(d.type, d.uuid) for d in devices if d.uuid]
    if len(set(named)) == len(named) and len({(d.type, d.minor) for d in devices}) == len(devices):
        return _NO_DOUBLES  # nearly always
    uuids = Counter(named)
    minors = Counter((d.type, d.minor) for d in devices)
    return frozenset(
        (d.type, d.minor)
        for d in devices
        if uuids[d.type, d.uuid] > 1 or minors[d.type, d.minor] > 1
    )


def ghost(charge: Charge) -> Device:
    """A placeholder for a booked device that is no longer on its node."""
    return Device(
        type=charge.type,
        minor=charge.minor,
        uuid=charge.uuid,
        healthy=False,
        core_milli=0,
        memory_bytes=0,
        slots=0,
        health_detail="the device is gone while a pod holds it",
    )
