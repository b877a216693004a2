"""Nodes that kube-scheduler's own filters rejected for a pod, so that it is not offered them again at once.

The engine knows of a node no more than devices, CPU, memory and what selects it. One that it proposes may lack something
else; kube-scheduler says so, and for a while the pod is offered others. How many may be left out for one
pod is bounded: beyond, it waits as kube-scheduler has it wait.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools

REJECTED_SECONDS: Final = 60.0
"""For which a node that kube-scheduler rejected is not proposed to the pod again, and several are to all."""
_MOST_NODES: Final = 128
"""Rejected nodes of a pod in that time: eight proposals of sixteen."""
_MOST_PODS: Final = 20_000


@dataclass(slots=True)
class _Rejected:
    since: float
    nodes: set[str] = field(default_factory=set)


class RejectedNodes:
    """By pod, for a while; moments are seconds on a steady clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Rejected] = OrderedDict()

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def add(self, uid: str, nodes: Iterable[str], now: float) -> int:
        """Leave nodes out for a pod; how many more could be before these were."""
        known = self._of(uid, now)
        if known is None:
            known = self._known[uid] = _Rejected(now)
            while len(self._known) > _MOST_PODS:
                self._known.popitem(last=False)
        room = max(0, _MOST_NODES - len(known.nodes))
        known.nodes.update(sorted(nodes)[:room])
        return room

    def count(self, uid: str, now: float) -> int:
        """How many nodes are left out for a pod."""
        known = self._of(uid, now)
        return len(known.nodes) if known is not None else 0

    def forget(self, uid: str) -> bool:
        """Offer the pod all nodes again; whether some were left out."""
        return self._known.pop(uid, None) is not None

    def left(self, ledger: Ledger, uid: str, now: float, nominated: str = "") -> Bools | None:
        """By node index, which nodes are in question for a pod; None for all.

        Args:
            now: as above.
            nominated: the node that the pod is nominated for: room may have been made there since.
        """
        known = self._of(uid, now)
        if known is None:
            return None
        among: Bools = ledger.present.copy()
        for name in known.nodes:
            if name in ledger.index and name != nominated:
                among[ledger.index[name]] = False
        return among

    def _of(self, uid: str, now: float) -> _Rejected | None:
        known = self._known.get(uid)
        if known is not None and now >= known.since + REJECTED_SECONDS:
            del self._known[uid]
            return None
        return known
