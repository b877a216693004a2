"""Places a whole pod on one node: every group of its request, card by card.

This is the exact rule; vectorised kernels only narrow down which nodes it is asked about. Groups
are placed in order, each with its best choice first; when a later group finds no room, earlier
choices are revisited (a bounded depth-first search), so that a pod is refused only where it does
not fit. Init containers come last: they run before the others, so they may use the same devices
again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Final

from partage.inventory.ledger import Card
from partage.model.allocation import Grant
from partage.model.device import DeviceType, SliceMode
from partage.model.node import Node
from partage.model.policy import CardOrder, Strategy
from partage.model.reason import CardReason, NodeReason, ReasonCode
from partage.model.request import (
    DeviceRequest,
    PartitionAsk,
    Phase,
    PodRequest,
    RequestGroup,
    Scope,
)
from partage.placement import instances
from partage.placement.card import Need, free_functions, give, refusal, take
from partage.placement.grouping import has_tree, in_scopes, partitions
from partage.placement.instances import Place
from partage.placement.order import best_linked, ordered
from partage.placement.reasons import format_amount, node_reason
from partage.placement.split import grants_of

__all__ = ["Pick", "place", "pool_reason", "template"]

Cards = Mapping[DeviceType, Sequence[Card]]

_MOST_STEPS: Final = 2_000
_MOST_ALTERNATIVES: Final = 64


@dataclass(frozen=True, slots=True)
class Pick:
    """The devices chosen for one group.

    Attributes:
        cards: which, in the order of choice.
        functions: the virtual function taken with each, or None.
        template: the sharing template that the request equals.
        places: the hardware instance on each card, where instances serve the group.
    """

    cards: tuple[Card, ...]
    functions: tuple[tuple[int, str] | None, ...]
    template: str = ""
    places: tuple[Place | None, ...] = ()

    @property
    def by_instances(self) -> bool:
        """Whether instances serve the group."""
        return bool(self.places)

    @property
    def parts(self) -> Iterator[tuple[Card, tuple[int, str] | None, Place | None]]:
        """Each card with its virtual function and its instance."""
        nothing: tuple[Place | None, ...] = (None,) * len(self.cards)
        return zip(self.cards, self.functions, self.places or nothing, strict=True)


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
    search = _Search(node, cards, request, strategy, ranking)
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

    def __init__(
        self,
        node: Node,
        cards: Cards,
        request: PodRequest,
        strategy: Strategy,
        ranking: Mapping[int, int] | None,
    ) -> None:
        self.ranking = ranking
        self.node = node
        self.cards = cards
        self.request = request
        self.strategy = strategy
        self.steps = 0
        self.reason: NodeReason | None = None
        self.chosen: dict[int, Pick] = {}
        self.taken: dict[int, list[Need]] = {}

    def run(self, groups: Sequence[RequestGroup]) -> list[Pick] | NodeReason:
        if self._descend(groups, 0):
            picks = [self.chosen[i] for i in range(len(groups))]
            for depth, pick in enumerate(picks):
                self._give(pick, self.taken[depth])
            return picks
        if self.reason is None:
            return NodeReason(ReasonCode.INSUFFICIENT_CARDS, "its containers do not fit together")
        return self.reason

    def initial(
        self, picks: Sequence[tuple[RequestGroup, Pick]], groups: Sequence[RequestGroup]
    ) -> list[tuple[RequestGroup, Pick]] | NodeReason:
        """Picks for init containers, each alone beside the sidecars; the pod's own cards first."""
        self.reason = None
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
                islice(self._picks(group, {}), _MOST_ALTERNATIVES),
                key=lambda pick: sum(id(card) in own for card in pick.cards),
                default=None,
            )
            for pick, needs in beside:
                self._give(pick, needs)
            if best is None:
                missing = self.reason
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
        for pick in islice(self._picks(group, placed), _MOST_ALTERNATIVES):
            self.steps += 1
            if self.steps > _MOST_STEPS:
                return False
            needs = self._take(group, pick)
            self.chosen[depth], self.taken[depth] = pick, needs
            if self._descend(groups, depth + 1):
                return True
            self._give(pick, needs)
        return False

    def _on_one_numa(self, group: RequestGroup) -> RequestGroup:
        """The group as a node sees it that keeps a pod's devices on one NUMA node."""
        request = group.request
        wide = request.scope is None or request.scope < Scope.NUMA
        if not self.node.single_numa or request.count < 2 or not wide:  # one device is on one
            return group
        narrowed = replace(request, scope=Scope.NUMA, scope_code=ReasonCode.NUMA_MISMATCH)
        return replace(group, request=narrowed)

    # --- candidates for one group --------------------------------------------------------------

    def _picks(self, group: RequestGroup, placed: Mapping[DeviceType, Pick]) -> Iterator[Pick]:
        """Every way to serve the group that is worth trying, best first: shares, then instances."""
        group = self._on_one_numa(group)
        request = group.request
        everyone = self.cards.get(request.type, ())
        cut = any(card.device.mode is not SliceMode.SHARE for card in everyone)
        if request.instances and cut and not request.every:
            yield from self._in_one_pool(group, placed, everyone)
        else:
            yield from self._by_cards(group, placed)

    def _in_one_pool(
        self,
        group: RequestGroup,
        placed: Mapping[DeviceType, Pick],
        everyone: Sequence[Card],
    ) -> Iterator[Pick]:
        """Shares or whole cards where enough cards give them; then instances."""
        request = group.request
        protocol = group.protocol
        shares = [card for card in everyone if refusal(card, request, protocol) is None]
        if len(shares) >= request.count:
            yield from self._by_cards(group, placed)
        cut = [card for card in everyone if instances.fits(card, request, protocol)]
        for chosen in instances.choices(cut, request, self.request.card_order, self.strategy):
            cards, places = zip(*chosen, strict=True)
            yield Pick(cards, (None,) * len(cards), "", places)
        told = [pool_reason(card, request, protocol) for card in everyone]
        refused = [reason for reason in told if reason is not None]
        self._note(node_reason(request, refused, len(everyone) - len(refused), len(everyone)))

    def _by_cards(self, group: RequestGroup, placed: Mapping[DeviceType, Pick]) -> Iterator[Pick]:
        """Every way to serve the group by shares or whole cards."""
        request = group.request
        everyone = list(self.cards.get(request.type, ()))
        template = ""
        if request.templated:
            template = self._template(request)
            if not template:
                return
        reasons = [refusal(card, request, group.protocol) for card in everyone]
        fitting = [card for card, reason in zip(everyone, reasons, strict=True) if reason is None]
        refused = [reason for reason in reasons if reason is not None]
        if request.every:
            yield from self._every(group, everyone, fitting, refused)
            return
        joint = self.request.joint
        if joint is not None and request.type in joint.types[1:] and joint.types[0] in placed:
            usable = self._unfenced(request, everyone, fitting, request.count)
            yield from self._secondary(group, placed[joint.types[0]], usable, refused, everyone)
            return
        if len(fitting) < request.count:
            self._note(node_reason(request, refused, len(fitting), len(everyone)))
            return
        if joint is not None and request.type is joint.types[0]:
            yield from self._primary(group, everyone, fitting, template)
            return
        yield from self._sets(group, everyone, fitting, template)

    def _sets(
        self,
        group: RequestGroup,
        everyone: Sequence[Card],
        fitting: Sequence[Card],
        template: str,
    ) -> Iterator[Pick]:
        """Sets of cards for a group by partition, topology, links or plain order."""
        request = group.request
        fitting = self._unfenced(request, everyone, fitting, request.count)
        if len(fitting) < request.count:
            return
        if request.whole and request.type is DeviceType.GPU:
            ask = self.request.partition
            must = ask is not None or self.node.honour_partitions
            if must:
                yield from self._partitioned(request, everyone, fitting, ask or PartitionAsk())
                return
            for chosen in self._free(request, everyone, fitting, PartitionAsk()):
                yield _pick(chosen, request, template)
        sorted_cards = ordered(
            fitting, request, self.request.card_order, self.strategy, self.ranking
        )
        if self.request.card_order.by_links and self.node.links and request.scope is None:
            chosen = best_linked(sorted_cards, request.count, self.node)
            yield _pick(chosen, request, template)
        if request.scope is not None and request.scope is not Scope.NODE:
            yield from self._scoped(request, everyone, sorted_cards, template)
            return
        if request.whole and request.type is DeviceType.GPU and has_tree(everyone, Scope.PCIE):
            by_minor = sorted(fitting, key=lambda card: card.device.minor)
            for chosen in in_scopes(everyone, by_minor, request):
                yield _pick(chosen, request, template)
        if request.count == 1:
            for card in sorted_cards:
                yield _pick([card], request, template)
            return
        for combination in combinations(sorted_cards, request.count):
            yield _pick(combination, request, template)

    def _scoped(
        self,
        request: DeviceRequest,
        everyone: Sequence[Card],
        fitting: Sequence[Card],
        template: str,
    ) -> Iterator[Pick]:
        scope = request.scope or Scope.NODE
        if not has_tree(everyone, scope):
            self._note(NodeReason(request.scope_code, "the topology of its cards is not known"))
            return
        found = False
        if self.request.card_order == CardOrder():
            for chosen in in_scopes(everyone, fitting, request):
                found = True
                yield _pick(chosen, request, template)
        # A pod with an order of its own is served in that order; for others these are the sets
        # that remain for a later group that needs one of the cards above.
        for combination in combinations(fitting, request.count):
            if _together(combination, scope):
                found = True
                yield _pick(combination, request, template)
        if not found:
            where = {Scope.DEVICE: "device", Scope.PCIE: "PCIe switch", Scope.NUMA: "NUMA node"}
            self._note(
                NodeReason(
                    request.scope_code,
                    f"no {where[scope]} has {request.count} cards that fit "
                    f"({len(fitting)} fit on the node)",
                    request.count,
                )
            )

    def _partitioned(
        self,
        request: DeviceRequest,
        everyone: Sequence[Card],
        fitting: Sequence[Card],
        ask: PartitionAsk,
    ) -> Iterator[Pick]:
        if not self.node.partitions:
            self._note(NodeReason(ReasonCode.PARTITION, "the node has no partition table"))
            return
        if request.count not in self.node.partitions:
            sizes = ", ".join(str(size) for size in sorted(self.node.partitions))
            self._note(
                NodeReason(
                    ReasonCode.PARTITION,
                    f"no partition has {request.count} cards; sizes are {sizes}",
                    request.count,
                )
            )
            return
        found = False
        for chosen in self._free(request, everyone, fitting, ask):
            found = True
            yield _pick(chosen, request, "")
        if not found:
            self._note(
                NodeReason(
                    ReasonCode.PARTITION,
                    f"no partition of {request.count} cards is free",
                    request.count,
                )
            )

    def _free(
        self,
        request: DeviceRequest,
        everyone: Sequence[Card],
        fitting: Sequence[Card],
        ask: PartitionAsk,
    ) -> Iterator[list[Card]]:
        """Free partitions within the request's scope."""
        for chosen in partitions(self.node, everyone, fitting, request.count, ask):
            if _together(chosen, request.scope):
                yield chosen

    def _every(
        self,
        group: RequestGroup,
        everyone: Sequence[Card],
        fitting: Sequence[Card],
        refused: Sequence[CardReason],
    ) -> Iterator[Pick]:
        request = group.request
        selector = request.filter.selector
        wanted = [c for c in everyone if selector is None or selector.matches(c.device.labels)]
        if not wanted or len([c for c in wanted if c in fitting]) < len(wanted):
            self._note(
                node_reason(replace(request, count=max(len(wanted), 1)), refused,
                            len(fitting), len(everyone))
            )  # fmt: skip
            return
        if len(self._unfenced(request, everyone, wanted, len(wanted))) == len(wanted):
            yield _pick(wanted, request, "")

    # --- GPU and RDMA together -----------------------------------------------------------------

    def _primary(
        self,
        group: RequestGroup,
        everyone: Sequence[Card],
        fitting: Sequence[Card],
        template: str,
    ) -> Iterator[Pick]:
        """Primary devices beside usable secondary ones first; elsewhere only where allowed.

        Upstream picks the primary without looking at the others (koordinator.md Q15).
        """
        joint = self.request.joint
        mates = [
            g for g in self.request.groups
            if joint is not None and g.request.type in joint.types[1:] and not g.request.every
        ]  # fmt: skip
        near = list(fitting)
        for mate in mates:
            usable = {
                _pcie(card)
                for card in self.cards.get(mate.request.type, ())
                if refusal(card, mate.request, mate.protocol) is None
            }
            near = [card for card in near if _pcie(card) in usable - {None}]
        if len(near) >= group.request.count:
            yield from self._sets(group, everyone, near, template)
        if joint is not None and joint.same_pcie:
            self._note(
                NodeReason(
                    ReasonCode.JOINT_ALLOCATION,
                    f"{len(near)} of {len(fitting)} fitting cards share a PCIe switch with a free "
                    f"{mates[0].request.type if mates else 'mate'}, {group.request.count} needed",
                    group.request.count,
                    len(near),
                )
            )
            return
        if len(near) < len(fitting):
            yield from self._sets(group, everyone, fitting, template)

    def _secondary(
        self,
        group: RequestGroup,
        primary: Pick,
        fitting: Sequence[Card],
        refused: Sequence[CardReason],
        everyone: Sequence[Card],
    ) -> Iterator[Pick]:
        """One device beside each PCIe switch of the primary, at least as many as asked."""
        request, joint = group.request, self.request.joint
        switches = list(dict.fromkeys(_pcie(card) for card in primary.cards))
        beside: list[Card] = []
        for switch in switches:
            mates = [card for card in fitting if switch and _pcie(card) == switch]
            beside += mates[:1]
        if joint is not None and joint.same_pcie:
            more = [c for c in fitting if _pcie(c) in switches and c not in beside]
            chosen = beside + more[: max(0, request.count - len(beside))]
            if len(beside) < len(switches) or len(chosen) < request.count:
                self._note(
                    NodeReason(
                        ReasonCode.JOINT_ALLOCATION,
                        f"{len(beside)} of {len(switches)} PCIe switches of the chosen cards have "
                        f"a free {request.type}",
                        len(switches),
                        len(beside),
                    )
                )
                return
        else:
            if len(fitting) < request.count:
                self._note(node_reason(request, refused, len(fitting), len(everyone)))
                return
            others = [card for card in fitting if card not in beside]
            chosen = beside + others[: max(0, request.count - len(beside))]
        if _together(chosen, request.scope):
            yield _pick(chosen, request, "")
            return
        self._note(
            NodeReason(
                request.scope_code,
                f"the {request.type} devices beside the chosen cards are too far apart",
            )
        )

    # --- smaller steps -------------------------------------------------------------------------

    def _unfenced(
        self,
        request: DeviceRequest,
        everyone: Sequence[Card],
        fitting: Sequence[Card],
        count: int,
    ) -> list[Card]:
        """Drop cards whose surroundings are in use, for a request that wants `count` idle ones."""
        scope = request.scope_exclusive
        if scope is None:
            return list(fitting)
        kept = []
        for card in fitting:
            near = [c for c in everyone if c is card or _within(c, card, scope)]
            if all(c.tenants == 0 for c in near):
                kept.append(card)
        if len(kept) < count:
            self._note(
                NodeReason(
                    request.scope_code,
                    f"{len(kept)} of {len(fitting)} fitting cards have idle neighbours, "
                    f"{count} needed",
                    count,
                    len(kept),
                )
            )
        return kept

    def _template(self, request: DeviceRequest) -> str:
        found = template(self.node, request)
        if found:
            return found
        asked = _templated(request)
        parts = ", ".join(
            f"{unit} {format_amount(ReasonCode.INSUFFICIENT_MEMORY, value) if unit == 'memory' else value}"
            for unit, value in sorted(asked.items())
        )
        known = ", ".join(self.node.templates) or "none"
        self._note(
            NodeReason(
                ReasonCode.TEMPLATE_MISMATCH,
                f"no matched GPU shared resource template for {parts} (templates: {known})",
            )
        )
        return ""

    def _note(self, reason: NodeReason) -> None:
        """Keep the first reason: it comes from the first choice, which people expect to see."""
        if self.reason is None:
            told = reason.brief or reason.cards or reason.code is ReasonCode.INSUFFICIENT_CARDS
            self.reason = reason if told else replace(reason, brief=reason.message)

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


