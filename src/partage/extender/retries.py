"""What follows an attempt of kube-scheduler that found no place: other nodes, or room that others make.

The engine knows only a node's devices, CPU, memory, and the labels and taints that select it. A proposed node may lack
something else. kube-scheduler then reports it, and for a while the pod is offered other nodes. The number of nodes left
out for one pod is bounded. At the bound all other nodes that fit are proposed together.

For a refused pod, plans name nodes where less important pods could make room. kube-scheduler's own preemption evicts
the victims, which include those of the plan, and nominates the pod.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partage.extender.books import Books
from partage.extender.cycle import WIDE, marked
from partage.extender.ports import Answered
from partage.extender.preemption import Planner, may_preempt, to_be_gone
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools
from partage.kube.clock import Clock
from partage.model.allocation import Allocation
from partage.model.reason import Refusal
from partage.placement.card import MOST, Work
from partage.scheduler.preemption import Plan
from partage.wire.budgets import Budget
from partage.wire.translation import PodEntry

REJECTED_SECONDS: Final = 60.0
"""Seconds for which a rejected node is not proposed for the pod again, and for which all proposals name several."""
MOST_REJECTED: Final = 128
"""The most rejected nodes of a pod in that time: eight proposals of sixteen. Then all others are proposed together."""
_MOST_WIDE_REJECTED: Final = 8 * WIDE
"""The same for a pod that needs every node that fits, if the exact rule must judge them: eight proposals, too."""
_MOST_PODS: Final = 20_000
_PLANS: Final = 16
"""Nodes with a plan in one answer; kube-scheduler's own preemption chooses one of them."""
_MOST_PLANNING: Final = 20 * MOST
"""Units of work that plans for one pod may take; kube-scheduler decides about no other pod meanwhile."""
_PLANNED_AGAIN: Final = 10.0
"""Seconds without new plans for pods with equal requests, after no plan helped one of them."""
_PAUSES: Final = (0.0, 60.0, 120.0, 240.0, 480.0)
"""Seconds without plans for a pod of a group after pods were evicted for it in vain: for the first time, the second, and so on."""
_TURN: Final = 0.004
"""Seconds of planning after which other tasks have their turn."""


@dataclass(slots=True)
class Attempt:
    """One attempt.

    Attributes:
        entry: the pod as the decision read it.
        travelled: the question contained the pod; no watch had shown it in this state.
        nodes: the proposed ones; forgotten with the next proposal.
        planned: by node, the plans by which less important pods could make room there; forgotten like `nodes`.
        offered: the names of these nodes.
        more: other nodes have such plans too.
        place: the allocation that `reserve` made; remembered after `unreserve`.
        reserved: the place is in the ledger now.
        provisional: other pods still run on the place; this attempt can never be bound.
        simulated: the cycle of a pod group took the place last, and reverts it.
        moment: that of the waiting pods when the place was taken last (`attempts._moment`).
        outcome: set by `bound` while the Binding is on its way.
        claimed: the pod asks by claims; there is nothing to reserve or bind.
        gone: the pod was deleted while its Binding was on its way.
        wide: every node that fits was proposed, and kube-scheduler chooses among them.
        narrowed: as `wide`, but only the best nodes of each domain were proposed.
    """

    number: int
    entry: PodEntry
    travelled: bool
    nodes: frozenset[str] = frozenset()
    planned: Mapping[str, Plan] = field(default_factory=dict)
    offered: tuple[str, ...] = ()
    more: bool = False
    place: Allocation | None = None
    reserved: bool = False
    provisional: bool = False
    simulated: bool = False
    moment: tuple[int, int] = (0, 0)
    outcome: asyncio.Future[Answered] | None = None
    claimed: bool = False
    gone: bool = False
    wide: bool = False
    narrowed: bool = False


class RejectedNodes(OrderedDict[str, tuple[float, set[str]]]):
    """By a pod's uid, when its first nodes were rejected, and all its nodes; times are seconds on a steady clock."""

    def add(self, uid: str, nodes: Iterable[str], now: float, most: int = MOST_REJECTED) -> int:
        """Leave nodes out for a pod; returns how many more it could leave out before this call."""
        known = self._of(uid, now)
        if uid not in self:
            self[uid] = now, known
            while len(self) > _MOST_PODS or now >= next(iter(self.values()))[0] + REJECTED_SECONDS:
                self.popitem(last=False)
        room = max(0, most - len(known))
        known.update(sorted(nodes)[:room])
        return room

    def count(self, uid: str, now: float) -> int:
        """The number of nodes that are left out for a pod."""
        return len(self._of(uid, now))

    def left(self, ledger: Ledger, uid: str, now: float, nominated: str = "") -> Bools | None:
        """By node index, whether the node may be proposed for a pod; None for all nodes.

        Args:
            nominated: the node that the pod is nominated for; it stays in, because it may have room by now.
        """
        known = self._of(uid, now)
        return ledger.present & ~marked(ledger, known - {nominated}) if uid in self else None

    def _of(self, uid: str, now: float) -> set[str]:
        since, known = self.get(uid, (now, set[str]()))
        if now < since + REJECTED_SECONDS:
            return known
        del self[uid]
        return set()


