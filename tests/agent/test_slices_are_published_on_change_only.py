"""ResourceSlices in an API server: written on change, whole or not at all, whatever its feature gates are."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from fakes.clock import InstantClock
from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.agent.discovery.found import Inventory
from partage.agent.dra.ordering import Room
from partage.agent.dra.publishing import SLICES, Publisher, as_sent
from partage.agent.metrics import Tallies
from partage.agent.notes import Notes
from partage.kube.client import Client, ClientSettings
from partage.kube.config import ClusterConfig, Config
from partage.kube.errors import KubeError
from partage.kube.retry import Backoff
from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.node import Node
from partage.vendors.mig import MIG_CARDS

COLLECTION = f"/apis/{SLICES.api_version}/{SLICES.plural}"
GATES = {
    "DRAConsumableCapacity": ("allowMultipleAllocations", "requestPolicy"),
    "DRAPartitionableDevices": ("consumesCounters", "sharedCounters"),
    "DRADeviceTaints": ("taints",),
}
CUT = Cutting(MIG_CARDS["A100-80GB"].axis, frozenset())


class GatedServer(KubeServer):
    """An API server some of whose feature gates are off: it drops their fields, and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.off: set[str] = set()

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        if request.method in {"POST", "PUT"}:
            off = {field for gate in self.off for field in GATES[gate]}
            body = json.dumps(without(json.loads(body), off)).encode()
        return await super()._forward(request, body)


def without(part: Any, fields: Collection[str]) -> Any:
    """A document without some fields, wherever they are."""
    if isinstance(part, dict):
        return {key: without(one, fields) for key, one in part.items() if key not in fields}
    return [without(one, fields) for one in part] if isinstance(part, list) else part


def node(*devices: Device) -> Node:
    """The node with these cards."""
    return Node("n1", devices=devices)


def card(minor: int, **others: Any) -> Device:
    """One that serves shares and instances."""
    return Device(
        DeviceType.GPU,
        minor,
        f"GPU-{minor}",
        "nvidia",
        "A100-SXM4-80GB",
        memory_bytes=80 * 2**30,
        mode=SliceMode.EITHER,
        cutting=CUT,
        **others,
    )


class World:
    """A server with one Node, and its agent's publisher."""

    def __init__(self, server: GatedServer, client: Client) -> None:
        self.server, self.client = server, client
        self.notes, self.tallies = Notes(), Tallies()
        self.publisher = self.another()

    def another(self) -> Publisher:
        """The publisher of an agent that was restarted."""
        return Publisher(self.client, "n1", Inventory, self.tallies, self.notes, instances=True)

    @property
    def stored(self) -> dict[str, dict[str, Any]]:
        """Slices by name."""
        return {one["metadata"]["name"]: one for one in self.server.store.list(COLLECTION, None)}

    @property
    def devices(self) -> dict[str, dict[str, Any]]:
        """Devices by name."""
        return {
            one["name"]: one
            for part in self.stored.values()
            for one in part["spec"].get("devices", [])
        }

    @property
    def generations(self) -> set[int]:
        """The pool's generations."""
        return {part["spec"]["pool"]["generation"] for part in self.stored.values()}

    @property
    def noted(self) -> str:
        """The notes for operators."""
        return "; ".join(one.message for one in self.notes.said)

    @property
    def published(self) -> float | None:
        """The metric."""
        return self.tallies.registry.get_sample_value("partage_agent_devices_published")


@contextlib.asynccontextmanager
async def world_of(clock: InstantClock | None = None) -> AsyncIterator[World]:
    """A world beside a fresh server."""
    async with GatedServer() as server:
        server.store.create("/api/v1/nodes", None, {"metadata": {"name": "n1"}})
        patience = ClientSettings(attempts=1, backoff=Backoff(base=0.001, cap=0.01))
        config = Config(ClusterConfig(server.url))
        async with Client(config, settings=patience, clock=clock) as client:
            yield World(server, client)


async def test_slices_that_went_with_their_node_are_of_the_one_that_is_there() -> None:
    """A Node that was deleted and is back has another UID: what names the old one is removed again and again."""
    async with world_of() as world:
        await world.publisher.once(node(card(0)))
        (before,) = {
            part["metadata"]["ownerReferences"][0]["uid"] for part in world.stored.values()
        }
        world.server.store.delete("/api/v1/nodes", None, "n1")
        for name in world.stored:
            world.server.store.delete(COLLECTION, None, name)
        made = world.server.store.create("/api/v1/nodes", None, {"metadata": {"name": "n1"}})

        await world.publisher.once(node(card(0)))

        owners = {part["metadata"]["ownerReferences"][0]["uid"] for part in world.stored.values()}
        assert owners == {made["metadata"]["uid"]} != {before}


