"""The verbs of an extender, over the steps of `extender.cycle`: filter, prioritize, preempt.

All functions are synchronous and change only the engine's books; the service owns sockets, clocks
and the connection to the API server. The only change by filter and prioritize that a caller can
observe is a hold. It keeps the predicted place of a filtered pod as long as a Binding may take, so
that two pods filtered together do not get the same room. `extender.bindings` reserves and binds.

A pod without soft constraints gets only the best node. Other pods get every node that fits, so
that affinity and spreading keep working.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from typing import Final

import numpy as np

from partage.extender.cycle import WIDE, Cycle, asks, scaled
from partage.inventory.plane import Bools, Ints
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal
from partage.placement.card import Work
from partage.scheduler.decision import DryRun
from partage.scheduler.engine import State
from partage.scheduler.preemption import least

_BEST: Final = 10
"""The highest score of an extender."""

_MOST_TOLD: Final = 2**20
_LEAST_TOLD: Final = 128
"""Characters of one reason repeated for all nodes of an answer, and of what each node gets of it at least."""

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
"""Codes of reasons that no eviction can change."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of filter.

    Attributes:
        among: by node index, whether the node was in the question.
        failed: refused nodes with the reason, as far as kube-scheduler needs it.
        unresolvable: refused nodes where no eviction would help.
        refusal: the reason why no node fits, or None.
    """

    names: Sequence[str]
    among: Bools
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class _Listed:
    """A list of node names, looked up in the books.

    Attributes:
        indexes: each node's index in the books; -1 for an unknown node.
        among: by node index, whether the node is in the list.
    """

    names: Sequence[str]
    indexes: Ints
    among: Bools


class Verbs:
    """The verbs."""

    def __init__(self, cycle: Cycle) -> None:
        self.cycle = cycle
        self.engine = cycle.engine

    def filter(self, pod: Pod, names: Sequence[str], now: float, *, one: bool) -> Answer:
        """The nodes that can host the pod. Raises `LedgerError`: the pod already has more than a hold.

        Args:
            pod: the pod, without ordinary resources, which kube-scheduler has checked.
            one: the pod has no soft constraints, so one node is enough.
        """
        listed = self._look_up(names)
        if not asks(pod):
            return Answer(names, listed.among)
        decision, fitting = self.cycle.filter(pod, listed.among, now, one=one)
        if isinstance(decision, Refusal):
            return self._refused(listed, decision)
        if not fitting.size:
            return Answer([decision.allocation.node], listed.among)
        fits = np.zeros(self.engine.ledger.present.shape[0] + 1, np.bool_)
        fits[fitting] = True
        return Answer([*compress(names, fits[listed.indexes].tolist())], listed.among)

    def prioritize(self, pod: Pod, names: Sequence[str], now: float) -> Ints:
        """A score from 0 to 10 for each node: the best gets 10, a node that does not fit 0.

        The pod's own hold stays. It hides only its own node, which filter chose, so this node gets 10.
        """
        if not asks(pod) or pod.request.fault:
            return np.zeros(len(names), np.int64)
        listed = self._look_up(names)
        work = self.cycle.allowance.question(pod, now)
        found, scores = self.cycle.candidates(pod, listed.among, WIDE, work, now)
        column = np.zeros(self.engine.ledger.present.shape[0] + 1, np.int64)
        if found.size:
            column[found] = scaled(scores, 1, _BEST - 1)
        held = self.engine.ledger.allocation(pod.uid)
        if held is not None and held.node in self.engine.ledger.index:
            column[self.engine.ledger.index[held.node]] = _BEST
        column[-1] = 0  # unknown names have the index -1
        return column[listed.indexes]

    def preempt(
        self,
        pod: Pod,
        candidates: Mapping[str, Sequence[str]],
        priorities: Mapping[str, int],
        now: float,
    ) -> dict[str, tuple[str, ...]]:
        """Nodes where evictions make room for the pod on the cards, with the necessary victims.

        kube-scheduler's victims are already the fewest by its own rules, so this method spares none.
        If they make not enough room on the cards (two halves of different cards are no whole card),
        it adds less important pods of the node, as few as possible. It drops nodes where even that
        is not enough, and nodes that one decision's work does not reach.

        Args:
            candidates: victims by node, as kube-scheduler proposes them; may be empty.
            priorities: priority of the pods that hold devices; a pod without one is spared.
        """
        if not asks(pod):
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
        self.cycle.allowance.spend(pod, work.taken, now)
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

    def _look_up(self, names: Sequence[str]) -> _Listed:
        """Look up a list of node names in the books."""
        ledger = self.engine.ledger
        indexes = np.fromiter(map(ledger.index.get, names, repeat(-1)), np.intp, len(names))
        among = np.zeros(ledger.present.shape[0] + 1, np.bool_)
        among[indexes] = True
        return _Listed(names, indexes, among[:-1])

    @staticmethod
    def _refused(listed: _Listed, refusal: Refusal) -> Answer:
        """The answer for a refusal, with the reason of each node."""
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        broken = refusal.code is ReasonCode.INVALID_REQUEST
        late = refusal.code is ReasonCode.SEARCH_DEFERRED
        # A node without a reason of its own is unresolvable only if the pod itself is.
        rest = f"{refusal.code}: {refusal.message}" if broken else f"{refusal.code}"
        most = max(_LEAST_TOLD, _MOST_TOLD // max(1, len(listed.names)))
        rest = rest if len(rest) <= most else f"{rest[: most - 1]}…"
        for name in listed.names:
            reason = refusal.nodes.get(name)
            if reason is None:
                # No eviction would shorten a deferred search.
                (unresolvable if broken or late else failed)[name] = rest
            else:
                hopeless = reason.code in _UNRESOLVABLE
                text = f"{reason.code}: {reason.message}"
                (unresolvable if hopeless else failed)[name] = text
        return Answer([], listed.among, failed, unresolvable, refusal)
