"""Which nodes are in question for pods with the same labels, taints and protocols.

Many classes of request differ in amounts only. What does not depend on amounts is judged once for
all of them, and again only for nodes that changed.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.pod import Pod
from partage.model.reason import NodeReason
from partage.placement.node import objection

__all__ = ["Eligibility", "eligibility_key"]

_MOST_PREFERENCE: Final = 500  # with a score and a rank, as much as one number holds


def eligibility_key(pod: Pod) -> object:
    """What `placement.node.objection` and the preferred terms look at."""
    groups = tuple((group.protocol, group.request.whole) for group in pod.request.groups)
    return pod.constraint, pod.tolerations, pod.request.node_labels, groups


@dataclass(slots=True)
class Eligibility:
    """Judgement of every node; by node index.

    Attributes:
        pod: a pod that it holds for.
        allowed: whether the node is in question at all.
        preference: weight of the preferred terms that it meets.
        objections: why the others are not.
    """

    pod: Pod
    allowed: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    preference: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    objections: dict[int, NodeReason] = field(default_factory=dict)
    _seen: int = 0

    def refresh(self, ledger: Ledger) -> None:
        """Judge the nodes that came, changed or went since."""
        size = ledger.present.shape[0]
        if self.allowed.shape[0] != size:
            self.allowed = np.zeros(size, np.bool_)
            self.preference = np.zeros(size, np.int64)
            self.objections.clear()
            self._seen = 0
        changed = ledger.node_changes.since(self._seen)
        self._seen = len(ledger.node_changes)
        for index in range(len(ledger.nodes)) if changed is None else set(changed.tolist()):
            self._judge(ledger, index)

    def _judge(self, ledger: Ledger, index: int) -> None:
        node = ledger.nodes[index]
        reason = None if node is None else objection(node, self.pod)
        self.allowed[index] = node is not None and reason is None
        self.preference[index] = 0
        if reason is not None:
            self.objections[index] = reason
            return
        self.objections.pop(index, None)
        constraint = self.pod.constraint
        if node is not None and constraint.preferred:
            wish = constraint.preference(node.name, node.labels)
            self.preference[index] = min(wish, _MOST_PREFERENCE)
