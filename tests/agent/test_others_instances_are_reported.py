"""Instances that others made go from the driver into the Device object, and from there to the scheduler."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mig_world import CARD, World, want

from agent_rounds import once
from fakes.clock import SteppedClock
from fakes.nvml import FakeNvml
from partage.agent.device_document import device_document
from partage.agent.discovery.found import Inventory
from partage.agent.discovery.models import MODELS
from partage.agent.discovery.simulated import SimulatedHardware, simulate
from partage.agent.metrics import Tallies
from partage.agent.mig.cdi import Numbers, Specs
from partage.agent.mig.foreign import on_card, reported
from partage.agent.mig.journal import CardJournal, FileJournals
from partage.agent.mig.nvml import Failure, NvmlFailed
from partage.agent.mig.runner import Node as CardNode
from partage.agent.mig.runner import Outcome
from partage.agent.notes import Notes
from partage.agent.reporting import DEVICES, AgentReporting, ReportingHooks
from partage.apiserver import ApiServer, serve
from partage.daemon.instances import NodeInstances
from partage.embedded.definitions import DEFINITIONS
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.errors import Conflict
from partage.model.device import ForeignInstance
from partage.model.errors import InvalidRecord
from partage.model.mig import MigAxis, MigSlice
from partage.sim.offline import schedule
from partage.vendors import names
from partage.wire.cluster import assemble
from partage.wire.documents import decode
from partage.wire.foreign import OnCard, encode_foreign
from partage.wire.mig_profiles import decode_axes, encode_axes

PATIENCE = 240.0
HIGH = MigSlice("3g.40gb", 4, 4)
Body = dict[str, Any]


# --- from a look at a card to the report ----------------------------------------------------------


def test_only_what_is_not_ours_is_told() -> None:
    """The report has the driver's name of the profile, the place, and the devices in it."""
    world = World()
    world.nvml.foreign("3g.40gb", 4)
    wanted = [want(world, "1g.10gb", 0)]

    told = on_card(world.converge(wanted))

    assert told == OnCard((ForeignInstance(HIGH, ("MIG-1",)),))
    assert world.ours()


def test_one_without_programs_devices_is_told_too() -> None:
    """A GPU instance without a compute instance takes its place all the same."""
    world = World()
    world.nvml.foreign("1g.10gb+me", 6, computes=0)

    assert on_card(world.converge([])).instances == (
        ForeignInstance(MigSlice("1g.10gb+me", 6, 1)),
    )


def test_ours_that_is_still_going_is_not_told_as_anothers() -> None:
    """A pod that ended while its program hangs: the place is ours until the driver releases it."""
    world = World()
    world.converge([want(world, "1g.10gb", 0)])
    (mine,) = world.ours()
    world.nvml.card().busy.add(mine.id)

    outcome = world.runner.settle((), world.now)

    assert outcome.hindrances
    assert on_card(outcome) == OnCard()


def test_a_card_that_cannot_be_looked_at_is_unknown() -> None:
    """A journal that cannot be read, and a driver that does not answer, say why."""
    world = World()

    def unreadable(_card: str) -> CardJournal:
        raise InvalidRecord("journal x cannot be read")

    world.load = unreadable  # type: ignore[method-assign]  # the fake's own way to break
    unread = on_card(world.runner.settle((), world.now))
    silent = on_card(Outcome(fault="nvmlDeviceGetMigMode: the card is lost"))

    assert unread == OnCard(unknown="journal x cannot be read")
    assert silent == OnCard(unknown="nvmlDeviceGetMigMode: the card is lost")


@pytest.mark.parametrize(
    ("model", "pending", "told"),
    [
        ("A100-80GB", False, "MIG mode is off: an operator changes it while the card is idle"),
        (
            "A100-80GB",
            True,
            "MIG mode is off; it is switched on at the next reset: an operator changes it",
        ),
        ("H100-80GB", False, ""),
    ],
)
def test_a_mode_that_an_operator_must_change_is_told(
    model: str, told: str, *, pending: bool
) -> None:
    """Ampere changes it by a reset only; from Hopper on it goes on with the first instance."""
    world = World(model, on=False)
    world.nvml.card().pending = pending

    found = on_card(world.runner.settle((), world.now))

    assert found.uncuttable.startswith(told) if told else not found.uncuttable
    assert not world.log


