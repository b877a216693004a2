"""Builds new books from a list of all objects, and lets other tasks run meanwhile."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, TypeVar

from partage.extender.books import Books
from partage.scheduler.events import Event
from partage.scheduler.explain import deferred
from partage.wire.documents import Document, outdated
from partage.wire.snapshot import permuted

_SETTINGS: Final = "ConfigMap", "ResourceQuota"
_KINDS: Final = *_SETTINGS, "Device", "Node", "Pod", "DeviceClass", "ResourceClaim"
_BREATH: Final = 512
"""The number of documents or pods to take in before other tasks run, such as probes and the Lease."""
_T = TypeVar("_T")


async def filled(
    books: Books,
    documents: Iterable[Document],
    *,
    seed: int | None = None,
    before: Books | None = None,
    now: float = 0.0,
) -> Books:
    """Fill the books with all documents, kind by kind, and return them.

    Args:
        documents: the objects of a cluster or of manifests; kinds without facts about devices are ignored.
        seed: the seed of the order of nodes (`permuted`); None keeps the order of the documents.
        before: the books that these replace; their waiting pods stay known, since when pods are being deleted, and the
            last good state of each ConfigMap and quota whose newest state is refused.
    """
    if before is not None:
        books.woken_at = before.woken_at
    by: defaultdict[str, list[Document]] = defaultdict(list)
    for document in documents:
        by[document.kind].append(document)
    if seed is not None:
        by["Node"] = permuted(by["Node"], seed)
    cluster_cache = books.cluster_cache
    newest = {one.identity: one for kind in _SETTINGS for one in by[kind]}
    for good in before.cluster_cache.last_good() if before is not None else ():
        if outdated(good, newest.get(good.identity)):
            books.digest(cluster_cache.changed(good))
    limits: Sequence[Event] = ()
    async for document in _breathing([one for kind in _KINDS for one in by[kind]]):
        events = cluster_cache.changed(document)
        if document.kind == "ResourceQuota":
            limits = events or limits  # each event has all quotas
        else:
            books.digest(events)
    books.digest(limits)
    if before is not None:
        # Nominations are read from the pods themselves.
        async for waiting in _breathing(list(before.waiting.values())):
            if waiting.entry.pod.uid in cluster_cache.pods:
                books.waiting.enter(waiting.entry, waiting.refusal, waiting.since)
                if waiting.deferred:
                    late = deferred(waiting.entry.pod.namespace)
                    books.waiting.enter(waiting.entry, late, waiting.since)
        books.counts += before.counts
        left = before.ending.items()
        books.ending.update((uid, one) for uid, one in left if uid in cluster_cache.pods)
    async for entry in _breathing(list(cluster_cache.pods.values())):
        books.pod_seen(entry, now)
    # New books may have room that the old ones did not have, and no event will report it.
    for name in books.engine.ledger.index:
        books.waiting.room_on(name)
    books.settle(now)
    return books


async def _breathing(items: Sequence[_T]) -> AsyncIterator[_T]:
    """The items in order; other tasks run in between now and then."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % _BREATH:
            await asyncio.sleep(0)
