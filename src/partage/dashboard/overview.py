"""The whole cluster on one page: capacity, use, users, and the reasons that pods wait.

Sums over cards come from the ledger's columns, sums over pods from kept figures (`view_cache`). The page is made
in pieces between which the event loop serves others. Sums are of one state only if no change happens in between,
which is good enough for a page that renews itself.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

import numpy as np

from partage.dashboard.catalogue import HELD, Catalogue
from partage.dashboard.roster import Roster, Turn
from partage.dashboard.view_cache import Standing
from partage.dashboard.workloads import claimant_document
from partage.extender.books import Books
from partage.extender.explain import unscheduled
from partage.inventory.ledger import Ledger
from partage.inventory.plane import CLOSED, Bools, Plane
from partage.model.device import DeviceType
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.outcomes import closed_code

_PIECE: Final = 1024
"""Pods summed before other tasks run."""
_EXAMPLES: Final = 20
"""Most listed waiting pods, closed cards and pods with doubtful records."""
_NAMESPACES: Final = 500
"""Most listed namespaces."""
_PROBLEMS: Final = 100
"""Most listed objects that could not be read; authors of pods may make many."""


async def overview_document(
    books: Books, standing: Standing | None = None, *, names: bool = True
) -> dict[str, Any]:
    """The overview.

    `standing`: cache between two looks; None keeps nothing. `names`: whether to name waiting pods, and objects of
    namespaces that could not be read.
    """
    kept = standing or Standing()
    await kept.all(books)
    waiting = await _waiting(books, kept.roster)
    claimants = await _first_claimants(books) if names else []
    by_claims = books.cluster_cache.claimants
    wait_by_claims = by_claims.count()
    waiting[""] += wait_by_claims
    fragmentation = await kept.fragments.of(books.engine.ledger, kept.roster.shapes)
    await kept.nodes(books)  # from here on no other task runs
    ledger, catalogue = books.engine.ledger, kept.catalogue
    plane = ledger.planes[DeviceType.GPU]
    total = int(catalogue.order.size)
    return {
        "policy": str(books.engine.policy),
        "nodes": {
            "total": total,
            "with_devices": total - int(catalogue.bare.sum()),
            "used": int(((plane.tenants > 0) & (catalogue.models >= 0)).any(axis=0).sum()),
            "cordoned": int(catalogue.cordoned.sum()),
        },
        **sums(plane, catalogue.models >= 0),
        "fragmentation": fragmentation,
        "models": _models(plane, catalogue),
        "protocols": kept.holdings.document(),
        "pods": {
            "placed": len(kept.roster.placed) + by_claims.count(placed=True),
            "waiting": len(kept.roster.waiting) + wait_by_claims,
            "waiting_by_claims": wait_by_claims,
        },
        "waiting_by_code": [{"code": code, "pods": n} for code, n in waiting.most_common() if n],
        "waiting": _first(books, kept.roster, claimants) if names else [],
        "namespaces": sorted(kept.roster.namespaces)[:_NAMESPACES] if names else [],
        "attention": _attention(books, catalogue, names=names),
        "problems": _problems(books, names=names),
    }


def _attention(books: Books, catalogue: Catalogue, *, names: bool) -> dict[str, Any]:
    """Items for an operator: cards and nodes that take no pod, doubtful records."""
    ledger = books.engine.ledger
    codes, some = _closed(ledger, catalogue)
    cards = (
        {
            "node": ledger.node_at(index).name,
            "type": type_.value,
            "minor": card.device.minor,
            "code": code,
            "detail": card.closed_detail,
        }
        for index in catalogue.order[some[catalogue.order]][:_EXAMPLES].tolist()
        for type_ in sorted(ledger.planes)
        for card in ledger.cards(type_, index)
        if (code := closed_code(card))
    )
    cordoned = catalogue.order[catalogue.cordoned[catalogue.order]].tolist()
    doubted = sorted(ledger.suspicions().items())
    held = [(ledger.allocation(uid), why) for uid, why in doubted[:_EXAMPLES]]
    return {
        "closed": codes.total(),
        "closed_by_code": [{"code": code, "cards": n} for code, n in codes.most_common()],
        "cards": list(islice(cards, _EXAMPLES)),
        "cordoned": [ledger.node_at(index).name for index in cordoned[:_EXAMPLES]],
        "doubted": len(doubted),
        "doubts": [
            {
                "namespace": pod.namespace if pod and names else None,
                "name": pod.name if pod and names else None,
                "message": why.message if names else "",
            }
            for pod, why in held
        ],
    }


def _closed(ledger: Ledger, catalogue: Catalogue) -> tuple[Counter[str], Bools]:
    """The numbers of closed cards by reason, and which nodes have some; a fault may close all cards of a fleet."""
    codes: Counter[str] = Counter()
    known = catalogue.known()
    some = np.zeros_like(known)
    for plane in ledger.planes.values():
        there = known[: plane.closed.shape[1]]
        shut = (plane.closed > 0) & (plane.closed != HELD) & (plane.kind > 0) & there
        some[: there.size] |= shut.any(axis=0)
        numbers, cards = np.unique(plane.closed[shut], return_counts=True)
        for number, count in zip(numbers.tolist(), cards.tolist(), strict=True):
            if code := CLOSED[number]:
                codes[code.value] += count
    return codes, some


def _models(plane: Plane, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Sums by vendor and model, for those with a card."""
    found = []
    for number, (vendor, model) in sorted(enumerate(catalogue.kinds), key=lambda one: one[1]):
        which = catalogue.models == number
        if which.any():
            found.append({"vendor": vendor, "model": model, **sums(plane, which)})
    return found


