"""Schedules documents without a cluster: the real engine over the documents' contents.

Pods that have a node are state. The others are scheduled by priority and then in the order of the documents. The
policy knows all pods beforehand, as a running scheduler does that has seen them. This module decides nothing: it
feeds the engine and has the decisions written out.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.placement.learning import Arrivals, asks_of, in_sight, learns
from partage.placement.mix import Stock
from partage.scheduler.engine import Engine
from partage.scheduler.events import (
    NodeSeen,
    Placement,
    PodSeen,
    Quarantined,
    QuotasChanged,
    TablesChanged,
)
from partage.vendors.base import PlacedPod, Rendering
from partage.wire.cluster import Cluster
from partage.wire.permit import cut
from partage.wire.pods import TranslatedPod

if TYPE_CHECKING:
    from partage.sim.claims import ClaimAllocator

CLOCK = 1_700_000_000 * 10**9
"""Time of offline decisions in nanoseconds since 1970, fixed so that runs can be compared."""


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """The result for one pod.

    Attributes:
        bound: it had a node already.
        allocation: its allocation, or None while it waits.
        rendering: the keys to write on it; empty for a pod that was bound already.
        refusal: why it waits, or None.
    """

    pod: TranslatedPod
    bound: bool
    allocation: Allocation | None = None
    rendering: Rendering = Rendering()
    refusal: Refusal | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results for all pods, in the order of the documents, and the engine afterwards."""

    cluster: Cluster
    pods: tuple[PodOutcome, ...]
    engine: Engine
    policy: Policy
    notes: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The books."""
        return self.engine.ledger

    @property
    def waiting(self) -> tuple[PodOutcome, ...]:
        """Pods without a place."""
        return tuple(outcome for outcome in self.pods if outcome.refusal is not None)


def schedule(cluster: Cluster, policy: Policy | None = None, seed: int | None = None) -> Outcome:
    """Schedule every waiting pod of the cluster.

    Args:
        policy: the policy in force; None takes the cluster's own, else the default.
        seed: permutes the order in which equal nodes are preferred; None keeps the documents'.
    """
    chosen = policy or cluster.policy or Policy()
    engine, notes = started(cluster, chosen, seed)
    outcomes: dict[str, PodOutcome] = {}
    waiting = queue(cluster.pods)
    claims = None
    if any(one.pod.uid in cluster.claimants for one in waiting):
        from partage.sim.claims import ClaimAllocator  # noqa: PLC0415 # few clusters need it

        claims = ClaimAllocator(engine, cluster.offers)
        notes = (*notes, *claims.notes)
    for translated in waiting:
        outcomes[translated.pod.uid] = _decide(engine, cluster, translated, claims)
    return Outcome(
        cluster=cluster,
        pods=tuple(
            outcomes.get(t.pod.uid)
            or PodOutcome(t, bound=True, allocation=engine.ledger.allocation(t.pod.uid))
            for t in cluster.pods
        ),
        engine=engine,
        policy=chosen,
        notes=(*cluster.notes, *notes),
    )


def started(
    cluster: Cluster, policy: Policy, seed: int | None = None
) -> tuple[Engine, tuple[str, ...]]:
    """An engine that knows the cluster and its pods, and notes; without a `seed` nodes have the documents' order."""
    engine = Engine(policy)
    nodes = list(cluster.nodes)
    if seed is not None:
        random.Random(seed).shuffle(nodes)  # noqa: S311 # a reproducible order, not a secret
    for node in nodes:
        engine.handle(NodeSeen(node))
    engine.handle(QuotasChanged(cluster.quotas))
    facts = [
        *(t.pod for t in cluster.pods if t.pod.node is not None or t.pod.finished),
        *(fact for claim in cluster.claims for fact in claim.facts()),
    ]
    notes = tuple(
        f"node {action.node}: quarantined devices: {action.message}"
        for fact in facts
        for action in engine.handle(PodSeen(fact))
        if isinstance(action, Quarantined)
    )
    inform(engine, [t.pod for t in cluster.pods if not t.pod.finished])
    return engine, notes


def inform(engine: Engine, pods: Sequence[Pod]) -> None:
    """Give the engine the tables that a running scheduler has once it has seen these pods, which wait or run."""
    if learns(engine.policy, pods):
        ledger, seen = engine.ledger, Arrivals()
        seen.add(asks_of(pods, ledger, engine.accepting))
        stock = Stock.of(node for node in ledger.nodes if node is not None)
        engine.handle(TablesChanged(in_sight(engine.tables, seen, stock)))


def queue(pods: Sequence[TranslatedPod]) -> list[TranslatedPod]:
    """The waiting pods in the order of their decisions: by priority, then as written."""
    waiting = [t for t in pods if t.pod.node is None and not t.pod.finished]
    return sorted(waiting, key=lambda translated: -translated.pod.priority)


def _decide(
    engine: Engine, cluster: Cluster, translated: TranslatedPod, claims: "ClaimAllocator | None"
) -> PodOutcome:
    document = cluster.claimants.get(translated.pod.uid)
    if claims is not None and document is not None:
        decision = claims.decide(translated.pod, document, keep=True)
    else:
        decision = engine.schedule(translated.pod)
    if isinstance(decision, Placement):
        allocation = decision.allocation
        node = engine.ledger.node_at(engine.ledger.index[allocation.node])
        own = (
            engine.ledger.allocation(translated.pod.uid) or allocation
        )  # without its claims' devices
        placed = PlacedPod(translated.view, translated.pod.request, own, node, CLOCK)
        return PodOutcome(
            translated,
            bound=False,
            allocation=allocation,
            rendering=cluster.render(placed),
            notes=(*decision.notes, *cut(allocation.permit, translated.view.annotations)),
        )
    return PodOutcome(
        translated, bound=False, refusal=decision, notes=translated.pod.request.notes
    )
