"""Amounts of running shares change by a reservation first, never beyond a card, for a crash at any step."""

import asyncio
import copy
import os
import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from adjusting_world import GIB, AdjustingWorld, dying
from world import DONE, World, device, document, half, node, pod

from fakes.clock import InstantClock
from partage.agent.adjustment import beyond
from partage.agent.isolation.container_dirs import Room
from partage.agent.nri.messages import Container
from partage.daemon import adjusting
from partage.extender.adjustments import Adjustments
from partage.extender.ports import Answered, Outcome
from partage.kube.errors import ApiError, Status
from partage.scheduler.engine import State
from partage.vendors import names
from partage.wire.documents import Document


async def play(folder: Path, seed: int) -> AdjustingWorld:
    """A run of random asks, kills, news and looks; then quiet."""
    world = AdjustingWorld(folder, seed)
    chance = world.chance
    await world.start_service()
    world.start_agent()
    for number in range(3):
        assert await world.come(f"p{number}", chance.choice([10, 20, 30]), chance.choice([2, 4]))
    with dying(world):
        for turn in range(60):
            await happens(world, turn)
        world.kill_in.clear()
        world.calm = 1
    await settle(world)
    return world


async def happens(world: AdjustingWorld, turn: int) -> None:
    """One thing more."""
    chance = world.chance
    name = chance.choice(sorted(world.store.pods))
    match chance.randrange(12):
        case 0 | 1:
            compute, gib = chance.randrange(1, 100), chance.randrange(1, 16)
            text = chance.choice(
                [f"compute={compute}", f"memory={gib}Gi", f"compute={compute},memory={gib}Gi"]
            )
            world.wish(name, text)
        case 2 | 9 | 10 | 11:
            world.kill_in.setdefault(chance.choice(["agent", "service"]), chance.randrange(6))
        case 3:
            world.tell()
            await world.rest()
        case 4:
            world.tell(all_of_it=True)
            await world.service.tick()
            await world.rest()
        case 5 | 6:
            world.seen = chance.randrange(world.seen, len(world.store.history))
            await world.look()
        case 7:
            world.use(name, chance.random())
        case 8:
            if chance.random() < 0.5:
                world.restart(name)
            else:
                await world.come(f"q{turn}", chance.choice([10, 30]), chance.choice([1, 4]))
    world.check()


async def settle(world: AdjustingWorld) -> None:
    """All news arrive and no process ends any more, until nothing changes."""
    await world.start_service()
    world.start_agent()
    for name in list(world.store.pods):
        if name not in world.containers:
            world.restart(name)
        world.use(name, 0.0)
    await calm_down(world)


async def calm_down(world: AdjustingWorld) -> None:
    """Nothing new is asked, and all news arrive."""
    for _ in range(12):
        world.tell(all_of_it=True)
        await world.service.tick()
        await world.rest()
        await world.service.adjustments.drain()  # type: ignore[union-attr]
        world.tell(all_of_it=True)
        world.seen = len(world.store.history) - 1
        world.adjusting._again.clear()  # time that passes
        world.clock.pass_time(1.0)
        await world.look()


def is_answered(world: AdjustingWorld, name: str) -> None:
    """A pod has what it asked, or got the reason why not."""
    said = world.store.pods[name]["metadata"]["annotations"]
    wish = dict(part.split("=") for part in said.get(names.ADJUST, "").split(",") if part)
    (grant,) = world.records()[name]
    now = {one[0]: one[2:] for one in world.enforced()}[name]
    if f"uid-{name}" in world.service.adjustments.refused:  # type: ignore[union-attr]
        assert world.answers[name].startswith("NoRoom: node n1: card")
        return
    if "compute" in wish:
        assert grant.core_milli == int(wish["compute"]) * 10
    if "memory" in wish:
        assert grant.memory_bytes == int(wish["memory"].removesuffix("Gi")) * GIB
    assert now == (grant.memory_bytes, grant.core_milli)


