"""Which pods to restart so that one that waits for an instance gets it: a dry run for an operator.

`placement.repack` finds the fewest instances in the way; then the engine itself plays it through: those
pods go, the waiting pod comes, and they come again. Only a plan in which everyone finds a place is
shown, with the places that the engine chose. Nothing is restarted here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation
from partage.model.cutting import Cutting
from partage.model.mig import MigSlice
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.request import RequestGroup
from partage.placement.card import unsuitable
from partage.placement.instances import sized, tables_of, wished
from partage.placement.repack import Plan, repack
from partage.scheduler.engine import Engine
from partage.scheduler.events import Placement, PodGone
from partage.sim.offline import queue, schedule, started
from partage.wire.cluster import Cluster

MOST: Final = 3
"""Instances that one plan moves at most."""

MayMove = Callable[[Pod], bool]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One pod that waits for an instance.

    Attributes:
        why: what `partage schedule` says of it.
        restarts: who to restart, with where it runs and where it then would; empty with no plan.
        place: where the waiting pod then would run; None when no plan was found.
    """

    pod: Pod
    why: str
    restarts: tuple[tuple[Pod, Allocation, Allocation], ...] = ()
    place: Allocation | None = None


@dataclass(frozen=True, slots=True)
class _Spot:
    """A card that could serve the request, whatever is on it now."""

    card: Card
    holders: dict[MigSlice, str]


def propose(
    cluster: Cluster, may_move: MayMove, policy: Policy | None = None
) -> tuple[Proposal, ...]:
    """A proposal for every pod that waits for one hardware instance, each for itself.

    Args:
        may_move: whether a pod may be restarted.
        policy: as for `offline.schedule`.
    """
    outcome = schedule(cluster, policy)
    pods = {one.pod.pod.uid: one.pod.pod for one in outcome.pods}
    movable = {uid for uid, pod in pods.items() if uid in outcome.ledger and may_move(pod)}
    found: list[Proposal] = []
    for waiting in outcome.waiting:
        pod = waiting.pod.pod
        group = _asked(pod)
        if group is None or waiting.refusal is None:
            continue
        proposal = Proposal(pod, waiting.refusal.message)
        for uids in _ways(outcome.ledger, group, movable):
            engine = _now(cluster, outcome.policy)
            played = _played(engine, proposal, [pods[uid] for uid in uids])
            if played is not None:
                proposal = played
                break
        found.append(proposal)
    return tuple(found)


def _asked(pod: Pod) -> RequestGroup | None:
    """What a pod asks, if it is one instance."""
    groups = pod.request.groups
    if pod.request.fault is not None or len(groups) != 1:
        return None
    request = groups[0].request
    return groups[0] if request.instances and request.count == 1 else None


def _ways(ledger: Ledger, group: RequestGroup, movable: set[str]) -> Iterator[list[str]]:
    """Pods to restart, one list for each way that cards are cut; the fewest first."""
    spots: dict[Cutting, list[_Spot]] = defaultdict(list)
    type_, asked = group.request.type, sized(group.request)
    for index, node in enumerate(ledger.nodes):
        if node is None:
            continue
        for card in ledger.cards(type_, index):
            cutting = card.device.cutting
            if cutting is None or not card.takes_instances:
                continue
            if unsuitable(card, group.request, group.protocol, by_instance=True) is None:
                tenants = ledger.tenants(type_, index, card.row)
                holders = {one: uid for uid, charge in tenants.items() for one in charge.instances}
                spots[cutting].append(_Spot(card, holders))
    plans: list[tuple[int, int, list[str]]] = []
    for number, (cutting, those) in enumerate(spots.items()):
        wish = wished(cutting, asked)
        plan = _plan(cutting, those, wish, movable) if wish else None
        if plan is not None and plan.moves:
            uids = [those[move.card].holders[move.instance] for move in plan.moves]
            plans.append((len(plan.moves), number, list(dict.fromkeys(uids))))
    for _, _, uids in sorted(plans):
        yield uids


def _plan(
    cutting: Cutting, spots: Sequence[_Spot], wish: tuple[str, ...], movable: set[str]
) -> Plan | None:
    layouts = tables_of(cutting)
    states = np.array([layouts.state(spot.card.occupied) for spot in spots], np.int32)
    restartable = [
        frozenset(one for one, uid in spot.holders.items() if uid in movable) for spot in spots
    ]
    return repack(layouts, states, restartable, wish, MOST)


def _now(cluster: Cluster, policy: Policy) -> Engine:
    """The engine once everything that fits has its place, as `offline.schedule` leaves it."""
    engine, _ = started(cluster, policy)
    for translated in queue(cluster.pods):
        engine.schedule(translated.pod, reasons=False)
    return engine


def _played(engine: Engine, proposal: Proposal, moved: Sequence[Pod]) -> Proposal | None:
    """The proposal with places, if the engine finds one for every pod."""
    before: list[tuple[Pod, Allocation]] = []
    for pod in moved:
        held = engine.ledger.allocation(pod.uid)
        if held is None:
            return None
        before.append((pod, held))
        engine.handle(PodGone(pod.uid))
    place = engine.schedule(proposal.pod, reasons=False)
    if not isinstance(place, Placement):
        return None
    restarts: list[tuple[Pod, Allocation, Allocation]] = []
    for pod, held in before:
        again = replace(pod, uid=f"{pod.uid}/again", node=None, record=None, finished=False)
        found = engine.schedule(again, reasons=False)
        if not isinstance(found, Placement):
            return None
        restarts.append((pod, held, found.allocation))
    return replace(proposal, restarts=tuple(restarts), place=place.allocation)
