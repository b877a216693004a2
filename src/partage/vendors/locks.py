"""Locks that vendors' plugins keep on nodes, as annotations: who holds one, and since when.

The scheduler writes such a lock for a pod, and the vendor's plugin on the node takes it off when
the pod has its device. A pod that never starts leaves its lock behind. The value is the time, the
namespace and the pod, separated by commas; old programs wrote the time alone.

Source: hami.md 7 (bind); koordinator.md 5.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from partage.vendors import names

__all__ = ["LOCKS", "NodeLock", "read_lock"]

LOCKS: Final = (names.METAX_LOCK, names.DSMLU_LOCK)
"""The annotations."""


@dataclass(frozen=True, slots=True)
class NodeLock:
    """Who holds a lock.

    Attributes:
        taken: when; None when the value does not tell.
        namespace: of the pod; empty when the value does not tell.
        pod: its name; empty when the value does not tell.
    """

    taken: datetime | None = None
    namespace: str = ""
    pod: str = ""


def read_lock(text: str) -> NodeLock:
    """What a lock's value says; never raises."""
    parts = [part.strip() for part in text.split(",")]
    try:
        taken = datetime.fromisoformat(parts[0])
    except ValueError:
        taken = None
    if taken is not None and taken.tzinfo is None:
        taken = None
    if len(parts) == 3 and all(parts[1:]):
        return NodeLock(taken, parts[1], parts[2])
    return NodeLock(taken)
