"""Which pods to restart so that a pod waiting for an instance gets it: a dry run for an operator.

The search tries pods whose end makes room on a card, the fewest first. The engine itself plays each plan through: those
pods leave, the waiting pod is placed, and then they are placed again. It shows only a plan in which every pod finds a
place, with the places that the engine chose. It restarts nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Final

from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation
from partage.model.pod import Pod, Record
from partage.model.policy import Policy
from partage.model.request import RequestGroup
from partage.placement.card import unsuitable
from partage.placement.instances import places, sized
from partage.scheduler.engine import Engine
from partage.scheduler.events import Placement, PodGone, PodSeen
from partage.sim.offline import schedule
from partage.wire.cluster import Cluster

MOST: Final = 3
"""The most pods that one plan restarts."""
_MOST_WAYS: Final = 500
"""The most ways to make room for a pod that are tried."""

MayMove = Callable[[Pod], bool]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One pod that waits for an instance.

    Attributes:
        why: the reason that `partage schedule` gives for it.
        restarts: the pods to restart, each with its present and its new place; empty without a plan.
        place: the waiting pod's place then; None if no plan was found.
    """

    pod: Pod
    why: str
    restarts: tuple[tuple[Pod, Allocation, Allocation], ...] = ()
    place: Allocation | None = None


def propose(
    cluster: Cluster, may_move: MayMove, policy: Policy | None = None
) -> tuple[Proposal, ...]:
    """A proposal for every pod that waits for one hardware instance, each independent of the others.

    `may_move`: whether a pod may be restarted. `policy`: as for `offline.schedule`.
    """
    outcome = schedule(cluster, policy)
    pods = {one.pod.pod.uid: one.pod.pod for one in outcome.pods}
    engine = outcome.engine
    movable = {uid for uid, pod in pods.items() if uid in engine.ledger and may_move(pod)}
    asked = [
        (Proposal(one.pod.pod, one.refusal.message), _ways(engine.ledger, group, movable))
        for one in outcome.waiting
        if one.refusal is not None and (group := _asked(one.pod.pod)) is not None
    ]
    found = []
    for proposal, ways in asked:
        played = (_played(engine, proposal, [pods[uid] for uid in uids]) for uids in ways)
        found.append(next(filter(None, played), proposal))
    return tuple(found)


def _asked(pod: Pod) -> RequestGroup | None:
    """A pod's request, if it is one instance."""
    groups = pod.request.groups
    if pod.request.fault is not None or len(groups) != 1:
        return None
    request = groups[0].request
    return groups[0] if request.instances and request.count == 1 else None


def _ways(ledger: Ledger, group: RequestGroup, movable: set[str]) -> list[tuple[str, ...]]:
    """Pods of one card whose end makes room on it, the fewest and smallest first; of equal cards only the first."""
    type_, asked = group.request.type, sized(group.request)
    ways: dict[tuple[object, ...], tuple[tuple[int, ...], tuple[str, ...]]] = {}
    for index, node in enumerate(ledger.nodes):
        for card in ledger.cards(type_, index) if node is not None else ():
            cutting = card.device.cutting
            if cutting is None or not card.takes_instances:
                continue
            if (
                unsuitable(card.device, group.request.filter, group.protocol, by_instance=True)
                is not None
            ):
                continue
            held = {
                uid: charge.instances
                for uid, charge in ledger.tenants(type_, index, card.row).items()
                if uid in movable and charge.instances
            }
            for chosen in chain.from_iterable(combinations(held, n) for n in range(1, MOST + 1)):
                gone = {one for uid in chosen for one in held[uid]}
                left = tuple(one for one in card.occupied if one not in gone)
                found = places(cutting, left, asked)
                if found:
                    units = sum(one.size for one in gone)
                    rank = (len(chosen), units, found[0].cost, index, card.row)
                    ways.setdefault((cutting, card.occupied, left), (rank, chosen))
    return [chosen for _, chosen in sorted(ways.values())][:_MOST_WAYS]


def _played(engine: Engine, proposal: Proposal, moved: Sequence[Pod]) -> Proposal | None:
    """The proposal with places, if the engine finds one for every pod; afterwards the engine is restored."""
    before = [(pod, held) for pod in moved if (held := engine.ledger.allocation(pod.uid))]
    for pod, _ in before:
        # Not `PodGone`: the engine would never take in the pod again.
        engine.handle(PodSeen(replace(pod, finished=True)))
    tried: list[Placement] = []
    for pod in (proposal.pod, *(pod for pod, _ in before)):
        again = replace(pod, uid=f"{pod.uid}/again", node=None, record=None, finished=False)
        found = engine.schedule(again, reasons=False)
        if not isinstance(found, Placement):
            break
        tried.append(found)
    for one in tried:
        engine.handle(PodGone(one.allocation.uid))
    for pod, held in before:
        engine.handle(
            PodSeen(replace(pod, node=held.node, record=Record(held.grants, permit=held.permit)))
        )
    if len(tried) <= len(before):
        return None
    place, *then = (one.allocation for one in tried)
    restarts = tuple((*one, after) for one, after in zip(before, then, strict=True))
    return replace(proposal, restarts=restarts, place=place)
