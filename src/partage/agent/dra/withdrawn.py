"""Withdraws the devices that pods hold by their records from the offer of a node's ResourceSlices. Pure.

Kubernetes' allocator counts claims only. A card's offer is therefore the part that no pod holds as share or instance
by its record, and nothing if a pod holds all of it. This view may lag until a slice reaches the scheduler,
and it is no promise: the ledger and the agent ensure that no card is allocated twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from partage.model.allocation import Allocation, Charge, charges_of, together
from partage.model.device import MILLI, Device, DeviceType, ForeignInstance, SliceMode
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.reason import ReasonCode
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.shapes import Shape
from partage.wire.translation import PodEntry, Translation

HELD: Final = "held-by-pods"
"""Why a claim gets nothing of a card, as the value of its taint."""
_LEAST: Final = MILLI // 100
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Held:
    """The devices of a node that pods hold.

    Attributes:
        allocations: by their records, ours or those of the scheduler that placed them.
        unknown: of pods that request devices and have no record, by UID.
    """

    allocations: list[Allocation]
    unknown: Mapping[str, Pod]


class BoundPods:
    """Reads a node's bound pods, each again only after a change of it, of the node or of the settings."""

    def __init__(self, translation: Translation) -> None:
        """No pod is read yet; `translation` may get another context at any time."""
        self._translation = translation
        self._read_for: tuple[Node, Context] | None = None
        self._known: dict[int, tuple[Shape, Allocation | Pod | None]] = {}

    def held(self, pods: Iterable[Document], node: Node) -> Held | None:
        """The devices of a node that its bound pods hold until their containers have ended, as in the service's ledger.

        None if a record cannot be trusted: then no card is known to be free. An unchanged pod has the same shape, and
        gives the same allocation, as the time before.
        """
        before, read_for = self._known, (node, self._translation.context)
        if read_for != self._read_for:
            self._read_for, before = read_for, {}
        self._known = {
            id(one.shape): before.get(id(one.shape)) or (one.shape, self._part(one, node))
            for one in pods
        }
        parts = [part for _, part in self._known.values()]
        pending = {one.uid: one for one in parts if isinstance(one, Pod)}
        if any(one.record is not None for one in pending.values()):
            return None
        return Held([one for one in parts if isinstance(one, Allocation)], pending)

    def _part(self, document: Document, node: Node) -> Allocation | Pod | None:
        """What a pod holds by its record; the pod itself if it holds something unknown, without a record or by a bad one."""
        entry: PodEntry | None
        try:
            if not self._translation.concerns(document):
                return None
            entry = self._translation.read(document, nodes=lambda _: node)
        except InvalidDocument:
            entry = self._translation.by_record(document, 0)
        if entry is None or entry.pod.node != node.name or entry.pod.finished:
            return None
        pod, record = entry.pod, entry.pod.record
        if record is not None and not record.problem:
            return Allocation(pod.uid, pod.namespace, pod.name, node.name, record.grants)
        return pod if record is not None or pod.request.may_use else None


def without_unknown(node: Node, held: Iterable[Allocation], unknown: Mapping[str, Pod]) -> Node:
    """The node without the cards that the service closes, because it does not know which of them `unknown` pods use."""
    if not unknown:
        return node
    from partage.scheduler.facts import rebuild  # noqa: PLC0415 # with NumPy, and seldom needed

    ledger = rebuild([node], unknown.values())
    for allocation in held:
        ledger.apply(allocation)
    cards = ledger.cards(DeviceType.GPU, 0)
    closed = {one.device.minor for one in cards if one.closed is ReasonCode.QUARANTINED}
    devices = (
        _closed(one) if one.type is DeviceType.GPU and one.minor in closed else one
        for one in node.devices
    )
    return replace(node, devices=tuple(devices))


class Charges:
    """Sums of allocations by card; a sum is made again only if the card's allocations are others than the time before."""

    def __init__(self) -> None:
        self._cards: dict[str | int, int] = {}
        self._held: dict[int, Allocation] = {}
        self._on: dict[int, dict[int, Charge]] = {}
        self._sums: dict[int, Charge] = {}

    def of(self, node: Node, held: Iterable[Allocation]) -> Mapping[int, Charge]:
        """What is held of each card, by its number, without cards of which nothing is. An unchanged allocation is the same object."""
        gpus = [one for one in reversed(node.devices) if one.type is DeviceType.GPU]
        cards = {key: one.minor for one in gpus for key in (one.uuid, one.minor)}
        if cards != self._cards:
            self._cards, self._held, self._on, self._sums = cards, {}, {}, {}
        now = {id(one): one for one in held}
        changed: set[int] = set()
        for key in self._held.keys() - now.keys():
            changed |= {minor for minor, on in self._on.items() if on.pop(key, None) is not None}
        for key in now.keys() - self._held.keys():
            for charge in charges_of(now[key].grants):
                # By UUID, or by number if the record has no UUID.
                minor = cards.get(charge.uuid or charge.minor)
                if charge.type is DeviceType.GPU and minor is not None:
                    on = self._on.setdefault(minor, {})
                    on[key] = together(on[key], charge) if key in on else charge
                    changed.add(minor)
        for minor in changed:
            self._sums.pop(minor, None)
            if charges := self._on[minor].values():
                self._sums[minor] = reduce(together, charges)
        self._held = now
        return self._sums


def left_for_claims(
    node: Node, held: Iterable[Allocation] | None, charges: Charges | None = None
) -> Node:
    """The node as claims may use it.

    `held`: the allocations of its pods' records, None if they are unknown; without claims, as the allocator counts
    those itself. `charges`: those of the last call for the same holders, which save sums.
    """
    if held is None:
        return replace(node, devices=tuple(map(_closed, node.devices)))
    sums = (charges or Charges()).of(node, held)
    if not sums:
        return node
    devices = tuple(
        _left(one, sums[one.minor]) if one.type is DeviceType.GPU and one.minor in sums else one
        for one in node.devices
    )
    return replace(node, devices=devices)


def _left(card: Device, charge: Charge) -> Device:
    if charge.exclusive or charge.fence is not None:
        return _closed(card)
    if charge.instances:
        if charge.slots > len(charge.instances) or card.mode is SliceMode.SHARE:
            return _closed(card)  # shares and instances at once: the rest is unknown
        there = {one.instance for one in card.foreign}
        mine = tuple(ForeignInstance(one) for one in charge.instances if one not in there)
        return replace(card, mode=SliceMode.MIG, foreign=(*card.foreign, *mine))
    if card.mode is SliceMode.MIG:
        return _closed(card)
    core = card.core_milli - charge.core_milli
    memory = card.memory_bytes - charge.memory_bytes
    most = card.slots if charge.sharers is None else min(card.slots, charge.sharers)
    slots = most - charge.slots
    if core < _LEAST or memory < _MIB or slots < 1:
        return _closed(card)
    # A card with shares allows no instances; without its counters it still accepts further shares.
    return replace(
        card, mode=SliceMode.SHARE, cutting=None, core_milli=core, memory_bytes=memory, slots=slots
    )


def _closed(card: Device) -> Device:
    """The card accepts no pod, and keeps its name and amounts, so its holder stays known."""
    return replace(card, doubt=card.doubt or HELD)
