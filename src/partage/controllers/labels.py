"""Intended labels and annotations of a node, as changes of the present ones.

As upstream's manager does, Koordinator's make, model and driver follow the Device object, and stay when it is
deleted. qGPU's driver and card labels use the same keys, because those of the closed product are not published. A
label that is an operator's decision is only added where it is absent: `qgpu-device-enable` on nodes that
publish qGPU's totals.

Source: docs/sources/koordinator.md 6; the qGPU document and docs/sources/qgpu.md 1.3 to 1.5.
"""

from typing import Final

from partage.vendors import names
from partage.vendors.locks import LOCKS, NodeLock, read_lock
from partage.wire.documents import Document
from partage.wire.nodes import COPIED_LABELS, allocatable_of

LOCK_SECONDS: Final = 300.0
"""After this time HAMi's own scheduler takes a lock away from its holder."""


def label_changes(node: Document, device: Document | None) -> dict[str, str]:
    """Labels to set on the node; empty when it has them. Raises `InvalidDocument`: an amount is no quantity."""
    wanted = {}
    if device is not None:
        wanted = {key: device.labels[key] for key in COPIED_LABELS if device.labels.get(key)}
    labels = node.labels
    core = allocatable_of(node).get(names.QGPU_CORE)
    if core is not None and core.nano > 0:
        wanted.setdefault(names.QGPU_ENABLE, labels.get(names.QGPU_ENABLE, "enable"))
    return {key: value for key, value in sorted(wanted.items()) if labels.get(key) != value}


def held_locks(node: Document) -> dict[str, tuple[str, NodeLock]]:
    """Vendors' locks on the node: annotation to its text and its parsed content."""
    annotations = node.annotations
    return {
        key: (annotations[key], read_lock(annotations[key])) for key in LOCKS if key in annotations
    }


def lock_expires(seen: float, now: float) -> float:
    """Seconds until the lock cannot be held any more; 0 or less when that is past.

    It does not use the lock's own time: clocks of two machines may differ by any amount,
    and a lock removed too early lets a vendor's plugin mix up two pods.

    Args:
        seen: when the lock was first seen here, on a steady clock.
        now: the same clock.
    """
    return seen + LOCK_SECONDS - now
