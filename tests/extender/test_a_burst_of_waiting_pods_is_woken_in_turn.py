"""Thousands of waiting pods delay neither the wake-ups of others nor the processor.

The tests move time, and count wake-ups, looks and victims.
"""

import pytest
from plugin_world import Plugged
from world import Manifest, World, card, device, document, half, node, pod, run, whole

from fakes.builders import make_pod
from partage.extender.cycle import Allowance, AllowanceSettings
from partage.extender.explain import explain
from partage.extender.unschedulable_pods import UnschedulablePods
from partage.inventory.plane import Bools
from partage.model.selector import NodeConstraint
from partage.placement.node import NodeColumns
from partage.scheduler.engine import State
from partage.wire import plugin as wire

LOW, HIGH = 0, 10


def of(namespace: str, name: str, limits: dict[str, str], **more: object) -> Manifest:
    """A pod of a namespace."""
    return pod(name, limits, meta={"namespace": namespace}, **more)


async def crowd(number: int, limits: dict[str, str], **more: object) -> World:
    """A full node for which so many pods of one namespace wait."""
    world = await World().start(node(), device())
    await world.place(pod("full", whole(2)))
    for index in range(number):
        world.filter(world.create(of("bad", f"b{index}", limits, **more)))
    return world


@run
async def test_only_so_many_are_woken_a_second() -> None:
    """Each wake-up is a write, and a decision of kube-scheduler."""
    world = await crowd(1500, half())
    world.service.pod_gone("uid-full")
    woken = []
    for _ in range(100):
        world.service.changed(document(node(version=len(woken) + 2)))
        await world.service.tick()
        woken.append(len(world.woken))
        world.clock.pass_time(0.1)
    assert woken[0] <= 128
    assert 900 <= woken[-1] <= 128 + 10 * 100
    assert all(after - at <= 128 + 100 for at, after in zip(woken, woken[10:], strict=False))


@run
async def test_each_namespace_has_its_turn() -> None:
    """A pod that waits shorter than a thousand pods of another namespace is among the first woken."""
    world = await crowd(1000, half())
    world.clock.pass_time(10)
    world.filter(world.create(of("good", "web", half())))
    world.service.pod_gone("uid-full")
    assert world.woken[1] == "uid-web"


@run
async def test_who_never_comes_is_woken_after_the_others() -> None:
    """This holds even for an important pod: otherwise others would wait for it whenever there is room."""
    world = await crowd(1200, half(), priority=HIGH)
    world.filter(world.create(of("good", "web", half())))
    world.service.pod_gone("uid-full")
    for version in range(60):
        world.clock.pass_time(1)
        world.service.changed(document(node(version=version + 2, labels={"v": str(version)})))
        await world.service.tick()
    assert "uid-web" in world.woken


