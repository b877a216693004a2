"""An agent's reports beside a real API server in one process."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_rounds import once
from fakes.clock import InstantClock
from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.agent import reporting
from partage.agent.discovery.found import Inventory
from partage.agent.discovery.models import MODELS
from partage.agent.discovery.search import Search
from partage.agent.discovery.simulated import SimulatedHardware, simulate
from partage.agent.notes import Code, Notes, read_notes
from partage.agent.reporting import DEVICES, AgentReporting, ReportingHooks, ReportingSettings
from partage.apiserver import ApiServer, Change, serve
from partage.embedded.definitions import DEFINITIONS
from partage.kube.client import Client, PatchKind
from partage.kube.config import ClusterConfig, Config
from partage.kube.errors import (
    Conflict,
    KubeError,
    NotFound,
    NotServed,
    TooManyRequests,
    api_error,
)
from partage.kube.resources import LEASES, NODES, Resource
from partage.kube.retry import Backoff, RateLimit
from partage.kube.sender import ClientSettings
from partage.vendors import names

from nodes_world import Node, older_definition  # isort: skip # beside this file

T4 = SimulatedHardware("n1", "Tesla-T4", MODELS["Tesla-T4"], 2)
SLOWEST = 60.0
"""Seconds that a slow machine may take; nothing is measured by them."""


class World:
    """A server with one node; `found` is what the next search finds.

    Attributes:
        changes: kind and resource of all that was written, leases apart.
        told: problems that the agent reported.
        dropped: fields that the API server did not keep, after each write.
    """

    def __init__(self, server: ApiServer, client: Client, settings: ReportingSettings) -> None:
        self.server = server
        self.client = client
        self.found: Inventory = simulate(T4)
        self.changes: list[tuple[str, str]] = []
        self.told: list[str] = []
        self.dropped: list[tuple[str, ...]] = []
        self.notes = Notes()
        self.reporting = AgentReporting(
            client,
            "n1",
            lambda: self.found,
            settings,
            ReportingHooks(
                told=self.told.append,
                notes=lambda: self.notes.text,
                dropped=lambda fields: self.dropped.append(tuple(fields)),
            ),
        )
        server.store.observers.append(self._saw)

    def _saw(self, change: Change) -> None:
        if "leases" not in change.record.resource:
            self.changes.append((change.kind, change.record.resource.partition(".")[0]))

    def noted(self) -> list[str]:
        """Codes of the notes that the Node has; it has no annotation where there are none."""
        node = self.server.store.get("nodes", "", "n1")
        text = node.metadata.get("annotations", {}).get(names.AGENT_NOTES) if node else None
        return [] if text is None else [note.code for note in read_notes(text)] or ["empty"]

    async def document(self) -> dict[str, Any]:
        """The Device object as it is."""
        return await self.client.get(DEVICES, "n1", into=dict[str, Any])


@contextlib.asynccontextmanager
async def world_of(
    definitions: Sequence[dict[str, Any]] = DEFINITIONS,
    clock: InstantClock | None = None,
    **settings: Any,
) -> AsyncIterator[World]:
    """A world beside a fresh server with one Node."""
    server = ApiServer()
    for definition in definitions:
        await server.create("customresourcedefinitions.apiextensions.k8s.io", definition)
    await server.create("nodes", {"metadata": {"name": "n1"}})
    async with asyncio.timeout(SLOWEST), serve(server) as url:
        config = Config(ClusterConfig(url))
        patience = ClientSettings(attempts=2, backoff=Backoff(base=0.001, cap=0.01))
        async with Client(config, settings=patience, clock=clock) as client:
            yield World(server, client, ReportingSettings(**settings))


async def test_a_steady_node_writes_nothing() -> None:
    """The first round writes object and labels; twenty more, some of which read the object again, write nothing."""
    async with world_of(resync=5, hami=True) as world:
        first = await once(world.reporting)
        assert first == ("device", "node")
        world.changes.clear()
        for _ in range(20):
            assert await once(world.reporting) == ()
        assert world.changes == []
        document = await world.document()
        node = world.server.store.get("nodes", "", "n1")
        assert node is not None
        assert document["metadata"]["ownerReferences"][0]["uid"] == node.uid
        assert node.metadata["labels"][names.GPU_MODEL] == "Tesla-T4"


async def test_health_is_written_once_each_way() -> None:
    """A card that falls ill and gets well is two writes of one object."""
    async with world_of() as world:
        await once(world.reporting)
        world.changes.clear()
        world.found = simulate(T4, {("gpu", 1)}, "Xid 79")
        await once(world.reporting)
        await once(world.reporting)
        ill = await world.document()
        world.found = simulate(T4)
        await once(world.reporting)
        assert world.changes == [("MODIFIED", "devices")] * 2
        assert [one["health"] for one in ill["spec"]["devices"]] == [True, False]


async def test_a_card_that_falls_ill_and_recovers_all_the_time_is_written_now_and_then() -> None:
    """A few times at once, then a few times a minute, always as it is at that moment."""
    async with world_of() as world:
        clock = InstantClock()
        world.reporting._writes = RateLimit(1 / 15, 10, clock)
        await once(world.reporting)
        world.changes.clear()
        states = (simulate(T4, {("gpu", 1)}, "Xid 79"), simulate(T4))
        for turn in range(200):  # ten minutes of searches
            world.found = states[turn % 2]
            await once(world.reporting)
            clock.pass_time(3)
        assert 9 + 30 <= len(world.changes) <= 9 + 40 + 1
        world.found = states[0]
        clock.pass_time(15)
        await once(world.reporting)
        last = await world.document()
        assert [one["health"] for one in last["spec"]["devices"]] == [True, False]


async def test_notes_stand_on_the_node_as_long_as_they_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Written when they change, taken away with the last of them."""
    monkeypatch.setattr(reporting, "_BETWEEN_NOTES", 0.0)

    async with world_of() as world:
        await once(world.reporting)
        assert world.noted() == []
        world.notes.say("x", Code.DRIVER_UNTRIED, ["driver 1", "driver 1"])
        world.changes.clear()
        await once(world.reporting)
        await once(world.reporting)
        assert world.noted() == ["DriverUntried"]
        assert world.changes == [("MODIFIED", "nodes")]
        world.notes.say("x", Code.DRIVER_UNTRIED, [])
        await once(world.reporting)
        assert world.noted() == []


