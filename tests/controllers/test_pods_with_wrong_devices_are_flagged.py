"""Bound pods with a device problem, labels that were not copied, locks left behind."""

import asyncio
import json
from typing import Any

import pytest
from controllers_world import SLOWEST, Manifest, World, card, device, document, node, world_of

from partage.controllers.manager import Controllers, ControllerSettings
from partage.extender.cluster_cache import ClusterCache
from partage.kube.resources import Resource

CONDITION = "partage.io/DeviceProblem"
VGPU = "hami.io/vgpu-node"
VENDOR = "node.koordinator.sh/gpu-vendor"
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}


def record(
    uid: str = "GPU-0", minor: int = 0, protocol: str = "koordinator", **more: Any
) -> Manifest:
    """One device of our record; the pod's uid is filled in when the pod is there."""
    return {
        "type": "gpu",
        "minor": minor,
        "uuid": uid,
        "milli": 500,
        "bytes": 8 * 2**30,
        "mode": "share",
        "protocol": protocol,
        **more,
    }


def pod(name: str = "web", limits: dict[str, str] | None = None, **meta: Any) -> Manifest:
    """A pod with one container."""
    wanted = HALF if limits is None else limits
    resources = {"limits": wanted, "requests": wanted}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **meta},
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": resources}]},
    }


async def bound(world: World, manifest: Manifest, *devices: Manifest, **also: str) -> Manifest:
    """The pod, created and bound to n1 with a record of these devices, if any."""
    created = await world.create("pods", manifest)
    name, uid = created["metadata"]["name"], created["metadata"]["uid"]
    binding: Manifest = {
        "target": {"kind": "Node", "name": "n1"},
        "metadata": {"name": name, "uid": uid},
    }
    if devices:
        containers = [{"name": "main", "phase": "main", "devices": list(devices)}]
        text = json.dumps({"v": 1, "uid": uid, "node": "n1", "containers": containers})
        binding["metadata"]["annotations"] = {"partage.io/allocation": text, **also}
    await world.server.bind("default", name, binding)
    return world.get("pods", name, "default")


def condition(world: World, name: str = "web") -> dict[str, str]:
    """The pod's condition, without its time; empty when it has none."""
    listed = world.get("pods", name, "default").get("status", {}).get("conditions", [])
    found = [c for c in listed if c["type"] == CONDITION]
    return {key: found[0][key] for key in ("status", "reason", "message")} if found else {}


@pytest.mark.parametrize(
    ("devices", "labels", "right"),
    [
        ([record()], {}, True),
        ([record("GPU-9", 9)], {}, False),
        ([], {}, False),
        ([record()], {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}, False),
    ],
    ids=["right", "card away", "no record", "label missing"],
)
async def test_only_a_pod_with_something_to_write_is_looked_at(
    devices: list[Manifest], labels: dict[str, str], *, right: bool
) -> None:
    """A pod that the books have read, and that shows no problem, costs no turn of a worker."""
    async with world_of() as world:
        cache = ClusterCache()
        controllers = Controllers(
            world.client,
            world.ears,
            clock=world.clock,
            settings=ControllerSettings(totals=False),
            read=cache.taken_in,
            node=cache.as_read,
        )
        for told in (await world.create("nodes", node()), device()):
            found = document({"kind": "Node", **told})
            cache.changed(found)
            controllers.changed(found)
        manifest = pod(uid="uid-web", resourceVersion="7", labels=labels)
        containers = [{"name": "main", "phase": "main", "devices": devices}]
        text = json.dumps({"v": 1, "uid": "uid-web", "node": "n1", "containers": containers})
        manifest["spec"]["nodeName"] = "n1"
        manifest["metadata"]["annotations"] = {"partage.io/allocation": text} if devices else {}
        running = asyncio.create_task(controllers.run())
        try:
            async with asyncio.timeout(SLOWEST):
                while not controllers.idle:  # noqa: ASYNC110 # no event tells of rest
                    await asyncio.sleep(0.002)
            web = document(manifest)
            cache.changed(web)
            controllers.changed(web)
            assert controllers.idle is right
            controllers.changed(document({**manifest, "metadata": {**manifest["metadata"]}}))
            assert not controllers.idle, "the books have not read this very document"
        finally:
            running.cancel()
            await asyncio.wait((running,))


