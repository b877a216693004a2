"""Statements on limits: metric, condition, eviction; and what is used, as series."""

import asyncio
import contextlib
import os
import re
import shutil
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from claims_world import until
from msgspec.structs import replace
from prometheus_client import generate_latest

from fakes.clock import SteppedClock
from partage.agent.adjustment import beyond
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.discovery.found import CardUse, Found, InstanceUse, Inventory
from partage.agent.held_allocations import Holding
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.isolation import node_scan, processes
from partage.agent.isolation.account import ACCOUNT_BYTES, PLACES_AT
from partage.agent.isolation.container_dirs import Room, Rooms
from partage.agent.isolation.library import as_mapped
from partage.agent.isolation.node_scan import RoomView, Seen, see
from partage.agent.isolation.providers import Isolation, NoIsolation, OwnLibrary
from partage.agent.isolation.seats import SEAT_BYTES, SEAT_MAGIC, seat_file
from partage.agent.isolation.statements import Answer, Statement, survey, untried
from partage.agent.journal import Journal
from partage.agent.metrics import MOST, Books, Nameless, NodeSeries, Tallies
from partage.agent.nri.messages import Container, PodSandbox
from partage.agent.nri.plugin import PluginOptions
from partage.agent.uses import DriverMeter, Meter, Use, told_by_drivers
from partage.apiserver import ApiServer, serve
from partage.daemon.agent import AgentDaemon, AgentOptions, IsolationOptions
from partage.daemon.isolation_status import Statements, condition_of
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.vendors.wishes import Policy
from partage.wire.context import Context
from partage.wire.record import encode

GIB = 2**30
CARD = model.Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", model="T4", memory_bytes=16 * GIB)
NODE = Node("n1", devices=(CARD,))
SHARE = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, 4 * GIB, GrantMode.SHARE, protocol="qgpu")
ELF = struct.pack("<16sHHIQQQIHHH", b"\x7fELF\2\1\1", 2, 62, 1, 0, 64, 0, 0, 64, 56, 0) + bytes(64)
"""A statically linked program for x86-64, as far as the agent reads it."""


class World:
    """A node's agent without its process, its pods in an API server, its process table in a folder."""

    def __init__(self, folder: Path, server: ApiServer, client: Client | None) -> None:
        self.server, self.proc = server, folder / "table"
        self.root = folder / "host"
        (self.root / "dev").mkdir(parents=True)
        (self.root / "dev/nvidia0").symlink_to("/dev/null")
        boot = folder / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("one\n")
        (folder / "built.so").write_bytes(b"the library")
        self.proc.mkdir()
        self.rooms = Rooms(folder / "built.so", self.root / "state", "/state", folder)
        self.provider: OwnLibrary | NoIsolation = OwnLibrary(compute=True)
        self.tallies = Tallies()
        self.keeper = Keeper(
            self._place,
            Host(self.root),
            Journal(folder / "journal"),
            self.tallies,
            Isolation(self.rooms, proc=self.proc),
        )
        self.client = client
        self.clock = 100.0
        self.meter = Meter(lambda: self.clock)

    def _place(self) -> Place:
        facts = HostFacts(lambda _pod, _card, _mig: Instance(), provider=self.provider)
        return Place(NODE, Settings(), FAMILIES, facts)

    async def run_pod(self, name: str) -> str:
        """A pod with a share, its container given; the container's identity."""
        spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "i"}]}
        record = await self.server.create(
            "pods", {"metadata": {"name": name}, "spec": spec}, namespace="team"
        )
        uid = record.value["metadata"]["uid"]
        said = {names.ALLOCATION: encode(Allocation(uid, "team", name, "n1", (SHARE,)))}
        pod = PodSandbox(f"s-{name}", name, uid, "team", annotations=said)
        self.keeper.create(pod, Container(f"container-{name}", f"s-{name}", "main"))
        return f"container-{name}"

    def process(
        self, pid: int, container: str, *, outside: bool = False, another: bool = False
    ) -> None:
        """A process of a container that uses the card: under the library, outside, or with another file there."""
        home = self.proc / str(pid)
        (home / "fd").mkdir(parents=True)
        (home / "root/etc").mkdir(parents=True)
        (home / "cgroup").write_text(f"0::/kubepods/x/cri-containerd-{container}.scope\n")
        (home / "environ").write_bytes(b"A=b\0")
        (home / "exe").write_bytes(ELF)
        room = self.rooms.rooms[container]
        (home / "root/etc/ld.so.preload").write_text(f"{room.inside}\n")
        maps = ["7f00-7f01 r-xp 0 00:00 1 /usr/lib/libcuda.so.1"]
        if not outside:
            device, inode = as_mapped(room.folder / room.library) or ("", "")
            inode = "2" if another else inode
            maps.append(f"7f02-7f03 r-xp 0 {device} {inode} {room.inside}")
        (home / "maps").write_text("\n".join(maps) + "\n")

    def statements(self, *, evict: bool = False) -> Statements:
        """The loop that looks after limits."""
        settings = IsolationOptions(period=0.01, evict=evict)
        return Statements(
            self.keeper, self.tallies, self.meter, self.client, settings, proc=self.proc
        )

    def condition(self, pod: str) -> dict[str, Any]:
        """The condition of a pod; empty without one."""
        record = self.server.store.get("pods", "team", pod)
        found = (record.value.get("status") or {}).get("conditions") or () if record else ()
        return next((one for one in found if one["type"] == names.LIMITS_CONDITION), {})

    def metrics(self) -> str:
        """What is served."""
        return generate_latest(self.tallies.registry).decode()


