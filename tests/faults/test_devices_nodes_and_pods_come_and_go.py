"""Scenarios 3, 4, 10, 12, 13 and 14: cards that fail, nodes that are made again, pods that end in any way."""

import time
from typing import Any

import pytest
from bed import DEVICES, HALF, WHOLE, Bed, bed, node, pod, told, until

from partage.vendors import names


def health(cards: str | None) -> dict[str, Any]:
    """What makes a simulated node's cards ill."""
    return {"metadata": {"annotations": {names.SIMULATE_UNHEALTHY: cards}}}


async def healthy(cluster: Bed, name: str, ill: set[int]) -> None:
    """Wait until the Device object says which cards are ill."""

    def now() -> set[int]:
        devices = cluster.stored(name, DEVICES)["spec"]["devices"]
        return {one["minor"] for one in devices if not one["health"]}

    await until(lambda: now() == ill, f"cards {ill} of {name} are ill")


async def runs(cluster: Bed, name: str) -> None:
    """Wait until a pod runs."""
    await until(lambda: cluster.stored(name)["status"].get("phase") == "Running", f"{name} runs")


async def test_an_ill_card_takes_nobody_and_serves_again_once_it_is_well(seam: str) -> None:
    """Its pod runs on and keeps what it has; a waiting pod is bound as soon as the card is back."""
    async with bed(node(cards=2), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.pod("running", WHOLE)
        await runs(cluster, "running")
        minor = int(
            cluster.cards("running")[0]
            != cluster.stored("n0", DEVICES)["spec"]["devices"][0]["id"]
        )
        other = 1 - minor
        await cluster.patch("n0", health("0,1"), "nodes")
        await healthy(cluster, "n0", {0, 1})
        await cluster.pod("waits", WHOLE)
        await cluster.told("waits")
        found = await cluster.sound("3: card ill")
        assert found.explained[cluster.stored("waits")["metadata"]["uid"]]["reason"]["code"]

        started = time.monotonic()
        await cluster.patch("n0", health(str(minor)), "nodes")
        await cluster.bound("waits")
        told("3: card well: next Binding", time.monotonic() - started)

        await healthy(cluster, "n0", {minor})
        assert cluster.stored("running")["status"]["phase"] == "Running"
        assert cluster.cards("waits") == [
            cluster.stored("n0", DEVICES)["spec"]["devices"][other]["id"]
        ]
        await cluster.sound("3: card well")


async def test_a_card_that_is_swapped_is_another_card(seam: str) -> None:
    """A new UUID under the old number: what its pod has is unknown, so the node takes no pod."""
    async with bed(node(cards=2), foreign={"before"}, seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.pod("before", WHOLE)
        await runs(cluster, "before")  # else the kubelet would refuse it, and its place be free
        device = cluster.stored("n0", DEVICES)
        (had,) = cluster.cards("before")
        for one in device["spec"]["devices"]:
            if one["id"] == had:
                one["id"] = "GPU-swapped"
        await cluster.server.update(DEVICES, device)

        await until(lambda: cluster.events("n0", "Quarantined"), "an event says so")
        for name in ("one", "two"):
            await cluster.pod(name, WHOLE)
            await cluster.told(name)
        found = await cluster.sound("3: card swapped")
        reasons = {one["reason"]["code"] for one in found.explained.values()}
        assert reasons == {"Quarantined"}
        started = time.monotonic()
        await cluster.delete("before")
        await cluster.bound("one", "two")
        told("3: card swapped, pod gone: next Binding", time.monotonic() - started)
        assert "GPU-swapped" in cluster.cards("one") + cluster.cards("two")
        await cluster.sound("3: card swapped, pod gone")


async def test_a_card_that_vanishes_closes_no_other(seam: str) -> None:
    """Its pod keeps it, and the other cards take pods; no pod gets it twice when it is back."""
    async with bed(node(cards=3), foreign={"before"}, seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.pod("before", WHOLE)
        await runs(cluster, "before")
        device = cluster.stored("n0", DEVICES)
        there = device["spec"]["devices"]
        (had,) = cluster.cards("before")
        device["spec"]["devices"] = [one for one in there if one["id"] != had]
        await cluster.server.update(DEVICES, device)

        await cluster.pod("one", WHOLE)
        await cluster.bound("one")
        assert not cluster.events("n0", "Quarantined")
        device = {**cluster.stored("n0", DEVICES), "spec": {"devices": there}}
        await cluster.server.update(DEVICES, device)
        for name in ("two", "three"):
            await cluster.pod(name, WHOLE)
        await until(lambda: cluster.cards("two") or cluster.cards("three"), "one is bound")

        given = [
            card for name in ("before", "one", "two", "three") for card in cluster.cards(name)
        ]
        assert sorted(given) == sorted(one["id"] for one in there)
        await cluster.sound("3: card vanished and back")


@pytest.mark.parametrize("cards", [1, 2], ids=["fewer cards", "other cards"])
async def test_a_node_that_comes_anew_under_its_name_is_another_node(
    cards: int, seam: str
) -> None:
    """Its pods went with it; nothing of them is left, and the new cards are allocated."""
    async with bed(node(cards=2), node("n1", 1), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        for name in "abc":
            await cluster.pod(name, WHOLE)
        await cluster.bound(*"abc")
        manifest = cluster.stored("n0", "nodes")
        device = cluster.stored("n0", DEVICES)
        await cluster.delete("n0", "nodes")
        await cluster.delete("n0", DEVICES)
        await until(lambda: sum(bool(cluster.stored(name)) for name in "abc") == 1, "pods go")

        started = time.monotonic()
        head = {"name": "n0", "labels": manifest["metadata"].get("labels", {})}
        status = {k: v for k, v in manifest["status"].items() if k in {"allocatable", "capacity"}}
        await cluster.create(
            {"apiVersion": "v1", "kind": "Node", "metadata": head, "status": status}, "nodes"
        )
        for number, one in enumerate(device["spec"]["devices"]):
            one["id"] = f"GPU-new-{number}"
        spec = {**device["spec"], "devices": device["spec"]["devices"][:cards]}
        kind = {"apiVersion": device["apiVersion"], "kind": "Device"}
        await cluster.delete("n0", DEVICES)
        await cluster.create({**kind, "metadata": {"name": "n0"}, "spec": spec}, DEVICES)
        for number in range(cards):
            await cluster.pod(f"new-{number}", WHOLE)
        await cluster.bound(*(f"new-{number}" for number in range(cards)))
        told("4: new node: pods bound", time.monotonic() - started)

        given = {uuid for number in range(cards) for uuid in cluster.cards(f"new-{number}")}
        assert given == {f"GPU-new-{number}" for number in range(cards)}
        await cluster.sound(f"4: new node with {cards} cards")


async def test_a_pod_that_is_deleted_with_grace_keeps_its_card_until_it_has_ended(
    seam: str,
) -> None:
    """Its process still holds the memory: a deletion time alone frees nothing."""
    async with bed(node(cards=1), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        kept = {"finalizers": ["example.com/still-running"]}
        await cluster.pod("ending", WHOLE, meta=kept)
        await cluster.bound("ending")
        await cluster.delete("ending", grace=30)
        await cluster.pod("next", WHOLE)
        await cluster.told("next")
        await cluster.sound("10: long grace")

        assert cluster.stored("ending")["metadata"]["deletionTimestamp"]
        started = time.monotonic()
        await cluster.patch("ending", {"metadata": {"finalizers": None}})
        await cluster.bound("next")
        told("10: pod has ended: next Binding", time.monotonic() - started)
        await cluster.sound("10: long grace, over")


async def test_a_pod_that_is_replaced_at_once_under_its_name_is_another_pod(seam: str) -> None:
    """Ten times over, as a StatefulSet does: forced away, and back before anybody has noticed."""
    async with bed(node(cards=1), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        seen = set()
        for _ in range(10):
            seen.add(await cluster.pod("web-0", WHOLE))
            await cluster.bound("web-0")
            await cluster.delete("web-0")
        seen.add(await cluster.pod("web-0", WHOLE))
        await cluster.bound("web-0")

        assert len(seen) == 11
        await cluster.sound("10: replaced under its name")


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_a_pod_that_has_ended_gives_its_card_back_though_it_is_kept(
    phase: str, seam: str
) -> None:
    """An evicted pod's object stays for weeks."""
    async with bed(node(cards=1), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.pod("first", WHOLE)
        await runs(cluster, "first")
        started = time.monotonic()
        await cluster.patch(
            "first", {"status": {"phase": phase, "reason": "Evicted"}}, sub="status"
        )
        await cluster.pod("second", WHOLE)
        await cluster.bound("second")
        told(f"10: pod {phase}: next Binding", time.monotonic() - started)

        assert cluster.stored("first")["status"]["phase"] == phase
        await cluster.sound(f"10: pod {phase}, kept")


async def test_all_containers_of_a_pod_are_counted_as_kubernetes_does(seam: str) -> None:
    """Init containers beside sidecars and two protocols in one pod, restarts among them."""

    def container(name: str, limits: dict[str, str], **more: Any) -> dict[str, Any]:
        return {"name": name, "image": "x", "resources": {"limits": limits}, **more}

    quarter = {"koordinator.sh/gpu-core": "25", "koordinator.sh/gpu-memory-ratio": "25"}
    spec = {
        "initContainers": [
            container("sidecar", quarter, restartPolicy="Always"),
            container("first", HALF),
        ],
        "containers": [container("main", quarter), container("more", quarter)],
    }
    value = pod("many")
    value["spec"] |= spec
    async with bed(node(cards=1), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.create(value)
        await cluster.bound("many")
        await cluster.pod("beside", quarter)
        await cluster.bound("beside")
        await cluster.pod("too-much", quarter)
        await cluster.told("too-much")
        restarted = {"status": {"containerStatuses": [{"name": "main", "restartCount": 3}]}}
        await cluster.patch("many", restarted, sub="status")

        found = await cluster.sound("14: containers of every kind")

        allocated = 'partage_pool_units{dimension="core_milli",state="allocated"}'
        assert found.metrics[allocated] == 1000
        assert found.metrics["partage_audit_clean"] == 1
        assert cluster.placed("too-much") == ""


async def test_a_burst_on_large_nodes_is_served_and_explained(seam: str) -> None:
    """Sixteen cards a node; twice as many pods at once as there are cards."""
    fleet = [node(f"n{number}", 16) for number in range(4)]
    async with bed(*fleet, seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        started = time.monotonic()
        for number in range(128):
            await cluster.pod(f"p{number}", WHOLE)
        await until(lambda: cluster.places == 64, "every card is given")
        told("13: 64 cards given to 128 pods at once", time.monotonic() - started)

        found = await cluster.sound("13: burst")
        assert len(found.explained) == 64
