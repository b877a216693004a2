"""The plugin reports the pods' amounts beside devices, and nodes with room for the pod's own amounts come first.

Without the report pods waited beside free cards, because kube-scheduler's filters rejected sixteen at a time of
hundreds of nodes with cards and without processors.
"""

from typing import Any

from plugin_world import Plugged
from world import device, half, node, pod

from partage.scheduler.engine import State
from partage.wire import plugin as wire

NODES = tuple(f"n{number}" for number in range(1, 41))
FULL = [
    *(wire.Taken(name, cpu=31_000, memory=60 << 30, pods=20) for name in NODES[:-1]),
    wire.Taken("n40", cpu=1000),
]


def asking(name: str, cpu: str = "4", memory: str = "8Gi") -> dict[str, Any]:
    """A pod that asks half a card, and of the host."""
    return pod(name, half() | {"cpu": cpu, "memory": memory})


async def begun() -> Plugged:
    """A world of forty nodes with two cards."""
    world = Plugged()
    await world.start(*(made for name in NODES for made in (node(name), device(name))))
    return world


async def test_a_node_with_cards_and_no_processors_is_not_proposed() -> None:
    """The only node with room is proposed, for any number of others with cards."""
    world = await begun()
    world.create(asking("web"))
    assert world.propose("web").nodes != ["n40"]
    assert world.propose("web", taken=FULL).nodes == ["n40"]


async def test_what_is_held_and_reserved_books_devices_alone() -> None:
    """kube-scheduler counts the other amounts, and would count them again."""
    world = await begun()
    world.create(asking("web"))
    ledger = world.service.books.engine.ledger
    for step in (
        lambda: world.propose("web", taken=FULL),
        lambda: world.reserve("web", "n40"),
    ):
        assert not step().code
        held = ledger.allocation("uid-web")
        assert held is not None
        assert held.host == {}
        assert held.grants
    assert world.states == {"uid-web": State.RESERVED}
    allowed, refused = await world.bind_by("web", where="n40")
    assert allowed is not None
    assert refused is None
    world.check()
    world.service.books.engine.audit()


async def test_without_room_anywhere_devices_alone_decide() -> None:
    """Then kube-scheduler reports the shortage of nodes, and may make room for the pod."""
    world = await begun()
    world.create(asking("web"))
    taken = [*FULL[:-1], wire.Taken("n40", cpu=32_000)]
    found = world.propose("web", taken=taken)
    assert not found.code
    assert found.nodes
    assert world.service.books.waiting.get("uid-web") is None


async def test_a_pod_that_devices_keep_waiting_says_so() -> None:
    """A shortage of hosts is no reason of ours: kube-scheduler reports it."""
    world = await begun()
    request = {"koordinator.sh/gpu": "800", "cpu": "4"}
    world.create(pod("large", request))
    without = world.propose("large")
    assert without.code
    assert world.propose("large", taken=FULL).message == without.message


async def test_every_node_that_fits_is_one_with_room() -> None:
    """This also holds for a pod that needs all of them, as one with soft constraints."""
    world = await begun()
    world.create(asking("web"))
    assert len(world.propose("web", wide=True).nodes) == len(NODES)
    found = world.propose("web", wide=True, taken=FULL[1:])
    assert sorted(found.nodes) == ["n1", "n40"]
