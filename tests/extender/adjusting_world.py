"""A scheduler service and a node agent over one API server; either may end at any step and start again.

The API server keeps versions as Kubernetes does. Its news arrives late: at the service as a stream, and at the agent as
a picture of some moment. Before and after each write of any kind, the world checks that no card is allocated twice.
"""

import asyncio
import copy
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from world import Manifest, card, device, document, node, pod

from fakes.clock import InstantClock
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.isolation.account import PLACES_AT
from partage.agent.isolation.amounts import NAME, read_amounts
from partage.agent.isolation.container_dirs import Rooms
from partage.agent.isolation.providers import Isolation, OwnLibrary
from partage.agent.journal import Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Container, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.daemon.adjusting import Adjusting
from partage.extender.ports import Answered, Outcome
from partage.extender.service import SchedulerService, ServiceSettings
from partage.kube.errors import ApiError, Conflict, Status, UnknownOutcome
from partage.model.allocation import Grant
from partage.scheduler.events import BindSucceeded, Placement
from partage.vendors import names
from partage.vendors.base import PlacedPod
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.record import decode, render

GIB = 2**30
MEMORY = 16 * GIB
NODE = node("n1", labels={names.ISOLATION_PROVIDER: "partage"})
DEVICE = device("n1", card(0), card(1))


class Killed(BaseException):
    """A process ends here, as by SIGKILL."""


class Store:
    """Pods of an API server: what they are, and every version that they had."""

    def __init__(self, world: "AdjustingWorld") -> None:
        self.world = world
        self.pods: dict[str, Manifest] = {}
        self.history: list[dict[str, Manifest]] = [{}]
        self.version = 1

    def put(self, manifest: Manifest) -> None:
        """A pod is there, or another version of it."""
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        self.pods[manifest["metadata"]["name"]] = manifest
        self.history.append(copy.deepcopy(self.pods))

    def patch(self, name: str, body: Mapping[str, Any]) -> bool:
        """Change a pod, unless it is another version than the patch names; whether it was."""
        manifest = copy.deepcopy(self.pods[name])
        version = body["metadata"].get("resourceVersion", manifest["metadata"]["resourceVersion"])
        if version != manifest["metadata"]["resourceVersion"]:
            return False
        said = manifest["metadata"].setdefault("annotations", {})
        said.update(body["metadata"].get("annotations", {}))
        conditions = manifest["status"].setdefault("conditions", [])
        for one in body.get("status", {}).get("conditions", []):
            conditions[:] = [old for old in conditions if old["type"] != one["type"]] + [one]
        self.put(manifest)
        return True


def _unknown(name: str) -> UnknownOutcome:
    return UnknownOutcome(ApiError("PATCH", name, 500, Status()))


class AgentClient:
    """What the agent sends."""

    def __init__(self, world: "AdjustingWorld") -> None:
        self._world, self.clock = world, world.clock

    async def patch_pod_status(
        self, _namespace: str, name: str, body: Mapping[str, Any], **_more: Any
    ) -> None:
        """A change of a pod's status: carried out or not, answered or not."""
        await asyncio.sleep(0)
        world = self._world
        world.step("agent")
        lost = world.chance.random() + world.calm
        if lost < 0.1:
            raise _unknown(name)
        good = world.store.patch(name, body)
        world.check()
        world.step("agent")
        if not good:
            raise Conflict("PATCH", name, 409, Status())
        if lost < 0.2:
            raise _unknown(name)


class Writer:
    """What the service sends; see `Amender`."""

    def __init__(self, world: "AdjustingWorld") -> None:
        self._world = world
        self.dead = False

    async def _lives(self) -> None:
        """A process that has ended does nothing any more."""
        await asyncio.sleep(0)
        try:
            if not self.dead:
                self._world.step("service")
        except Killed:
            self.dead = True
        if self.dead:
            await asyncio.Event().wait()

    async def amend(self, pod: Document, annotations: Mapping[str, str]) -> Answered:
        """A record, if the pod is still that version."""
        await self._lives()
        lost = self._world.chance.random() + self._world.calm
        if lost < 0.1:
            return Answered(Outcome.UNKNOWN, "no answer")
        meta = {"resourceVersion": pod.metadata.resource_version, "annotations": dict(annotations)}
        good = self._world.store.patch(pod.name, {"metadata": meta})
        self._world.check()
        await self._lives()
        if lost < 0.2:
            return Answered(Outcome.UNKNOWN, "no answer")
        return Answered(Outcome.DONE if good else Outcome.UNKNOWN, "it has changed")

    async def answer(self, pod: Document, reason: str, message: str) -> None:
        """Why not."""
        self._world.answers[pod.name] = f"{reason}: {message}"
        self._world.refusals += 1

    async def read(self, _namespace: str, name: str) -> Document | None:
        """The pod now."""
        await self._lives()
        return document(self._world.store.pods[name])

    async def bind(self, _binding: object) -> Answered:
        """This world binds no pod by it."""
        raise NotImplementedError


