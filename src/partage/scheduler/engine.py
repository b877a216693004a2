"""The decision engine: events in, decisions out.

One engine serves live scheduling, explanation, dry run, simulation and replay, so they cannot disagree. The states of a
pod:

    (unknown) --hold--> HELD --place_on, schedule--> RESERVED
    (unknown) --schedule--> RESERVED --BindSucceeded, PodSeen on a node--> BOUND
                            RESERVED --BindFailed--> (unknown)
                            RESERVED --BindUnknown--> UNKNOWN --PodRead--> BOUND or (unknown)
                            HELD --HoldEnded--> (unknown)
    (unknown) --RoomKept--> CLEARING --hold, place_on--> as above
                            CLEARING --HoldEnded--> (unknown)
    any       --PodSeen finished, PodGone--> (gone)

Fit and reservation are one step on the ledger. The API server's data of a bound pod are facts and replace its
reservation. So the books of bound pods always equal `rebuild` of the same objects, whatever came before and in whatever
order.

The engine knows no clock, chance, network or file. Nodes are ordered as they were first seen; the driver makes this
order explicit.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Final

import numpy as np
from msgspec import structs

from partage.inventory.card import Suspicion
from partage.inventory.plane import CLOSED, Bools, Ints
from partage.model.allocation import Allocation, Grant
from partage.model.device import SliceMode
from partage.model.errors import LedgerError
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import NodeReason, ReasonCode, Refusal
from partage.placement.card import Work
from partage.placement.node import Eligibility
from partage.scheduler.classes import RANKS, Scorers
from partage.scheduler.decision import Chooser, amounts
from partage.scheduler.events import (
    Action,
    BindFailed,
    BindSucceeded,
    BindUnknown,
    Event,
    HoldEnded,
    NodeGone,
    NodeSeen,
    Placement,
    PodGone,
    PodRead,
    PodSeen,
    PolicyChanged,
    Quarantined,
    QuotasChanged,
    ReadBack,
    Released,
    RoomKept,
    TablesChanged,
    Unserviceable,
)
from partage.scheduler.explain import why
from partage.scheduler.facts import fact_of, rebuild
from partage.scheduler.permits import PermitBook
from partage.scheduler.preemption import free_part


class State(StrEnum):
    """The state of a pod that holds something."""

    HELD = "held"  # another program schedules the pod; its predicted place is kept for a while
    CLEARING = "clearing"  # preemption makes room for it; the free part of that room is kept
    RESERVED = "reserved"  # decided; the Binding is on its way
    UNKNOWN = "unknown"  # the Binding was sent and never answered
    BOUND = "bound"  # confirmed by the API server


_HOLDS: Final = (State.HELD, State.CLEARING)
"""Places kept for a pod that another program schedules; nothing has been sent to the API server yet."""

_BY_PODS: Final = (None, ReasonCode.CARD_NOT_IDLE)
"""Why a sound card may take no further pod."""

REMEMBERED: Final = 65_536
"""The number of gone pods that are remembered, and of gone nodes: twenty minutes at 50 pods/s; late events arrive within
seconds."""


_FACTS: Final = attrgetter(
    *(one.name for one in fields(Node) if one.name not in {"version", "taken"})
)
"""All that is known of a node, but for its version and what pods take of it beside devices."""


class Engine(Chooser):
    """All state of scheduling; `decision_id` is that of the last decision if a journal is kept, else empty.

    `ranks` is the number of all nodes so far; `rank_at` of a later node is not less.
    """

    def __init__(self, policy: Policy | None = None, scorers: Scorers | None = None) -> None:
        """An empty engine; `scorers` score plain requests in another way with the same results, None by NumPy."""
        super().__init__(policy, scorers)
        self.states: dict[str, State] = {}
        self._pods: dict[str, Pod] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()  # in order of going
        self._node_versions: dict[str, int] = {}
        self._gone_nodes: OrderedDict[str, None] = OrderedDict()
        self.ranks = 0
        self.decision_id = ""

    def rank_at(self, index: int) -> int:
        """The node's position in the explicit order."""
        return int(self._rank[index])

    def best_of_each(self, nodes: Ints, scores: Ints, keys: Iterable[str], most: int) -> Ints:
        """Positions of the best nodes of each domain, up to a number for each; the explicit order breaks ties.

        Args:
            keys: labels whose values distinguish the domains; nodes without one are a domain too.
        """
        domain = self._classes.columns.domains(keys)[nodes]
        order = np.lexsort((self._rank[nodes], -scores, domain))
        first = np.searchsorted(domain[order], domain[order])
        best: Ints = order[np.arange(order.size) - first < most]
        return best

    def accepting(self, pod: Pod) -> Bools:
        """By node index, whether the pod accepts the node by its labels and taints."""
        return self._classes.columns.accepting(pod)

    def eligibility(self, pod: Pod, work: Work) -> Eligibility:
        """Which nodes the pod may use, regardless of free amounts, and why not the others; `work` counts the judging."""
        eligible = self._class_of(pod).eligible
        work.aside += eligible.refresh(self.ledger)
        return eligible

    def accepting_opened(self, pod: Pod) -> Bools:
        """The same for nodes without what passes by itself: cordons, Kubernetes' own taints, and silent agents."""
        return self._classes.columns.accepting_opened(pod)

    # --- events ------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Apply one event; returns the actions for the driver."""
        actions: list[Action] = []
        match event:
            case NodeSeen(seen):
                actions = self._node_seen(seen)
            case NodeGone(name, version):
                self._node_gone(name, version)
            case PodSeen(pod):
                actions = self._pod_seen(pod)
            case PodGone(uid):
                actions = self._pod_gone(uid)
            case PodRead(uid, pod):
                actions = self._pod_read(uid, pod)
            case HoldEnded(uid):
                if self.states.get(uid) in _HOLDS:
                    actions = self._release(uid)
            case RoomKept(pod, node, grants):
                actions = self._keep_room(pod, node, grants)
            case BindSucceeded(uid) | BindFailed(uid) | BindUnknown(uid):
                if self.states.get(uid) in (State.RESERVED, State.UNKNOWN):
                    actions = self._bind_answered(event, uid)
            case PolicyChanged(policy):
                self.policy = policy
                self._classes.clear()
            case TablesChanged(tables):
                self.tables = tables
                self._classes.clear()
            case QuotasChanged(quotas):
                self.quotas.quotas = quotas
        return actions

    def _bind_answered(self, event: Event, uid: str) -> list[Action]:
        if isinstance(event, BindFailed):
            return self._release(uid)
        if isinstance(event, BindUnknown):
            self.states[uid] = State.UNKNOWN
            return [ReadBack(uid)]
        self.states[uid] = State.BOUND
        return []

    def _node_seen(self, node: Node) -> list[Action]:
        if node.version < self._node_versions.get(node.name, 0):
            return []
        self._node_versions[node.name] = node.version
        self._gone_nodes.pop(node.name, None)
        new = node.name not in self.ledger.index
        before = None if new else self.ledger.node_at(self.ledger.index[node.name])
        if before is not None and _FACTS(before) == _FACTS(node):
            if before.taken != node.taken:
                self.ledger.update_taken(node)
            return []
        self.ledger.upsert_node(node)
        if new:
            index = self.ledger.index[node.name]
            if index >= self._rank.shape[0]:
                grown = np.zeros(self.ledger.present.shape[0], np.int64)
                grown[: self._rank.shape[0]] = self._rank
                self._rank = grown
            self._rank[index] = self.ranks
            self.ranks = min(self.ranks + 1, RANKS - 1)
        useless = [
            f"{device.uuid} ({device.model or 'model unknown'})"
            for device in node.devices
            if device.mode is SliceMode.MIG and device.cutting is None
        ]
        told = []
        if useless:
            told.append(
                f"in mode mig, but not to be cut into instances, so they serve no pod: "
                f"cards {', '.join(useless)}"
            )
        if node.left_out:
            told.append(
                f"{node.left_out} devices beyond the most that a node may have of a type are left out, and serve no pod"
            )
        return [Released(node.name), *(Unserviceable(node.name, one) for one in told)]

    def _node_gone(self, name: str, version: int) -> None:
        known = self._node_versions.get(name, 0)
        if version and version < known:
            return
        self._node_versions.pop(name, None)
        self._node_versions[name] = max(version, known)  # in order of going, for a journal
        self._gone_nodes[name] = None
        self._gone_nodes.move_to_end(name)
        if len(self._gone_nodes) > REMEMBERED:
            del self._node_versions[self._gone_nodes.popitem(last=False)[0]]
        self.ledger.remove_node(name)

    def _pod_seen(self, pod: Pod) -> list[Action]:
        if pod.uid in self._gone:
            return []
        known = self._pods.get(pod.uid)
        if known is not None and pod.version < known.version:
            return []
        self._pods[pod.uid] = pod
        if pod.finished:
            return self._release(pod.uid)
        if pod.node is None:
            return []
        self.states[pod.uid] = State.BOUND
        allocation, suspicion = fact_of(pod)
        return self._settle(pod, allocation, suspicion)

    def _settle(
        self, pod: Pod, allocation: Allocation, suspicion: Suspicion | None
    ) -> list[Action]:
        """Make the books of one bound pod equal to the API server's data."""
        actions: list[Action] = []
        before = self.ledger.allocation(pod.uid)
        if before != allocation:
            if not self.ledger.restate(allocation):
                if before is not None:
                    self.ledger.undo(pod.uid)
                    actions.append(Released(before.node))
                self.ledger.apply(allocation)
            actions += [
                Quarantined(
                    pod.uid,
                    allocation.node,
                    f"{uuid} is over-committed by {' and '.join(pods)}",
                    f"{uuid} is over-committed by {len(pods)} pods",
                )
                for uuid, pods in self.ledger.overbooked(pod.uid).items()
            ]
        self.quotas.take_in(pod, allocation.grants)
        self.permits.apply(allocation)
        if suspicion is None:
            if self.ledger.acquit(pod.uid):
                actions.append(Released(allocation.node))
        elif self.ledger.suspicion(pod.uid) != suspicion:
            self.ledger.suspect(pod.uid, suspicion)
            actions.append(
                Quarantined(pod.uid, suspicion.node, suspicion.message, suspicion.brief)
            )
        return actions

    def _pod_gone(self, uid: str) -> list[Action]:
        self._gone[uid] = None
        self._gone.move_to_end(uid)
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)
        self._pods.pop(uid, None)
        return self._release(uid)

    def _pod_read(self, uid: str, pod: Pod | None) -> list[Action]:
        if pod is None or pod.uid != uid:
            return self._pod_gone(uid)
        known = self._pods.get(uid)
        if known is not None and known.node is None and not known.finished:
            # A waiting pod has no older state, so everything read is new.
            pod = replace(pod, version=max(pod.version, known.version))
        actions = self._pod_seen(pod)
        if pod.node is None and self.states.get(uid) is State.UNKNOWN:
            actions += self._release(uid)
        return actions

    def _release(self, uid: str) -> list[Action]:
        self.states.pop(uid, None)
        self.quotas.undo(uid)
        self.permits.undo(uid)
        suspicion = self.ledger.suspicion(uid)
        self.ledger.acquit(uid)
        allocation = self.ledger.undo(uid)
        node = allocation.node if allocation else suspicion.node if suspicion else None
        return [Released(node)] if node is not None else []

    def _keep_room(self, pod: Pod, node: str, grants: tuple[Grant, ...]) -> list[Action]:
        """Hold the free part of a place that other pods still leave; once all is free, it is an ordinary hold."""
        before = self.ledger.allocation(pod.uid)
        if pod.uid in self._gone or (before and self.states.get(pod.uid) not in _HOLDS):
            return []
        self._release(pod.uid)
        place = self.allocated(pod, node, grants)
        kept = free_part(self.ledger, place)
        if kept == place:
            self._reserve(pod, place, State.HELD)
        elif kept.grants:
            self.ledger.apply(kept)
            self.states[pod.uid] = State.CLEARING
        return [Released(before.node)] if before and before != kept else []

    def is_gone(self, uid: str) -> bool:
        """Whether the pod is among the last `REMEMBERED` deleted ones; late events about it do not count."""
        return uid in self._gone

    # --- decisions ---------------------------------------------------------------------------

    def schedule(
        self, pod: Pod, *, reasons: bool = True, work: Work | None = None
    ) -> Placement | Refusal:
        """Choose a place for a pending pod and reserve it, in one step.

        Args:
            reasons: whether a refusal has a reason for each node, which costs more than the decision itself; otherwise
                it has only the leading code.
            work: the limit of work; None for a decision's usual limit.

        Raises:
            LedgerError: the pod holds something already; the driver asked twice.
        """
        self._drop_hold(pod)
        decision = self.evaluate(pod, reasons=reasons, work=work)
        if isinstance(decision, Placement):
            self._reserve(pod, decision.allocation, State.RESERVED)
        return decision

    def hold(
        self,
        pod: Pod,
        among: Bools | None = None,
        work: Work | None = None,
        alone: Pod | None = None,
        decided: Placement | Refusal | None = None,
    ) -> Placement | Refusal:
        """Keep the predicted place of a pod that another program schedules (an extender's filter).

        A hold counts like a reservation, so two pods that are filtered together do not get the same room. It ends with
        `place_on`, `HoldEnded` or the pod's deletion; another call moves it. If the driver reports the resources that
        pods take of nodes beside devices (`Node.taken`), it will report this pod's too, so only devices are booked.

        Args:
            among: the nodes that may be chosen, by index; None for all.
            work: as for `evaluate`.
            alone: as for `evaluate`.
            decided: what `evaluate` has just answered to the same question; None to ask it.

        Raises:
            LedgerError: the pod holds more than a hold already.
        """
        self._drop_hold(pod)
        decision = decided or self.evaluate(pod, among=among, work=work, alone=alone)
        if isinstance(decision, Placement):
            held = decision.allocation
            if held.host and self.ledger.node_at(self.ledger.index[held.node]).taken:
                decision = structs.replace(decision, allocation=structs.replace(held, host={}))
            self._reserve(pod, decision.allocation, State.HELD)
        return decision

    def place_on(self, pod: Pod, name: str) -> Placement | Refusal:
        """Reserve a place for the pod on one node (an extender's bind): fit and reserve at once.

        A hold on that node is taken unchanged if its cards are unchanged. Any other hold is released, whatever the
        result.

        Raises:
            LedgerError: the pod holds more than a hold already.
        """
        held = self.kept(pod.uid, name)
        if held is not None:
            self.states[pod.uid] = State.RESERVED
            return Placement(held, pod.request.notes)
        self._drop_hold(pod)
        if pod.request.fault is not None:
            return Refusal(pod.request.fault.code, pod.request.fault.message)
        index = self.ledger.index.get(name)
        if index is None:
            return Refusal(ReasonCode.NODE_AFFINITY, f"node {name} is not known")
        group = self._class_of(pod)
        group.refresh(self.ledger, self._rank)
        fits = group.value[index] >= 0
        grants = self._try(group, pod, index, Work()) if fits else why(self.ledger, group, index)
        if isinstance(grants, NodeReason):
            message = f"node {name}: {grants.message}"
            return Refusal(grants.code, message, {name: grants}, {grants.code: 1})
        excess = self.quotas.excess(pod.namespace, amounts(pod, grants))
        if excess:
            return Refusal(ReasonCode.QUOTA_EXCEEDED, excess)
        allocation = self.allocated(pod, name, grants)
        self._reserve(pod, allocation, State.RESERVED)
        return Placement(allocation, pod.request.notes)

    def kept(self, uid: str, name: str) -> Allocation | None:
        """The pod's hold on this node that `place_on` would take unchanged: the node is open, its cards are sound."""
        held, index = self.ledger.allocation(uid), self.ledger.index.get(name)
        if held is None or held.node != name or self.states.get(uid) is not State.HELD:
            return None
        if index is None or self.ledger.shut[index]:
            return None
        return held if all(self._sound(grant, index) for grant in held.grants) else None

    def _sound(self, grant: Grant, index: int) -> bool:
        """Whether the card of a grant is on the node, and nothing but its pods closes it."""
        closed = self.ledger.planes[grant.type].closed
        return any(
            CLOSED[closed.item(row, index)] in _BY_PODS
            for row, device in enumerate(self.ledger.devices(grant.type, index))
            if device.minor == grant.minor and device.uuid == grant.uuid
        )

    def _drop_hold(self, pod: Pod) -> None:
        if self.states.get(pod.uid) in _HOLDS:
            self._release(pod.uid)
        if pod.uid in self.ledger:
            raise LedgerError(f"pod {pod.key} ({pod.uid}) is placed already")

    def _reserve(self, pod: Pod, allocation: Allocation, state: State) -> None:
        self.ledger.apply(allocation)
        self.quotas.take_in(pod, allocation.grants)
        if allocation.permit is not None:
            self.permits.apply(allocation)
        self.states[pod.uid] = state

    # --- checking ----------------------------------------------------------------------------

    def audit(self) -> None:
        """Compare the books of bound pods with a rebuild from the objects last seen.

        Raises:
            LedgerError: they differ, or a rule of the ledger is broken.
        """
        self.ledger.validate()
        nodes = [node for node in self.ledger.nodes if node is not None]
        fresh = rebuild(nodes, self._pods.values())
        permits = PermitBook()
        for allocation in self.ledger.allocations():
            if self.states.get(allocation.uid) is not State.CLEARING:
                permits.apply(allocation)
            pod = self._pods.get(allocation.uid)
            if pod is None or pod.node is None:
                fresh.apply(allocation)
        if permits.counted != self.permits.counted:
            raise LedgerError(
                f"online pods are counted as {self.permits.counted}, by the ledger {permits.counted}"
            )
        mine, theirs = self.ledger.picture(), fresh.picture()
        if mine != theirs:
            wrong = next(name for name in mine if mine[name] != theirs.get(name))
            raise LedgerError(
                f"ledger of node {wrong}: {mine[wrong]}, from the API: {theirs.get(wrong)}"
            )
