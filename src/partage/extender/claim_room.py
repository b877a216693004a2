"""Holds the devices of a claim's allocation in the books, all of them or none."""

from collections.abc import Callable

from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.model.allocation import Grant
from partage.model.device import DeviceType, SliceMode
from partage.model.pod import Pod
from partage.model.quantity import brief
from partage.model.reason import ReasonCode
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import Event, HoldEnded, RoomKept
from partage.wire.claims import share_name


def holds(fact: Pod) -> tuple[str | None, object]:
    """The devices of a claim's fact, to compare them, whatever its key is."""
    return fact.node, fact.record


def grants_of(fact: Pod) -> tuple[Grant, ...]:
    """The devices of a claim's fact."""
    return fact.record.grants if fact.record is not None else ()


def reserved(engine: Engine, fact: Pod, take: Callable[[Event], object]) -> str:
    """Hold a claim's devices, all of them or none; return the reason for a refusal, else an empty text."""
    ledger, node = engine.ledger, fact.node or ""
    index = ledger.index.get(node)
    if index is None:
        return f"node {node} is not known"
    if ledger.shut[index]:
        shut = (one.message for one in ledger.node_at(index).verdicts if not one.protocol)
        return f"node {node}: {next(shut)}"
    take(RoomKept(fact, node, grants_of(fact)))
    if whole(engine, fact):
        return ""
    take(HoldEnded(fact.uid))
    return short(engine, fact)


def whole(engine: Engine, fact: Pod) -> bool:
    """Whether all of a fact's devices are held, no card is overbooked by them, and each card is cut as they need."""
    held, grants = engine.ledger.allocation(fact.uid), grants_of(fact)
    if held is None or held.grants != grants or engine.states.get(fact.uid) is not State.HELD:
        return False
    cards = _cards(engine.ledger, held.node)
    return not engine.ledger.overbooked(fact.uid) and all(
        _takes(cards[grant.minor], grant) for grant in grants if grant.minor in cards
    )


def _takes(card: Card, grant: Grant) -> bool:
    """Whether a card, which has the grant already, is cut as the grant needs."""
    if card.closed is ReasonCode.QUARANTINED or card.device.vendor_cut:
        return False
    if min(card.core_free, card.memory_free) < 0:  # the device is gone
        return False
    mode = SliceMode.SHARE if grant.mig is not None else SliceMode.MIG
    return card.device.mode is not mode


def _cards(ledger: Ledger, node: str) -> dict[int, Card]:
    index = ledger.index.get(node)
    if index is None:
        return {}
    return {one.device.minor: one for one in ledger.cards(DeviceType.GPU, index)}


def short(engine: Engine, fact: Pod) -> str:
    """The requested and the free amounts of each card, in words."""
    cards = _cards(engine.ledger, fact.node or "")
    told = []
    for grant in grants_of(fact):
        card = cards.get(grant.minor)
        if card is None:
            told.append(f"{share_name(grant.minor)} is not there")
            continue
        why = f", {card.closed_detail or card.closed.value}" if card.closed is not None else ""
        if card.closed is None and grant.mig is None and card.slots_free < 1:
            why = f", for no further sharer beside {card.tenants}"
        asked = (
            f"{grant.mig.profile} at {grant.mig.start}"
            if grant.mig is not None
            else f"{grant.core_milli / 10:g}% and {brief(grant.memory_bytes)}"
        )
        told.append(
            f"{share_name(grant.minor)}: {asked} asked, {max(card.core_free, 0) / 10:g}% and "
            f"{brief(max(card.memory_free, 0))} free{why}"
        )
    return f"node {fact.node}: no room for claim {fact.key}: {'; '.join(told)}"
