"""Preemption over the books: finds the pods that need victims, and the victims that cost least.

kube-scheduler preempts only for resources that it counts itself. It does not count names that are left to the ledger,
so it sees room that does not exist and finds no pod to evict. If kube-scheduler has given up on a pod, and only its
devices keep it waiting, the service makes room itself, by the same rules (`scheduler.preemption`). If kube-scheduler
has found victims, and asks the extender, `proposed` checks whether they make room on the cards.

This module does not change the books. `plans` yields after every node. `Planner` compares the plans,
and lets other tasks run between two nodes.
"""

import asyncio
import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Final

from partage.extender.books import Books
from partage.extender.cycle import Cycle, asks
from partage.extender.unschedulable_pods import HOPELESS, WaitingPod
from partage.kube.clock import Clock
from partage.model.allocation import Allocation
from partage.model.pod import Pod
from partage.placement.card import MOST, Work
from partage.scheduler.decision import DryRun
from partage.scheduler.engine import Engine, State
from partage.scheduler.preemption import (
    MOST_A_PLAN,
    Bystanders,
    Occupant,
    Plan,
    least,
    planning,
    still,
)
from partage.wire.budgets import Budget
from partage.wire.pod_phase import condition

_ENOUGH: Final = 100
"""The search stops after so many nodes with a plan; kube-scheduler's own default."""
MOST_PLANNING: Final = 50 * MOST
"""Units of work that the plans for one pod may take over all nodes; other tasks run in between."""
_MOST_BUDGETS: Final = 200
"""The most disruption budgets read of one namespace; with more, one budget spares all pods of the namespace."""
_BUDGETS_A_UNIT: Final = 10
"""Comparisons of a pod with a budget that cost as much as one unit of work."""
_PASSED_A_UNIT: Final = 10
"""Nodes without a less important pod that cost as much as one unit of work."""
_HELD_A_UNIT: Final = 4
"""Pods of a node whose importance is compared for one unit of work."""


def proposed(
    cycle: Cycle,
    pod: Pod,
    candidates: Mapping[str, Sequence[str]],
    priority: Callable[[str], int | None],
    now: float,
) -> dict[str, tuple[str, ...]]:
    """Nodes where the evictions that kube-scheduler proposes make room on the cards, with the necessary victims.

    kube-scheduler's victims are already the fewest by its own rules, so this function spares none.
    If they make not enough room on the cards (two halves of different cards are no whole card),
    it adds less important pods of the node, as few as possible. It drops nodes where even that
    is not enough, and nodes that one decision's work does not reach.

    Args:
        candidates: victims by node, as kube-scheduler proposes them; may be empty.
        priority: gives the priority of a pod that holds devices; one of which it is not known is spared.
    """
    if not asks(pod):
        return {node: tuple(uids) for node, uids in candidates.items()}
    kept: dict[str, tuple[str, ...]] = {}
    work = Work()
    for node, uids in candidates.items():
        victims = list(uids)
        with cycle.engine.without(pod, node, work=work) as run:
            if not victims or run.grants(victims) is None:
                others = _others(cycle.engine, pod, node, victims, priority)
                added = _added(run, victims, others, work)
                if not added:
                    continue
                victims += added
        kept[node] = tuple(victims)
    cycle.allowance.spend(pod, work.taken, now)
    return kept


def _others(
    engine: Engine,
    pod: Pod,
    node: str,
    victims: Sequence[str],
    priority: Callable[[str], int | None],
) -> list[str]:
    """Less important pods of the node beside the victims, the least important first."""
    found = [
        (importance, held.uid)
        for held in engine.ledger.on_node(node)
        if held.uid not in victims
        and engine.states.get(held.uid) is State.BOUND
        and (importance := priority(held.uid)) is not None
        and importance < pod.priority
    ]
    return [uid for _, uid in sorted(found, key=itemgetter(0))]


def _added(run: DryRun, victims: Sequence[str], others: Sequence[str], work: Work) -> list[str]:
    """The least important pods of the node that make room when they go together with the victims."""

    def fits(gone: Collection[str]) -> bool:
        return run.grants([*victims, *gone]) is not None

    if not others or not fits(others):
        return []
    count = 1 + bisect_left(range(1, len(others)), True, key=lambda n: fits(others[:n]))
    *some, last = others[:count]
    added = [*least(some[::-1], lambda gone: fits([*gone, last])), last]
    # If no work is left, the list may contain pods that could be spared.
    return [] if work.spent else added


def abandoned(books: Books) -> list[str]:
    """Pods that cannot use the room made for them; their plans must be given up, and the pods tried again.

    Either all victims are gone and there is still no room, or kube-scheduler has other reasons
    against the node.
    """
    found = []
    for uid, plan in books.making_room.items():
        waiting = books.waiting.get(uid)
        if waiting is None or books.engine.states.get(uid) is State.HELD:
            continue
        if not _reachable(books, waiting, plan.node) or not books.leaving(plan.node):
            found.append(uid)
    return found


