"""A node's credentials write its Node and Device without an end: each is read now and then, and no other waits."""

import contextlib
from collections.abc import AsyncIterator

from kube_builders import QUICK, client_of, eventually, started, stopped

from fakes.clock import SteppedClock
from fakes.kube_server import KubeServer
from partage.daemon.informers import Feed
from partage.daemon.watched import watched
from partage.wire.documents import Document

NODES_PATH = "/api/v1/nodes"


class Hearer:
    """Keeps the changes of nodes that it receives."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def changed(self, document: Document) -> None:
        """See `Facts`."""
        self.told.append((document.name, document.labels.get("turn", "")))

    def gone(self, document: Document) -> None:
        """See `Facts`."""
        self.told.append((document.name, "gone"))

    def of(self, name: str) -> list[str]:
        """The changes of one node."""
        return [turn for one, turn in self.told if one == name]


def write(server: KubeServer, name: str, turn: str) -> None:
    """Create or change a node."""
    known = {one["metadata"]["name"] for one in server.store.list(NODES_PATH, None)}
    item = {"metadata": {"name": name, "labels": {"turn": turn}}}
    if name in known:
        server.store.update(NODES_PATH, None, name, item)
    else:
        server.store.create(NODES_PATH, None, item)


@contextlib.asynccontextmanager
async def following(server: KubeServer, clock: SteppedClock) -> AsyncIterator[tuple[Hearer, Feed]]:
    """A feed of nodes, and its receiver."""
    hearer = Hearer()
    kinds = [one for one in watched() if one.kind == "Node"]
    async with client_of(server, clock=clock) as client:
        feed = Feed(client, kinds, hearer, QUICK)
        task = started(feed.run())
        try:
            await feed.refresh()
            await eventually(lambda: server.watches)
            yield hearer, feed
        finally:
            await stopped(task)


async def test_a_node_that_changes_all_the_time_is_read_now_and_then() -> None:
    """The first changes as they come, then two a second; in the end what it is at last."""
    clock = SteppedClock()
    async with KubeServer() as server, following(server, clock) as (hearer, feed):
        for turn in range(500):
            write(server, "wild", str(turn))
        write(server, "calm", "first")
        await eventually(lambda: hearer.of("calm"))
        at_once = len(hearer.of("wild"))
        assert 0 < at_once <= 11

        await clock.advance(0.6)
        await eventually(lambda: hearer.of("wild")[-1] == "499")
        assert len(hearer.of("wild")) == at_once + 1
        found = feed.document("Node", "", "wild")
        assert found is not None
        assert found.labels["turn"] == "499"

        for turn in range(500, 600):
            write(server, "wild", str(turn))
        write(server, "calm", "second")
        await eventually(lambda: hearer.of("calm")[-1] == "second")
        await clock.advance(0.6)
        await eventually(lambda: hearer.of("wild")[-1] == "599")
        assert len(hearer.of("wild")) <= at_once + 3


async def test_a_node_that_goes_meanwhile_is_gone_and_may_come_back() -> None:
    """No change of it arrives after its end; another one of its name arrives at once."""
    clock = SteppedClock()
    async with KubeServer() as server, following(server, clock) as (hearer, _):
        for turn in range(50):
            write(server, "wild", str(turn))
        server.store.delete(NODES_PATH, None, "wild")
        await eventually(lambda: "gone" in hearer.of("wild"))
        await clock.advance(30.0)
        write(server, "calm", "first")
        await eventually(lambda: hearer.of("calm"))
        assert hearer.of("wild")[-1] == "gone"

        write(server, "wild", "new")
        await eventually(lambda: hearer.of("wild")[-1] == "new")


async def test_a_node_that_changes_now_and_then_is_told_at_once() -> None:
    """Each change of a node that rests between them."""
    clock = SteppedClock()
    async with KubeServer() as server, following(server, clock) as (hearer, _):
        for turn in range(40):
            write(server, "usual", str(turn))
            await eventually(lambda turn=turn: hearer.of("usual")[-1:] == [str(turn)])
            await clock.advance(0.5)
        assert hearer.of("usual") == [str(turn) for turn in range(40)]
