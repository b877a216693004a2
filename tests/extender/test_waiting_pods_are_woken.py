"""New room wakes the pods that may fit there, and no others."""

from collections import Counter
from typing import Any

import pytest
from world import World, card, device, document, half, node, pod, run, whole

from partage.extender.explain import explain


@run
async def test_a_release_wakes_the_pods_that_fit_and_no_others() -> None:
    """A pod that still does not fit is not woken."""
    world = await World().start(node(), device())
    await world.place(pod("full", whole(2)))
    world.filter(world.create(pod("fits", whole())))
    world.filter(world.create(pod("huge", whole(4))))
    assert world.woken == []

    world.service.pod_gone("uid-full")

    assert world.woken == ["uid-fits"]


@run
async def test_a_hold_that_ends_wakes_who_was_refused_because_of_it() -> None:
    """No Kubernetes event reports the end."""
    world = await World(hold=10.0).start(node(), device())
    world.filter(world.create(pod("first", whole(2))))
    world.filter(world.create(pod("second", whole(2))))

    world.clock.pass_time(9.9)
    await world.service.tick()
    assert world.woken == []
    world.clock.pass_time(0.2)
    await world.service.tick()

    assert world.woken == ["uid-second"]


@run
async def test_a_hold_that_moves_wakes_who_fits_where_it_was() -> None:
    """After a question about another node, the pod leaves room behind."""
    world = await World().start(node("n1"), device("n1"), node("n2"), device("n2"))
    world.filter(world.create(pod("first", whole(2))), "n1")
    world.filter(world.create(pod("second", whole(2))), "n1")

    world.filter(pod("first", whole(2)), "n2")

    assert world.woken == ["uid-second"]


@run
async def test_a_pod_that_is_bound_beside_its_hold_wakes_who_fits_where_it_was() -> None:
    """kube-scheduler may choose another of the nodes that filter named."""
    world = await World().start(node("n1"), device("n1"), node("n2"), device("n2"))
    world.filter(world.create(pod("first", whole(2))), "n1")
    world.filter(world.create(pod("second", whole(2))), "n1")

    assert await world.bind("first", "n2") == ""

    assert world.woken == ["uid-second"]


@run
async def test_a_lost_binding_wakes_who_waits_for_its_cards() -> None:
    """The reservation is released without any event, once the Binding can no longer arrive.

    The pod that lost it is woken too, because kube-scheduler got no answer.
    """
    world = await World().start(node(), device())
    world.create(pod("first", whole(2)))
    world.api.answers.append(ValueError("reset"))
    world.api.takes.append(False)
    await world.bind("first")
    world.filter(world.create(pod("second", half())))
    assert world.woken == []

    world.clock.pass_time(10.0)
    await world.service.tick()

    assert world.woken == ["uid-second", "uid-first"]


@run
async def test_a_node_that_comes_or_grows_wakes_waiting_pods() -> None:
    """New cards are room like any other."""
    world = await World().start(node(), device("n1", card(0)))
    world.filter(world.create(pod("web", whole(2))))

    world.service.changed(document(device("n1", card(0), card(1), version=2)))

    assert world.woken == ["uid-web"]


@run
async def test_the_important_are_woken_first_and_the_rest_in_batches() -> None:
    """A thousand pods that wait for one card do not all ask at once, and none is forgotten."""
    world = await World().start(node(), device())
    world.service.books.waiting._batch = 3
    await world.place(pod("full", whole(2)))
    for number in range(7):
        world.filter(world.create(pod(f"w{number}", whole(), priority=number)))

    world.service.pod_gone("uid-full")
    first = list(world.woken)
    await world.service.tick()
    second = world.woken[3:]
    await world.service.tick()
    await world.service.tick()

    assert first == ["uid-w6", "uid-w5", "uid-w4"]
    assert second == ["uid-w3", "uid-w2", "uid-w1"]
    assert world.woken[6:] == ["uid-w0"]


@run
async def test_a_woken_pod_has_its_turn_before_it_is_woken_again() -> None:
    """Events arrive in bursts."""
    world = await World().start(node(), device())
    await world.place(pod("a", whole()))
    await world.place(pod("b", whole()))
    world.filter(world.create(pod("web", whole())))

    world.service.pod_gone("uid-a")
    world.service.pod_gone("uid-b")
    assert world.woken == ["uid-web"]
    world.clock.pass_time(10.0)
    world.service.changed(document(node(version=2, labels={"zone": "a"})))

    assert world.woken == ["uid-web", "uid-web"]


