"""The queue tries waiting pods in order of arrival, and leaves out those that cannot fit."""

from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement
from partage.sim.queue import Queue


def kind(milli: int, cpu: int = 1000) -> Pod:
    """A pod that asks for a share of a card."""
    group = RequestGroup("t", DeviceRequest(DeviceType.GPU, 1, milli), (ContainerAsk("c"),))
    return Pod("", "d", "", request=PodRequest((group,)), host={"cpu": cpu})


KINDS = [kind(600), kind(300), kind(100, cpu=64_000), kind(500)]


class World:
    """One node with one card, and the pods that were tried on it."""

    def __init__(self) -> None:
        self.engine = Engine()
        devices = (Device(DeviceType.GPU, 0, "g"),)
        self.engine.handle(NodeSeen(Node("n", allocatable={"cpu": 8000}, devices=devices)))
        self.queue = Queue(KINDS)
        self.kinds: list[int] = []
        self.tried: list[int] = []

    def wait(self, *kinds: int) -> None:
        """Let pods of these kinds wait, in this order."""
        for which in kinds:
            self.queue.add(len(self.kinds), which)
            self.kinds.append(which)

    def place(self, number: int) -> bool:
        """Try one pod."""
        self.tried.append(number)
        base = KINDS[self.kinds[number]]
        pod = Pod(str(number), "d", str(number), request=base.request, host=base.host)
        return isinstance(self.engine.schedule(pod, reasons=False), Placement)

    def retry(self, node: str = "n") -> list[int]:
        """The pods that were tried when room appeared on a node."""
        self.tried.clear()
        self.queue.retry(self.engine.ledger, node, self.place)
        return self.tried


def test_earlier_pods_come_first_and_later_ones_take_what_is_left() -> None:
    """A card of 1000 milli serves 600, then 300; a pod that cannot fit any more is not tried."""
    world = World()
    world.wait(3, 0, 1, 1)  # 500, 600, 300, 300

    assert world.retry() == [0, 2]  # 500 and 300; 600 and the other 300 find no room
    assert world.retry() == []


def test_who_asks_more_than_the_node_has_is_not_tried() -> None:
    """64 cores never fit a node of eight."""
    world = World()
    world.wait(2, 1)

    assert world.retry() == [1]


def test_room_on_a_node_that_is_gone_is_no_room() -> None:
    """A node that is not known is left alone."""
    world = World()
    world.wait(1)

    assert world.retry("gone") == []
    assert world.retry() == [0]