class AdjustingWorld:
    """All of it.

    Attributes:
        answers: the last refusal, by pod.
        kills: processes that ended so far.
        refusals: how often a pod got a refusal.
        calm: 1 where every answer arrives.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance, self.clock = folder, random.Random(seed), InstantClock()  # noqa: S311 # a test's own
        boot = folder / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("one\n")
        (folder / "built.so").write_bytes(b"the library")
        (folder / "table").mkdir()
        (folder / "host/dev").mkdir(parents=True)
        for file in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
            (folder / "host/dev" / file).symlink_to("/dev/null")
        self.store = Store(self)
        self.answers: dict[str, str] = {}
        self.sandboxes: dict[str, PodSandbox] = {}
        self.containers: dict[str, str] = {}
        self.kill_in: dict[str, int] = {}
        self.kills = self.refusals = 0
        self.calm = 0
        self.told = self.seen = 0
        self.writer = Writer(self)

    # --- processes ---------------------------------------------------------------------------

    def step(self, who: str) -> None:
        """The process of this name may end here.

        Raises:
            Killed: it does.
        """
        left = self.kill_in.get(who)
        if left is None:
            return
        self.kill_in[who] = left - 1
        if left <= 0:
            del self.kill_in[who]
            self.kills += 1
            raise Killed(who)

    async def start_service(self) -> None:
        """A new leader, with fresh books; what the one before sent has arrived or never will."""
        self.writer.dead = True
        self.writer = Writer(self)
        self.service = SchedulerService(
            self.writer, self.clock, settings=ServiceSettings(amender=self.writer)
        )
        self.told = len(self.store.history) - 1
        pods = [document(one) for one in self.store.pods.values()]
        await self.service.rebuild([document(NODE), document(DEVICE), *pods])
        self.service.lead()
        self.given = Place(
            self.service.books.engine.ledger.node_at(0),
            Settings(),
            FAMILIES,
            HostFacts(lambda *_: Instance(), provider=OwnLibrary(compute=True)),
        )

    def start_agent(self) -> None:
        """A new agent over the old one's files."""
        if hasattr(self, "keeper"):
            self.keeper.journal.close()
        self.seen = max(self.seen, 0)
        rooms = Rooms(self.folder / "built.so", self.folder / "host/state", "/state", self.folder)
        assert rooms.problems == [] or "memory" in rooms.problems[0]
        self.keeper = Keeper(
            lambda: self.given,
            Host(self.folder / "host"),
            Journal(self.folder / "journal"),
            Tallies(),
            Isolation(rooms, proc=self.folder / "table"),
        )
        there = tuple(
            Container(key, f"s-{name}", "main", annotations={names.SERVED: "partage"})
            for name, key in self.containers.items()
        )
        self.keeper.synchronize(tuple(self.sandboxes.values()), there)
        self.adjusting = Adjusting(
            self.keeper,
            AgentClient(self),
            "n1",
            self.pods,
            proc=self.folder / "table",  # type: ignore[arg-type]
        )

    def pods(self) -> list[shapes.Pod]:
        """The agent's informer has them: a state of some moment, never an earlier one than before."""
        return [document(one).shape for one in self.store.history[self.seen].values()]  # type: ignore[misc]

    # --- what happens ------------------------------------------------------------------------

    def tell(self, *, all_of_it: bool = False) -> None:
        """The service hears the next news, or all."""
        while self.told < len(self.store.history) - 1:
            self.told += 1
            before, now = self.store.history[self.told - 1], self.store.history[self.told]
            for name, manifest in now.items():
                if before.get(name) != manifest:
                    self.service.changed(document(manifest))
            self.check()
            if not all_of_it:
                break

    async def come(self, name: str, compute: int, gib: int) -> bool:
        """A pod, by qGPU's names where its number is odd, is placed, bound and started; whether there was room."""
        qgpu = {names.QGPU_CORE: str(compute), names.QGPU_MEMORY: str(gib)}
        plain = {"koordinator.sh/gpu-core": str(compute), "koordinator.sh/gpu-memory": f"{gib}Gi"}
        manifest = pod(name, qgpu if int(name[1:]) % 2 else plain)
        entry = self.service.books.cluster_cache.translation.read(document(manifest))
        engine = self.service.books.engine
        found = engine.place_on(entry.pod, "n1")
        if not isinstance(found, Placement):
            return False
        placed = PlacedPod(
            entry.view, entry.pod.request, found.allocation, engine.ledger.node_at(0), 1
        )
        said = dict(render(placed, Settings(), FAMILIES).annotations)
        manifest["metadata"]["annotations"] = said
        manifest["spec"]["nodeName"] = "n1"
        manifest["status"] = {"phase": "Running"}
        self.store.put(manifest)
        engine.handle(BindSucceeded(entry.pod.uid))
        self.sandboxes[name] = PodSandbox(
            f"s-{name}", name, f"uid-{name}", "team", annotations=said
        )
        self.restart(name)
        self.check()
        return True

    def restart(self, name: str) -> None:
        """A container of the pod is started, after the one before has ended; no agent ends over that here."""
        kept = self.kill_in.pop("agent", None)
        before = self.containers.pop(name, None)
        if before is not None:
            self.keeper.remove(Container(before, f"s-{name}", "main"))
        key = f"container-{name}-{self.chance.randrange(2**32):08x}"
        with suppress(Refused):
            self.keeper.create(self.sandboxes[name], Container(key, f"s-{name}", "main"))
            self.containers[name] = key
        if kept is not None:
            self.kill_in["agent"] = kept

    def use(self, name: str, part: float) -> None:
        """A process of the container has so much of what it may have now."""
        room = self.room_of(name)
        if room is None:
            return
        cap = read_amounts(room / NAME, self.keeper.rooms[self.containers[name]].limits.cards)[0]
        with self.keeper.rooms[self.containers[name]].account.open("r+b") as file:
            file.seek(PLACES_AT)
            file.write((7 << 42 | 3 << 1).to_bytes(8, "little"))
            file.seek(PLACES_AT + 32)
            file.write(int(cap.memory_bytes * part).to_bytes(8, "little"))

    def wish(self, name: str, text: str) -> None:
        """A user asks."""
        manifest = copy.deepcopy(self.store.pods[name])
        manifest["metadata"]["annotations"][names.ADJUST] = text
        self.store.put(manifest)

    async def look(self) -> None:
        """The agent looks once; one that ends is followed by another."""
        try:
            await self.adjusting.look()
        except Killed:
            self.start_agent()
        self.check()

    async def rest(self) -> None:
        """Let what is on its way go on; a service that ended is followed by another."""
        for _ in range(8):
            await asyncio.sleep(0)
        if self.writer.dead:
            await self.start_service()
        self.check()

    # --- what must hold ----------------------------------------------------------------------

    def room_of(self, name: str) -> Path | None:
        """The folder of a pod's container."""
        folder = self.folder / "host/state/containers" / self.containers.get(name, "none")
        return folder if folder.exists() else None

    def records(self) -> dict[str, tuple[Grant, ...]]:
        """What the API server's records say."""
        return {
            name: decode(
                one["metadata"]["annotations"][names.ALLOCATION], f"uid-{name}", "n1"
            ).grants
            for name, one in self.store.pods.items()
        }

    def enforced(self) -> Iterator[tuple[str, str, int, int]]:
        """Pod, card, memory and compute of all that runs, as the libraries have it mapped."""
        from partage.agent.isolation.limits import read  # noqa: PLC0415 # by the files alone

        for name in self.containers:
            room = self.room_of(name)
            if room is not None:
                limits = read((room / "limits").read_text())
                for one in read_amounts(room / NAME, limits.cards):
                    yield name, one.uuid, one.memory_bytes, one.core_milli

    def check(self) -> None:
        """No card is allocated twice at this moment: by records, and by what is enforced."""
        records = self.records()
        for uuid in ("GPU-0", "GPU-1"):
            mine = [one for grants in records.values() for one in grants if one.uuid == uuid]
            assert sum(one.core_milli for one in mine) <= 1000, records
            assert sum(one.memory_bytes for one in mine) <= MEMORY, records
        for name, uuid, memory, core in self.enforced():
            (grant,) = [one for one in records[name] if one.uuid == uuid]
            assert memory <= grant.memory_bytes, (name, memory, grant)
            assert core <= grant.core_milli, (name, core, grant)


@contextmanager
def dying(world: AdjustingWorld) -> Iterator[None]:
    """The agent may end before and after each of its writes to the disk."""
    patch = pytest.MonkeyPatch()
    plain = SimpleNamespace(pwrite=os.pwrite, fsync=os.fsync, replace=os.replace)

    def pwrite(*given: Any) -> int:
        world.step("agent")
        done = plain.pwrite(*given)
        world.step("agent")
        return done

    def fsync(descriptor: int) -> None:
        world.step("agent")

    def replace(self: Path, target: Path) -> Path:
        world.step("agent")
        plain.replace(self, target)
        world.step("agent")
        return target

    patch.setattr(os, "pwrite", pwrite)
    patch.setattr(os, "fsync", fsync)
    patch.setattr(Path, "replace", replace)
    try:
        yield
    finally:
        patch.undo()
