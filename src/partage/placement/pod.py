"""Places a whole pod on one node: every group of its request, card by card.

This is the exact rule; vectorised kernels only select the nodes to which it is applied. Groups are placed in order,
each with its best choice first. If a later group finds no room, earlier choices are revisited (a depth-first search),
so a pod is refused only where it does not fit. If the remaining groups found no room, the search remembers the cards'
free amounts, so it tries equal containers in one order only. It counts its work and gives up at a limit; then each
group gets its first choice once more, the largest group first. Init containers are last: they run before the others, so
they may use the same devices again.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import comb, inf
from operator import attrgetter
from typing import Final

from partage.inventory.card import Card
from partage.model.allocation import Grant
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.model.policy import CardOrder, Scoring, Strategy
from partage.model.reason import NodeReason, ReasonCode
from partage.model.request import Phase, PodRequest, RequestGroup, Scope
from partage.placement import instances
from partage.placement.card import MOST_A_NODE, Need, Work, give, take
from partage.placement.greedy import largest_first
from partage.placement.picks import Cards, Pick, Picker
from partage.placement.split import grants_of

_MOST_ALTERNATIVES: Final = 64

_LEFT: Final = attrgetter(
    "core_free", "memory_free", "slots_free", "tenants", "instances", "functions_taken"
)
"""The free amounts of a card."""

_LOOKS: Final = 8
"""Units of work of a first choice for each card; conditions cost extra."""

_TAKEN: Final = 4
"""Cards taken and released in one unit of work."""

_A_GRANT: Final = 2
"""Units of work to record one container's part of one device."""

_MOST_ASKED: Final = 256
"""The most devices of one pod; a try on a node that has as many ends much earlier."""

GIVEN_UP: Final = NodeReason(
    ReasonCode.SEARCH_LIMIT,
    "the search for cards for all of its containers took as much work as it may on one node; ask "
    "for devices in fewer containers, or for equal amounts in them",
)
"""Why a node is refused if the search gave up on it."""


def place(
    node: Node,
    cards: Cards,
    request: PodRequest,
    strategy: Strategy,
    ranking: Mapping[int, int] | None = None,
    work: Work | None = None,
    *,
    obstacle: bool = False,
    greedily: bool = True,
) -> tuple[Grant, ...] | NodeReason:
    """Grants for every container of the pod, or why the node cannot serve it.

    Args:
        cards: scratch copies of its devices by type; they are left as they were.
        strategy: between cards, unless the pod has its own.
        ranking: score of each row of the first group's type, if the strategy gives one.
        work: the search's limit of work; None for that of one node. If it is too low, or zero, each group gets its
            first choice, whose work grows with groups times cards.
        obstacle: the node is known not to serve the pod, and only the first obstacle is wanted.
        greedily: each group gets its first choice if the search gives up.
    """
    work = work or Work(MOST_A_NODE)
    picker = Picker(node, cards, request, strategy, ranking, work)
    found = _placed(_Search(picker, obstacle=obstacle))
    if found is not GIVEN_UP or obstacle or not greedily:
        return found
    most = max(map(len, cards.values()), default=0)
    asked = sum(group.request.count for group in request.groups)
    greedy = Work(_LOOKS * min(asked, _MOST_ASKED) * (most + 1) + MOST_A_NODE)
    plain = replace(request, card_order=CardOrder(), scoring=Scoring())
    found = _placed(_Search(Picker(node, cards, plain, None, None, greedy), obstacle=False))
    work.done += greedy.done
    return GIVEN_UP if isinstance(found, NodeReason) else found


def _placed(search: "_Search") -> tuple[Grant, ...] | NodeReason:
    """Grants for every group of a search's request."""
    request = search.picker.request
    main = [g for g in request.groups if g.phase is not Phase.INIT]
    later = request.joint.types[1:] if request.joint is not None else ()
    size = [largest_first(g.request) if search.greedy else () for g in main]
    order = sorted(range(len(main)), key=lambda i: (main[i].request.type in later, size[i]))
    found = search.run([main[i] for i in order])
    if isinstance(found, NodeReason):
        return found
    by_group = dict(zip(order, found, strict=True))
    picks = [(group, by_group[i]) for i, group in enumerate(main)]
    initial = search.initial(picks, [g for g in request.groups if g.phase is Phase.INIT])
    if isinstance(initial, NodeReason):
        return initial
    grants = grants_of([(g, p.parts, p.template) for g, p in picks + initial])
    search.work.done += _A_GRANT * len(grants)
    return grants


