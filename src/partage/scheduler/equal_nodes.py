"""Reuses the answer of the exact rule for one node on every node that is its equal.

Most nodes of a cluster are alike: of one model, idle or with the same shares taken. So one search answers for all of
them. A remembered answer counts the work as if it were done again, so memory makes decisions cheaper but never
different.
"""

from collections import OrderedDict
from collections.abc import Collection
from functools import partial
from typing import Final

from msgspec import structs

from partage.inventory.card import Card
from partage.model.allocation import Grant
from partage.model.node import Node
from partage.model.policy import Strategy
from partage.model.reason import NodeReason
from partage.model.request import PodRequest
from partage.placement.card import Work, groups_of
from partage.placement.picks import Cards
from partage.placement.pod import constant, place

_MOST_KNOWN: Final = 256

Outcome = tuple[Grant, ...] | NodeReason
Memory = OrderedDict[object, tuple[Outcome, int]]


class EqualNodes:
    """The newest answers about one class of request, in a memory that all classes share."""

    def __init__(self, known: Memory, asking: int) -> None:
        """Use a memory that may contain other classes' answers.

        Args:
            known: answers and their work, by class and by everything on which the answer depends.
            asking: number of the class, which is never used again.
        """
        self._known, self._asking = known, asking

    def place(
        self,
        node: Node,
        cards: Cards,
        request: PodRequest,
        strategy: Strategy,
        ranking: dict[int, int] | None,
        work: Work,
        *,
        obstacle: bool = False,
        greedily: bool = True,
    ) -> Outcome:
        """`placement.pod.place`, which searches only if no equal node was searched before; `work` is fresh."""
        search = partial(place, node, cards, request, strategy, ranking, work)
        # A search for one group is faster than a comparison, and links are of single cards.
        if len(request.groups) < 2 or (request.card_order.by_links and node.links):
            return search(obstacle=obstacle, greedily=greedily)
        ranks = tuple(ranking.items()) if ranking else None
        # A class has no names of containers, but grants contain them.
        names = tuple(one.name for group in request.groups for one in group.containers)
        asked = self._asking, names, work.limit, obstacle, greedily
        key = asked, ranks, _facts(node, cards, request)
        known = self._known.pop(key, None)
        if known is None:
            found = search(obstacle=obstacle, greedily=greedily)
            known = found, work.done
        else:
            found = _here(known[0], cards)
            work.done += known[1]
            work.recalled += known[1]
        self._known[key] = known
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return found


def _facts(node: Node, cards: Cards, request: PodRequest) -> object:
    """A key that is equal for two nodes if the exact rule gives the same answer for both."""
    filters = [group.request.filter for group in request.groups]
    named = {uuid for one in set(filters) for uuid in (*one.use_uuids, *one.avoid_uuids)}
    functions = any(one.functions is not None for one in filters)
    return (
        node.single_numa,
        node.honour_partitions,
        tuple(node.partitions.items()),
        tuple(node.templates.items()),
        tuple(
            _card(card, named, functions=functions) for listed in cards.values() for card in listed
        ),
    )


def _card(card: Card, named: Collection[str], *, functions: bool) -> object:
    """A card's properties and free amounts; its identity only if a request names it, its functions if they decide."""
    device = card.device
    offered = (
        (tuple(sorted(labels.items())), tuple([(one.minor, one.bus_id) for one in members]))
        for labels, members in groups_of(device.functions)
    )
    return (
        constant(card),
        device.minor,
        device.topology,
        device.uuid if device.uuid in named else "",
        tuple(offered) if functions else (),
        card.closed_detail,
        card.core_free,
        card.memory_free,
        card.slots_free,
        card.tenants,
        card.instances,
        card.holders,
        card.functions_taken,
        tuple(card.extras_free.items()) if card.extras_free else (),
    )


def _here(found: Outcome, cards: Cards) -> Outcome:
    """The same grants on the cards of another node."""
    if isinstance(found, NodeReason):
        return found
    uuids = {
        (type_, card.device.minor): card.device.uuid
        for type_, listed in cards.items()
        for card in listed
    }
    return tuple(structs.replace(grant, uuid=uuids[grant.type, grant.minor]) for grant in found)