def test_before_the_first_look_it_stays_as_it_was_told() -> None:
    """An agent that starts closes no card that was open; a card without an earlier report is unknown."""
    before = encode_foreign({"GPU-0": OnCard((ForeignInstance(HIGH),))})

    kept = reported(["GPU-0", "GPU-1"], {}, before, ["GPU-0", "GPU-1"])

    assert kept == {"GPU-0": OnCard((ForeignInstance(HIGH),)), "GPU-1": OnCard()}
    for odd in (None, "{"):
        assert all(one.unknown for one in reported(["GPU-0"], {}, odd, ["GPU-0"]).values())
    assert reported(["GPU-0"], {"GPU-0": Outcome()}, None, ()) == {"GPU-0": OnCard()}


# --- into the Device object -----------------------------------------------------------------------


class Story:
    """A node with two cards, its agent's maker, and an API server."""

    def __init__(
        self, server: ApiServer, client: Client, clock: SteppedClock, at: Path, nvml: FakeNvml
    ) -> None:
        self.server, self.client, self.clock, self.nvml = server, client, clock, nvml
        specs = Specs(at / "cdi")
        node = CardNode(
            self.nvml,
            FileJournals(at / "mig"),
            specs,
            lambda: "1",
            lambda: Numbers(195, 510, 511, {}),
        )
        self.tallies, self.notes = Tallies(), Notes()
        self.instances = NodeInstances(client, "n1", node, specs, self.tallies, notes=self.notes)

    async def discovered(self) -> None:
        """The Device object is made, as discovery makes it."""
        found = simulate(SimulatedHardware("n1", "A100-SXM4-80GB", MODELS["A100-SXM4-80GB"], 2))
        document = device_document("n1", found, None, "2026-01-01T00:00:00Z")
        for minor, one in enumerate(document["spec"]["devices"]):
            one["id"] = f"GPU-{minor}"
        await self.client.create(DEVICES, document, into=Body)

    def series(self, labels: dict[str, str]) -> float | None:
        """The agent's series of one instance."""
        return self.tallies.registry.get_sample_value("partage_agent_instance_info", labels)

    async def told(self) -> Any:
        """The annotation's cards; None without one."""
        device = await self.client.get(DEVICES, "n1", into=Body)
        text = (device["metadata"].get("annotations") or {}).get(names.FOREIGN_INSTANCES)
        return None if text is None else json.loads(text)["cards"]

    async def until(self, wanted: Any) -> None:
        """Let time pass until the annotation says that."""
        while await self.told() != wanted:
            await self.clock.advance(61.0)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def world_of(folder: Path, nvml: FakeNvml | None = None) -> AsyncIterator[Story]:
    """A story beside a fresh server with one Node."""
    server, clock = ApiServer(), SteppedClock()
    for definition in DEFINITIONS:
        await server.create("customresourcedefinitions.apiextensions.k8s.io", definition)
    await server.create("nodes", {"metadata": {"name": "n1"}})
    async with (
        asyncio.timeout(PATIENCE),
        serve(server) as url,
        Client(Config(ClusterConfig(url)), clock=clock) as client,
    ):
        found = Story(server, client, clock, folder, nvml or FakeNvml(cards=2))
        task = asyncio.create_task(found.instances.run())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_the_device_object_follows_the_cards(tmp_path: Path) -> None:
    """A new instance is reported, a removed one is not any more; a card that is lost is unknown."""
    async with world_of(tmp_path) as world:
        await world.discovered()
        await world.until({})
        foreign = world.nvml.foreign("3g.40gb", 4)
        entry = {"profile": "3g.40gb", "start": 4, "size": 4, "uuids": ["MIG-1"]}
        await world.until({CARD: {"instances": [entry]}})
        shown = {
            "card": CARD,
            "profile": "3g.40gb",
            "start": "4",
            "size": "4",
            "mig_uuid": "MIG-1",
            "gpu_instance": "1",
            "compute_instance": "0",
            "pod": "",
            "state": "foreign",
        }
        assert world.series(shown) == 1
        del world.nvml.card().instances[foreign.id]
        await world.until({})
        assert world.series(shown) is None

        def lost(_uuid: str) -> Any:
            raise NvmlFailed("nvmlDeviceGetMigMode", Failure.LOST)

        world.nvml.mode = lost  # type: ignore[method-assign]  # the driver stops answering
        await world.until(
            {
                card: {"unknown": "nvmlDeviceGetMigMode: the card is lost"}
                for card in ("GPU-0", "GPU-1")
            }
        )
        assert [note.message for note in world.notes.said] == [
            f"card {card}: nvmlDeviceGetMigMode: the card is lost" for card in ("GPU-0", "GPU-1")
        ]