def played(folder: Path, seed: int) -> int:
    """One run, and all that must be true after it; how often a part of it ended."""
    folder.mkdir()
    world = asyncio.run(play(folder, seed))
    for name in world.store.pods:
        is_answered(world, name)
    found = world.service.audit()
    assert found.clean, found
    world.keeper.journal.close()
    return world.kills


@pytest.mark.parametrize("start", [0, 100, 200])
def test_no_kill_gives_a_card_out_twice_or_loses_what_was_asked(
    tmp_path: Path, start: int
) -> None:
    """In each run agent and service end at any of their writes; `PARTAGE_KILLS=1000` sets the number of kills."""
    wanted = int(os.environ.get("PARTAGE_KILLS", "20")) // 3
    kills = seed = 0
    while kills <= wanted:
        kills += played(tmp_path / str(seed), start + seed)
        seed += 1


async def one_pod(folder: Path, wish: str) -> AdjustingWorld:
    """A pod of 30 percent and 4 GiB that asks for something, of which nothing is done yet."""
    world = AdjustingWorld(folder, 0)
    world.calm = 1
    await world.start_service()
    world.start_agent()
    assert await world.come("p0", 30, 4)
    world.wish("p0", wish)
    return world


async def test_who_asks_without_an_end_costs_a_bounded_number_of_writes(tmp_path: Path) -> None:
    """Nonsense, a wish, nonsense again: a few writes at once, then four a second; the last wish is met."""
    world = await one_pod(tmp_path, "nonsense")
    version = world.store.version
    for turn in range(200):
        world.wish("p0", "nonsense" if turn % 2 else f"compute={10 + turn % 7}")
        world.tell(all_of_it=True)
        await world.rest()
    asked = 200

    assert world.store.version - version - asked + world.refusals <= 21
    for _ in range(10):
        before = world.refusals
        world.clock.pass_time(1.0)
        world.wish("p0", "compute=20")
        world.wish("p0", "nonsense")
        world.tell(all_of_it=True)
        await world.service.tick()
        await world.rest()
        assert world.refusals - before <= 5
    world.clock.pass_time(60.0)
    world.wish("p0", "compute=12")
    await settle(world)
    is_answered(world, "p0")
    world.keeper.journal.close()


async def test_a_pod_is_not_told_where_its_nodes_files_are(tmp_path: Path) -> None:
    """Its condition says why a share stays as it is, whatever its program did to the account."""
    world = await one_pod(tmp_path, "memory=1Gi")
    (room,) = world.keeper.rooms.values()
    for damage in (partial(os.truncate, room.account, 100), room.account.unlink):
        damage()
        said = beyond(world.keeper.rooms, {})
        assert said.startswith("what it uses cannot be read: ")
        assert "its account" in said
        assert str(tmp_path) not in said
    world.keeper.journal.close()


async def test_who_lowers_without_an_end_leaves_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wish below what is in use is tried again and again, and each try reads the node's processes: one a look."""
    world = AdjustingWorld(tmp_path, 0)
    world.calm = 1
    await world.start_service()
    world.start_agent()
    read = []

    def counted(rooms: Mapping[str, Room], *rest: Any) -> str:
        read.extend(rooms)
        return beyond(rooms, *rest)

    monkeypatch.setattr(adjusting, "beyond", counted)
    for name in ("p0", "p1", "p2", "p3"):
        assert await world.come(name, 10, 2)
        world.use(name, 1.0)
        world.wish(name, "memory=1Gi")

    for look in range(8):
        world.seen = len(world.store.history) - 1
        world.adjusting._again.clear()  # time that passes
        await world.adjusting.look()
        assert len(read) == look + 1

    assert Counter(read) == dict.fromkeys(world.containers.values(), 2)
    world.keeper.journal.close()


