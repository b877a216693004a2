"""Withdraws the devices that pods hold by their records from the offer of a node's ResourceSlices. Pure.

Kubernetes' allocator counts claims only. A card's offer is therefore the part that no pod holds as share or instance
by its record, and nothing if a pod holds all of it. This view may lag until a slice reaches the scheduler,
and it is no promise: the ledger and the agent ensure that no card is allocated twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from partage.model.allocation import Allocation, Charge, charges_of, together
from partage.model.device import MILLI, Device, DeviceType, ForeignInstance, SliceMode
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.reason import ReasonCode
from partage.wire.documents import Document
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


def held_by_pods(pods: Iterable[Document], node: Node, translation: Translation) -> Held | None:
    """The devices of a node that its bound pods hold until their containers have ended, as in the service's ledger.

    None if a record cannot be trusted: then no card is known to be free.
    """
    found, unknown = [], {}
    for document in pods:
        entry: PodEntry | None
        try:
            if not translation.concerns(document):
                continue
            entry = translation.read(document, nodes=lambda _: node)
        except InvalidDocument:
            entry = translation.by_record(document, 0)
        if entry is None or entry.pod.node != node.name or entry.pod.finished:
            continue
        pod, record = entry.pod, entry.pod.record
        if record is not None and record.problem:
            return None
        if record is not None:
            found.append(Allocation(pod.uid, pod.namespace, pod.name, node.name, record.grants))
        elif pod.request.may_use:
            unknown[pod.uid] = pod
    return Held(found, unknown)


def without_unknown(node: Node, held: Iterable[Allocation], unknown: Mapping[str, Pod]) -> Node:
    """The node with the cards closed that the service closes, because it is unknown which of them pods use.

    `held`: by pods and by claims. `unknown`: see `Held`.
    """
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


def left_for_claims(node: Node, held: Iterable[Allocation] | None) -> Node:
    """The node as claims may use it.

    `held`: the allocations of its pods' records, None if they are unknown; without claims, as the allocator counts
    those itself.
    """
    if held is None:
        return replace(node, devices=tuple(map(_closed, node.devices)))
    charges: dict[int, Charge] = {}
    for allocation in held:
        for charge in charges_of(allocation.grants):
            card = _card(node, charge)
            if card is not None:
                known = charges.get(card.minor)
                charges[card.minor] = charge if known is None else together(known, charge)
    if not charges:
        return node
    devices = tuple(
        _left(one, charges[one.minor])
        if one.type is DeviceType.GPU and one.minor in charges
        else one
        for one in node.devices
    )
    return replace(node, devices=devices)


def _card(node: Node, charge: Charge) -> Device | None:
    """The card of a charge: by UUID, or by number if the record has no UUID."""
    if charge.type is not DeviceType.GPU:
        return None
    for one in node.devices:
        if one.type is DeviceType.GPU and (
            one.uuid == charge.uuid if charge.uuid else one.minor == charge.minor
        ):
            return one
    return None


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
