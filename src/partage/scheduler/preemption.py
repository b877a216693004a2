"""Preemption on cards: which pods leave a node so that a more important pod gets its place.

The rules are Kubernetes': only pods of lower priority go; as few as possible, the least important first; disruption
budgets are broken only as the last resort; of several nodes the one where that hurts least. The engine's own rule
decides what fits, on the ledger without those pods, so a plan never promises what a decision would refuse.

This module only asks and changes nothing. The event `RoomKept` keeps the free part of a planned place for the pod. The
driver decides which pods to evict, and when.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Charge, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.placement.card import MOST, MOST_A_NODE, Work
from partage.scheduler.decision import Chooser, DryRun

MOST_A_PLAN: Final = 9 * MOST
"""Units of work that a plan for one node may take: a plan asks many times whether a pod fits."""
_A_STRETCH: Final = MOST // 6
"""Units after which other tasks get their turn, once a question is answered: a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A bound pod that may be evicted; among equals the younger one is, `born` later in seconds since the epoch.

    `refused`: the API server lately did not evict it, so it is spared as if a budget did not allow it.
    """

    uid: str
    priority: int
    born: float = 0.0
    budgets: tuple[str, ...] = ()
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Bystanders:
    """Other pods on the node that are already decided.

    Attributes:
        leaving: uids of pods that already end; their room counts as free.
        late: those of them that may take long; no other pod is evicted for a place that needs their room too.
        yielding: uids of less important waiting pods for which room is kept there; they yield it.
        first: waiting pods at least as important for which room is made there; they are placed first.
    """

    leaving: Collection[str] = ()
    late: Collection[str] = ()
    yielding: Collection[str] = ()
    first: Sequence[Pod] = ()

    def without_late(self) -> "Bystanders":
        """Those that count if others are evicted beside them."""
        left = frozenset(self.leaving).difference(self.late)
        return replace(self, leaving=left, late=()) if self.late else self


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to make room on one node.

    Attributes:
        victims: pods to evict, most important first; empty if the pods that already leave make room.
        broken: uids of victims whose budgets do not allow it.
        lost: compute of the victims, in thousandths of a card, and their bytes of memory.
    """

    node: str
    victims: tuple[Occupant, ...] = ()
    broken: tuple[str, ...] = ()
    lost: tuple[int, int] = (0, 0)

    @property
    def cost(self) -> tuple[int, int, int, int, tuple[int, int], float]:
        """The lower, the better: spared victims, highest priority, number of victims, their sum, what they lose, their age."""
        if not self.victims:
            return (-1, 0, 0, 0, (0, 0), 0.0)
        highest = self.victims[0].priority
        oldest = min(one.born for one in self.victims if one.priority == highest)
        total = sum(one.priority for one in self.victims)
        spared = sum(one.refused or one.uid in self.broken for one in self.victims)
        return (spared, highest, len(self.victims), total, self.lost, -oldest)


def planning(
    chooser: Chooser,
    pod: Pod,
    node: str,
    occupants: Sequence[Occupant],
    allowed: Mapping[str, int],
    beside: Bystanders = Bystanders(),
    work: Work | None = None,
) -> Generator[None, None, Plan | None]:
    """The smallest plan that makes room for a pod on a node; None if there is none.

    No victim can be spared while the others go, as far as a search finds. If the search takes too much work, each
    question is answered by first choices alone. Victims of higher priority are spared first. Among equals three orders
    are tried, and the one with fewer victims is taken, or the one whose victims lose less. One spares the older first,
    one the larger. The third spares those first that share a card with many pods, so that one card is emptied and not two.

    The function asks many times whether the pod fits, and each question may take a search. So it pauses at times, with
    the books unchanged, and other tasks get their turn.

    Args:
        occupants: bound pods of lower priority on the node that do not leave yet.
        allowed: how many more evictions each budget allows.
        work: the limit of work; a plan that is unfinished then is dropped, because some of its victims might be spared.
    """
    work = work or Work(MOST_A_PLAN)
    most, around = work.limit, (allowed, beside)
    work.limit = work.done + (most - work.done) // 3
    plan = yield from _planned(chooser, pod, node, occupants, around, work)
    exact, work.limit = not work.spent, most
    if not exact:
        # Each question whether a pod of many containers fits takes a search.
        plan = yield from _planned(chooser, pod, node, occupants, around, work, exact=False)
    return None if work.spent else plan


