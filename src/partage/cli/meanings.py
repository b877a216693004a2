"""What the annotations mean that Partage, or a plugin that it serves, writes on a pod."""

from collections.abc import Mapping
from typing import Final

from partage.vendors import names
from partage.vendors.traits import ROWS

_MEANINGS: Final[Mapping[str, str]] = {
    names.ALLOCATION: "the record: what each container has; the ledger is rebuilt from it",
    names.PERMIT: "what an operator's rule lets it have of its wishes (precedence, policy)",
    names.ENFORCED: "the node's report: what it enforces at most of shares that were adjusted",
    names.DEVICE_ALLOCATED: "Koordinator's record, read by its node agent and vendors' plugins",
    names.BIND_TIMESTAMP: "when it was bound; vendors' plugins take pods in this order",
    names.GPU_MINORS: "numbers of its cards, read by a vendor's plugin",
    names.HAMI_POD_NODE: "HAMi: the node it was placed on",
    names.HAMI_POD_TIME: "HAMi: when it was placed",
    names.HAMI_TO_ALLOCATE: "HAMi: what its plugin has still to allocate",
    names.HAMI_ALLOCATED: "HAMi: what it has, container by container",
    names.HAMI_MIG_ALLOCATIONS: "HAMi: hardware instances that its plugin made for it",
    names.HAMI_BIND_PHASE: "HAMi: how far its plugin is: allocating, success or failed",
    names.HAMI_BIND_TIME: "HAMi: when it was bound",
    names.QGPU_ALLOCATED: "qGPU: it has been placed",
} | {key: text for row in ROWS for key, text in row.annotations.items()}


def meaning(key: str) -> str:
    """What an annotation of that name says; empty for an unknown one."""
    if key.startswith(names.QGPU_CARDS):
        return f"qGPU: cards of container {key.removeprefix(names.QGPU_CARDS)}"
    return _MEANINGS.get(key, "")