def preemptors(books: Books) -> list[WaitingPod]:
    """Pods for which others may be evicted; the most important first, then by the longest wait."""
    highest, lowest = books.waiting.highest, min(books.priorities, default=None)
    if highest is None or lowest is None or highest <= lowest:
        return []
    found = [
        waiting
        for waiting in books.waiting.values()
        if may_preempt(books, waiting) and given_up_on(books, waiting.entry.pod.uid)
    ]
    return sorted(found, key=lambda waiting: (-waiting.entry.pod.priority, waiting.since))


def may_preempt(books: Books, waiting: WaitingPod) -> bool:
    """Whether less important pods may be evicted for a refused pod."""
    lowest = min(books.priorities, default=None)
    uid = waiting.entry.pod.uid
    return (
        lowest is not None
        and waiting.entry.preempts
        and waiting.entry.pod.priority > lowest
        and waiting.refusal.code not in HOPELESS
        and waiting.among is not None
        # A woken pod that did not use the room made for it must return before more room is made.
        and not (waiting.asked and books.kept_in_vain(uid))
        and not _has_room_coming(books, waiting)
    )


def to_be_gone(books: Books, plan: Plan, pod: Pod) -> list[str]:
    """UIDs of a node's less important pods that must be gone before a plan for a pod on the node holds.

    They include pods that are leaving anyway. Leaving pods of the same or a higher priority are not
    among them: these cannot be evicted, so the plan waits for them.
    """
    _, counted, late = _leaving(books, pod, plan.node)
    leaving = [
        uid
        for uid in (counted - late if plan.victims else counted)
        if (entry := books.cluster_cache.pods.get(uid)) is not None
        and entry.pod.priority < pod.priority
    ]
    return sorted({*leaving, *(victim.uid for victim in plan.victims)})


def plans(
    books: Books,
    waiting: WaitingPod,
    budgets: Sequence[Budget],
    work: Work,
    start: int = 0,
    refused: Collection[str] = (),
) -> Generator[Plan | None, None, None]:
    """A plan for each node that has one, until enough are found.

    The generator yields None for other nodes, and in between on a node that takes long, so that other tasks can run.

    Args:
        start: the position in the order of nodes at which the search begins; it should vary between searches.
        refused: uids of pods that the API server lately did not evict.
    """
    engine, pod = books.engine, waiting.entry.pod
    names = [node.name for node in engine.ledger.nodes if node is not None]
    found, rules, vacating = 0, _Rules(budgets, refused), books.vacating()
    for offset in range(len(names)):
        if not offset % _PASSED_A_UNIT:
            work.done += 1
        name = names[(start + offset) % len(names)]
        if books.lowest.get(name, pod.priority) >= pod.priority and name not in vacating:
            continue
        if not _reachable(books, waiting, name) or books.kept_in_vain(pod.uid, name):
            continue
        work.done += sum(1 for _ in engine.ledger.on_node(name)) // _HELD_A_UNIT
        here = Work(min(MOST_A_PLAN, work.limit - work.done))
        occupants, beside = _around(books, pod, name, rules)
        plan = None
        if occupants or beside.leaving:
            steps = planning(engine, pod, name, occupants, rules.allowed, beside, here)
            plan = yield from steps
        work.done += here.done + len(occupants) * rules.most // _BUDGETS_A_UNIT
        yield plan
        found += plan is not None
        if found >= _ENOUGH or work.spent:
            return


def again(books: Books, waiting: WaitingPod, plan: Plan, budgets: Sequence[Budget]) -> Plan | None:
    """A plan for the present state of the books; None if it no longer makes room."""
    pod, node = waiting.entry.pod, plan.node
    if books.waiting.get(pod.uid) is not waiting:
        return None
    if not _reachable(books, waiting, node) or _has_room_coming(books, waiting):
        return None
    rules = _Rules(budgets)
    occupants, beside = _around(books, pod, node, rules)
    there = {one.uid: one for one in occupants}
    if any(one.uid not in there and one.uid not in beside.leaving for one in plan.victims):
        return None
    victims = tuple(there[one.uid] for one in plan.victims if one.uid in there)
    return still(books.engine, pod, Plan(node, victims), rules.allowed, beside)