@pytest.mark.parametrize(
    ("name", "key", "wish", "refused"),
    [
        ("p0", "requests.koordinator.sh/gpu-core", "compute=60", True),
        ("p0", "requests.koordinator.sh/gpu-memory", "memory=8Gi", True),
        ("p1", "requests.tke.cloud.tencent.com/qgpu-memory", "memory=8Gi", True),
        ("p1", "requests.koordinator.sh/gpu-core", "compute=60", False),
        ("p0", "requests.nvidia.com/gpu", "compute=60", False),
        ("p0", "requests.koordinator.sh/gpu-core", "compute=30,memory=4Gi", False),
        ("p0", "requests.koordinator.sh/gpu-core", "compute=20", False),
    ],
)
async def test_no_share_grows_beyond_a_quota_that_counts_requests(
    tmp_path: Path, name: str, key: str, wish: str, *, refused: bool
) -> None:
    """Such a quota would see nothing of it: its pods could ask for one percent and take the card."""
    world = AdjustingWorld(tmp_path, 0)
    world.calm = 1
    await world.start_service()
    world.start_agent()
    assert await world.come(name, 30, 4)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "cards", "namespace": "team", "resourceVersion": "1"},
        "spec": {"hard": {key: "1000Gi"}},
    }
    world.service.changed(document(quota))
    world.wish(name, wish)

    await calm_down(world)

    (grant,) = world.records()[name]
    if refused:
        assert (grant.core_milli, grant.memory_bytes) == (300, 4 * GIB)
        assert world.answers[name].startswith(
            f"QuotaExceeded: quota cards of namespace team limits {key}"
        )
    else:
        assert name not in world.answers
        is_answered(world, name)
    world.keeper.journal.close()


async def test_a_record_that_was_not_written_is_written_later(tmp_path: Path) -> None:
    """The API server refuses a write for a while, and the pod does not change meanwhile."""
    world = await one_pod(tmp_path, "compute=60")
    adjustments = world.service.adjustments
    assert adjustments is not None
    amended, tries = adjustments.amender.amend, iter(range(3))

    async def amend(pod: Document, annotations: Mapping[str, str]) -> Answered:
        if next(tries, None) is not None:
            return Answered(Outcome.REFUSED, "429")
        return await amended(pod, annotations)

    adjustments.amender.amend = amend  # type: ignore[method-assign]
    for _ in range(5):
        world.tell(all_of_it=True)
        world.clock.pass_time(1.0)
        await world.service.tick()
        await world.rest()
        await adjustments.drain()

    (grant,) = world.records()["p0"]
    assert grant.core_milli == 600
    world.tell(all_of_it=True)
    await world.rest()
    assert not adjustments.refused
    world.keeper.journal.close()


