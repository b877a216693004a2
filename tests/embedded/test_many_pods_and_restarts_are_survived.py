"""Many pods at once, and a cluster that goes on from its file."""

import asyncio
import json
from collections import Counter
from pathlib import Path

from up_world import DEVICES, PODS, World, eventually, node, pod, run, running

from partage.embedded.cluster import EmbeddedCluster, Plan
from partage.embedded.manifests import Manifest
from partage.vendors import names

SHAPES = (
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    {"tke.cloud.tencent.com/qgpu-core": "25", "tke.cloud.tencent.com/qgpu-memory": "16"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "25"},
    {"koordinator.sh/gpu": "100"},
)


async def taken(w: World) -> Counter[str]:
    """Thousandths of each card that bound pods' records hold."""
    found: Counter[str] = Counter()
    for one in (await w.get(PODS))["items"]:
        text = one["metadata"].get("annotations", {}).get(names.ALLOCATION)
        for container in json.loads(text)["containers"] if text else ():
            for grant in container["devices"]:
                found[grant["uuid"]] += grant["milli"]
    return found


def test_many_pods_at_once_all_find_their_place() -> None:
    """Forty cards, eighty pods of four protocols that just fill half: all run, nothing twice."""

    async def story() -> None:
        fleet = [node(f"n{index}", cards=8) for index in range(5)]
        async with running(fleet) as w:
            for index in range(60):
                await w.create(PODS, pod(f"p{index}", SHAPES[index % 4]))
            await eventually(
                lambda: w.get(PODS),
                lambda found: all(
                    one["status"].get("phase") == "Running" for one in found["items"]
                ),
            )
            cards = await taken(w)

            assert max(cards.values()) <= 1000, f"I1: {cards}"
            assert sum(cards.values()) == 15 * (500 + 250 + 250 + 1000)
            assert w.cluster.conflicts == 0

    run(story())


def test_a_start_leaves_others_their_turns() -> None:
    """Between two turns of the loop a few objects are written, or a large cluster's own parts would count as away."""
    pods = [Manifest("here", pod(f"p{number}", SHAPES[3])) for number in range(40)]
    cluster = EmbeddedCluster(Plan(simulated=[node(f"n{n}") for n in range(40)], objects=pods))
    steps: list[int] = []

    async def look() -> None:
        store = cluster.server.store
        seen = store.revision
        while True:
            await asyncio.sleep(0)
            steps.append(store.revision - seen)
            seen = store.revision

    async def story() -> None:
        looking = asyncio.create_task(look())
        async with cluster:
            looking.cancel()

    run(story())
    assert sum(steps) > 200
    assert max(steps) < 25, max(steps)


def test_a_crowd_waits_and_is_served_as_room_appears() -> None:
    """Ten pods for two cards, each short: all of them come to their end."""

    async def story() -> None:
        async with running([node(cards=2)]) as w:
            short = {"annotations": {names.SIMULATE_LIFETIME: "0.05s"}}
            for index in range(10):
                await w.create(PODS, pod(f"p{index}", SHAPES[3], meta=short))
            await eventually(
                lambda: w.get(PODS),
                lambda found: all(
                    one["status"].get("phase") == "Succeeded" for one in found["items"]
                ),
            )

    run(story())


def test_a_cluster_goes_on_from_its_file(tmp_path: Path) -> None:
    """Pods keep their places and the books know it; the agent still answers for its node."""
    file = tmp_path / "state"
    fleet = [node(cards=1)]

    async def first() -> None:
        async with running(fleet, file=file) as w:
            await w.create(PODS, pod("holder", SHAPES[3]))
            await w.phase("holder", "Running")

    async def second() -> None:
        async with running((), file=file, resumable=fleet) as w:
            found = await w.phase("holder", "Running")
            assert found["status"]["containerStatuses"][0]["restartCount"] == 0
            await w.create(PODS, pod("second", SHAPES[3]))
            assert await w.refused("second")
            await w.send("DELETE", f"{PODS}/holder", {})
            await w.phase("second", "Running")
            await w.patch(
                "/api/v1/nodes/n0", {"metadata": {"annotations": {names.SIMULATE_UNHEALTHY: "0"}}}
            )
            await eventually(
                lambda: w.get(f"{DEVICES}/n0"),
                lambda device: not device["spec"]["devices"][0]["health"],
            )

    run(first())
    run(second())