async def test_notes_that_come_and_go_are_not_written_each_time() -> None:
    """Once a minute at most: every scheduler hears of each write to a node."""
    async with world_of() as world:
        world.notes.say("x", Code.DISCOVERY, ["gone"])
        await once(world.reporting)
        world.changes.clear()
        for messages in ([], ["gone"], []):
            world.notes.say("x", Code.DISCOVERY, messages)
            await once(world.reporting)
        assert world.changes == []
        assert world.noted() == ["Discovery"]


async def test_fields_that_the_definition_does_not_know_are_written_once_and_told() -> None:
    """An agent newer than Koordinator's definition: no write without a change, and a newer definition is noticed."""
    clock = InstantClock()

    async with world_of([older_definition()], clock, resync=5) as world:
        await once(world.reporting)
        (kept, *_) = (await world.document())["spec"]["devices"]
        assert set(kept) == {"type", "id", "minor", "health", "resources"}
        assert world.dropped == [("conditions", "topology")]
        world.changes.clear()
        for _ in range(20):
            await once(world.reporting)
        assert world.changes == []

        world.found = simulate(T4, {("gpu", 1)}, "Xid 79")
        await once(world.reporting)
        await once(world.reporting)
        ill = await world.document()
        assert [one["health"] for one in ill["spec"]["devices"]] == [True, False]
        assert world.changes == [("MODIFIED", "devices")]

        newer = DEFINITIONS[0]
        await world.server.patch(
            "customresourcedefinitions.apiextensions.k8s.io",
            "",
            newer["metadata"]["name"],
            {"spec": newer["spec"]},
        )
        clock.pass_time(3600)
        await once(world.reporting)
        whole = (await world.document())["spec"]["devices"]
        assert all({"conditions", "topology"} <= set(one) for one in whole)
        assert world.dropped[-1] == ()


async def test_what_others_add_stays_and_what_they_break_is_mended() -> None:
    """A write is for the version it was made for; the round after a conflict mends."""
    async with world_of() as world:
        await once(world.reporting)
        theirs = {"metadata": {"labels": {"team": "a"}}, "spec": {"devices": []}}
        await world.client.patch(DEVICES, "n1", theirs, kind=PatchKind.MERGE, into=dict[str, Any])
        world.found = simulate(T4, {("gpu", 0)}, "Xid 79")
        with pytest.raises(Conflict):
            await once(world.reporting)
        await once(world.reporting)
        document = await world.document()
        assert document["metadata"]["labels"]["team"] == "a"
        assert [one["health"] for one in document["spec"]["devices"]] == [False, True]


