"""Chooses the nodes of a proposal: the best, and others if kube-scheduler may reject that one.

Usually a proposal names the best node alone. kube-scheduler then filters one node and scores none. It gets more nodes
if its own filters rejected one lately, if it has to weigh every node that fits, or if a question is only a trial.

The engine knows only a node's devices, CPU, memory, and the labels and taints that select it. A proposed node may lack
something else. kube-scheduler then reports it, and for a while the pod is offered other nodes. The number of nodes left
out for one pod is bounded. Beyond the bound the pod waits until kube-scheduler retries it.
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
"""Nodes of one proposal after a recent rejection by kube-scheduler's own filters, enough that they seldom reject all.
Also the nodes of each domain, if kube-scheduler's rules weigh nothing but domains."""
_PROVEN: Final = 4
"""Nodes of one proposal if only the exact rule can judge a node, which costs far more for each."""
_WIDE: Final = 128
"""Nodes that the exact rule judges for a pod that needs every node that fits."""
MOST_PROPOSED: Final = 100
"""Nodes of a further proposal for a pod with claims. kube-scheduler checks only a part of a longer list."""
_BEST: Final = 100
"""The score of the best node. Other nodes score 10 to 90; a nominated node that `others` did not find scores 0."""


def marked(ledger: Ledger, nodes: Iterable[str]) -> Bools:
    """By node index, whether the node is in `nodes`."""
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
        cycle: finds the nodes; the search counts against the allowance of the pod's namespace.
        question: whether it needs every node that fits.
        domains: keys of node labels; the best nodes of each domain are enough. Empty for no domains.
        among: by node index, the nodes in question; None for all.
        now: seconds on the clock of the books.
        proposed: the most nodes, unless the question needs every node that fits.
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
        pod: the pod; its place is held.
        question: whether it needs every node that fits, and the node that the pod is nominated for.
        beside: the result of `others`.
    """
    names = [best, *(name for name in beside if name != best)]
    if not question.wide:
        del names[PROPOSED:]
        wish = question.nominated
        if wish and wish not in names and engine.grants_without(pod, wish, ()) is not None:
            names.append(wish)
    return {best: _BEST} | {name: beside.get(name, 0) for name in names[1:]}


REJECTED_SECONDS: Final = 60.0
"""Seconds for which a rejected node is not proposed for the pod again, and for which all proposals name several."""
MOST_REJECTED: Final = 128
"""The most rejected nodes of a pod in that time: eight proposals of sixteen."""
_MOST_PODS: Final = 20_000


@dataclass(slots=True)
class _Rejected:
    since: float
    nodes: set[str] = field(default_factory=set)


class RejectedNodes:
    """Remembers the rejected nodes of each pod for a while; times are seconds on a steady clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Rejected] = OrderedDict()

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def add(self, uid: str, nodes: Iterable[str], now: float) -> int:
        """Leave nodes out for a pod; returns how many more it could leave out before this call."""
        known = self._of(uid, now)
        if known is None:
            known = self._known[uid] = _Rejected(now)
            while len(self._known) > _MOST_PODS:
                self._known.popitem(last=False)
        room = max(0, MOST_REJECTED - len(known.nodes))
        known.nodes.update(sorted(nodes)[:room])
        return room

    def count(self, uid: str, now: float) -> int:
        """The number of nodes that are left out for a pod."""
        known = self._of(uid, now)
        return len(known.nodes) if known is not None else 0

    def forget(self, uid: str) -> bool:
        """Offer the pod all nodes again; whether some were left out."""
        return self._known.pop(uid, None) is not None

    def left(self, ledger: Ledger, uid: str, now: float, nominated: str = "") -> Bools | None:
        """By node index, whether the node may be proposed for a pod; None for all nodes.

        Args:
            now: seconds on the same steady clock.
            nominated: the node that the pod is nominated for; it stays in, because it may have room by now.
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