class _Search:
    """Depth-first search over the picks of one pod's groups on one node."""

    def __init__(self, picker: Picker, *, obstacle: bool) -> None:
        self.picker = picker
        self.work = picker.work
        self.obstacle = obstacle
        self.greedy = picker.strategy is None
        self.alternatives = 1 if self.greedy else _MOST_ALTERNATIVES
        self.dead: set[object] = set()
        self.alike: dict[int, int] | None = None
        self.listed = [card for cards in picker.cards.values() for card in cards]
        self.places = {id(card): place for place, card in enumerate(self.listed)}
        self.told: list[int] = []
        self.numbers: dict[object, int] = {}
        self.chosen: dict[int, Pick] = {}
        self.taken: dict[int, list[Need]] = {}

    def run(self, groups: Sequence[RequestGroup]) -> list[Pick] | NodeReason:
        if self._descend(groups, 0):
            picks = [self.chosen[i] for i in range(len(groups))]
            for depth, pick in enumerate(picks):
                self._give(pick, self.taken[depth])
            return picks
        if self.work.spent and not (self.obstacle and self.picker.reason is not None):
            return GIVEN_UP
        if self.picker.reason is None:
            return NodeReason(ReasonCode.INSUFFICIENT_CARDS, "its containers do not fit together")
        return self.picker.reason

    def initial(
        self, picks: Sequence[tuple[RequestGroup, Pick]], groups: Sequence[RequestGroup]
    ) -> list[tuple[RequestGroup, Pick]] | NodeReason:
        """Picks for init containers, each alone beside the sidecars; the pod's own cards first."""
        self.picker.reason = None
        own = {id(card) for _, pick in picks for card in pick.cards}
        result: list[tuple[RequestGroup, Pick]] = []
        missing: NodeReason | None = None
        # An instance keeps its place while the pod lives; an earlier container may use it unchanged.
        kept = [(pick, self._take(other, pick)) for other, pick in picks if pick.by_instances]
        started = [_started(other) for other, _ in picks]
        beside: dict[int, list[Need]] = {}
        for group in groups:
            latest = max(container.position for container in group.containers)
            running = frozenset(i for i, at in enumerate(started) if at <= latest)
            self._run_beside(picks, beside, running)
            if self.work.spent:
                missing = GIVEN_UP
                break
            idle = (pick for i, (_, pick) in enumerate(picks) if i not in running)
            again = _again(group, idle)
            best = again or max(
                self._alternatives(group, own),
                key=lambda pick: sum(id(card) in own for card in pick.cards),
                default=None,
            )
            if best is None:
                missing = self.picker.reason
                break
            result.append((group, best))
            own |= {id(card) for card in best.cards}
            if best.by_instances and again is None:
                kept.append((best, self._take(group, best)))
        self._run_beside(picks, beside, frozenset())
        for pick, needs in kept:
            self._give(pick, needs)
        if len(result) < len(groups):
            return missing or NodeReason(
                ReasonCode.INSUFFICIENT_CARDS, "its init containers do not fit"
            )
        return result

    def _run_beside(
        self,
        picks: Sequence[tuple[RequestGroup, Pick]],
        beside: dict[int, list[Need]],
        running: frozenset[int],
    ) -> None:
        """Reserve the needs of running sidecars, and release all others. `beside`: the reserved needs, by pick."""
        if beside.keys() - running:
            # The last one first, because a card's room depends on the order.
            while beside:
                i, needs = beside.popitem()
                self._give(picks[i][1], needs)
        for i in sorted(running - beside.keys()):
            group, pick = picks[i]
            if not pick.by_instances:
                self.work.done += 1 + len(pick.cards) // _TAKEN
                beside[i] = self._take(group, pick)

    def _descend(self, groups: Sequence[RequestGroup], depth: int) -> bool:
        if depth == len(groups):
            return True
        state = self._state(depth) if depth else None
        if state in self.dead:
            return False
        group = groups[depth]
        placed: dict[DeviceType, Pick] = {}
        if self.picker.request.joint is not None:
            placed = {groups[i].request.type: self.chosen[i] for i in range(depth)}
        for pick in islice(self.picker.picks(group, placed), self.alternatives):
            if self._over:
                return False
            self.work.done += len(pick.cards) // _TAKEN
            needs = self._take(group, pick)
            self.chosen[depth], self.taken[depth] = pick, needs
            if self._descend(groups, depth + 1):
                return True
            self._give(pick, needs)
        if not self._over:
            self.dead.add(state)
        return False

    def _alternatives(self, group: RequestGroup, own: Container[int]) -> Iterator[Pick]:
        """Picks for an init container, up to the first one that uses only the pod's own cards."""
        for pick in islice(self.picker.picks(group, {}), self.alternatives):
            yield pick
            self.work.done += 1
            if self.work.spent or all(id(card) in own for card in pick.cards):
                return

    @property
    def _over(self) -> bool:
        """Whether the search ends here, regardless of untried picks."""
        work = self.work
        return work.done >= work.limit or (self.obstacle and self.picker.reason is not None)

    def _state(self, depth: int) -> object:
        """A key that decides whether the groups from a depth on find room: the free amounts of every card.

        It does not matter which groups took them, except for devices that must be beside those of the first type.
        """
        self.work.done += 1
        if self.alike is None:
            self.alike = _alike(self.picker)
            self.work.done += len(self.alike)
            self.told = [self._left(card) for card in self.listed]
        if self.alike:
            return depth, tuple(sorted(self.told))
        joint = self.picker.request.joint
        beside = tuple(
            tuple(card.row for card in pick.cards)
            for i, pick in self.chosen.items()
            if joint is not None and i < depth
        )
        return depth, tuple(self.told), beside

    def _left(self, card: Card) -> int:
        """A number for a card's free amounts and its distinguishing properties."""
        kind = self.alike.get(id(card), card.row) if self.alike else card.row
        units = tuple(card.extras_free.values()) if card.extras_free else ()
        told = kind, _LEFT(card), units
        return self.numbers.setdefault(told, len(self.numbers))

    def _changed(self, pick: Pick) -> None:
        """Update the recorded free amounts of a pick's cards."""
        if self.told:
            for card in pick.cards:
                self.told[self.places[id(card)]] = self._left(card)

    def _take(self, group: RequestGroup, pick: Pick) -> list[Need]:
        needs = [
            take(card, group.request, (function[1],) if function else ())
            if place is None
            else instances.take(card, place)
            for card, function, place in pick.parts
        ]
        self._changed(pick)
        return needs

    def _give(self, pick: Pick, needs: Sequence[Need]) -> None:
        for card, function, need in zip(pick.cards, pick.functions, needs, strict=True):
            give(card, need, (function[1],) if function else ())
        self._changed(pick)


