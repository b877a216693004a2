"""A second manager still allocates Partage's cards: HAMi's or Koordinator's scheduler, or NVIDIA's plugin.

The other manager keeps its own books: it reads its own annotations, writes its own records and its
lock, and does not know ours. Nothing can prevent that, so Partage must allocate no device that it
knows to be in use. If two records meet, it must report them, close the card to new pods, and open
it by itself after the conflict.
"""

import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sized
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from daemon_world import World, pod, until, world

from partage.cli.doctor import facts_of, listed
from partage.controllers.manager import ControllerSettings
from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.doctor.checks import diagnosed
from partage.model.device import DeviceType
from partage.vendors import names

OPTIONS = SchedulerOptions(tick=0.05, controllers=ControllerSettings(grace=0.1))
MIB = 16384
"""Of each card."""
CARDS = ("GPU-n0-0", "GPU-n0-1")
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}


@contextlib.asynccontextmanager
async def shared() -> AsyncIterator[tuple[World, SchedulerDaemon]]:
    """A node of two cards, and our scheduler."""
    async with (
        world(nodes=1) as cluster,
        SchedulerDaemon(await cluster.client(), OPTIONS) as daemon,
    ):
        await until(lambda: len(daemon.service.books.engine.ledger.index) == 1)
        yield cluster, daemon


def hamis(name: str, uuid: str, mib: int) -> dict[str, Any]:
    """A pod as HAMi's scheduler leaves it: placed, with its own record."""
    asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib)}
    value = pod(name, asked, schedulerName="hami-scheduler", nodeName="n0")
    value["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "n0",
        "hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,{mib},0:;",
        "hami.io/bind-phase": "success",
    }
    return value


