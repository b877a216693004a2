"""On small nodes the search finds a place whenever trying everything finds one."""

from collections.abc import Sequence
from itertools import combinations

from hypothesis import assume, given
from hypothesis import strategies as st
from worlds import PROTOCOLS, device_requests, nodes

from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType
from partage.model.policy import Strategy
from partage.model.reason import NodeReason
from partage.model.request import ContainerAsk, PodRequest, RequestGroup
from partage.placement import instances
from partage.placement.card import give, refusal, take
from partage.placement.pod import place


def _fits(cards: Sequence[Card], groups: Sequence[RequestGroup]) -> bool:
    """Whether some choice of distinct cards, or of instances, serves each group in turn."""
    if not groups:
        return True
    group = groups[0]
    fitting = [c for c in cards if refusal(c, group.request, group.protocol) is None]
    for chosen in combinations(fitting, group.request.count):
        needs = [take(card, group.request) for card in chosen]
        found = _fits(cards, groups[1:])
        for card, need in zip(chosen, needs, strict=True):
            give(card, need)
        if found:
            return True
    return group.request.instances and _by_instances(cards, groups, group.request.count)


def _by_instances(cards: Sequence[Card], groups: Sequence[RequestGroup], missing: int) -> bool:
    """Whether instances at some places serve the first group, and the others fit beside them."""
    if not missing:
        return _fits(cards, groups[1:])
    request, protocol = groups[0].request, groups[0].protocol
    for card in cards:
        if instances.refusal(card, request, protocol) is not None or card.device.cutting is None:
            continue
        there = tuple(sorted(card.instances, key=lambda one: one.start))
        for there_too in instances.places(card.device.cutting, there, instances.sized(request)):
            need = instances.take(card, there_too)
            found = _by_instances(cards, groups, missing - 1)
            give(card, need)
            if found:
                return True
    return False


@given(st.data())
def test_the_search_is_complete_on_small_nodes(data: st.DataObject) -> None:
    """Up to three containers on up to four cards, without scopes and fences."""
    node = data.draw(nodes("node-0"))
    assume(not node.honour_partitions)
    ledger = Ledger()
    ledger.upsert_node(node)
    groups = []
    for i in range(data.draw(st.integers(1, 3))):
        request = data.draw(device_requests())
        assume(request.scope is None and request.scope_exclusive is None and not request.templated)
        protocol = data.draw(st.sampled_from(PROTOCOLS))
        groups.append(RequestGroup(protocol, request, (ContainerAsk(f"c{i}"),)))
    cards = ledger.cards(DeviceType.GPU, 0)

    for strategy in (Strategy.BINPACK, Strategy.SPREAD):
        found = place(node, {DeviceType.GPU: cards}, PodRequest(tuple(groups)), strategy)
        assert isinstance(found, NodeReason) == (not _fits(cards, groups))
