"""Refused pods, their reasons, and the choice of pods to wake when room appears.

kube-scheduler retries a refused pod only after an event that it can observe. It cannot observe room that appears in the
books alone, such as an ended hold or a lifted quarantine. Even after an event it may wait minutes. So when room appears
on a node, the service wakes the pods that fit there now, ordered by priority and then by waiting time. It wakes them in
batches, so that a thousand pods that wait for one card do not all ask at once. The number woken each second is bounded,
and large sets of waiting pods are checked less often: each wake-up costs the API server a write and kube-scheduler a
decision.

A woken pod that does not return is woken again, because kube-scheduler may have lost the wake-up or restarted. The
first repeat is after fifteen seconds, as kube-scheduler may hold a pod back for ten, then after 30, 60 and 120 more.
After five minutes kube-scheduler looks at all pods itself. Repeats need room and are few at a time.

A changed quota wakes no pod in kube-scheduler either. The service wakes a pod when its quota no longer blocks it, even
if something else does by now, so that kube-scheduler updates the reason in the pod's condition.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from partage.extender.cycle import Allowance, marked
from partage.inventory.plane import Bools
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal
from partage.placement.card import Work
from partage.placement.node import conditions_of
from partage.scheduler.engine import Engine
from partage.scheduler.events import Placement
from partage.wire.translation import PodEntry

HOPELESS: Final = frozenset(
    {ReasonCode.INVALID_REQUEST, ReasonCode.QUOTA_EXCEEDED, ReasonCode.SEARCH_DEFERRED}
)
"""Codes of refusals that no room changes."""
_MOST: Final = 100_000
_AGAIN: Final = 5.0
"""Seconds for which a woken pod that has not returned yet is not woken again for other room."""
_UNHEARD: Final = (15.0, 30.0, 60.0, 120.0)
"""Seconds after which a woken pod that has not returned yet is woken again for the same room."""
_REGROUPED: Final = 30.0
"""Seconds between two wake-ups of a group's pod for room that fits another of its pods at most."""
_A_QUESTION: Final = 20
"""The least units of work of one question."""
_ROOMS: Final = 100
"""The number of rooms whose check costs one unit of work."""
_FEW_GROUPS: Final = 4
_FEW_CONDITIONS: Final = 16
"""Pods with more groups, or more conditions on nodes, than this are checked last, because each costs as much as many
others."""
_PAUSE: Final = 0.25
"""Seconds without a check after one that used up its work, so that other tasks run."""
_FEW: Final = 8
"""The most pods that are woken again for the same room at a time."""
_AT_ONCE: Final = 128
_A_SECOND: Final = 100.0
"""The most pods that are woken for room at once, and in each second in the long run."""
_SWIFTLY: Final = 1000
_SLOWLY: Final = 100_000
"""Up to `_SWIFTLY` waiting pods are checked at any time. Beyond that, `_SLOWLY` more pods add a pause of a second."""


@dataclass(slots=True)
class WaitingPod:
    """A pod that waits.

    Attributes:
        refusal: the last reported reason.
        deferred: the last question about it was answered without a search; its search comes later.
        since: when it was first refused, seconds on the service's steady clock.
        woken: when it was last woken; None if never.
        asked: it was woken and has not returned since.
        again: how often it was woken again for the same room.
        missed: how often it was woken for other room before it returned.
        told: the number of the newest room that it was woken for, or that existed when it was refused.
        among: by node index, whether only devices kept the pod off the node; None if that is not known.
        ranks: how many nodes had ever existed at that moment; a later node may have the same index.
        dear: a check of it costs as much as those of many others.
        grouped: other pods of its group held places when it was refused.
    """

    entry: PodEntry
    refusal: Refusal
    since: float
    woken: float | None = None
    asked: bool = False
    again: int = 0
    missed: int = 0
    told: int = 0
    among: Bools | None = None
    ranks: int = 0
    deferred: bool = False
    dear: bool = False
    grouped: bool = False

    def has_its_turn(self, now: float) -> bool:
        """Whether the pod was woken lately and may still return."""
        return self.asked and self.woken is not None and self.woken + _AGAIN > now

    def regroups(self, now: float) -> bool:
        """Whether new room may help the pod that fits only others of its group, because these then leave theirs to it."""
        return self.grouped and (self.woken is None or now >= self.woken + _REGROUPED)


