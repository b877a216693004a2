"""HAMi's rules, written again, decide what Partage decides: fit, cards and node of one pod after another.

Each decision is compared in the state that the product's own earlier decisions led to.
"""

from copy import deepcopy
from dataclasses import replace

import hami_rules as hami
from decisions import Decision, cases, decided
from hami_worlds import Pod, World, worlds
from hypothesis import given, settings

_SAME = 1e-5
"""Scores nearer than this are equal: upstream adds up 32-bit floats, Partage millionths."""


def _placed(node: hami.Node, pod: Pod, chosen: Decision | None) -> tuple[bool, str]:
    """Whether HAMi finds a place on the node, and where the choice departs from HAMi's; the node is charged."""
    for index, limits in enumerate(pod.containers):
        asked = hami.request(limits)
        groups = hami.choices(node, asked, pod.annotations)
        if not groups:
            return False, ""
        group = groups[0]
        if chosen is not None:
            mine = frozenset(uuid for c, _, _, uuid, _ in chosen.devices if c == f"c{index}")
            if mine not in groups:
                return True, f"c{index} on {sorted(mine)} instead of {[sorted(g) for g in groups]}"
            group = mine
        hami.charge(node, group, asked)
    return True, ""


def _beyond(node: hami.Node, pod: Pod, chosen: Decision) -> str:
    """What is wrong with a place that HAMi's container after container does not find; the node is charged."""
    for index, limits in enumerate(pod.containers):
        asked = hami.request(limits)
        mine = frozenset(uuid for c, _, _, uuid, _ in chosen.devices if c == f"c{index}")
        cards = [card for card in node.cards if card.uuid in mine]
        if len(cards) != asked.nums or not all(
            hami.fits(c, asked, pod.annotations) for c in cards
        ):
            return f"c{index} does not fit on {sorted(mine)}"
        hami.charge(node, mine, asked)
    return ""


def compare(world: World) -> None:
    """Hold each decision of the product to the rules."""
    state = {node.name: node for node in deepcopy(world.nodes)}
    decisions = decided(world.documents(), world.policy)
    for plain, found in zip(world.pods, decisions, strict=True):
        pod = replace(plain, annotations=world.wishes(plain))
        fitting = {
            name: hami.node_score(node)
            for name, node in state.items()
            if _placed(deepcopy(node), pod, None)[0]
        }
        if found.node is None:
            assert not fitting, f"{pod.name} waits with {found.reason}, HAMi: {fitting}"
            continue
        mine = state[found.node]
        if found.node not in fitting:
            assert len(pod.containers) > 1, f"{pod.name} on {found}, which HAMi refuses"
            assert not _beyond(mine, pod, found), pod.name
            continue
        sign = -1 if hami.wants_spread(pod.annotations) else 1
        best = max(sign * score for score in fitting.values())
        assert sign * fitting[found.node] >= best - _SAME, (
            f"{pod.name} on {found.node} of {fitting}"
        )
        _, problem = _placed(mine, pod, found)
        assert not problem, f"{pod.name}: {problem}"


@settings(max_examples=cases(600))
@given(worlds(nodes=1, cards=4))
def test_cards_of_one_node_are_those_that_hami_takes(world: World) -> None:
    """Wishes, orders, weights, NUMA groups, links, and cards that fill up."""
    compare(world)


@settings(max_examples=cases(350))
@given(worlds(nodes=3, cards=2))
def test_nodes_are_those_that_hami_takes(world: World) -> None:
    """Binpack and spread between nodes with sharers on them."""
    compare(world)
