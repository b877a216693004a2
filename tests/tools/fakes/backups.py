"""The embedded API server's store put back to what it was, as a cluster is restored from a backup."""

import copy
from typing import Any

from partage.apiserver.storage import Store

Backup = tuple[int, dict[str, list[dict[str, Any]]]]
"""A version, and all objects by resource."""


def backup_of(store: Store) -> Backup:
    """All that a store holds now."""
    found = {name: store.all(name) for name in [*store.resources()]}
    return store.revision, {
        name: [copy.deepcopy(one.value) for one in some] for name, some in found.items()
    }


def restore(store: Store, backup: Backup) -> None:
    """Let a store be what it was then, versions too; an open watch hears nothing of that."""
    for history in store._histories.values():
        history._changes.clear()
    store._objects.clear()
    store._order.clear()
    store.revision = 0
    store.restore(*copy.deepcopy(backup))
