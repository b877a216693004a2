"""The four verbs of an extender over the engine: filter, prioritize, bind, preempt.

Everything here is synchronous and pure but for the engine's books; sockets, clocks and the API
server are the service's. Filter and prioritize change nothing that a caller could observe but
holds: a filtered pod's predicted place is kept for as long as a Binding may take, so that two
pods filtered together do not get the same room.

A pod without soft constraints gets one node, the best; the others get every node that fits, so
that affinity and spreading keep working (DESIGN, decision 6).
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from partage.inventory.plane import Bools
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal
from partage.scheduler.engine import Engine
from partage.scheduler.events import Action, HoldEnded, Placement

__all__ = ["HOLD", "Answer", "Verbs"]

HOLD: Final = 30.0
"""Seconds that a hold lasts: longer than kube-scheduler may take to bind."""

_BEST: Final = 10
_MOST_NAMED: Final = 16
_UNRESOLVABLE: Final = frozenset(
    {
        ReasonCode.INVALID_REQUEST,
        ReasonCode.NODE_AFFINITY,
        ReasonCode.TAINT,
        ReasonCode.DRIVER_UNSUPPORTED,
        ReasonCode.ISOLATION_PROVIDER,
        ReasonCode.TEMPLATE_MISMATCH,
        ReasonCode.TYPE_MISMATCH,
        ReasonCode.NODE_POLICY,
    }
)
"""Codes that no eviction can change."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of filter.

    Attributes:
        names: nodes that fit.
        failed: others with the reason, as far as kube-scheduler needs to know.
        unresolvable: those where evicting pods would not help.
        refusal: why no node fits, or None.
    """

    names: Sequence[str]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    refusal: Refusal | None = None


class Verbs:
    """The verbs and what they remember: holds with their end, name lists, refusals."""

    def __init__(self, engine: Engine, hold: float = HOLD) -> None:
        self.engine = engine
        self.hold_seconds = hold
        self.refusals: dict[str, Refusal] = {}
        self._holds: OrderedDict[str, float] = OrderedDict()
        self._named: OrderedDict[bytes, tuple[int, list[str], Bools]] = OrderedDict()

    # --- the verbs ---------------------------------------------------------------------------

    def filter(
        self, pod: Pod, names: Sequence[str], among: Bools | None, now: float, *, one: bool
    ) -> Answer:
        """Which of the nodes can host the pod.

        Args:
            pod: the pod, without ordinary resources: kube-scheduler has checked those.
            names: the nodes in question.
            among: the same by node index, from `nodes_of`.
            now: seconds on any steady clock.
            one: the pod has no soft constraints, so one node is answer enough.
        """
        if not _asks(pod):
            return Answer(names)
        self._holds.pop(pod.uid, None)
        decision = self.engine.hold(pod, among)
        if isinstance(decision, Refusal):
            self.refusals[pod.uid] = decision
            return self._refused(names, decision)
        self.refusals.pop(pod.uid, None)
        self._holds[pod.uid] = now + self.hold_seconds
        held = decision.allocation.node
        if one:
            return Answer([held])
        # The pod's own hold must not count against it.
        self.engine.handle(HoldEnded(pod.uid))
        fitting = self.engine.feasible(pod, among)
        self.engine.hold(pod, among)
        return Answer([*fitting] or [held])

    def prioritize(
        self, pod: Pod, names: Sequence[str], among: Bools | None
    ) -> list[tuple[str, int]]:
        """A score from 0 to 10 for each node: the best gets 10, those that do not fit 0."""
        if not _asks(pod):
            return [(name, 0) for name in names]
        held = self.engine.ledger.allocation(pod.uid)
        ends = self._holds.get(pod.uid)
        if ends is not None:
            self.engine.handle(HoldEnded(pod.uid))
        scores = {} if pod.request.fault else self.engine.feasible(pod, among)
        if ends is not None:
            self.engine.hold(pod, among)
        low, high = min(scores.values(), default=0), max(scores.values(), default=0)
        span = high - low

        def score(name: str) -> int:
            value = scores.get(name)
            if value is None:
                return 0
            if held is not None and held.node == name:
                return _BEST
            return 1 + (value - low) * (_BEST - 2) // span if span else _BEST - 1

        return [(name, score(name)) for name in names]

    def bind(self, pod: Pod, node: str) -> Placement | Refusal:
        """Fit, reserve and pick cards in one step; the service then sends the Binding."""
        self._holds.pop(pod.uid, None)
        decision = self.engine.place_on(pod, node)
        if isinstance(decision, Refusal):
            self.refusals[pod.uid] = decision
        else:
            self.refusals.pop(pod.uid, None)
        return decision

    def preempt(
        self, pod: Pod, candidates: Mapping[str, Sequence[str]], priorities: Mapping[str, int]
    ) -> dict[str, tuple[str, ...]]:
        """Nodes where evicting makes room for the pod on the cards, with the victims needed.

        Victims that are not needed are reprieved, highest priority first; a node where evicting
        all of them is not enough is dropped.

        Args:
            pod: the pod that wants room.
            candidates: victims by node, as kube-scheduler proposes.
            priorities: priority of each victim, 0 where unknown.
        """
        kept: dict[str, tuple[str, ...]] = {}
        for node, uids in candidates.items():
            victims = sorted(uids, key=lambda uid: priorities.get(uid, 0))
            if not _asks(pod):
                kept[node] = tuple(uids)
                continue
            if not victims or not self.engine.fits_without(pod, node, victims):
                continue
            for uid in reversed(victims.copy()):
                fewer = [victim for victim in victims if victim != uid]
                if fewer and self.engine.fits_without(pod, node, fewer):
                    victims = fewer
            kept[node] = tuple(victims)
        return kept

    # --- holds and names ---------------------------------------------------------------------

    def expire(self, now: float) -> list[Action]:
        """End holds that have lasted their time; what the driver should do about it."""
        actions: list[Action] = []
        for uid in [uid for uid, end in self._holds.items() if end <= now]:
            del self._holds[uid]
            actions += self.engine.handle(HoldEnded(uid))
        return actions

    def forget(self, uid: str) -> None:
        """The pod is bound, gone or rejected: it needs no hold and no reason any more."""
        self._holds.pop(uid, None)
        self.refusals.pop(uid, None)

    @property
    def holds(self) -> Mapping[str, float]:
        """Holds by pod UID with the time at which they end."""
        return self._holds

    def nodes_of(self, raw: bytes, names: Iterable[str] | None = None) -> tuple[list[str], Bools]:
        """Names and node indexes of a list of names; the same list is looked up once.

        Args:
            raw: the list as it came, which is the key.
            names: what it holds; needed only when it was not seen since the nodes changed.
        """
        epoch = len(self.engine.ledger.node_changes)
        known = self._named.get(raw)
        if known is not None and known[0] == epoch:
            self._named.move_to_end(raw)
            return known[1], known[2]
        listed = list(names or ())
        among = np.zeros(self.engine.ledger.present.shape[0], np.bool_)
        index = self.engine.ledger.index
        found = [index[name] for name in listed if name in index]
        among[found] = True
        self._named[raw] = (epoch, listed, among)
        while len(self._named) > _MOST_NAMED:
            self._named.popitem(last=False)
        return listed, among

    def is_known(self, raw: bytes) -> bool:
        """Whether `nodes_of` needs no names for this list."""
        known = self._named.get(raw)
        return known is not None and known[0] == len(self.engine.ledger.node_changes)

    def _refused(self, names: Sequence[str], refusal: Refusal) -> Answer:
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name in names:
            reason = refusal.nodes.get(name)
            if reason is not None:
                hopeless = reason.code in _UNRESOLVABLE
                text = f"{reason.code}: {reason.message}"
            else:
                # Without a reason of its own a node is only hopeless when the pod itself is.
                hopeless = refusal.code is ReasonCode.INVALID_REQUEST
                text = f"{refusal.code}: {refusal.message}" if hopeless else f"{refusal.code}"
            (unresolvable if hopeless else failed)[name] = text
        return Answer([], failed, unresolvable, refusal)


def _asks(pod: Pod) -> bool:
    return bool(pod.request.groups) or pod.request.fault is not None
