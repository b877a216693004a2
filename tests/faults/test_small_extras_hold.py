"""The extras of the list: waking, rehearsals, pods without devices."""

import asyncio
import time

from bed import HALF, WHOLE, bed, node, pod, told


async def test_who_waits_is_bound_soon_after_a_release(seam: str) -> None:
    """Fifty releases in a row, a pod waiting for each: the first wake-up is enough, none is repeated (after 15 s)."""
    gaps, loop = [], asyncio.get_running_loop()
    async with bed(node(cards=1), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.pod("p0", WHOLE)
        await cluster.bound("p0")
        for number in range(50):
            await cluster.pod(f"p{number + 1}", WHOLE)
            await cluster.told(f"p{number + 1}")
            started, then = time.monotonic(), loop.time()
            await cluster.delete(f"p{number}")
            await cluster.bound(f"p{number + 1}")
            gaps.append(time.monotonic() - started)
            assert loop.time() - then < 15

        await cluster.sound("extra: woken")
    told("extra: release to next Binding, p50", sorted(gaps)[25])
    told("extra: release to next Binding, most of 50", max(gaps))


async def test_a_rehearsal_leaves_no_trace() -> None:
    """Filter without bind, as autoscalers and dry runs ask: its hold ends by itself."""
    async with bed(node(cards=1)) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        await cluster.pod("what-if", WHOLE, schedulerName="nobody")
        body = {"Pod": cluster.stored("what-if"), "NodeNames": ["n0"]}
        async with cluster.http.post(f"{daemon.url}/scheduler/filter", json=body) as answer:
            assert (await answer.json())["NodeNames"] == ["n0"]
        await cluster.delete("what-if")

        await cluster.pod("real", WHOLE)
        await cluster.bound("real")

        await cluster.sound("extra: rehearsal")


async def test_pods_without_devices_never_wait_for_the_books() -> None:
    """They pass at once, also where every card is taken and requests fail."""
    async with bed(node(cards=1)) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        await cluster.pod("a", WHOLE)
        await cluster.bound("a")
        value = pod("plain", {"cpu": "1"}, schedulerName="nobody")
        with cluster.wire.outage():
            body = {
                "Pod": value | {"metadata": {**value["metadata"], "uid": "u"}},
                "NodeNames": ["n0"],
            }
            async with cluster.http.post(f"{daemon.url}/scheduler/filter", json=body) as answer:
                assert (await answer.json())["NodeNames"] == ["n0"]
        await cluster.pod("b", HALF)
        await asyncio.gather(cluster.told("b"), cluster.sound("extra: plain pods"))