async def test_slices_are_written_once_and_then_on_change() -> None:
    """An equal slice is not sent; a change writes every slice with the next generation."""
    async with world_of() as world:
        two = node(card(0), card(1))
        assert await world.publisher.once(two) == 2
        assert len(world.devices) == 52
        assert world.generations == {1}
        assert world.published == 52
        assert await world.publisher.once(two) == 0
        assert await world.another().once(two) == 0
        ill = node(card(0), card(1, healthy=False))
        assert await world.publisher.once(ill) == 2
        assert world.generations == {2}
        assert "taints" in world.devices["gpu-1"]
        assert await world.publisher.once(two) == 2
        assert world.generations == {3}
        assert not world.noted
        owner = world.stored["n1-gpu.partage.io-devices-0"]["metadata"]["ownerReferences"][0]
        assert (
            owner["uid"] == world.server.store.get("/api/v1/nodes", None, "n1")["metadata"]["uid"]
        )


async def test_cards_move_only_where_another_is_to_be_tried_first() -> None:
    """The stored order stays while it is as good as any, also for an agent that starts again."""
    async with world_of() as world:
        three = node(card(0), card(1), card(2))
        whole, used, less = Room(True, 80 * 2**30), Room(False, 900), Room(False, 100)

        def tried() -> list[str]:
            return [name for name in world.devices if "mig" not in name]

        assert await world.publisher.once(three, dict.fromkeys(range(3), whole)) == 3
        assert tried() == ["gpu-0", "gpu-1", "gpu-2"]
        assert await world.publisher.once(three, {0: used, 1: whole, 2: whole}) == 0
        assert await world.publisher.once(three, {0: used, 1: whole, 2: less}) == 3
        assert tried() == ["gpu-2", "gpu-0", "gpu-1"]
        assert world.generations == {2}
        assert await world.another().once(three, {0: used, 1: whole, 2: used}) == 0
        assert await world.publisher.once(three, {0: whole, 1: whole, 2: whole}) == 0
        assert await world.publisher.once(three, {0: whole, 1: used, 2: whole}) == 3
        assert tried() == ["gpu-1", "gpu-2", "gpu-0"]


async def test_a_node_that_grows_and_shrinks_leaves_no_slice() -> None:
    """What is not wanted any more is deleted, in the same step as the others' new generation."""
    async with world_of() as world:
        await world.publisher.once(node(*map(card, range(9))))
        assert len(world.stored) == 2 + 4
        await world.publisher.once(node(card(0)))
        assert sorted(world.stored) == [
            "n1-gpu.partage.io-counters-0",
            "n1-gpu.partage.io-devices-0",
        ]
        assert {part["spec"]["pool"]["resourceSliceCount"] for part in world.stored.values()} == {
            2
        }
        await world.publisher.once(node())
        assert world.stored == {}


async def test_slices_that_somebody_changed_or_removed_are_mended() -> None:
    """A kubelet that starts removes those of its node; the agent leaves those of other drivers alone."""
    async with world_of() as world:
        theirs = {"metadata": {"name": "x"}, "spec": {"driver": "x.io", "nodeName": "n1"}}
        world.server.store.create(COLLECTION, None, theirs)
        older = {
            "metadata": {"name": "old"},
            "spec": {
                "driver": "gpu.partage.io",
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": 7, "resourceSliceCount": 1},
            },
        }
        world.server.store.create(COLLECTION, None, older)
        await world.publisher.once(node(card(0)))
        assert set(world.stored) == {
            "x",
            "n1-gpu.partage.io-counters-0",
            "n1-gpu.partage.io-devices-0",
        }
        assert {
            part["spec"]["pool"]["generation"]
            for name, part in world.stored.items()
            if name != "x"
        } == {8}
        world.server.store.delete(COLLECTION, None, "n1-gpu.partage.io-devices-0")
        assert await world.publisher.once(node(card(0))) == 2
        assert len(world.devices) == 26


@pytest.mark.parametrize("gate", GATES)
async def test_a_gate_that_is_off_is_noticed_before_anything_is_offered(gate: str) -> None:
    """What it would drop is never stored: no share without its amounts, no instance without its counters."""
    async with world_of() as world:
        world.server.off = {gate}
        await world.publisher.once(node(card(0), card(1, healthy=False)))
        names = {
            "DRAConsumableCapacity": set(),
            "DRAPartitionableDevices": {"gpu-0", "gpu-1"},
            "DRADeviceTaints": {"gpu-0", *(name for name in world.devices if "-0-mig-" in name)},
        }[gate]
        assert set(world.devices) == names
        assert gate in world.noted
        told = {
            one["name"] for one in world.publisher.devices(node(card(0), card(1, healthy=False)))
        }
        assert told >= names | ({"gpu-1"} if names else set())  # the kubelet hears of its health
        assert [one.code for one in world.notes.said] == ["ResourceSlices"]
        assert world.published == len(names)
        writes = [seen for seen in world.server.requests if seen.method == "POST"]
        assert [seen.query.get("dryRun") for seen in writes[:2]] == ["All", "All"]
        assert await world.publisher.once(node(card(0), card(1, healthy=False))) == 0


