"""Which nodes are in question for pods with the same labels, taints and protocols.

Many classes of request differ in amounts only. What does not depend on amounts is judged once for
all of them, for all nodes at once; `placement.node.objection` is the plain rule, and says why a node
is out of the question where people want to know.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.node import Verdict
from partage.model.pod import Pod
from partage.model.reason import NodeReason, ReasonCode
from partage.model.selector import NodeConstraint, Operator, Requirement, Selector
from partage.placement.node import concerned, cordon, objection, repelling
from partage.scheduler.labels import NodeColumns

_MOST_PREFERENCE: Final = 500  # with a score and a rank, as much as one number holds


def eligibility_key(pod: Pod) -> object:
    """What `placement.node.objection` and the preferred terms look at."""
    groups = tuple(
        dict.fromkeys((g.protocol, g.request.type, g.request.whole) for g in pod.request.groups)
    )
    return pod.constraint, pod.tolerations, pod.request.node_labels, groups


@dataclass(slots=True)
class Eligibility:
    """Judgement of every node; by node index.

    Attributes:
        pod: a pod that it holds for.
        columns: what the nodes say of themselves.
        allowed: whether the node is in question at all.
        preference: weight of the preferred terms that it meets.
    """

    pod: Pod
    columns: NodeColumns
    allowed: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    preference: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    _codes: dict[ReasonCode, Bools] = field(default_factory=dict)
    _objections: dict[int, NodeReason] = field(default_factory=dict)
    _seen: int = -1

    def refresh(self, ledger: Ledger) -> None:
        """Judge the nodes afresh where any came, changed or went since."""
        if self._seen == ledger.node_changes.count:
            return
        self._seen = ledger.node_changes.count
        self.columns.refresh()
        self._objections.clear()
        self._codes.clear()
        self.allowed = np.zeros(ledger.present.shape[0], np.bool_)
        self.allowed[: len(ledger.nodes)] = [node is not None for node in ledger.nodes]
        pod, columns = self.pod, self.columns
        # In the order of `placement.node.objection`: the first objection is the one that is reported.
        self._refuse(
            ReasonCode.NODE_UNSCHEDULABLE, columns.tainted(lambda t: t[0] and cordon(pod))
        )
        self._refuse(ReasonCode.TAINT, columns.tainted(lambda t: repelling(t[1], pod) is not None))
        self._refuse(ReasonCode.NODE_AFFINITY, ~columns.constrained(pod.constraint))
        for rule in pod.request.node_labels:
            equal = Selector((Requirement(rule.key, Operator.IN, (rule.value,)),))
            self._refuse(rule.code, ~columns.constrained(NodeConstraint(equal)))
        objecting = columns.objecting(lambda verdicts: self._verdict(verdicts) is not None)
        if (self.allowed & objecting).any():
            for code in ReasonCode:
                self._refuse(code, columns.objecting(partial(self._says, code)))
        self.preference = np.zeros(self.allowed.size, np.int64)
        for weight, term in pod.constraint.preferred:
            self.preference[columns.meeting(term)] += weight
        np.minimum(self.preference, _MOST_PREFERENCE, out=self.preference)
        self.preference[~self.allowed] = 0

    def _says(self, code: ReasonCode, verdicts: tuple[Verdict, ...]) -> bool:
        return self._verdict(verdicts) is code

    def _verdict(self, verdicts: tuple[Verdict, ...]) -> ReasonCode | None:
        """The code of the first of a node's verdicts that concerns the pod."""
        return next((one.code for one in verdicts if concerned(one, self.pod.request)), None)

    def _refuse(self, code: ReasonCode, nodes: Bools) -> None:
        found = self.allowed & nodes
        if found.any():
            self._codes[code] = self._codes[code] | found if code in self._codes else found
            self.allowed &= ~found

    def codes(self) -> dict[ReasonCode, Bools]:
        """Nodes that are out of the question, by the code of the objection."""
        return self._codes

    def objection(self, ledger: Ledger, index: int) -> NodeReason | None:
        """Why a node is out of the question; None where it is not."""
        if self.allowed[index]:
            return None
        known = self._objections.get(index)
        if known is None:
            known = objection(ledger.node_at(index), self.pod)
            if known is not None:
                self._objections[index] = known
        return known