async def test_a_sound_pod_is_left_alone() -> None:
    """Its record names devices that the node has: no condition, no event, no write."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        await bound(world, pod(), record())
        await bound(world, pod("plain", {}))
        await world.create("pods", pod("waiting"))
        async with world.leading():
            before = world.writes()
            await world.clock.advance(120)
            await world.settled()
            assert (condition(world), world.ears.heard, world.writes()) == ({}, [], before)


async def test_a_pod_that_bypassed_admission_is_flagged_once() -> None:
    """Condition, event and metric; a new leader repeats none of the writes."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        await bound(world, pod())
        async with world.leading():
            found = condition(world)
            assert (found["status"], found["reason"]) == ("True", "NoAllocationRecord")
            assert "bypassed" in found["message"]
            assert world.ears.heard == [("Pod", "web", "Warning", "NoAllocationRecord")]
            assert world.sample("partage_flagged_pods", problem="NoAllocationRecord") == 1
        version = world.version("pods", "web", "default")
        async with world.leading():
            await world.clock.advance(120)
            await world.settled()
            assert world.version("pods", "web", "default") == version
            world.controllers.gone(
                document({"kind": "Pod", **world.get("pods", "web", "default")})
            )
            assert world.sample("partage_flagged_pods", problem="NoAllocationRecord") == 0


@pytest.mark.parametrize("kind", ["Pod", "Node"])
async def test_an_answer_that_comes_after_a_deletion_brings_nothing_back(kind: str) -> None:
    """A write's answer and the watch come by two connections; no later event would remove the object again."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        before = {"Pod": await bound(world, pod()), "Node": world.get("nodes", "n1")}
        patch = world.client.patch

        async def late(resource: Resource, *given: Any, **more: Any) -> Any:
            answer = await patch(resource, *given, **more)
            if resource.plural == f"{kind.lower()}s":
                world.controllers.gone(document({"kind": kind, **before[kind]}))
            return answer

        world.client.patch = late  # type: ignore[method-assign, assignment]
        async with world.leading():
            picture = world.controllers.picture
            assert world.writes()
            assert not (picture.pods if kind == "Pod" else picture.nodes)
            left = world.sample("partage_flagged_pods", problem="NoAllocationRecord")
            assert left == (0 if kind == "Pod" else 1)


async def test_a_pod_that_somebody_else_placed_with_a_record_is_taken_over() -> None:
    """A running cluster's pods have their protocol's record and are not flagged."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        created = await world.create("pods", pod())
        uid = created["metadata"]["uid"]
        koordinators = (
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50",'
            '"koordinator.sh/gpu-memory-ratio":"50","koordinator.sh/gpu-memory":"8Gi"}}]}'
        )
        own = {"scheduling.koordinator.sh/device-allocated": koordinators}
        meta = {"name": "web", "uid": uid, "annotations": own}
        await world.server.bind("default", "web", {"target": {"name": "n1"}, "metadata": meta})
        async with world.leading():
            assert condition(world) == {}


