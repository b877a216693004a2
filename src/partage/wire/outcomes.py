"""The outcome for a pod, as plain values ready for JSON: grants, refusals, devices.

One shape for `partage schedule`, for the explanations of the service and for the dashboard. Keys
may be added, and none changes its meaning.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.quantity import brief
from partage.model.reason import NodeReason, ReasonCode, Refusal

if TYPE_CHECKING:  # the ledger's columns load slowly, and a node's agent has none
    from partage.inventory.card import Card


def grant_document(grant: Grant, node: str) -> dict[str, Any]:
    """One container's part of one device."""
    return {
        "container": grant.container,
        "init": grant.phase == "init",
        "type": grant.type.value,
        "node": node,
        "uuid": grant.uuid,
        "minor": grant.minor,
        "core_milli": grant.core_milli,
        "memory_bytes": grant.memory_bytes,
        "mode": grant.mode.value,
        "mig": asdict(grant.mig) if grant.mig else None,
        "vf": dict(zip(("minor", "busID"), grant.function, strict=True))
        if grant.function
        else None,
    }


def grant_text(grant: Grant) -> str:
    """One container's part of one device in a few words, for people."""
    if grant.mode is GrantMode.WHOLE and grant.type is DeviceType.GPU:
        return f"whole card ({brief(grant.memory_bytes)})"
    if grant.mig is not None:
        return f"{grant.mig.profile} at {grant.mig.start} ({brief(grant.memory_bytes)})"
    percent = f"{grant.core_milli / 10:g}%"
    if grant.type is not DeviceType.GPU:
        suffix = f" VF {grant.function[1]}" if grant.function else ""
        return f"{grant.type.value} {percent}{suffix}"
    template = f" {grant.template}" if grant.template else ""
    if not grant.core_milli:
        return f"{brief(grant.memory_bytes)}, no core limit{template}"
    return f"{percent} + {brief(grant.memory_bytes)}{template}"


def cards_text(grants: Iterable[Grant]) -> str:
    """The devices by type and number: `gpu 0,1  rdma 0`."""
    found: dict[str, list[str]] = {}
    for grant in grants:
        minors = found.setdefault(grant.type.value, [])
        if str(grant.minor) not in minors:
            minors.append(str(grant.minor))
    return "  ".join(f"{type_} {','.join(minors)}" for type_, minors in found.items())


def given_text(grants: Iterable[Grant]) -> str:
    """The devices of each container, for people; containers are named if there are several."""
    by_container: dict[str, Counter[str]] = {}
    for grant in grants:
        name = f"{grant.container} (init)" if grant.phase == "init" else grant.container
        by_container.setdefault(name, Counter())[grant_text(grant)] += 1
    parts = []
    for name, counts in by_container.items():
        amounts = ", ".join(f"{n} x {a}" if n > 1 else a for a, n in counts.items())
        parts.append(amounts if len(by_container) == 1 else f"{name}: {amounts}")
    return "; ".join(parts)


def refusal_document(refusal: Refusal) -> dict[str, Any]:
    """A pod's refusal: code, line, and the nodes and cards behind it."""
    return {
        "code": refusal.code.value,
        "message": refusal.message,
        "nodes": {name: _node_reason(reason) for name, reason in refusal.nodes.items()},
        "counts": {code.value: count for code, count in refusal.counts.items()},
    }


def device_document(node: Node, card: "Card", allocations: list[Allocation]) -> dict[str, Any]:
    """A device with its amounts and the used part of them."""
    device = card.device
    mig = [
        {**asdict(g.mig), "pod": allocation.holder}
        for allocation in allocations
        for g in allocation.grants
        if g.mig is not None and g.uuid == device.uuid
    ]
    return {
        "type": device.type.value,
        "minor": device.minor,
        "uuid": device.uuid,
        "vendor": said(node, device, "vendor"),
        "model": said(node, device, "model"),
        "healthy": device.healthy,
        "core_milli": _amounts(device.core_milli, device.core_milli - card.core_free),
        "memory_bytes": _amounts(device.memory_bytes, device.memory_bytes - card.memory_free),
        "slots": _amounts(device.slots, card.tenants),
        "mig": mig,
        "foreign": [asdict(one) for one in card.foreign],
        "closed": closed_code(card),
    }


def said(node: Node, device: Device, fact: str) -> str:
    """The device's `vendor` or `model`, or for a card the value of its node for all cards."""
    own: str = getattr(device, fact)
    return own or (node.properties.get(fact, "") if device.type is DeviceType.GPU else "")


def closed_code(card: "Card") -> str | None:
    """The code of a fault or an operator's order that closes a card to pods; a full card has none."""
    closed = card.closed
    return None if closed is None or closed is ReasonCode.CARD_NOT_IDLE else closed.value


def _node_reason(reason: NodeReason) -> dict[str, Any]:
    return {
        "code": reason.code.value,
        "message": reason.message,
        "cards": [
            {"minor": card.minor, **asdict(card), "code": card.code.value} for card in reason.cards
        ],
    }


def _amounts(total: int, used: int) -> dict[str, int]:
    return {"total": total, "used": used}