@run
async def test_of_many_it_is_asked_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of facts arrive, and a look at thousands of pods takes milliseconds."""
    world = await crowd(3000, whole(2))
    looks = []
    ask = UnschedulablePods._to_ask
    monkeypatch.setattr(UnschedulablePods, "_to_ask", lambda pods: (looks.append(1), ask(pods))[1])
    for version in range(1000):
        world.service.books.waiting.room_on("n1")
        world.service.changed(document(node(version=version + 2)))
        world.clock.pass_time(0.001)
    assert 0 < len(looks) <= 1 / 0.02 + 1


def choosy(number: int) -> Manifest:
    """An affinity of a hundred terms that all nodes meet, and that no other number's equals."""
    terms = [
        {
            "matchExpressions": [
                {"key": "at", "operator": "Gt", "values": [str(-1000 * number - at)]}
            ]
        }
        for at in range(1, 101)
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


@run
async def test_pods_with_many_conditions_on_nodes_are_judged_last_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six hundred such pods and one other at a thousand nodes; one look takes the work of one decision."""
    nodes = [node(f"n{at}", labels={"at": str(at)}) for at in range(1, 1001)]
    world = await World().start(*nodes, device())
    await world.place(pod("full", whole(2)))
    for number in range(600):
        name = f"b{number}"
        world.filter(world.create(of("bad", name, half(), **choosy(number))), "n1")
    world.filter(world.create(of("good", "web", half())), "n1")
    judged, judge = list[int](), NodeColumns.constrained

    def counted(columns: NodeColumns, constraint: NodeConstraint) -> Bools:
        judged.append(len(constraint.terms or ()))
        return judge(columns, constraint)

    monkeypatch.setattr(NodeColumns, "constrained", counted)
    world.service.pod_gone("uid-full")
    assert "uid-web" in world.woken
    assert 0 < judged.count(100) < 60


# --- victims ---------------------------------------------------------------------------------


def test_victims_of_a_namespace_are_bounded_a_minute() -> None:
    """A user who makes and deletes important pods gets few victims, and other users' pods do not pay."""
    allowance, now, gone = Allowance(AllowanceSettings(victims=60)), 0.0, []
    for number in range(6000):
        churn = make_pod(f"p{number}", namespace="bad")
        if allowance.may_evict("bad", now):
            allowance.evict(churn, [f"v{number}-{one}" for one in range(4)], now)
            gone += [now] * 4
        allowance.forget(churn.uid)
        now += 0.1
    for minute in range(10):
        count = sum(minute * 60 <= at < minute * 60 + 60 for at in gone)
        assert count <= 2 * 60 + 4
    assert sum(at >= 60 for at in gone) <= 9 * 60 + 4
    assert allowance.may_evict("good", now)


def test_a_victim_counts_once_for_a_pod() -> None:
    """kube-scheduler asks repeatedly, and the same pods would be evicted."""
    allowance, one = Allowance(AllowanceSettings(victims=3)), make_pod("p", namespace="bad")
    for _ in range(10):
        allowance.evict(one, ["a", "b"], 0.0)
    assert allowance.may_evict("bad", 0.0)
    allowance.evict(one, ["c"], 0.0)
    assert not allowance.may_evict("bad", 0.0)
    assert allowance.may_evict("bad", 21.0)


def test_namespaces_that_come_and_go_are_forgotten() -> None:
    """The stored data has a bound."""
    allowance = Allowance()
    for number in range(20_100):
        allowance.evict(make_pod(f"p{number}", namespace=f"n{number}"), ["v"], float(number))
    assert len(allowance._evicted) <= 1001
    assert len(allowance._victims) <= 20_000


async def churned(world: Plugged) -> int:
    """Make an important pod, let kube-scheduler ask for victims, and delete it; how many nodes are offered."""
    name = f"vip{world.number}"
    world.create(of("bad", name, whole(2), priority=HIGH))
    refused = world.propose(name)
    offered = 0
    if refused.preempt:
        answer = await world.attempts.preempt(wire.Preempt(1, f"uid-{name}", world.number, []))
        offered = len(answer.nodes)
    world.service.pod_gone(f"uid-{name}")
    return offered


@run
async def test_the_plugin_offers_nobody_beyond_the_bound() -> None:
    """The pod waits, gets the reason, and is woken when further victims are allowed."""
    world = Plugged(allowance=AllowanceSettings(victims=4))
    await world.start(node(), device())
    for name in ("one", "two"):
        await world.place(pod(name, whole(), priority=LOW))
    assert [await churned(world) for _ in range(4)] == [1, 1, 0, 0]
    world.create(of("bad", "late", whole(2), priority=HIGH))
    assert world.propose("late").preempt
    answer = await world.attempts.preempt(wire.Preempt(1, "uid-late", world.number, []))
    assert not answer.nodes
    told = explain(world.service.books, "bad", "late")
    assert told is not None
    assert any("is evicted for it now" in note for note in told["notes"])
    world.woken.clear()
    world.clock.pass_time(16)
    await world.service.tick()
    assert world.woken == ["uid-late"]
    world.propose("late")
    answer = await world.attempts.preempt(wire.Preempt(1, "uid-late", world.number, []))
    assert answer.nodes == ["n1"]


@run
async def test_nor_does_the_verb() -> None:
    """kube-scheduler's own preemption also asks, for resources that it counts itself."""
    world = await World(allowance=AllowanceSettings(victims=1)).start(node(), device())
    await world.place(pod("one", whole(2), priority=LOW))
    answers = []
    for number in range(3):
        vip = world.create(of("bad", f"vip{number}", whole(2), priority=HIGH))
        asked = {"Pod": vip, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "uid-one"}]}}}
        answers.append(world.service.preempt(wire.msgspec.json.encode(asked)))
        world.service.pod_gone(f"uid-vip{number}")
    assert [b"n1" in answer for answer in answers] == [True, False, False]


# --- nominations -----------------------------------------------------------------------------