async def test_a_record_that_cannot_be_trusted_is_flagged() -> None:
    """A record written for another pod is refused."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        text = json.dumps({"v": 1, "uid": "other", "node": "n1", "containers": []})
        await bound(world, pod(annotations={"partage.io/allocation": text}))
        async with world.leading():
            assert condition(world)["reason"] == "AllocationRecordRefused"
            assert "was written for pod 'other'" in condition(world)["message"]


LOSSES: dict[str, tuple[Manifest, str]] = {
    "lost": (device("n1", card(1), version=2), "DeviceLost"),
    "unhealthy": (device("n1", card(0, health=False), card(1), version=2), "DeviceUnhealthy"),
    "replaced": (device("n1", card(0, id="GPU-new"), card(1), version=2), "DeviceLost"),
}


@pytest.mark.parametrize(("after", "reason"), LOSSES.values(), ids=LOSSES)
async def test_a_pod_whose_device_goes_is_flagged_after_the_grace(
    after: Manifest, reason: str
) -> None:
    """The flag does not come at once, because agents restart; then it stays until the device is back."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        await bound(world, pod(), record())
        async with world.leading():
            world.tell(after)
            await world.settled()
            assert condition(world) == {}
            await world.clock.advance(40)
            await world.settled()
            assert (condition(world)["status"], condition(world)["reason"]) == ("True", reason)
            assert world.sample("partage_flagged_pods", problem=reason) == 1
            world.tell(device(version=3))
            await world.settled()
            assert (condition(world)["status"], condition(world)["reason"]) == (
                "False",
                "Resolved",
            )
            assert world.sample("partage_flagged_pods", problem=reason) == 0
            assert [one[2:] for one in world.ears.heard] == [
                ("Warning", reason),
                ("Normal", "Resolved"),
            ]


async def test_a_device_that_is_back_in_time_is_never_told() -> None:
    """An agent that restarts within the grace causes nothing."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        await bound(world, pod(), record())
        async with world.leading():
            world.controllers.gone(document(device()))
            await world.settled()
            await world.clock.advance(20)
            world.tell(device(version=3))
            await world.settled()
            await world.clock.advance(60)
            await world.settled()
            assert (condition(world), world.ears.heard) == ({}, [])


async def test_who_led_before_counts_no_problem_and_knows_no_grace() -> None:
    """During its grace a new leader leaves the condition as it was: a lasting problem is not resolved."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device("n1", card(1)))
        await bound(world, pod(), record())
        async with world.leading():
            await world.clock.advance(40)
            await world.settled()
            assert world.sample("partage_flagged_pods", problem="DeviceLost") == 1
            assert condition(world)["status"] == "True"
        assert world.sample("partage_flagged_pods", problem="DeviceLost") == 0
        async with world.leading():
            assert world.sample("partage_flagged_pods", problem="DeviceLost") == 0
            assert condition(world)["status"] == "True"
            assert ("Pod", "web", "Normal", "Resolved") not in world.ears.heard
            await world.clock.advance(40)
            await world.settled()
            assert world.sample("partage_flagged_pods", problem="DeviceLost") == 1


