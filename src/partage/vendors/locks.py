"""Locks that vendors' plugins keep on nodes as annotations, and the pod that holds one.

The scheduler writes such a lock for a pod, and the vendor's plugin on the node removes it when the pod has its device.
A pod that never starts leaves its lock behind. The value is the time, the namespace and the pod, separated by commas;
old programs wrote only the time. The time is not read because it is by the clock of another machine.

Source: docs/sources/hami.md 7 (bind); docs/sources/koordinator.md 5.
"""

from dataclasses import dataclass
from typing import Final

from partage.vendors.traits import ROWS

LOCKS: Final = tuple(row.lock for row in ROWS if row.lock)
"""The locks' annotations."""


@dataclass(frozen=True, slots=True)
class NodeLock:
    """The holder of a lock; `pod` is empty if the value has none."""

    namespace: str = ""
    pod: str = ""


def read_lock(text: str) -> NodeLock:
    """The holder in a lock's value; never raises."""
    parts = [part.strip() for part in text.split(",")]
    return NodeLock(parts[1], parts[2]) if len(parts) == 3 and all(parts[1:]) else NodeLock()
