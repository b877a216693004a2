"""Chooses a place for a pod: a look at the books that changes nothing.

Deciding, explaining, listing the nodes that would do and preemption's dry run are one rule, asked
in different ways. `Engine` adds the events, and books what was chosen.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from partage.inventory.ledger import Card, Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.allocation import Allocation, Grant
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import NodeReason, ReasonCode, Refusal
from partage.model.request import PodRequest
from partage.placement.fast import choose, simple
from partage.placement.pod import place
from partage.placement.tables import Tables
from partage.scheduler.classbook import ClassBook
from partage.scheduler.classes import RANKS, RequestClass
from partage.scheduler.events import Placement
from partage.scheduler.explain import brief, refuse
from partage.scheduler.quota import QuotaBook, metered

__all__ = ["Chooser", "amounts"]


_MOST_BEYOND: Final = 32
"""Nodes that are tried for a pod of which what is granted goes beyond its quota."""


class Chooser:
    """The ledger, the policy and tables in force, quotas, and scores by class."""

    def __init__(self, policy: Policy | None = None, *, accelerate: bool = False) -> None:
        """An empty cluster; see `Engine`."""
        self.ledger = Ledger()
        self.policy = policy or Policy()
        self.tables = Tables()
        self.quotas = QuotaBook()
        self._rank = np.zeros(16, np.int64)
        self._classes = ClassBook(self.ledger, accelerate=accelerate)
        self._insists = np.zeros(0, np.bool_)
        self._insisting_at = -1

    def explain(
        self, pod: Pod, *, reasons: bool = True, among: Bools | None = None
    ) -> Placement | Refusal:
        """The decision that `schedule` would take, without taking it.

        Args:
            pod: the pod.
            reasons: see `schedule`.
            among: by node index, the nodes that may be chosen; None for all.
        """
        # 1. A request that breaks its protocol's rules waits whatever the cluster.
        if pod.request.fault is not None:
            return Refusal(pod.request.fault.code, pod.request.fault.message)
        # 2. So does one that its namespace's quota does not allow.
        excess = self.quotas.excess(pod.namespace, pod.quota)
        if excess:
            return Refusal(ReasonCode.QUOTA_EXCEEDED, excess)
        # 3. Bring the scores of its class up to date.
        group = self._class_of(pod)
        if group.shut(self.ledger):
            return refuse(self.ledger, group, self._rank) if reasons else brief(group)
        group.refresh(self.ledger, self._rank)
        # 4. Try nodes from the best down; the exact rule has the last word.
        beyond, left = "", _MOST_BEYOND
        while left and (index := group.best(among)) >= 0:
            grants = self._try(group, pod, index)
            if isinstance(grants, NodeReason):
                group.fail(index, grants)
                continue
            node = self.ledger.node_at(index)
            # 5. Keys that count what is granted are known only now.
            if self.quotas.limits(pod.namespace):
                excess = self.quotas.excess(pod.namespace, amounts(pod, grants))
                if excess:
                    # A part of a smaller card counts less.
                    among = self._smaller(grants, index, among)
                    beyond, left = beyond or excess, left - 1
                    continue
            allocation = Allocation(pod.uid, pod.namespace, pod.name, node.name, grants, pod.host)
            return Placement(allocation, pod.request.notes)
        if beyond:
            return Refusal(ReasonCode.QUOTA_EXCEEDED, beyond)
        # 6. Nothing fits: say why, node by node.
        if among is None:
            group.shut_down(self.ledger)
        return refuse(self.ledger, group, self._rank) if reasons else brief(group)

    def _smaller(self, grants: Sequence[Grant], index: int, among: Bools | None) -> Bools:
        """Of the nodes that may be chosen, those with a card smaller than any that was granted."""
        type_ = DeviceType.GPU
        granted = {grant.uuid for grant in grants if grant.type is type_}
        sizes = [
            card.device.memory_bytes
            for card in self.ledger.cards(type_, index)
            if card.device.uuid in granted
        ]
        total = self.ledger.planes[type_].memory_total
        found: Bools = np.logical_or.reduce((total > 0) & (total < min(sizes, default=0)))
        if among is not None:
            found &= among
        found[index] = False
        return found

    def feasible(self, pod: Pod, among: Bools | None = None) -> dict[str, int]:
        """Every node that can host the pod now, in node order, with its score.

        Args:
            pod: a pod without a fault.
            among: by node index, the nodes that are asked about; None for all.
        """
        found, scores = self.candidates(pod, among)
        order = np.argsort(self._rank[found], kind="stable")
        return {
            self.ledger.node_at(index).name: score
            for index, score in zip(found[order].tolist(), scores[order].tolist(), strict=True)
        }

    def candidates(
        self, pod: Pod, among: Bools | None = None, most: int | None = None
    ) -> tuple[Ints, Ints]:
        """Indexes of the nodes that can host the pod now, in no order, and their scores.

        Args:
            pod: a pod without a fault.
            among: by node index, the nodes that are asked about; None for all.
            most: where only the exact rule can tell, it is asked from the best node down until so
                many fit; None asks it of every node.
        """
        group = self._class_of(pod)
        group.refresh(self.ledger, self._rank)
        offer = group.offer
        value = offer if among is None else np.where(among, offer, -1)
        found = np.flatnonzero(value >= 0)
        # For plain requests the kernel is exact, but where cards must belong together.
        unsure = self._insisting()[found] if group.plain else np.ones(found.size, np.bool_)
        if unsure.any():
            best_first = found[unsure][np.argsort(-value[found[unsure]], kind="stable")]
            proven = self._proven(group, pod, best_first.tolist(), most)
            found = np.concatenate([found[~unsure], np.array(proven, found.dtype)])
        return found, offer[found] // RANKS

    def _proven(
        self, group: RequestClass, pod: Pod, indexes: list[int], most: int | None
    ) -> list[int]:
        """Those of the nodes that the exact rule passes."""
        proven: list[int] = []
        for index in indexes:
            if most is not None and len(proven) >= most:
                break
            grants = self._try(group, pod, index)
            if isinstance(grants, NodeReason):
                group.fail(index, grants)
            else:
                proven.append(index)
        return proven

    def _insisting(self) -> Bools:
        """By node index, whether the node says which cards belong together."""
        if self._insisting_at != len(self.ledger.node_changes):
            self._insisting_at = len(self.ledger.node_changes)
            column = np.zeros(self.ledger.present.shape[0], np.bool_)
            for index, node in enumerate(self.ledger.nodes):
                if node is not None:
                    column[index] = node.honour_partitions or node.single_numa
            self._insists = column
        return self._insists

    def fits_without(self, pod: Pod, name: str, victims: Iterable[str]) -> bool:
        """Whether the pod would fit on a node if these pods were gone (preemption's dry run)."""
        return self.grants_without(pod, name, victims) is not None

    def grants_without(
        self, pod: Pod, name: str, gone: Iterable[str], first: Sequence[Pod] = ()
    ) -> tuple[Grant, ...] | None:
        """What the pod would get on a node if others were gone; None where it would not fit.

        Args:
            pod: the pod; what it holds itself does not count against it.
            name: the node.
            gone: uids of pods that are thought away.
            first: pods that are thought to get their place there before, in this order; what
                they hold so far does not count either.
        """
        index = self.ledger.index.get(name)
        if index is None or pod.request.fault is not None:
            return None
        away = dict.fromkeys([*gone, pod.uid, *(one.uid for one in first)])
        taken = [a for uid in away if (a := self.ledger.undo(uid)) is not None]
        added: list[str] = []
        try:
            for one in first:
                grants = self._grants(one, index)
                if grants:
                    self.ledger.apply(
                        Allocation(one.uid, one.namespace, one.name, name, grants, one.host)
                    )
                    added.append(one.uid)
            return self._grants(pod, index)
        finally:
            for uid in added:
                self.ledger.undo(uid)
            for allocation in taken:
                self.ledger.apply(allocation)

    def _grants(self, pod: Pod, index: int) -> tuple[Grant, ...] | None:
        """What the pod would get on one node now; None where it does not fit."""
        group = self._class_of(pod)
        group.refresh(self.ledger, self._rank)
        if group.value[index] < 0:
            return None
        grants = self._try(group, pod, index)
        return None if isinstance(grants, NodeReason) else grants

    def _try(self, group: RequestClass, pod: Pod, index: int) -> tuple[Grant, ...] | NodeReason:
        if not pod.request.groups:
            return ()
        scores = group.ranking(self.ledger, index) if group.scores_cards else None
        if group.plain and simple(self.ledger, pod.request.groups[0].request, index):
            chosen = choose(
                self.ledger,
                pod.request.groups[0],
                group.suits(index),
                index,
                group.card_strategy,
                scores,
            )
            chosen = chosen or group.instance(self.ledger, pod.request.groups[0], index)
            if chosen:
                return chosen
        return place(
            self.ledger.node_at(index),
            _cards_of(self.ledger, pod.request, index),
            pod.request,
            group.card_strategy,
            scores,
        )

    def _class_of(self, pod: Pod) -> RequestClass:
        return self._classes.find(pod, self.policy, self.tables)


def amounts(pod: Pod, grants: tuple[Grant, ...]) -> Mapping[str, int]:
    """What a pod counts against its namespace's quota, by key, once it has its grants."""
    for group in pod.request.groups:
        if group.metered:
            break
    else:
        return pod.quota
    amounts = metered(pod.request, grants)
    for key, amount in pod.quota.items():
        amounts[key] = amounts.get(key, 0) + amount
    return amounts


def _cards_of(ledger: Ledger, request: PodRequest, index: int) -> Mapping[DeviceType, list[Card]]:
    """Scratch copies of a node's cards of the types that a request names."""
    types = {group.request.type for group in request.groups}
    return {type_: ledger.cards(type_, index) for type_ in types}
