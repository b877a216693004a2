"""Koordinator's debug documents of a node's devices, exactly as the Koordinator document prints them.

A document lists the total, free and used amounts of a node's devices, as a sum and by card, and the
amounts of each card that each pod holds. Quantities are texts in the form of the pods' annotations.

A document uses the names of one dialect, so that free and used add up. They are those of v1.4
(`kubernetes.io/*`) if the node's Device object uses only these, as on the page, otherwise today's
(`koordinator.sh/*`). The pods' own dialect does not matter, because pods of several dialects and
protocols share the cards.

Like upstream's, the documents show no amounts of an unhealthy card, omit cards without pods from
the used detail, and write an empty map as `{}`. Source: the Koordinator document; docs/sources/koordinator.md 9.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import structs

from partage.extender.books import Books
from partage.inventory.card import Card
from partage.model.allocation import Allocation, Grant, charges_of
from partage.model.device import MILLI, Device, DeviceType
from partage.model.node import Node
from partage.model.quantity import whole_text
from partage.vendors import names
from partage.vendors.base import GrantedCard, PlacedPod, cards_of
from partage.vendors.catalog import koordinator_recorded
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.record import resolve
from partage.wire.routing import KOORDINATOR

_PERCENT: Final = MILLI // 100
_WHOLE: Final = 100
_PIECE: Final = 16
"""The number of nodes to sum before other tasks run."""
_UNNAMED: Final = "-"
"""Stands for a namespace that the caller may not read."""
_OTHERS: Final[Mapping[DeviceType, str]] = {
    DeviceType.RDMA: names.KOORD_RDMA,
    DeviceType.FPGA: names.KOORD_FPGA,
}

_Place = tuple[DeviceType, int]
_Amounts = dict[str, int]
_Details = dict[str, dict[str, _Amounts]]


async def summaries(books: Books, *, names: bool = True) -> dict[str, Any]:
    """The summary of every node with devices, by name, in pieces; without `names` pods have numbers instead."""
    result = {}
    for number, node in enumerate(list(books.engine.ledger.nodes), 1):
        if node is not None and node.devices and node.name in books.engine.ledger.index:
            result[node.name] = _summary(books, node, named=names)
        if not number % _PIECE:
            await asyncio.sleep(0)
    return dict(sorted(result.items()))


def summary(books: Books, name: str, *, names: bool = True) -> dict[str, Any] | None:
    """The summary of one node, as in `summaries`; None if the node is not known."""
    index = books.engine.ledger.index.get(name)
    if index is None:
        return None
    return _summary(books, books.engine.ledger.node_at(index), named=names)


def _summary(books: Books, node: Node, *, named: bool) -> dict[str, Any]:
    ledger = books.engine.ledger
    index = ledger.index[node.name]
    total: _Details = {}
    free: _Details = {}
    used: _Details = {}
    cards: dict[_Place, Card] = {}
    for type_ in DeviceType:
        for card in ledger.cards(type_, index):
            minor = str(card.device.minor)
            cards[type_, card.device.minor] = card
            has = _total(card.device)
            total.setdefault(type_, {})[minor] = has
            free.setdefault(type_, {})[minor] = dict(has)
    pods: dict[str, _Details] = {}
    for number_of, held in enumerate(ledger.on_node(node.name), 1):
        whose = f"{held.namespace}/{held.name}" if named else f"{_UNNAMED}/{number_of}"
        for (type_, number), takes in _taken(books, held, node, cards).items():
            minor = str(number)
            pods.setdefault(type_, {}).setdefault(whose, {})[minor] = takes
            into = used.setdefault(type_, {}).setdefault(minor, {})
            left = free.get(type_, {}).get(minor, {})
            for name, amount in takes.items():
                into[name] = into.get(name, 0) + amount
                if name in left:
                    left[name] = max(0, left[name] - amount)
    old = _is_old(books.cluster_cache.device_document(node.name))
    return {
        "allocateSet": {
            type_: _details(dict(sorted(by_pod.items())), old=old)
            for type_, by_pod in pods.items()
        },
        "deviceFree": _texts(_sum(free), old=old),
        "deviceFreeDetail": _details(free, old=old),
        "deviceTotal": _texts(_sum(total), old=old),
        "deviceTotalDetail": _details(total, old=old),
        "deviceUsed": _texts(_sum(used), old=old),
        "deviceUsedDetail": _details(used, old=old),
    }


def _total(device: Device) -> _Amounts:
    if not device.healthy:
        return {}
    if device.type is not DeviceType.GPU:
        return {_OTHERS[device.type]: device.core_milli // _PERCENT}
    amounts = {
        names.KOORD_GPU_CORE: device.core_milli // _PERCENT,
        names.KOORD_GPU_MEMORY: device.memory_bytes,
        names.KOORD_GPU_MEMORY_RATIO: _WHOLE,
    }
    return amounts | dict(device.extras)


def _taken(
    books: Books, held: Allocation, node: Node, cards: Mapping[_Place, Card]
) -> dict[_Place, _Amounts]:
    """The amounts that a pod holds of each device, by type and minor.

    Like upstream, this adds up Koordinator's record unchanged: 10 percent of a card count as 10, whatever their bytes
    are after rounding. Before the pod is bound, it uses the record to come. If containers of other protocols hold a
    device too, the books' charge counts, because only the larger of an init container and the later ones counts.
    """
    entry = books.cluster_cache.pods.get(held.uid)
    grants, recorded, shared = held.grants, {}, {}
    if entry is not None:
        view = entry.view
        placed = resolve(PlacedPod(view, entry.pod.request, held, node, 0))
        told = {(card.type, card.minor): _granted(card) for card in cards_of(placed)}
        written = koordinator_recorded(view.annotations) if entry.pod.node == node.name else {}
        recorded = {place: dict(written.get(place) or amounts) for place, amounts in told.items()}
        every = placed.allocation.grants
        grants = tuple(g for g in every if g.protocol != KOORDINATOR)
        both = {(g.type, g.minor) for g in grants} & recorded.keys()
        shared = _booked((g for g in every if (g.type, g.minor) in both), cards)
    return dict(sorted((recorded | _booked(grants, cards) | shared).items()))


def _granted(card: GrantedCard) -> _Amounts:
    """The amounts of a device in the record."""
    if card.type is not DeviceType.GPU:
        return {_OTHERS[card.type]: card.core}
    amounts = {
        names.KOORD_GPU_MEMORY: card.memory_bytes,
        names.KOORD_GPU_MEMORY_RATIO: card.ratio,
        **dict(card.extras),
    }
    return {names.KOORD_GPU_CORE: card.core, **amounts} if card.core else amounts


def _booked(grants: Iterable[Grant], cards: Mapping[_Place, Card]) -> dict[_Place, _Amounts]:
    """The amounts that other protocols' grants hold by the books, with their parts of the memory."""
    listed = tuple(grants)
    parts = charges_of(
        structs.replace(grant, memory_bytes=_part(grant, cards.get((grant.type, grant.minor))))
        for grant in listed
    )
    result: dict[_Place, _Amounts] = {}
    for charge, part in zip(charges_of(listed), parts, strict=True):
        place = (charge.type, charge.minor)
        if charge.type is not DeviceType.GPU:
            result[place] = {_OTHERS[charge.type]: charge.core_milli // _PERCENT}
            continue
        result[place] = {
            names.KOORD_GPU_CORE: charge.core_milli // _PERCENT,
            names.KOORD_GPU_MEMORY: charge.memory_bytes,
            names.KOORD_GPU_MEMORY_RATIO: part.memory_bytes,
        } | dict(charge.extras)
    return result


def _part(grant: Grant, card: Card | None) -> int:
    """The grant's percent of the card's memory: the whole percent that gives its bytes, if any, else rounded down."""
    total = card.device.memory_bytes if card else 0
    if not total:
        return 0
    above = -(-grant.memory_bytes * _WHOLE // total)
    exact = above * total // _WHOLE == grant.memory_bytes
    return above if exact else grant.memory_bytes * _WHOLE // total


def _is_old(document: Document | None) -> bool:
    """Whether a Device object uses only the names of v1.4."""
    shape = document.shape if document else None
    if not isinstance(shape, shapes.Device) or shape.spec is None:
        return False
    written = {name for entry in shape.spec.devices or () for name in entry.resources or ()}
    return bool(written) and all(name.startswith(names.KUBERNETES_DOMAIN) for name in written)


def _sum(details: _Details) -> _Amounts:
    total = Counter[str]()
    for amounts in (one for minors in details.values() for one in minors.values()):
        total.update(amounts)
    return dict(total)


def _details(details: _Details, *, old: bool) -> dict[str, dict[str, dict[str, str]]]:
    """The amounts of each minor, by type or by pod, as texts."""
    return {
        key: {minor: _texts(minors[minor], old=old) for minor in sorted(minors, key=int)}
        for key, minors in details.items()
    }


def _texts(amounts: Mapping[str, int], *, old: bool) -> dict[str, str]:
    """Amounts as quantities by name, with the dialect's names, sorted."""
    found = {}
    for name, amount in amounts.items():
        short = name.removeprefix(names.KOORDINATOR_DOMAIN)
        shown = names.KUBERNETES_DOMAIN + short if old and short != name else name
        found[shown] = whole_text(amount, memory=name == names.KOORD_GPU_MEMORY)
    return dict(sorted(found.items()))
