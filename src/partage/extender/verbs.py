"""The four verbs of an extender over the engine: filter, prioritize, bind, preempt.

Everything here is synchronous and pure but for the engine's books; sockets, clocks and the API
server are the service's. Filter and prioritize change nothing that a caller could observe but
holds: a filtered pod's predicted place is kept for as long as a Binding may take, so that two
pods filtered together do not get the same room.

A pod without soft constraints gets one node, the best; the others get every node that fits, so
that affinity and spreading keep working.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

import numpy as np

from partage.extender.allowance import Allowance
from partage.extender.node_set_hash import fingerprint
from partage.extender.response_cache import BEST, ResponseCache
from partage.inventory.plane import Bools, Ints
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal
from partage.placement.work import FEW, Work
from partage.scheduler.decision import DryRun
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import Action, HoldEnded, Placement, Released, RoomKept
from partage.scheduler.explain import deferred
from partage.scheduler.preemption import least

__all__ = ["HOLD", "Answer", "Listed", "Verbs"]

HOLD: Final = 30.0
"""Seconds that a hold lasts: longer than kube-scheduler may take to bind."""

_MOST_NAMED: Final = 16
_MOST_PROVEN: Final = 128
"""Nodes of a request that only the exact rule can judge; asking it of thousands takes too long."""

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
        ReasonCode.AGENT_SILENT,
        ReasonCode.DEVICE_FILES_UNKNOWN,
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
        encoded: the names as JSON texts joined by commas, where those of many were prepared.
    """

    names: Sequence[str]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    refusal: Refusal | None = None
    encoded: bytes = b""


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of node names, looked up in the books.

    Attributes:
        names: as they came.
        indexes: where each is in the books; -1 where it is not known.
        among: the same by node index; None stands for every node there is.
    """

    names: Sequence[str]
    indexes: Ints
    among: Bools | None


class Verbs:
    """The verbs and what they remember: holds with their end, name lists, refusals.

    Attributes:
        allowance: how much each namespace may have searched for.
        refusals: why pods wait, by uid, as they were last told.
        vacated: nodes where room appeared because a hold moved; the service wakes those who wait.
    """

    def __init__(
        self, engine: Engine, hold: float = HOLD, allowance: Allowance | None = None
    ) -> None:
        self.engine = engine
        self.allowance = allowance or Allowance()
        self.hold_seconds = hold
        self.refusals: dict[str, Refusal] = {}
        self.vacated: set[str] = set()
        self._holds: OrderedDict[str, float] = OrderedDict()
        self._by_text: OrderedDict[bytes, Listed] = OrderedDict()
        self._by_set: OrderedDict[bytes, Listed] = OrderedDict()
        self._named_at = -1
        self._told: OrderedDict[tuple[int, int], tuple[Listed, Answer]] = OrderedDict()
        self._pieces = ResponseCache()
        self._pieces_at = -1

    # --- the verbs ---------------------------------------------------------------------------

    def filter(self, pod: Pod, listed: Listed, now: float, *, one: bool) -> Answer:
        """Which of the nodes can host the pod.

        Args:
            pod: the pod, without ordinary resources: kube-scheduler has checked those.
            listed: the nodes in question.
            now: seconds on any steady clock.
            one: the pod has no soft constraints, so one node is answer enough.

        Raises:
            LedgerError: the pod holds more than a hold already.
        """
        if not _asks(pod):
            return Answer(listed.names)
        before = self.engine.ledger.allocation(pod.uid)
        fitting = np.zeros(0, np.intp)
        work = self.allowance.work(pod, now)
        if not one and not pod.request.fault and work is not None:
            # The pod's own hold must not count against it.
            self.engine.handle(HoldEnded(pod.uid))
            mine = Work(work.limit)
            fitting, _ = self.engine.candidates(pod, listed.among, _MOST_PROVEN, mine)
            self.allowance.spend(pod, mine.taken, now)
        decision = self.decide(pod, listed.among, now, work)
        self._holds.pop(pod.uid, None)
        after = None if isinstance(decision, Refusal) else decision.allocation.node
        if before is not None and before.node != after:
            self.vacated.add(before.node)
        if isinstance(decision, Refusal):
            self.refusals[pod.uid] = decision
            return self._refused(listed, decision)
        self.refusals.pop(pod.uid, None)
        self._holds[pod.uid] = now + self.hold_seconds
        if not fitting.size:
            return Answer([decision.allocation.node])
        pieces = self._known()
        return Answer(
            pieces.named(fitting), encoded=pieces.fitting((listed, pod.request), fitting)
        )

    def decide(
        self, pod: Pod, among: Bools | None, now: float, work: Work | None
    ) -> Placement | Refusal:
        """The place that the pod has now, held for it, or why there is none; paid by its namespace.

        Args:
            pod: the pod.
            among: by node index, the nodes that may be chosen; None for all.
            now: seconds on any steady clock.
            work: what may be done, by the allowance; None to defer it unasked.

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

    def prioritize(self, pod: Pod, listed: Listed, now: float) -> Ints:
        """A score from 0 to 10 for each node: the best gets 10, those that do not fit 0.

        The pod's own hold stands meanwhile. It hides nothing but the node it is on, and that is
        the one that was chosen: it gets 10.

        Args:
            pod: the pod.
            listed: the nodes in question.
            now: seconds on any steady clock.
        """
        result = np.zeros(len(listed.names), np.int64)
        if not _asks(pod) or pod.request.fault:
            return result
        work = self.allowance.work(pod, now) or Work(FEW)
        found, scores = self.engine.candidates(pod, listed.among, _MOST_PROVEN, work)
        self.allowance.spend(pod, work.taken, now)
        column = np.zeros(self.engine.ledger.present.shape[0] + 1, np.int64)
        if found.size:
            low, span = int(scores.min()), int(scores.max() - scores.min())
            column[found] = 1 + (scores - low) * (BEST - 2) // span if span else BEST - 1
        held = self.engine.ledger.allocation(pod.uid)
        if held is not None and held.node in self.engine.ledger.index:
            column[self.engine.ledger.index[held.node]] = BEST
        column[-1] = 0  # unknown names have the index -1
        return column[listed.indexes]

    def nominate(self, pod: Pod, node: str, now: float, leaving: Collection[str] = ()) -> bool:
        """Keep room on one node for a pod that preemption nominated; whether it has all of it.

        Args:
            pod: the pod.
            node: where.
            now: seconds on any steady clock.
            leaving: uids of pods that are on their way out there; until they are gone, what is
                free already is kept.
        """
        if not _asks(pod) or node not in self.engine.ledger.index:
            return False
        clearing = self.engine.states.get(pod.uid) is State.CLEARING
        if pod.uid in self.engine.ledger and not clearing:
            return False
        work = Work()
        if self.engine.grants_without(pod, node, (), work=work) is not None:
            among = np.zeros(self.engine.ledger.present.shape[0], np.bool_)
            among[self.engine.ledger.index[node]] = True
            if not isinstance(self.engine.hold(pod, among), Refusal):
                self._holds[pod.uid] = now + self.hold_seconds
                return True
            return False  # its namespace's quota is used up
        grants = self.engine.grants_without(pod, node, leaving, work=work) if leaving else None
        if grants is not None:
            self._moved(self.engine.handle(RoomKept(pod, node, grants)))
        elif clearing:
            self._moved(self.engine.handle(HoldEnded(pod.uid)))
        return False

    def _moved(self, actions: Iterable[Action]) -> None:
        """Room that a change of holds left is told with that of other holds that moved."""
        self.vacated |= {action.node for action in actions if isinstance(action, Released)}

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
        self,
        pod: Pod,
        candidates: Mapping[str, Sequence[str]],
        priorities: Mapping[str, int],
        now: float,
    ) -> dict[str, tuple[str, ...]]:
        """Nodes where evicting makes room for the pod on the cards, with the victims needed.

        What kube-scheduler proposes is already the least that its own rules need, so none of it is
        reprieved here. Where it is not enough on the cards (two halves of different cards are no
        whole card), less important pods of the node are added, as few as will do. A node where
        even that is not enough is dropped, and so are those that one decision's work does not reach.

        Args:
            pod: the pod that wants room.
            candidates: victims by node, as kube-scheduler proposes; may be empty.
            priorities: priority of the pods that hold devices; a pod without one is spared.
            now: seconds on any steady clock.
        """
        if not _asks(pod):
            return {node: tuple(uids) for node, uids in candidates.items()}
        kept: dict[str, tuple[str, ...]] = {}
        work = Work()
        for node, uids in candidates.items():
            victims = list(uids)
            with self.engine.without(pod, node, work=work) as run:
                if not victims or run.grants(victims) is None:
                    others = self._others(pod, node, victims, priorities)
                    added = self._added(run, victims, others, work)
                    if not added:
                        continue
                    victims += added
            kept[node] = tuple(victims)
        self.allowance.spend(pod, work.taken, now)
        return kept

    def _others(
        self, pod: Pod, node: str, victims: Sequence[str], priorities: Mapping[str, int]
    ) -> list[str]:
        """Less important pods of the node beside the victims, the least important first."""
        return sorted(
            (
                held.uid
                for held in self.engine.ledger.on_node(node)
                if held.uid not in victims
                and self.engine.states.get(held.uid) is State.BOUND
                and priorities.get(held.uid, pod.priority) < pod.priority
            ),
            key=lambda uid: priorities[uid],
        )

    def _added(
        self, run: DryRun, victims: Sequence[str], others: Sequence[str], work: Work
    ) -> list[str]:
        """The least important pods of the node that make room together with the victims."""

        def fits(gone: Collection[str]) -> bool:
            return run.grants([*victims, *gone]) is not None

        if not others or not fits(others):
            return []
        count = 1 + bisect_left(range(1, len(others)), True, key=lambda n: fits(others[:n]))
        *some, last = others[:count]
        added = [*least(some[::-1], lambda gone: fits([*gone, last])), last]
        # Without work left some may be among them that could be spared.
        return [] if work.spent else added

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
        self.allowance.forget(uid)

    def forget_hold(self, uid: str) -> None:
        """The pod has no hold any more; why it waits stays known."""
        self._holds.pop(uid, None)

    @property
    def holds(self) -> Mapping[str, float]:
        """Holds by pod UID with the time at which they end."""
        return self._holds

    def look_up(self, raw: bytes, names: Callable[[], Sequence[str]]) -> Listed:
        """A list of names as the books know it; one that holds the same names is looked up once.

        Args:
            raw: the list as it came, a JSON array; empty when there is none.
            names: what it holds; asked only when it is not known, or nodes came or went since.
        """
        if self._named_at != len(self.engine.ledger.node_changes):
            self._named_at = len(self.engine.ledger.node_changes)
            self._by_text.clear()
            self._by_set.clear()
        if not raw:
            return self._looked_up(names())
        known = self._by_text.get(raw)
        if known is None:
            key = fingerprint(raw)
            known = self._by_set.get(key) if key else None
            if known is None:
                known = self._looked_up(names())
            if key:
                _keep(self._by_set, key, known)
        # Apart, so that texts in ever new orders do not push the set out that they all are.
        _keep(self._by_text, raw, known)
        return known

    def _looked_up(self, names: Sequence[str]) -> Listed:
        ledger = self.engine.ledger
        indexes = np.fromiter(map(ledger.index.get, names, repeat(-1)), np.intp, len(names))
        among = np.zeros(ledger.present.shape[0] + 1, np.bool_)
        among[indexes] = True
        return Listed(names, indexes, among[:-1])

    def scored(self, pod: Pod, listed: Listed, scores: Ints) -> bytes:
        """The answer of prioritize for these scores, put together from prepared pieces."""
        of = (listed, pod.request)
        return b"[%b]" % self._known().scored(of, listed.names, listed.indexes, scores)

    def _known(self) -> ResponseCache:
        ledger = self.engine.ledger
        if self._pieces_at != len(ledger.node_changes):
            self._pieces_at = len(ledger.node_changes)
            self._pieces.know(ledger.index, ledger.present.shape[0])
        return self._pieces

    def _refused(self, listed: Listed, refusal: Refusal) -> Answer:
        """The answer that says why; equal calls get the same, while nothing has changed."""
        # Both are kept with the answer, so their identities are not used again meanwhile.
        known = self._told.get((id(listed), id(refusal)))
        if known is not None:
            return known[1]
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        broken = refusal.code is ReasonCode.INVALID_REQUEST
        late = refusal.code is ReasonCode.SEARCH_DEFERRED
        # Without a reason of its own a node is only hopeless when the pod itself is.
        rest = f"{refusal.code}: {refusal.message}" if broken else f"{refusal.code}"
        for name in listed.names:
            reason = refusal.nodes.get(name)
            if reason is None:
                # No victim would make the search shorter.
                (unresolvable if broken or late else failed)[name] = rest
            else:
                hopeless = reason.code in _UNRESOLVABLE
                text = f"{reason.code}: {reason.message}"
                (unresolvable if hopeless else failed)[name] = text
        answer = Answer([], failed, unresolvable, refusal)
        self._told[id(listed), id(refusal)] = (listed, answer)
        while len(self._told) > _MOST_NAMED:
            self._told.popitem(last=False)
        return answer


def _keep(known: OrderedDict[bytes, Listed], key: bytes, listed: Listed) -> None:
    """Remember it, and forget what was asked for longest ago."""
    known[key] = listed
    known.move_to_end(key)
    if len(known) > _MOST_NAMED:
        known.popitem(last=False)


def _asks(pod: Pod) -> bool:
    return bool(pod.request.groups) or pod.request.fault is not None