class Retries:
    """Nodes for the next attempts of pods; `rejected` are those that kube-scheduler rejected lately.

    `several_until` is the time until which all proposals name several nodes, because one alone was rejected.
    """

    def __init__(self, clock: Clock, *, preempts: bool) -> None:
        """Start without rejected nodes; `preempts`: whether less important pods may be evicted for devices."""
        self.rejected = RejectedNodes()
        self.several_until = 0.0
        self._clock, self._preempts = clock, preempts
        # By uid, how often pods were evicted in vain, and until when that pauses plans.
        self._vain: dict[str, tuple[int, float]] = {}
        self._planner = Planner(clock, _PLANNED_AGAIN, _TURN)

    def several(self, now: float) -> None:
        """Name several nodes in all proposals from `now` on, for a while."""
        self.several_until = now + REJECTED_SECONDS

    def another(
        self, books: Books, attempt: Attempt, rejected: Collection[str], now: float
    ) -> bool:
        """Whether kube-scheduler should schedule a pod again, without the nodes that it rejected."""
        uid, pod, ledger = attempt.entry.pod.uid, attempt.entry.pod, books.engine.ledger
        if attempt.claimed:
            self.rejected.add(uid, attempt.nodes.intersection(rejected), now)
            return True
        if attempt.wide:
            # This rejection is not remembered if these were all nodes that fit, because the next comparison of all nodes
            # may accept them.
            room, beside = int(attempt.narrowed), attempt.nodes.union(rejected)
        else:
            self.several(now)
            mine = attempt.nodes.union(attempt.planned).intersection(rejected)
            room, beside = self.rejected.add(uid, mine, now), frozenset()
        left = self.rejected.left(ledger, uid, now)
        among = (ledger.present if left is None else left) & ~marked(ledger, beside)
        if room and attempt.planned:
            return attempt.more
        allowance = books.cycle.allowance
        work = allowance.work(pod, now)
        if work is None:
            return False
        found = books.engine.evaluate(pod, reasons=False, among=among, work=work)
        allowance.spend(pod, work.taken, now)
        if isinstance(found, Refusal):
            # kube-scheduler knows what to wait for on the nodes that it rejected, but not for devices on the others.
            books.awaits(attempt.entry, found, now, among)
            if attempt.wide and not attempt.planned:
                self.rejected.pop(uid, None)
            return False
        if attempt.narrowed:
            self.several(now)
        elif attempt.wide:
            # The exact rule judged a part of the nodes alone.
            room = self.rejected.add(uid, attempt.nodes, now, _MOST_WIDE_REJECTED)
        return room > 0

    def in_vain(self, uid: str, now: float) -> None:
        """Pods were evicted for a pod of a group that was not nominated; the next plan for it comes ever later."""
        times, _ = self._vain.get(uid, (0, 0.0))
        self._vain[uid] = times + 1, now + _PAUSES[min(times, len(_PAUSES) - 1)]

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self.rejected.pop(uid, None)
        self._vain.pop(uid, None)

    def keep(self, uids: Container[str]) -> None:
        """Forget all other pods, some of which may have gone unnoticed."""
        self._vain = {uid: one for uid, one in self._vain.items() if uid in uids}

    def may_preempt(self, books: Books, attempt: Attempt) -> bool:
        """Whether a search for victims may help a refused pod."""
        waiting = books.waiting.get(attempt.entry.pod.uid)
        if waiting is None or not self._preempts:
            return False
        _, until = self._vain.get(attempt.entry.pod.uid, (0, 0.0))
        if self._clock.monotonic() < until:
            return False
        return may_preempt(books, waiting) and not self._planner.in_vain(attempt.entry.pod)

    async def plans(
        self,
        books: Books,
        attempt: Attempt,
        budgets: Sequence[Budget],
        current: Callable[[], bool],
    ) -> dict[str, list[str]] | None:
        """The nodes where less important pods could make room, the best first, with the pods to be gone there.

        Args:
            current: whether these books and this attempt still count; if not, nothing is planned.

        Returns:
            None if only the nodes that kube-scheduler rejected are left, so it has to give its reasons once more.
        """
        pod = attempt.entry.pod
        waiting, rejected = books.waiting.get(pod.uid), pod.uid in self.rejected
        if waiting is None or waiting.deferred or not self.may_preempt(books, attempt):
            return {}
        allowance, clock = books.cycle.allowance, self._clock
        if not allowance.may_evict(pod.namespace, clock.monotonic()):
            books.postpone(pod.uid)
            return {}
        turn = allowance.has_turn(pod.namespace, clock.monotonic())
        work = Work(_MOST_PLANNING if turn else MOST)
        found = await self._planner.best(books, waiting, budgets, work, _PLANS + 1)
        allowance.spend(pod, work.taken, clock.monotonic())
        if not current():
            return {}
        # A plan is left out if it evicts no pod, because it only waits for leaving pods that are as important.
        plans = {
            plan.node: (plan, gone) for plan in found if (gone := to_be_gone(books, plan, pod))
        }
        if not plans and rejected:
            self.rejected.pop(pod.uid, None)
            return None
        if not plans:
            self._planner.give_up(pod)
        nodes = list(plans)[:_PLANS]
        for node in nodes[:1]:  # kube-scheduler compares nodes by nearly the same rules
            victims = [victim.uid for victim in plans[node][0].victims]
            allowance.evict(pod, victims, clock.monotonic())
        attempt.planned = {node: plans[node][0] for node in nodes}
        attempt.offered = tuple(nodes)
        attempt.more = len(plans) > len(nodes)
        books.counts["plugin planned"] += bool(nodes)
        return {node: plans[node][1] for node in nodes}