async def test_a_card_that_is_lost_as_the_agent_starts_is_unknown(tmp_path: Path) -> None:
    """The other cards work; it is tried again."""
    nvml = FakeNvml(cards=2)
    axis = nvml.axis

    def lost(uuid: str) -> MigAxis:
        if uuid == CARD:
            raise NvmlFailed("nvmlDeviceGetHandleByUUID", Failure.LOST)
        return axis(uuid)

    nvml.axis = lost  # type: ignore[method-assign]  # the fake's own way to break
    async with world_of(tmp_path, nvml) as world:
        await world.discovered()
        await world.until({CARD: {"unknown": "nvmlDeviceGetHandleByUUID: the card is lost"}})
        nvml.axis = axis  # type: ignore[method-assign]  # it is back
        await world.until({})


async def test_a_card_that_the_driver_lists_later_gets_instances_without_a_restart(
    tmp_path: Path,
) -> None:
    """Until then it counts as unknown, in the object and from the write on that makes it known as well."""
    nvml = FakeNvml(cards=2)
    there = nvml.card(CARD)
    del nvml._cards[CARD]
    async with world_of(tmp_path, nvml) as world:
        await world.discovered()
        away = {CARD: {"unknown": "the driver has not listed it to the maker of instances"}}
        await world.until(away)

        nvml._cards[CARD] = there  # it is back
        nvml.foreign("3g.40gb", 4)
        entry = {"profile": "3g.40gb", "start": 4, "size": 4, "uuids": ["MIG-1"]}
        await world.until({CARD: {"instances": [entry]}})
        device = await world.client.get(DEVICES, "n1", into=Body)
        axes, _ = decode_axes(device["metadata"]["annotations"][names.MIG_PROFILES])
        assert set(axes) == {"GPU-0", "GPU-1"}


async def test_a_card_that_is_new_in_the_object_is_written_with_what_is_known_of_it(
    tmp_path: Path,
) -> None:
    """One write has both: no scheduler sees the card without the report of what is on it."""
    nvml = FakeNvml(cards=1)
    async with world_of(tmp_path, nvml) as world:
        card = simulate(SimulatedHardware("n1", "A100-SXM4-80GB", MODELS["A100-SXM4-80GB"], 2))
        one, other = (
            replace(found, device=replace(found.device, uuid=f"GPU-{minor}"))
            for minor, found in enumerate(card.found)
        )
        found = [one]
        reporting = AgentReporting(
            world.client,
            "n1",
            lambda: Inventory(tuple(found)),
            hooks=ReportingHooks(annotated=world.instances.annotations),
        )

        async def reported() -> None:
            """Report until no other writer is first; the maker of instances writes the object too."""
            for _ in range(100):
                with contextlib.suppress(Conflict):
                    await once(reporting)
                    return
            pytest.fail("each report conflicts")

        await reported()
        await world.until({})
        written: list[Body] = []
        world.server.store.observers.append(
            lambda change: written.append(json.loads(json.dumps(change.record.value)))
        )
        found.append(other)
        await reported()

        first = next(one for one in written if len(one.get("spec", {}).get("devices", ())) > 1)
        annotations = first["metadata"]["annotations"]
        assert [card["id"] for card in first["spec"]["devices"]] == ["GPU-0", "GPU-1"]
        told = json.loads(annotations[names.FOREIGN_INSTANCES])["cards"]
        assert told == {
            "GPU-1": {"unknown": "the driver has not listed it to the maker of instances"}
        }


async def test_a_card_that_is_new_in_the_object_is_unknown_before_the_first_look(
    tmp_path: Path,
) -> None:
    """The annotation leaves out clean cards, so the one with the profiles says for which cards it was made."""
    async with world_of(tmp_path) as world:
        before = {
            names.FOREIGN_INSTANCES: encode_foreign({}),
            names.MIG_PROFILES: encode_axes({"GPU-1": world.nvml.axis("GPU-1")}),
        }

        told = world.instances.annotations(before, ())

        cards = json.loads(told[names.FOREIGN_INSTANCES])["cards"]
        assert cards == {"GPU-0": {"unknown": "the agent has not looked at it yet"}}
        assert world.instances.annotations(told, ()) == told