async def test_labels_that_the_binding_did_not_carry_are_filled_in() -> None:
    """QGPU's labels follow the record, also after another writer removed them."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device("n1", card(0), card(1), **{"node.koordinator.sh/gpu-vendor": "nvidia"}))
        asked = {"tke.cloud.tencent.com/qgpu-core": "50", "tke.cloud.tencent.com/qgpu-memory": "8"}
        await bound(world, pod(limits=asked, labels={"app": "web"}), record(protocol="qgpu"))
        async with world.leading():
            await world.settled()
            wanted = {
                "app": "web",
                "tke.cloud.tencent.com/qgpu": "true",
                "tke.cloud.tencent.com/qgpu-pgpu-main": "0",
            }
            assert world.get("pods", "web", "default")["metadata"]["labels"] == wanted
            gone = {"metadata": {"labels": {"tke.cloud.tencent.com/qgpu": None}}}
            await world.server.patch("pods", "default", "web", gone)
            await world.settled()
            await world.clock.advance(1)
            await world.settled()
            assert world.get("pods", "web", "default")["metadata"]["labels"] == wanted


@pytest.mark.parametrize("what", ["pods", "nodes", "conditions"])
async def test_a_writer_that_undoes_all_is_answered_ever_more_slowly(what: str) -> None:
    """A tenant may undo a label of a running pod in a loop. That is no reason for as many writes of ours."""
    isolated = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device("n1", card(0), card(1), **{"node.koordinator.sh/gpu-vendor": "nvidia"}))
        devices = [] if what == "conditions" else [record()]
        await bound(world, pod(labels=isolated), *devices)
        undo: dict[str, tuple[str, str, str, Manifest, str]] = {
            "pods": ("pods", "default", "web", {"metadata": {"labels": {VGPU: "n2"}}}, ""),
            "nodes": ("nodes", "", "n1", {"metadata": {"labels": {VENDOR: "none"}}}, ""),
            "conditions": ("pods", "default", "web", {"status": {"conditions": []}}, "status"),
        }
        *where, edit, sub = undo[what]
        async with world.leading():
            before = world.writes()
            for _ in range(50):
                await world.server.patch(*where, edit, sub=sub)
                await world.settled()
                await world.clock.advance(1)
                await world.settled()
            assert 2 <= world.writes() - before <= 7
            assert len(world.ears.heard) <= 8
            await world.clock.advance(300)
            await world.settled()
            labels = world.get(*where[:1], where[2], where[1])["metadata"]["labels"]
            if what == "conditions":
                assert condition(world)["reason"] == "NoAllocationRecord"
            else:
                assert labels.get(VGPU, labels.get(VENDOR)) in ("n1", "nvidia")
            world.controllers.gone(document(world.get("pods", "web", "default")))
            world.controllers.gone(document(world.get("nodes", "n1")))
            assert not world.controllers._contention._writes


LOCK = "hami.io/mutex.lock"
LOCKS = {
    "its pod is gone": ("2026-01-01T00:00:00Z,default,nobody", 0.0),
    "its pod still waits": ("2026-01-01T00:00:00Z,default,web", 290.0),
    "it tells no pod": ("2026-01-01T00:00:00Z", 290.0),
    "it tells nothing": ("locked", 290.0),
    "it claims to be of tomorrow": ("2026-01-02T00:00:00Z,default,web", 290.0),
    "its writer's clock is an hour slow": ("2025-12-31T23:00:00Z,default,web", 290.0),
    "it is of another time zone": ("2025-12-31T16:00:00-08:00,default,web", 290.0),
}


@pytest.mark.parametrize(("text", "kept"), LOCKS.values(), ids=LOCKS)
async def test_a_lock_that_was_left_behind_is_taken_off(text: str, kept: float) -> None:
    """It goes at once if its pod is over, else after five minutes; a living holder keeps it."""
    async with world_of() as world:
        await world.create("nodes", node(annotations={LOCK: text, "other": "stays"}))
        await world.create("pods", pod())
        async with world.leading():
            await world.until(lambda: world.controllers.idle)
            annotations = world.get("nodes", "n1")["metadata"]["annotations"]
            assert (LOCK in annotations) == bool(kept)
            await world.clock.advance(kept)
            await world.settled()
            assert (LOCK in world.get("nodes", "n1")["metadata"]["annotations"]) == bool(kept)
            await world.clock.advance(20)
            await world.settled()
            assert world.get("nodes", "n1")["metadata"]["annotations"] == {"other": "stays"}


async def test_a_lock_comes_off_when_its_pod_ends() -> None:
    """The holder fails before its plugin took the lock off."""
    async with world_of() as world:
        await world.create("nodes", node(annotations={LOCK: "2026-01-01T00:00:00Z,default,web"}))
        world.tell(device())
        await bound(world, pod(), record())
        async with world.leading():
            assert LOCK in world.get("nodes", "n1")["metadata"]["annotations"]
            await world.server.patch(
                "pods", "default", "web", {"status": {"phase": "Failed"}}, sub="status"
            )
            await world.settled()
            assert LOCK not in world.get("nodes", "n1")["metadata"].get("annotations", {})