@run
async def test_a_pod_with_a_broken_request_is_never_woken() -> None:
    """No room helps it."""
    world = await World().start(node(), device())
    world.filter(world.create(pod("broken", {"koordinator.sh/gpu": "101"})))

    world.service.changed(document(device("n1", card(0), version=2)))

    assert world.told == [("broken", "InvalidRequest")]
    assert world.woken == []


@run
async def test_who_waits_for_a_quota_is_woken_when_the_quota_has_room() -> None:
    """The pod that used up the quota may have been on any node."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": "team"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "3000"}},
    }
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"}
    world = await World().start(node(), device(), quota)
    await world.place(pod("first", limits))
    world.filter(world.create(pod("second", limits)))

    world.service.pod_gone("uid-first")

    assert world.told == [("second", "QuotaExceeded")]
    assert world.woken == ["uid-second"]


def gpumem(hard: int, version: int = 1) -> dict[str, Any]:
    """A quota of memory, in MiB."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": "team", "resourceVersion": str(version)},
        "spec": {"hard": {"limits.nvidia.com/gpumem": str(hard)}},
    }


@run
async def test_a_quota_that_is_raised_wakes_whom_it_kept_waiting() -> None:
    """No other program does: kube-scheduler does not look at quotas."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"}
    world = await World().start(node(), device(), gpumem(3000))
    await world.place(pod("first", limits))
    for name in ("second", "third"):
        world.filter(world.create(pod(name, limits)))
    world.filter(world.create(pod("huge", whole(4))))

    world.service.changed(document(gpumem(3000, 2)))
    assert world.woken == []
    world.service.changed(document(gpumem(4000, 3)))

    assert world.woken == ["uid-second", "uid-third"]
    assert world.filter(world.api.pods["second"])["NodeNames"] == ["n1"]
    assert world.filter(world.api.pods["third"])["NodeNames"] == []
    told = explain(world.service.books, "team", "third")
    assert told is not None
    assert "used 4000, limited to 4000" in told["reason"]["message"]


@run
async def test_who_waited_for_a_quota_is_woken_to_hear_what_it_waits_for_now() -> None:
    """The quota is gone and the cards are in use: then the pod's condition is true again."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"}
    world = await World().start(node(), device(), gpumem(1000))
    await world.place(pod("full", whole(2)))
    world.filter(world.create(pod("second", limits)))

    world.service.gone(document(gpumem(1000, 2)))
    world.filter(world.api.pods["second"])
    world.service.changed(document(gpumem(1000, 3)))
    await world.service.tick()

    assert world.woken == ["uid-second"]
    assert [code for _, code in world.told] == ["QuotaExceeded", "InsufficientMemory"]


@run
async def test_a_reason_is_told_when_it_changes_and_not_before() -> None:
    """Events about waiting pods must not flood the API server."""
    world = await World().start(node(), device())
    await world.place(pod("full", whole(2)))
    waiting = world.create(pod("web", whole()))
    for _ in range(3):
        world.filter(waiting)

    world.service.changed(document(device("n1", card(0, health=False), version=2)))
    world.filter(waiting)

    assert len(world.told) == 2


@run
async def test_a_nominated_pod_gets_the_room_that_was_made_for_it() -> None:
    """Evictions for one pod must not serve another; the hold lasts as long as the nomination."""
    world = await World(hold=10.0).start(node(), device())
    await world.place(pod("victim", whole(2)))
    world.create(pod("vip", whole(2), status={"nominatedNodeName": "n1"}, priority=5))
    world.filter(world.create(pod("other", whole(2))))

    world.service.pod_gone("uid-victim")

    assert "uid-vip" in world.service.books.cycle.holds
    assert world.woken == []
    world.clock.pass_time(30.0)
    await world.service.tick()
    assert "uid-vip" in world.service.books.cycle.holds
    world.create(pod("vip", whole(2), priority=5, meta={"resourceVersion": "2"}))
    assert "uid-vip" not in world.service.books.engine.ledger
    assert world.woken[-1] == "uid-other"


