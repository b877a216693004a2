"""A running cluster of HAMi or Koordinator is taken over, and is later returned to them.

Their pods have their annotations and nothing of ours. After the return the tests read as these systems
do: from their annotations alone, by sums in this file that do not use the product.
"""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from daemon_world import World, node, pod, until, world

from partage.apiserver import DeleteOptions
from partage.controllers.manager import ControllerSettings
from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.model.device import DeviceType
from partage.vendors import names

LOCK = "hami.io/mutex.lock"
CARDS = ("GPU-0", "GPU-1")
REGISTER = json.dumps(
    [
        {
            "id": uuid,
            "index": index,
            "count": 10,
            "devmem": 16384,
            "devcore": 100,
            "type": "NVIDIA A100-SXM4-40GB",
            "mode": "hami-core",
            "health": True,
        }
        for index, uuid in enumerate(CARDS)
    ]
)
OPTIONS = SchedulerOptions(tick=0.05, controllers=ControllerSettings(grace=0.1))
Amounts = Counter[tuple[str, str, str]]


def lock(pod_name: str, age: float) -> str:
    """A lock's text: its time, and its pod."""
    taken = datetime.now(UTC) - timedelta(seconds=age)
    return f"{taken.isoformat(timespec='seconds')},default,{pod_name}"


def hami_node(name: str, **annotations: str) -> dict[str, Any]:
    """A node as HAMi's plugin registers it."""
    value = node(name)
    value["metadata"]["annotations"] = {"hami.io/node-nvidia-register": REGISTER, **annotations}
    value["status"]["allocatable"]["nvidia.com/gpu"] = "20"
    return value