def _planned(
    chooser: Chooser,
    pod: Pod,
    node: str,
    occupants: Sequence[Occupant],
    given: tuple[Mapping[str, int], Bystanders],
    work: Work,
    *,
    exact: bool = True,
) -> Generator[None, None, Plan | None]:
    allowed, beside = given
    crowd, held = _crowds(chooser.ledger, node), _held(chooser.ledger, node)
    with chooser.without(pod, node, beside.first, work) as run:
        run.depth = MOST_A_NODE if exact else 0
        asked = _Asked(run, beside, work)
        if asked.anybody_gone and asked.fits(()):
            return Plan(node)
        if beside.late:
            asked = _Asked(run, beside.without_late(), work)
        if not occupants or not asked.fits([one.uid for one in occupants]):
            return None
        plans = []
        keys: tuple[Callable[[Occupant], tuple[float, ...]], ...] = (
            lambda one: (-one.priority, -crowd[one.uid], one.born),
            lambda one: (-one.priority, one.born),
            lambda one: (-one.priority, -held[one.uid][0], -held[one.uid][1], one.born),
        )
        orders = dict.fromkeys(
            tuple(sorted(occupants, key=key)) for key in keys[: 3 if exact else 1]
        )
        for order in orders:
            # The budget's allowance may go to the most important or to the least: both are tried.
            consumed = (_breaking(order, allowed), _breaking(order[::-1], allowed))
            for breaking in dict.fromkeys(consumed):
                # Victims whose eviction breaks a budget, or was refused, are spared before all others.
                spared = sorted(order, key=lambda one: not one.refused and one.uid not in breaking)
                victims = set((yield from asked.least([one.uid for one in spared])))
                if work.spent:
                    return None
                left = [one for one in order if one.uid in victims]
                lost = sum(held[one.uid][0] for one in left), sum(held[one.uid][1] for one in left)
                broken = tuple(sorted(_breaking(left, allowed)))
                plans.append(Plan(node, tuple(left), broken, lost))
        return min(plans, key=lambda plan: plan.cost)


def still(
    chooser: Chooser,
    pod: Pod,
    plan: Plan,
    allowed: Mapping[str, int],
    beside: Bystanders = Bystanders(),
) -> Plan | None:
    """The plan for the present state, without victims that can now be spared; None if it makes no room.

    Args:
        plan: the smallest plan of a moment ago; its victims all still exist.
        allowed: how many more evictions each budget allows.
    """
    work = Work()
    if plan.victims:
        beside = beside.without_late()
    with chooser.without(pod, plan.node, beside.first, work) as run:
        asked, uids = _Asked(run, beside, work), [one.uid for one in plan.victims]
        if not asked.fits(uids):
            return None
        fewer = least(uids, asked.fits)
    if work.spent:
        return plan
    left = tuple(one for one in plan.victims if one.uid in fewer)
    return Plan(plan.node, left, tuple(sorted(_breaking(left, allowed))))


class _Asked:
    """Whether a pod fits without others, asked once a set; `anybody_gone`: others leave or yield in any case."""

    def __init__(self, run: DryRun, beside: Bystanders, work: Work) -> None:
        self._run, self._work = run, work
        self._gone = (*beside.leaving, *beside.yielding)
        self.anybody_gone = bool(self._gone)
        self._known: dict[frozenset[str], bool] = {}
        self._paused = 0

    def fits(self, victims: Collection[str]) -> bool:
        asked = frozenset(victims)
        if asked not in self._known:
            self._known[asked] = self._run.grants([*self._gone, *victims]) is not None
        return self._known[asked]

    def least(self, victims: Sequence[str]) -> Generator[None, None, list[str]]:
        """See `least`; other tasks get their turn if it took long."""
        left = list(victims)
        for fewer in _sparing(victims, self.fits):
            left = fewer
            if self._work.done >= self._paused + _A_STRETCH:
                self._run.leave()
                yield
                # Earlier answers may no longer be valid; the earlier work counts.
                self._paused = self._work.done
                self._known.clear()
        return left


