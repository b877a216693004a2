"""What the cycle of a pod group took and reverted was there before, so no pod is tried again for it.

kube-scheduler tries a group pod by pod, and reverts all when one of them has no place. A pod that was refused beside the
others' places would fit as soon as these are reverted, and would begin the group's cycle again without a pause.
"""

import json
from collections.abc import Sequence

import msgspec
import pytest
from plugin_world import Plugged
from world import Manifest, device, half, node, pod, run, whole

from partage.scheduler.engine import State
from partage.vendors.names import CLAIM_FINALIZER
from partage.wire import plugin as wire


def tried(world: Plugged, names: Sequence[str], prefer: str = "") -> list[str]:
    """The cycle of a group: its pods are reserved one by one, and reverted; the refused ones.

    `prefer`: the proposed node that kube-scheduler's own scores prefer; empty for the engine's best.
    """
    reserved: list[tuple[str, int]] = []
    refused: list[str] = []
    for name in names:
        answer = world.propose(name, simulated=True)
        if answer.code:
            refused.append(name)
            continue
        where = prefer if prefer in answer.nodes else answer.nodes[0]
        assert not world.reserve(name, where, simulated=True).code
        reserved.append((name, world.number))
    for name, number in reversed(reserved):
        world.unreserve(name, number)
    world.check()
    return refused


async def cluster(*names: str) -> Plugged:
    """Nodes of two cards each."""
    world = Plugged()
    await world.start(*(one for name in names for one in (node(name), device(name))))
    return world


async def bound(world: Plugged, where: str, *manifests: Manifest) -> None:
    """Pods that accept one node alone."""
    for manifest in manifests:
        world.filter(world.create(manifest), where)
        name = manifest["metadata"]["name"]
        assert not await world.bind(name, where)
        world.seen(name)


@pytest.mark.parametrize("prefer", ["", "n1", "n2"])
@run
async def test_a_group_with_places_for_some_is_not_tried_again_without_an_end(prefer: str) -> None:
    """Whichever of the proposed nodes kube-scheduler's own scores prefer."""
    world = await cluster("n1", "n2")
    group = [f"group{number}" for number in range(5)]
    for name in group:
        world.create(pod(name, whole()))

    for _ in range(3):
        assert tried(world, group, prefer) == ["group4"]
        world.clock.pass_time(1)
        await world.service.tick()

    assert not world.woken


@run
async def test_nor_is_another_pod_that_waits() -> None:
    """Its turn would be the same as the last one."""
    world = await cluster("n1")
    await world.place(pod("stays", half()))
    for name in ("one", "two", "both"):
        world.create(pod(name, whole(2) if name == "both" else whole()))
    assert world.propose("both").code
    assert tried(world, ["one", "two"]) == ["two"]

    assert not world.woken


@run
async def test_nor_where_room_is_kept_for_a_pod_that_does_not_come() -> None:
    """The nominated pod is tried there first, and does not fit without the pods that stay."""
    world = await cluster("n1")
    await world.place(pod("stays", half()))
    world.create(pod("vip", whole(2), priority=10, status={"nominatedNodeName": "n1"}))
    for name in ("one", "two"):
        world.create(pod(name, whole()))

    for _ in range(3):
        assert tried(world, ["one", "two"]) == ["two"]
        world.clock.pass_time(1)
        await world.service.tick()

    assert not world.woken


@run
async def test_a_nominated_pod_has_the_room_that_a_group_reverts() -> None:
    """The nomination came during the cycle."""
    world = await cluster("n1")
    for name in ("one", "two"):
        world.create(pod(name, whole()))
    vip = world.create(pod("vip", whole(2), priority=10))
    reserved = []
    for name in ("one", "two"):
        assert world.propose(name, simulated=True).nodes
        assert not world.reserve(name, simulated=True).code
        reserved.append((name, world.number))
    vip["status"]["nominatedNodeName"] = "n1"
    world.seen("vip")
    for name, number in reversed(reserved):
        world.unreserve(name, number)

    assert world.states == {"uid-vip": State.HELD}


@run
async def test_room_that_came_during_the_cycle_is_found_after_it() -> None:
    """Pods were compared with it while the group's places were in the way."""
    world = await cluster("n1")
    await world.place(pod("ends", whole()))
    world.create(pod("both", whole(2)))
    assert world.propose("both").code
    world.create(pod("one", whole()))
    assert world.propose("one", simulated=True).nodes
    assert not world.reserve("one", simulated=True).code

    world.service.pod_gone("uid-ends")
    assert not world.woken
    world.unreserve("one")

    assert world.woken == ["uid-both"]


