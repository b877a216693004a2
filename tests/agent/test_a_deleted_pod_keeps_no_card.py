"""Containers that outlive their pod's forced deletion are killed when others may need their card, and no others."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import InstantClock
from fakes.kube_server import KubeServer
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.host import Host
from partage.agent.injection import Place, Rule
from partage.agent.isolation.processes import kill
from partage.agent.journal import Entry, Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Container, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.daemon import orphans
from partage.daemon.orphans import Orphans
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config, UserConfig
from partage.kube.errors import KubeError
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import encode

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
CARD = Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", memory_bytes=2**34)
OLD, NEW = "c0ffee-of-the-old-pod", "c0ffee-of-the-new-pod"


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends only by a signal."""
    with subprocess.Popen(["/bin/sleep", "1000"]) as process:
        yield process
        process.kill()


@dataclass
class World:
    """One node whose card the container `OLD` of the pod `old` holds."""

    server: KubeServer
    client: Client
    clock: InstantClock
    keeper: Keeper
    orphans: Orphans
    proc: Path

    def runs(self, container: str, *pids: int) -> None:
        """Let the process table have these processes in a container's control group."""
        for pid in pids:
            (self.proc / str(pid)).mkdir(parents=True)
            (self.proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod1/{container}\n")

    def asks(self, name: str = "new", container: str = NEW) -> None:
        """Ask for a container of a pod with the whole card."""
        grant = Grant("main", DeviceType.GPU, 0, "GPU-0", 1000, 2**34, GrantMode.SHARE)
        record = encode(Allocation(f"uid-{name}", "team", name, "n1", (grant,)))
        pod = PodSandbox(f"s-{name}", name, f"uid-{name}", "team", {}, {names.ALLOCATION: record})
        self.keeper.create(pod, Container(container, f"s-{name}", "main"))

    def refused(self) -> None:
        """Let the node refuse a container because its card is full."""
        with pytest.raises(Refused, match=Rule.CARD_FULL):
            self.asks()

    async def looks(self, seconds: float = 30.0) -> None:
        """Look twice."""
        await self.orphans.look()
        self.clock.pass_time(seconds)
        await self.orphans.look()

    @property
    def killed(self) -> float | None:
        """The metric."""
        return self.keeper.tallies.registry.get_sample_value("partage_agent_killed_total")


@contextlib.asynccontextmanager
async def _world(folder: Path) -> AsyncIterator[World]:
    facts = HostFacts(lambda _p, _c, _m: Instance())
    place = Place(Node("n1", devices=(CARD,)), Settings(), FAMILIES, facts)
    journal, proc = Journal(folder / "journal"), folder / "proc"
    proc.mkdir()
    keeper = Keeper(lambda: place, Host(folder, simulated=True), journal, Tallies())
    keeper.synchronize((), ())
    async with (
        KubeServer() as server,
        Client(Config(ClusterConfig(server.url), UserConfig())) as client,
    ):
        clock = client.clock = InstantClock()
        orphans = Orphans(client, keeper, "n1", proc=proc)
        server.store.create(NODES, None, {"metadata": {"name": "n1"}})
        world = World(server, client, clock, keeper, orphans, proc)
        world.asks("old", OLD)
        yield world
    journal.close()


def _pod(uid: str = "uid-old") -> dict[str, Any]:
    return {"metadata": {"name": "old", "namespace": "team", "uid": uid}, "spec": {}}


async def test_it_is_killed_once_its_card_is_needed(
    folder: Path, program: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """At the second look after the refusal; the new pod's container starts when the runtime has reported the end."""
    async with _world(folder) as world:
        world.runs(OLD, program.pid)
        await world.looks()
        assert program.poll() is None, "no container needed the card"

        world.refused()
        await world.looks()
        assert await asyncio.to_thread(program.wait, 20) == -9
        assert world.killed == 1
        assert "pod team/old, container main: killed" in caplog.text

        world.keeper.remove(Container(OLD))
        world.asks()


async def test_a_pod_of_the_same_name_does_not_keep_it(
    folder: Path, program: subprocess.Popen[bytes]
) -> None:
    """A controller may have made the pod again, with a UID of its own."""
    async with _world(folder) as world:
        world.runs(OLD, program.pid)
        world.server.store.create(PODS, "team", _pod("uid-of-its-successor"))
        world.refused()
        await world.looks()
        assert await asyncio.to_thread(program.wait, 20) == -9


async def test_one_that_the_watch_of_pods_lacks_needs_no_refusal(
    folder: Path, program: subprocess.Popen[bytes]
) -> None:
    """The kubelet counts its units and refuses others' pods itself. The API server is asked nevertheless."""
    async with _world(folder) as world:
        world.runs(OLD, program.pid)
        world.keeper.orphaned = frozenset({"uid-old"})
        world.server.store.create(PODS, "team", _pod())
        await world.looks()
        assert program.poll() is None
        world.server.store.delete(PODS, "team", "old")
        await world.looks()
        assert await asyncio.to_thread(program.wait, 20) == -9


async def test_a_container_of_a_claim_goes_with_its_pod(
    folder: Path, program: subprocess.Popen[bytes]
) -> None:
    """A claim's entry is under the claim's UID, and a full card refuses a claim before its containers."""
    async with _world(folder) as world:
        world.runs(OLD, program.pid)
        (entry,) = world.keeper.journal.entries.values()
        world.keeper.journal.give(
            Entry(OLD, "uid-of-the-claim", entry.pod, "main", entry.record, claimant="uid-old")
        )
        world.keeper.tallies.claim_failures.labels(Rule.CARD_FULL).inc()
        await world.looks()
        assert await asyncio.to_thread(program.wait, 20) == -9


@pytest.mark.parametrize(
    "case",
    [
        "its pod exists",
        "one look",
        "two looks too soon",
        "the refusal is old",
        "another API server",
        "the API server does not answer",
        "another rule",
        "the runtime does not have it",
        "an earlier agent's claim",
    ],
)
async def test_no_other_container_is_killed(
    folder: Path, program: subprocess.Popen[bytes], case: str
) -> None:
    """Each condition alone keeps it alive."""
    async with _world(folder) as world:
        world.runs(OLD, program.pid)
        if case == "another rule":
            world.keeper.tallies.refused.labels(Rule.BAD_RECORD).inc()
        else:
            world.refused()
        seconds = 30.0
        if case == "its pod exists":
            world.server.store.create(PODS, "team", _pod())
        if case == "one look":
            await world.orphans.look()
            world.server.store.create(PODS, "team", _pod())
        if case == "two looks too soon":
            seconds = 29.0
        if case == "the refusal is old":
            await world.orphans.look()
            seconds = 121.0
        if case == "another API server":
            world.server.store.delete(NODES, None, "n1")
        if case == "the API server does not answer":
            await world.orphans.look()
            await world.server.__aexit__()
        if case == "the runtime does not have it":
            world.keeper.books.only(())
        if case == "an earlier agent's claim":
            (entry,) = world.keeper.journal.entries.values()
            world.keeper.journal.give(
                Entry(OLD, "uid-of-the-claim", entry.pod, "main", entry.record)
            )
        with contextlib.suppress(KubeError):
            await world.looks(seconds)
        assert program.poll() is None
        assert world.killed == 0


async def test_what_cannot_be_seen_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the host's process table there is nothing to kill; the log has the reason."""
    async with _world(folder) as world:
        world.refused()
        await world.looks()
        await world.looks()
    assert (
        caplog.text.count("cannot be killed: the agent sees none of its processes (hostPID)") == 1
    )
    assert world.killed == 0


async def test_one_that_does_not_end_is_counted_once(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may hang in the driver. It gets the signal at each look, and the log says that it has not ended."""
    asked: list[str] = []
    monkeypatch.setattr(
        orphans, "kill", lambda container, _proc: len(asked.append(container) or asked)
    )
    async with _world(folder) as world:
        for _ in range(3):
            world.refused()
            await world.looks()
        assert world.killed == 1
    assert set(asked) == {OLD}
    assert len(asked) > 2
    assert caplog.text.count("container main: killed") == 1
    assert caplog.text.count("it was killed, and has not ended") == 1


def test_all_processes_of_one_container_are_killed(tmp_path: Path) -> None:
    """Those of another, and a number that another program has by now, are left alone."""
    with contextlib.ExitStack() as stack:
        ours, other = (
            [stack.enter_context(subprocess.Popen(["/bin/sleep", "1000"])) for _ in range(3)]
            for _ in range(2)
        )
        for one in (*ours, *other):
            stack.callback(one.kill)
            (tmp_path / str(one.pid)).mkdir()
            name = OLD if one in ours else NEW
            if one is other[0]:
                name = f"crio-conmon-{OLD}.scope"  # CRI-O's own, beside the container
            (tmp_path / str(one.pid) / "cgroup").write_text(f"0::/kubepods/{name}\n")
        (tmp_path / str(2**22 + 1)).mkdir()  # no process has this number
        (tmp_path / str(2**22 + 1) / "cgroup").write_text(f"0::/kubepods/{OLD}\n")

        assert kill(OLD, tmp_path) == 3
        assert [one.wait(20) for one in ours] == [-9, -9, -9]
        assert all(one.poll() is None for one in other)
        assert kill("", tmp_path) == 0
