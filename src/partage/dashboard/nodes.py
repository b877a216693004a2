"""Nodes and their cards as documents: what each has, and who is on it at which size and place."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from partage.extender.books import Books
from partage.inventory.ledger import Card, Ledger
from partage.model.allocation import Charge
from partage.model.device import DeviceType, SliceMode
from partage.model.node import Node
from partage.wire.outcomes import closed_code, device_document, said

__all__ = ["MOST", "NodeQuery", "node_document", "nodes_document"]

MOST: Final = 200
"""Nodes of one page at most."""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """Which nodes are wanted, and in what order.

    Attributes:
        text: part of the node's name or of its cards' model, in any case.
        only: `used` (some pod holds a device), `free` (nobody does), `closed` (a card is closed
            or the node is cordoned), or empty for all.
        order: `name`, `used` (most compute or memory first), or `free`.
        offset: how many to leave out first.
        limit: how many at most.
    """

    text: str = ""
    only: str = ""
    order: str = "name"
    offset: int = 0
    limit: int = 24


def nodes_document(books: Books, query: NodeQuery, *, names: bool = True) -> dict[str, Any]:
    """One page of nodes.

    Args:
        books: what is known.
        query: which page.
        names: whether pods are named.
    """
    ledger = books.engine.ledger
    found = [n for n in ledger.nodes if n is not None and _wanted(books, n, query)]
    if query.order == "name":
        found.sort(key=lambda node: node.name)
    else:
        parts = _parts_used(ledger)
        sign = -1 if query.order == "used" else 1
        found.sort(key=lambda node: (sign * parts[ledger.index[node.name]], node.name))
    page = found[query.offset : query.offset + min(query.limit, MOST)]
    return {
        "total": len(found),
        "offset": query.offset,
        "nodes": [_document(books, node, names=names) for node in page],
    }


def node_document(books: Books, name: str, *, names: bool = True) -> dict[str, Any] | None:
    """One node, with what is odd about it; None where it is not known."""
    index = books.engine.ledger.index.get(name)
    if index is None:
        return None
    node = books.engine.ledger.node_at(index)
    return {
        **_document(books, node, names=names),
        "labels": dict(node.labels),
        "taints": [str(taint) for taint in node.taints],
        "registrar": node.registrar or None,
        "notes": list(books.intake.notes.get(name, ())),
        "objections": [
            {"protocol": v.protocol, "code": v.code.value, "message": v.message}
            for v in node.verdicts
        ],
    }


def _wanted(books: Books, node: Node, query: NodeQuery) -> bool:
    if query.text:
        text = query.text.lower()
        models = {said(node, device, "model") for device in node.devices[:1]}
        if text not in node.name.lower() and not any(text in m.lower() for m in models):
            return False
    if query.only in ("used", "free"):
        used = next(books.engine.ledger.on_node(node.name), None) is not None
        return bool(node.devices) and used == (query.only == "used")
    if query.only == "closed":
        return node.unschedulable or any(closed_code(card) for card in _cards(books, node))
    return True


def _cards(books: Books, node: Node) -> list[Card]:
    index = books.engine.ledger.index[node.name]
    return [card for type_ in DeviceType for card in books.engine.ledger.cards(type_, index)]


def _parts_used(ledger: Ledger) -> list[float]:
    """By node, the larger part used of compute and of memory; 0 for one without devices."""
    plane = ledger.planes[DeviceType.GPU]
    parts = [
        (total - free).sum(axis=0) / np.maximum(total.sum(axis=0), 1)
        for total, free in (
            (plane.core_total, plane.core_free), (plane.memory_total, plane.memory_free),
        )
    ]  # fmt: skip
    return [float(part) for part in np.maximum(*parts)]


def _document(books: Books, node: Node, *, names: bool) -> dict[str, Any]:
    ledger = books.engine.ledger
    held = list(ledger.on_node(node.name))
    cards = _cards(books, node)
    closed = Counter(code for card in cards if (code := closed_code(card)))
    documents = [_card(books, node, card, names=names) for card in cards]
    gpus = [one for one in documents if one["type"] == DeviceType.GPU]
    state = [f"{count} {code}" for code, count in closed.items()]
    if node.unschedulable:
        state.insert(0, "cordoned")
    return {
        "name": node.name,
        "vendor": gpus[0]["vendor"] if gpus else "",
        "model": gpus[0]["model"] if gpus else "",
        "state": ", ".join(state) or "ok",
        "pods": len(held),
        **{key: _sum(gpus, key) for key in ("core_milli", "memory_bytes", "slots")},
        "cards": documents,
    }


def _sum(cards: list[dict[str, Any]], key: str) -> dict[str, int]:
    return {part: sum(card[key][part] for card in cards) for part in ("total", "used")}


def _card(books: Books, node: Node, card: Card, *, names: bool) -> dict[str, Any]:
    ledger, device = books.engine.ledger, card.device
    document = device_document(node, card, [])
    tenants = ledger.tenants(device.type, ledger.index[node.name], card.row)
    cut = device.mode is SliceMode.MIG or bool(card.occupied)
    return document | {
        "closed_detail": card.closed_detail,
        "mode": device.mode.value,
        "axis": device.cutting.axis.length if device.cutting and cut else None,
        "mig": [
            {"profile": one.profile, "start": one.start, "size": one.size,
             "pod": holder if names else ""}
            for one, holder in zip(card.instances, card.holders, strict=False)
        ],
        "tenants": [_tenant(books, uid, charge, names=names) for uid, charge in tenants.items()],
    }  # fmt: skip


def _tenant(books: Books, uid: str, charge: Charge, *, names: bool) -> dict[str, Any]:
    held = books.engine.ledger.allocation(uid)
    state = books.engine.states.get(uid)
    protocols = {g.protocol for g in held.grants if g.uuid == charge.uuid} if held else set()
    return {
        "namespace": held.namespace if held and names else None,
        "name": held.name if held and names else None,
        "protocol": next(iter(sorted(protocols)), ""),
        "state": state.value if state else "bound",
        "core_milli": charge.core_milli,
        "memory_bytes": charge.memory_bytes,
        "slots": charge.slots,
        "whole": charge.exclusive,
        "mig": [
            {"profile": one.profile, "start": one.start, "size": one.size}
            for one in charge.instances
        ],
    }
