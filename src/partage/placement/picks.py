"""Every useful way to serve one group of a request on one node, best first.

Shares and whole cards are picked by partition, topology, links or plain order; hardware instances on cards that are cut
into them; network cards beside the cards of the request. If there is no way, the picker keeps the reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

import msgspec

from partage.inventory.card import CEILING, Card
from partage.model.device import DeviceType, SliceMode
from partage.model.node import Node
from partage.model.policy import CardOrder, Strategy
from partage.model.reason import CardReason, NodeReason, ReasonCode
from partage.model.request import DeviceRequest, PartitionAsk, PodRequest, RequestGroup, Scope
from partage.placement import instances
from partage.placement.card import (
    Work,
    bare_amounts,
    first_function,
    refusal,
    serves,
    sharers_on,
    taken_up,
    unsuitable,
)
from partage.placement.greedy import roomiest
from partage.placement.grouping import (
    beside_used,
    beyond,
    by_turns,
    has_tree,
    in_scopes,
    partitions,
    switch_of,
    together,
    within,
)
from partage.placement.instances import Place
from partage.placement.order import best_linked, ordered
from partage.placement.reasons import format_amount, node_reason

_A_UNIT: Final = 8
"""Conditions of a filter, and virtual functions of cards, that cost as much as the check of one card."""

Cards = Mapping[DeviceType, Sequence[Card]]


class Pick(msgspec.Struct, frozen=True):
    """The devices chosen for one group.

    Attributes:
        cards: the chosen cards, in the order of choice.
        functions: the virtual function taken with each, or None.
        template: the sharing template that the request equals.
        places: the hardware instance on each card, if instances serve the group.
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


