"""Pods that concern devices as documents: the allocations of each, and the reasons of those that wait."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from partage.dashboard.catalogue import natural
from partage.dashboard.queries import MOST_PODS, PodQuery
from partage.dashboard.roster import Key, Roster, merged
from partage.dashboard.view_cache import Standing
from partage.extender.books import Books
from partage.extender.explain import said_of, unscheduled
from partage.extender.preemption import born_at
from partage.model.allocation import CLAIM, Allocation
from partage.model.device import DeviceType
from partage.model.reason import Refusal
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.outcomes import given_text, grant_document
from partage.wire.translation import PodEntry

_PIECE: Final = 256
"""Pods sorted before other tasks run."""
_MOST_CLAIMANTS: Final = 1000
"""Most pods of one answer that ask by claims alone."""


async def pods_document(
    books: Books, query: PodQuery, standing: Standing | None = None
) -> dict[str, Any]:
    """One page of pods; `standing` is the cache between two looks, None keeps nothing."""
    kept = standing or Standing()
    await kept.pods(books)
    found = await _found(books, query, kept.roster)
    claimants = await _claimants(books, query)
    mine = sorted(claimants)
    if mine and query.order == "name":
        found = sorted((*found, *mine), reverse=bool(query.reverse))
    else:
        found = (*found, *mine)
    page = found[query.offset : query.offset + min(query.limit, MOST_PODS)]
    pods: list[dict[str, Any] | msgspec.Raw] = []
    for key in page:
        entry = books.cluster_cache.pods.get(key[2])
        if entry is not None:
            pods.append(_kept(books, entry, kept))
        elif key in claimants:
            pods.append(claimant_document(books, claimants[key]))
    return {"total": len(found), "offset": query.offset, "pods": pods}


async def _claimants(books: Books, query: PodQuery) -> dict[Key, Document]:
    """Requested pods that ask by claims alone; the latest of very many are left out."""
    found: dict[Key, Document] = {}
    if query.code or query.protocol not in ("", CLAIM):
        return found
    text, known = query.text.lower(), books.cluster_cache.claimants
    waiting = known.pods(query.namespace) if query.state != "placed" else ()
    placed = known.pods(query.namespace, placed=True) if query.state != "waiting" else ()
    for number, pod in enumerate([*waiting, *placed], 1):
        key = pod.namespace, pod.name, pod.metadata.uid or ""
        if text in f"{key[0]}/{key[1]}".lower():
            found[key] = pod
            if len(found) == _MOST_CLAIMANTS:
                break
        if not number % _PIECE:
            await asyncio.sleep(0)
    return found


def claimant_document(books: Books, pod: Document) -> dict[str, Any]:
    """A pod that asks by ResourceClaims alone; only the answer about a single pod has the reason."""
    spec = pod.shape.spec if isinstance(pod.shape, shapes.Pod) else None
    node = spec.node_name if spec else None
    said = "" if node else said_of(pod)
    ledger, uids = books.engine.ledger, books.cluster_cache.claimants.claims_of(pod)
    held = [one for uid in uids if (one := ledger.allocation(uid)) is not None]
    grants = [grant for one in held for grant in one.grants]
    sums = [_sums(one) for one in held]
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.metadata.uid or "",
        "state": "bound" if node else "waiting",
        "node": node,
        "protocols": [CLAIM],
        "priority": (spec.priority or 0) if spec else 0,
        **{key: sum(one[key] for one in sums) for key in _sums(None)},
        "cards": sorted({f"{one.type.value} {one.minor}" for one in grants}),
        "given": given_text(grants) if grants else "",
        "allocations": [grant_document(grant, one.node) for one in held for grant in one.grants],
        "code": None,
        "message": None
        if node
        else f"it waits for its ResourceClaims{f': {said}' if said else ''}",
        "kube_scheduler": said or None,
        "created": pod.metadata.creation_timestamp,
        "quarantine": None,
    }


async def _found(books: Books, query: PodQuery, roster: Roster) -> Sequence[Key]:
    """The requested pods, in order."""
    if query.code and query.state == "placed":
        return []
    by_state = {"": roster.pods, "placed": roster.placed, "waiting": roster.waiting}
    found: Sequence[Key] = by_state["waiting" if query.code else query.state]
    if query.namespace:
        first = bisect_left(found, (query.namespace,))
        found = found[first : bisect_left(found, (query.namespace + "\0",))]
    if query.code:
        found = [key for key in found if _code(books, key[2]) == query.code]
    if query.protocol:
        found = roster.of_protocol(query.protocol, found)
    if query.text:
        found = await roster.found(query.text.lower(), found)
    if query.order != "name":
        found = await _sorted(books, query.order, found)
    return found[::-1] if query.reverse else found


async def _sorted(books: Books, order: str, found: Sequence[Key]) -> list[Key]:
    """The pods in another order, equals by namespace and name: piece by piece, and then merged."""
    runs = []
    for start in range(0, len(found), _PIECE):
        part = found[start : start + _PIECE]
        runs.append(sorted((_place(books, order, key[2]), key) for key in part))
        await asyncio.sleep(0)
    return [key for _place, key in await merged(runs)]


def _place(books: Books, order: str, uid: str) -> tuple[Any, ...]:
    """A pod's place in an order."""
    held = books.engine.ledger.allocation(uid)
    if order == "node":
        return (held is None, *natural(held.node if held else ""))
    if order == "age":
        return (-born_at(books, uid),)
    return (-_sums(held)["core_milli" if order == "compute" else "memory_bytes"],)


