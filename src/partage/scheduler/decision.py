"""Chooses a place for a pod within its namespace's quota: reads the books and changes nothing.

Deciding, explaining, listing the suitable nodes and preemption's dry run are one rule, asked in different ways.
`Engine` adds the events, and books the choice.

`QuotaBook` has the amounts that each namespace uses of the keys of its quotas: the amounts that pods declare
(`requests.koordinator.sh/gpu-core`) and, for keys that a protocol meters, the amounts granted
(`limits.nvidia.com/gpumem` in MiB; docs/sources/hami.md 4.6). An explicit 0 blocks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.allocation import Allocation, Grant, metered
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import NodeReason, ReasonCode, Refusal
from partage.model.request import PodRequest
from partage.placement.card import MOST_A_NODE, Work
from partage.placement.kernel import choose, host_fits
from partage.placement.pod import GIVEN_UP
from partage.placement.tables import Tables
from partage.scheduler.classes import RANKS, RequestClass, RequestClassCache, Scorers
from partage.scheduler.events import Placement, Quotas
from partage.scheduler.explain import brief, deferred, refuse
from partage.scheduler.permits import PermitBook

_MOST_CHANGES: Final = 4096
"""Templates of a namespace whose pods are counted apart before their amounts are added up."""

_MOST_BEYOND: Final = 32
"""Nodes that are tried for a pod whose grants exceed its quota."""

_LAST_TRIES: Final = 4
"""Nodes that get one more try without a search when the decision's work is spent; one if it was spent by earlier searches
for the same answer."""

_A_NODE: Final = 20
_A_GROUP: Final = 20
_A_DRY_RUN: Final = 20
_A_MOVE: Final = 5
"""Units of work of reading a node's cards, of reading the columns for one more group, of asking about a node in a dry
run, and of removing or returning one more pod in it."""

_NODES: Final = 80
"""Nodes whose columns take one more unit for each group, if all of them are read."""


class _Meter:
    """The nodes of one decision from the best down, until it has reached its limit of work.

    Nodes that the exact rule refused before, and that have not changed since, count as if they were asked again. So a
    decision never depends on earlier questions.

    Attributes:
        among: the nodes that may be chosen, by index; None for all.
        given_up: whether nodes were left out because of the limit.
        last_tries: the number of nodes that are then tried without a search.
    """

    def __init__(self, group: RequestClass, among: Bools | None, work: Work) -> None:
        self.among = among
        self.work = work
        self.given_up = False
        self.last_tries = 1 if work.done >= work.limit else _LAST_TRIES
        self._group = group
        self._known = sorted(
            (rank, cost)
            for index, (rank, cost) in group.costs.items()
            if among is None or among[index]
        )

    def next(self) -> int:
        """The next node to ask; -1 if there is none, or no work is left."""
        work, (index, worth) = self.work, self._group.best(self.among)
        while self._known and self._known[-1][0] > worth and work.done < work.limit:
            cost = self._known.pop()[1]
            work.done += cost
            work.recalled += cost
        if work.done >= work.limit and (index >= 0 or self._known):
            self.given_up = True
            return -1
        return index

    def left_out(self) -> Bools:
        """The nodes that were not asked, by node index, including those that were refused before."""
        found: Bools = self._group.offer >= 0
        if self.among is not None:
            found &= self.among
        left = {rank for rank, _ in self._known}
        for index, (rank, _) in self._group.costs.items():
            found[index] |= rank in left
        return found


def amounts(pod: Pod, grants: tuple[Grant, ...]) -> Mapping[str, int]:
    """The pod's amounts against its namespace's quota, by key, once it has its grants."""
    for group in pod.request.groups:
        if group.metered:
            break
    else:
        return pod.quota
    amounts = metered(pod.request, grants)
    for key, amount in pod.quota.items():
        amounts[key] = amounts.get(key, 0) + amount
    return amounts


@dataclass(slots=True)
class _Change:
    """How many more pods use these amounts than the sums contain; keeps their identity in use."""

    amounts: Mapping[str, int]
    pods: int


class QuotaBook:
    """The amounts that each namespace uses, by pod.

    Pods of one template share their amounts. So changes are first counted by template and added up only on request;
    most namespaces have no quota and are never added up.
    """

    def __init__(self) -> None:
        self.quotas = Quotas()
        self._of: dict[str, tuple[str, Mapping[str, int]]] = {}
        self._used: dict[str, Counter[str]] = {}
        self._changes: dict[str, dict[int, _Change]] = {}
        self._pods = Counter[str]()

    def apply(self, uid: str, namespace: str, amounts: Mapping[str, int]) -> None:
        """Count a pod; another count replaces the earlier one."""
        if uid in self._of:
            self.undo(uid)
        if not amounts:
            return
        self._of[uid] = (namespace, amounts)
        self._pods[namespace] += 1
        self._change(namespace, amounts, 1)

    def take_in(self, pod: Pod, grants: tuple[Grant, ...]) -> None:
        """Count a pod that holds these grants."""
        self.apply(pod.uid, pod.namespace, amounts(pod, grants))

    def undo(self, uid: str) -> None:
        """Stop counting a pod."""
        entry = self._of.pop(uid, None)
        if entry is None:
            return
        namespace, amounts = entry
        self._pods[namespace] -= 1
        if self._pods[namespace]:
            self._change(namespace, amounts, -1)
        else:  # namespaces are deleted too
            for sums in (self._pods, self._changes, self._used):
                sums.pop(namespace, None)

    def _change(self, namespace: str, amounts: Mapping[str, int], pods: int) -> None:
        changes = self._changes.get(namespace)
        if changes is None:
            changes = self._changes[namespace] = {}
        change = changes.get(id(amounts))
        if change is None:
            changes[id(amounts)] = _Change(amounts, pods)
        else:
            change.pods += pods
        if len(changes) > _MOST_CHANGES:
            self.used(namespace)

    @property
    def counted(self) -> dict[str, tuple[str, Mapping[str, int]]]:
        """The counted amounts of each pod, by uid: its namespace and amounts."""
        return dict(self._of)

    def used(self, namespace: str) -> Mapping[str, int]:
        """The namespace's used amounts, by key."""
        changes = self._changes.pop(namespace, None)
        if changes is None:
            return self._used.get(namespace, {})
        used = self._used.setdefault(namespace, Counter())
        for change in changes.values():
            if change.pods:
                for key, amount in change.amounts.items():
                    used[key] += amount * change.pods
        return used

    def excess(self, namespace: str, amounts: Mapping[str, int]) -> str:
        """The quota that the pod would exceed, as a sentence; empty if none."""
        quotas = self.quotas.by_namespace.get(namespace)
        if not quotas:
            return ""
        used = self.used(namespace)
        for quota in quotas:
            for key, hard in quota.hard:
                asked = amounts.get(key, 0)
                if asked and used.get(key, 0) + asked > hard:
                    return (
                        f"quota {quota.name} of namespace {namespace}: {key} asked {asked}, "
                        f"used {used.get(key, 0)}, limited to {hard}"
                    )
        return ""


