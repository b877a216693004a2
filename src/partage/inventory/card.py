"""Views of single cards in the ledger, and facts derived from single devices and charges.

Values and pure functions; the ledger owns the state.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from partage.model.allocation import Charge
from partage.model.device import Device, DeviceType
from partage.model.mig import MigSlice
from partage.model.reason import ReasonCode
from partage.model.request import MayUse

Tree = tuple[tuple[int, ...], tuple[int, ...]]
"""How a node's cards lie: by row, the number of the card's PCIe switch, and of its NUMA node."""

CEILING: Final = 2**52
"""The most that the books count of anything (4 PiB): more would not fit the columns' sums."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Capacity that must not be handed out because of one pod.

    Attributes:
        node: where.
        types: types of device of which no device is handed out: the pod holds something by a record
            that cannot be trusted.
        message: why, for who may read of all namespaces.
        may_use: without a record, what the pod may be using. So many devices are closed, of those
            that take pods and that no pod holds.
    """

    node: str
    types: tuple[DeviceType, ...]
    message: str
    may_use: tuple[MayUse, ...] = ()

    @property
    def brief(self) -> str:
        """Why, for pods of any namespace: who is behind it is not named, nor what the record says."""
        if self.may_use:
            return "a pod on the node asks for devices and has no record"
        return "a pod or claim on the node has a record that cannot be trusted"


@dataclass(slots=True)
class Card:
    """A copy of one card's state, for decisions card by card.

    Attributes:
        device: what it is.
        row: its position in the columns.
        core_free: compute left, milli.
        memory_free: memory left, bytes.
        slots_free: sharers it may still take.
        tenants: sharers it has.
        closed: why it takes no pod, or None.
        closed_detail: more about that; it names no pod, since pods of any namespace hear it.
        extras_free: native units left.
        functions_taken: PCI addresses of its virtual functions in use.
        instances: hardware instances on it, by start; what is added for a decision comes last.
        holders: the pod of each instance as `namespace/name`, in the same order.
        takes_instances: whether another instance may be made on it at all.
        foreign: instances of others on it that no pod's record names, by start.
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
        """Every instance on it, ours or not, by start."""
        everything = (*self.instances, *self.foreign)
        return tuple(sorted(everything, key=lambda one: (one.start, one.size, one.profile)))


def tree_of(cards: Sequence[Device]) -> Tree | None:
    """How the cards lie; None where there are none, or where that is unknown of one."""
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


def kinds_of(charges: Sequence[Charge]) -> int:
    """Bits of one pod for the column `hosted`; the few with more than 62 cards share a bit."""
    cards = shares = 0
    for charge in charges:
        if charge.type is DeviceType.GPU:
            if charge.exclusive:
                cards += 1
            else:
                shares = 1
    return (1 << min(cards, 62) if cards else 0) | shares


_NO_DOUBLES: Final[frozenset[tuple[DeviceType, int]]] = frozenset()


def doubles(devices: Sequence[Device]) -> frozenset[tuple[DeviceType, int]]:
    """Devices of one type with one UUID or one minor: they may be one device reported twice."""
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


def bounded(charge: Charge) -> Charge:
    """The charge, with absurd amounts cut down to what the columns can count."""
    few = charge.core_milli <= CEILING and charge.slots <= CEILING
    few = few and charge.memory_bytes <= CEILING
    if few and (not charge.extras or all(a <= CEILING for _unit, a in charge.extras)):
        return charge
    return replace(
        charge,
        core_milli=min(charge.core_milli, CEILING),
        memory_bytes=min(charge.memory_bytes, CEILING),
        slots=min(charge.slots, CEILING),
        extras=tuple((unit, min(amount, CEILING)) for unit, amount in charge.extras),
    )


def ghost(charge: Charge) -> Device:
    """A stand-in for a device that is booked but no longer on its node."""
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