@pytest.mark.parametrize("arrived", [True, False])
async def test_an_increase_stays_reserved_until_somebody_can_read_its_pod(
    arrived: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    """The write's answer is lost, and the API server cannot be read for a minute."""
    world = await one_pod(tmp_path, "compute=60")
    adjustments = world.service.adjustments
    assert adjustments is not None
    amended, read = adjustments.amender.amend, adjustments.amender.read
    start, lost = world.clock.monotonic(), [True]

    async def amend(pod: Document, annotations: Mapping[str, str]) -> Answered:
        if arrived or not lost:
            await amended(pod, annotations)
        return Answered(Outcome.UNKNOWN, "no answer") if lost else Answered(Outcome.DONE)

    async def reading(namespace: str, name: str) -> Document | None:
        if world.clock.monotonic() < start + 60.0:
            raise TimeoutError
        return await read(namespace, name)

    adjustments.amender.amend = amend  # type: ignore[method-assign]
    adjustments.amender.read = reading  # type: ignore[method-assign]
    ledger = world.service.books.engine.ledger
    world.tell(all_of_it=True)
    while world.clock.monotonic() < start + 59.0:
        world.clock.pass_time(1.0)
        await world.service.tick()
        await world.rest()
        assert ledger.allocation("uid-p0#more") is not None, world.clock.monotonic() - start
    lost.clear()
    for _ in range(15):
        world.clock.pass_time(1.0)
        await world.service.tick()
        await world.rest()
        await adjustments.drain()
        world.tell(all_of_it=True)

    (grant,) = world.records()["p0"]
    assert grant.core_milli == 600
    assert ledger.allocation("uid-p0#more") is None
    world.keeper.journal.close()


async def test_a_wish_that_comes_while_a_write_is_read_back_is_heard(tmp_path: Path) -> None:
    """The write conflicted with it, and the watch reported it while the adjustment was still in progress."""
    world = await one_pod(tmp_path, "compute=60")
    adjustments = world.service.adjustments
    assert adjustments is not None
    amended, tries = adjustments.amender.amend, iter(range(1))

    async def amend(pod: Document, annotations: Mapping[str, str]) -> Answered:
        if next(tries, None) is not None:
            world.wish("p0", "compute=40")
            world.tell(all_of_it=True)
            return Answered(Outcome.UNKNOWN, "409")
        return await amended(pod, annotations)

    adjustments.amender.amend = amend  # type: ignore[method-assign]
    world.tell(all_of_it=True)
    await adjustments.drain()
    world.clock.pass_time(1.0)
    await world.service.tick()
    await adjustments.drain()

    (grant,) = world.records()["p0"]
    assert grant.core_milli == 400
    world.keeper.journal.close()


async def test_every_wish_is_answered_however_many_there_are() -> None:
    """Over ten thousand pods of a namespace have impossible wishes: each gets its reason, and none is forgotten."""
    count, clock, answered = 10_050, InstantClock(), Counter[str]()

    class Answering:
        """Counts answers."""

        async def answer(self, pod: Document, _reason: str, _message: str) -> None:
            """Why not."""
            answered[pod.name] += 1

    there = {
        f"p{number}": document(
            pod(f"p{number}", meta={"annotations": {names.ADJUST: "compute=20"}})
        )
        for number in range(count)
    }
    held = SimpleNamespace(namespace="team", grants=())
    books: Any = SimpleNamespace(
        cluster_cache=SimpleNamespace(
            pods={
                uid: SimpleNamespace(pod=SimpleNamespace(uid=uid, namespace="team", record=None))
                for uid in there
            },
            documents=there,
        ),
        engine=SimpleNamespace(
            ledger=SimpleNamespace(allocation=dict.fromkeys(there, held).get),
            states=dict.fromkeys(there, State.BOUND),
        ),
    )
    adjustments = Adjustments(cast("Any", Answering()), clock)
    for uid in there:
        adjustments.look(books, uid, clock.monotonic())
    for _ in range(count // 4 + 10):
        clock.pass_time(1.0)
        adjustments.tick(books, clock.monotonic())
        await asyncio.sleep(0)

    assert len(answered) == count
    assert set(answered.values()) == {1}


def test_a_round_checks_as_many_parts_as_cost_little_and_every_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant's pods of 64 containers that are refused for ever; another's small pod is checked in each round."""
    checked: list[str] = []
    monkeypatch.setattr(Adjustments, "look", lambda _self, _books, uid, _now: checked.append(uid))
    adjustments = Adjustments(cast("Any", None), InstantClock())
    held = {f"wild-{n}": SimpleNamespace(namespace="wild", grants=range(64)) for n in range(200)}
    held |= {f"calm-{n}": SimpleNamespace(namespace="calm", grants=range(2)) for n in range(10)}
    ledger = SimpleNamespace(allocation=held.get)
    books: Any = SimpleNamespace(engine=SimpleNamespace(ledger=ledger))
    for uid, one in held.items():
        adjustments.postpone(uid, one.namespace, 0.0)
    for turn in range(200):
        adjustments.tick(books, float(turn))
        assert len(checked) == 11
        assert sum(uid.startswith("wild") for uid in checked) == 1
        checked.clear()


def test_a_round_costs_the_same_however_many_pods_of_a_namespace_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pods that a round does not check are not even looked up."""
    looked_up: list[str] = []

    def allocation(uid: str) -> Any:
        looked_up.append(uid)
        return SimpleNamespace(namespace="wild", grants=range(1))

    monkeypatch.setattr(Adjustments, "look", lambda *_: None)
    adjustments = Adjustments(cast("Any", None), InstantClock())
    books: Any = SimpleNamespace(
        engine=SimpleNamespace(ledger=SimpleNamespace(allocation=allocation))
    )
    for number in range(5_000):
        adjustments.postpone(f"wild-{number}", "wild", 0.0)
    for turn in range(10):
        adjustments.tick(books, float(turn))

    assert looked_up == [f"wild-{number}" for number in range(320)]


async def test_a_wish_of_a_moment_without_a_leader_is_answered_by_the_next() -> None:
    """A leader may prepare for a minute after it has listed all pods."""
    answered: list[str] = []

    class Answering:
        """Notes the answered pods."""

        async def answer(self, pod: Document, _reason: str, _message: str) -> None:
            """Why not."""
            answered.append(pod.name)

    world = await World(amender=Answering()).start(node(), device())
    await world.place(pod("web", half()))
    world.service.follow()
    meta = world.api.pods["web"]["metadata"]
    meta["annotations"][names.ADJUST], meta["resourceVersion"] = "compute=20", "2"

    world.seen("web")
    world.service.lead()
    await world.service.tick()

    assert answered == ["web"]


def wish(world: World, name: str, text: str) -> None:
    """A pod asks for other amounts, and the service hears of it."""
    meta = world.api.pods[name]["metadata"]
    meta["annotations"][names.ADJUST] = text
    meta["resourceVersion"] = str(int(meta.get("resourceVersion", "1")) + 1)
    world.seen(name)


async def test_a_wish_on_a_node_that_is_gone_waits_until_the_node_is_back() -> None:
    """A cluster may delete a Node before its pods; neither a tick nor a change of the pod fails meanwhile."""
    answered: list[str] = []
    amended: list[str] = []

    class Answering:
        """Notes answers and records."""

        async def answer(self, _pod: Document, _reason: str, message: str) -> None:
            """Why not."""
            answered.append(message)

        async def amend(self, _pod: Document, annotations: Mapping[str, str]) -> Answered:
            """A record."""
            amended.append(annotations[names.ALLOCATION])
            return DONE

    machine = node(labels={names.ISOLATION_PROVIDER: "partage"})
    world = await World(amender=Answering()).start(machine, device())
    await world.place(pod("big", half()))
    await world.place(pod("web", half()))
    wish(world, "web", "compute=60")
    await world.service.tick()
    assert "NoRoom" in str(world.service.adjustments.refused["uid-web"])  # type: ignore[union-attr]

    world.service.gone(document(machine))
    await world.service.tick()
    wish(world, "web", "compute=70")
    await world.service.tick()
    assert "node n1 is gone" in answered[-1]

    world.service.pod_gone("uid-big")
    world.service.changed(document(machine))
    world.clock.pass_time(60.0)
    await world.service.tick()
    await world.service.adjustments.drain()  # type: ignore[union-attr]
    assert len(amended) == 1
    assert '"milli":700' in amended[0]


async def test_a_container_that_starts_later_has_the_amounts_of_now(tmp_path: Path) -> None:
    """The sandbox still has the first amounts, but another pod has the released part by then."""
    world = await one_pod(tmp_path, "compute=10,memory=1Gi")
    await settle(world)
    assert await world.come("p1", 90, 15)

    world.restart("p0")

    world.check()
    assert {one[0]: one[2:] for one in world.enforced()}["p0"] == (GIB, 100)
    world.keeper.journal.close()


async def test_what_runs_keeps_its_amounts_though_its_pod_is_gone(tmp_path: Path) -> None:
    """After a restored backup, for example; others have the released part, and the pod's container may start again."""
    world = await one_pod(tmp_path, "compute=10,memory=1Gi")
    await settle(world)
    adjusted = dict(world.keeper.journal.adjusted)
    assert adjusted
    world.store.pods.clear()
    world.store.history.append({})
    world.seen = len(world.store.history) - 1

    await world.adjusting.look()

    assert world.keeper.journal.adjusted == adjusted
    world.keeper.journal.close()


async def test_a_record_of_a_restored_backup_raises_nothing_that_another_pod_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is older than another running pod on the card, so the amounts do not rise over it."""
    world = await one_pod(tmp_path, "compute=10,memory=1Gi")
    backup = copy.deepcopy(world.store.pods["p0"])
    await settle(world)
    assert await world.come("p1", 90, 15)
    backup["metadata"]["annotations"].pop(names.ADJUST)
    world.store.pods = {"p0": backup}
    world.store.put(backup)
    monkeypatch.setattr(world, "check", lambda: None)  # it goes by the records
    world.seen = len(world.store.history) - 1

    await world.adjusting.look()

    amounts = {one[0]: one[2:] for one in world.enforced()}
    assert amounts == {"p0": (GIB, 100), "p1": (15 * GIB, 900)}
    conditions = world.store.pods["p0"]["status"]["conditions"]
    assert "is held by" in conditions[0]["message"]
    world.keeper.remove(Container(world.containers.pop("p1"), "s-p1", "main"))
    world.adjusting._again.clear()
    world.seen = len(world.store.history) - 1
    await world.adjusting.look()
    assert next(world.enforced())[2:] == (4 * GIB, 300)
    world.keeper.journal.close()


async def test_a_disk_that_does_not_answer_holds_up_no_answer_to_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread writes a grant meanwhile; the loop that looks at the pods also keeps the runtime's deadlines."""
    world = await one_pod(tmp_path, "compute=10,memory=1Gi")
    reached, go, genuine = threading.Event(), threading.Event(), os.fsync

    def fsync(descriptor: int) -> None:
        reached.set()
        go.wait(20)
        genuine(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        giving = threading.Thread(target=world.restart, args=("p0",))
        giving.start()
        assert await asyncio.to_thread(reached.wait, 240)
        looking = asyncio.create_task(world.adjusting.look())
        await asyncio.sleep(0.1)
        in_time = not looking.done() and giving.is_alive()
        go.set()
        await looking
        giving.join()

    assert in_time
    world.keeper.journal.close()


async def test_a_report_is_of_the_pod_that_was_read(tmp_path: Path) -> None:
    """A pod that has changed since may have another record, so old data raises nothing."""
    world = await one_pod(tmp_path, "compute=60")
    world.tell(all_of_it=True)
    await world.rest()
    await world.service.adjustments.drain()  # type: ignore[union-attr]
    (grant,) = world.records()["p0"]
    assert grant.core_milli == 600
    world.seen = len(world.store.history) - 1
    world.wish("p0", "compute=60,memory=5Gi")

    await world.look()

    assert names.ENFORCED not in world.store.pods["p0"]["metadata"]["annotations"]
    assert next(world.enforced())[3] == 300
    await settle(world)
    is_answered(world, "p0")
    world.keeper.journal.close()


async def test_a_problem_that_comes_back_is_told_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once for as long as it lasts, and again after a share was adjusted in between."""
    world = await one_pod(tmp_path, "compute=60")
    client = world.adjusting._client
    patch, told = client.patch_pod_status, []

    async def away(*_given: object, **_more: object) -> None:
        raise ApiError("PATCH", "p0", 500, Status())

    async def turn() -> None:
        for _ in range(4):
            world.tell(all_of_it=True)
            await world.service.tick()
            await world.rest()
            await world.service.adjustments.drain()  # type: ignore[union-attr]
            world.seen = len(world.store.history) - 1
            world.adjusting._again.clear()  # time that passes
            await world.adjusting.look()

    for wish in ("compute=60", "compute=70"):
        world.wish("p0", wish)
        client.patch_pod_status = away  # type: ignore[method-assign, assignment]
        await turn()
        told.append(sum("cannot be adjusted" in one.message for one in caplog.records))
        client.patch_pod_status = patch  # type: ignore[method-assign]
        await turn()
        is_answered(world, "p0")

    assert told == [1, 2]
    world.keeper.journal.close()