class _Rules:
    """Disruption budgets by namespace.

    Attributes:
        allowed: how many more evictions each budget allows.
        most: the most budgets that one pod is compared with.
        refused: uids of pods that the API server lately did not evict.
    """

    def __init__(self, budgets: Sequence[Budget], refused: Collection[str] = ()) -> None:
        self.refused = refused
        self._of: dict[str, list[Budget]] = {}
        for one in budgets:
            self._of.setdefault(one.namespace, []).append(one)
        self.allowed = {one.key: one.allowed for one in budgets}
        self.most = max((min(len(of), _MOST_BUDGETS) for of in self._of.values()), default=0)

    def of(self, held: Allocation, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The keys of the budgets that count a pod."""
        mine = self._of.get(held.namespace, ())
        if len(mine) > _MOST_BUDGETS:
            # Kubernetes evicts no pod that several budgets count. Comparing each pod with thousands costs too much.
            self.allowed[held.namespace] = 0
            return (held.namespace,)
        return tuple(one.key for one in mine if one.counts(held.namespace, held.name, labels))


def _around(books: Books, pod: Pod, node: str, rules: _Rules) -> tuple[list[Occupant], Bystanders]:
    """The pods of a node that may be evicted for a pod, and those that leave or are nominated."""
    leaving, counted, late = _leaving(books, pod, node)
    occupants = []
    for held in books.engine.ledger.on_node(node):
        entry = books.cluster_cache.pods.get(held.uid)
        bound = books.engine.states.get(held.uid) is State.BOUND
        if entry is None or not bound or held.uid in leaving:
            continue
        if entry.pod.priority < pod.priority:
            mine = rules.of(held, entry.view.labels)
            born = born_at(books, held.uid)
            spared = held.uid in rules.refused
            occupants.append(Occupant(held.uid, entry.pod.priority, born, mine, spared))
    others = [one.pod for one in books.nominees(node) if one.pod.uid != pod.uid]
    beside = Bystanders(
        counted,
        late,
        tuple(one.uid for one in others if one.priority < pod.priority),
        tuple(one for one in others if one.priority >= pod.priority),
    )
    return occupants, beside


def _leaving(
    books: Books, pod: Pod, node: str
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The leaving pods of a node; of them those whose room counts for a pod; and of these the ones that may take long.

    All of them count if room is made for others there, which may be the room of any.
    """
    leaving, ending = books.leaving(node), books.ending
    if any(one.pod.uid != pod.uid for one in books.nominees(node)):
        return leaving, leaving, frozenset()
    counted = frozenset(filter(ending.comes, leaving))
    return leaving, counted, frozenset(uid for uid in counted if not ending.comes_soon(uid))


def _reachable(books: Books, waiting: WaitingPod, node: str) -> bool:
    """Whether only devices kept the pod off this node when kube-scheduler last asked."""
    index = books.engine.ledger.index.get(node)
    among = waiting.among
    if index is None or among is None or index >= among.shape[0]:
        return False
    return bool(among[index]) and books.engine.rank_at(index) < waiting.ranks


def _has_room_coming(books: Books, waiting: WaitingPod) -> bool:
    """Whether the service or kube-scheduler is making room for the pod already."""
    uid = waiting.entry.pod.uid
    node = books.nomination(uid)
    if not node:
        return False
    if uid in books.making_room or books.engine.states.get(uid) is State.HELD:
        return True
    return any(
        entry.pod.priority < waiting.entry.pod.priority or books.ending.comes_soon(uid)
        for uid in books.leaving(node)
        if (entry := books.cluster_cache.pods.get(uid))
    )


def given_up_on(books: Books, uid: str) -> bool:
    """Whether kube-scheduler has reported that it cannot place the pod, even by its own preemption."""
    document = books.cluster_cache.documents.get(uid)
    told = condition(document and document.shape, "PodScheduled")
    return told is not None and (told.status, told.reason) == ("False", "Unschedulable")


def born_at(books: Books, uid: str) -> float:
    """The creation time of a pod, in seconds since 1970; 0 if it is not known."""
    try:
        return datetime.fromisoformat(books.cluster_cache.born(uid) or "").timestamp()
    except ValueError:
        return 0.0


class Planner:
    """Finds the best plans for refused pods, and remembers the pods that no eviction helps."""

    def __init__(self, clock: Clock, patience: float, turn: float) -> None:
        """A planner that has given up on no pod yet.

        Args:
            patience: seconds without plans for a pod after no eviction helped a pod with the same request.
            turn: seconds after which a search lets other tasks run.
        """
        self._clock, self._patience, self._turn = clock, patience, turn
        self._vain: dict[tuple[int, ...], tuple[float, Pod]] = {}
        self._start = 0

    def in_vain(self, pod: Pod) -> bool:
        """Whether lately no eviction helped a pod with the same request."""
        known = self._vain.get(_alike(pod))
        return known is not None and known[0] > self._clock.monotonic()

    def give_up(self, pod: Pod) -> None:
        """Remember that no eviction helps this pod; pods with the same request get no plans for a while."""
        now = self._clock.monotonic()
        self._vain = {key: kept for key, kept in self._vain.items() if kept[0] > now}
        self._vain[_alike(pod)] = now + self._patience, pod

    async def best(
        self,
        books: Books,
        waiting: WaitingPod,
        budgets: Sequence[Budget],
        work: Work,
        most: int = 1,
        refused: Collection[str] = (),
    ) -> list[Plan]:
        """At most `most` plans over all nodes, the best first; see `plans`."""
        found: list[Plan] = []
        turn = self._clock.monotonic()
        self._start += 1
        for plan in plans(books, waiting, budgets, work, self._start * 101, refused):
            if plan is not None:
                found.append(plan)
            if self._clock.monotonic() >= turn + self._turn:
                await asyncio.sleep(0)
                turn = self._clock.monotonic()
        return heapq.nsmallest(most, found, key=lambda plan: plan.cost)


def _alike(pod: Pod) -> tuple[int, ...]:
    """A key that is equal for pods with the same plans; equal readings are one object, so identities are enough."""
    return id(pod.request), id(pod.constraint), id(pod.tolerations), pod.priority