@contextlib.asynccontextmanager
async def world_of(folder: Path) -> AsyncIterator[World]:
    """A world beside a fresh server."""
    server = ApiServer()
    await server.create("nodes", {"metadata": {"name": "n1"}})
    await server.create("namespaces", {"metadata": {"name": "team"}})
    async with (
        asyncio.timeout(240),
        serve(server) as url,
        Client(Config(ClusterConfig(url)), environ={}) as client,
    ):
        yield World(folder, server, client)


async def test_a_pod_says_that_its_limits_are_in_force_and_then_why_not(tmp_path: Path) -> None:
    """Condition and metric; the change of status has a time of its own."""
    async with world_of(tmp_path) as world:
        container = await world.run_pod("train")
        world.process(7, container)
        task = asyncio.create_task(world.statements().run())
        await until(lambda: world.condition("train").get("status") == "True")
        series = 'partage_agent_limits_in_force{container="main",namespace="team",pod="train",provider="partage"}'
        assert f"{series} 1.0" in world.metrics()

        world.process(8, container, outside=True)

        await until(lambda: world.condition("train").get("status") == "False")
        said = world.condition("train")
        assert said["reason"] == "ProcessOutside"
        assert said["message"].startswith(
            "container main: process 8 uses a card outside: statically"
        )
        await until(lambda: f"{series} 0.0" in world.metrics())
        assert "partage_agent_limits_not_in_force 1.0" in world.metrics()
        task.cancel()


async def test_another_file_at_the_librarys_path_is_not_the_library(tmp_path: Path) -> None:
    """The path says nothing: a tenant with a mount namespace of its own puts there what it likes."""
    async with world_of(tmp_path) as world:
        container = await world.run_pod("train")
        world.process(7, container, another=True)
        rooms = world.rooms.rooms
        (said,) = survey(world.keeper.entries, rooms, see(rooms, world.proc))
        assert (said.answer, said.cause) == (Answer.NO, "ProcessOutside")
        assert said.message.endswith("another file at the library's path")


async def test_a_container_that_ends_during_a_look_has_no_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are removed with it, which is no fault of its own."""
    async with world_of(tmp_path) as world:
        for name in ("ends", "stays"):
            world.process(ord(name[0]), await world.run_pod(name))
        genuine = node_scan.read_room

        def ends(room: Room, processes: Iterable[Seen] = ()) -> RoomView:
            if room.folder.name == "container-ends":
                world.keeper.remove(Container("container-ends", "s-ends", "main"))
            return genuine(room, processes)

        monkeypatch.setattr(node_scan, "read_room", ends)
        said = world.statements()._look()
        assert [(one.name, one.pod, one.answer) for one in said] == [
            ("main", "team/stays", Answer.YES)
        ]


async def test_a_table_of_processes_that_is_too_long_hides_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies beyond its end is unknown: not in force, and nothing that a lowered share frees."""
    async with world_of(tmp_path) as world:
        container = await world.run_pod("train")
        world.process(7, container, outside=True)
        rooms = world.rooms.rooms
        for most, answer in ((processes._TABLE, Answer.NO), (2000, Answer.UNKNOWN)):
            monkeypatch.setattr(processes, "_TABLE", most)
            (said,) = survey(world.keeper.entries, rooms, see(rooms, world.proc))
            assert said.answer is answer
            assert ("more processes" in beyond(rooms, {}, world.proc)) is (answer is not Answer.NO)


async def test_who_computes_past_the_library_is_told(tmp_path: Path) -> None:
    """A copy of the driver under another name: the library is mapped, and the account has no process."""
    async with world_of(tmp_path) as world:
        world.process(7, await world.run_pod("train"))
        home = world.proc / "7"
        (home / "status").write_text("NSpid:\t7\t1\n")
        (home / "stat").write_text(f"7 (a) S {'0 ' * 18}5 0\n")
        (home / "fd/3").symlink_to("/dev/nvidia-uvm")
        with (home / "maps").open("a") as maps:
            maps.write("7f04-7f05 rw-s 0 00:05 9 /dev/nvidia0\n")
        task = asyncio.create_task(world.statements().run())
        await until(lambda: world.condition("train").get("reason") == "ProcessOutside")
        task.cancel()
        assert "process 7 (a) computes" in world.condition("train")["message"]


async def _looked(world: World) -> Statements:
    """Statements of a container with a process that only the driver reports on the card."""
    world.process(7, await world.run_pod("train"))
    home = world.proc / "7"
    (home / "status").write_text("NSpid:\t7\t1\n")
    (home / "stat").write_text(f"7 (a) S {'0 ' * 18}5 0\n")
    looked = world.statements()
    found = Inventory((Found(CARD, use=CardUse(1, processes={7: 1})),))
    looked._found = lambda: found
    return looked


