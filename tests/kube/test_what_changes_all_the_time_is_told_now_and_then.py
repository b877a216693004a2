"""A node's credentials write its Node and Device without an end, and a user his pods: each is read now and then.

Nothing else waits: no object of another node or namespace, no new pod, and no Binding, record or end of a pod.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kube_builders import QUICK, client_of, eventually, started, stopped

from fakes.clock import SteppedClock
from fakes.kube_server import KubeServer
from partage.daemon.informers import Feed, _Pace
from partage.daemon.watched import watched
from partage.kube.objects import Key
from partage.vendors import names
from partage.wire.documents import Document

NODES_PATH = "/api/v1/nodes"


class Hearer:
    """Keeps the changes that it receives."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def changed(self, document: Document) -> None:
        """See `Facts`."""
        self.told.append((document.name, document.labels.get("turn", "")))

    def gone(self, document: Document) -> None:
        """See `Facts`."""
        self.told.append((document.name, "gone"))

    def of(self, name: str) -> list[str]:
        """The changes of one object."""
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
async def following(
    server: KubeServer, clock: SteppedClock, kind: str = "Node"
) -> AsyncIterator[tuple[Hearer, Feed]]:
    """A feed of nodes or pods, and its receiver."""
    hearer = Hearer()
    kinds = [one for one in watched() if one.kind == kind]
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


Manifest = dict[str, Any]
LARGE = 512
"""Containers of a pod: the most that one with devices may have."""


class Pods:
    """The pods of a server."""

    def __init__(self, server: KubeServer) -> None:
        self._store = server.store

    def new(self, name: str, namespace: str = "wild", containers: int = LARGE) -> None:
        """Create a pod that waits for a card."""
        card = {"limits": {"nvidia.com/gpu": "1"}}
        listed = [{"name": f"c{number}", "resources": card} for number in range(containers)]
        head = {"name": name, "namespace": namespace, "labels": {"turn": "new"}}
        item = {"metadata": head, "spec": {"containers": listed}}
        self._store.create("/api/v1/pods", namespace, item)

    def change(
        self,
        name: str,
        namespace: str = "wild",
        *,
        meta: Manifest | None = None,
        spec: Manifest | None = None,
        **more: Any,
    ) -> None:
        """Change a pod, and keep the rest of it."""
        known = self._store.get("/api/v1/pods", namespace, name)
        changed = {
            **known,
            "metadata": {**known["metadata"], **(meta or {})},
            "spec": {**known["spec"], **(spec or {})},
            **more,
        }
        self._store.update("/api/v1/pods", namespace, name, changed)

    def turn(self, name: str, turn: object, namespace: str = "wild") -> None:
        """Change what its author may change all the time."""
        self.change(name, namespace, meta={"labels": {"turn": str(turn)}})

    def gone(self, name: str, namespace: str = "wild") -> None:
        """Delete a pod."""
        self._store.delete("/api/v1/pods", namespace, name)


async def test_large_pods_that_change_all_the_time_are_read_now_and_then() -> None:
    """All pods of a namespace share what they may change; in the end each is as it is at last. Others do not wait."""
    clock = SteppedClock()
    async with KubeServer() as server, following(server, clock, "Pod") as (hearer, _):
        pods = Pods(server)
        for number in range(12):
            pods.new(f"p{number}")
        pods.new("calm", "other")
        for turn in range(30):
            for number in range(12):
                pods.turn(f"p{number}", turn)
            pods.turn("calm", turn, "other")
        pods.new("late")
        await eventually(lambda: hearer.of("late"))
        assert hearer.of("calm") == ["new", *map(str, range(30))]
        changes = sum(len(hearer.of(f"p{number}")) - 1 for number in range(12))
        assert changes < 60

        await clock.advance(30.0)
        await eventually(lambda: all(hearer.of(f"p{number}")[-1] == "29" for number in range(12)))
        assert sum(len(hearer.of(f"p{number}")) - 1 for number in range(12)) == changes + 12