def hami_pod(name: str, where: str, text: str, phase: str = "success") -> dict[str, Any]:
    """A pod that HAMi has placed: what it asked, and what HAMi wrote."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
    value = pod(name, limits, schedulerName="hami-scheduler", nodeName=where)
    value["metadata"]["annotations"] = {
        "hami.io/vgpu-node": where,
        "hami.io/vgpu-time": "1763770000",
        "hami.io/vgpu-devices-allocated": text,
        "hami.io/vgpu-devices-to-allocate": text if phase == "allocating" else ";",
        "hami.io/bind-phase": phase,
        "hami.io/bind-time": "1763770000",
    }
    return value


def hami_sees(cluster: World) -> Amounts:
    """What HAMi finds on its cards: MiB and percent, from its own annotation alone."""
    found: Amounts = Counter()
    for record in cluster.api.store.all("pods"):
        notes = record.value["metadata"].get("annotations", {})
        text = notes.get("hami.io/vgpu-devices-allocated")
        if not text or notes.get("hami.io/vgpu-node") != record.value["spec"].get("nodeName"):
            continue
        for part in text.replace(";", ":").split(":"):
            if part:
                uuid, _, memory, cores = part.split(",")
                found[notes["hami.io/vgpu-node"], uuid, "mib"] += int(memory)
                found[notes["hami.io/vgpu-node"], uuid, "percent"] += int(cores)
    return found


def koordinator_sees(cluster: World) -> Amounts:
    """What Koordinator finds on its cards, from its own annotation alone; either dialect."""
    found: Amounts = Counter()
    for record in cluster.api.store.all("pods"):
        notes = record.value["metadata"].get("annotations", {})
        text = notes.get("scheduling.koordinator.sh/device-allocated")
        where = record.value["spec"].get("nodeName")
        for card in json.loads(text)["gpu"] if text and where else ():
            for name, amount in card["resources"].items():
                found[where, str(card["minor"]), name.partition("/")[2]] += quantity(amount)
    return found


def quantity(text: str) -> int:
    """Bytes or a plain number, in the two units that are written here."""
    return int(text[:-2]) * 2**30 if text.endswith("Gi") else int(text)


def ours(daemon: SchedulerDaemon) -> Amounts:
    """What our books say is used: MiB and percent, by node and card."""
    ledger, found = daemon.service.books.engine.ledger, Counter[tuple[str, str, str]]()
    for name, index in ledger.index.items():
        for card in ledger.cards(DeviceType.GPU, index):
            used = card.device.memory_bytes - card.memory_free
            found[name, card.device.uuid, "mib"] = used // 2**20
            found[name, card.device.uuid, "percent"] = (1000 - card.core_free) // 10
    return +found


async def in_the_books(daemon: SchedulerDaemon, nodes: int) -> None:
    """The scheduler knows every node."""
    await until(lambda: len(daemon.service.books.engine.ledger.index) == nodes)


async def test_a_running_hami_is_taken_over_and_gets_its_cluster_back() -> None:
    """Placed and half-placed pods count; a dead lock is removed, and a live one stays and stops no pod."""
    held = {"fresh": lock("starts", 1), "stale": lock("never", 3600)}
    async with world(nodes=0) as cluster:
        for name, text in held.items():
            await cluster.api.create("nodes", hami_node(name, **{LOCK: text}))
            cluster.names.append(name)
        for value in (
            hami_pod("runs", "fresh", "GPU-0,NVIDIA,4096,30:;"),
            hami_pod("starts", "fresh", "GPU-1,NVIDIA,4096,30:;", "allocating"),
            hami_pod("full", "stale", "GPU-0,NVIDIA,16384,100:;"),
        ):
            await cluster.api.create("pods", value, "default")
        before = hami_sees(cluster)

        async with SchedulerDaemon(await cluster.client(), OPTIONS) as daemon:
            await in_the_books(daemon, 2)
            assert ours(daemon) == before
            assert not daemon.service.books.engine.ledger.suspicions()
            await until(
                lambda: LOCK not in cluster.stored("stale", "nodes", "")["metadata"]["annotations"]
            )
            assert (
                cluster.stored("fresh", "nodes", "")["metadata"]["annotations"][LOCK]
                == held["fresh"]
            )

            limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "12288"}
            for number in range(3):
                await cluster.pod(f"new-{number}", limits, schedulerName="hami-scheduler")
                assert await cluster.schedule(daemon.url, f"new-{number}")
            await cluster.pod("too-much", limits, schedulerName="hami-scheduler")
            assert not await cluster.schedule(daemon.url, "too-much")
            after = ours(daemon)

        assert hami_sees(cluster) == after
        assert after.total() > before.total()


async def test_what_hami_did_in_between_is_found_when_we_come_back() -> None:
    """After install, rollback and a new install, pods that HAMi placed and removed meanwhile count."""
    async with world(nodes=0) as cluster:
        await cluster.api.create("nodes", hami_node("a"))
        cluster.names.append("a")
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16384"}
        async with SchedulerDaemon(await cluster.client(), OPTIONS) as daemon:
            await in_the_books(daemon, 1)
            await cluster.pod("first", limits, schedulerName="hami-scheduler")
            assert await cluster.schedule(daemon.url, "first") == "a"
        (used,) = {uuid for _, uuid, _ in hami_sees(cluster)}
        (free,) = {*CARDS} - {used}

        await cluster.api.delete("pods", "default", "first", DeleteOptions(grace=0))
        theirs = hami_pod("theirs", "a", f"{free},NVIDIA,16384,0:;")
        await cluster.api.create("pods", theirs, "default")

        async with SchedulerDaemon(await cluster.client(), OPTIONS) as daemon:
            await in_the_books(daemon, 1)
            await cluster.pod("next", limits, schedulerName="hami-scheduler")
            assert await cluster.schedule(daemon.url, "next") == "a"
            notes = cluster.stored("next")["metadata"]["annotations"]
            assert notes["hami.io/vgpu-devices-allocated"].startswith(used)


async def test_a_running_koordinator_is_taken_over_and_gets_its_cluster_back() -> None:
    """Pods of both dialects count; our records are written as Koordinator reads them."""

    def placed(name: str, dialect: str, minor: int, percent: int) -> dict[str, Any]:
        amounts = {
            f"{dialect}/gpu-core": str(percent),
            f"{dialect}/gpu-memory-ratio": str(percent),
            f"{dialect}/gpu-memory": f"{16 * percent // 100}Gi",
        }
        asked = {f"{dialect}/gpu": str(percent)}
        value = pod(name, asked, schedulerName="koord-scheduler", nodeName="n0")
        told = {"gpu": [{"minor": minor, "resources": amounts}]}
        value["metadata"]["annotations"] = {
            "scheduling.koordinator.sh/device-allocated": json.dumps(told)
        }
        return value

    async with world(nodes=1) as cluster:
        for value in (
            placed("old", "kubernetes.io", 0, 50),
            placed("new", "koordinator.sh", 1, 100),
        ):
            await cluster.api.create("pods", value, "default")

        async with SchedulerDaemon(await cluster.client(), OPTIONS) as daemon:
            await in_the_books(daemon, 1)
            await until(lambda: ours(daemon)["n0", "GPU-n0-0", "percent"] == 50)
            assert ours(daemon)["n0", "GPU-n0-1", "percent"] == 100
            for name, dialect in (("one", "kubernetes.io"), ("two", "koordinator.sh")):
                asked = {f"{dialect}/gpu": "25"}
                await cluster.pod(name, asked, schedulerName="koord-scheduler")
                assert await cluster.schedule(daemon.url, name) == "n0"
            await cluster.pod("more", asked, schedulerName="koord-scheduler")
            assert not await cluster.schedule(daemon.url, "more")

        seen = koordinator_sees(cluster)
        assert {key: seen[key] for key in seen if key[2] == "gpu-core"} == {
            ("n0", "0", "gpu-core"): 100,
            ("n0", "1", "gpu-core"): 100,
        }
        assert seen["n0", "0", "gpu-memory"] == seen["n0", "1", "gpu-memory"] == 16 * 2**30


async def test_a_record_of_ours_that_they_ignored_is_no_claim_on_theirs() -> None:
    """HAMi placed a copy of our pod elsewhere: the copied record closes no card forever.

    The record's uid is another pod's, so its card is in doubt: it stays closed, with a report, until the pod is gone.
    """
    async with world(nodes=0) as cluster:
        await cluster.api.create("nodes", hami_node("a"))
        cluster.names.append("a")
        copied = hami_pod("copy", "a", "GPU-0,NVIDIA,4096,30:;")
        record = {"v": 1, "uid": "another", "node": "a", "containers": []}
        copied["metadata"]["annotations"][names.ALLOCATION] = json.dumps(record)
        await cluster.api.create("pods", copied, "default")

        async with SchedulerDaemon(await cluster.client(), OPTIONS) as daemon:
            await in_the_books(daemon, 1)
            await until(lambda: bool(daemon.service.books.engine.ledger.suspicions()))
            await cluster.pod("next", {"nvidia.com/gpu": "1"}, schedulerName="hami-scheduler")
            assert not await cluster.schedule(daemon.url, "next")
            await cluster.delete("copy")
            await until(lambda: not daemon.service.books.engine.ledger.suspicions())
            assert await cluster.schedule(daemon.url, "next") == "a"