async def test_one_look_reads_everything_once(tmp_path: Path) -> None:
    """Many parts judge what one look read: tables of processes are long, and what they say is of one moment."""
    opened: Counter[str] = Counter()
    on = True

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if on and event in {"open", "os.listdir", "os.scandir"}:
            opened[str(arguments[0])] += 1

    async with world_of(tmp_path) as world:
        looked = await _looked(world)
        sys.addaudithook(hear)  # there is no taking it away again
        try:
            looked._look()
        finally:
            on = False

    names = {Path(name).name for name in opened if name.startswith(str(tmp_path))}
    assert {"table", "cgroup", "status", "stat", "fd", "maps", "account", "limits"} <= names
    twice = {
        name for name, count in opened.items() if count > 1 and name.startswith(str(tmp_path))
    }
    # The library is read, and mapped to learn how the kernel names it; the group is read again to check
    # that the number is still its own.
    assert {Path(name).name for name in twice if not name.endswith(".so")} <= {"cgroup"}


async def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    """An agent that starts again writes nothing either."""
    async with world_of(tmp_path) as world:
        world.process(7, await world.run_pod("train"))
        first = asyncio.create_task(world.statements().run())
        await until(lambda: world.condition("train"))
        first.cancel()
        record = world.server.store.get("pods", "team", "train")
        assert record is not None
        version = record.value["metadata"]["resourceVersion"]

        world.tallies = Tallies()  # of an agent that starts again
        again = world.statements()
        second = asyncio.create_task(again.run())
        await until(lambda: again._written)  # it has compared
        second.cancel()

        record = world.server.store.get("pods", "team", "train")
        assert record is not None
        assert record.value["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize("evict", [True, False])
async def test_a_pod_that_is_not_held_is_evicted_where_that_is_the_rule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, evict: bool
) -> None:
    """It is evicted after three looks, and the log says so once while it ends; without the rule it stays."""
    async with world_of(tmp_path) as world:
        good, bad = await world.run_pod("good"), await world.run_pod("bad")
        world.process(7, good)
        world.process(8, bad, outside=True)
        looked = world.statements(evict=evict)
        task = asyncio.create_task(looked.run())

        def gone() -> bool:
            record = world.server.store.get("pods", "team", "bad")
            return record is None or "deletionTimestamp" in record.value["metadata"]

        if evict:
            await until(gone)
        await until(lambda: looked._odd.get(bad, 0) > 8)  # many looks
        assert gone() is evict
        assert caplog.text.count("pod team/bad: evicted") == evict
        record = world.server.store.get("pods", "team", "good")
        assert record is not None
        assert "deletionTimestamp" not in record.value["metadata"]
        task.cancel()