def least(victims: Sequence[str], fits: Callable[[Collection[str]], bool]) -> list[str]:
    """The victims that still have to go if the first ones are spared first.

    Many are spared at a time if all of them can be. So the question is asked a few times for each victim, and not once
    for each spared pod.

    Args:
        victims: uids; the first one is spared first.
        fits: whether there is room without these pods; without more pods there is never less room.
    """
    return [list(victims), *_sparing(victims, fits)][-1]


def _sparing(
    victims: Sequence[str], fits: Callable[[Collection[str]], bool]
) -> Iterator[list[str]]:
    """The victims left after each question, those of `least` in the end."""
    left = list(victims)
    kept, step = 0, 1
    while kept < len(left):
        fewer = [*left[:kept], *left[kept + step :]]
        if fits(fewer):
            left = fewer
            step *= 2
        elif step > 1:
            step //= 2
        else:
            kept += 1
        yield left


def _breaking(order: Sequence[Occupant], allowed: Mapping[str, int]) -> frozenset[str]:
    """The victims whose eviction breaks a budget, if they are evicted in this order."""
    left = dict(allowed)
    found = set()
    for one in order:
        for budget in one.budgets:
            left[budget] = left.get(budget, 0) - 1
            if left[budget] < 0:
                found.add(one.uid)
    return frozenset(found)


def _held(ledger: Ledger, node: str) -> dict[str, tuple[int, int]]:
    """By uid, a pod's compute in thousandths of a card and bytes of memory."""
    return {
        one.uid: (
            sum(charge.core_milli for charge in one.charges),
            sum(charge.memory_bytes for charge in one.charges),
        )
        for one in ledger.on_node(node)
    }


def _crowds(ledger: Ledger, node: str) -> Counter[str]:
    """By uid, how many pods share the pod's most crowded device."""
    held = [(one.uid, [(c.type, c.uuid) for c in one.charges]) for one in ledger.on_node(node)]
    sharers = Counter(card for _, cards in held for card in cards)
    return Counter({uid: max((sharers[card] for card in cards), default=0) for uid, cards in held})


# --- keeping what is free --------------------------------------------------------------------


def free_part(ledger: Ledger, place: Allocation) -> Allocation:
    """The part of a place that is free now, or the whole place if all of it is.

    Of a GPU that others still use, as much of its compute, memory and slots is kept as the place takes. Anything that
    cannot be kept in parts (an instance, a function, a whole other device) is kept entirely or not at all.
    """
    index = ledger.index.get(place.node)
    charges = place.charges
    if index is None:
        return structs.replace(place, grants=(), host={})
    cards = {
        (type_, card.device.uuid): card
        for type_ in {charge.type for charge in charges}
        for card in ledger.cards(type_, index)
    }
    kept: list[Grant] = []
    whole = True
    for charge in charges:
        card = cards.get((charge.type, charge.uuid))
        mine = [g for g in place.grants if (g.type, g.uuid) == (charge.type, charge.uuid)]
        if card is not None and _fits(card, charge):
            kept += mine
            continue
        whole = False
        if card is not None:
            kept += _pieces(card, charge, mine)
    return place if whole else structs.replace(place, grants=tuple(kept), host={})


def _fits(card: Card, charge: Charge) -> bool:
    if card.closed is not None or (charge.exclusive and (card.tenants or card.instances)):
        return False
    extras = card.extras_free or {}
    return (
        card.core_free >= charge.core_milli
        and card.memory_free >= charge.memory_bytes
        and card.slots_free >= charge.slots
        and all(extras.get(unit, 0) >= amount for unit, amount in charge.extras)
        and not card.functions_taken.intersection(charge.functions)
        and not any(one.overlaps(other) for one in charge.instances for other in card.instances)
    )


def _pieces(card: Card, charge: Charge, grants: Sequence[Grant]) -> list[Grant]:
    """The free part of one device that is not free for the whole charge."""
    if charge.instances:
        taken = card.instances
        return [
            grant
            for grant in grants
            if card.takes_instances
            and grant.mig is not None
            and not any(grant.mig.overlaps(other) for other in taken)
        ]
    if charge.type is not DeviceType.GPU or card.closed is not None or card.instances:
        return []
    core = min(charge.core_milli, card.core_free)
    memory = min(charge.memory_bytes, card.memory_free)
    if (core <= 0 and memory <= 0) or card.slots_free < 1:
        return []
    part = GrantMode.SHARE
    return [Grant("", charge.type, charge.minor, charge.uuid, max(core, 0), max(memory, 0), part)]