def sums(plane: Plane, which: Bools) -> dict[str, Any]:
    """Amounts of those cards (cards, nodes): numbers by use, compute, memory and slots."""
    used = plane.tenants > 0
    whole = ~plane.open & (plane.closed == HELD)
    closed = ~plane.open & ~whole
    shared = used & ~whole & ~closed
    kinds = {"idle": ~used & ~closed, "shared": shared, "whole": whole, "closed": closed}
    return {
        "cards": {
            "total": int(which.sum()),
            **{name: int((part & which).sum()) for name, part in kinds.items()},
        },
        **{
            name: {"total": int(total[which].sum()), "used": int((total - free)[which].sum())}
            for name, total, free in (
                ("core_milli", plane.core_total, plane.core_free),
                ("memory_bytes", plane.memory_total, plane.memory_free),
            )
        },
        "slots": {
            "total": int(plane.slots_total[which].sum()),
            "used": int(plane.tenants[which].sum()),
        },
    }


async def _waiting(books: Books, roster: Roster) -> Counter[str]:
    """Numbers of waiting pods by reason; an empty reason for pods never refused."""
    codes: Counter[str] = Counter()
    for number, (_namespace, _name, uid) in enumerate(list(roster.waiting), 1):
        waiting = books.waiting.get(uid)
        codes[waiting.refusal.code.value if waiting else ""] += 1
        if not number % _PIECE:
            await asyncio.sleep(0)
    return codes


async def _first_claimants(books: Books) -> list[dict[str, Any]]:
    """The first in line of pods that wait by ResourceClaims alone."""
    first: list[tuple[Turn, Document]] = []
    waiting = list(books.cluster_cache.claimants.pods())
    for start in range(0, len(waiting), _PIECE):
        piece = ((_turn(one), one) for one in waiting[start : start + _PIECE])
        first = nsmallest(_EXAMPLES, (*first, *piece), key=lambda one: one[0])
        await asyncio.sleep(0)
    return [claimant_document(books, one) for _, one in first]


def _turn(claimant: Document) -> Turn:
    """A pod's place in line."""
    spec = claimant.shape.spec if isinstance(claimant.shape, shapes.Pod) else None
    priority = (spec.priority or 0) if spec else 0
    metadata = claimant.metadata
    born = metadata.creation_timestamp or ""
    return -priority, born, claimant.namespace, claimant.name, metadata.uid or ""


def _problems(books: Books, *, names: bool) -> dict[str, str]:
    """Objects that could not be read, nodes first, so that no author of others hides them."""
    found = books.cluster_cache.problems.items()
    seen = (one for one in found if names or _of_a_node(one[0]))
    return dict(nsmallest(_PROBLEMS, seen, key=lambda one: (not _of_a_node(one[0]), one)))


def _of_a_node(label: str) -> bool:
    return label.startswith("Node ")


def _first(
    books: Books, roster: Roster, claimants: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The first pods in line, and their reasons."""
    found = []
    by_claims = {one["uid"]: one for one in claimants}
    turns = (
        (-one["priority"], one["created"] or "", one["namespace"], one["name"], one["uid"])
        for one in by_claims.values()
    )
    for _, _, namespace, name, uid in sorted((*roster.turns[:_EXAMPLES], *turns))[:_EXAMPLES]:
        if uid in by_claims:
            keys = ("namespace", "name", "code", "message", "created")
            found.append({key: by_claims[uid][key] for key in keys})
            continue
        waiting = books.waiting.get(uid)
        found.append(
            {
                "namespace": namespace,
                "name": name,
                "code": waiting.refusal.code.value if waiting else None,
                "message": waiting.refusal.message if waiting else unscheduled(books, uid) or None,
                "created": books.cluster_cache.born(uid),
            }
        )
    return found