class Chooser:
    """The ledger, the policy and tables in force, quotas, and scores by class."""

    def __init__(self, policy: Policy | None = None, scorers: Scorers | None = None) -> None:
        self.ledger = Ledger()
        self.policy = policy or Policy()
        self.tables = Tables()
        self.quotas = QuotaBook()
        self.permits = PermitBook()
        self._rank = np.zeros(16, np.int64)
        self._classes = RequestClassCache(self.ledger, scorers)
        self._insists = np.zeros(0, np.bool_)
        self._insisting_at = -1

    def evaluate(
        self,
        pod: Pod,
        *,
        reasons: bool = True,
        among: Bools | None = None,
        work: Work | None = None,
        alone: Pod | None = None,
    ) -> Placement | Refusal:
        """The decision that `schedule` would take, without taking it.

        Args:
            among: the nodes that may be chosen, by index; None for all.
            work: the limit of work; None for a decision's usual limit. With less, a pod that needs a search is
                deferred; all others are decided as always.
            alone: the same pod by its devices alone. It is decided about if no node takes the whole pod and some
                lack what the pod asks beside devices; what is left of the limit is then spent on these.
        """
        work = work or Work()
        work.began = work.done
        found = self._choice(pod, among, work, fresh=alone is not None or not reasons)
        if found is None and alone is not None:
            short = self._short_beside(pod)
            if short is not None:
                whole, group = self._class_of(pod), self._class_of(alone)
                if whole.failed:
                    work.aside += self._refresh(group)
                    group.learn(whole)
                work.go_on()
                rest = short if among is None else among & short
                pod, found = alone, self._choice(alone, rest, work, fresh=True)
                if found is None:
                    group.given_up |= whole.given_up
                    if among is None and not group.given_up:
                        group.shut_down(self.ledger)
        if found is not None:
            return found
        # 6. Nothing fits: give the reason, node by node.
        group = self._class_of(pod)
        if not reasons:
            return brief(group)
        refusal = refuse(self.ledger, group, self._rank, work)
        group.refused_among = among
        return refusal

    def _choice(
        self, pod: Pod, among: Bools | None, work: Work, *, fresh: bool
    ) -> Placement | Refusal | None:
        """The pod's place, or the one reason that refuses it everywhere; None if each node has its own.

        Args:
            fresh: an equal question that was just refused is decided again, so that its work counts.
        """
        # 1. A request that breaks its protocol's rules waits, whatever the cluster.
        if pod.request.fault is not None:
            return Refusal(pod.request.fault.code, pod.request.fault.message)
        # 2. So does one that exceeds its namespace's quota.
        limited = pod.namespace in self.quotas.quotas.by_namespace
        if limited and (excess := self.quotas.excess(pod.namespace, pod.quota)):
            return Refusal(ReasonCode.QUOTA_EXCEEDED, excess)
        # 3. Update the scores of its class.
        group = self._class_of(pod)
        if (
            work.few
            and (len(group.kinds) * (_A_GROUP + len(self.ledger.index) // _NODES)) > work.limit
        ):
            return deferred(pod.namespace)
        # No node could host the class, and no room has appeared since.
        if group.shut_at == self.ledger.made_room:
            group.told.clear()  # only `refresh` knows which nodes have changed
            return None
        if not fresh and self._unchanged(group, among, work):
            return None
        work.aside += self._refresh(group)
        # 4. Try nodes from the best down; the exact rule decides.
        beyond, left = "", _MOST_BEYOND
        everywhere, meter = among is None, _Meter(group, among, work)
        for index, grants in self._attempts(group, pod, meter):
            node = self.ledger.node_at(index)
            # 5. Keys that count granted amounts are known only now.
            if limited:
                excess = self.quotas.excess(pod.namespace, amounts(pod, grants))
                if excess:
                    # A share of a smaller card counts less.
                    meter.among = among = self._smaller(grants, index, among)
                    beyond, left = beyond or excess, left - 1
                    if left:
                        continue
                    break
            return Placement(self.allocated(pod, node.name, grants), pod.request.notes)
        if beyond:
            return Refusal(ReasonCode.QUOTA_EXCEEDED, beyond)
        if work.few and meter.given_up:
            return deferred(pod.namespace)
        group.given_up = meter.given_up
        if everywhere and not meter.given_up:
            group.shut_down(self.ledger)
        return None

    def _short_beside(self, pod: Pod) -> Bools | None:
        """Nodes that lack what the pod asks beside devices; None if that keeps it from no node."""
        group, ledger = self._class_of(pod), self.ledger
        group.eligible.refresh(ledger)
        short = ledger.present & ~host_fits(ledger, pod.host, slice(None))
        open_ = short & group.eligible.allowed
        open_[list(group.failed)] = False
        return short if open_.any() else None

    def allocated(self, pod: Pod, node: str, grants: tuple[Grant, ...]) -> Allocation:
        """The allocation that a pod without one would have with these grants, and its permit."""
        permit = None
        if pod.wish is not None:
            index = self.ledger.index.get(node)
            cards = 0 if index is None else len(self.ledger.devices(DeviceType.GPU, index))
            permit = self.permits.permit(pod, pod.wish, node, cards, grants)
        return Allocation(
            pod.uid, pod.namespace, pod.name, node, grants, pod.host, pod.claim, permit
        )

    def _unchanged(self, group: RequestClass, among: Bools | None, work: Work) -> bool:
        """Whether the same question was refused before and nothing that the refusal depends on has changed."""
        told_at = group.refused_at, group.refused_few
        return (
            group.refusal is not None
            and told_at == (self.ledger.changes.count, work.few)
            and group.refused_among is among
        )

    def _attempts(
        self, group: RequestClass, pod: Pod, meter: _Meter
    ) -> Iterator[tuple[int, tuple[Grant, ...]]]:
        """Nodes that take the pod, and its grants there, from the best down; the last tries have no search.

        A node that takes the pod at the first try is found however crowded the best nodes are.
        """
        while (index := meter.next()) >= 0:
            grants = self._tried(group, pod, index, meter.work)
            if grants is GIVEN_UP and meter.work.few:
                meter.given_up = True
                return
            if not isinstance(grants, NodeReason):
                yield index, grants
        if meter.given_up and not meter.work.few:
            for index in group.promising(self.ledger, meter.left_out(), meter.last_tries):
                grants = self._last_try(group, pod, index, meter.work)
                if not isinstance(grants, NodeReason):
                    yield index, grants

    def _last_try(
        self, group: RequestClass, pod: Pod, index: int, work: Work
    ) -> tuple[Grant, ...] | NodeReason:
        """A try without a search; a node that refuses the pod in it is remembered until it changes."""
        if index in group.crowded:
            return GIVEN_UP
        grants = self._try(group, pod, index, work, Work(0))
        if isinstance(grants, NodeReason):
            group.crowded.add(index)
        return grants

    def _smaller(self, grants: Sequence[Grant], index: int, among: Bools | None) -> Bools:
        """The candidate nodes with a card smaller than any that was granted."""
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

    def arrears(self, pod: Pod) -> int:
        """Units of work that it takes to judge nodes for a pod's class, and to update its scores.

        A decision does not count them, because it must not depend on earlier questions.
        """
        group = self._class_of(pod)
        judging = group.eligible.arrears(self.ledger)
        return judging + _scoring(group, group.arrears(self.ledger))

    def _refresh(self, group: RequestClass) -> int:
        """Bring a class up to date; return the units of work that it took."""
        scored = group.refresh(self.ledger, self._rank)
        return group.judged + _scoring(group, scored)

    def candidates(
        self,
        pod: Pod,
        among: Bools | None = None,
        most: int | None = None,
        work: Work | None = None,
        best: str = "",
    ) -> tuple[Ints, Ints]:
        """Indexes of the nodes that can host the pod now, in no order, and their scores.

        Args:
            among: the nodes of the question, by index; None for all.
            most: if only the exact rule can decide, it is asked from the best node down until so many fit; None asks it
                about every node.
            work: the limit of work; the exact rule is not asked once it is spent.
            best: a node that can host the pod by the decision before; empty for none.
        """
        work = work or Work()
        group = self._class_of(pod)
        work.aside += self._refresh(group)
        offer = group.offer
        value = offer if among is None else np.where(among, offer, -1)
        found = np.flatnonzero(value >= 0)
        # For plain requests the kernel is exact, except if cards must belong together.
        unsure = self._insisting()[found] if group.plain else np.ones(found.size, np.bool_)
        if unsure.any():
            best_first = found[unsure][np.argsort(-value[found[unsure]], kind="stable")]
            sure = self.ledger.index[best] if best else -1
            proven = self._proven(group, pod, best_first.tolist(), most, work, sure)
            found = np.concatenate([found[~unsure], np.array(proven, found.dtype)])
        return found, offer[found] // RANKS

    def _proven(
        self,
        group: RequestClass,
        pod: Pod,
        indexes: list[int],
        most: int | None,
        work: Work,
        sure: int,
    ) -> list[int]:
        """The given nodes that the exact rule passes, within the limit of work; it need not be asked about `sure`.

        If it passes none within the limit, the most promising of the others are tried without a search.
        """
        proven = [index for index in indexes if index == sure]
        for number, index in enumerate(indexes):
            if most is not None and len(proven) >= most:
                break
            if index == sure:
                continue
            if work.spent and work.few:
                break
            if work.spent:
                left_out = np.zeros(self.ledger.present.shape[0], np.bool_)
                left_out[indexes[number:]] = not proven
                proven += [
                    other
                    for other in group.promising(self.ledger, left_out, _LAST_TRIES)
                    if not isinstance(self._last_try(group, pod, other, work), NodeReason)
                ]
                break
            if not isinstance(self._tried(group, pod, index, work), NodeReason):
                proven.append(index)
        return proven

    def _insisting(self) -> Bools:
        """By node index, whether the node restricts which cards may be combined."""
        if self._insisting_at != self.ledger.node_changes.count:
            self._insisting_at = self.ledger.node_changes.count
            column = np.zeros(self.ledger.present.shape[0], np.bool_)
            for index, node in enumerate(self.ledger.nodes):
                if node is not None:
                    column[index] = node.honour_partitions or node.single_numa
            self._insists = column
        return self._insists

    def grants_without(
        self, pod: Pod, name: str, gone: Iterable[str], work: Work | None = None
    ) -> tuple[Grant, ...] | None:
        """The pod's grants on a node if others were gone; None if it would not fit.

        Args:
            pod: the pod; its own allocation does not count against it.
            gone: uids of the pods that are treated as gone.
            work: the limit of work; once it is spent, nothing fits.
        """
        with self.without(pod, name, work=work) as run:
            return run.grants(gone)

    def without(
        self, pod: Pod, name: str, first: Sequence[Pod] = (), work: Work | None = None
    ) -> "DryRun":
        """As `grants_without`, for many questions about one node.

        Args:
            first: pods that are treated as placed there before, in this order; their allocations so far do not count
                either.
        """
        return DryRun(self, pod, name, first, work or Work())

    def grants_on(
        self, pod: Pod, index: int, work: Work, depth: int = MOST_A_NODE
    ) -> tuple[Grant, ...] | None:
        """The pod's grants on a node now; None if no search within this limit finds a place."""
        group = self._class_of(pod)
        group.refresh(self.ledger, self._rank)
        work.done += _A_DRY_RUN + _A_GROUP * len(group.kinds)
        if group.value[index] < 0:
            return None
        grants = self._try(group, pod, index, work, Work(depth))
        return None if isinstance(grants, NodeReason) else grants

    def _tried(
        self, group: RequestClass, pod: Pod, index: int, work: Work
    ) -> tuple[Grant, ...] | NodeReason:
        """As `_try`, but remembers a refusal of the exact rule with its work.

        If the limit is low, a search that exceeds it proves nothing about the node.
        """
        before = work.done
        here = Work(max(0, work.limit - before)) if work.few else None
        grants = self._try(group, pod, index, work, here, greedily=not work.few)
        if isinstance(grants, NodeReason) and not (work.few and grants is GIVEN_UP):
            group.fail(index, grants, work.done - before)
        return grants

    def _try(
        self,
        group: RequestClass,
        pod: Pod,
        index: int,
        work: Work,
        here: Work | None = None,
        *,
        greedily: bool = True,
    ) -> tuple[Grant, ...] | NodeReason:
        """The pod's grants on a node; `here` is the search's limit of work there."""
        if not pod.request.groups:
            return ()
        scores = group.ranking(self.ledger, index) if group.scores_cards else None
        work.done += _A_NODE
        if group.plain:
            chosen = choose(
                self.ledger,
                pod.request.groups[0],
                group.suits[0][:, index].tolist(),
                index,
                group.card_strategy,
                scores,
                pod.request.scoring,
            )
            if chosen == ():
                chosen = group.instance(self.ledger, pod.request.groups[0], index)
            if chosen:
                return chosen
        here = here or Work(MOST_A_NODE)
        found = group.equals.place(
            self.ledger.node_at(index),
            _cards_of(self.ledger, pod.request, index),
            pod.request,
            group.card_strategy,
            scores,
            here,
            greedily=greedily,
        )
        work.include(here)
        return found

    def _class_of(self, pod: Pod) -> RequestClass:
        return self._classes.find(pod, self.policy, self.tables)


class DryRun:
    """One node without some pods, for questions; leaving it restores the books.

    Between two questions only the pods move that are away for one of them and not for the other.

    Attributes:
        depth: units of work that the search for a place may take for each pod.
    """

    def __init__(
        self, chooser: Chooser, pod: Pod, name: str, first: Sequence[Pod], work: Work
    ) -> None:
        self._chooser, self._pod, self._name = chooser, pod, name
        self._first, self._work = first, work
        self._away: dict[str, Allocation | None] = {}
        self.depth = MOST_A_NODE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Return all pods, until the next question."""
        self._move(())

    def grants(self, gone: Iterable[str]) -> tuple[Grant, ...] | None:
        """The pod's grants if the pods with uids in `gone` were away; None if it would not fit."""
        chooser, ledger, work = self._chooser, self._chooser.ledger, self._work
        index = ledger.index.get(self._name)
        if index is None or self._pod.request.fault is not None or work.spent:
            return None
        self._move((*gone, self._pod.uid, *(one.uid for one in self._first)))
        added: list[str] = []
        try:
            for one in self._first:
                grants = chooser.grants_on(one, index, work, self.depth)
                if grants:
                    ledger.apply(
                        Allocation(one.uid, one.namespace, one.name, self._name, grants, one.host)
                    )
                    added.append(one.uid)
            return chooser.grants_on(self._pod, index, work, self.depth)
        finally:
            for uid in added:
                ledger.undo(uid)

    def _move(self, wanted: Sequence[str]) -> None:
        """Take away exactly these pods."""
        ledger, away = self._chooser.ledger, frozenset(wanted)
        for uid in [uid for uid in self._away if uid not in away]:
            allocation = self._away.pop(uid)
            if allocation is not None:
                ledger.apply(allocation)
                self._work.done += _A_MOVE
        for uid in wanted:
            if uid not in self._away:
                self._away[uid] = ledger.undo(uid)
                self._work.done += _A_MOVE


def _scoring(group: RequestClass, nodes: int) -> int:
    """Units of work of scoring so many nodes for a class."""
    return len(group.kinds) * (_A_GROUP + nodes // _NODES) if nodes else 0


def _cards_of(ledger: Ledger, request: PodRequest, index: int) -> Mapping[DeviceType, list[Card]]:
    """Scratch copies of a node's cards of the types that a request names."""
    types = {group.request.type for group in request.groups}
    return {type_: ledger.cards(type_, index) for type_ in types}
