"""Places a whole pod on one node: every group of its request, card by card.

This is the exact rule; vectorised kernels only narrow down which nodes it is asked about. Groups
are placed in order, each with its best choice first; when a later group finds no room, earlier
choices are revisited (a bounded depth-first search), so that a pod is refused only where it does
not fit. Init containers come last: they run before the others, so they may use the same devices
again.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from partage.model.allocation import Grant
from partage.model.node import Node
from partage.model.policy import Strategy
from partage.model.reason import NodeReason, ReasonCode
from partage.model.request import Phase, PodRequest, RequestGroup
from partage.placement import instances
from partage.placement.card import Need, give, take
from partage.placement.picks import Cards, Pick, Picker
from partage.placement.split import grants_of

__all__ = ["Pick", "place"]

_MOST_STEPS: Final = 2_000
_MOST_ALTERNATIVES: Final = 64


def place(
    node: Node,
    cards: Cards,
    request: PodRequest,
    strategy: Strategy,
    ranking: Mapping[int, int] | None = None,
) -> tuple[Grant, ...] | NodeReason:
    """Grants for every container of the pod, or why the node cannot serve it.

    Args:
        node: the node.
        cards: scratch copies of its devices by type; they are left as they were.
        request: a request without a fault.
        strategy: between cards, unless the pod has its own.
        ranking: score of each row of the first group's type, where the strategy gives one.
    """
    search = _Search(Picker(node, cards, request, strategy, ranking))
    main = [g for g in request.groups if g.phase is not Phase.INIT]
    later = request.joint.types[1:] if request.joint is not None else ()
    order = sorted(range(len(main)), key=lambda i: main[i].request.type in later)
    found = search.run([main[i] for i in order])
    if isinstance(found, NodeReason):
        return found
    picks = [(main[i], found[order.index(i)]) for i in range(len(main))]
    initial = search.initial(picks, [g for g in request.groups if g.phase is Phase.INIT])
    if isinstance(initial, NodeReason):
        return initial
    return grants_of([(g, p.parts, p.template) for g, p in picks + initial])


class _Search:
    """Depth-first search over the picks of one pod's groups on one node."""

    def __init__(self, picker: Picker) -> None:
        self.picker = picker
        self.steps = 0
        self.chosen: dict[int, Pick] = {}
        self.taken: dict[int, list[Need]] = {}

    def run(self, groups: Sequence[RequestGroup]) -> list[Pick] | NodeReason:
        if self._descend(groups, 0):
            picks = [self.chosen[i] for i in range(len(groups))]
            for depth, pick in enumerate(picks):
                self._give(pick, self.taken[depth])
            return picks
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
        # An instance keeps its place while the pod lives; who comes before may use it as it is.
        kept = [(pick, self._take(other, pick)) for other, pick in picks if pick.by_instances]
        for group in groups:
            beside = [
                (pick, self._take(other, pick))
                for other, pick in picks
                if _lasts(other, group) and not pick.by_instances
            ]
            idle = [pick for other, pick in picks if not _lasts(other, group)]
            again = _again(group, idle)
            best = again or max(
                islice(self.picker.picks(group, {}), _MOST_ALTERNATIVES),
                key=lambda pick: sum(id(card) in own for card in pick.cards),
                default=None,
            )
            for pick, needs in beside:
                self._give(pick, needs)
            if best is None:
                missing = self.picker.reason
                break
            result.append((group, best))
            own |= {id(card) for card in best.cards}
            if best.by_instances and again is None:
                kept.append((best, self._take(group, best)))
        for pick, needs in kept:
            self._give(pick, needs)
        if len(result) < len(groups):
            return missing or NodeReason(
                ReasonCode.INSUFFICIENT_CARDS, "its init containers do not fit"
            )
        return result

    def _descend(self, groups: Sequence[RequestGroup], depth: int) -> bool:
        if depth == len(groups):
            return True
        group = groups[depth]
        placed = {groups[i].request.type: self.chosen[i] for i in range(depth)}
        for pick in islice(self.picker.picks(group, placed), _MOST_ALTERNATIVES):
            self.steps += 1
            if self.steps > _MOST_STEPS:
                return False
            needs = self._take(group, pick)
            self.chosen[depth], self.taken[depth] = pick, needs
            if self._descend(groups, depth + 1):
                return True
            self._give(pick, needs)
        return False

    def _take(self, group: RequestGroup, pick: Pick) -> list[Need]:
        return [
            take(card, group.request, (function[1],) if function else ())
            if place is None
            else instances.take(card, place)
            for card, function, place in pick.parts
        ]

    def _give(self, pick: Pick, needs: Sequence[Need]) -> None:
        for card, function, need in zip(pick.cards, pick.functions, needs, strict=True):
            give(card, need, (function[1],) if function else ())


def _again(group: RequestGroup, idle: Sequence[Pick]) -> Pick | None:
    """Instances of the pod itself that serve an init container before their owners run."""
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


def _lasts(other: RequestGroup, group: RequestGroup) -> bool:
    """Whether a sidecar of `other` runs beside the init containers of `group`."""
    latest = max(container.position for container in group.containers)
    return any(c.phase is Phase.SIDECAR and c.position <= latest for c in other.containers)
