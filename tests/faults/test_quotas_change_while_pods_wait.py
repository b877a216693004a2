"""Extra: a quota is raised, lowered and taken away while pods run and wait.

kube-scheduler does not look at quotas again, so the service wakes the pods that wait for one.
"""

import time
from typing import Any

from bed import WHOLE, Bed, bed, node, told, until

SLICE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10000"}


def quota(slices: int) -> dict[str, Any]:
    """A ResourceQuota of device memory, which kube-apiserver itself does not count."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "memory", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": str(slices * 10000)}},
    }


async def limited(cluster: Bed, slices: int) -> None:
    """Change the quota as an administrator does."""
    await cluster.server.patch("resourcequotas", "default", "memory", quota(slices))


async def waits(cluster: Bed, name: str, text: str) -> None:
    """Wait until an event on the pod says that it waits, with this text."""

    def said() -> bool:
        found = cluster.events(name, "WaitingForDevice")
        return any(text in one["message"] for one in found)

    await until(said, f"pod {name} waits with {text!r}")


async def reason(cluster: Bed, name: str) -> dict[str, Any]:
    """Why a pod waits now, by the service's own page."""
    url = cluster.relay.instances[cluster.leader()].url
    async with cluster.http.get(f"{url}/api/explain/default/{name}") as answer:
        return dict((await answer.json())["reason"])


async def test_a_quota_that_is_raised_lets_in_who_waits_at_once(seam: str) -> None:
    """As many bind as it allows, in the order of their coming; the others' numbers change with it."""
    async with bed(node(cards=2), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.create(quota(1), "resourcequotas")
        await cluster.pod("a", SLICE)
        await cluster.bound("a")
        for name in ("b", "c"):
            await cluster.pod(name, SLICE)
            await waits(cluster, name, "limited to 10000")

        started = time.monotonic()
        await limited(cluster, 2)
        await cluster.bound("b")
        told("extra: quota raised: next Binding", time.monotonic() - started)
        assert not cluster.placed("c")
        why = await reason(cluster, "c")
        assert why["code"] == "QuotaExceeded"
        assert "used 20000, limited to 20000" in why["message"]
        await cluster.sound("extra: quota raised")

        await cluster.server.delete("resourcequotas", "default", "memory")
        await cluster.bound("c")
        await cluster.sound("extra: quota taken away")


async def test_a_quota_that_is_lowered_ends_nobody_and_lets_nobody_in(seam: str) -> None:
    """What runs goes on above it; a new pod waits until enough have gone."""
    async with bed(node(cards=2), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.create(quota(2), "resourcequotas")
        await cluster.pod("a", SLICE)
        await cluster.pod("b", SLICE)
        await cluster.bound("a", "b")

        await limited(cluster, 1)
        await cluster.pod("c", SLICE)
        await waits(cluster, "c", "used 20000, limited to 10000")
        await cluster.sound("extra: quota lowered")
        for name in ("a", "b"):
            await until(
                lambda name=name: cluster.stored(name)["status"]["phase"] == "Running",  # type: ignore[misc]
                f"{name} runs",
            )
            assert not cluster.stored(name)["metadata"].get("deletionTimestamp")

        await cluster.delete("a")
        assert "limited to 10000" in (await reason(cluster, "c"))["message"]
        await cluster.delete("b")
        await cluster.bound("c")
        await cluster.sound("extra: quota lowered, and met again")


async def test_a_reason_moves_from_the_quota_to_the_cards_and_back(seam: str) -> None:
    """`explain` always names what is in the way now."""
    async with bed(node(cards=1), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.pod("full", WHOLE)
        await cluster.bound("full")
        await cluster.create(quota(0), "resourcequotas")
        await cluster.pod("waits", SLICE)
        await waits(cluster, "waits", "QuotaExceeded")

        await limited(cluster, 1)
        await cluster.sound("extra: quota raised, cards full")
        assert (await reason(cluster, "waits"))["code"] != "QuotaExceeded"
        await waits(cluster, "waits", (await reason(cluster, "waits"))["code"])

        await limited(cluster, 0)
        await cluster.sound("extra: quota lowered, cards full")
        assert (await reason(cluster, "waits"))["code"] == "QuotaExceeded"
        await cluster.delete("full")
        assert (await reason(cluster, "waits"))["code"] == "QuotaExceeded"
        await limited(cluster, 1)
        await cluster.bound("waits")
        await cluster.sound("extra: quota and cards free")
