"""The engine with everything that hangs on it: documents, the scheduling cycle, waiting pods, listeners.

Events go in, wake-ups and notices come out; everything is synchronous. Two rules keep the books consistent. After every
release of room the books check the waiting pods. A nominated pod of preemption gets its hold before any other pod is
woken for the room that was made for it.
"""

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from partage.extender.allowance import Allowance
from partage.extender.cluster_cache import ClusterCache
from partage.extender.cycle import HOLD, Cycle
from partage.extender.ports import Hooks
from partage.extender.unschedulable_pods import UnschedulablePods
from partage.extender.verbs import Verbs
from partage.inventory.plane import Bools
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import (
    Action,
    Event,
    HoldEnded,
    PodGone,
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
"""Seconds after which a refused pod is read of which the API server has told nothing."""
_UNTOLD: Final = 10.0
"""The same for a pod that was bound here: what it holds must not stay if it has come and gone."""
_CLEARED_SECONDS: Final = 600.0
_CLAIMED_SECONDS: Final = 120.0
"""For which room is kept for a nominated pod while others leave, and once all of it is free."""
_MOST_POSTPONED: Final = 8
"""Pods that are woken at a time because others may go for them again."""
_MOST_UNSAID: Final = 1000
"""Findings about nodes that are kept until this instance leads, the newest."""
_MOST_READ: Final = 8
"""Such pods that are read at a time."""


class Books:
    """One engine and what is known beside it.

    Attributes:
        cycle: the steps of a decision over the engine.
        verbs: the extender's, over the same steps.
        waiting: pods that were refused.
        unread: pods whose Binding has an unknown outcome; the service reads them back.
        counts: how often what happened, by name; for metrics.
        making_room: waiting pods for which others are sent away, by uid: where, and whom.
        priorities: of bound pods with devices: how many have each.
        postponed: uids of waiting pods for which others may go once their namespace's allowance has
            victims left.
    """

    def __init__(
        self,
        cluster_cache: ClusterCache,
        hooks: Hooks,
        *,
        hold: float = HOLD,
        batch: int = 64,
        engine: Callable[[Policy], Engine] = Engine,
        trace: Callable[[PodEntry], str] = lambda _: "",
        allowance: Allowance | None = None,
    ) -> None:
        self.engine = engine(cluster_cache.policy)
        self._trace = trace
        self.cluster_cache = cluster_cache
        self.hooks = hooks
        self.cycle = Cycle(self.engine, hold, allowance)
        self.verbs = Verbs(self.cycle)
        self.waiting = UnschedulablePods(batch)
        self.unread: dict[str, PodEntry] = {}
        self.counts: Counter[str] = Counter()
        self._nominated: dict[str, dict[str, PodEntry]] = {}
        self._nomination: dict[str, str] = {}
        self._freed: set[str] = set()
        self.making_room: dict[str, Plan] = {}
        self.priorities: Counter[int] = Counter()
        self.postponed: OrderedDict[str, None] = OrderedDict()
        self._claims: dict[str, tuple[str, float]] = {}
        self._in_vain: dict[str, str] = {}
        self._standing: dict[str, int] = {}
        self._strangers: dict[str, float] = {}
        self._untold: dict[str, tuple[PodEntry, float]] = {}
        # What was found while this instance did not lead, as in a rebuild; books of the past are never asked.
        self._unsaid: deque[Quarantined | Unserviceable] = deque(maxlen=_MOST_UNSAID)

    @property
    def settled(self) -> bool:
        """Whether what became of every Binding is known."""
        return not self.unread and State.UNKNOWN not in self.engine.states.values()

    # --- facts in ----------------------------------------------------------------------------

    def take(self, events: Iterable[Event], now: float) -> None:
        """Tell the engine, and do what follows from it.

        Args:
            events: in the order in which they happened.
            now: seconds on the service's steady clock.
        """
        self.digest(events)
        self.settle(now)

    def digest(self, events: Iterable[Event]) -> None:
        """Tell the engine only; the caller that fills the books settles once, at the end."""
        for event in events:
            # A quota's status changes with every pod; only its limits count.
            if isinstance(event, QuotasChanged) and event.quotas != self.engine.quotas.quotas:
                self.waiting.quotas_changed()
            actions = self.engine.handle(event)
            if actions:
                self._follow(actions)

    def pod_seen(self, entry: PodEntry, now: float) -> None:
        """A pod that concerns devices was seen: it may have been placed, or nominated."""
        pod = entry.pod
        self._stands(pod.uid, None if pod.node is None or pod.finished else pod.priority)
        self._untold.pop(pod.uid, None)
        if pod.node is not None or pod.finished:
            self.forget(pod.uid)
            return
        plan = self.making_room.get(pod.uid)
        if plan is not None and entry.nominated in ("", plan.node):
            return  # what the pod says of it may be late; the plan holds until it is given up
        before = self._nomination.get(pod.uid, "")
        if entry.nominated == before:
            return
        held = self.engine.ledger.allocation(pod.uid)
        if not entry.nominated and held is not None and held.node == before:
            self.give_up(pod.uid, now)  # it is no longer nominated there: others may have the room
            return
        self._withdraw(pod.uid)
        if entry.nominated:
            self._nominate(entry, entry.nominated)
            self.settle(now)

    def _nominate(self, entry: PodEntry, node: str) -> None:
        if self.kept_in_vain(entry.pod.uid, node):
            return
        self._nomination[entry.pod.uid] = node
        self._nominated.setdefault(node, {})[entry.pod.uid] = entry
        self._freed.add(node)

    def kept_in_vain(self, uid: str, node: str = "") -> bool:
        """Whether room was kept for a pod in vain for long, there or anywhere: it is kept there no more."""
        where = self._in_vain.get(uid)
        return where is not None and node in {"", where}

    def postpone(self, uid: str) -> None:
        """Send no pod away for this one now, as enough were for others of its namespace."""
        if uid not in self.postponed:
            self.counts["preemption postponed"] += 1
            self.postponed[uid] = None

    def _stands(self, uid: str, priority: int | None) -> None:
        """Count a bound pod by priority; None for one that is not bound."""
        before = self._standing.pop(uid, None)
        if before is not None:
            self.priorities[before] -= 1
            if not self.priorities[before]:
                del self.priorities[before]
        if priority is not None:
            self._standing[uid] = priority
            self.priorities[priority] += 1

    def pod_gone(self, uid: str) -> None:
        """A pod is gone."""
        self.forget(uid)
        self._stands(uid, None)
        self.unread.pop(uid, None)
        self._untold.pop(uid, None)
        if uid in self.engine.states:
            # Kube-scheduler asked for it before its documents came, and they never will.
            self._follow(self.engine.handle(PodGone(uid)))

    def forget(self, uid: str) -> None:
        """The pod needs no place any more: no reason, no nomination."""
        self.cycle.forget(uid)
        self.waiting.leave(uid)
        self._strangers.pop(uid, None)
        self.postponed.pop(uid, None)
        self._claims.pop(uid, None)
        self._in_vain.pop(uid, None)
        self._withdraw(uid)

    # --- room that is made -------------------------------------------------------------------

    def make_room(self, entry: PodEntry, plan: Plan, now: float) -> None:
        """Others are sent away for a pod; what is free of its place is kept for it from now on.

        Less important pods for which room was kept there lose their claim.
        """
        for mate in self.nominees(plan.node):
            if mate.pod.priority < entry.pod.priority:
                self.give_up(mate.pod.uid, now)
        self._withdraw(entry.pod.uid)
        self.making_room[entry.pod.uid] = plan
        self._nominate(entry, plan.node)
        self.settle(now)

    def give_up(self, uid: str, now: float) -> None:
        """No room is made for the pod any more, and none kept."""
        self._withdraw(uid)
        self._follow(self.engine.handle(HoldEnded(uid)))
        self.cycle.forget_hold(uid)
        self.settle(now)

    def nomination(self, uid: str) -> str:
        """The node on which room is made for the pod; empty when there is none."""
        return self._nomination.get(uid, "")

    def nominees(self, node: str) -> Sequence[PodEntry]:
        """Pods for which room is made on a node, most important first."""
        return self._by_priority(self._nominated.get(node, {}).values())

    def leaving(self, node: str) -> frozenset[str]:
        """Pods of a node that are on their way out: they end, or are being sent away."""
        sent = {
            victim.uid
            for uid in self._nominated.get(node, ())
            if uid in self.making_room
            for victim in self.making_room[uid].victims
        }
        return frozenset(
            held.uid
            for held in self.engine.ledger.on_node(node)
            if held.uid in sent or self._ends(held.uid)
        )

    def _ends(self, uid: str) -> bool:
        document = self.cluster_cache.document(uid)
        return document is not None and document.metadata.deletion_timestamp is not None

    def _withdraw(self, uid: str) -> None:
        self.making_room.pop(uid, None)
        node = self._nomination.pop(uid, None)
        if node is not None:
            mates = self._nominated[node]
            del mates[uid]
            if not mates:
                del self._nominated[node]

    def bound(self, entry: PodEntry, now: float) -> None:
        """A pod was bound; the API server may not have told even that it is there."""
        self.forget(entry.pod.uid)
        if self.cluster_cache.pod(entry.pod.uid) is None:
            self._untold[entry.pod.uid] = (entry, now)

    def untold(self, uid: str) -> bool:
        """Whether the pod was bound here and the API server has told nothing of it yet."""
        return uid in self._untold

    def unheard(self, now: float) -> Sequence[PodEntry]:
        """Pods of which the API server has told nothing for long; each once in a while.

        One that came and went while the watch was interrupted would wait for ever, or keep what it
        holds.
        """
        found: list[PodEntry] = []
        for uid, (entry, asked) in list(self._untold.items()):
            if now >= asked + _UNTOLD and len(found) < _MOST_READ:
                self._untold[uid] = (entry, now)
                found.append(entry)
        for uid, asked in list(self._strangers.items()):
            waiting = self.waiting.get(uid)
            if waiting is None or self.cluster_cache.pod(uid) is not None:
                del self._strangers[uid]
            elif now >= asked + _UNHEARD and len(found) < _MOST_READ:
                self._strangers[uid] = now
                found.append(waiting.entry)
        return found

    # --- what follows ------------------------------------------------------------------------

    def refuse(
        self, entry: PodEntry, refusal: Refusal, now: float, among: Bools | None = None
    ) -> None:
        """A pod was refused: it waits, and the hooks hear it when that is news.

        Args:
            now: seconds on the service's steady clock.
            among: by node index, where nothing but its devices was in the way.
        """
        if self.awaits(entry, refusal, now, among):
            self.tell(entry, f"waits: {refusal.code}")
            self.hooks.refused(entry, refusal)

    def awaits(
        self, entry: PodEntry, refusal: Refusal, now: float, among: Bools | None = None
    ) -> bool:
        """A pod waits for devices; whether why is news. Arguments are those of `refuse`."""
        if self.cluster_cache.pod(entry.pod.uid) is None:
            self._strangers[entry.pod.uid] = now
        news = self.waiting.enter(entry, refusal, now)
        waiting = self.waiting.get(entry.pod.uid)
        if waiting is not None:
            waiting.among, waiting.ranks = among, self.engine.ranks
        return news

    def tell(self, entry: PodEntry, what: str) -> None:
        """Log a decision under the id that it has in the record, and the pod's trace, where there are."""
        decision, trace = self.engine.decision_id, self._trace(entry)
        if decision or trace:
            ids = {"decision": decision, "trace": trace}
            _LOG.info("pod %s %s", entry.pod.key, what, extra=ids)

    def tick(self, now: float) -> None:
        """What time brings: holds end, the next waiting pods are woken, and who did not come again."""
        while self._unsaid and self.hooks.leads():
            self._say(self._unsaid.popleft())
        self._end_claims(now)
        self._follow(self.cycle.expire(now))
        # A nomination outlives its hold, which is taken anew while there is room.
        for node, mates in self._nominated.items():
            if any(uid not in self.engine.ledger for uid in mates):
                self._freed.add(node)
        self.settle(now)
        again = self.waiting.to_wake_again(self.engine, now)
        again += self.waiting.to_search(self.cycle.allowance, now)
        again += self._to_preempt(now)
        if again:
            self.counts["woken"] += len(again)
            self.hooks.wake(again)

    def _claim(self, uid: str, node: str, now: float, *, whole: bool) -> None:
        """Room is kept for a nominated pod: until when, counted from the first time."""
        where, until = self._claims.get(uid, ("", 0.0))
        if where != node:
            until = now + _CLEARED_SECONDS
        self._claims[uid] = node, min(until, now + _CLAIMED_SECONDS) if whole else until

    def _end_claims(self, now: float) -> None:
        """Give room to others that was kept for long: something else keeps the pod, or its victims."""
        for uid, (node, until) in list(self._claims.items()):
            if self._nomination.get(uid) != node:
                del self._claims[uid]
            elif now >= until and self.engine.states.get(uid) in {
                None,
                State.HELD,
                State.CLEARING,
            }:
                del self._claims[uid]
                self._in_vain[uid] = node
                self.counts["nomination ended"] += 1
                self.give_up(uid, now)

    def _to_preempt(self, now: float) -> list[str]:
        """The next pods to wake of those for which others may go again."""
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

    def settle(self, now: float) -> None:
        """Give freed room to whom it was nominated for, then wake those who may fit.

        Who gets the room that was made for it is woken as well: seen from outside, its own hold
        takes that room.
        """
        if self.cycle.vacated:
            self._freed |= self.cycle.vacated
            self.cycle.vacated.clear()
        woken: list[str] = []
        for node in self._freed:
            mates = self.nominees(node)
            leaving = self.leaving(node) if mates else ()
            for entry in mates:
                uid = entry.pod.uid
                whole = self.cycle.nominate(entry.pod, node, now, leaving)
                self._claim(uid, node, now, whole=whole)
                if whole and self.waiting.woken(uid, now):
                    woken.append(uid)
            self.waiting.room_on(node)
        self._freed.clear()
        woken += self.waiting.to_wake(self.engine, now)
        if woken:
            self.counts["woken"] += len(woken)
            self.hooks.wake(woken)

    def _say(self, action: Quarantined | Unserviceable) -> None:
        """Log what is closed, and count it."""
        if isinstance(action, Quarantined):
            self.counts["quarantined"] += 1
            _LOG.warning("node %s: quarantined: %s", action.node, action.message)
        else:
            _LOG.warning("node %s: %s", action.node, action.message)

    @staticmethod
    def _by_priority(entries: Iterable[PodEntry]) -> Sequence[PodEntry]:
        return sorted(entries, key=lambda entry: -entry.pod.priority)

    def _follow(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Released(node):
                    self._freed.add(node)
                case Quarantined() | Unserviceable() if not self.hooks.leads():
                    self._unsaid.append(action)
                case Quarantined():
                    self._say(action)
                    self.hooks.quarantined(action)
                case Unserviceable():
                    self._say(action)
                    self.hooks.unserviceable(action)
                case ReadBack(uid):
                    entry = self.cluster_cache.pod(uid)
                    if entry is not None:
                        self.unread.setdefault(uid, entry)
