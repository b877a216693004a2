"""Search that each namespace may use: a user whose pods are hard to place delays only these.

kube-scheduler asks about one pod at a time, so a pod with a long search delays all later ones. The service counts the
work of a decision (`placement.work`) and never times it. Ordinary pods cost nothing, however many there are. Beyond
that, each namespace has an allowance:

    decided ── took more than an ordinary pod ── owed by its namespace, until time has paid for it
    asked   ── its namespace owes less than its part ── decided, whatever it takes
            └─ it owes more ── decided if that takes no search, else deferred until its turn

All namespaces in debt have equal parts of the permitted debt and of the work that time pays. A deferred pod is
answered from memory until its turn. The namespace that owes least has the next turn, and in it the pod that has
waited longest.

Evictions are bounded too: the pods of one namespace may have so many victims a minute, however many important pods it
creates and deletes.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from partage.model.pod import Pod
from partage.model.request import PodRequest
from partage.placement.work import FEW, MOST, Work

_MINUTE: Final = 60.0
_STEP: Final = 0.05
"""Seconds for which what time pays is put together."""
_A_TURN: Final = 2 * MOST
"""Units that a hard pod is expected to take: a decision, and sentences on why it was refused."""
_MOST_KNOWN: Final = 20_000
"""Pods that are remembered as hard, and those for which others went."""
_MOST_NAMESPACES: Final = 1000
"""Namespaces for which others went that are remembered before those are forgotten for which it is long ago."""


@dataclass(frozen=True, slots=True)
class AllowanceSettings:
    """How much search there is; a unit of work takes about 2.7 us.

    Attributes:
        owed: units that all namespaces together may owe: what an ordinary pod may have to wait for.
        rate: units a second that time pays.
        most: units that all may owe where so many have their parts that these add up to more.
        victims: pods that may be sent away for the pods of one namespace: so many at once, and as
            many a minute in the long run. A plan that goes beyond is carried out whole.
    """

    owed: int = 240_000
    rate: int = 60_000
    most: int = 480_000
    victims: int = 240


@dataclass(slots=True)
class Allowance:
    """What namespaces owe (`debts` in units, where there are any), and which pods are known to be hard."""

    settings: AllowanceSettings = AllowanceSettings()
    debts: dict[str, float] = field(default_factory=dict)
    _hard: OrderedDict[str, PodRequest] = field(default_factory=OrderedDict)
    _paid: float = 0.0
    _evicted: dict[str, tuple[float, float]] = field(default_factory=dict)
    _victims: OrderedDict[str, frozenset[str]] = field(default_factory=OrderedDict)

    def work(self, pod: Pod, now: float) -> Work | None:
        """What the next decision about a pod may take `now`; None where it is deferred without one."""
        if self.has_turn(pod.namespace, now):
            return Work()
        return None if self._hard.get(pod.uid) is pod.request else Work(FEW)

    def question(self, pod: Pod, now: float) -> Work:
        """What the answer to a person's question about a pod may take: as much as a decision, in its turn."""
        return self.work(pod, now) or Work(FEW)

    def has_turn(self, namespace: str, now: float) -> bool:
        """Whether pods of a namespace may be searched for `now`, seconds on any steady clock."""
        self._pay(now)
        debt = self.debts.get(namespace, 0.0)
        if not debt:
            return sum(self.debts.values()) < self.settings.most
        part = self.settings.owed / len(self.debts)
        return debt < part and sum(self.debts.values()) < self.settings.most

    def spend(self, pod: Pod, units: int, now: float) -> None:
        """A decision was taken `now`, seconds on any steady clock."""
        beyond = units - FEW
        if beyond > 0:
            self._pay(now)
            self.debts[pod.namespace] = self.debts.get(pod.namespace, 0.0) + beyond

    def turns(self, rows: Mapping[str, Sized], now: float) -> dict[str, int]:
        """How many of each namespace's deferred pods have their turn; the one that owes least first.

        Args:
            rows: deferred pods by namespace.
            now: seconds on any steady clock.
        """
        self._pay(now)
        found: dict[str, int] = {}
        left = self.settings.most - sum(self.debts.values())
        for name in sorted(rows, key=lambda one: self.debts.get(one, 0.0)):
            owes = len(self.debts) + (name not in self.debts)
            mine = min(self.settings.owed / owes - self.debts.get(name, 0.0), left)
            count = min(len(rows[name]), max(0, ceil(mine / _A_TURN)))
            if count:
                found[name] = count
                left -= count * _A_TURN
        return found

    def defer(self, pod: Pod) -> None:
        """A pod turned out to be hard when its namespace had no turn."""
        self._hard[pod.uid] = pod.request
        self._hard.move_to_end(pod.uid)
        if len(self._hard) > _MOST_KNOWN:
            self._hard.popitem(last=False)

    def forget(self, uid: str) -> None:
        """A pod waits no more."""
        self._hard.pop(uid, None)
        self._victims.pop(uid, None)

    def may_evict(self, namespace: str, now: float) -> bool:
        """Whether others may be sent away for pods of a namespace `now`, on any steady clock."""
        return self._counted(namespace, now) + 1 <= self.settings.victims

    def evict(self, pod: Pod, victims: Collection[str], now: float) -> None:
        """Others are sent away for a pod, or were named to kube-scheduler; each counts once for it.

        Args:
            victims: uids.
            now: seconds on any steady clock.
        """
        before = self._victims.pop(pod.uid, frozenset())
        self._victims[pod.uid] = before.union(victims)
        if len(self._victims) > _MOST_KNOWN:
            self._victims.popitem(last=False)
        new = len(self._victims[pod.uid]) - len(before)
        self._evicted[pod.namespace] = self._counted(pod.namespace, now) + new, now
        if len(self._evicted) > _MOST_NAMESPACES:
            self._evicted = {
                name: known for name, known in self._evicted.items() if self._counted(name, now)
            }

    def _counted(self, namespace: str, now: float) -> float:
        """Victims for a namespace's pods that time has not made up for yet."""
        number, at = self._evicted.get(namespace, (0.0, now))
        return max(0.0, number - (now - at) * self.settings.victims / _MINUTE)

    def _pay(self, now: float) -> None:
        """What time has paid since, in equal parts of all who owe."""
        passed = now - self._paid
        if passed < _STEP:
            return
        self._paid = now
        left = passed * self.settings.rate
        for name, debt in sorted(self.debts.items(), key=lambda one: one[1]):
            part = left / len(self.debts)
            if debt > part:
                self.debts = {other: owed - part for other, owed in self.debts.items()}
                return
            left -= debt
            del self.debts[name]
