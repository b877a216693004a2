"""Preemption on cards: which pods leave a node so that a more important pod gets its place.

The rules are Kubernetes': only pods of lower priority go; as few as possible, the least important first; disruption
budgets are broken only as the last resort; of several nodes the one where that hurts least. The engine's own rule
decides what fits, on the ledger without those pods, so a plan never promises what a decision would refuse.

This module only asks and changes nothing. The event `RoomKept` keeps the free part of a planned place for the pod. The
driver decides which pods to evict, and when.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec import structs

from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Charge, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.mig import MigSlice
from partage.model.pod import Pod
from partage.placement.work import MOST, MOST_A_NODE, Work
from partage.scheduler.decision import Chooser, DryRun

T = TypeVar("T")

MOST_A_PLAN: Final = 9 * MOST
"""Units of work that a plan for one node may take: a plan asks again and again whether a pod fits."""
_A_STRETCH: Final = MOST // 6
"""Units after which others have their turn, once a question is answered: a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A bound pod that may have to go; of equals the younger goes, `born` later in seconds since the epoch."""

    uid: str
    priority: int
    born: float = 0.0
    budgets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bystanders:
    """Others on the node whose part in it is settled.

    Attributes:
        leaving: uids of pods that end already; their room is as good as free.
        yielding: uids of less important waiting pods for which room is kept there; they yield it.
        first: waiting pods at least as important for which room is made there; they come first.
    """

    leaving: Collection[str] = ()
    yielding: Collection[str] = ()
    first: Sequence[Pod] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """How room is made on one node.

    Attributes:
        victims: who has to go, most important first; empty where those who leave anyway make room.
        broken: uids of victims whose budgets do not allow it.
    """

    node: str
    victims: tuple[Occupant, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def cost(self) -> tuple[int, int, int, int, float]:
        """The lower, the better: broken budgets, highest priority, how many, their sum, their age."""
        if not self.victims:
            return (-1, 0, 0, 0, 0.0)
        highest = self.victims[0].priority
        oldest = min(one.born for one in self.victims if one.priority == highest)
        total = sum(one.priority for one in self.victims)
        return (len(self.broken), highest, len(self.victims), total, -oldest)


def plan_on(
    chooser: Chooser,
    pod: Pod,
    node: str,
    occupants: Sequence[Occupant],
    allowed: Mapping[str, int],
    beside: Bystanders = Bystanders(),
    work: Work | None = None,
) -> Plan | None:
    """What `planning` comes to, where no other task has a turn meanwhile."""
    return _run_through(planning(chooser, pod, node, occupants, allowed, beside, work))


def planning(
    chooser: Chooser,
    pod: Pod,
    node: str,
    occupants: Sequence[Occupant],
    allowed: Mapping[str, int],
    beside: Bystanders = Bystanders(),
    work: Work | None = None,
) -> Generator[None, None, Plan | None]:
    """The least that makes room for a pod on a node; None where nothing does.

    Of the victims none can be spared while the others go, as far as a search finds; where that takes
    too much, each question is answered by first choices alone. Those of higher priority are spared
    first; among equals two orders are tried, and the one with fewer victims is taken: the older
    first, and first those who share a card with many, so that one card is emptied and not two.

    It stops now and then with the books as they are, so that others have their turn: it asks again
    and again whether the pod fits, and each time may take a search.

    Args:
        occupants: bound pods of lower priority on the node that do not leave yet.
        allowed: how many more pods each budget lets go.
        work: what may be done; a plan that is not finished by then is none, as some of its victims
            might be spared.
    """
    work = work or Work(MOST_A_PLAN)
    most, around = work.limit, (allowed, beside)
    work.limit = work.done + (most - work.done) // 3
    plan = yield from _planned(chooser, pod, node, occupants, around, work)
    exact, work.limit = not work.spent, most
    if not exact:
        # A pod of many containers: whether it fits takes a search each time.
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
    crowd = _crowds(chooser.ledger, node)
    with chooser.without(pod, node, beside.first, work) as run:
        run.depth = MOST_A_NODE if exact else 0
        asked = _Asked(run, beside, work)
        if asked.anybody_gone and asked.fits(()):
            return Plan(node)
        if not occupants or not asked.fits([one.uid for one in occupants]):
            return None
        plans = []
        orders = (
            sorted(occupants, key=lambda one: (-one.priority, -crowd[one.uid], one.born)),
            sorted(occupants, key=lambda one: (-one.priority, one.born)),
        )
        for order in orders[: 2 if exact else 1]:
            # What a budget allows may go to the most important or to the least: both are tried.
            consumed = (_breaking(order, allowed), _breaking(order[::-1], allowed))
            for breaking in dict.fromkeys(consumed):
                # Those whose going breaks a budget are spared before all others.
                spared = sorted(order, key=lambda one: one.uid not in breaking)
                victims = set((yield from asked.least([one.uid for one in spared])))
                if work.spent:
                    return None
                left = [one for one in order if one.uid in victims]
                plans.append(Plan(node, tuple(left), tuple(sorted(_breaking(left, allowed)))))
        return min(plans, key=lambda plan: plan.cost)


def still(
    chooser: Chooser,
    pod: Pod,
    plan: Plan,
    allowed: Mapping[str, int],
    beside: Bystanders = Bystanders(),
) -> Plan | None:
    """A plan as things are now, without victims that can be spared by now; None where it makes no room.

    Args:
        plan: what was the least a moment ago; its victims are all there.
        allowed: how many more pods each budget lets go.
    """
    work = Work()
    with chooser.without(pod, plan.node, beside.first, work) as run:
        asked, uids = _Asked(run, beside, work), [one.uid for one in plan.victims]
        if not asked.fits(uids):
            return None
        fewer = _run_through(asked.least(uids))
    if work.spent:
        return plan
    left = tuple(one for one in plan.victims if one.uid in fewer)
    return Plan(plan.node, left, tuple(sorted(_breaking(left, allowed))))


def _run_through(steps: Generator[None, None, T]) -> T:
    """What such a generator returns, where no other task has a turn meanwhile."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


