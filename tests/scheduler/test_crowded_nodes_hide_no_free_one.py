"""However many crowded nodes stand before it, a node that takes the pod at once is found."""

from dataclasses import replace

import pytest

from fakes.builders import card, make_node
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement

CARDS = 8
SIZES = (210, 220, 230, 240, 260, 270, 280, 290, 310, 330, 340, 360, 370, 380, 390, 410, 430, 440)
"""In thousandths of a card; two of each of most are hard to fit on eight cards."""


def pod(name: str, *sizes: int, count: int = 1) -> Pod:
    """A pod of a container for each size."""
    groups = tuple(
        RequestGroup(
            "hami",
            DeviceRequest(DeviceType.GPU, count, core_milli=size, memory_bytes=2**20 + position),
            (ContainerAsk(f"c{position}", position=position),),
        )
        for position, size in enumerate(sizes)
    )
    return Pod(name, "team", name, request=PodRequest(groups))


def crowded(policy: str, nodes: int, left: int) -> Engine:
    """So many nodes with so much left of every card, and one of which nothing is used."""
    engine = Engine(Policy.parse(policy))
    for number in range(nodes + 1):
        cards = [card(minor, prefix=f"GPU-{number}") for minor in range(CARDS)]
        engine.handle(NodeSeen(make_node(f"n{number}", cards)))
    for number in range(nodes):
        used = pod(f"used-{number}", 1000 - left, count=CARDS)
        assert isinstance(engine.place_on(used, f"n{number}"), Placement)
    return engine


HARD = pod("hard", *(SIZES * 2)[:22])
LEFT = -(-sum((SIZES * 2)[:22]) // CARDS)


@pytest.mark.parametrize("policy", ["binpack", "bestfit", "partage"])
@pytest.mark.parametrize("again", [False, True])
def test_an_idle_node_behind_crowded_ones_takes_the_pod(policy: str, again: bool) -> None:  # noqa: FBT001 # a case
    """Nodes on which a pod hardly fits cost the whole search; asking twice changes nothing."""
    engine = crowded(policy, 30, LEFT)
    if again:
        engine.candidates(HARD)
    decision = engine.evaluate(HARD)
    assert isinstance(decision, Placement)
    assert decision.allocation.node == "n30"


def test_waiting_pods_are_woken_for_such_a_node() -> None:
    """The list of nodes that would do names it too."""
    found, _ = crowded("binpack", 30, LEFT).candidates(HARD, most=1)
    assert found.tolist() == [30]


def test_where_no_node_takes_it_the_search_says_that_it_gave_up() -> None:
    """Thirty nodes with just as much left as the pod asks, in pieces that do not fit."""
    engine = crowded("binpack", 30, LEFT)
    engine.place_on(pod("last", 1000 - LEFT, count=CARDS), "n30")
    decision = engine.evaluate(replace(HARD, uid="other"))
    assert isinstance(decision, Refusal)
    assert decision.code is ReasonCode.SEARCH_LIMIT
