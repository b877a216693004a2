"""Connects the engine with documents, the scheduling cycle, waiting pods and hooks.

The books take events, and produce wake-ups and reports; everything is synchronous. Two rules keep them consistent.
After every release of room the books check the waiting pods. A pod that preemption nominated gets its hold before any
other pod is woken for the room that was made.
"""

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from partage.extender.cluster_cache import ClusterCache
from partage.extender.cycle import HOLD, Allowance, Cycle
from partage.extender.leaving_pods import LeavingPods
from partage.extender.ports import Hooks
from partage.extender.stories import SILENT, Stories
from partage.extender.unschedulable_pods import HOPELESS, UnschedulablePods
from partage.inventory.plane import Bools
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.placement.card import Work
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import (
    Action,
    BindSucceeded,
    Event,
    HoldEnded,
    PodGone,
    PodRead,
    PodSeen,
    Quarantined,
    QuotasChanged,
    ReadBack,
    Released,
    Unserviceable,
)
from partage.scheduler.preemption import Plan
from partage.wire.translation import PodEntry

_LOG = logging.getLogger("partage.extender")
_UNHEARD: Final = 60.0
"""Seconds after which the service reads a refused pod that the API server has not reported."""
_UNTOLD: Final = 10.0
"""The same for a pod that was bound here: if it has gone unnoticed, its devices must be released."""
_LEAVING_SECONDS: Final = 600.0
_FREE_SECONDS: Final = 120.0
"""Seconds for which room is kept for a nominated pod: while victims leave, and once all of it is free."""
_GIVEN_BACK: Final = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Seconds after which room that a pod gave back is news: for the first time, the second, and so on. They are those after
which kube-scheduler itself tries a pod again."""
_MOST_POSTPONED: Final = 8
"""Pods to wake at a time because victims are allowed for them again."""
_MOST_WOKEN: Final = 20_000
_MOST_UNSAID: Final = 1000
"""The newest findings about nodes, kept until this instance leads."""
_PASSED_A_UNIT: Final = 10
"""Pods whose importance is compared for one unit of work."""
_MOST_READ: Final = 8
"""Unreported pods to read at a time."""


class Books:
    """One engine, and the service's data beside it.

    Attributes:
        waiting: refused pods.
        unread: pods whose Binding has an unknown outcome; the service reads them back.
        counts: number of occurrences by name, for metrics.
        making_room: the plans for waiting pods whose victims are being evicted, by the waiting pod's uid.
        priorities: number of bound pods with devices, by priority.
        lowest: the lowest priority of the pods with devices that are bound to a node, by its name.
        postponed: uids of waiting pods that may preempt once their namespace's allowance has
            victims left.
        woken_at: when pods that wait no longer were woken, until they are bound; new books take it over.
    """

    def __init__(
        self,
        cluster_cache: ClusterCache,
        hooks: Hooks,
        *,
        hold: float = HOLD,
        batch: int = 64,
        engine: Callable[[Policy], Engine] = Engine,
        stories: Stories = SILENT,
        allowance: Allowance | None = None,
    ) -> None:
        self.engine = engine(cluster_cache.policy)
        self._stories = stories
        self.cluster_cache = cluster_cache
        self.hooks = hooks
        self.cycle = Cycle(self.engine, hold, allowance)
        self.waiting = UnschedulablePods(batch)
        self.unread: dict[str, PodEntry] = {}
        self.counts: Counter[str] = Counter()
        self._nominated: dict[str, dict[str, PodEntry]] = {}
        self._nomination: dict[str, str] = {}
        self._freed: set[str] = set()
        self.making_room: dict[str, Plan] = {}
        self.priorities: Counter[int] = Counter()
        self.postponed: OrderedDict[str, None] = OrderedDict()
        self.woken_at: OrderedDict[str, float] = OrderedDict()
        # By uid, the node where room is kept for a nominated pod, and until when: at most, and usually.
        self._kept_until: dict[str, tuple[str, float, float]] = {}
        self._in_vain: dict[str, str] = {}
        self._unasked: set[str] = set()  # of these, those that kube-scheduler has not tried since
        self._released: dict[str, str] = {}
        # By uid, how often a waiting pod gave its place back; by node, from when on such room is news.
        self._gave_back: dict[str, int] = {}
        self._given_back: dict[str, float] = {}
        # Nominated pods with new holds; not before a time, waiting pods are compared with their room.
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._compared = 0.0
        # The position of the first nominated node that the last search for such room did not reach.
        self._unsearched = 0
        self.lowest: dict[str, int] = {}
        self._standing: dict[str, tuple[int, str]] = {}
        self._standing_on: dict[str, Counter[int]] = {}
        self.ending = LeavingPods()
        self._strangers: dict[str, float] = {}
        self._untold: dict[str, tuple[PodEntry, float]] = {}
        # Findings made while this instance did not lead, as in a rebuild; replaced books never report theirs.
        self._unsaid: deque[Quarantined | Unserviceable] = deque(maxlen=_MOST_UNSAID)

    @property
    def settled(self) -> bool:
        """Whether the outcome of every Binding is known."""
        return not self.unread and State.UNKNOWN not in self.engine.states.values()

    # --- asking ------------------------------------------------------------------------------

    def past(self, entry: PodEntry, node: str | None = None) -> str:
        """The reason why a pod cannot be placed any more, which the caller may not know yet; else empty.

        Args:
            node: the target node; a pod that is already there is no fault.
        """
        if entry.pod.uid in self.cluster_cache.deleted:
            return f"pod {entry.pod.key} is gone"
        known = self.cluster_cache.pods.get(entry.pod.uid)
        if known is None:
            return ""
        if known.pod.finished:
            return f"pod {entry.pod.key} has ended"
        if known.pod.node is not None and known.pod.node != node:
            return f"pod {entry.pod.key} is on node {known.pod.node} already"
        return ""

    def asked(self, uid: str) -> PodEntry | None:
        """A pod that a question is about, read by the present registrars of nodes; None for one without devices."""
        if uid in self.cluster_cache.outdated:
            self.cluster_cache.renew(uid)
        return self.cluster_cache.pods.get(uid)

    def asking(self, entry: PodEntry) -> Pod:
        """A pod, with its requests beside devices if kube-scheduler has reported such amounts of nodes."""
        return replace(entry.pod, host=entry.host) if self.cluster_cache.taken else entry.pod

    def priority(self, uid: str) -> int | None:
        """The priority of a pod; None if it is not known."""
        entry = self.cluster_cache.pods.get(uid)
        return entry.pod.priority if entry is not None else None

    def unreported(self, namespace: str, name: str) -> PodEntry | None:
        """A pod that kube-scheduler asked about, and that the API server has not reported yet."""
        waiting = map(self.waiting.get, self._strangers)
        entries = (one.entry for one in waiting if one is not None)
        return next(
            (e for e in entries if (e.pod.namespace, e.pod.name) == (namespace, name)), None
        )

    # --- facts in ----------------------------------------------------------------------------

    def take(self, events: Iterable[Event], now: float) -> None:
        """Pass events to the engine, and give the freed room to waiting pods."""
        self.digest(events)
        self.settle(now)

    def digest(self, events: Iterable[Event]) -> None:
        """Pass events to the engine only; a caller that fills the books settles once, at the end."""
        for event in events:
            # A quota's status changes with every pod; only its limits count.
            if isinstance(event, QuotasChanged) and event.quotas != self.engine.quotas.quotas:
                self.waiting.quotas_changed()
            actions = self.engine.handle(event)
            match event:
                case PodSeen(pod):
                    self._stands(pod.uid)
                case PodGone(uid) | PodRead(uid) | BindSucceeded(uid):
                    self._stands(uid)
            if actions:
                self._follow(actions)

    def pod_seen(self, entry: PodEntry, now: float) -> None:
        """Take in a pod with devices that the API server reported: it may be placed or nominated now."""
        pod = entry.pod
        self._stands(pod.uid)
        meta = self.cluster_cache.documents[pod.uid].metadata
        if meta.deletion_timestamp is not None:
            self.ending.seen(pod.uid, meta.deletion_grace_period_seconds, now)
        self._untold.pop(pod.uid, None)
        if pod.node is not None or pod.finished:
            self._arrived(pod.uid, now)
            self.forget(pod.uid)
            return
        if pod.uid in self.ending:
            # kube-scheduler tries it no more, and the API server binds it no more, whatever finalizer keeps it.
            if self.engine.states.get(pod.uid) in {State.HELD, State.CLEARING}:
                self.give_up(pod.uid, now)
            self.forget(pod.uid)
            return
        plan = self.making_room.get(pod.uid)
        if plan is not None and entry.nominated in ("", plan.node):
            return  # the pod's field may be late; the plan holds until it is given up
        before = self._nomination.get(pod.uid, "")
        if entry.nominated == before:
            return
        held = self.engine.ledger.allocation(pod.uid)
        ended = not entry.nominated or self.kept_in_vain(pod.uid, entry.nominated)
        if ended and held is not None and held.node == before:
            self.give_up(pod.uid, now)  # it is no longer nominated there: others may have the room
            return
        self._withdraw(pod.uid)
        if entry.nominated:
            self._nominate(entry, entry.nominated)
            self.settle(now)

    def _nominate(self, entry: PodEntry, node: str) -> None:
        uid = entry.pod.uid
        if self.kept_in_vain(uid, node) or self._released.get(uid) == node or uid in self._unasked:
            return
        self._nomination[uid] = node
        self._nominated.setdefault(node, {})[uid] = entry
        self._freed.add(node)

    def kept_in_vain(self, uid: str, node: str = "") -> bool:
        """Whether the room kept for a pod on this node, or any, expired unused; then no more is kept there."""
        where = self._in_vain.get(uid)
        return where is not None and node in {"", where}

    def released(self, uid: str, node: str) -> None:
        """Keep no room on a node for a pod whose place there was released, until kube-scheduler tries the pod again.

        kube-scheduler also nominates a pod for its own place while the pod waits for others of its group. It may leave
        that nomination when the group fails.
        """
        if uid in self.cluster_cache.pods:
            self._released[uid] = node
        if self._nomination.get(uid) == node:
            self._withdraw(uid)

    def give_back(self, uid: str, ends: Iterable[Event], now: float) -> None:
        """End what a pod holds that kube-scheduler does not bind, and wake other pods for its room after a pause.

        A group's pods wait for each other with their places reserved, and give them back when one has none. Without a
        pause that one would be woken, take such a place, and let another pod of the group fail, without an end.
        """
        nodes = {
            one.node
            for end in ends
            for one in self.engine.handle(end)
            if isinstance(one, Released)
        }
        if not nodes:
            return
        times = self._gave_back[uid] = self._gave_back.get(uid, 0) + 1
        due = now + _GIVEN_BACK[min(times, len(_GIVEN_BACK)) - 1]
        for node in nodes:
            self._given_back[node] = min(due, self._given_back.get(node, due))
        self.settle(now, nodes)

    def tried_again(self, uid: str) -> None:
        """A new attempt to schedule a pod begins, and may lead to a nomination of any node."""
        self._released.pop(uid, None)
        self._unasked.discard(uid)

    def postpone(self, uid: str) -> None:
        """Evict no pod for this one now, because pods of its namespace had enough victims."""
        if uid not in self.postponed:
            self.counts["preemption postponed"] += 1
            self.postponed[uid] = None

    def _stands(self, uid: str) -> None:
        """Count a pod by its priority and its node if it is bound; asked after all news of it."""
        entry, held = self.cluster_cache.pods.get(uid), self.engine.ledger.allocation(uid)
        bound = self.engine.states.get(uid) is State.BOUND
        now = (entry.pod.priority, held.node) if bound and entry and held else None
        before = self._standing.get(uid)
        if now == before:
            return
        if before is not None:
            priority, node = before
            del self._standing[uid]
            here = self._standing_on[node]
            for counted in (self.priorities, here):
                counted[priority] -= 1
                if not counted[priority]:
                    del counted[priority]
            if here:
                self.lowest[node] = min(here)
            else:
                del self._standing_on[node], self.lowest[node]
        if now is not None:
            priority, node = self._standing[uid] = now
            self.priorities[priority] += 1
            self._standing_on.setdefault(node, Counter())[priority] += 1
            self.lowest[node] = min(priority, self.lowest.get(node, priority))

    def pod_gone(self, uid: str) -> None:
        """Forget a deleted pod."""
        self.forget(uid)
        self.ending.pop(uid, None)
        self.unread.pop(uid, None)
        self._untold.pop(uid, None)
        if uid in self.engine.states:
            # kube-scheduler asked about the pod before its document arrived, and now that never will.
            self._follow(self.engine.handle(PodGone(uid)))
            self._stands(uid)

    def forget(self, uid: str) -> None:
        """Forget the reason and the nomination of a pod that needs no place any more."""
        self.cycle.forget(uid)
        if uid in self.waiting:
            self.waiting.leave(uid)
        self._strangers.pop(uid, None)
        self.postponed.pop(uid, None)
        self._kept_until.pop(uid, None)
        self._in_vain.pop(uid, None)
        self._unasked.discard(uid)
        self._released.pop(uid, None)
        self._gave_back.pop(uid, None)
        self._withdraw(uid)

    # --- room that is made -------------------------------------------------------------------

    def make_room(self, entry: PodEntry, plan: Plan, now: float) -> None:
        """Keep the free part of a place for a pod from now on, because its victims are being evicted.

        Less important pods lose the room that was kept for them there.
        """
        for mate in self.nominees(plan.node):
            if mate.pod.priority < entry.pod.priority:
                self._stop_keeping(mate.pod.uid)
        self._withdraw(entry.pod.uid)
        self.making_room[entry.pod.uid] = plan
        self._nominate(entry, plan.node)
        self.settle(now)

    def confirm(self, uid: str, now: float) -> None:
        """Keep a pod's room by its nomination from now on, and not by its plan, whose victims may not all be evicted."""
        self._freed.add(self.making_room.pop(uid).node)
        self.settle(now)

    def give_up(self, uid: str, now: float) -> None:
        """Stop making and keeping room for a pod."""
        self._stop_keeping(uid)
        self.settle(now)

    def _stop_keeping(self, uid: str) -> None:
        self._withdraw(uid)
        self._end_hold(uid)

    def _end_hold(self, uid: str) -> None:
        self.cycle.holds.pop(uid, None)
        self._follow(self.engine.handle(HoldEnded(uid)))

    def yields(
        self, pod: Pod, refusal: Refusal, among: Bools | None, work: Work | None, now: float
    ) -> bool:
        """End the holds of less important nominated pods on one node where a refused pod then has a place.

        kube-scheduler protects a nominated pod from less important pods alone. The nominations stay, so these pods get
        what the other leaves.

        Args:
            among: by node index, the nodes in question; None for all.
            work: the work that the answer may take; None defers the pod without a search.

        Returns:
            Whether there is such a node.
        """
        if work is None or refusal.code in HOPELESS:
            return False
        work.go_on()
        with self.cycle.allowance.charged(pod, work, now):
            return self._yields(pod, among, work)

    def _yields(self, pod: Pod, among: Bools | None, work: Work) -> bool:
        nodes = [*self._nominated]
        first, self._unsearched = self._unsearched, 0
        passed = 0
        for offset in range(len(nodes)):
            if work.spent:
                # The search on the last node may have been cut off, so that node is the next first one.
                self._unsearched = first + max(1, offset - 1)
                break
            node = nodes[(first + offset) % len(nodes)]
            mates = self._nominated[node]
            passed += len(mates)
            work.done += passed // _PASSED_A_UNIT
            passed %= _PASSED_A_UNIT
            index = self.engine.ledger.index.get(node)
            if index is None or (among is not None and not among[index]):
                continue
            less = [
                uid
                for uid, mate in mates.items()
                if mate.pod.priority < pod.priority
                and self.engine.states.get(uid) in {State.HELD, State.CLEARING}
                and uid not in self.cycle.answered
            ]
            if less and self.engine.grants_without(pod, node, less, work=work) is not None:
                for uid in less:
                    self._end_hold(uid)
                return True
        return False

    def nomination(self, uid: str) -> str:
        """The node on which room is made for the pod; empty if there is none."""
        return self._nomination.get(uid, "")

    def nominees(self, node: str) -> Sequence[PodEntry]:
        """Pods for which room is made on a node, most important first."""
        return sorted(self._nominated.get(node, {}).values(), key=lambda one: -one.pod.priority)

    def leaving(self, node: str) -> frozenset[str]:
        """Uids of a node's pods that are leaving: they are being deleted, or they are victims of a plan."""
        sent = {
            victim.uid
            for uid in self._nominated.get(node, ())
            if uid in self.making_room
            for victim in self.making_room[uid].victims
        }
        return frozenset(
            held.uid
            for held in self.engine.ledger.on_node(node)
            if held.uid in sent or held.uid in self.ending
        )

    def vacating(self) -> set[str]:
        """Nodes that pods may be leaving; on all others none is."""
        held = map(self.engine.ledger.allocation, self.ending)
        return {one.node for one in held if one is not None}.union(self._nominated)

    def _withdraw(self, uid: str) -> None:
        self.making_room.pop(uid, None)
        node = self._nomination.pop(uid, None)
        if node is not None:
            mates = self._nominated[node]
            del mates[uid]
            if not mates:
                del self._nominated[node]

    def left(self, uid: str) -> None:
        """Remove a pod with a place from the waiting ones; the time at which it was woken is kept until it is bound."""
        waiting = self.waiting.leave(uid) if uid in self.waiting else None
        if waiting is not None and waiting.woken is not None:
            self.woken_at[uid] = waiting.woken
            if len(self.woken_at) > _MOST_WOKEN:
                self.woken_at.popitem(last=False)

    def _arrived(self, uid: str, now: float) -> None:
        """Report the time from a pod's wake-up to its Binding, if it was woken."""
        woken = self.woken_at.pop(uid, None)
        if woken is not None:
            self.hooks.bound(now - woken)

    def bound(self, entry: PodEntry, now: float) -> None:
        """Take in that a pod was bound; the API server may not even have reported its creation."""
        self.take([BindSucceeded(entry.pod.uid)], now)
        self._arrived(entry.pod.uid, now)
        self.forget(entry.pod.uid)
        if self.cluster_cache.pods.get(entry.pod.uid) is None:
            self._untold[entry.pod.uid] = (entry, now)

    def untold(self, uid: str) -> bool:
        """Whether the pod was bound here and the API server has not reported it yet."""
        return uid in self._untold

    def unheard(self, now: float) -> Sequence[PodEntry]:
        """Pods that the API server has not reported for long; each once in a while.

        A pod that was created and deleted while the watch was interrupted would wait for ever, or
        keep its devices.
        """
        found: list[PodEntry] = []
        for uid, (entry, asked) in list(self._untold.items()):
            if now >= asked + _UNTOLD and len(found) < _MOST_READ:
                self._untold[uid] = (entry, now)
                found.append(entry)
        for uid, asked in list(self._strangers.items()):
            waiting = self.waiting.get(uid)
            if waiting is None or self.cluster_cache.pods.get(uid) is not None:
                del self._strangers[uid]
            elif now >= asked + _UNHEARD and len(found) < _MOST_READ:
                self._strangers[uid] = now
                found.append(waiting.entry)
        return found

    # --- what follows ------------------------------------------------------------------------

    def refuse(
        self,
        entry: PodEntry,
        refusal: Refusal,
        now: float,
        among: Bools | None = None,
        *,
        grouped: bool = False,
    ) -> None:
        """Let a refused pod wait, and report the refusal to the hooks if it is news.

        Args:
            among: by node index, the nodes where only devices were in the way.
            grouped: other pods of its group held places for the time of the group's cycle.
        """
        news = self.awaits(entry, refusal, now, among)
        waiting = self.waiting.get(entry.pod.uid)
        if waiting is not None:
            waiting.grouped = grouped
        if news:
            self._stories.tell(entry, self.engine.decision_id, f"waits: {refusal.code}")
            self.hooks.refused(entry, refusal)

    def awaits(
        self, entry: PodEntry, refusal: Refusal, now: float, among: Bools | None = None
    ) -> bool:
        """Let a pod wait for devices; return whether the reason is news. The arguments are those of `refuse`."""
        if entry.pod.uid in self.ending:
            return False
        if self.cluster_cache.pods.get(entry.pod.uid) is None:
            self._strangers[entry.pod.uid] = now
        news = self.waiting.enter(entry, refusal, now)
        waiting = self.waiting.get(entry.pod.uid)
        if waiting is not None:
            waiting.among, waiting.ranks = among, self.engine.ranks
        return news

    def tick(self, now: float) -> None:
        """Do what is due: end holds, wake the next waiting pods, and wake those again that did not return."""
        self.ending.now = now
        while self._unsaid and self.hooks.leads():
            self._follow([self._unsaid.popleft()])
        self._end_late(now)
        self._follow(self.cycle.expire(now))
        for node in [node for node, due in self._given_back.items() if due <= now]:
            del self._given_back[node]
            self._freed.add(node)
        # A nomination outlives its hold, and gets a new hold while there is room.
        ledger, nominated = self.engine.ledger, self._nominated.items()
        hopeful = [node for node, mates in nominated if any(uid not in ledger for uid in mates)]
        self.settle(now, hopeful)
        again = self.waiting.to_wake_again(self.engine, now)
        again += self.waiting.to_search(self.cycle.allowance, now)
        again += self._to_preempt(now)
        if again:
            self.counts["woken"] += len(again)
            self.hooks.wake(again)

    def _keep_until(self, uid: str, node: str, now: float, *, whole: bool) -> None:
        """Set the times until which room is kept for a nominated pod, at most and usually, counted from the first call."""
        where, last, until = self._kept_until.get(uid, ("", 0.0, 0.0))
        if where != node:
            last = until = now + _LEAVING_SECONDS
        self._kept_until[uid] = node, last, min(until, now + _FREE_SECONDS) if whole else until

    def _end_late(self, now: float) -> None:
        """Give up room that was kept for long, because something else stops the pod or its victims.

        A pod with all of its room may wait for others of its group. So the room is kept on while victims for other pods
        of its namespace end.
        """
        states, clearing = self.engine.states, set[str]()
        whole = {
            self._nominated[node][uid].pod.namespace
            for uid, (node, last, until) in self._kept_until.items()
            if until < last and self._nomination.get(uid) == node
        }
        for node, mates in self._nominated.items() if whole else ():
            late = {
                one.pod.namespace
                for uid, one in mates.items()
                if states.get(uid) in {None, State.CLEARING}
            }
            if late & whole - clearing and self.leaving(node):
                clearing |= late
        for uid, (node, last, until) in list(self._kept_until.items()):
            if self._nomination.get(uid) != node:
                del self._kept_until[uid]
                continue
            if self._nominated[node][uid].pod.namespace in clearing:
                self._kept_until[uid] = node, last, min(last, max(until, now + _FREE_SECONDS))
            ended = now >= self._kept_until[uid][-1]
            if ended and states.get(uid) in {None, State.HELD, State.CLEARING}:
                del self._kept_until[uid]
                self._in_vain[uid] = node
                self._unasked.add(uid)
                self.counts["nomination ended"] += 1
                self.give_up(uid, now)

    def _to_preempt(self, now: float) -> list[str]:
        """The next postponed pods to wake, because victims are allowed for them again."""
        found: list[str] = []
        for uid in list(self.postponed):
            waiting = self.waiting.get(uid)
            if waiting is None:
                del self.postponed[uid]
            elif self.cycle.allowance.may_evict(waiting.entry.pod.namespace, now):
                del self.postponed[uid]
                if self.waiting.woken(uid, now):
                    found.append(uid)
            if len(found) >= _MOST_POSTPONED:
                break
        return found

    def settle(self, now: float, beside: Iterable[str] = ()) -> None:
        """Give freed room to the pods nominated for it, then wake the pods that may fit.

        A nominated pod with all of its room is woken as well, because its own hold makes the room
        look taken.

        `beside`: nodes on which only the nominated pods are tried, because no room is new there.
        """
        if self.cycle.vacated:
            self._freed |= self.cycle.vacated
            self.cycle.vacated.clear()
        woken: list[str] = []
        for node in sorted(self._freed.union(beside)):  # the order decides which holds get a quota
            mates = self.nominees(node)
            leaving = self.leaving(node) if mates else ()
            for entry in mates:
                uid = entry.pod.uid
                whole = self.cycle.nominate(entry.pod, node, now, leaving)
                self._keep_until(uid, node, now, whole=whole)
                if whole:
                    self._kept[uid] = None
                if whole and self.waiting.woken(uid, now):
                    woken.append(uid)
            if node in self._freed:
                self.waiting.room_on(node)
        self._freed.clear()
        if self._kept and now >= self._compared:
            woken += self._first(now)
        if self.waiting:
            woken += self.waiting.to_wake(self.engine, now)
        if woken:
            self.counts["woken"] += len(woken)
            self.hooks.wake(woken)

    def _first(self, now: float) -> list[str]:
        """Wake the most important waiting pod for each room that is kept for a less important one.

        Equal pods are compared with a room once. One call takes at most the work of one decision. The next call, a little
        later, takes the rooms that this one did not reach.
        """
        kinds: dict[tuple[int, ...], deque[Pod]] = {}
        lowest = min(
            (one.pod.priority for one in map(self._nominee, self._kept) if one), default=None
        )
        for pod in self.waiting.above(lowest, now) if lowest is not None else ():
            same = map(id, (pod.request, pod.host, pod.constraint, pod.tolerations))
            kinds.setdefault((pod.priority, *same), deque()).append(pod)
        woken: list[str] = []
        work = Work()
        while self._kept and kinds and not work.spent:
            uid, _ = self._kept.popitem(last=False)
            mate = self._nominee(uid)
            if mate is None or self.engine.states.get(uid) is not State.HELD:
                continue
            node = self._nomination[uid]
            work.done += len(kinds) // _PASSED_A_UNIT
            for alike, pods in kinds.items():
                pod = pods[0]
                if pod.priority <= mate.pod.priority or work.spent:
                    continue
                if self.engine.grants_without(pod, node, [uid], work=work) is not None:
                    self.waiting.woken(pods.popleft().uid, now)
                    woken.append(pod.uid)
                    if not pods:
                        del kinds[alike]
                    break
        if not kinds:
            self._kept.clear()
        self._compared = now + self.waiting.pause(spent=work.spent)
        return woken

    def _nominee(self, uid: str) -> PodEntry | None:
        return self._nominated.get(self._nomination.get(uid, ""), {}).get(uid)

    def _follow(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Released(node):
                    self._freed.add(node)
                case Quarantined() | Unserviceable() if not self.hooks.leads():
                    self._unsaid.append(action)
                case Quarantined():
                    self.counts["quarantined"] += 1
                    _LOG.warning("node %s: quarantined: %s", action.node, action.message)
                    self.hooks.quarantined(action)
                case Unserviceable():
                    _LOG.warning("node %s: %s", action.node, action.message)
                    self.hooks.unserviceable(action)
                case ReadBack(uid):
                    entry = self.cluster_cache.pods.get(uid)
                    if entry is not None:
                        self.unread.setdefault(uid, entry)