@run
async def test_room_kept_for_a_less_important_pod_is_taken_by_the_extender_too() -> None:
    """Room is kept for a nominated pod from pods of its own importance and below."""
    world = await World().start(node(), device())
    await world.place(pod("victim", whole(2)))
    world.create(pod("mid", whole(2), status={"nominatedNodeName": "n1"}, priority=5))
    world.service.pod_gone("uid-victim")

    assert world.filter(world.create(pod("equal", whole(2), priority=5)))["NodeNames"] == []
    assert world.filter(world.create(pod("vip", whole(2), priority=9)))["NodeNames"] == ["n1"]


@run
async def test_a_nominated_pod_is_woken_for_its_room() -> None:
    """Its own hold takes the room at once, and must not hide it from the pod itself."""
    world = await World().start(node(), device())
    await world.place(pod("victim", whole(2)))
    world.filter(world.create(pod("vip", whole(2), priority=5)))
    nominated = pod(
        "vip",
        whole(2),
        status={"nominatedNodeName": "n1"},
        priority=5,
        meta={"resourceVersion": "2"},
    )
    world.create(nominated)
    assert world.woken == []

    world.service.pod_gone("uid-victim")

    assert world.woken == ["uid-vip"]
    assert "uid-vip" in world.service.books.cycle.holds