def _code(books: Books, uid: str) -> str:
    waiting = books.waiting.get(uid)
    return waiting.refusal.code.value if waiting else ""


def _kept(books: Books, entry: PodEntry, standing: Standing) -> dict[str, Any] | msgspec.Raw:
    """A pod's document, kept as text until its content changes."""
    if standing.texts is None:
        return _document(books, entry)
    uid = entry.pod.uid
    state = (
        entry,
        books.engine.states.get(uid),
        books.engine.ledger.allocation(uid),
        refusal_of(books, entry),
        books.engine.ledger.suspicion(uid),
        unscheduled(books, uid),
    )
    return standing.texts.of(uid, state, lambda: _document(books, entry))


def waiting_pods(books: Books) -> Iterator[PodEntry]:
    """Every pod that asks for devices and has no node yet."""
    for entry in books.cluster_cache.pods.values():
        if entry.pod.node is None and not entry.pod.finished:
            yield entry


def refusal_of(books: Books, entry: PodEntry) -> Refusal | None:
    """The reason of a pod's last refusal, or None."""
    waiting = books.waiting.get(entry.pod.uid)
    return waiting.refusal if waiting else None


def _document(books: Books, entry: PodEntry) -> dict[str, Any]:
    pod = entry.pod
    held = books.engine.ledger.allocation(pod.uid)
    state = books.engine.states.get(pod.uid)
    refusal = refusal_of(books, entry)
    suspicion = books.engine.ledger.suspicion(pod.uid)
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "state": state.value if state else "waiting" if pod.node is None else "bound",
        "node": held.node if held else pod.node,
        "protocols": sorted({group.protocol for group in pod.request.groups}),
        "priority": pod.priority,
        **_sums(held),
        "cards": sorted({f"{g.type.value} {g.minor}" for g in held.grants}) if held else [],
        "given": given_text(held.grants) if held else "",
        "allocations": [grant_document(g, held.node) for g in held.grants] if held else [],
        "code": refusal.code.value if refusal else None,
        "message": refusal.message if refusal else None,
        "kube_scheduler": (
            unscheduled(books, pod.uid) or None if refusal is None and pod.node is None else None
        ),
        "created": books.cluster_cache.born(pod.uid),
        "quarantine": suspicion.message if suspicion else None,
    }


def _sums(held: Allocation | None) -> dict[str, int]:
    """The pod's grants of cards; network cards count in thousandths of their own."""
    charges = [c for c in held.charges if c.type is DeviceType.GPU] if held else []
    return {
        "core_milli": sum(charge.core_milli for charge in charges),
        "memory_bytes": sum(charge.memory_bytes for charge in charges),
    }
