"""Decides a bound pod's wish for other amounts of its shares: the new record, or why there is none.

The record contains the reserved amounts. So an increase is reserved first and recorded then. A decrease is recorded
only as far as the node has reported that it enforces no more.

Source: docs/decisions/0028.
"""

from collections.abc import Sequence
from typing import Final

from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.model.adjustment import Grants, least, most, within
from partage.model.allocation import Grant, GrantMode, charges_of
from partage.model.device import MILLI, DeviceType
from partage.model.request import PodRequest

_MIB: Final = 2**20


def recorded(held: Grants, wanted: Grants, report: Grants | None) -> Grants:
    """The new amounts of the record: increases as asked, decreases as far as the node's report allows.

    Args:
        held: the recorded grants.
        wanted: the grants asked, of the same places.
        report: the most that the node enforces; None before its first report, and then nothing is released.
    """
    enforced = report if report is not None and within(report, held) else held
    return most(wanted, least(held, enforced))


def more(held: Grants, wanted: Grants) -> Grants:
    """What must be reserved beyond the allocation: one grant of each card, which is no further sharer of it."""
    before = {(one.type, one.uuid): one for one in charges_of(held)}
    found = []
    for charge in charges_of(wanted):
        known = before.get((charge.type, charge.uuid), charge)
        core = max(charge.core_milli - known.core_milli, 0)
        memory = max(charge.memory_bytes - known.memory_bytes, 0)
        if core or memory:
            card = charge.type, charge.minor, charge.uuid
            found.append(Grant("", *card, core, memory, GrantMode.SHARE, slots=0))
    return tuple(found)


def beyond_request(
    ledger: Ledger, node: str, request: PodRequest, wanted: Sequence[Grant]
) -> bool:
    """Whether a container would get more of its cards than its pod's request says."""
    index = ledger.index.get(node)
    cards = ledger.cards(DeviceType.GPU, index) if index is not None else []
    sizes = {one.device.uuid: one.device.memory_bytes for one in cards}
    for group in request.groups:
        asked = group.request
        if asked.type is not DeviceType.GPU or asked.whole:
            continue
        for container in group.containers:
            mine = [one for one in wanted if one.container == container.name]
            core = container.core_milli or asked.core_milli * len(mine)
            memory = container.memory_bytes or asked.memory_bytes * len(mine)
            if not memory:
                parts = container.memory_milli or asked.memory_milli * len(mine)
                full = sum(sizes.get(one.uuid, 0) for one in mine)
                # A share is rounded up on each card.
                memory = -(-full * parts // (MILLI * max(1, len(mine)))) + _MIB * len(mine)
            if sum(one.core_milli for one in mine) > core:
                return True
            if sum(one.memory_bytes for one in mine) > memory:
                return True
    return False


def short(ledger: Ledger, node: str, extra: Sequence[Grant]) -> str:
    """The amounts that a node's cards lack for the increase, in words; empty if they lack nothing."""
    index = ledger.index.get(node)
    if index is None:
        return f"node {node} is not known"
    cards: dict[str, Card] = {one.device.uuid: one for one in ledger.cards(DeviceType.GPU, index)}
    told = []
    for one in extra:
        card = cards.get(one.uuid)
        if card is None:
            told.append(f"card {one.minor} is not there")
        elif card.closed is not None:
            told.append(
                f"card {one.minor} takes nothing more: {card.closed_detail or card.closed.value}"
            )
        elif card.core_free < one.core_milli or card.memory_free < one.memory_bytes:
            told.append(
                f"card {one.minor}: {one.core_milli / 10:g} % and {one.memory_bytes >> 20} MiB more asked, "
                f"{max(card.core_free, 0) / 10:g} % and {max(card.memory_free, 0) >> 20} MiB free"
            )
    return "; ".join(told)
