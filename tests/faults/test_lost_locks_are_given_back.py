"""Scenarios 7 and 14: the write that releases a vendor's lock is lost, and its leader may be too."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from bed import HALF, Bed, bed, node, told, until
from ways import WAYS

from fakes.wire import Fault, Wire
from partage.daemon.binding import ApiNodeLocks
from partage.extender.ports import Outcome
from partage.kube.errors import Conflict, NotServed
from partage.vendors import names

ASKS = {"metax-tech.com/sgpu": "1", **HALF}
KEY = names.METAX_LOCK
SOON = 240.0
"""Seconds until it is given up; the controller takes a lock off after 300, so that was not it."""
NODE = "/api/v1/nodes/m0"
REFUSED: dict[str, Any] = {"method": "POST", "path": "/pods/one/binding", "status": 409}
LOST = {"conflict": 7, "internal error": 3, "timeout": 3, "no answer": 3, "late": 3}
"""How often the write fails, by the way in which it does; one that conflicts is tried at once."""


def held(cluster: Bed) -> str:
    """The lock on the node; empty when there is none."""
    notes = cluster.stored("m0", "nodes")["metadata"].get("annotations") or {}
    return str(notes.get(KEY, ""))


def losing(way: str, times: int) -> Callable[[Any], Fault | None]:
    """Hit so many changes of the node itself."""
    rest = [Fault(**WAYS[way]) for _ in range(times)]

    def chance(request: Any) -> Fault | None:
        hits = request.method == "PATCH" and request.path == NODE and rest
        return rest.pop() if hits else None

    return chance


@pytest.mark.parametrize("way", LOST)
async def test_a_lost_write_costs_seconds(way: str, seam: str) -> None:
    """The Binding is refused, and its lock stays for want of a write: it is written again."""
    async with bed(node("m0", 1, model="C500", mode="sgpu"), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        cluster.wire.fail(Fault(**REFUSED, reason="Conflict", delay=0.5))
        await cluster.pod("one", ASKS)
        await until(lambda: held(cluster), "the lock is taken")
        cluster.wire.chance = losing(way, LOST[way])
        await cluster.pod("two", ASKS)

        started = time.monotonic()
        await until(lambda: cluster.placed("one") and cluster.placed("two"), "both bound", SOON)

        told(f"7: a vendor's lock whose give-back was lost: {way}", time.monotonic() - started)
        await until(lambda: not held(cluster), "the lock is off")
        assert len([hit for hit in cluster.wire.struck if hit == ("PATCH", NODE)]) >= 2
        await cluster.sound(f"7: lost lock, {way}")


@pytest.mark.parametrize("first", ["one", "two"])
async def test_a_lost_leader_leaves_no_lock_that_anybody_waits_for(first: str) -> None:
    """It can neither bind nor release; the next leader binds the lock's pod, or another."""
    async with (
        bed(node("m0", 1, model="C500", mode="sgpu")) as cluster,
        Wire(cluster.url) as wire,
    ):
        await cluster.daemon("old", url=wire.url)
        await cluster.led("old")
        wire.fail(Fault(**REFUSED, reason="Conflict", delay=0.5))
        await cluster.pod("one", ASKS)
        await until(lambda: held(cluster), "the lock is taken")
        wire.cut = True
        left = held(cluster)
        if first == "two":
            await cluster.pod("two", ASKS, schedulerName="by-hand")
        await cluster.daemon("new", quiet_period=2.5)
        await cluster.led("new")

        started = time.monotonic()
        if first == "two":
            await bind_by_hand(cluster, "two")
        await until(lambda: cluster.placed("one"), "bound", SOON)

        told(f"7: lock of a lost leader: {first} first", time.monotonic() - started)
        assert left != held(cluster)
        wire.heal()
        await until(lambda: not held(cluster), "the plugin takes it off")
        await cluster.sound(f"7: lock of a lost leader, {first} first")


async def bind_by_hand(cluster: Bed, name: str) -> None:
    """Ask the leader to bind a pod until it does."""
    url = cluster.daemons["new"].url
    uid = cluster.stored(name)["metadata"]["uid"]
    body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": "m0"}
    end = time.monotonic() + SOON
    while True:
        asked = {"Pod": cluster.stored(name), "NodeNames": ["m0"]}
        await cluster.http.post(f"{url}/scheduler/filter", json=asked)
        async with cluster.http.post(f"{url}/scheduler/bind", json=body) as answer:
            error = (await answer.json())["Error"]
        if not error:
            return
        assert time.monotonic() < end, error
        await asyncio.sleep(0.1)


async def test_a_lock_is_only_taken_off_or_over_as_it_was_read() -> None:
    """Others' words stay, and a node that changes all the time is no reason to believe it done."""
    ours, theirs = ({KEY: f"2026-01-01T00:00:0{n}Z,default,web"} for n in (1, 2))
    async with bed(node("m0", 1, model="C500", mode="sgpu")) as cluster:
        locks = ApiNodeLocks(await cluster.client())

        async def now(lock: dict[str, str | None]) -> None:
            await cluster.patch("m0", {"metadata": {"annotations": lock}}, "nodes")

        assert (await locks.take("m0", ours, {})).outcome is Outcome.DONE
        assert (await locks.take("m0", ours, {})).outcome is Outcome.DONE, "it is there already"
        await now({**theirs})
        assert not await locks.give_back("m0", ours)
        refused = await locks.take("m0", ours, {KEY: "others"})
        assert (refused.outcome, dict(refused.held)) == (Outcome.REFUSED, theirs)
        assert refused.message == f"others have {KEY}", "the pod in it may be of another namespace"
        assert held(cluster) == theirs[KEY]
        assert (await locks.take("m0", ours, theirs)).outcome is Outcome.DONE
        cluster.wire.fail(Fault(method="PATCH", path=NODE, times=5, **WAYS["conflict"]))
        with pytest.raises(Conflict):
            await locks.give_back("m0", ours)
        cluster.wire.fail(Fault(path=NODE, status=404))  # of a proxy, which knows no node
        with pytest.raises(NotServed):
            await locks.give_back("m0", ours)
        assert held(cluster) == ours[KEY]
        assert await locks.give_back("m0", ours)
        assert not held(cluster)
        assert not await locks.give_back("nowhere", ours)