def _alike(picker: Picker) -> dict[int, int]:
    """A number for each card, equal for interchangeable cards; empty if no card may be interchanged.

    They may if only amounts decide. Then no group names cards or functions, or needs cards close together, and every
    set of cards that serves a group is tried.
    """
    request, node = picker.request, picker.node
    later = request.joint.types[1:] if request.joint else ()
    beside = any(group.request.type in later for group in request.groups)
    if beside or request.partition or node.honour_partitions or node.single_numa:
        return {}
    for group in request.groups:
        asked = group.request
        near = asked.scope not in (None, Scope.NODE) or asked.scope_exclusive is not None
        wanted = asked.filter
        named = wanted.use_uuids or wanted.avoid_uuids or wanted.functions is not None
        sets = comb(len(picker.cards.get(asked.type, ())), asked.count)
        if near or named or sets > _MOST_ALTERNATIVES:
            return {}
    kinds: dict[object, int] = {}
    found: dict[int, int] = {}
    for card in (one for listed in picker.cards.values() for one in listed):
        found[id(card)] = kinds.setdefault(constant(card), len(kinds))
    return found


def constant(card: Card) -> object:
    """The properties of a card that no choice changes, without those that identify it among its kind on the node."""
    device = card.device
    return (
        device.type,
        device.vendor,
        device.model,
        device.mode,
        device.core_milli,
        device.memory_bytes,
        device.slots,
        device.extras,
        device.cutting,
        device.hidden_from,
        device.registrar,
        device.seated,
        device.vendor_cut,
        tuple(sorted(device.labels.items())),
        device.foreign,
        tuple((one.start, one.size, one.profile) for one in card.foreign),
        card.closed,
        card.takes_instances,
    )


def _again(group: RequestGroup, idle: Iterable[Pick]) -> Pick | None:
    """The pod's own instances that serve an init container before their owners run."""
    request = group.request
    if not request.instances:
        return None
    fitting = [
        (card, place)
        for pick in idle
        for card, _, place in pick.parts
        if place is not None and instances.serves(card, place, request)
    ]
    if len(fitting) < request.count:
        return None
    cards, places = zip(*fitting[: request.count], strict=True)
    return Pick(cards, (None,) * len(cards), "", places)


def _started(group: RequestGroup) -> float:
    """The position of its first sidecar, beside which later init containers run; infinite if it has none."""
    sidecars = (c.position for c in group.containers if c.phase is Phase.SIDECAR)
    return min(sidecars, default=inf)