async def test_a_pod_is_not_evicted_before_its_condition_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks go on while the API server is slow, and what they find is written before it has consequences."""
    async with world_of(tmp_path) as world:
        first, second = await world.run_pod("first"), await world.run_pod("second")
        world.process(7, first)
        world.process(8, second)
        looked, slow = world.statements(evict=True), asyncio.Event()
        get, evict, found = world.client.get, world.client.evict, []

        async def waits(kind: Any, name: str, **more: Any) -> Any:
            if name == "first":
                await slow.wait()
            return await get(kind, name, **more)

        async def notes(namespace: str, name: str, **more: Any) -> None:
            found.append((name, world.condition(name).get("status")))
            await evict(namespace, name, **more)

        monkeypatch.setattr(world.client, "get", waits)
        monkeypatch.setattr(world.client, "evict", notes)
        task = asyncio.create_task(looked.run())
        await until(lambda: len(looked.said) == 2)
        world.process(9, second, outside=True)
        await until(lambda: looked._odd.get(second, 0) > 3)
        slow.set()
        await until(lambda: bool(found))

        assert found[0] == ("second", "False")
        task.cancel()


async def test_no_look_waits_for_an_api_server_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that tenants grow are cut, and contexts measured, meanwhile."""
    async with world_of(tmp_path) as world:
        await world.run_pod("train")
        asked, looks = asyncio.Event(), 0

        async def silent(*_arguments: object, **_named: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        def looking() -> list[Statement]:
            nonlocal looks
            looks += 1
            return genuine()

        monkeypatch.setattr(world.client, "get", silent)
        looked = world.statements()
        genuine = looked._look
        monkeypatch.setattr(looked, "_look", looking)
        task = asyncio.create_task(looked.run())
        await asked.wait()
        before = looks
        await until(lambda: looks > before + 3)
        task.cancel()


async def test_a_refused_eviction_is_not_called_a_condition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says what the API server did not allow, and says it once. Not every look tries again: the budget is the tenant's."""
    async with world_of(tmp_path) as world:
        await world.server.create(
            "poddisruptionbudgets.policy",
            {"metadata": {"name": "all"}, "spec": {"selector": {}, "minAvailable": 1}},
            namespace="team",
        )
        status = {"status": {"disruptionsAllowed": 0}}
        await world.server.patch(
            "poddisruptionbudgets.policy", "team", "all", status, sub="status"
        )
        bad = await world.run_pod("bad")
        await world.server.patch(
            "pods", "team", "bad", {"status": {"phase": "Running"}}, sub="status"
        )
        world.process(8, bad, outside=True)
        clock = world.client.clock = SteppedClock()
        evict, tried = world.client.evict, []

        async def counted(*args: Any, **more: Any) -> None:
            tried.append(args)
            await evict(*args, **more)

        monkeypatch.setattr(world.client, "evict", counted)
        looked = world.statements(evict=True)
        task = asyncio.create_task(looked.run())
        await until(lambda: "pod team/bad: it cannot be evicted: " in caplog.text)
        await until(lambda: looked._odd.get(bad, 0) > 8)  # many looks
        assert len(tried) == 1  # no time has passed
        await clock.advance(61)
        await until(lambda: len(tried) == 2)
        task.cancel()
        assert "condition" not in caplog.text
        assert caplog.text.count("cannot be evicted") == 1


async def test_a_condition_that_changes_at_each_look_costs_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may start and end such processes all the time. The last state is written nevertheless."""
    async with world_of(tmp_path) as world:
        container = await world.run_pod("train")
        clock = world.client.clock = SteppedClock()
        patch, written = world.client.patch_pod_status, []

        async def counted(namespace: str, name: str, body: Any, **more: Any) -> Any:
            written.append(body)
            return await patch(namespace, name, body, **more)

        monkeypatch.setattr(world.client, "patch_pod_status", counted)
        looked = world.statements()
        task = asyncio.create_task(looked.run())

        def message() -> str:
            return "".join(one.message for one in looked.said)

        for pid in range(8, 18):
            world.process(pid, container, outside=True)
            await until(lambda: f"process {pid} " in message())  # noqa: B023 # called in this round
            await until(lambda: bool(written))
            shutil.rmtree(world.proc / str(pid))
        assert len(written) == 1  # no time has passed
        world.process(18, container, outside=True)
        await until(lambda: "process 18 " in message())
        await clock.advance(61)
        await until(lambda: "process 18 " in world.condition("train").get("message", ""))
        task.cancel()
        assert len(written) == 2


async def test_growth_is_reported_and_use_past_the_library_evicts(tmp_path: Path) -> None:
    """A program that filled its cap loads kernels: reported, with a series. Beyond the slack it is not in force."""
    used = 4 * GIB + GIB // 2

    async with world_of(tmp_path) as world:
        world.process(7, await world.run_pod("train"))
        looked = world.statements(evict=True)
        samples: list[Inventory] = []

        def searched() -> Inventory:
            samples.append(Inventory((Found(CARD, use=CardUse(1, processes={7: used})),)))
            return samples[-1]

        looked._found = searched
        task = asyncio.create_task(looked.run())
        series = (
            'partage_agent_memory_beyond_grant_bytes{container="main",device_uuid="GPU-0",'
            'namespace="team",pod="train"}'
        )
        await until(lambda: "beyond its memory" in world.condition("train").get("message", ""))
        condition = world.condition("train")
        assert (condition["status"], condition["reason"]) == ("True", "InForce")
        assert f"{series} 5.36870912e+08" in world.metrics()
        samples.clear()
        await until(lambda: len(samples) > 5)
        assert not looked._odd
        assert not _is_ended(world, "train")

        used = 5 * GIB + 1
        await until(lambda: world.condition("train")["reason"] == "MemoryBeyondCap")
        await until(lambda: _is_ended(world, "train"))

        used = 0
        await until(lambda: series not in world.metrics())
        task.cancel()


def _is_ended(world: World, pod: str) -> bool:
    record = world.server.store.get("pods", "team", pod)
    return record is None or "deletionTimestamp" in record.value["metadata"]


async def test_who_works_on_a_card_by_the_drivers_report_alone_is_outside(tmp_path: Path) -> None:
    """Its open files and mappings have other names, or none."""
    async with world_of(tmp_path) as world:
        looked = await _looked(world)

        said = [looked._look()[0] for _ in range(4)]

        assert [one.answer for one in said] == [*[Answer.YES] * 3, Answer.NO]
        assert (said[-1].cause, "by the driver's report" in said[-1].message) == (
            "ProcessOutside",
            True,
        )


async def test_shares_without_isolation_are_reported_as_such(tmp_path: Path) -> None:
    """`--isolation none`."""
    async with world_of(tmp_path) as world:
        world.provider = NoIsolation()
        await world.run_pod("train")
        task = asyncio.create_task(world.statements().run())
        await until(lambda: world.condition("train"))
        task.cancel()
        said = world.condition("train")
        assert (said["status"], said["reason"]) == ("False", "NoIsolation")


@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 10), Path.unlink])
@pytest.mark.parametrize(
    ("name", "reason"),
    [("account", "AccountChanged"), ("limits", "LimitsChanged"), ("seat", "SeatChanged")],
)
async def test_what_was_tampered_with_is_named(
    tmp_path: Path, name: str, reason: str, damage: Callable[[Path], object]
) -> None:
    """Cut off or removed, under the agent's own eyes: it goes on, and says so, without a path of the node."""
    async with world_of(tmp_path) as world:
        container = await world.run_pod("train")
        room = world.rooms.rooms[container]
        (card,) = room.limits.cards
        folder = room.seats_of(card)
        assert folder is not None
        path = {
            "account": room.account,
            "limits": room.folder / "limits",
            "seat": seat_file(folder, card.slot),
        }[name]
        path.chmod(0o600)
        damage(path)
        task = asyncio.create_task(world.statements().run())
        await until(lambda: world.condition("train"))
        assert world.condition("train")["reason"] == reason
        assert str(tmp_path) not in world.condition("train")["message"]
        task.cancel()


def _said(name: str, answer: Answer, message: str = "m") -> Statement:
    return Statement(f"c-{name}", "u", "team/train", name, "partage", answer, "Cause", message)


def test_a_condition_is_as_bad_as_its_worst_container() -> None:
    """It names those containers."""
    parts = [
        _said("a", Answer.YES),
        _said("b", Answer.NO, "no b"),
        _said("c", Answer.UNKNOWN),
        _said("d", Answer.NO, "x" * 2000),
    ]

    said = condition_of(parts)

    assert said["status"] == "False"
    assert said["message"].startswith("container b: no b; container d: xxx")
    assert len(said["message"]) == 1000
    assert condition_of([_said("a", Answer.YES), _said("c", Answer.UNKNOWN)])["status"] == (
        "Unknown"
    )


@pytest.mark.parametrize(
    ("driver", "tried", "said"),
    [
        (
            "580.82.07",
            (),
            "driver 580.82.07: Partage's library was not tried on branch 580 (tried: none yet)",
        ),
        ("590.1", (580, 570), "branch 590, which is newer than all that were (tried: 570, 580)"),
        ("550.1", (580, 570), "branch 550 (tried: 570, 580)"),
        ("580.82.07", (580,), ""),
        ("", (), ""),
        ("odd", (), ""),
    ],
    ids=["nothing tried", "newer", "older", "tried", "not known", "no number"],
)
def test_a_driver_that_nobody_tried_is_named(
    driver: str, tried: tuple[int, ...], said: str
) -> None:
    """The note names what was tried."""
    found = untried(driver, tried)

    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize("compute", [True, False])
async def test_a_pod_without_a_quota_says_that_its_compute_is_not_held(
    tmp_path: Path, *, compute: bool
) -> None:
    """It asked for half of the compute under `best-effort`: its limits are in force, and that half is none of them."""
    async with world_of(tmp_path) as world:
        world.provider = OwnLibrary(compute=compute)
        world.process(7, await world.run_pod("train"))
        looking = asyncio.create_task(world.statements().run())
        await until(lambda: world.condition("train"))
        condition = world.condition("train")
        assert SHARE.core_milli
        assert (condition["status"], condition["reason"]) == ("True", "InForce")
        assert "compute is best-effort, so it has no enforced quota" in condition["message"]
        looking.cancel()


async def test_a_pod_says_that_its_cards_driver_was_not_tried(tmp_path: Path) -> None:
    """The condition that `explain` prints says so beside its limits; the node's notes say it too."""
    async with world_of(tmp_path) as world:
        container = await world.run_pod("train")
        world.process(7, container)
        looked = world.statements()
        looked._found = lambda: Inventory((Found(CARD, driver="999.1"),))
        task = asyncio.create_task(looked.run())
        await until(lambda: world.condition("train"))
        said = world.condition("train")
        assert (said["status"], said["reason"]) == ("True", "InForce")
        assert "no enforced quota; driver 999.1: Partage's library was not" in said["message"]
        assert [note.code for note in looked._notes.said] == ["DriverUntried"]

        looked._found = lambda: Inventory((Found(CARD, driver="580.1"),))
        await until(lambda: "driver" not in world.condition("train")["message"])
        assert not looked._notes.said

        world.process(8, container, outside=True)
        await until(lambda: world.condition("train")["status"] == "False")
        assert "driver" not in world.condition("train")["message"]
        task.cancel()


async def test_the_log_tells_once_of_a_driver_that_nobody_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent may search the node any number of times; of cards without that driver it says nothing."""
    async with world_of(tmp_path) as world:
        looked = world.statements()
        other = model.Device(DeviceType.GPU, 1, "GPU-1", vendor="amd", memory_bytes=GIB)
        for _ in range(3):
            found = Inventory((Found(CARD, driver="999.1"), Found(other, driver="6.0")))
            looked._found = lambda found=found: found  # type: ignore[misc]
            looked._look()

    warned = [one.getMessage() for one in caplog.records if "was not tried" in one.getMessage()]
    assert len(warned) == 1
    assert "branch 999" in warned[0]


# --- what is used ----------------------------------------------------------------------------


async def test_device_time_and_memory_are_read_from_rooms(tmp_path: Path) -> None:
    """The rate is that between two looks; a claim beyond the time that passed is cut."""
    async with world_of(tmp_path) as world:
        container = await world.run_pod("train")
        room = world.rooms.rooms[container]

        def served(nanoseconds: int) -> None:
            words = [SEAT_MAGIC, room.limits.container, 0, 0, 0, 0, nanoseconds]
            content = b"".join(word.to_bytes(8, "little") for word in words)
            seat = seat_file(room.seats / "GPU-0", 0)
            seat.write_bytes(content.ljust(SEAT_BYTES, b"\0"))

        with room.account.open("r+b") as account:
            account.seek(PLACES_AT)
            account.write((7 << 42 | 5 << 1).to_bytes(8, "little"))
            account.seek(PLACES_AT + 32)
            account.write((GIB).to_bytes(8, "little"))
            account.seek(PLACES_AT + 32 + 16)
            account.write((GIB // 2).to_bytes(8, "little"))
        served(10**9)
        world.meter.look(world.rooms.rooms, see(world.rooms.rooms, world.proc))
        world.clock += 10
        served(4 * 10**9)
        world.meter.look(world.rooms.rooms, see(world.rooms.rooms, world.proc))
        assert world.meter.uses[container, "GPU-0"] == Use(
            GIB + GIB // 2, 0.3, 4 * 10**9, GIB // 2
        )

        world.clock += 1
        served(10**15)
        world.meter.look(world.rooms.rooms, see(world.rooms.rooms, world.proc))
        assert world.meter.uses[container, "GPU-0"].busy == 1.0
        os.truncate(room.account, ACCOUNT_BYTES - 1)
        world.meter.look(world.rooms.rooms, see(world.rooms.rooms, world.proc))
        assert not world.meter.uses


def _series(books: Books) -> dict[str, float]:
    found = {}
    for family in NodeSeries(lambda: books).collect():
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name}/{labels}"] = sample.value
    return found


def test_cards_pods_and_containers_have_hamis_and_qgpus_series() -> None:
    """Use where it is measured, allocation always."""
    allocation = Allocation("u1", "team", "train", "n1", (SHARE,))
    books = Books(
        NODE,
        [Holding("c1", "main", allocation)],
        {"GPU-0": CardUse(8 * GIB, 0.5, 70_000)},
        {("c1", "GPU-0"): Use(2 * GIB, 0.15, 5 * 10**9, GIB // 2)},
    )

    found = _series(books)

    card, mine = "vGPU,n1,0,GPU-0,NVIDIA-T4", "vGPU,team,train,main,0,GPU-0"
    assert {
        f"hami_host_gpu_memory_used_bytes/{card}": 8 * GIB,
        f"hami_host_gpu_utilization_ratio/{card}": 50,
        f"hami_vgpu_memory_limit_bytes/{mine}": 4 * GIB,
        f"hami_vgpu_memory_used_bytes/{mine}": 2 * GIB,
        f"hami_container_device_utilization_ratio/{mine}": 15,
        "gpu_core_allocated/0,n1": 30,
        "gpu_core_available/0,n1": 70,
        "gpu_mem_allocated/0,n1": 4096,
        "gpu_power_usage/0,n1": 70,
        "pod_core_request/team,n1,train": 30,
        "pod_core_utilization_percentage/team,n1,train": 50,
        "pod_mem_utilization_percentage/team,n1,train": 50,
        "pod_mem_occupy_node_percentage/team,n1,train": 25,
        "container_gpu_memory_total/team,n1,train,main,0": 2048,
        "partage_agent_container_seconds/team,n1,train,main,0": 5,
        "partage_agent_container_overhead_bytes/team,n1,train,main,0": GIB // 2,
    }.items() <= found.items()


def test_drivers_tell_memory_and_time_of_containers_that_no_library_counts(tmp_path: Path) -> None:
    """Their processes count; a container without a visible process, or with a measurement, is left out."""
    for pid, container in ((11, "a" * 12), (12, "a" * 12), (13, "b" * 12), (14, "c" * 12)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/pods/cri-containerd-{container}.scope\n")
    held = [
        Holding(letter * 12, "main", Allocation(f"u{letter}", "team", letter, "n1", (SHARE,)))
        for letter in "abcd"
    ]
    known = {("c" * 12, "GPU-0"): Use(GIB, 0.1, 1)}
    cards = {"GPU-0": CardUse(8 * GIB, processes={11: GIB, 12: 2 * GIB, 14: GIB, 99: GIB})}

    found = told_by_drivers(held, cards, known, tmp_path)

    assert found == {
        ("a" * 12, "GPU-0"): Use(3 * GIB, None, None),
        ("b" * 12, "GPU-0"): Use(0, None, None),
    }
    assert told_by_drivers(held, {"GPU-0": CardUse(8 * GIB)}, {}, tmp_path) == {}
    times = {11: 0.25, 12: 0.5, 99: 0.1}
    cards["GPU-0"] = CardUse(8 * GIB, processes={11: GIB, 12: 2 * GIB}, times=times)
    found = told_by_drivers(held, cards, known, tmp_path)
    assert found["a" * 12, "GPU-0"].busy == 0.75
    assert found["b" * 12, "GPU-0"].busy == 0
    known = {("a" * 12, "GPU-0"): Use(GIB, None, None, overhead_bytes=5), **known}
    assert told_by_drivers(held[:1], cards, known, tmp_path) == {
        ("a" * 12, "GPU-0"): Use(GIB, 0.75, None, overhead_bytes=5)
    }


def test_what_drivers_sample_adds_up_to_device_time(tmp_path: Path) -> None:
    """Samples add up from look to look, for a minute at most; what a container received outlives its processes."""
    (tmp_path / "11").mkdir()
    (tmp_path / "11" / "cgroup").write_text(f"0::/pods/cri-containerd-{'a' * 12}.scope\n")
    clock = [100.0]
    meter = DriverMeter(lambda: clock[0], tmp_path)
    key = ("a" * 12, "GPU-0")
    held = [Holding("a" * 12, "main", Allocation("ua", "team", "a", "n1", (SHARE,)))]

    def seconds(
        at: float, busy: float | None, *, here: bool = True, known: bool = False
    ) -> object:
        clock[0] = at
        times = None if busy is None else {11: busy}
        cards = {"GPU-0": CardUse(8 * GIB, processes={11: GIB}, times=times)}
        counted = {key: Use(GIB, 0.9, 77)} if known else {}
        meter.look(held if here else (), cards, counted)
        use = meter.uses.get(key)
        return use and use.served_ns and use.served_ns / 1e9

    assert seconds(100, 0.5) == 0  # one look is no time
    assert seconds(110, 0.5) == 5
    assert seconds(114, 0.25) == 6
    assert seconds(1114, 0.5) == 36  # nothing was seen for long
    assert seconds(1120, None) is None  # the driver tells no times: nothing is made up
    assert seconds(1130, 1.0) == 46
    assert seconds(1140, 1.0, known=True) is None  # the library counts it
    (tmp_path / "11" / "cgroup").write_text("0::/\n")
    assert seconds(1150, 1.0) is None
    (tmp_path / "11" / "cgroup").write_text(f"0::/pods/cri-containerd-{'a' * 12}.scope\n")
    assert seconds(1160, 1.0) == 56
    assert seconds(1161, 1.0, here=False) is None
    assert seconds(1171, 1.0) == 10


def test_what_instances_did_is_their_containers(tmp_path: Path) -> None:
    """As a part of the card, once for each measurement, and from the first on that the container was there for all of.

    A container gets no figure where another has its instance too, or where one of its instances has none.
    """
    for pid, letter in ((11, "a"), (12, "b")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(
            f"0::/pods/cri-containerd-{letter * 12}.scope\n"
        )
    clock = [100.0]
    meter = DriverMeter(lambda: clock[0], tmp_path)

    def holding(letter: str, *places: tuple[int, int]) -> Holding:
        grants = tuple(
            replace(SHARE, core_milli=250, mig=MigSlice(f"{size}g", start, size))
            for start, size in places
        )
        return Holding(letter * 12, "main", Allocation(f"u{letter}", "team", letter, "n1", grants))

    def looked(at: float, held: list[Holding], told: dict[tuple[int, int], InstanceUse]) -> object:
        clock[0] = at
        meter.look(held, {"GPU-0": CardUse(1, processes={}, instances=told)}, {})
        uses = [meter.uses.get((letter * 12, "GPU-0")) for letter in "ab"]
        return [use and (use.busy, use.served_ns and use.served_ns / 1e9) for use in uses]

    both = [holding("a", (0, 1), (1, 1)), holding("b", (4, 4))]
    early = dict.fromkeys(((0, 1), (1, 1), (4, 4)), InstanceUse(1.0, 90, 150))
    assert looked(155, both, early) == [(None, None), (None, None)]
    first = {
        (0, 1): InstanceUse(0.5, 160, 200),
        (1, 1): InstanceUse(0.25, 160, 200),
        (4, 4): InstanceUse(1.0, 160, 200),
    }
    assert looked(205, both, first) == [(0.1875, 7.5), (0.25, 10)]
    assert looked(215, both, first) == [(0.1875, 7.5), (0.25, 10)]
    idle = dict.fromkeys(first, InstanceUse(0.0, 200, 260))
    assert looked(265, both, idle) == [(0, 7.5), (0, 10)]
    partly = {(0, 1): InstanceUse(1.0, 260, 300), (4, 4): InstanceUse(1.0, 260, 300)}
    assert looked(305, both, partly) == [(None, None), (0.25, 20)]
    shared = [holding("a", (4, 4)), holding("b", (4, 4))]
    assert looked(365, shared, dict.fromkeys(first, InstanceUse(1.0, 300, 360))) == [
        (None, None),
        (None, None),
    ]
    busy = dict.fromkeys(first, InstanceUse(1.0, 360, 400))
    assert looked(405, both, busy) == [(0.5, 27.5), (0.25, 30)]


async def test_drivers_are_looked_at_without_a_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples that nothing took in would be lost."""
    enough, stop, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    looks: list[object] = []

    def look(_self: DriverMeter, *given: object) -> None:
        looks.append(given)
        if len(looks) == 3:
            loop.call_soon_threadsafe(enough.set)

    monkeypatch.setattr(DriverMeter, "look", look)
    options = AgentOptions(
        tmp_path / "journal",
        plugin=PluginOptions(tmp_path / "nri.sock"),
        isolation=IsolationOptions(period=0.001),
        roots=Host(tmp_path, simulated=True),
    )
    agent = AgentDaemon(NODE, Context.of(Settings(), FAMILIES), options)
    task = asyncio.create_task(agent.run(stop))
    await enough.wait()
    stop.set()
    await task


def test_a_tenant_joins_series_of_other_exporters() -> None:
    """Its labels name a card as NVIDIA's exporter does; two parts of one card stay apart."""
    cut = replace(SHARE, mode=GrantMode.MIG, mig=MigSlice("1g.5gb", 4, 1))
    allocation = Allocation("u1", "team", "train", "n1", (cut, SHARE))
    books = Books(NODE, [Holding("c1", "main", allocation)], {}, {})
    found = [name for name in _series(books) if name.startswith("partage_agent_tenant_info")]
    assert found == [
        "partage_agent_tenant_info/GPU-0,0,n1,team,train,main,0,qgpu,mig,1g.5gb",
        "partage_agent_tenant_info/GPU-0,0,n1,team,train,main,1,qgpu,share,",
    ]
    assert _twice(books) == []


def test_nameless_series_name_no_pod() -> None:
    """Cards and sums stay."""
    allocation = Allocation("u1", "team", "train", "n1", (SHARE,))
    books = Books(
        NODE,
        [Holding("c1", "main", allocation)],
        {"GPU-0": CardUse(8 * GIB, 0.5, 70_000)},
        {("c1", "GPU-0"): Use(2 * GIB, 0.15, 5 * 10**9, GIB // 2)},
    )

    told = generate_latest(Nameless(NodeSeries(lambda: books))).decode()

    assert "gpu_core_allocated" in told
    assert "hami_host_gpu_memory_used_bytes" in told
    assert not {"team", "train", "main"} & set(re.findall(r'"([^"]*)"', told))


def test_what_nobody_measures_has_no_series() -> None:
    """A zero would be a false measurement."""
    allocation = Allocation("u1", "team", "train", "n1", (SHARE,))
    found = _series(Books(NODE, [Holding("c1", "main", allocation)], {}, {}))

    assert not [
        name
        for name in found
        if "used" in name or "usage" in name or "util" in name
        if not name.startswith("container_request")
    ]
    assert found["hami_vgpu_memory_limit_bytes/vGPU,team,train,main,0,GPU-0"] == 4 * GIB


def test_the_number_of_series_is_bounded() -> None:
    """What is left out is counted; nothing grows with it."""
    held = [
        Holding(
            f"c{number}", "main", Allocation(f"u{number}", "team", f"p{number}", "n1", (SHARE,))
        )
        for number in range(MOST + 5)
    ]
    found = _series(Books(NODE, held, {}, {}))

    assert found["partage_agent_containers_left_out/"] == 5
    assert len([name for name in found if name.startswith("hami_vgpu_memory_limit")]) == MOST


def _twice(books: Books) -> list[str]:
    """Series that are there more than once."""
    seen = [
        (sample.name, *sorted(sample.labels.items()))
        for family in NodeSeries(lambda: books).collect()
        for sample in family.samples
    ]
    return sorted({str(one) for one in seen if seen.count(one) > 1})


def test_a_pod_and_its_successor_of_the_same_name_have_one_series() -> None:
    """Both are here for a while: both count on the card, the newer one is shown."""
    books = Books(
        NODE,
        [
            Holding("c1", "main", Allocation("u1", "team", "db-0", "n1", (SHARE,))),
            Holding("c1b", "side", Allocation("u1", "team", "db-0", "n1", (SHARE,))),
            Holding("c2", "main", Allocation("u2", "team", "db-0", "n1", (SHARE,))),
        ],
        {},
        {("c1", "GPU-0"): Use(GIB, 0.1, 1), ("c2", "GPU-0"): Use(2 * GIB, 0.1, 1)},
    )

    found = _series(books)

    assert _twice(books) == []
    assert found["gpu_core_allocated/0,n1"] == 60
    assert found["pod_core_request/team,n1,db-0"] == 30
    assert found["container_gpu_memory_total/team,n1,db-0,main,0"] == 2048


def test_two_parts_of_a_card_are_one_series() -> None:
    """Two instances of one card: grants are added up, and use is reported once."""
    halves = (SHARE, replace(SHARE, memory_bytes=2 * GIB))
    allocation = Allocation("u1", "team", "train", "n1", halves)
    uses = {("c1", "GPU-0"): Use(GIB, 0.1, 1)}
    books = Books(NODE, [Holding("c1", "main", allocation)], {}, uses)

    found = _series(books)

    assert _twice(books) == []
    assert found["container_request_gpu_memory/team,n1,train,main,0"] == 6 * 1024
    assert found["pod_mem_usage/team,n1,train"] == 1024


async def test_a_quota_of_compute_that_the_node_does_not_enforce_is_told_and_not_acted_on(
    tmp_path: Path,
) -> None:
    """Memory is held; the pod runs on, and its condition and a metric of its own name what is not enforced."""
    async with world_of(tmp_path) as world:
        world.provider = OwnLibrary(policy=Policy.FIXED_SHARE)
        world.process(7, await world.run_pod("train"))
        said, looks = world.statements(evict=True), 0

        def searched() -> Inventory:
            nonlocal looks
            looks += 1
            return Inventory()

        said._found = searched
        looking = asyncio.create_task(said.run())
        await until(lambda: world.condition("train"))
        condition = world.condition("train")
        assert (condition["status"], condition["reason"]) == ("False", "NotEnforced")
        assert "Partage's library limits memory, but not compute" in condition["message"]
        before = looks
        await until(lambda: looks > before + 5)  # enough for an eviction
        assert not _is_ended(world, "train")
        looking.cancel()
        series = world.metrics()
        assert 'partage_agent_compute_not_enforced{container="main",namespace="team"' in series
        assert "partage_agent_limits_not_in_force 0.0" in series
