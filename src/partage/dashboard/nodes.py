"""Nodes and their cards as documents: the capacity of each, and its tenants with their sizes and places."""

from collections import Counter
from typing import Any

import msgspec
import numpy as np

from partage.dashboard.catalogue import HELD, plain_model
from partage.dashboard.queries import MOST_COUNTED, MOST_NODES, NodeQuery
from partage.dashboard.view_cache import Standing
from partage.extender.books import Books
from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.inventory.plane import CLOSED, Floats, Index
from partage.model.allocation import Charge
from partage.model.device import DeviceType, SliceMode
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.wire.outcomes import closed_code, device_document, said


async def nodes_document(
    books: Books, query: NodeQuery, standing: Standing | None = None, *, names: bool = True
) -> dict[str, Any]:
    """One page of nodes. `standing`: cache between two looks; None keeps nothing. `names`: whether to name pods."""
    kept = standing or Standing()
    if query.protocol:
        await kept.all(books)
    else:
        await kept.nodes(books)
    ledger = books.engine.ledger
    found = _found(ledger, query, kept)
    counted = query.cards == "no"
    most = min(query.limit, MOST_COUNTED if counted else MOST_NODES)
    page = found[query.offset : query.offset + most]
    return {
        "total": int(found.size),
        "offset": query.offset,
        "nodes": _counted(ledger, page)
        if counted
        else _used(books, page, kept, names=names)
        if query.cards == "used"
        else [_kept(books, ledger.node_at(index), kept, names=names) for index in page.tolist()],
    }


def _found(ledger: Ledger, query: NodeQuery, standing: Standing) -> Index:
    """Indexes of the requested nodes, in order."""
    catalogue = standing.catalogue
    wanted = catalogue.found(query.text.lower()) if query.text else catalogue.known()
    if query.only == "closed":
        wanted &= catalogue.closed(ledger)
    elif query.only:
        used = catalogue.used(ledger)
        wanted &= used if query.only == "used" else ~used & ~catalogue.bare
    if query.vendor or query.model:
        wanted &= catalogue.of_kind(query.vendor, query.model)
    if query.protocol:
        served = standing.holdings.serves(query.protocol)
        wanted[: served.size] &= served[: wanted.size]
        wanted[served.size :] = False
    found = catalogue.order[wanted[catalogue.order]]
    if query.order == "name":
        return found
    parts = _parts_used(ledger)[found]
    return found[np.argsort(-parts if query.order == "used" else parts, kind="stable")]


def _used(
    books: Books, page: Index, standing: Standing, *, names: bool
) -> list[dict[str, Any] | msgspec.Raw]:
    """These nodes with their cards in use or closed; most nodes of a large cluster may have none."""
    ledger = books.engine.ledger
    held = standing.catalogue.used(ledger) | standing.catalogue.closed(ledger)
    bare = [
        index
        for index in page.tolist()
        if not held[index]
        and not any(one.foreign for type_ in DeviceType for one in ledger.devices(type_, index))
    ]
    counted = dict(zip(bare, _counted(ledger, np.array(bare, np.intp)), strict=True))
    return [
        counted[index] | {"cards": []}
        if index in counted
        else _kept(books, ledger.node_at(index), standing, names=names, used=True)
        for index in page.tolist()
    ]


def _kept(
    books: Books, node: Node, standing: Standing, *, names: bool, used: bool = False
) -> dict[str, Any] | msgspec.Raw:
    """A node's document, kept as text until the node changes."""
    if standing.texts is None:
        return _document(books, node, names=names, used=used)
    ledger = books.engine.ledger
    states = tuple(books.engine.states.get(held.uid) for held in ledger.on_node(node.name))
    changed = int(standing.catalogue.latest[ledger.index[node.name]])
    return standing.texts.of(
        (node.name, names, used),
        (changed, states),
        lambda: _document(books, node, names=names, used=used),
    )


def node_document(books: Books, name: str, *, names: bool = True) -> dict[str, Any] | None:
    """One node, with its anomalies; None if unknown."""
    index = books.engine.ledger.index.get(name)
    if index is None:
        return None
    node = books.engine.ledger.node_at(index)
    return {
        **_document(books, node, names=names),
        "labels": dict(node.labels),
        "taints": [str(taint) for taint in node.taints],
        "registrar": node.registrar or None,
        "notes": list(books.cluster_cache.notes.get(name, ())),
        "objections": [
            {"protocol": v.protocol, "code": v.code.value, "message": v.message}
            for v in node.verdicts
        ],
    }


