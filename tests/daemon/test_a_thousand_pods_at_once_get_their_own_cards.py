"""Crowds: many pods arrive at once, and many pods wait for one that ends."""

import asyncio

from daemon_world import World, until, world

from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.vendors import names

WHOLE = {"koordinator.sh/gpu": "100"}
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}


async def placed_by(cluster: World, url: str, name: str) -> None:
    """Schedule a pod until it is bound, as kube-scheduler would."""
    for _ in range(10_000):
        if await cluster.schedule(url, name):
            return
        await asyncio.sleep(0.02)


async def test_a_thousand_pods_created_at_once_are_all_bound() -> None:
    """100 nodes of 8 cards, 400 pods of a card and 600 of half a card, all at the same time."""
    async with (
        world(nodes=100, cards=8) as cluster,
        SchedulerDaemon(await cluster.client()) as daemon,
    ):
        for number in range(1000):
            await cluster.pod(f"p{number}", WHOLE if number % 5 < 2 else HALF)

        async with asyncio.timeout(240):
            await asyncio.gather(
                *(placed_by(cluster, daemon.url, f"p{number}") for number in range(1000))
            )

        taken = cluster.taken()
        assert sum(taken.values()) == 400 * 1000 + 600 * 500
        assert max(taken.values()) == 1000
        await until(lambda: daemon.service.audit().clean)


async def test_a_card_passes_from_one_pod_to_the_next() -> None:
    """Twenty pods wait for one card. The end of each wakes the next, and every pod gets the card."""
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), SchedulerOptions(tick=0.05)) as daemon,
    ):
        waiting = [f"p{number}" for number in range(20)]
        for name in waiting:
            await cluster.pod(name, WHOLE)
        assert await cluster.schedule(daemon.url, waiting[0]) == "n0"
        for name in waiting[1:]:
            assert await cluster.schedule(daemon.url, name) == ""

        holder, bound = waiting[0], 1
        tried: dict[str, str] = {}
        await cluster.delete(holder)
        async with asyncio.timeout(240):
            while bound < len(waiting):
                await asyncio.sleep(0.01)
                for record in list(cluster.api.store.all("pods")):
                    meta = record.value["metadata"]
                    woken = meta.get("annotations", {}).get(names.WOKEN, "")
                    if cluster.placed(meta["name"]) or tried.get(meta["name"], "") == woken:
                        continue
                    tried[meta["name"]] = woken
                    if await cluster.schedule(daemon.url, meta["name"]):
                        bound += 1
                        await cluster.delete(meta["name"])
                        break
