"""Runs a scheduling cycle: the steps that place a pod with devices, whichever way kube-scheduler asks.

The plugin's attempts (`extender.attempts`) and the extender's verbs (`extender.service`) are two ways
into these steps:

1. `Allowance.work` limits the search for the pod, by the search that its namespace has used.
2. `hold` decides: it keeps the best place for the pod, or gives the reason why there is none.
3. `candidates` finds the nodes that fit, if kube-scheduler needs more than the best one (`others`, `prioritize`). Before the
   place is kept, it spends what the decision has left.
   `filter` takes steps 1 to 3 for the extender, `propose` takes 2 and 3 for the plugin. An answer to the plugin takes
   them twice if nodes that kube-scheduler rejected are its last resort. All its searches share the limit of step 1.
4. `reserve` fits the pod on the node that kube-scheduler chose, picks cards and reserves them, in
   one step. A hold ends with it.
5. `extender.bindings` sends the Binding with the record in it, and follows it to a known outcome.
6. `forget` drops the rest of the cycle when the pod is bound, gone or given up.

Usually a proposal names the best node alone. The plugin's kube-scheduler then filters one node and scores none. It gets
more nodes if its own filters rejected one lately, if it has to weigh every node that fits, or if a question is only a
trial.

A pod that preemption nominated takes step 2 in parts: `nominate` keeps the free part of its place
while victims leave. A hold without a reservation after it expires (`expire`).

All steps are synchronous and change only the engine's books; time is an argument.

A user with pods that are hard to place delays only these pods. kube-scheduler asks about one pod at a time, so a pod
with a long search delays all later ones. The service counts the work of a decision (`placement.card.Work`) and never times
it. Ordinary pods cost nothing, however many there are. Beyond that, each namespace has an allowance:

    a decision took more work than an ordinary pod ── its namespace owes the rest, until time has paid for it
    a question ── its namespace owes less than its part ── a decision, with a search
               └─ its namespace owes more ── a decision if it needs no search, else deferred until its turn

All namespaces in debt have equal parts of the permitted debt and of the work that time pays. A deferred pod is
answered from memory until its turn. The namespace that owes least has the next turn, and in it the pod that has
waited longest.

Evictions are limited too: the pods of one namespace may have a fixed number of victims a minute, however many
important pods the namespace creates and deletes.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress, repeat
from math import ceil
from typing import Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import PodRequest
from partage.placement.card import FEW, MOST, MOST_A_NODE, Work
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import Action, HoldEnded, Placement, Released, RoomKept
from partage.scheduler.explain import deferred

HOLD: Final = 30.0
"""Seconds that a hold lasts: longer than kube-scheduler may take to bind."""
PROPOSED: Final = 16
"""Nodes of one proposal after a recent rejection by kube-scheduler's own filters, enough that they seldom reject all.
Also the nodes of each domain, if kube-scheduler's rules weigh nothing but domains."""
_PROVEN: Final = 4
"""Nodes of one proposal if only the exact rule can judge a node, which costs far more for each."""
WIDE: Final = 128
"""Nodes that the exact rule judges for a pod that needs every node that fits."""
_BEST: Final = 100
"""The score of the best node. Other nodes score 10 to 90; a nominated node that `others` did not find scores 0."""
_EXTENDER_BEST: Final = 10
"""The highest score of an extender."""
_MINUTE: Final = 60.0
_STEP: Final = 0.05
"""Seconds between two payments by time."""
_A_TURN: Final = 2 * MOST
"""Expected units for a hard pod: a decision, and the sentences of its refusal."""
_MOST_KNOWN: Final = 20_000
"""Hard pods to remember, and pods with victims to remember."""
_MOST_NAMESPACES: Final = 1000
"""Namespaces with victims to remember; above this number, those whose victims no longer count are forgotten."""


@dataclass(frozen=True, slots=True)
class AllowanceSettings:
    """The amount of search; a unit of work takes about 2.7 us.

    Attributes:
        owed: units that all namespaces together may owe, and so the longest wait of an ordinary pod.
        rate: units a second that time pays.
        most: limit of all debts together if the debts of many namespaces add up to more than `owed`.
        victims: pods that may be evicted for the pods of one namespace: this number at once, and
            this number a minute in the long run. A plan beyond the limit is carried out whole.
    """

    owed: int = 240_000
    rate: int = 60_000
    most: int = 480_000
    victims: int = 240


