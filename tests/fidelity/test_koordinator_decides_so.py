"""Koordinator's rules, written again, decide what Partage decides: fit, devices and node of one pod after another.

Each decision is compared in the state that the product's own earlier decisions led to. The policy is that of the profile
`koordinator`, or at times `binpack`, which stands for MostAllocated.
"""

from copy import deepcopy

import koordinator_rules as koordinator
from decisions import Decision, cases, decided
from hypothesis import given, settings
from koordinator_rules import Given
from koordinator_worlds import World, worlds


def _given(found: Decision) -> Given:
    nics = {(minor, bus) for _, kind, minor, _, bus in found.devices if kind == "rdma"}
    return Given(tuple(found.minors("gpu")), tuple(sorted(nics)))


def _beside_usable(node: koordinator.Node, ask: koordinator.Ask, cards: tuple[int, ...]) -> bool:
    """Whether a usable network card is beside each of the cards."""
    wanted = koordinator.nics_wanted(node, ask, 0)
    assert wanted is not None
    served = {nic.pcie for nic in node.nics if koordinator.usable(nic, ask, wanted.each)}
    return {card.pcie for card in node.gpus if card.minor in cards} <= served


def _problem(node: koordinator.Node, ask: koordinator.Ask, mine: Given, *, choice: bool) -> str:
    """What is wrong with what the product gave, or nothing."""
    theirs = koordinator.given(node, ask)
    cards = [card for card in node.gpus if card.minor in mine.gpus]
    if ask.gpu and (len(cards) != ask.gpus or not all(card.fits(ask.gpu) for card in cards)):
        return f"{mine.gpus} do not fit"
    if theirs is None or theirs.gpus != mine.gpus:
        if not koordinator.jointly(ask):  # Q15 reads joint allocation otherwise
            return f"{mine} instead of {theirs}" if choice or theirs is None else ""
        if (
            theirs
            and choice
            and (
                _beside_usable(node, ask, theirs.gpus) or not _beside_usable(node, ask, mine.gpus)
            )
        ):
            return f"{mine} instead of {theirs}"
        theirs = koordinator.given(node, ask, list(mine.gpus))
    if choice and (theirs is None or theirs.nics != mine.nics):
        return f"{mine} instead of {theirs}"
    return ""


def compare(world: World, *, choice: bool = True) -> None:
    """Hold each decision of the product to the rules.

    Args:
        world: nodes and pods.
        choice: hold which devices are given to them too, and not only that some are.
    """
    state = {node.name: node for node in deepcopy(world.nodes)}
    for pod, found in zip(world.pods, decided(world.documents(), world.policy), strict=True):
        fitting = {
            name: koordinator.node_score(node, pod.ask)
            for name, node in state.items()
            if koordinator.given(node, pod.ask)
        }
        if found.node is None:
            assert not fitting, f"{pod.name} waits with {found.reason}, Koordinator: {fitting}"
            continue
        node, mine = state[found.node], _given(found)
        problem = _problem(node, pod.ask, mine, choice=choice)
        assert not problem, f"{pod.name}: {problem}"
        if len(state) > 1:
            assert fitting[found.node] == max(fitting.values()), (
                f"{pod.name} on {found.node} of {fitting}"
            )
        koordinator.charge(node, pod.ask, mine)


@settings(max_examples=cases(500))
@given(worlds())
def test_cards_are_those_that_koordinator_takes(world: World) -> None:
    """Shares and whole cards, with topology and without, with a scope and without."""
    compare(world)


@settings(max_examples=cases(250))
@given(worlds(uneven=True))
def test_cards_fit_where_koordinators_do(world: World) -> None:
    """Pods that ask unlike parts of compute and memory, or memory alone."""
    compare(world, choice=False)


@settings(max_examples=cases(700))
@given(worlds(nics=True))
def test_network_cards_and_functions_are_those_that_koordinator_takes(world: World) -> None:
    """Joint and separate, with hints, selectors and functions."""
    compare(world)


@settings(max_examples=cases(250))
@given(worlds(sizes=(4, 8), tables=True))
def test_partitions_are_those_that_koordinator_takes(world: World) -> None:
    """Tables of several scores, honoured and preferred."""
    compare(world)


@settings(max_examples=cases(250))
@given(worlds(nodes=3, sizes=(2, 4)))
def test_nodes_are_those_that_koordinator_scores_highest(world: World) -> None:
    """Nodes of one size with different use."""
    compare(world)