async def test_an_object_that_was_made_anew_is_told_again(tmp_path: Path) -> None:
    """Others' instances are reported again after a user deletes the object; other keys stay as they are."""
    async with world_of(tmp_path) as world:
        world.nvml.foreign("1g.10gb", 2)
        entry = {"profile": "1g.10gb", "start": 2, "size": 1, "uuids": ["MIG-1"]}
        for _ in range(2):
            await world.discovered()
            await world.until({CARD: {"instances": [entry]}})
            device = await world.client.get(DEVICES, "n1", into=Body)
            assert [one["id"] for one in device["spec"]["devices"]] == ["GPU-0", "GPU-1"]
            axes, problem = decode_axes(device["metadata"]["annotations"][names.MIG_PROFILES])
            assert (sorted(axes), problem) == (["GPU-0", "GPU-1"], "")
            assert axes["GPU-1"].positions == world.nvml.axis("GPU-1").positions
            await world.client.delete(DEVICES, "n1")


async def test_a_new_device_object_is_born_with_it(tmp_path: Path) -> None:
    """At no moment does a card count as free before the agent has looked at it."""
    async with world_of(tmp_path) as world:
        found = simulate(SimulatedHardware("n1", "A100-SXM4-80GB", MODELS["A100-SXM4-80GB"], 1))
        seen: list[Any] = []
        world.server.store.observers.append(
            lambda change: (
                seen.append(change.record.metadata.get("annotations"))
                if change.record.name == "n1" and "devices" in change.record.resource
                else None
            )
        )
        search: Callable[[], Inventory] = lambda: found  # noqa: E731 # a two-word function
        reporting = AgentReporting(
            world.client,
            "n1",
            search,
            hooks=ReportingHooks(annotated=world.instances.annotations),
        )
        await once(reporting)
        assert names.FOREIGN_INSTANCES in seen[0]
        assert json.loads(seen[0][names.FOREIGN_INSTANCES])["v"] == 1


# --- and from there to the scheduler --------------------------------------------------------------


def decided(device: Body, memory: int) -> Body:
    """What becomes of a pod that asks the node for one instance with so much memory, in MiB."""
    config = {"nodeconfig": [{"name": "n1", "operatingmode": "mig"}]}
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}
    container = {"name": "main", "resources": {"limits": limits}}
    items: list[Body] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {}},
        {"apiVersion": DEVICES.api_version, "kind": "Device", **device},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "hami-device-plugin", "namespace": "kube-system"},
            "data": {"config.json": json.dumps(config)},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "annotations": {"nvidia.com/vgpu-mode": "mig"}},
            "spec": {"containers": [container]},
        },
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()
    outcome = schedule(assemble([decode("told.json", text)]))
    (found,) = outcome.pods
    refusal = found.refusal
    return {
        "places": [(g.uuid, g.mig) for g in found.allocation.grants] if found.allocation else [],
        "why": refusal.message if refusal is not None else "",
    }


async def test_the_scheduler_keeps_off_what_the_agent_tells(tmp_path: Path) -> None:
    """The driver's instances lead to a refusal with their names; released places are allocated again."""
    async with world_of(tmp_path) as world:
        await world.discovered()
        world.nvml.foreign("3g.40gb", 0)
        second = world.nvml.foreign("1g.20gb", 4, card="GPU-1")
        await world.until(
            {
                CARD: {
                    "instances": [
                        {"profile": "3g.40gb", "start": 0, "size": 4, "uuids": ["MIG-1"]}
                    ]
                },
                "GPU-1": {
                    "instances": [
                        {"profile": "1g.20gb", "start": 4, "size": 2, "uuids": ["MIG-2"]}
                    ]
                },
            }
        )
        device = await world.client.get(DEVICES, "n1", into=Body)
        whole, half = decided(device, 80_000), decided(device, 40_000)
        del world.nvml.card("GPU-1").instances[second.id]
        await world.until(
            {
                CARD: {
                    "instances": [
                        {"profile": "3g.40gb", "start": 0, "size": 4, "uuids": ["MIG-1"]}
                    ]
                }
            }
        )
        freed = decided(await world.client.get(DEVICES, "n1", into=Body), 80_000)

        assert whole["places"] == []
        assert (
            "needs 7g.80gb (start 0), blocked by an instance that partage did not make"
            in (whole["why"])
        )
        assert half["places"] in ([(CARD, HIGH)], [("GPU-1", MigSlice("3g.40gb", 0, 4))])
        assert freed["places"] == [("GPU-1", MigSlice("7g.80gb", 0, 8))]
