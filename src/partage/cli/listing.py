"""Lists the cluster objects that decisions about devices depend on, with the rights of the user of the command.

It imports no books, so a command that only saves the objects starts at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from partage.daemon.watched import CLAIM_OFFERS, PRIORITIES, Watched, as_document, watched
from partage.kube.client import Client
from partage.kube.errors import Forbidden, NotFound, NotServed
from partage.wire.documents import Document

_NEEDED: Final = frozenset({"Node", "Pod"})
_OPTIONAL_LOSS: Final = {
    "ConfigMap": "the protocols' published defaults count",
    "ResourceQuota": "quotas are left out",
    "PriorityClass": "pods of manifests that name one count as of priority 0",
    "Device": "cards that only Device objects describe are left out",
    "ResourceClaim": "devices of claims are left out",
    "DeviceClass": "only this driver's own classes are known",
    "ResourceSlice": "the slices that agents would publish count instead",
}


def _silent(_kind: str, _count: int) -> None:
    """Report no progress."""


async def listed(
    client: Client, progress: Callable[[str, int], None] = _silent, *, everything: bool = False
) -> tuple[list[Document], tuple[str, ...]]:
    """All objects that decisions about devices depend on, and unreadable kinds.

    Args:
        progress: receives each kind and its number of objects.
        everything: list PriorityClasses too, whose values a server writes into pods anyway, and the sources of
            claims' allocations.

    Raises:
        KubeError: nodes or pods cannot be listed.
    """
    kinds = watched(claims=True)
    return await of_kinds(
        client, (PRIORITIES, *kinds, *CLAIM_OFFERS) if everything else kinds, progress
    )


async def of_kinds(
    client: Client, kinds: Sequence[Watched], progress: Callable[[str, int], None] = _silent
) -> tuple[list[Document], tuple[str, ...]]:
    """All objects of these kinds, listed concurrently; see `listed`."""
    found = await asyncio.gather(*(_of_kind(client, kind, progress) for kind in kinds))
    documents = [one for some, _ in found for one in some]
    return documents, tuple(note for _, notes in found for note in notes)


async def _of_kind(
    client: Client, kind: Watched, progress: Callable[[str, int], None]
) -> tuple[list[Document], list[str]]:
    try:
        listing = await client.list_all(kind.scope, into=kind.into)
    except (NotFound, NotServed):
        if not kind.optional or await client.serves(kind.scope.resource):
            raise
        return [], []
    except Forbidden:
        if kind.kind in _NEEDED:
            raise
        return [], [f"you may not list {kind.scope.resource.plural}: {_OPTIONAL_LOSS[kind.kind]}"]
    progress(kind.kind, len(listing.items))
    return [as_document(kind.kind, item) for item in listing.items], [
        f"{kind.kind} {odd.meta.namespace}/{odd.meta.name} cannot be read: {odd.problem}"
        for odd in listing.undecodable
    ]