async def test_a_gate_that_is_switched_off_later_takes_everything_back() -> None:
    """What was stored otherwise than it was sent is removed at once, and published again."""
    async with world_of() as world:
        await world.publisher.once(node(card(0)))
        world.server.off = {"DRAPartitionableDevices"}
        await world.publisher.once(node(card(0), card(1)))
        assert world.stored == {}
        assert "stored otherwise" in world.noted
        assert world.published == 0
        await world.publisher.once(node(card(0), card(1)))
        assert set(world.devices) == {"gpu-0", "gpu-1"}
        assert "DRAPartitionableDevices" in world.noted


async def test_a_gate_that_is_switched_on_later_is_noticed() -> None:
    """The note says "until its feature gate is on": no agent needs to be restarted, nor asks at every look."""
    clock = InstantClock()

    async with world_of(clock) as world:
        world.server.off = {"DRAConsumableCapacity"}
        await world.publisher.once(node(card(0)))
        assert world.stored == {}
        world.server.off = set()
        await world.publisher.once(node(card(0)))
        assert world.stored == {}
        await clock.sleep(600)
        await world.publisher.once(node(card(0)))
        assert "gpu-0" in world.devices
        assert world.noted == ""
        probes = [seen for seen in world.server.requests if seen.query.get("dryRun")]
        assert len(probes) == 4
        await clock.sleep(600)
        assert await world.publisher.once(node(card(0))) == 0
        assert len([seen for seen in world.server.requests if seen.query.get("dryRun")]) == 4


async def test_a_writer_who_was_faster_is_found_out() -> None:
    """A conflict is an error of this round; the next one reads and writes."""
    async with world_of() as world:
        await world.publisher.once(node(card(0)))
        world.server.fail(Fault(method="PUT", path="resourceslices", status=409))
        with pytest.raises(KubeError):
            await world.publisher.once(node(card(0, cordoned=True)))
        assert await world.publisher.once(node(card(0, cordoned=True))) == 2
        assert world.generations == {2}


def test_a_server_adds_the_time_of_a_taint() -> None:
    """A slice that differs in that alone counts as the one that was sent."""
    sent = {"devices": [{"taints": [{"key": "a", "effect": "NoSchedule"}]}]}
    stored = {"devices": [{"taints": [{"key": "a", "effect": "NoSchedule", "timeAdded": "now"}]}]}
    assert as_sent(stored) == sent
    assert as_sent({**stored, "more": 1}) != sent


async def test_a_slice_that_another_keeps_is_not_fought_over_without_an_end() -> None:
    """Tried again after a second, and then at longer and longer intervals."""
    clock = InstantClock()

    async with world_of(clock) as world:
        await world.publisher.once(node(card(0)))
        (name,) = (one for one in world.stored if one.endswith("devices-0"))
        theirs = world.stored[name] | {"spec": {**world.stored[name]["spec"], "driver": "theirs"}}
        for one in world.stored:
            world.server.store.delete(COLLECTION, None, one)
        world.server.store.create(COLLECTION, None, theirs)
        clock.slept.clear()
        world.publisher.take(node(card(0)), {})
        task = asyncio.create_task(world.publisher.run())
        async with asyncio.timeout(240):
            while 4 not in clock.slept:  # noqa: ASYNC110 # the clock has no event for it
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait((task,))

        looks = 30  # the wait for the next look, which a conflict ends
        assert [one for one in clock.slept if one != looks][:4] == [1, 2, 3, 4]


async def test_publishing_goes_on_until_it_is_cancelled() -> None:
    """A node that is taken is published, and so is one that is taken later; an error before that is got over."""
    async with world_of(InstantClock()) as world:
        world.server.fail(Fault(path="resourceslices", status=500))
        world.publisher.take(node(card(0)), {})
        task = asyncio.create_task(world.publisher.run())
        try:
            async with asyncio.timeout(240):
                while not world.devices:  # noqa: ASYNC110 # the server has no event for it
                    await asyncio.sleep(0.01)
                world.publisher.take(replace(node(card(0)), devices=(card(0), card(1))), {})
                while len(world.devices) < 52:  # noqa: ASYNC110 # as above
                    await asyncio.sleep(0.01)
            assert world.server.struck
        finally:
            task.cancel()
            await asyncio.wait((task,))