def template(node: Node, request: DeviceRequest) -> str:
    """The one sharing template of the node that a templated request equals; empty if none does."""
    asked = _templated(request)
    matches = [name for name, amounts in node.templates.items() if dict(amounts) == asked]
    return matches[0] if len(matches) == 1 else ""


def _templated(request: DeviceRequest) -> dict[str, int]:
    """What a templated request asks, by the names that templates use."""
    asked = dict(request.extras)
    if request.memory_bytes:
        asked["memory"] = request.memory_bytes
    return asked


def pool_reason(card: Card, request: DeviceRequest, protocol: str) -> CardReason | None:
    """Why a card gives too little, by a share or by instances; None where it gives a share."""
    by_card = refusal(card, request, protocol)
    by_instance = instances.refusal(card, request, protocol)
    if by_card is None or (by_instance and by_instance.code is ReasonCode.MODE_MISMATCH):
        return by_card
    return by_instance or instances.too_few(card, request)


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


def _pick(cards: Sequence[Card], request: DeviceRequest, template: str) -> Pick:
    functions: list[tuple[int, str] | None] = []
    for card in cards:
        free = free_functions(card, request)
        functions.append(free[0] if free else None)
    return Pick(tuple(cards), tuple(functions), template)


def _pcie(card: Card) -> tuple[int, str] | None:
    """The PCIe switch of a device, where it is known."""
    topology = card.device.topology
    return (topology.numa, topology.pcie) if topology and topology.pcie else None


def _together(cards: Sequence[Card], scope: Scope | None) -> bool:
    """Whether all cards are within one scope of the first."""
    first, *others = cards
    return scope is None or all(_within(first, other, scope) for other in others)


def _within(left: Card, right: Card, scope: Scope) -> bool:
    if scope is Scope.NODE:
        return True
    one, two = left.device.topology, right.device.topology
    if scope is Scope.DEVICE or one is None or two is None:
        return False
    return one.numa == two.numa and (scope is Scope.NUMA or one.pcie == two.pcie)