class UnschedulablePods(OrderedDict[str, WaitingPod]):
    """The waiting pods by uid, and nodes with new room for which no pod has been woken yet.

    `newest` is the number of the newest room, `checks` how often pods were compared with new room.
    """

    def __init__(self, batch: int = 64) -> None:
        super().__init__()
        self._batch = batch
        self._rooms: dict[str, int] = {}
        self._quotas = 0
        self.newest = 0
        self.checks = 0
        self._pause = 0.0
        self._tokens, self._filled = float(_AT_ONCE), 0.0
        self._priorities: Counter[int] = Counter()
        self._unheard: list[tuple[float, str, float]] = []
        self._deferred: dict[str, OrderedDict[str, None]] = {}

    @property
    def highest(self) -> int | None:
        """The highest priority of all waiting pods; None if no pod waits."""
        return max(self._priorities, default=None)

    def counts(self) -> Counter[ReasonCode]:
        """The number of waiting pods by the leading code of their refusal."""
        return Counter(waiting.refusal.code for waiting in self.values())

    def enter(self, entry: PodEntry, refusal: Refusal, now: float) -> bool:
        """Enter a refused pod; whether its reason is new. A deferred search does not replace an earlier reason."""
        known = self.get(entry.pod.uid)
        deferred = refusal.code is ReasonCode.SEARCH_DEFERRED
        self._defer(entry.pod, deferred=deferred)
        if known is None:
            if len(self) >= _MOST:
                self.leave(next(iter(self)))
            self._priorities[entry.pod.priority] += 1
            self[entry.pod.uid] = WaitingPod(
                entry, refusal, now, told=self.newest, deferred=deferred, dear=_dear(entry.pod)
            )
            return True
        self._count(known.entry.pod.priority, -1)
        self._count(entry.pod.priority, 1)
        known.entry, known.deferred, known.dear = entry, deferred, _dear(entry.pod)
        known.asked, known.told, known.missed = False, self.newest, 0
        if deferred:
            return False
        news = (known.refusal.code, known.refusal.message) != (refusal.code, refusal.message)
        known.refusal = refusal
        return news

    def _defer(self, pod: Pod, *, deferred: bool) -> None:
        """Append a deferred pod to its namespace's row, or remove another from it."""
        row = self._deferred.get(pod.namespace)
        if deferred:
            row = self._deferred.setdefault(pod.namespace, OrderedDict())
            row[pod.uid] = None
        elif row is not None and row.pop(pod.uid, "") is None and not row:
            del self._deferred[pod.namespace]

    def leave(self, uid: str) -> WaitingPod | None:
        """Remove a pod that was placed or is gone."""
        waiting = self.pop(uid, None)
        if waiting is not None:
            self._count(waiting.entry.pod.priority, -1)
            self._defer(waiting.entry.pod, deferred=False)
        return waiting

    def _count(self, priority: int, change: int) -> None:
        self._priorities[priority] += change
        if not self._priorities[priority]:
            del self._priorities[priority]

    def above(self, priority: int, now: float) -> list[Pod]:
        """The waiting pods of a higher priority that room may help, in the order to wake, without those woken lately."""
        if self.highest is None or self.highest <= priority:
            return []
        found = _in_turn(
            waiting
            for waiting in self.values()
            if waiting.entry.pod.priority > priority
            and waiting.refusal.code not in HOPELESS
            and not waiting.deferred
            and not waiting.has_its_turn(now)
        )
        return [waiting.entry.pod for waiting in found]

    def pause(self, *, spent: bool) -> float:
        """Seconds without a check after one, so that other tasks run; `spent` if that one used up its work."""
        return max(_PAUSE if spent else 0.0, (len(self) - _SWIFTLY) / _SLOWLY)

    def room_on(self, node: str) -> None:
        """Note new room on a node."""
        if self:
            self.newest += 1
            self._rooms[node] = self.newest

    def quotas_changed(self) -> None:
        """Note that the quotas of namespaces have changed."""
        if self:
            self.newest += 1
            self._quotas = self.newest

    def woken(self, uid: str, now: float) -> bool:
        """Record that a pod is woken for room that is kept for it; whether it waits at all."""
        waiting = self.get(uid)
        if waiting is None:
            return False
        self._ask(waiting, now)
        return True

    def _ask(self, waiting: WaitingPod, now: float) -> None:
        """Record that a pod is woken for all the present room."""
        waiting.missed += waiting.asked
        waiting.woken, waiting.asked, waiting.told = now, True, self.newest
        waiting.again = 0
        self._listen(waiting, now)

    def _listen(self, waiting: WaitingPod, now: float) -> None:
        """Plan the next check of whether a woken pod has returned; the number of checks is bounded."""
        if waiting.woken is not None and waiting.again < len(_UNHEARD):
            due = now + _UNHEARD[waiting.again]
            heapq.heappush(self._unheard, (due, waiting.entry.pod.uid, waiting.woken))

    def to_wake(self, engine: Engine, now: float) -> list[str]:
        """The next pods to wake, most important first; none twice for the same room.

        A woken pod that has not returned yet is skipped for five seconds. It is not forgotten: the
        room stays until every pod has been checked. One call takes at most the work of one
        decision. The next call, a little later, starts with the pods that this one did not reach.
        Pods with many groups, or many conditions on nodes, are checked after all others.
        """
        if (not self._rooms and not self._quotas) or now < self._pause:
            return []
        gained = max(0.0, now - self._filled) * _A_SECOND
        self._tokens, self._filled = min(_AT_ONCE, self._tokens + gained), now
        most = min(self._batch, int(self._tokens))
        if not most:
            return []
        self.checks += 1
        found: list[WaitingPod] = []
        postponed = False
        among: dict[int, Bools] = {}
        verdicts: dict[tuple[int, ...], bool] = {}
        everywhere, work = engine.ledger.present, Work()
        for waiting in self._to_ask():
            told, where = waiting.told, among.get(waiting.told)
            if waiting.has_its_turn(now) or work.spent:
                postponed = True
                continue
            if waiting.regroups(now):
                where = everywhere
            elif where is None:
                where = among[told] = marked(
                    engine.ledger, (n for n, r in self._rooms.items() if r > told)
                )
                work.done += len(self._rooms) // _ROOMS
            eased = told < self._quotas
            if _may_fit(engine, waiting, where, (verdicts, work), eased=eased):
                found.append(waiting)
            elif work.done < work.limit:
                waiting.told = self.newest
            else:
                postponed = True  # the work may have ended before every node was checked
        self._pause = max(self._pause, now + self.pause(spent=work.spent))
        if len(found) <= most and not postponed:
            self._rooms.clear()
            self._quotas = 0
        chosen = _in_turn(found)[:most]
        self._tokens -= len(chosen)
        for waiting in chosen:
            self._ask(waiting, now)
        return [waiting.entry.pod.uid for waiting in chosen]

    def _to_ask(self) -> list[WaitingPod]:
        """Pods that have not been checked for the newest room, the longest unchecked first."""
        found = [
            waiting
            for waiting in self.values()
            if waiting.told < self.newest
            and waiting.entry.pod.request.fault is None
            and not waiting.deferred
        ]
        found.sort(key=lambda one: (one.dear, one.told))
        return found

    def to_search(self, allowance: Allowance, now: float) -> list[str]:
        """The next deferred pods to wake, as many as the allowances of their namespaces permit `now`."""
        found: list[str] = []
        for namespace, turns in allowance.turns(self._deferred, now).items():
            row = self._deferred[namespace]
            for uid in list(row)[:turns]:
                self._defer(self[uid].entry.pod, deferred=False)
                self._ask(self[uid], now)
                found.append(uid)
        return found

    def to_wake_again(self, engine: Engine, now: float) -> list[str]:
        """The next pods that were woken, have not returned, and still have room.

        The time of their first wake-up stays, because the time to their Binding counts from there.
        """
        found: list[str] = []
        verdicts: dict[tuple[int, ...], bool] = {}
        everywhere, work = engine.ledger.present, Work()
        while self._unheard and self._unheard[0][0] <= now and len(found) < _FEW:
            _, uid, woken = heapq.heappop(self._unheard)
            waiting = self.get(uid)
            if waiting is None or not waiting.asked or waiting.woken != woken:
                continue  # it returned, or was woken for other room since
            # The check below cannot see room that is kept for the pod.
            kept = waiting.deferred or engine.ledger.allocation(uid) is not None
            if kept or _may_fit(engine, waiting, everywhere, (verdicts, work), eased=True):
                waiting.again += 1
                found.append(uid)
                self._listen(waiting, now)
        return found