async def test_what_the_object_says_is_read_before_the_first_report() -> None:
    """An agent that starts again searches once more when it knows what was wrong, and asks once."""
    async with world_of() as world:
        world.found = simulate(T4, {("gpu", 1)}, "Xid 79")
        await once(world.reporting)
        heard: list[str] = []

        def restore(known: dict[str, Any] | None) -> None:
            devices = known["spec"]["devices"] if known else ()
            heard.extend(f"{one['minor']} {one['health']}" for one in devices)

        def search() -> Inventory:
            heard.append("search")
            return world.found

        again = AgentReporting(world.client, "n1", search, hooks=ReportingHooks(restore=restore))
        await once(again)
        await once(again)
        assert heard == ["search", "0 True", "1 False", "search", "search"]


async def test_hami_s_registration_goes_with_the_last_card() -> None:
    """Once, and it comes back with the card."""
    async with world_of(hami=True) as world:

        def registered() -> Any:
            node = world.server.store.get("nodes", "", "n1")
            return node and json.loads(node.metadata["annotations"][names.HAMI_REGISTER])

        await once(world.reporting)
        whole, found = registered(), world.found
        world.found = Inventory()
        assert await once(world.reporting) == ("device", "node")
        assert await once(world.reporting) == ()
        assert registered() == []
        world.found = found
        await once(world.reporting)
        assert registered() == whole


async def test_a_404_of_a_proxy_is_not_the_absence_of_the_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the object says of a card is read back once the API server itself answers."""
    async with world_of() as world:
        world.found = simulate(T4, {("gpu", 1)}, "Xid 79")
        await once(world.reporting)
        heard: list[dict[str, Any] | None] = []
        hooks = ReportingHooks(restore=heard.append)
        again = AgentReporting(world.client, "n1", lambda: world.found, hooks=hooks)
        genuine = Client.get

        async def get(self: Client, resource: Resource, *args: Any, **more: Any) -> Any:
            if resource == DEVICES:
                raise api_error("GET", "/", 404, b"404 page not found")
            return await genuine(self, resource, *args, **more)

        with monkeypatch.context() as patched:
            patched.setattr(Client, "get", get)
            with pytest.raises(NotServed):
                await once(again)
        assert heard == []
        await once(again)
        assert heard == [await world.document()]


async def test_a_node_without_devices_has_no_object() -> None:
    """Without a device it writes nothing; it reports once what it cannot read."""
    async with world_of() as world:
        world.found = Inventory(problems=("a card is odd",))
        for _ in range(3):
            assert await once(world.reporting) == ()
        assert world.told == ["a card is odd"]
        with pytest.raises(NotFound):
            await world.document()


async def test_an_agent_lives_by_its_lease_and_stops_when_told() -> None:
    """The loop goes on after errors, renews its lease, and ends at once."""
    async with world_of(period=0.01, lease_period=0.01) as world:
        stop = asyncio.Event()
        task = asyncio.create_task(world.reporting.run(stop))
        leases = "leases.coordination.k8s.io"
        renewed: set[str] = set()
        while (
            len(renewed) < 2
            or world.server.store.get("devices.scheduling.koordinator.sh", "", "n1") is None
        ):
            lease = world.server.store.get(leases, "kube-node-lease", "partage-agent-n1")
            if lease is not None:
                renewed.add(lease.value["spec"]["renewTime"])
                assert names.AGENT in lease.value["metadata"]["labels"]
            await asyncio.sleep(0.01)
        stop.set()
        await task


async def test_an_api_server_that_is_away_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log says so once, not in every round; and again after an answer in between."""
    async with world_of() as world:
        away, told = asyncio.Event(), list[str]()
        tries: asyncio.Queue[None] = asyncio.Queue()
        genuine = Client.get

        async def get(self: Client, resource: Resource, *args: Any, **more: Any) -> Any:
            if resource == NODES:
                tries.put_nowait(None)
                if away.is_set():
                    raise KubeError("there is no answer")
            return await genuine(self, resource, *args, **more)

        monkeypatch.setattr(Client, "get", get)
        hooks = ReportingHooks(told=told.append)
        settings = ReportingSettings(period=0.01, resync=1)
        stop = asyncio.Event()
        running = asyncio.create_task(
            AgentReporting(world.client, "n1", lambda: world.found, settings, hooks).run(stop)
        )
        for change in (away.set, away.clear, away.set):
            change()
            for _ in range(4):
                await tries.get()
        stop.set()
        await running

        assert told == ["there is no answer"] * 2


