from collections import Counter

from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.placement.tables import Tables
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, TablesChanged

NODES, CARDS, PODS = 5, 4, 2000


def _places(seed: int, pods: int = PODS) -> list[tuple[str, int]]:
    engine = Engine(Policy.parse("random"))
    for number in range(NODES):
        devices = tuple(
            Device(DeviceType.GPU, i, f"{number}/{i}", slots=PODS) for i in range(CARDS)
        )
        engine.handle(NodeSeen(Node(f"n{number}", devices=devices)))
    engine.handle(TablesChanged(Tables(seed=seed)))
    request = DeviceRequest(DeviceType.GPU, 1, 1)
    group = RequestGroup("test", request, (ContainerAsk("c"),))
    places = []
    for number in range(pods):
        decision = engine.schedule(Pod(f"{number}", "d", "p", request=PodRequest((group,))))
        assert isinstance(decision, Placement)
        grant = decision.allocation.grants[0]
        places.append((decision.allocation.node, grant.minor))
    return places


def test_every_place_is_as_likely() -> None:
    """2000 pods over 5 nodes of 4 cards: no place is off by more than five deviations."""
    counts = Counter(_places(seed=1))

    expected = PODS / (NODES * CARDS)
    assert len(counts) == NODES * CARDS
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())


def test_the_seed_decides() -> None:
    """The same seed draws the same places, another seed others."""
    assert _places(7, 50) == _places(7, 50)
    assert _places(7, 50) != _places(8, 50)


def test_asking_twice_gives_the_same_answer() -> None:
    """`explain` says what `schedule` will do."""
    engine = Engine(Policy.parse("random"))
    for number in range(NODES):
        engine.handle(NodeSeen(Node(f"n{number}")))
    pod = Pod("u", "d", "p")

    first, second = engine.evaluate(pod), engine.schedule(pod)

    assert first == second