@dataclass(slots=True)
class Allowance:
    """The debts of namespaces in units (`debts`, only of those with one), and the pods known to be hard."""

    settings: AllowanceSettings = AllowanceSettings()
    debts: dict[str, float] = field(default_factory=dict)
    _hard: OrderedDict[str, PodRequest] = field(default_factory=OrderedDict)
    _paid: float = 0.0
    _evicted: dict[str, tuple[float, float]] = field(default_factory=dict)
    _victims: OrderedDict[str, frozenset[str]] = field(default_factory=OrderedDict)

    def work(self, pod: Pod, now: float) -> Work | None:
        """Step 1: the work that the next answer about a pod may take `now`; None defers the pod without a decision."""
        if self.has_turn(pod.namespace, now):
            return Work()
        return None if self._hard.get(pod.uid) is pod.request else Work(FEW)

    def question(self, pod: Pod, now: float) -> Work:
        """The work that the answer to a user's question may take: that of a decision, or little without a turn."""
        return self.work(pod, now) or Work(FEW)

    def has_turn(self, namespace: str, now: float) -> bool:
        """Whether the pods of a namespace may have a search `now`, in seconds on any steady clock."""
        self._pay(now)
        debt = self.debts.get(namespace, 0.0)
        if not debt:
            return sum(self.debts.values()) < self.settings.most
        part = self.settings.owed / len(self.debts)
        return debt < part and sum(self.debts.values()) < self.settings.most

    def spend(self, pod: Pod, units: int, now: float) -> None:
        """Charge a pod's namespace for the units of a decision made `now`, in seconds on any steady clock."""
        beyond = units - FEW
        if beyond > 0:
            self._pay(now)
            self.debts[pod.namespace] = self.debts.get(pod.namespace, 0.0) + beyond

    @contextmanager
    def charged(self, pod: Pod, work: Work, now: float) -> Iterator[None]:
        """Charge a pod's namespace for a part of an answer, all of which shares `work`."""
        before = max(work.taken, FEW)
        yield
        self.spend(pod, FEW + max(work.taken, FEW) - before, now)

    def turns(self, rows: Mapping[str, Sized], now: float) -> dict[str, int]:
        """The number of deferred pods of each namespace that have their turn; the namespace that owes least is first."""
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
        """Remember a pod as hard: it needs a search, and its namespace had no turn."""
        self._hard[pod.uid] = pod.request
        self._hard.move_to_end(pod.uid)
        if len(self._hard) > _MOST_KNOWN:
            self._hard.popitem(last=False)

    def forget(self, uid: str) -> None:
        """Forget a pod that waits no longer."""
        self._hard.pop(uid, None)
        self._victims.pop(uid, None)

    def may_evict(self, namespace: str, now: float) -> bool:
        """Whether pods may be evicted for the pods of a namespace `now`, in seconds on any steady clock."""
        return self._counted(namespace, now) + 1 <= self.settings.victims

    def evict(self, pod: Pod, victims: Collection[str], now: float) -> None:
        """Count the victims that are evicted for a pod or proposed to kube-scheduler; each counts once for the pod."""
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
        """Victims for a namespace's pods that still count against its limit."""
        number, at = self._evicted.get(namespace, (0.0, now))
        return max(0.0, number - (now - at) * self.settings.victims / _MINUTE)

    def _pay(self, now: float) -> None:
        """Reduce the debts by the units that time has paid since the last call, in equal parts."""
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


def asks(pod: Pod) -> bool:
    """Whether a pod asks for devices. A broken request counts too, because it must be refused, never ignored."""
    return bool(pod.request.groups) or pod.request.fault is not None


def marked(ledger: Ledger, nodes: Iterable[str]) -> Bools:
    """By node index, whether the node is in `nodes`."""
    found: Bools = np.zeros_like(ledger.present)
    found[[index for index in map(ledger.index.get, nodes) if index is not None]] = True
    return found


