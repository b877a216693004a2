"""Which nodes a proposal names: the best, and others where kube-scheduler may reject that one.

Usually a proposal names the best node alone. kube-scheduler then filters one node and scores none. It gets more nodes
if its own filters rejected one lately, if it has to weigh every node that fits, or if a question is only a trial.

Of a node the engine knows only devices, CPU, memory, and the labels and taints that select it. A proposed node may lack
something else; kube-scheduler then reports it, and for a while the pod is offered others. The number of nodes left out
for one pod is bounded: beyond it, the pod waits as kube-scheduler has it wait.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from partage.extender.cycle import Cycle
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools
from partage.model.pod import Pod
from partage.placement.work import Work
from partage.scheduler.engine import Engine
from partage.wire.plugin import Propose

PROPOSED: Final = 16
"""Nodes of one proposal, where kube-scheduler's own filters rejected one lately: enough that they seldom reject all.
The same of each domain, where kube-scheduler's rules weigh nothing but domains."""
_PROVEN: Final = 4
"""The same where only the exact rule can judge a node, which costs far more for each."""
_WIDE: Final = 128
"""Nodes that the exact rule judges for a pod that needs every node that fits."""
MOST_PROPOSED: Final = 100
"""Nodes of a further proposal for a pod with claims: kube-scheduler looks at all of so many, and of more at a part."""
_BEST: Final = 100
"""Score of the best node; the others have 10 to 90."""


def marked(ledger: Ledger, nodes: Iterable[str]) -> Bools:
    """By node index, whether a node is one of these."""
    found: Bools = np.zeros_like(ledger.present)
    found[[index for index in map(ledger.index.get, nodes) if index is not None]] = True
    return found


def others(
    cycle: Cycle,
    pod: Pod,
    question: Propose,
    domains: Sequence[str],
    among: Bools | None,
    work: Work,
    now: float,
    proposed: int = PROPOSED,
) -> dict[str, int]:
    """Nodes that fit, the best first, with their scores.

    Args:
        cycle: finds them; the pod's namespace pays for the search.
        question: how many it needs.
        domains: keys of node labels; the best of each domain are enough. Empty for no domains.
        among: by node index, the nodes in question; None for all.
        now: seconds on the clock of the books.
        proposed: nodes at most, where not every one that fits is needed.
    """
    engine, most = cycle.engine, _WIDE if question.wide else _PROVEN
    found, values = cycle.candidates(pod, among, most, work, now)
    if not found.size:
        return {}
    if not question.wide and found.size > proposed:
        best = np.argpartition(-values, proposed - 1)[:proposed]
        found, values = found[best], values[best]
    elif domains:
        best = engine.best_of_each(found, values, domains, PROPOSED)
        found, values = found[best], values[best]
    ranks = np.fromiter(map(engine.rank_at, found.tolist()), np.int64, found.size)
    order = np.lexsort((ranks, -values))
    names = [engine.ledger.node_at(int(index)).name for index in found[order]]
    low, span = int(values.min()), int(values.max() - values.min())
    scaled = 10 + (values[order] - low) * 80 // span if span else np.full(len(names), 90)
    return dict(zip(names, scaled.tolist(), strict=True))


def offered(
    engine: Engine, pod: Pod, question: Propose, best: str, beside: dict[str, int]
) -> dict[str, int]:
    """The nodes of a proposal with their scores, the best first.

    Args:
        pod: the pod, whose place is held.
        question: how many it needs, and the node that the pod is nominated for.
        beside: what `others` found.
    """
    names = [best, *(name for name in beside if name != best)]
    if not question.wide:
        del names[PROPOSED:]
        wish = question.nominated
        if wish and wish not in names and engine.grants_without(pod, wish, ()) is not None:
            names.append(wish)
    return {best: _BEST} | {name: beside.get(name, 0) for name in names[1:]}


REJECTED_SECONDS: Final = 60.0
"""For which a node that kube-scheduler rejected is not proposed to the pod again, and several are to all."""
MOST_REJECTED: Final = 128
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
        room = max(0, MOST_REJECTED - len(known.nodes))
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