class _Asked:
    """Whether a pod fits without others, asked once for each set of them.

    Attributes:
        anybody_gone: others leave, or yield, whatever is decided.
    """

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
        """See `least`; others have their turn where it took long."""
        steps = _sparing(victims, self.fits)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: list[str] = end.value
                return found
            if self._work.done >= self._paused + _A_STRETCH:
                self._run.leave()
                yield
                # What was asked before may not hold any more; what was done before counts.
                self._paused = self._work.done
                self._known.clear()


def least(victims: Sequence[str], fits: Callable[[Collection[str]], bool]) -> list[str]:
    """Of victims that suffice, those who still have to go when the first ones are spared first.

    Many are spared at a time where all of them can be, so the question is asked a few times for
    each who has to go, and not once for each who stays.

    Args:
        victims: uids; who comes first is spared first.
        fits: whether there is room when these are gone; more who are gone never leave less room.
    """
    return _run_through(_sparing(victims, fits))


def _sparing(
    victims: Sequence[str], fits: Callable[[Collection[str]], bool]
) -> Generator[None, None, list[str]]:
    """As `least`, with a stop after each question."""
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
        yield
    return left


def _breaking(order: Sequence[Occupant], allowed: Mapping[str, int]) -> frozenset[str]:
    """Those whose going breaks a budget, if they went in this order."""
    left = dict(allowed)
    found = set()
    for one in order:
        for budget in one.budgets:
            left[budget] = left.get(budget, 0) - 1
            if left[budget] < 0:
                found.add(one.uid)
    return frozenset(found)


def _crowds(ledger: Ledger, node: str) -> Counter[str]:
    """By uid, how many pods share the pod's most crowded device."""
    held = [(one.uid, [(c.type, c.uuid) for c in one.charges]) for one in ledger.on_node(node)]
    sharers = Counter(card for _, cards in held for card in cards)
    return Counter({uid: max((sharers[card] for card in cards), default=0) for uid, cards in held})


# --- keeping what is free --------------------------------------------------------------------


def free_part(ledger: Ledger, place: Allocation) -> Allocation:
    """What of a place is free now: the place itself where all of it is.

    Of a GPU that others still use, as much of its compute, memory and slots is kept as the place
    takes; whatever cannot be kept in parts (an instance, a function, a whole other device) is kept
    entirely or not at all.
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
        and not any(_overlap(one, other) for one in charge.instances for other in card.instances)
    )


def _overlap(one: MigSlice, other: MigSlice) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size


def _pieces(card: Card, charge: Charge, grants: Sequence[Grant]) -> list[Grant]:
    """What is free of one device that is not free for all of the charge."""
    if charge.instances:
        taken = card.instances
        return [
            grant
            for grant in grants
            if card.takes_instances
            and grant.mig is not None
            and not any(_overlap(grant.mig, other) for other in taken)
        ]
    if charge.type is not DeviceType.GPU or card.closed is not None or card.instances:
        return []
    core = min(charge.core_milli, card.core_free)
    memory = min(charge.memory_bytes, card.memory_free)
    if (core <= 0 and memory <= 0) or card.slots_free < 1:
        return []
    part = GrantMode.SHARE
    return [Grant("", charge.type, charge.minor, charge.uuid, max(core, 0), max(memory, 0), part)]
