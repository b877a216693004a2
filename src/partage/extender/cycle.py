"""Runs a scheduling cycle: the steps that place a pod with devices, whichever way kube-scheduler asks.

The plugin's attempts (`extender.attempts`) and the extender's verbs (`extender.verbs`) are two ways
into these steps:

1. `allowed` limits the search for the pod, by the search that its namespace has used.
2. `candidates` finds the nodes that fit, if kube-scheduler needs more than the best one.
3. `hold` decides: it keeps the best place for the pod, or gives the reason why there is none.
4. `reserve` fits the pod on the node that kube-scheduler chose, picks cards and reserves them, in
   one step. A hold ends with it.
5. `extender.bindings` sends the Binding with the record in it, and follows it to a known outcome.
6. `forget` drops the rest of the cycle when the pod is bound, gone or given up.

A pod that preemption nominated takes step 3 in parts: `nominate` keeps the free part of its place
while victims leave. A hold without a reservation after it expires (`expire`).

All steps are synchronous and change only the engine's books; time is an argument.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import numpy as np

from partage.extender.allowance import Allowance
from partage.inventory.plane import Bools, Ints
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal
from partage.placement.work import Work
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import Action, HoldEnded, Placement, Released, RoomKept
from partage.scheduler.explain import deferred

HOLD: Final = 30.0
"""Seconds that a hold lasts: longer than kube-scheduler may take to bind."""


def asks(pod: Pod) -> bool:
    """Whether a pod asks for devices. A broken request counts too, because it must be refused, never ignored."""
    return bool(pod.request.groups) or pod.request.fault is not None


class Cycle:
    """The steps over one engine, and their state.

    Attributes:
        allowance: the search that each namespace may use.
        vacated: nodes where room appeared because a hold moved; the service wakes waiting pods.
    """

    def __init__(
        self, engine: Engine, hold: float = HOLD, allowance: Allowance | None = None
    ) -> None:
        self.engine = engine
        self.allowance = allowance or Allowance()
        self.hold_seconds = hold
        self.vacated: set[str] = set()
        self._holds: OrderedDict[str, float] = OrderedDict()

    # --- the steps ---------------------------------------------------------------------------

    def allowed(self, pod: Pod, now: float) -> Work | None:
        """Step 1: the work allowed for the pod `now` (any steady clock); None if its namespace has to wait."""
        return self.allowance.work(pod, now)

    def candidates(
        self, pod: Pod, among: Bools | None, most: int, work: Work, now: float
    ) -> tuple[Ints, Ints]:
        """Step 2: indexes of nodes that fit, and their scores; the namespace pays for the search.

        Args:
            among: by node index, the nodes in question; None for all.
            most: nodes to judge if only the exact rule can judge them.
        """
        found = self.engine.candidates(pod, among, most, work)
        self.allowance.spend(pod, work.taken, now)
        return found

    def hold(
        self, pod: Pod, among: Bools | None, now: float, work: Work | None
    ) -> Placement | Refusal:
        """Step 3: hold the best place for the pod; return the place, or the reason why there is none.

        Args:
            among: by node index, the nodes that may be chosen; None for all.
            work: the work allowed by step 1; None defers the pod without a decision.

        Raises:
            LedgerError: the pod holds more than a hold already.
        """
        if work is None:
            self.engine.handle(HoldEnded(pod.uid))
            return deferred(pod.namespace)
        decision = self.engine.hold(pod, among, work)
        self.allowance.spend(pod, work.taken, now)
        if isinstance(decision, Refusal) and decision.code is ReasonCode.SEARCH_DEFERRED:
            self.allowance.defer(pod)
        return decision

    def keep(self, uid: str, now: float) -> None:
        """Start the time limit of a hold whose end kube-scheduler does not report."""
        self._holds[uid] = now + self.hold_seconds

    def reserve(self, pod: Pod, node: str) -> Placement | Refusal:
        """Step 4: fit, reserve and pick cards in one step; the Binding is then sent."""
        self._holds.pop(pod.uid, None)
        with self.moving(pod.uid):
            return self.engine.place_on(pod, node)

    def forget(self, uid: str) -> None:
        """Step 6: forget a pod that is bound, gone or rejected, and needs no hold any more."""
        self._holds.pop(uid, None)
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
            among = np.zeros(self.engine.ledger.present.shape[0], np.bool_)
            among[self.engine.ledger.index[node]] = True
            with self.moving(pod.uid):
                decision = self.engine.hold(pod, among)
            if not isinstance(decision, Refusal):
                self.keep(pod.uid, now)
                return True
            return False  # its namespace's quota is used up
        grants = self.engine.grants_without(pod, node, leaving, work=work) if leaving else None
        if grants is not None:
            self._moved(self.engine.handle(RoomKept(pod, node, grants)))
        elif clearing:
            self._moved(self.engine.handle(HoldEnded(pod.uid)))
        return False

    def _moved(self, actions: Iterable[Action]) -> None:
        """Add the nodes where a change of holds released room to `vacated`."""
        self.vacated |= {action.node for action in actions if isinstance(action, Released)}

    def expire(self, now: float) -> list[Action]:
        """End expired holds; return the actions for the driver."""
        actions: list[Action] = []
        for uid in [uid for uid, end in self._holds.items() if end <= now]:
            del self._holds[uid]
            actions += self.engine.handle(HoldEnded(uid))
        return actions

    def forget_hold(self, uid: str) -> None:
        """Forget the hold of a pod that still waits."""
        self._holds.pop(uid, None)

    @property
    def holds(self) -> Mapping[str, float]:
        """The time at which each hold ends, by the pod's uid."""
        return self._holds
