"""Which sets of cards may serve a request together: partitions and topology scopes.

The deepest scope that holds the request is preferred. Among equal scopes the one with surroundings already in use is
preferred, so that idle switches and NUMA nodes stay whole (docs/sources/koordinator.md 3.5).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

from partage.inventory.card import Card, Tree
from partage.model.device import Partition
from partage.model.node import Node
from partage.model.request import DeviceRequest, PartitionAsk, Scope

_REMAINDER_WEIGHT: Final = {8: 10_000, 4: 100, 2: 1}


def has_tree(cards: Sequence[Card], scope: Scope | None) -> bool:
    """Whether every card's topology is known as deep as the scope needs."""
    if scope in (Scope.NODE, Scope.DEVICE):
        return True
    if scope is Scope.NUMA:
        return all(card.device.topology is not None for card in cards)
    return bool(cards) and all(
        card.device.topology is not None and card.device.topology.pcie for card in cards
    )


def in_scopes(
    everyone: Sequence[Card], fitting: Sequence[Card], request: DeviceRequest
) -> Iterator[list[Card]]:
    """Sets of `request.count` fitting cards, each set within one scope, best first.

    Args:
        everyone: all cards of the type; they decide which surroundings are in use.
        fitting: cards that serve the request, in the order of preference inside a scope.
        request: its scope is the widest allowed, or else the node.
    """
    widest = request.scope or Scope.NODE
    for level in (Scope.DEVICE, Scope.PCIE, Scope.NUMA, Scope.NODE):
        if level < widest:
            return
        if level is Scope.DEVICE and request.count > 1:
            continue
        if level is not Scope.NODE and not has_tree(everyone, level):
            continue
        yield from _at_level(everyone, fitting, request.count, level)


def _at_level(
    everyone: Sequence[Card], fitting: Sequence[Card], count: int, level: Scope
) -> Iterator[list[Card]]:
    groups: dict[tuple[object, ...], list[Card]] = defaultdict(list)
    for card in fitting:
        groups[_place(card, level)].append(card)
    crowd = _crowd(everyone, level)
    enough = [group for group in groups.values() if len(group) >= count]
    for group in sorted(enough, key=lambda group: -crowd(group[0])):
        yield group[:count]


def beside_used(everyone: Sequence[Card], fitting: Sequence[Card]) -> list[Card]:
    """The cards, those on switches and NUMA nodes in use first; otherwise in the given order."""
    crowd = _crowd(everyone, Scope.DEVICE)
    return sorted(fitting, key=lambda card: -crowd(card))


def _crowd(everyone: Sequence[Card], level: Scope) -> Callable[[Card], int]:
    """How many of a card's switch and NUMA node are in use, of those that are no closer than the level."""
    scopes = [scope for scope in (Scope.PCIE, Scope.NUMA) if scope <= level]
    busy = {(scope, _place(card, scope)) for scope in scopes for card in everyone if card.tenants}
    return lambda card: sum((scope, _place(card, scope)) in busy for scope in scopes)


def nearest(tree: Tree, rows: Sequence[int], taken: Iterable[int], count: int) -> list[int]:
    """The first set of `in_scopes` for a request without a scope, by row.

    Args:
        tree: the topology of the node's cards.
        rows: those that serve the request, at least as many as it asks.
        taken: rows of all cards in use.
    """
    switches, numas = tree
    busy_switches, busy_numas = {switches[r] for r in taken}, {numas[r] for r in taken}

    def busy(row: int) -> int:
        return (switches[row] in busy_switches) + (numas[row] in busy_numas)

    if count == 1:
        return [max(rows, key=busy)]
    for places, crowd in ((switches, busy), (numas, lambda row: numas[row] in busy_numas)):
        groups: dict[int, list[int]] = {}
        for row in rows:
            groups.setdefault(places[row], []).append(row)
        enough = [group for group in groups.values() if len(group) >= count]
        if enough:
            return max(enough, key=lambda group: crowd(group[0]))[:count]
    return list(rows[:count])


def _place(card: Card, level: Scope) -> tuple[object, ...]:
    topology = card.device.topology
    if level is Scope.DEVICE:
        return (card.row,)
    if level is Scope.NODE or topology is None:
        return ()
    return (topology.numa, topology.pcie) if level is Scope.PCIE else (topology.numa,)


def partitions(
    node: Node, everyone: Sequence[Card], fitting: Sequence[Card], count: int, ask: PartitionAsk
) -> Iterator[list[Card]]:
    """Free partitions of `count` cards, best first: highest score, then least harm to larger ones.

    Upstream goes through the scores upwards, against its own API text; here the highest come first
    (docs/compatibility/koordinator.md, Q5). `Restricted` uses the highest score only.
    """
    by_minor = {card.device.minor: card for card in fitting}
    used = {card.device.minor for card in everyone if card.tenants}
    worth = [
        (weight * one.score, set(one.minors))
        for size, weight in _REMAINDER_WEIGHT.items()
        if size >= count
        for one in _best(node.partitions.get(size, ()))
        if used.isdisjoint(one.minors)
    ]

    def remains(chosen: Partition) -> int:
        """Worth of the partitions that stay free if `chosen` is taken."""
        return sum(score for score, minors in worth if minors.isdisjoint(chosen.minors))

    table = node.partitions.get(count, ())
    scores = sorted({p.score for p in table}, reverse=True)
    for score in scores[:1] if ask.restricted else scores:
        free = [
            p
            for p in table
            if p.score == score
            and all(minor in by_minor for minor in p.minors)
            and (
                ask.bandwidth is None or (p.bandwidth is not None and p.bandwidth >= ask.bandwidth)
            )
        ]
        for partition in sorted(free, key=remains, reverse=True):
            yield [by_minor[minor] for minor in partition.minors]


def _best(table: Sequence[Partition]) -> list[Partition]:
    best = max((p.score for p in table), default=0)
    return [p for p in table if p.score == best]


def switch_of(card: Card) -> tuple[int, str] | None:
    """The PCIe switch of a device, if it is known."""
    topology = card.device.topology
    return (topology.numa, topology.pcie) if topology and topology.pcie else None


def by_turns(switches: Sequence[tuple[int, str] | None], cards: Sequence[Card]) -> list[Card]:
    """The devices on these switches: the first of each, then the second of each, and so on."""
    rows = [[c for c in cards if switch and switch_of(c) == switch] for switch in switches]
    return [card for turn in zip_longest(*rows) for card in turn if card is not None]


def beyond(primary: Sequence[Card], near: Sequence[Card], cards: Sequence[Card]) -> list[Card]:
    """The devices that are not near, those on the primary's NUMA nodes first."""
    numas = {_place(card, Scope.NUMA) for card in primary} - {()}
    there = {id(card) for card in near}
    others = [card for card in cards if id(card) not in there]
    return sorted(others, key=lambda card: _place(card, Scope.NUMA) not in numas)


def together(cards: Sequence[Card], scope: Scope | None) -> bool:
    """Whether all cards are within one scope of the first."""
    first, *others = cards
    return scope is None or all(within(first, other, scope) for other in others)


def within(left: Card, right: Card, scope: Scope) -> bool:
    """Whether two cards are within one scope; cards with an unknown place are not."""
    if scope is Scope.NODE:
        return True
    one, two = left.device.topology, right.device.topology
    if scope is Scope.DEVICE or one is None or two is None:
        return False
    return one.numa == two.numa and (scope is Scope.NUMA or one.pcie == two.pcie)