class Picker:
    """Picks for the groups of one pod on one node.

    Attributes:
        cards: scratch copies of its devices; a search takes and releases on them.
        strategy: between cards, unless the pod has its own; None for the one that leaves most room for the pod's other
            groups.
        ranking: score of each row of the first group's type, if the strategy gives one.
        work: the counted work; a search stops when it is spent.
        reason: why the first group without a pick has none.
    """

    def __init__(
        self,
        node: Node,
        cards: Cards,
        request: PodRequest,
        strategy: Strategy | None,
        ranking: Mapping[int, int] | None,
        work: Work,
    ) -> None:
        self.node = node
        self.cards = cards
        self.request = request
        self.strategy = strategy
        self.ranking = ranking
        self.work = work
        self.reason: NodeReason | None = None
        self._wrong: dict[int, dict[int, CardReason | None]] = {}
        self._right: dict[int, list[Card]] = {}
        self._bare: dict[int, tuple[int, int, list[tuple[Card, int]]] | None] = {}
        self._alike: dict[int, int] = {}
        self._filters: dict[object, int] = {}
        self._narrowed: dict[int, RequestGroup] = {}
        self._own_order = request.card_order != CardOrder()
        self._cut = {
            type_
            for type_, listed in cards.items()
            if any(card.device.mode is not SliceMode.SHARE for card in listed)
        }

    def picks(self, group: RequestGroup, placed: Mapping[DeviceType, Pick]) -> Iterator[Pick]:
        """Every useful way to serve the group, best first: shares, then instances."""
        group = self._on_one_numa(group)
        request = group.request
        if request.instances and not request.every and request.type in self._cut:
            return self._in_one_pool(group, placed)
        return self._by_cards(group, placed)

    def _on_one_numa(self, group: RequestGroup) -> RequestGroup:
        """The group on a node that keeps a pod's devices on one NUMA node."""
        if not self.node.single_numa:
            return group
        request = group.request
        wide = request.scope is None or request.scope < Scope.NUMA
        if request.count < 2 or not wide:  # one device is always on one
            return group
        known = self._narrowed.get(id(group))
        if known is None:
            narrowed = replace(request, scope=Scope.NUMA, scope_code=ReasonCode.NUMA_MISMATCH)
            known = self._narrowed[id(group)] = replace(group, request=narrowed)
        return known

    def _serving(self, request: DeviceRequest, protocol: str) -> list[Card]:
        """The cards that `card.refusal` does not refuse, with values that no choice changes computed once."""
        self.work.done += len(self._all(request))
        number = id(request)
        if number not in self._alike:
            self._learn(request, protocol)
        right = self._right[self._alike[number]]
        if request.filter.functions is not None:
            self.work.done += sum(len(card.device.functions) for card in right) // _A_UNIT
        bare = self._bare[number]
        if bare is None:
            return [card for card in right if serves(card, request)]
        # A search asks this most often. It equals `serves`, with values common to all cards computed once.
        core, memory, limited = bare
        return [
            card
            for card, most in limited
            if card.memory_free >= memory
            and card.core_free >= core
            and card.slots_free > 0
            and card.tenants < most
            and not card.instances
        ]

    def _all(self, request: DeviceRequest) -> Sequence[Card]:
        """All cards of the type that a request asks."""
        return self.cards.get(request.type, ())

    def _learn(self, request: DeviceRequest, protocol: str) -> None:
        """Judge all cards of a type for a request, as far as no choice changes the result."""
        cards = self._all(request)
        same = request.filter, request.type, protocol
        known = self._alike[id(request)] = self._filters.setdefault(same, len(self._filters))
        if known not in self._wrong:
            self._wrong[known] = {
                card.row: self._judged(card, request, protocol) for card in cards
            }
            self._right[known] = [card for card in cards if self._wrong[known][card.row] is None]
        amounts = bare_amounts(request)
        limited = [
            (card, CEILING if most is None else most)
            for card in self._right[known]
            if card.closed is None
            for most in [sharers_on(request, card.device)]
        ]
        self._bare[id(request)] = None if amounts is None else (*amounts, limited)

    def _judged(self, card: Card, request: DeviceRequest, protocol: str) -> CardReason | None:
        """Why a card is not accepted regardless of its free amounts; the filter's conditions are counted as work."""
        wanted = request.filter
        listed = wanted.use_types, wanted.avoid_types, wanted.use_uuids, wanted.avoid_uuids
        conditions = wanted.selector.requirements if wanted.selector else ()
        self.work.done += (sum(map(len, listed)) + len(conditions)) // _A_UNIT
        return unsuitable(card.device, wanted, protocol)

    def _lacks(
        self, request: DeviceRequest, fitting: int, told: DeviceRequest | None = None
    ) -> None:
        """Record why a request finds too few cards, if that is the first reason.

        Args:
            fitting: how many of the cards serve.
            told: the request in the message, if it differs.
        """
        if self.reason is not None:
            return
        everyone, wrong = self._all(request), self._wrong[self._alike[id(request)]]
        reasons = [wrong[card.row] or taken_up(card, request) for card in everyone]
        refused = [reason for reason in reasons if reason is not None]
        self._note(node_reason(told or request, refused, fitting, len(everyone)))

    def _in_one_pool(
        self, group: RequestGroup, placed: Mapping[DeviceType, Pick]
    ) -> Iterator[Pick]:
        """Shares or whole cards if enough cards give them; then instances."""
        request, protocol = group.request, group.protocol
        everyone = self._all(request)
        if len(self._serving(request, protocol)) >= request.count:
            yield from self._by_cards(group, placed)
        self.work.done += instances.A_LOOK * len(everyone)
        cut = [card for card in everyone if instances.fits(card, request, protocol)]
        order = self.request.card_order
        strategy = self.strategy or roomiest(request)
        for chosen in instances.choices(cut, request, order, strategy, self.work):
            cards, places = zip(*chosen, strict=True)
            yield Pick(cards, (None,) * len(cards), "", places)
        if self.reason is not None:
            return
        told = [pool_reason(card, request, protocol) for card in everyone]
        refused = [reason for reason in told if reason is not None]
        self._note(node_reason(request, refused, len(everyone) - len(refused), len(everyone)))

    def _by_cards(self, group: RequestGroup, placed: Mapping[DeviceType, Pick]) -> Iterator[Pick]:
        """Every way to serve the group by shares or whole cards."""
        request = group.request
        if request.templated and not self._has_template(request):
            return
        fitting = self._serving(request, group.protocol)
        joint = self.request.joint
        if request.every:
            yield from self._every(request, fitting)
        elif joint is not None and request.type in joint.types[1:] and joint.types[0] in placed:
            usable = self._unfenced(request, fitting, request.count)
            yield from self._secondary(request, placed[joint.types[0]], usable)
        elif len(fitting) < request.count:
            self._lacks(request, len(fitting))
        elif joint is not None and request.type is joint.types[0]:
            yield from self._primary(request, fitting)
        else:
            yield from self._sets(request, fitting)

    def _sets(self, request: DeviceRequest, fitting: Sequence[Card]) -> Iterator[Pick]:
        """Sets of cards for a request by partition, topology, links or plain order."""
        everyone = self._all(request)
        fitting = self._unfenced(request, fitting, request.count)
        if len(fitting) < request.count:
            return
        whole = request.whole and request.type is DeviceType.GPU
        if whole:
            ask = self.request.partition
            if ask is not None or self.node.honour_partitions:
                yield from self._partitioned(request, fitting, ask or PartitionAsk())
                return
            for chosen in self._free(request, fitting, PartitionAsk()):
                yield self._pick(chosen, request)
        sorted_cards = ordered(
            fitting,
            request,
            self.request.card_order,
            self.strategy or roomiest(request),
            self.ranking,
            self.request.scoring,
        )
        if self._packs_switches(request) and has_tree(everyone, Scope.PCIE):
            sorted_cards = beside_used(everyone, sorted_cards)
        if self.request.card_order.by_links and self.node.links and request.scope is None:
            chosen = best_linked(sorted_cards, request.count, self.node, self.work)
            yield self._pick(chosen, request)
        if request.scope is not None and request.scope is not Scope.NODE:
            yield from self._scoped(request, sorted_cards)
            return
        if whole and has_tree(everyone, Scope.PCIE):
            by_minor = sorted(fitting, key=lambda card: card.device.minor)
            for chosen in in_scopes(everyone, by_minor, request):
                yield self._pick(chosen, request)
        for combination in combinations(sorted_cards, request.count):
            yield self._pick(combination, request)

    def _packs_switches(self, request: DeviceRequest) -> bool:
        """Whether the pod's protocol keeps shares off idle switches; the pod's own order overrides this."""
        one_share = request.count == 1 and not request.whole and request.type is DeviceType.GPU
        return one_share and self.request.scoring.topology and not self._own_order

    def _scoped(self, request: DeviceRequest, fitting: Sequence[Card]) -> Iterator[Pick]:
        scope, everyone = request.scope or Scope.NODE, self._all(request)
        if not has_tree(everyone, scope):
            self._refuse(request.scope_code, "the topology of its cards is not known")
            return
        found = False
        if not self._own_order:
            for chosen in in_scopes(everyone, fitting, request):
                found = True
                yield self._pick(chosen, request)
        # A pod with an order of its own is served in that order. For others these are the sets that remain for a later
        # group that needs one of the cards above.
        for combination in combinations(fitting, request.count):
            self.work.done += 1
            if self.work.spent:
                return
            if together(combination, scope):
                found = True
                yield self._pick(combination, request)
        if not found:
            where = {Scope.DEVICE: "device", Scope.PCIE: "PCIe switch", Scope.NUMA: "NUMA node"}
            self._refuse(
                request.scope_code,
                f"no {where[scope]} has {request.count} cards that fit ({len(fitting)} fit on the node)",
                request.count,
            )

    def _partitioned(
        self, request: DeviceRequest, fitting: Sequence[Card], ask: PartitionAsk
    ) -> Iterator[Pick]:
        code, count, tables = ReasonCode.PARTITION, request.count, self.node.partitions
        if not tables:
            self._refuse(code, "the node has no partition table")
            return
        if count not in tables:
            sizes = ", ".join(map(str, sorted(tables)))
            self._refuse(code, f"no partition has {count} cards; sizes are {sizes}", count)
            return
        found = False
        for chosen in self._free(request, fitting, ask):
            found = True
            yield self._pick(chosen, request)
        if not found:
            self._refuse(code, f"no partition of {count} cards is free", count)

    def _free(
        self, request: DeviceRequest, fitting: Sequence[Card], ask: PartitionAsk
    ) -> Iterator[list[Card]]:
        """Free partitions. A partition may be wider than the scope of a hint, but not than a required NUMA node.

        The links of a partition do not use the switches that a scope counts.
        """
        numa = self.node.single_numa or request.scope_code is ReasonCode.NUMA_MISMATCH
        for chosen in partitions(self.node, self._all(request), fitting, request.count, ask):
            if together(chosen, Scope.NUMA if numa else None):
                yield chosen

    def _every(self, request: DeviceRequest, fitting: Sequence[Card]) -> Iterator[Pick]:
        selector = request.filter.selector
        wanted = [
            card
            for card in self._all(request)
            if selector is None or selector.matches(card.device.labels)
        ]
        if not wanted or len([c for c in wanted if c in fitting]) < len(wanted):
            told = replace(request, count=max(len(wanted), 1))
            self._lacks(request, len(fitting), told)
        elif len(self._unfenced(request, wanted, len(wanted))) == len(wanted):
            yield self._pick(wanted, request)

    # --- GPU and RDMA together -----------------------------------------------------------------

    def _primary(self, request: DeviceRequest, fitting: Sequence[Card]) -> Iterator[Pick]:
        """Primary devices beside usable secondary ones first; others only if allowed.

        Upstream picks the primary without checking the others (docs/sources/koordinator.md 13, Q15).
        """
        joint = self.request.joint
        mates = [
            g
            for g in self.request.groups
            if joint is not None and g.request.type in joint.types[1:] and not g.request.every
        ]
        near = list(fitting)
        for mate in mates:
            serving = self._serving(mate.request, mate.protocol)
            usable = {switch_of(card) for card in serving}
            near = [card for card in near if switch_of(card) in usable - {None}]
        if len(near) >= request.count:
            yield from self._sets(request, near)
        if joint is not None and joint.same_pcie:
            self._refuse(
                ReasonCode.JOINT_ALLOCATION,
                f"{len(near)} of {len(fitting)} fitting cards share a PCIe switch with a free "
                f"{mates[0].request.type if mates else 'mate'}, {request.count} needed",
                request.count,
                len(near),
            )
        elif len(near) < len(fitting):
            yield from self._sets(request, fitting)

    def _secondary(
        self, request: DeviceRequest, primary: Pick, fitting: Sequence[Card]
    ) -> Iterator[Pick]:
        """As many devices as the primary has PCIe switches, at least as many as asked.

        They are taken from these switches, one of each in turn; then from the primary's NUMA nodes, then from anywhere.
        """
        joint = self.request.joint
        strategy = self.strategy or roomiest(request)
        fitting = ordered(fitting, request, self.request.card_order, strategy)
        switches = list(dict.fromkeys(switch_of(card) for card in primary.cards))
        near = by_turns(switches, fitting)
        covered = {switch_of(card) for card in near}
        count = max(request.count, len(set(switches) - {None}))
        if joint is not None and joint.same_pcie:
            chosen = near[:count]
            if len(covered) < len(switches) or len(chosen) < request.count:
                self._refuse(
                    ReasonCode.JOINT_ALLOCATION,
                    f"{len(covered)} of {len(switches)} PCIe switches of the chosen cards have "
                    f"a free {request.type}",
                    len(switches),
                    len(covered),
                )
                return
        else:
            if len(fitting) < request.count:
                self._lacks(request, len(fitting))
                return
            chosen = [*near, *beyond(primary.cards, near, fitting)][:count]
        if together(chosen, request.scope):
            yield self._pick(chosen, request)
            return
        self._refuse(
            request.scope_code,
            f"the {request.type} devices beside the chosen cards are too far apart",
        )

    # --- smaller steps -------------------------------------------------------------------------

    def _unfenced(
        self, request: DeviceRequest, fitting: Sequence[Card], count: int
    ) -> Sequence[Card]:
        """Drop cards whose surroundings are in use, for a request that needs `count` idle ones."""
        scope = request.scope_exclusive
        if scope is None:
            return fitting
        kept = []
        for card in fitting:
            near = [c for c in self._all(request) if c is card or within(c, card, scope)]
            if all(c.tenants == 0 for c in near):
                kept.append(card)
        if len(kept) < count:
            self._refuse(
                request.scope_code,
                f"{len(kept)} of {len(fitting)} fitting cards have idle neighbours, {count} needed",
                count,
                len(kept),
            )
        return kept

    def _has_template(self, request: DeviceRequest) -> bool:
        if template(self.node, request):
            return True
        asked = templated(request)
        parts = ", ".join(
            f"{unit} {format_amount(ReasonCode.INSUFFICIENT_MEMORY, value) if unit == 'memory' else value}"
            for unit, value in sorted(asked.items())
        )
        known = ", ".join(self.node.templates) or "none"
        self._refuse(
            ReasonCode.TEMPLATE_MISMATCH,
            f"no matched GPU shared resource template for {parts} (templates: {known})",
        )
        return False

    def _pick(self, cards: Sequence[Card], request: DeviceRequest) -> Pick:
        equal = template(self.node, request) if request.templated else ""
        if request.filter.functions is None:
            return Pick(tuple(cards), (None,) * len(cards), equal)
        functions = (first_function(card, request) for card in cards)
        return Pick(tuple(cards), tuple(functions), equal)

    def _refuse(
        self, code: ReasonCode, message: str, asked: int | None = None, free: int | None = None
    ) -> None:
        self._note(NodeReason(code, message, asked, free))

    def _note(self, reason: NodeReason) -> None:
        """Keep the first reason: it is from the first choice, which people expect to see."""
        if self.reason is None:
            told = reason.brief or reason.cards or reason.code is ReasonCode.INSUFFICIENT_CARDS
            self.reason = reason if told else replace(reason, brief=reason.message)


def pool_reason(card: Card, request: DeviceRequest, protocol: str) -> CardReason | None:
    """Why a card gives too little, by a share or by instances; None if it gives a share."""
    by_card = refusal(card, request, protocol)
    by_instance = instances.refusal(card, request, protocol)
    if by_card is None or (by_instance and by_instance.code is ReasonCode.MODE_MISMATCH):
        return by_card
    return by_instance or instances.too_few(card, request)


def template(node: Node, request: DeviceRequest) -> str:
    """The one sharing template of the node that equals a templated request; empty if none does."""
    asked = templated(request)
    matches = [name for name, amounts in node.templates.items() if dict(amounts) == asked]
    return matches[0] if len(matches) == 1 else ""


def templated(request: DeviceRequest) -> dict[str, int]:
    """The amounts of a templated request, by the names that templates use."""
    asked = dict(request.extras)
    if request.memory_bytes:
        asked["memory"] = request.memory_bytes
    return asked
