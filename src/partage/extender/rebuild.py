"""New books from a list of everything, without keeping others from their turn."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Final

from partage.extender.books import Books
from partage.scheduler.explain import deferred
from partage.wire.documents import Document

_BREATH: Final = 512
"""Documents that are taken in before others get their turn: probes, and the lease."""

Inputs = tuple[
    Iterable[Document],
    Iterable[Document],
    Iterable[Document],
    Iterable[Document],
    Iterable[Document],
]


async def filled(books: Books, before: Books, inputs: Inputs, now: float) -> Books:
    """The books, with everything taken in.

    Args:
        books: empty ones.
        before: those that they replace; who waited there is not forgotten.
        inputs: ConfigMaps and ResourceQuotas, Device objects, Nodes, pods, and ResourceClaims.
        now: seconds on the service's steady clock.
    """
    cluster_cache = books.cluster_cache
    takes = (
        cluster_cache.config_changed,
        cluster_cache.device_changed,
        cluster_cache.node_changed,
        cluster_cache.pod_changed,
        cluster_cache.claim_changed,
    )
    for take, documents in zip(takes, inputs, strict=True):
        for number, document in enumerate(documents, 1):
            books.digest(take(document))
            if not number % _BREATH:
                await asyncio.sleep(0)
    # Nominations come from the pods themselves.
    for waiting in before.waiting:
        if cluster_cache.pod(waiting.entry.pod.uid) is not None:
            books.waiting.enter(waiting.entry, waiting.refusal, waiting.since)
            if waiting.deferred:
                late = deferred(waiting.entry.pod.namespace)
                books.waiting.enter(waiting.entry, late, waiting.since)
    books.counts += before.counts
    for entry in list(cluster_cache.pods().values()):
        books.pod_seen(entry, now)
    # New books may have room that the old ones had not, and no event will ever say so.
    for name in books.engine.ledger.index:
        books.waiting.room_on(name)
    books.settle(now)
    return books


def permuted(nodes: Iterable[Document], seed: int) -> Sequence[Document]:
    """Nodes in the explicit order: a seeded permutation over creation time and uid."""
    ordered = sorted(
        nodes, key=lambda d: (d.metadata.creation_timestamp or "", d.metadata.uid or d.name)
    )
    random.Random(seed).shuffle(ordered)  # noqa: S311 # a reproducible order, not a secret
    return ordered