@pytest.mark.parametrize("silent", ["get", "patch"])
async def test_no_search_waits_for_an_api_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """This holds for a read at the start and for a write: faults on the node are seen meanwhile, and reported later."""
    async with world_of(period=0.01) as world:
        await once(world.reporting)
        answers, asked = asyncio.Event(), asyncio.Event()
        genuine = getattr(Client, silent)

        async def hanging(self: Client, *args: Any, **more: Any) -> Any:
            if args[0] != LEASES:
                asked.set()
                await answers.wait()
            return await genuine(self, *args, **more)

        monkeypatch.setattr(Client, silent, hanging)
        heard, noticed = list[list[bool]](), asyncio.Event()

        def hear(*given: Any) -> None:
            heard.append([one.healthy for one in given[2].devices])
            if heard[-1] == [True, False]:
                noticed.set()

        hooks = ReportingHooks(heard=hear)
        again = AgentReporting(
            world.client, "n1", lambda: world.found, ReportingSettings(period=0.01), hooks
        )
        world.found = simulate(T4, {("gpu", 0)}, "Xid 79")
        stop = asyncio.Event()
        running = asyncio.create_task(again.run(stop))
        await asked.wait()
        world.found = simulate(T4, {("gpu", 1)}, "Xid 79")
        await noticed.wait()
        answers.set()

        async def reported() -> list[bool]:
            return [one["health"] for one in (await world.document())["spec"]["devices"]]

        while await reported() != [True, False]:  # noqa: ASYNC110 # the server has no event for it
            await asyncio.sleep(0.01)
        stop.set()
        await running


async def test_a_lease_goes_with_its_node() -> None:
    """Its owner is the Node, from the first renewal on that knows it, as of the kubelet's own Lease."""
    async with world_of() as world:
        lease: dict[str, Any] = {}

        async def renewed() -> list[str]:
            nonlocal lease
            await world.reporting.renew()
            found = world.server.store.get(
                "leases.coordination.k8s.io", "kube-node-lease", "partage-agent-n1"
            )
            assert found is not None
            lease = found.value
            return [one["uid"] for one in lease["metadata"].get("ownerReferences", [])]

        assert await renewed() == []
        await once(world.reporting)
        node = world.server.store.get("nodes", "", "n1")
        assert node is not None

        assert await renewed() == [node.uid]
        await world.client.delete(LEASES, "partage-agent-n1", namespace="kube-node-lease")
        assert await renewed() == [node.uid]
        assert lease["spec"]["holderIdentity"] == "n1"


def test_a_file_of_simulated_devices_is_followed(tmp_path: Path) -> None:
    """Faults come and go with the file; a misspelt file is a problem, and no device."""
    node = Node(tmp_path)
    file = node.write("sim.yaml", "{model: Tesla-T4, cards: 2, rdma: 1, faults: '1=Xid 79'}")
    search = Search(type(node.roots)(simulated=file), "n1")
    assert [(one.type.value, one.healthy) for one in search().devices] == [
        ("gpu", True),
        ("gpu", False),
        ("rdma", True),
    ]

    file.write_text("{model: Tesla-T4, cards: many}")
    odd = search()

    assert odd.found == ()
    assert "cards" in odd.problems[0]


async def test_a_busy_api_server_holds_up_neither_search_nor_lease() -> None:
    """It asks for half a minute before another try, and the agent has a round every three seconds."""
    clock = InstantClock()
    async with KubeServer() as server:
        server.store.create("/api/v1/nodes", None, {"metadata": {"name": "n1"}})
        settings = ClientSettings(backoff=Backoff(base=0.001, jitter=0.0))
        async with Client(
            Config(ClusterConfig(server.url)), settings=settings, clock=clock
        ) as client:
            reporting = AgentReporting(client, "n1", lambda: simulate(T4))
            for act in (partial(once, reporting), reporting.renew):
                for _ in range(2):
                    server.fail(Fault(status=429, retry_after="30"))
                    with pytest.raises(TooManyRequests):
                        await act()
                await act()
        assert sum(clock.slept) < 3