@run
async def test_room_is_not_kept_for_ever_for_who_never_comes() -> None:
    """A nominated pod with another obstacle keeps no cards; others get them after two minutes."""
    world = await World().start(node(), device())
    await world.place(pod("victim", whole(2)))
    world.filter(world.create(pod("vip", whole(2), priority=HIGH)))
    world.create(
        pod(
            "vip",
            whole(2),
            status={"nominatedNodeName": "n1"},
            priority=HIGH,
            meta={"resourceVersion": "2"},
        )
    )
    world.filter(world.create(pod("other", whole(2))))
    world.service.pod_gone("uid-victim")
    kept = world.service.books.engine.states
    for second in range(150):
        world.clock.pass_time(1)
        await world.service.tick()
        assert (kept.get("uid-vip") is State.HELD) == (second < 119)
    assert "uid-other" in world.woken
    for version in range(3, 10):
        world.create(
            pod(
                "vip",
                whole(2),
                status={"nominatedNodeName": "n1"},
                priority=HIGH,
                meta={"resourceVersion": str(version)},
            )
        )
        assert "uid-vip" not in kept
    assert world.filter(pod("vip", whole(2), priority=HIGH))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("other", [{}, {"schedulerName": "nobody"}])
@run
async def test_room_is_not_kept_on_one_node_after_the_other_for_who_never_comes(
    other: dict[str, str],
) -> None:
    """A user with the right to write a pod's status may nominate it anywhere, any number of times."""
    world = await Plugged().start(
        *(x for n in ("n1", "n2") for x in (node(n), device(n, card(0))))
    )
    world.create(pod("never", whole(), **other))
    kept = 0
    for second in range(0, 1000, 10):
        where = f"n{second // 130 % 2 + 1}"
        if world.api.pods["never"]["status"].get("nominatedNodeName") != where:
            world.api.pods["never"]["status"]["nominatedNodeName"] = where
            world.seen("never")
        kept += 10 * ("uid-never" in world.states)
        world.clock.pass_time(10)
        await world.service.tick()
    assert 100 <= kept <= 130

    # kube-scheduler asks about it, and nominates it.
    world.create(pod("first", whole(2)))
    assert world.propose("never").nodes
    world.propose("first")
    world.seen("never")
    assert world.states == {"uid-never": State.HELD}


@run
async def test_what_is_free_is_not_kept_for_ever_beside_a_victim_that_stays() -> None:
    """A pod that takes a year to end keeps no other card idle for that long."""
    world = await World().start(node(), device())
    await world.place(pod("slow", whole(), priority=LOW))
    world.api.pods["slow"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.seen("slow")
    world.filter(world.create(pod("vip", whole(2), priority=HIGH)))
    world.create(
        pod(
            "vip",
            whole(2),
            status={"nominatedNodeName": "n1"},
            priority=HIGH,
            meta={"resourceVersion": "2"},
        )
    )
    states = world.service.books.engine.states
    assert states["uid-vip"] is State.CLEARING
    other = world.create(pod("other", whole()))
    assert not world.filter(other)["NodeNames"]
    for _ in range(601):
        world.clock.pass_time(1)
        await world.service.tick()
    assert "uid-vip" not in states
    assert world.filter(other)["NodeNames"] == ["n1"]
    world.service.books.engine.ledger.validate()


@run
async def test_what_was_kept_is_free_when_the_nomination_goes_back_to_where_it_was_in_vain() -> (
    None
):
    """The room on the node between is kept for nothing then."""
    world = await World().start(node("n1"), device("n1"), node("n2"), device("n2"))
    for name, where in (("a", "n1"), ("b", "n2")):
        await world.place(pod(name, whole(), priority=LOW), where)
        leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "2"}
        world.api.pods[name]["metadata"] |= leaving
        world.seen(name)
    states = world.service.books.engine.states
    for version, where in enumerate(("n1", "n2", "n1"), 1):
        if version > 1:
            world.filter(world.api.pods["vip"])
        there = {"status": {"nominatedNodeName": where}, "meta": {"resourceVersion": str(version)}}
        world.create(pod("vip", whole(2), priority=HIGH, **there))
        assert (states.get("uid-vip") is State.CLEARING) is (version < 3)
        world.clock.pass_time(601 if version == 1 else 1)
        await world.service.tick()

    assert world.filter(world.create(pod("other", whole())), "n2")["NodeNames"] == ["n2"]


@run
async def test_a_pod_that_comes_late_gets_its_room_as_others_do() -> None:
    """Only its claim on kept room has ended."""
    world = await World().start(node(), device())
    world.create(pod("vip", whole(2), status={"nominatedNodeName": "n1"}, priority=HIGH))
    for _ in range(130):
        world.clock.pass_time(1)
        await world.service.tick()
    assert "uid-vip" not in world.service.books.engine.ledger
    world.filter(world.api.pods["vip"])
    assert await world.bind("vip") == ""