def _dear(pod: Pod) -> bool:
    """Whether a check of the pod costs as much as those of many others."""
    return len(pod.request.groups) > _FEW_GROUPS or conditions_of(pod) > _FEW_CONDITIONS


def _in_turn(found: Iterable[WaitingPod]) -> list[WaitingPod]:
    """The order to wake: by priority; among equals one pod of each namespace in turn, each namespace's oldest first.

    Pods that were woken repeatedly and did not return are last. Something else blocks them each time, and the others
    would wait for them.
    """
    order: list[tuple[bool, int, int, float, WaitingPod]] = []
    rows: Counter[tuple[bool, int, str]] = Counter()
    for waiting in sorted(found, key=lambda one: one.since):
        pod = waiting.entry.pod
        row = (waiting.missed > 1, -pod.priority, pod.namespace)
        order.append((*row[:2], rows[row], waiting.since, waiting))
        rows[row] += 1
    return [one[-1] for one in sorted(order, key=lambda one: one[:-1])]


def _may_fit(
    engine: Engine,
    waiting: WaitingPod,
    among: Bools,
    so_far: tuple[dict[tuple[int, ...], bool], Work],
    *,
    eased: bool,
) -> bool:
    """Whether the pod would fit on one of the nodes; the engine is asked once for all equal pods.

    If a quota blocked the pod and was `eased`: whether it no longer does.
    """
    verdicts, work = so_far
    pod = waiting.entry.pod
    if pod.request.fault is not None:
        return False
    arrears = engine.arrears(pod)
    if waiting.refusal.code is ReasonCode.QUOTA_EXCEEDED:
        # A quota depends on the namespace and on what is granted, not only on the class.
        mine = Work()
        decision = engine.evaluate(pod, reasons=False, work=mine)
        work.done += _A_QUESTION + arrears + mine.done
        if isinstance(decision, Placement):
            return True
        return eased and decision.code is not ReasonCode.QUOTA_EXCEEDED
    alike = (
        id(among),
        *(id(pod.request), id(pod.host), id(pod.constraint), id(pod.tolerations)),
    )
    verdict = verdicts.get(alike)
    if verdict is None:
        found, _ = engine.candidates(pod, among, 1, work)
        work.done += _A_QUESTION + arrears
        verdict = verdicts[alike] = bool(found.size)
    return verdict