def _cards(books: Books, node: Node) -> list[Card]:
    index = books.engine.ledger.index[node.name]
    return [card for type_ in DeviceType for card in books.engine.ledger.cards(type_, index)]


def _parts_used(ledger: Ledger) -> Floats:
    """By node, the larger used part of compute and memory; 0 without devices."""
    plane = ledger.planes[DeviceType.GPU]
    parts = [
        (total - free).sum(axis=0) / np.maximum(total.sum(axis=0), 1)
        for total, free in (
            (plane.core_total, plane.core_free),
            (plane.memory_total, plane.memory_free),
        )
    ]
    larger: Floats = np.maximum(*parts)
    return larger


def _document(books: Books, node: Node, *, names: bool, used: bool = False) -> dict[str, Any]:
    ledger = books.engine.ledger
    (counted,) = _counted(ledger, np.array([ledger.index[node.name]], np.intp))
    cards = [
        _card(books, node, card, names=names)
        for card in _cards(books, node)
        if not used or card.tenants or card.foreign or closed_code(card)
    ]
    return {**counted, "cards": cards}


def _counted(ledger: Ledger, page: Index) -> list[dict[str, Any]]:
    """These nodes without their cards."""
    plane = ledger.planes[DeviceType.GPU]
    core, core_left, memory, memory_left, _, tenants, slots = (
        plane.amounts[:7, :, page].sum(axis=1).tolist()
    )
    return [
        _head(ledger, index)
        | {
            "core_milli": {"total": core[at], "used": core[at] - core_left[at]},
            "memory_bytes": {"total": memory[at], "used": memory[at] - memory_left[at]},
            "slots": {"total": slots[at], "used": tenants[at]},
        }
        for at, index in enumerate(page.tolist())
    ]


def _head(ledger: Ledger, index: int) -> dict[str, Any]:
    """A node's identity, and whether it takes pods."""
    node = ledger.node_at(index)
    devices = {type_: there for type_ in DeviceType if (there := ledger.devices(type_, index))}
    cards = devices.get(DeviceType.GPU, ())
    models = dict.fromkeys(said(node, one, "model") for one in cards)
    closed = Counter(
        number
        for type_, there in devices.items()
        for number in ledger.planes[type_].closed[: len(there), index].tolist()
        if number and number != HELD
    )
    # Not the pods that ask for 0 of a device; one with a doubtful record counts.
    claimed = [
        one.claim
        for one in ledger.on_node(node.name)
        if one.grants or ledger.suspicion(one.uid) is not None
    ]
    state = [f"{count} {code.value}" for n, count in closed.items() if (code := CLOSED[n])]
    if node.unschedulable:
        state.insert(0, "cordoned")
    return {
        "name": node.name,
        "vendor": said(node, cards[0], "vendor") if cards else "",
        "model": ", ".join(plain_model(one) for one in models if one),
        "state": ", ".join(state) or "ok",
        "pods": claimed.count(False),
        "claims": claimed.count(True),
        "devices": {type_.value: len(there) for type_, there in devices.items()},
    }


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
            _instance(one) | {"pod": holder if names else ""}
            for one, holder in zip(card.instances, card.holders, strict=False)
        ],
        "tenants": [_tenant(books, uid, charge, names=names) for uid, charge in tenants.items()],
    }


def _tenant(books: Books, uid: str, charge: Charge, *, names: bool) -> dict[str, Any]:
    held = books.engine.ledger.allocation(uid)
    state = books.engine.states.get(uid)
    protocols = {g.protocol for g in held.grants if g.uuid == charge.uuid} if held else set()
    return {
        "namespace": held.namespace if held and names else None,
        "name": held.name if held and names else None,
        "protocols": sorted(protocols),
        "state": state.value if state else "bound",
        "core_milli": charge.core_milli,
        "memory_bytes": charge.memory_bytes,
        "slots": charge.slots,
        "whole": charge.exclusive,
        "mig": [_instance(one) for one in charge.instances],
    }


def _instance(one: MigSlice) -> dict[str, Any]:
    return {"profile": one.profile, "start": one.start, "size": one.size}