def koordinators(name: str, uuid: str, mib: int) -> dict[str, Any]:
    """A pod as Koordinator's scheduler leaves it."""
    amounts = {
        "koordinator.sh/gpu-core": str(mib * 100 // MIB),
        "koordinator.sh/gpu-memory-ratio": str(mib * 100 // MIB),
        "koordinator.sh/gpu-memory": f"{mib}Mi",
    }
    asked = {key: amounts[key] for key in HALF}
    value = pod(name, asked, schedulerName="koord-scheduler", nodeName="n0")
    told = {"gpu": [{"minor": CARDS.index(uuid), "resources": amounts}]}
    value["metadata"]["annotations"] = {
        "scheduling.koordinator.sh/device-allocated": json.dumps(told)
    }
    return value


RIVALS = {"HAMi": hamis, "Koordinator": koordinators}


async def seen(daemon: SchedulerDaemon, *uids: str) -> None:
    """Our books know what the other one did."""
    await until(lambda: all(uid in daemon.service.books.engine.ledger for uid in uids))


async def placed_by_rival(cluster: World, value: dict[str, Any]) -> str:
    """Bind a pod past us; its uid."""
    record = await cluster.api.create("pods", value, "default")
    return str(record.value["metadata"]["uid"])


def record(cluster: World, name: str) -> list[dict[str, Any]]:
    """What our record gives a pod."""
    text = cluster.stored(name)["metadata"]["annotations"][names.ALLOCATION]
    return [one for each in json.loads(text)["containers"] for one in each["devices"]]


def woken(cluster: World, name: str) -> bool:
    """Whether the service has asked kube-scheduler to try a pod again."""
    return names.WOKEN in cluster.stored(name)["metadata"].get("annotations", {})


async def series(cluster: World, url: str, name: str) -> float:
    """The sum of a metric's rows that hold a text."""
    async with cluster.http.get(f"{url}/metrics") as answer:
        rows = (await answer.text()).splitlines()
    return sum(float(row.rpartition(" ")[2]) for row in rows if name in row)


async def explained(cluster: World, url: str, name: str) -> dict[str, Any]:
    """Why a pod is where it is."""
    async with cluster.http.get(f"{url}/api/explain/default/{name}") as answer:
        return dict(await answer.json())


async def diagnosis(cluster: World) -> dict[str, str]:
    """What the doctor finds: the rule by check."""
    kinds = {"Node": "nodes", "Pod": "pods", "Device": "devices.scheduling.koordinator.sh"}
    objects = {
        kind: listed(
            kind, [json.dumps(one.value).encode() for one in cluster.api.store.all(where)]
        )
        for kind, where in kinds.items()
    }
    found = diagnosed(facts_of(objects, datetime.now(UTC)))
    return {one.check: one.rule for one in found}


@pytest.mark.parametrize("rival", RIVALS)
async def test_a_card_that_is_given_twice_is_closed_until_that_is_over(rival: str) -> None:
    """Event, metric, explain and doctor report it, doctor with both pods' names; the other card goes on."""
    async with shared() as (cluster, daemon):
        await cluster.pod("ours")
        assert await cluster.schedule(daemon.url, "ours") == "n0"
        mine = record(cluster, "ours")[0]["uuid"]
        uid = await placed_by_rival(cluster, RIVALS[rival]("theirs", mine, MIB // 2))
        await seen(daemon, uid)

        both, told = "default/ours and default/theirs", "over-committed by 2 pods"
        await until(lambda: any(told in one["message"] for one in cluster.events("n0")))
        assert await series(cluster, daemon.url, 'state="quarantined"') > 0
        assert both in (await diagnosis(cluster))["card-given-twice"]
        assert daemon.service.audit().clean

        await cluster.pod("next")
        assert await cluster.schedule(daemon.url, "next") == "n0"
        assert record(cluster, "next")[0]["uuid"] != mine
        await cluster.pod("waits", HALF)
        assert not await cluster.schedule(daemon.url, "waits")
        assert told in json.dumps((await explained(cluster, daemon.url, "waits"))["reason"])

        await cluster.delete("theirs")
        await cluster.delete("ours")
        await until(lambda: woken(cluster, "waits"))
        assert await cluster.schedule(daemon.url, "waits") == "n0"
        assert await series(cluster, daemon.url, 'state="quarantined"') == 0
        assert "card-given-twice" not in await diagnosis(cluster)


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_that_a_rival_was_seen_to_give_is_given_again(rival: str, seed: int) -> None:
    """The rival goes on without knowing us, with its lock on the node; our pods get free devices only."""
    chance = random.Random(seed)  # noqa: S311 # repeatable
    lock = {"metadata": {"annotations": {"hami.io/mutex.lock": ""}}}
    async with shared() as (cluster, daemon):
        theirs: dict[str, tuple[str, int]] = {}
        bound: list[str] = []
        for number in range(25):
            name, uuid = f"theirs-{number}", chance.choice(CARDS)
            mib = chance.choice((MIB // 4, MIB // 2))
            lock["metadata"]["annotations"]["hami.io/mutex.lock"] = (
                f"{datetime.now(UTC).isoformat(timespec='seconds')},default,{name}"
            )
            await cluster.api.patch("nodes", "", "n0", lock)
            await seen(daemon, await placed_by_rival(cluster, RIVALS[rival](name, uuid, mib)))
            theirs[name] = uuid, mib
            if len(theirs) > 2:
                gone = chance.choice([*theirs])
                del theirs[gone]
                await cluster.delete(gone)
            if len(bound) > 1:
                await cluster.delete(bound.pop(chance.randrange(len(bound))))
            ledger = daemon.service.books.engine.ledger
            await until(lambda: len([*ledger.allocations()]) == len(theirs) + len(bound))  # noqa: B023 # awaited here

            await cluster.pod(f"ours-{number}", HALF)
            if await cluster.schedule(daemon.url, f"ours-{number}"):
                bound.append(f"ours-{number}")
                (given,) = record(cluster, f"ours-{number}")
                used = Counter({given["uuid"]: 0})
                for one in bound:
                    used.update({d["uuid"]: d["bytes"] // 2**20 for d in record(cluster, one)})
                for card, taken in theirs.values():
                    used[card] += taken
                assert used[given["uuid"]] <= MIB
            else:
                await cluster.delete(f"ours-{number}")

        assert bound
        assert daemon.service.audit().clean


def _so_many(told: Callable[[], Sized], count: int) -> bool:
    return len(told()) == count


async def test_pods_of_nvidias_plugin_alone_close_as_many_cards_as_they_may_have() -> None:
    """The cluster's own scheduler counts cards and names none: with two such pods no card is allocated."""
    async with shared() as (cluster, daemon):
        for count, name in enumerate(("plain", "other"), 1):
            value = pod(
                name, {"nvidia.com/gpu": "1"}, schedulerName="default-scheduler", nodeName="n0"
            )
            await placed_by_rival(cluster, value)
            doubts = daemon.service.books.engine.ledger.suspicions
            await until(partial(_so_many, doubts, count))
            cards = daemon.service.books.engine.ledger.cards(DeviceType.GPU, 0)
            assert sum(one.closed is not None for one in cards) == count
        await cluster.pod("waits", HALF)

        assert not await cluster.schedule(daemon.url, "waits")
        told = await explained(cluster, daemon.url, "waits")
        assert told["reason"]["code"] == "Quarantined"
        assert "has no record" in json.dumps(told["reason"])
        await until(lambda: any(e["reason"] == "Quarantined" for e in cluster.events("n0")))
        await until(lambda: any("record" in e["message"] for e in cluster.events("plain")))
        assert "bound-without-record" in await diagnosis(cluster)

        await cluster.delete("plain")
        await until(lambda: woken(cluster, "waits"))
        assert await cluster.schedule(daemon.url, "waits") == "n0"