URGENT: dict[str, Manifest] = {
    "a Binding": {"spec": {"nodeName": "n1"}},
    "an end": {"status": {"phase": "Failed"}},
    "a state": {"status": {"nominatedNodeName": "n1"}},
    "a deletion": {"meta": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    "a record": {"meta": {"annotations": {names.ALLOCATION: "{}"}}},
    "a plugin's label": {"meta": {"labels": {names.HAMI_POD_NODE: "n1"}}},
}


@pytest.mark.parametrize("what", URGENT)
async def test_what_decides_of_devices_never_waits(what: str) -> None:
    """Although the pod's author has changed it all the time."""
    clock = SteppedClock()
    async with KubeServer() as server, following(server, clock, "Pod") as (hearer, _):
        pods = Pods(server)
        pods.new("p")
        for turn in range(200):
            pods.turn("p", turn)
        pods.new("q")
        await eventually(lambda: hearer.of("q"))
        before = len(hearer.of("p"))
        assert hearer.of("p")[-1] != "199"

        pods.change("p", **URGENT[what])
        pods.new("r")
        await eventually(lambda: hearer.of("r"))
        assert len(hearer.of("p")) == before + 1
        await clock.advance(30.0)
        pods.new("s")
        await eventually(lambda: hearer.of("s"))
        assert len(hearer.of("p")) == before + 1  # nothing is left to tell


async def test_what_a_pod_without_a_record_asks_for_on_a_node_never_waits() -> None:
    """It is closed there. All else that its author changes waits, the wish for other amounts too."""
    clock = SteppedClock()
    async with KubeServer() as server, following(server, clock, "Pod") as (hearer, _):
        pods = Pods(server)
        for name, record in (("without", {}), ("with", {names.ALLOCATION: "{}"})):
            pods.new(name)
            pods.change(name, spec={"nodeName": "n1"}, meta={"annotations": record})
            for turn in range(200):
                wish = {names.ADJUST: f"compute={1 + turn % 2}"}
                labels = {"turn": str(turn)}
                pods.change(name, meta={"annotations": {**record, **wish}, "labels": labels})
        pods.new("next")
        await eventually(lambda: hearer.of("next"))
        told = {name: len(hearer.of(name)) for name in ("without", "with")}
        assert max(told.values()) < 100
        for name in told:
            pods.change(name, spec={"ephemeralContainers": [{"name": "new"}]})
            pods.change(name, spec={"containers": [{"name": "new"}]})
        pods.new("last")
        await eventually(lambda: hearer.of("last"))
        assert len(hearer.of("without")) > told["without"]
        assert hearer.of("without")[-1] == "199"
        assert len(hearer.of("with")) == told["with"]


async def test_a_pod_that_goes_is_gone_at_once_and_may_come_back() -> None:
    """No change of it arrives after its end; its namespace is not given its changes again."""
    clock = SteppedClock()
    async with KubeServer() as server, following(server, clock, "Pod") as (hearer, _):
        pods = Pods(server)
        for _ in range(3):
            pods.new("p")
            for turn in range(100):
                pods.turn("p", turn)
            pods.gone("p")
        pods.new("q")
        await eventually(lambda: hearer.of("q"))
        assert hearer.of("p").count("gone") == hearer.of("p").count("new") == 3
        assert len(hearer.of("p")) < 6 + 100
        await clock.advance(30.0)
        pods.new("r")
        await eventually(lambda: hearer.of("r"))
        assert hearer.of("p")[-1] == "gone"


async def test_a_pod_that_waits_again_and_again_is_kept_once() -> None:
    """Its author may send a change that waits and one that does not, in turn, for as long as he likes."""
    clock = SteppedClock()
    pace = _Pace(clock)
    key, other = Key("wild", "p"), Key("wild", "q")
    for _ in range(1_000):
        pace.at_once(key, 1.0)
        pace.at_once(key, 0.0)
    assert not pace.at_once(other, 1.0)
    assert len(pace._queue) < 100  # the memory that it takes
    waiting = started(pace.due())
    for _ in range(1_000):
        await clock.advance(1.0)
    assert await waiting == [other]


async def test_an_object_that_cannot_be_read_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its author may change it again and again. Once it could be read, it is named again."""
    clock = SteppedClock()
    async with KubeServer() as server, following(server, clock) as (hearer, _):

        async def is_read(turn: str) -> None:
            write(server, "calm", turn)
            await eventually(lambda: hearer.of("calm")[-1:] == [turn])

        def spoil() -> None:
            for turn in range(20):
                item = {"metadata": {"name": "odd", "labels": {"turn": str(turn)}}, "spec": 5}
                server.store.update(NODES_PATH, None, "odd", item)

        write(server, "odd", "first")
        spoil()
        await is_read("first")
        assert caplog.text.count("Node /odd cannot be read") == 1
        write(server, "odd", "second")
        spoil()
        await is_read("second")
        assert caplog.text.count("Node /odd cannot be read") == 2


async def test_small_pods_of_one_namespace_change_together() -> None:
    """A controller that changes each of thousands holds up none of them."""
    clock = SteppedClock()
    async with KubeServer() as server, following(server, clock, "Pod") as (hearer, _):
        pods = Pods(server)
        for number in range(1000):
            pods.new(f"p{number}", containers=1)
        for number in range(1000):
            pods.turn(f"p{number}", "changed")
        pods.new("last")
        await eventually(lambda: hearer.of("last"))
        assert all(hearer.of(f"p{number}") == ["new", "changed"] for number in range(1000))
