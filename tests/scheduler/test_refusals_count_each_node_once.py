"""However large the cluster and however hard the pod: each node is counted once, by what is true of it."""

import pytest

from fakes.builders import card, make_node
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.placement.card import FEW, Work
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen

SHAPES = {
    "one": [(1, 500)],
    "five different": [(1, 900 + i) for i in range(5)],
    "sixty different": [(1, 600 + i) for i in range(60)],
    "sixty alike": [(1, 600)] * 60,
    "sets": [(2 + i % 3, 400 + i) for i in range(12)],
    "more cards than there are": [(9, 100), (1, 100)],
    "hardly fits": [
        (1, (210, 220, 230, 240, 260, 270, 280, 290, 310, 330)[i % 10]) for i in range(34)
    ],
}


def pod(name: str, sizes: list[tuple[int, int]]) -> Pod:
    """A pod of a container for each size: cards, and thousandths of each."""
    groups = tuple(
        RequestGroup(
            "hami",
            DeviceRequest(DeviceType.GPU, count, core_milli=size, memory_bytes=2**20 + position),
            (ContainerAsk(f"c{position}", position=position),),
        )
        for position, (count, size) in enumerate(sizes)
    )
    return Pod(name, "team", name, request=PodRequest(groups))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nodes", [30, 101, 150])
@pytest.mark.parametrize("most", [FEW, None])
def test_each_node_is_counted_once(shape: str, nodes: int, most: int | None) -> None:
    """Half of every card is in use; asked again, also when nothing is remembered, the answer is the same."""
    engine = Engine(Policy.parse("binpack"))
    for number in range(nodes):
        cards = [card(minor, prefix=f"GPU-{number}") for minor in range(8)]
        engine.handle(NodeSeen(make_node(f"n{number}", cards)))
        engine.place_on(pod(f"used-{number}", [(8, 501)]), f"n{number}")
    told = []
    for again in range(3):
        work = None if most is None else Work(most)
        found = engine.hold(pod(f"p{again}", SHAPES[shape]), None, work)
        assert isinstance(found, Refusal)
        told.append((found.code, found.message, found.counts, found.nodes))
        engine._classes.clear() if again else None
    assert told[0] == told[1] == told[2]
    if found.counts:
        assert sum(found.counts.values()) == nodes
        assert found.code in found.counts
        assert f"0/{nodes} nodes" in found.message
    else:
        assert found.code == "SearchDeferred"
    for reason in found.nodes.values():
        assert found.counts[reason.code]