@run
async def test_pods_that_leave_are_looked_at_once_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether others of its namespace still wait for victims matters only to a pod that has all of its room."""
    names = [f"n{number}" for number in range(5)]
    world = await World().start(*map(node, names), *map(device, names))
    for name in names:
        await world.place(pod(f"victim-{name}", whole(2)), name)
        nominated = {"nominatedNodeName": name}
        world.create(pod(f"vip-{name}", whole(2), status=nominated, priority=5))
    leaving, looked = world.service.books.leaving, Counter[str]()

    def counted(name: str) -> frozenset[str]:
        looked[name] += 1
        return leaving(name)

    monkeypatch.setattr(world.service.books, "leaving", counted)
    await world.service.tick()

    assert looked == Counter(names)


@run
async def test_a_nomination_ends_with_its_pod() -> None:
    """A deleted or bound pod needs no reserved room."""
    world = await World().start(node(), device())
    world.create(pod("vip", whole(), status={"nominatedNodeName": "n1"}))
    held = dict(world.service.books.cycle.holds)
    world.service.pod_gone("uid-vip")
    world.create(pod("other", whole(), status={"nominatedNodeName": "n1"}))
    assert await world.bind("other") == ""
    world.seen("other")

    assert list(held) == ["uid-vip"]
    assert world.service.books._nominated == {}


@pytest.mark.parametrize("end", ["bound", "gone", "passed"])
def test_nobody_waits_whose_wait_is_over(end: str) -> None:
    """Metrics and explanations count only pods that still wait."""

    @run
    async def scene() -> None:
        world = await World().start(node(), device())
        await world.place(pod("full", whole(2)))
        world.filter(world.create(pod("web", half())))
        assert len(world.service.books.waiting) == 1
        if end == "gone":
            world.service.pod_gone("uid-web")
        else:
            world.service.pod_gone("uid-full")
            world.filter(pod("web", half()))
        if end == "bound":
            await world.bind("web")

        assert len(world.service.books.waiting) == 0

    scene()


@run
async def test_waiting_pods_are_remembered_over_a_rebuild() -> None:
    """After a relist no pod may have to wait five minutes."""
    world = await World().start(node(), device())
    await world.place(pod("full", whole(2)))
    world.filter(world.create(pod("web", half())))

    await world.start(node(), device(), *world.api.pods.values())
    world.service.pod_gone("uid-full")

    assert world.woken == ["uid-web"]


@run
async def test_who_was_woken_and_refused_again_is_woken_for_the_next_room() -> None:
    """Three pods wait for one card that changes hands faster than they may be woken again."""
    world = await World().start(node(), device("n1", card(0)))
    await world.place(pod("first", whole()))
    for name in ("second", "third"):
        world.filter(world.create(pod(name, whole())))
    world.service.pod_gone("uid-first")
    await world.place(pod("second", whole()))
    world.filter(pod("third", whole()))
    world.woken.clear()

    world.service.pod_gone("uid-second")

    assert world.woken == ["uid-third"]


@run
async def test_room_is_not_forgotten_while_somebody_has_not_come_yet() -> None:
    """A pod that was woken for one card and is late is woken again for the next one."""
    world = await World().start(node(), device("n1", card(0), card(1)))
    await world.place(pod("a", whole()))
    await world.place(pod("b", whole()))
    world.filter(world.create(pod("late", whole(2))))
    world.filter(world.create(pod("slow", whole())))
    world.service.pod_gone("uid-a")
    world.service.pod_gone("uid-b")
    assert world.woken == ["uid-slow", "uid-late"]

    world.clock.pass_time(6)
    await world.service.tick()
    await world.service.tick()

    assert world.woken == ["uid-slow", "uid-late", "uid-slow"]


async def seconds(world: World, count: int) -> list[tuple[int, str]]:
    """Let so many seconds pass, with a tick in each; the pods that were woken, and when."""
    found = []
    for second in range(1, count + 1):
        before = len(world.woken)
        world.clock.pass_time(1)
        await world.service.tick()
        found += [(second, uid) for uid in world.woken[before:]]
    return found


@run
async def test_a_woken_pod_that_does_not_come_is_woken_again_for_the_same_room() -> None:
    """The wake-up may be lost; after five minutes kube-scheduler tries the pod anyway."""
    world = await World().start(node(), device())
    await world.place(pod("full", whole(2)))
    world.filter(world.create(pod("web", whole())))
    world.service.pod_gone("uid-full")
    assert world.woken == ["uid-web"]

    found = await seconds(world, 1000)

    assert found == [(at, "uid-web") for at in (15, 45, 105, 225)]


ENDS = {
    "it came and was refused": lambda world: world.filter(pod("web", whole(2))),
    "it came and has a place": lambda world: world.filter(pod("web", whole())),
    "it is gone": lambda world: world.service.pod_gone("uid-web"),
    "the room is another's": lambda world: world.filter(world.create(pod("other", whole(2)))),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_woken_pod_is_not_woken_again(end: Any) -> None:
    """A pod that asked again, or that has no room any more, is not woken."""

    @run
    async def story() -> None:
        world = await World(hold=1000.0).start(node(), device())
        await world.place(pod("full", whole(2)))
        world.filter(world.create(pod("web", whole())))
        world.service.pod_gone("uid-full")
        await seconds(world, 5)

        end(world)

        assert await seconds(world, 400) == []

    story()


@run
async def test_a_pod_whose_room_is_kept_is_woken_again() -> None:
    """Its own hold takes the room, and must not count as another pod's."""
    world = await World(hold=1000.0).start(node(), device())
    await world.place(pod("victim", whole(2)))
    waiting = pod("high", whole(2), priority=10)
    world.filter(world.create(waiting))
    waiting["status"]["nominatedNodeName"] = "n1"
    world.seen("high")
    world.service.pod_gone("uid-victim")
    assert world.woken == ["uid-high"]

    found = await seconds(world, 50)

    assert found == [(15, "uid-high"), (45, "uid-high")]


@run
async def test_few_are_woken_again_at_a_time() -> None:
    """Most woken pods only wait for their turn at kube-scheduler."""
    world = await World().start(node(), device())
    await world.place(pod("full", whole(2)))
    for number in range(60):
        world.filter(world.create(pod(f"w{number}", whole())))
    world.service.pod_gone("uid-full")
    assert len(world.woken) == 60

    found = await seconds(world, 1000)

    assert max(Counter(second for second, _ in found).values()) == 8
    assert set(Counter(uid for _, uid in found).values()) == {4}
    assert min(found) == (15, "uid-w0")


@run
async def test_how_long_a_wake_up_takes_counts_from_the_first() -> None:
    """The metric shows a lost wake-up, and so does its alert."""
    world = await World().start(node(), device())
    await world.place(pod("full", whole(2)))
    world.filter(world.create(pod("web", whole())))
    world.service.pod_gone("uid-full")
    await seconds(world, 20)

    world.filter(pod("web", whole()))
    assert await world.bind("web") == ""

    assert world.service.meters.woken._sum.get() == 20