@run
async def test_a_group_is_tried_again_for_room_of_one_of_its_pods() -> None:
    """The other one then has a place where the first one had it; such wake-ups have pauses."""
    world = await cluster("n1", "n2")
    await bound(world, "n1", pod("full1", whole()))
    await bound(world, "n2", pod("full2", whole()), pod("stays", half()), pod("half", half()))
    for name, asks in (("small", half()), ("large", whole())):
        world.create(pod(name, asks))
    assert tried(world, ["small", "large"], "n1") == ["large"]

    woken = []
    for turn in range(6):
        name = f"passes{turn}"
        world.service.pod_gone("uid-half" if not turn else f"uid-passes{turn - 1}")
        woken.append(world.woken.count("uid-large"))
        assert tried(world, ["small", "large"], "n1") == ["large"]
        await bound(world, "n2", pod(name, half()))
        world.clock.pass_time(10)
        await world.service.tick()

    assert woken == [1, 1, 1, 2, 2, 2]


def names(uids: list[str]) -> list[str]:
    """The names of woken pods, which are forgotten."""
    found = [uid.removeprefix("uid-") for uid in uids]
    uids.clear()
    return found


@run
async def test_pods_that_wait_for_each_other_take_turns_with_pauses() -> None:
    """Coscheduling's hold their places, try the others of the group at once, and fail with the first that has none."""
    world = await cluster("n1")
    group = ["one", "two", "three"]
    for name in group:
        world.create(pod(name, whole()))
    queue, places, failures = [*group], dict[str, int](), list[float]()
    while (now := world.clock.monotonic()) < 1300 and len(failures) < 100:
        if not queue:
            world.clock.pass_time(1)
            await world.service.tick()
        elif (name := queue.pop(0)) in places:
            continue
        elif world.propose(name).code:
            failures.append(now)
            for other, number in places.items():
                world.unreserve(other, number)
            places.clear()
        else:
            assert not world.reserve(name).code
            places[name] = world.number
            queue += [one for one in group if one not in (*queue, *places)]
        queue += [one for one in names(world.woken) if one not in queue]

    assert 20 < len(failures) < 60
    assert failures[-1] - failures[-2] >= 8
    world.check()


@run
async def test_another_pod_is_woken_for_what_was_given_back() -> None:
    """After the pause, and at once for other room on the node."""
    world = await cluster("n1")
    await world.place(pod("ends", half()))
    for name in ("one", "other"):
        world.create(pod(name, whole(1 if name == "one" else 2)))
    assert world.propose("one").nodes
    assert not world.reserve("one").code
    number = world.number
    assert world.propose("other").code
    world.create(pod("small", whole()))
    assert world.propose("small").code
    world.unreserve("one", number)
    await world.service.tick()
    assert not world.woken

    world.clock.pass_time(1)
    await world.service.tick()
    assert world.woken == ["uid-small"]
    world.service.pod_gone("uid-ends")
    assert world.woken == ["uid-small", "uid-other"]


@run
async def test_nor_does_what_kube_scheduler_allocated_to_a_claim() -> None:
    """A group's pods may ask by names and by claims; the pause is the same."""
    world = await cluster("n1")
    world.create(pod("both", whole(2)))
    result = {"request": "r", "driver": "gpu.partage.io", "pool": "n1", "device": "gpu-0"}
    allocated = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": "x",
            "namespace": "team",
            "uid": "claim-x",
            "resourceVersion": "1",
            "finalizers": [CLAIM_FINALIZER],
        },
        "spec": {},
        "status": {
            "allocation": {
                "devices": {
                    "results": [{**result, "consumedCapacity": {"cores": "30", "memory": "4Gi"}}]
                }
            }
        },
    }
    claims = [msgspec.Raw(json.dumps(allocated).encode())]
    for number in range(1, 4):
        world.attempts.reserve(wire.Reserve(0, "uid-claimant", number, "n1", claims=claims))
        assert world.propose("both").code
        world.attempts.unreserve(wire.Unreserve(0, "uid-claimant", number))
    assert not world.woken
    world.check()

    world.clock.pass_time(2)
    await world.service.tick()
    assert world.woken == ["uid-both"]