def scaled(values: Ints, least: int, most: int) -> Ints:
    """Scores from `least` to `most`, in proportion; all `most` if the values are equal."""
    low, span = int(values.min()), int(values.max() - values.min())
    found: Ints = (
        least + (values - low) * (most - least) // span if span else np.full_like(values, most)
    )
    return found


@dataclass(frozen=True, slots=True)
class Wanted:
    """The nodes that kube-scheduler needs of one proposal.

    Attributes:
        several: more than the best one.
        wide: every node that fits.
        domains: keys of node labels; the best nodes of each domain are enough. Empty for no domains.
        nominated: the node that the pod is nominated for; empty for none.
    """

    several: bool = False
    wide: bool = False
    domains: Sequence[str] = ()
    nominated: str = ""


class Cycle:
    """The steps over one engine, and their state.

    Attributes:
        vacated: nodes where room appeared because a hold moved; the service wakes waiting pods.
        holds: the time at which each hold ends, by the pod's uid.
        answered: uids of pods whose hold is the answer to kube-scheduler, which may bind them by now.
    """

    def __init__(
        self, engine: Engine, hold: float = HOLD, allowance: Allowance | None = None
    ) -> None:
        self.engine = engine
        self.allowance = allowance or Allowance()
        self._hold_seconds = hold
        self.vacated: set[str] = set()
        self.holds: dict[str, float] = {}
        self.answered: set[str] = set()

    # --- the steps ---------------------------------------------------------------------------

    def propose(
        self,
        pod: Pod,
        asking: Pod,
        wanted: Wanted,
        among: Bools | None,
        work: Work | None,
        now: float,
    ) -> tuple[Placement | Refusal, dict[str, int]]:
        """Steps 2 and 3: hold the best place; return the decision, and the proposed nodes with scores, the best first.

        Args:
            pod: the pod by its devices alone. If no node takes the whole pod, it may fit so; kube-scheduler then
                reports the other shortages of nodes, and may make room.
            asking: the same pod, with what it asks beside devices if that is known of nodes.
            among: by node index, the nodes that may be chosen; None for all.
            work: the work allowed by step 1 for the whole answer; None defers the pod without a decision.
        """
        beside: dict[str, int] = {}

        def others(best: Placement) -> None:
            assert work is not None  # noqa: S101 # else there is no decision
            mine, place = asking if best.allocation.host else pod, best.allocation.node
            beside.update(self.others(mine, wanted, among, work, now, best=place))

        alone = pod if asking is not pod else None
        with self.moving(pod.uid):
            listed = others if wanted.several else None
            decision = self.hold(asking, among, now, work, alone, listed)
        if isinstance(decision, Refusal) or work is None:
            return decision, {}
        with self.allowance.charged(pod, work, now):
            return decision, self._offered(pod, wanted, decision.allocation.node, beside, work)

    def filter(
        self, pod: Pod, names: Sequence[str], now: float, *, one: bool
    ) -> tuple[Refusal | None, Sequence[str], Bools]:
        """Steps 1 to 3 for the extender: hold the best place for a while.

        A pod without soft constraints gets only the best node. Other pods get every node that fits, so that affinity
        and spreading keep working. Without the hold, two pods filtered together would get the same room.

        Args:
            pod: the pod, without ordinary resources, which kube-scheduler has checked.
            names: the nodes in question.
            one: the pod has no soft constraints, so one node is enough.

        Returns:
            The reason why no node fits, or None; the nodes that fit; and by node index, whether the node was in question.

        Raises:
            LedgerError: the pod holds more than a hold already.
        """
        indexes, among = self._looked_up(names)
        if not asks(pod):
            return None, names, among
        fitting = np.zeros(0, np.intp)
        work = self.allowance.work(pod, now)

        def others(best: Placement) -> None:
            nonlocal fitting
            assert work is not None  # noqa: S101 # else there is no decision
            fitting, _ = self.candidates(pod, among, WIDE, work, now, best.allocation.node)

        with self.moving(pod.uid):
            decision = self.hold(pod, among, now, work, others=None if one else others)
        self.holds.pop(pod.uid, None)
        if isinstance(decision, Refusal):
            return decision, [], among
        self.holds[pod.uid] = now + self._hold_seconds
        self.answered.add(pod.uid)
        if not fitting.size:
            return None, [decision.allocation.node], among
        fits = np.zeros(among.shape[0] + 1, np.bool_)  # unknown names have the index -1
        fits[fitting] = True
        return None, [*compress(names, fits[indexes].tolist())], among

    def prioritize(self, pod: Pod, names: Sequence[str], now: float) -> Ints:
        """A score from 0 to 10 for each node: the best gets 10, a node that does not fit 0.

        The pod's own hold stays. It hides only its own node, which `filter` chose, so this node gets 10.
        """
        if not asks(pod) or pod.request.fault:
            return np.zeros(len(names), np.int64)
        indexes, among = self._looked_up(names)
        work = self.allowance.question(pod, now)
        found, scores = self.candidates(pod, among, WIDE, work, now)
        column = np.zeros(among.shape[0] + 1, np.int64)  # unknown names have the index -1
        if found.size:
            column[found] = scaled(scores, 1, _EXTENDER_BEST - 1)
        held = self.engine.ledger.allocation(pod.uid)
        if held is not None and held.node in self.engine.ledger.index:
            column[self.engine.ledger.index[held.node]] = _EXTENDER_BEST
        return column[indexes]

    def _looked_up(self, names: Sequence[str]) -> tuple[Ints, Bools]:
        """Each node's index in the books, -1 for an unknown name; and by node index, whether the node is in the list."""
        ledger = self.engine.ledger
        indexes = np.fromiter(map(ledger.index.get, names, repeat(-1)), np.intp, len(names))
        among = np.zeros(ledger.present.shape[0] + 1, np.bool_)
        among[indexes] = True
        return indexes, among[:-1]

    def others(
        self,
        pod: Pod,
        wanted: Wanted,
        among: Bools | None,
        work: Work,
        now: float,
        proposed: int = PROPOSED,
        best: str = "",
    ) -> dict[str, int]:
        """Nodes that fit, the best first, with their scores.

        Args:
            among: by node index, the nodes in question; None for all.
            proposed: the most nodes, unless kube-scheduler needs every node that fits.
            best: the node of the decision, if one was taken before.
        """
        engine, most = self.engine, WIDE if wanted.wide else _PROVEN
        found, values = self.candidates(pod, among, most, work, now, best)
        if not found.size:
            return {}
        if not wanted.wide and found.size > proposed:
            first = np.argpartition(-values, proposed - 1)[:proposed]
            found, values = found[first], values[first]
        elif wanted.domains:
            first = engine.best_of_each(found, values, wanted.domains, PROPOSED)
            found, values = found[first], values[first]
        ranks = np.fromiter(map(engine.rank_at, found.tolist()), np.int64, found.size)
        order = np.lexsort((ranks, -values))
        names = [engine.ledger.node_at(int(index)).name for index in found[order]]
        return dict(zip(names, scaled(values[order], 10, 90).tolist(), strict=True))

    def _offered(
        self, pod: Pod, wanted: Wanted, best: str, beside: dict[str, int], work: Work
    ) -> dict[str, int]:
        """The nodes of a proposal with their scores, the best first; `beside` are those of `others`."""
        names = [best, *(name for name in beside if name != best)]
        if not wanted.wide:
            del names[PROPOSED:]
            wish = wanted.nominated
            if wish in self.engine.ledger.index and wish not in names:
                work.go_on(listing=True)
                depth = min(MOST_A_NODE, max(0, work.limit - work.done))
                index = self.engine.ledger.index[wish]
                if self.engine.grants_on(pod, index, work, depth) is not None:
                    names.append(wish)
        return {best: _BEST} | {name: beside.get(name, 0) for name in names[1:]}

    def candidates(
        self, pod: Pod, among: Bools | None, most: int, work: Work, now: float, best: str = ""
    ) -> tuple[Ints, Ints]:
        """Step 3: indexes of nodes that fit, and their scores; the namespace pays for the search.

        Args:
            among: by node index, the nodes in question; None for all.
            most: nodes to judge if only the exact rule can judge them.
            best: the node of the decision, if one was taken before.
        """
        with self.allowance.charged(pod, work, now):
            return self.engine.candidates(pod, among, most, work, best)

    def hold(
        self,
        pod: Pod,
        among: Bools | None,
        now: float,
        work: Work | None,
        alone: Pod | None = None,
        others: Callable[[Placement], None] | None = None,
    ) -> Placement | Refusal:
        """Step 2: hold the best place for the pod; return the place, or the reason why there is none.

        Args:
            among: by node index, the nodes that may be chosen; None for all.
            work: the work allowed by step 1, of which the answer's earlier searches have spent a part; None defers the
                pod without a decision.
            alone: the pod by its devices alone, which is decided about if no node takes the whole pod.
            others: step 3, which spends what the decision has left, before the place is held.

        Raises:
            LedgerError: the pod holds more than a hold already.
        """
        if work is None:
            self.engine.handle(HoldEnded(pod.uid))
            return deferred(pod.namespace)
        decided: Placement | Refusal | None = None
        if others is not None:
            # The pod's own hold must not count against it.
            self.engine.handle(HoldEnded(pod.uid))
            with self.allowance.charged(pod, work, now):
                decided = self.engine.evaluate(pod, among=among, work=work, alone=alone)
            if isinstance(decided, Placement):
                work.go_on(listing=True)
                others(decided)
        with self.allowance.charged(pod, work, now):
            decision = self.engine.hold(pod, among, work, alone, decided)
        if isinstance(decision, Refusal) and decision.code is ReasonCode.SEARCH_DEFERRED:
            self.allowance.defer(pod)
        return decision

    def reserve(self, pod: Pod, node: str) -> Placement | Refusal:
        """Step 4: fit, reserve and pick cards in one step; the Binding is then sent."""
        self.holds.pop(pod.uid, None)
        with self.moving(pod.uid):
            return self.engine.place_on(pod, node)

    def forget(self, uid: str) -> None:
        """Step 6: forget a pod that is bound, gone or rejected, and needs no hold any more."""
        self.holds.pop(uid, None)
        self.answered.discard(uid)
        self.allowance.forget(uid)

    # --- holds -------------------------------------------------------------------------------

    @contextmanager
    def moving(self, uid: str) -> Iterator[None]:
        """Add the node of a pod's hold to `vacated` if the pod holds nothing there afterwards."""
        before = self.engine.ledger.allocation(uid)
        try:
            yield
        finally:
            after = self.engine.ledger.allocation(uid)
            if before is not None and (after is None or before.node != after.node):
                self.vacated.add(before.node)

    def nominate(self, pod: Pod, node: str, now: float, leaving: Collection[str] = ()) -> bool:
        """Keep room on one node for a pod that preemption nominated; return whether it has all of it.

        Args:
            leaving: uids of pods that are leaving the node; until they are gone, the room that is
                already free is kept.
        """
        if not asks(pod) or node not in self.engine.ledger.index:
            return False
        clearing = self.engine.states.get(pod.uid) is State.CLEARING
        if pod.uid in self.engine.ledger and not clearing:
            return False
        work = Work()
        if self.engine.grants_without(pod, node, (), work=work) is not None:
            with self.moving(pod.uid):
                decision = self.engine.hold(pod, marked(self.engine.ledger, (node,)))
            if isinstance(decision, Refusal):
                return False  # its namespace's quota is used up
            self.holds[pod.uid] = now + self._hold_seconds
            self.answered.discard(pod.uid)
            return True
        grants = self.engine.grants_without(pod, node, leaving, work=work) if leaving else None
        if grants is not None or clearing:
            change = HoldEnded(pod.uid) if grants is None else RoomKept(pod, node, grants)
            done = self.engine.handle(change)
            self.vacated |= {action.node for action in done if isinstance(action, Released)}
        return False

    def expire(self, now: float) -> list[Action]:
        """End expired holds; return the actions for the driver."""
        actions: list[Action] = []
        for uid in [uid for uid, end in self.holds.items() if end <= now]:
            del self.holds[uid]
            self.answered.discard(uid)
            actions += self.engine.handle(HoldEnded(uid))
        return actions
