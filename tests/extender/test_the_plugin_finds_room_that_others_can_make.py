"""Preemption by kube-scheduler with the plugin: the pods that the engine names as victims.

kube-scheduler's own preemption chooses among the nodes, evicts the pods and nominates. The tests play
it, and check the engine's offers and the room that is kept for nominated pods.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from plugin_world import Plugged
from world import Manifest, card, device, document, half, node, pod, run, whole

from partage.extender import preemption
from partage.extender.cycle import PROPOSED
from partage.extender.preemption import MOST_PLANNING
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation
from partage.model.pod import Pod
from partage.placement.card import Work
from partage.scheduler.engine import Engine, State
from partage.wire import plugin as wire

HIGH = 1000


def important(name: str, limits: dict[str, str], **more: Any) -> Manifest:
    """A pod of high priority."""
    return pod(name, limits, priority=HIGH, **more)


def budget(name: str, allowed: int, **labels: str) -> msgspec.Raw:
    """A disruption budget."""
    found = {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": {"gone": None}},
    }
    return msgspec.Raw(msgspec.json.encode(found))


async def cluster(*nodes: str, cards: int = 2, preempts: bool = True) -> Plugged:
    """Nodes of so many cards."""
    world = Plugged(preempts=preempts)
    given = [card(i) for i in range(cards)]
    await world.start(*(one for name in nodes for one in (node(name), device(name, *given))))
    return world


async def runs(world: Plugged, manifest: Manifest, where: str = "n1") -> None:
    """The pod is bound there."""
    name = manifest["metadata"]["name"]
    world.create(manifest)
    assert where in world.propose(name, wide=True).nodes
    assert not world.reserve(name, where).code
    _, refused = await world.bind_by(name, where=where)
    assert refused is None
    world.seen(name)


async def offered(world: Plugged, name: str, *budgets: msgspec.Raw) -> dict[str, list[str]]:
    """The victims for a refused pod, by node; empty where kube-scheduler need not ask."""
    refused = world.propose(name)
    assert refused.code
    if not refused.preempt:
        return {}
    question = wire.Preempt(1, f"uid-{name}", world.number, list(budgets))
    answer = await world.attempts.preempt(question)
    assert not answer.code
    return dict(zip(answer.nodes, answer.victims, strict=True))


def leaves(world: Plugged, name: str, grace: int = 30) -> None:
    """The pod is being deleted, and still runs."""
    manifest = world.api.pods[name]
    manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    manifest["metadata"]["deletionGracePeriodSeconds"] = grace
    world.seen(name)


def nominated(world: Plugged, name: str, where: str) -> None:
    """kube-scheduler has written the nomination."""
    world.api.pods[name]["status"]["nominatedNodeName"] = where
    world.seen(name)


@run
async def test_the_fewest_go_and_the_least_important() -> None:
    """Two halves of one card, not one half of each of two; and no pod of equal priority."""
    world = await cluster("n1")
    for name, priority in (("a", 1), ("b", 1), ("c", 2), ("d", HIGH)):
        await runs(world, pod(name, half(), priority=priority))
    world.create(important("vip", whole()))

    assert await offered(world, "vip") == {"n1": ["uid-a", "uid-b"]}
    world.create(pod("equal", whole(), priority=1))
    assert not await offered(world, "equal")


@run
async def test_nodes_where_that_hurts_least_come_first() -> None:
    """Nodes without possible victims are not among them."""
    world = await cluster("n1", "n2", "n3", cards=1)
    await runs(world, pod("dear", whole(), priority=5), "n1")
    await runs(world, pod("cheap", whole(), priority=1), "n2")
    await runs(world, pod("equal", whole(), priority=HIGH), "n3")
    world.create(important("vip", whole()))

    assert list((await offered(world, "vip")).items()) == [
        ("n2", ["uid-cheap"]),
        ("n1", ["uid-dear"]),
    ]


def passed(world: Plugged, name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The units that a search for plans takes beside the plans themselves."""

    def nothing(*_args: object) -> Iterator[None]:
        return iter(())

    books, work = world.service.books, Work(MOST_PLANNING)
    with monkeypatch.context() as patch:
        patch.setattr(preemption, "planning", nothing)
        assert not any(preemption.plans(books, books.waiting[f"uid-{name}"], (), work=work))
    return work.done


@run
async def test_nodes_and_pods_that_are_compared_are_paid_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred nodes without devices, and forty pods of equal importance beside a less important one."""
    world = await cluster("n1", cards=21)
    await runs(world, pod("low", half(), priority=1))
    world.create(important("vip", {"koordinator.sh/gpu": "2200"}))
    assert world.propose("vip").preempt
    before = passed(world, "vip", monkeypatch)
    for number in range(40):
        await runs(world, pod(f"peer{number}", half(), priority=HIGH))
    assert world.propose("vip").preempt
    assert passed(world, "vip", monkeypatch) == before + 10
    for number in range(100):
        world.service.changed(document(node(f"empty{number}")))
    assert passed(world, "vip", monkeypatch) == before + 20


@run
async def test_only_nodes_with_less_important_pods_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of twenty nodes has one."""
    names = [f"n{number}" for number in range(1, 21)]
    world = await cluster(*names, cards=1)
    for name in names:
        await runs(world, pod(f"on-{name}", half(), priority=1 if name == "n7" else HIGH), name)
        await runs(world, pod(f"also-{name}", half(), priority=HIGH), name)
    world.create(important("vip", half()))
    assert world.propose("vip").preempt
    read, plain = list[str](), Ledger.on_node

    def counted(ledger: Ledger, name: str) -> Iterator[Allocation]:
        read.append(name)
        return plain(ledger, name)

    monkeypatch.setattr(Ledger, "on_node", counted)
    found = await world.attempts.preempt(wire.Preempt(1, "uid-vip", world.number))

    assert (found.nodes, found.victims) == (["n7"], [["uid-on-n7"]])
    assert set(read) == {"n7"}
    world.check()


@run
async def test_disruption_budgets_are_broken_last() -> None:
    """The question contains the budgets, as kube-scheduler knows them."""
    world = await cluster("n1", cards=1)
    labels = {"labels": {"app": "web"}}
    await runs(world, pod("guarded", half(), priority=1, meta=labels))
    await runs(world, pod("other", half(), priority=2))
    for name in ("vip", "next"):
        world.create(important(name, half()))

    assert await offered(world, "vip", budget("web", 0, app="web")) == {"n1": ["uid-other"]}
    assert await offered(world, "next", budget("web", 1, app="web")) == {"n1": ["uid-guarded"]}


@run
async def test_a_pod_that_may_not_preempt_is_not_asked_about() -> None:
    """Its policy forbids it, its quota or request would still fail, or no pod is less important."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("low", whole(), priority=1))
    world.create(important("never", whole(), preemptionPolicy="Never"))
    world.create(important("odd", {"koordinator.sh/gpu": "150"}))
    world.create(pod("plain", whole()))

    for name in ("never", "odd", "plain"):
        refused = world.propose(name)
        assert refused.code
        assert not refused.preempt


@run
async def test_nobody_is_sent_away_where_the_operator_does_not_want_it() -> None:
    """The option is --no-preemption."""
    world = await cluster("n1", cards=1, preempts=False)
    await runs(world, pod("low", whole(), priority=1))
    world.create(important("vip", whole()))

    assert not world.propose("vip").preempt
    assert not (await world.attempts.preempt(wire.Preempt(1, "uid-vip", world.number))).nodes


@run
async def test_what_is_freed_is_kept_for_whom_it_was_freed() -> None:
    """It is kept from the nomination on; one victim is enough, and the pod takes the place."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("low", whole(), priority=1))
    world.create(important("vip", whole()))
    assert await offered(world, "vip") == {"n1": ["uid-low"]}

    nominated(world, "vip", "n1")
    leaves(world, "low")
    assert not world.propose("vip", nominated="n1").preempt  # its room is coming
    world.create(pod("thief", half(), priority=5))
    del world.api.pods["low"]
    world.service.pod_gone("uid-low")
    assert world.propose("thief").code
    assert "uid-vip" in world.states

    assert world.propose("vip", nominated="n1").nodes == ["n1"]
    assert not world.reserve("vip").code
    allowed, refused = await world.bind_by("vip")
    assert allowed is not None
    assert refused is None
    world.check()


@run
async def test_pods_that_leave_anyway_go_first() -> None:
    """No other pod is evicted; if only pods of equal priority leave, the pod waits for them."""
    world = await cluster("n1", "n2", cards=1)
    await runs(world, pod("leaving", whole(), priority=1), "n1")
    await runs(world, pod("staying", whole(), priority=HIGH), "n2")
    leaves(world, "leaving")
    leaves(world, "staying")
    world.create(important("vip", whole()))

    assert await offered(world, "vip") == {"n1": ["uid-leaving"]}


async def halves_that_leave(grace: int, priority: int) -> Plugged:
    """Two nodes of a card: one half on each leaves, the other half is less important; an important pod wants a card."""
    world = await cluster("n1", "n2", cards=1)
    for where in ("n1", "n2"):
        await runs(world, pod(f"slow-{where}", half(), priority=priority), where)
        await runs(world, pod(f"low-{where}", half(), priority=1), where)
        leaves(world, f"slow-{where}", grace)
    world.create(important("vip", whole()))
    return world


@pytest.mark.parametrize("priority", [0, HIGH])
@pytest.mark.parametrize("grace", [300, 10**9])
@run
async def test_no_pod_goes_for_a_place_beside_one_that_takes_long_to_leave(
    grace: int, priority: int
) -> None:
    """A tenant's pod may take years to end, so that all others would be evicted in vain."""
    world = await halves_that_leave(grace, priority)
    assert not await offered(world, "vip")

    world.clock.pass_time(grace - 50)
    world.service.books.tick(world.clock.monotonic())
    found = await offered(world, "vip")
    assert bool(found) is True
    world.clock.pass_time(200)
    world.service.books.tick(world.clock.monotonic())
    assert not await offered(world, "vip")  # its node is dead, or it ignores all signals


@run
async def test_pods_that_leave_at_the_end_of_time_are_not_waited_for() -> None:
    """Others are evicted elsewhere, but for a short time their room costs least."""
    world = await cluster("n1", "n2", cards=1)
    for name, where in (("slow", "n1"), ("low", "n2")):
        await runs(world, pod(name, whole(), priority=1), where)
    world.create(important("vip", whole()))

    leaves(world, "slow", 10**9)
    assert await offered(world, "vip") == {"n2": ["uid-low"]}
    leaves(world, "slow", 300)
    world.clock.pass_time(11)
    assert list(await offered(world, "vip"))[:1] == ["n1"]


async def slow_to_leave(grace: int) -> Plugged:
    """A node of a card whose pod leaves; an important pod wants the card."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("slow", whole(), priority=1))
    world.create(important("vip", whole()))
    leaves(world, "slow", grace)
    return world


@run
async def test_a_shorter_grace_period_counts_from_the_later_deletion() -> None:
    """The kubelet then ends the pod after that time, however long ago the first deletion was."""
    world = await slow_to_leave(3600)
    world.clock.pass_time(1800)
    world.service.books.tick(world.clock.monotonic())
    assert not await offered(world, "vip")

    leaves(world, "slow", 30)
    world.clock.pass_time(11)
    assert await offered(world, "vip") == {"n1": ["uid-slow"]}
    leaves(world, "slow", 30)  # changed in another way
    world.clock.pass_time(100)
    world.service.books.tick(world.clock.monotonic())
    assert not await offered(world, "vip")


@pytest.mark.parametrize("grace", [-(10**400), -1, 2**63 - 1, 10**400])
@run
async def test_any_grace_period_is_read(grace: int) -> None:
    """Manifests of offline runs may contain any number."""
    world = await slow_to_leave(grace)
    assert bool(await offered(world, "vip")) is (grace < 0)


@run
async def test_a_rebuild_does_not_wait_for_the_same_pod_anew() -> None:
    """A pod that never ends would seem to end soon after each rebuild."""
    world = await slow_to_leave(30)
    world.clock.pass_time(200)
    world.service.books.tick(world.clock.monotonic())
    assert not await offered(world, "vip")
    api = [node("n1"), device("n1", card(0)), *world.api.pods.values()]
    await world.service.rebuild([document(one) for one in api])

    world.clock.pass_time(11)
    world.service.books.tick(world.clock.monotonic())
    assert not await offered(world, "vip")


@run
async def test_while_pods_end_beside_a_victim_no_other_is_evicted() -> None:
    """They may be as important as the pod that waits for their room too."""
    world = await halves_that_leave(30, HIGH)
    where, victims = next(iter((await offered(world, "vip")).items()))
    nominated(world, "vip", where)
    world.api.pods.pop(victims[0].removeprefix("uid-"))
    world.service.pod_gone(victims[0])

    refused = world.propose("vip", nominated=where)
    assert refused.code
    assert not refused.preempt


async def kept_for_another() -> Plugged:
    """A node of a card, which is kept for a nominated pod that never comes."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("low", whole(), priority=1))
    world.create(pod("mid", whole(), priority=5))
    assert await offered(world, "mid") == {"n1": ["uid-low"]}
    nominated(world, "mid", "n1")
    del world.api.pods["low"]
    world.service.pod_gone("uid-low")
    assert world.states == {"uid-mid": State.HELD}
    return world


@pytest.mark.parametrize("later", [False, True])
@run
async def test_no_room_is_kept_for_a_waiting_pod_that_is_being_deleted(*, later: bool) -> None:
    """A finalizer may keep it for ever, and kube-scheduler tries it no more."""
    world = await kept_for_another()
    world.create(pod("next", whole(), priority=1))
    assert world.propose("next").code
    leaves(world, "mid")
    if later:
        nominated(world, "mid", "n1")

    assert not world.states
    assert world.woken[-1] == "uid-next"
    assert world.propose("next").nodes == ["n1"]
    world.check()


@run
async def test_a_waiting_pod_that_is_being_deleted_is_not_woken() -> None:
    """Others are woken in its place."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("full", whole(), priority=5))
    for number in range(70):
        world.create(pod(f"gone{number}", whole(), priority=9))
        assert world.propose(f"gone{number}").code
        leaves(world, f"gone{number}")
    world.create(pod("next", whole()))
    assert world.propose("next").code
    del world.api.pods["full"]
    world.service.pod_gone("uid-full")

    assert world.woken == ["uid-next"]


@pytest.mark.parametrize("policy", ["Never", "PreemptLowerPriority"])
@run
async def test_room_kept_for_a_less_important_pod_is_taken_at_once(policy: str) -> None:
    """A nominated pod keeps room from pods of its own importance and below."""
    world = await kept_for_another()
    world.create(pod("equal", half(), priority=5))
    assert world.propose("equal").code
    world.create(important("vip", whole(), preemptionPolicy=policy))
    assert world.propose("vip").nodes == ["n1"]
    assert not world.reserve("vip").code
    _, refused = await world.bind_by("vip")
    assert refused is None
    world.check()


@run
async def test_a_place_that_filter_has_answered_is_not_taken() -> None:
    """kube-scheduler binds that pod in the background, and its Binding would fail."""
    world = await kept_for_another()
    assert world.filter(world.api.pods["mid"])["NodeNames"] == ["n1"]
    world.create(important("vip", whole(), preemptionPolicy="Never"))
    assert not world.filter(world.api.pods["vip"])["NodeNames"]
    world.clock.pass_time(31)  # it was not bound
    world.service.books.tick(world.clock.monotonic())
    assert world.filter(world.api.pods["vip"])["NodeNames"] == ["n1"]
    assert not world.service.books.cycle.answered - {"uid-vip"}


@run
async def test_a_more_important_pod_that_waits_is_woken_for_such_room() -> None:
    """It evicts no pod itself, so no other news would come."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("low", whole(), priority=1))
    for number in range(20):
        world.create(important(f"large{number}", whole(2), preemptionPolicy="Never"))
        assert world.propose(f"large{number}").code
    world.create(important("vip", whole(), preemptionPolicy="Never"))
    world.create(pod("equal", whole(), priority=5))
    world.create(pod("mid", whole(), priority=5))
    for name in ("vip", "equal"):
        assert world.propose(name).code
    assert await offered(world, "mid") == {"n1": ["uid-low"]}
    nominated(world, "mid", "n1")
    del world.api.pods["low"]
    world.service.pod_gone("uid-low")

    assert sorted(world.woken) == ["uid-mid", "uid-vip"]
    assert world.propose("vip").nodes == ["n1"]


@run
async def test_kept_room_is_found_behind_any_number_of_nodes_without_enough() -> None:
    """One answer has work for about a hundred nodes; the next one goes on with the others."""
    names = [f"n{number}" for number in range(200)]
    world = await cluster(*names, cards=1)
    world.service.changed(document(node("large")))
    world.service.changed(document(device("large", card(0), card(1))))
    for where in (*names, "large"):
        world.create(pod(f"mid-{where}", whole(2 if where == "large" else 1), priority=5))
        nominated(world, f"mid-{where}", where)
    world.create(important("vip", whole(2), preemptionPolicy="Never"))

    found = [world.propose("vip").nodes for _ in range(4)]
    assert not found[0]
    assert ["large"] in found
    assert len(world.states) == len(names) + 1


def quota_of_none(namespace: str) -> Manifest:
    """A quota that admits no device."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": namespace, "resourceVersion": "1"},
        "spec": {"hard": {"requests.koordinator.sh/gpu": "0"}},
    }


@run
async def test_a_pod_that_its_quota_refuses_is_not_woken_in_place_of_others() -> None:
    """It would be refused again, whenever there is such room."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("low", whole(), priority=1))
    world.service.changed(document(quota_of_none("poor")))
    poor = pod("poor", whole(), priority=2 * HIGH, preemptionPolicy="Never")
    poor["metadata"]["namespace"] = "poor"
    world.create(poor)
    world.create(important("vip", whole(), preemptionPolicy="Never"))
    world.create(pod("mid", whole(), priority=5))
    assert world.propose("poor").code == "QuotaExceeded"
    assert world.propose("vip").code
    assert await offered(world, "mid")
    nominated(world, "mid", "n1")
    del world.api.pods["low"]
    world.service.pod_gone("uid-low")

    assert sorted(world.woken) == ["uid-mid", "uid-vip"]


@run
async def test_equal_pods_are_compared_with_kept_room_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of thousands for hundreds of rooms, each comparison would delay all answers."""
    names = [f"n{number}" for number in range(20)]
    world = await cluster(*names, cards=1)
    for name in names:
        world.create(pod(f"mid-{name}", whole(), priority=5))
        nominated(world, f"mid-{name}", name)
    for number in range(100):
        world.create(important(f"large{number}", whole(2), preemptionPolicy="Never"))
        assert world.propose(f"large{number}").code
    world.clock.pass_time(31)
    asked: list[str] = []
    plain = Engine.grants_without

    def counted(engine: Engine, pod: Pod, name: str, *args: Any, **more: Any) -> Any:
        asked.append(name)
        return plain(engine, pod, name, *args, **more)

    monkeypatch.setattr(Engine, "grants_without", counted)
    world.service.books.tick(world.clock.monotonic())

    assert len(world.states) == len(names)
    assert len(asked) <= 2 * len(names)


@run
async def test_each_kept_room_wakes_one_more_important_pod() -> None:
    """None of them waits for the end of the first room."""
    world = await cluster("n1", "n2", cards=1)
    for where in ("n1", "n2"):
        await runs(world, pod(f"low-{where}", whole(), priority=1), where)
    for number in range(3):
        world.create(important(f"vip{number}", whole(), preemptionPolicy="Never"))
        assert world.propose(f"vip{number}").code
    for where in ("n1", "n2"):
        world.create(pod(f"mid-{where}", whole(), priority=5))
        nominated(world, f"mid-{where}", where)
    for where in ("n1", "n2"):
        del world.api.pods[f"low-{where}"]
        world.service.pod_gone(f"uid-low-{where}")

    assert sorted(world.woken) == ["uid-vip0", "uid-vip1"]


@run
async def test_room_that_was_taken_and_left_is_kept_again() -> None:
    """kube-scheduler's own filters may reject the node for the more important pod."""
    world = await kept_for_another()
    world.create(important("vip", half()))
    assert world.propose("vip").nodes == ["n1"]
    assert not world.attempts.another(wire.Another(1, "uid-vip", world.number, ["n1"])).again

    assert world.states == {"uid-mid": State.HELD}
    world.create(pod("equal", half(), priority=5))
    assert world.propose("equal").code
    world.check()


@run
async def test_room_is_not_taken_for_a_pod_that_its_quota_refuses() -> None:
    """It would be taken in vain."""
    world = await kept_for_another()
    world.service.changed(document(quota_of_none("team")))
    world.create(important("vip", whole()))
    assert world.propose("vip").code == "QuotaExceeded"
    assert world.states == {"uid-mid": State.HELD}


@run
async def test_where_room_could_not_be_made_is_not_offered_again() -> None:
    """kube-scheduler nominated no node because of its own rules. In the end the engine starts again."""
    world = await cluster("n1", "n2", cards=1)
    for name, where in (("one", "n1"), ("two", "n2")):
        await runs(world, pod(name, whole(), priority=1), where)
    world.create(important("vip", whole()))

    both = await offered(world, "vip")
    assert set(both) == {"n1", "n2"}
    refused = world.propose("vip")
    answer = await world.attempts.preempt(wire.Preempt(1, "uid-vip", world.number))
    assert refused.preempt
    assert (answer.nodes, answer.again) == ([], True)
    assert await offered(world, "vip") == both


@run
async def test_further_nodes_are_offered_where_kube_schedulers_filters_reject_these() -> None:
    """The engine offers them at once, as long as there are any."""
    names = [f"n{i:02d}" for i in range(PROPOSED + 4)]
    world = await cluster(*names, cards=1)
    for name in names:
        await runs(world, pod(f"low-{name}", whole(), priority=1), name)
    world.create(important("vip", whole()))

    seen: set[str] = set()
    for more in (True, False):
        found = list(await offered(world, "vip"))
        assert not seen & set(found)
        seen |= set(found)
        question = wire.Another(1, "uid-vip", world.number, found)
        assert world.attempts.another(question).again is more
    assert seen == set(names)


@run
async def test_plans_are_forgotten_with_the_next_question() -> None:
    """Each of thousands of pods may have plans for sixteen nodes with any number of victims."""
    names = [f"n{number}" for number in range(4)]
    world = await cluster(*names, cards=2)
    for where in names:
        for number in range(2):
            await runs(world, pod(f"low-{where}-{number}", whole(), priority=1), where)
    for number in range(5):
        world.create(important(f"vip{number}", whole(2)))
        assert len(await offered(world, f"vip{number}")) == 4

    kept = list(world.attempts._attempts.values())
    assert sum(len(one.planned) for one in kept) == 4
    again = await offered(world, "vip0")  # kube-scheduler nominated it nowhere
    assert again == {}


@run
async def test_what_helps_nobody_is_not_searched_again_for_a_while() -> None:
    """Any number of pods with equal requests cost one search in ten seconds."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("low", half(), priority=1))
    await runs(world, pod("peer", half(), priority=HIGH))
    for name in ("first", "second"):
        world.create(important(name, whole()))

    refused = world.propose("first")
    assert refused.preempt
    answer = await world.attempts.preempt(wire.Preempt(1, "uid-first", world.number))
    assert not answer.nodes
    assert not world.propose("second").preempt
    world.clock.pass_time(11)
    assert world.propose("second").preempt


@run
async def test_a_nominated_node_is_proposed_although_it_was_rejected() -> None:
    """kube-scheduler has made its own kind of room there since."""
    world = await cluster("n1")
    world.create(important("web", half()))
    assert world.propose("web").nodes == ["n1"]
    world.attempts.another(wire.Another(1, "uid-web", world.number, ["n1"]))

    assert world.propose("web", nominated="n1").nodes == ["n1"]


@run
async def test_a_group_counts_on_each_victim_once() -> None:
    """Its pods are reserved where others still run, reverted, and nominated; none of them is bound."""
    world = await cluster("n1")
    for name in ("one", "two"):
        await runs(world, pod(name, whole(), priority=1))
    for name in ("first", "second", "third"):
        world.create(important(name, whole()))

    went: list[str] = []
    for name in ("first", "second"):
        ((where, victims),) = (await offered(world, name)).items()
        assert not world.reserve(name, where, simulated=True).code
        _, refused = await world.bind_by(name, where=where)
        assert refused is not None
        assert refused.code == "Provisional"
        went += [uid for uid in victims if uid not in went]
    assert sorted(went) == ["uid-one", "uid-two"]
    assert not await offered(world, "third")
    world.unreserve("second", attempt=2)
    nominated(world, "first", "n1")  # kube-scheduler does not wait for the other
    world.unreserve("first", attempt=1)
    nominated(world, "second", "n1")

    for name in ("one", "two"):
        del world.api.pods[name]
        world.service.pod_gone(f"uid-{name}")
    assert world.states == {"uid-first": State.HELD, "uid-second": State.HELD}
    world.check()


@pytest.mark.parametrize("slow", [300, 10**6])
@run
async def test_room_is_kept_for_a_group_while_its_other_victims_end(slow: int) -> None:
    """Ten minutes at most. Otherwise the first victims were evicted in vain, and would be once more."""
    world = await cluster("n1", "n2", cards=1)
    for name, where in (("quick", "n1"), ("slow", "n2")):
        await runs(world, pod(name, whole(), priority=1), where)
    places: dict[str, tuple[str, int]] = {}
    for name in ("first", "second"):
        world.create(important(name, whole()))
        places[name] = next(iter(await offered(world, name))), world.number
        assert not world.reserve(name, places[name][0], simulated=True).code
    for name, (where, number) in places.items():
        world.unreserve(name, attempt=number)
        nominated(world, name, where)
    leaves(world, "slow", slow)
    del world.api.pods["quick"]
    world.service.pod_gone("uid-quick")
    kept = []
    for second in range(0, 900, 5):
        if second == slow:
            del world.api.pods["slow"]
            world.service.pod_gone("uid-slow")
        world.clock.pass_time(5)
        await world.service.tick()
        kept.append(list(world.states.values()).count(State.HELD))

    if slow == 300:
        assert kept[10:60] == [1] * 50
        assert kept[60:80] == [2] * 20
    assert kept[125:] == [0] * len(kept[125:])
    world.check()


@run
async def test_a_group_that_is_tried_again_at_once_sends_nobody_else_away() -> None:
    """The watch has not shown its victims and nominations; if it never does, others are evicted after a while."""
    world = await cluster("n1", "n2", cards=1)
    for name, where in (("one", "n1"), ("two", "n2")):
        await runs(world, pod(name, whole(), priority=1), where)
    world.create(important("vip", whole()))
    where, _ = next(iter((await offered(world, "vip")).items()))
    assert not world.reserve("vip", where, simulated=True).code
    world.unreserve("vip")

    for _ in range(3):
        assert not await offered(world, "vip")
        world.unreserve("vip")
        world.clock.pass_time(3)
    world.clock.pass_time(2)
    await world.service.tick()
    assert await offered(world, "vip")
    world.check()


async def rounds_in_vain(seconds: int) -> list[int]:
    """When a pod was evicted for a group that preempts and fails, whose victims come again; the room is then free."""
    world = await cluster("n1", cards=1)
    world.create(important("vip", whole()))
    found: list[int] = []
    for second in range(seconds):
        name = f"low{second}"
        world.create(pod(name, whole(), priority=1))
        if world.propose(name).nodes:
            assert not world.reserve(name).code
            await world.bind_by(name)
            world.seen(name)
        else:
            del world.api.pods[name]
            world.service.pod_gone(f"uid-{name}")
        answer = world.propose("vip", simulated=True)
        offer = wire.Answer(1)
        if answer.preempt:
            offer = await world.attempts.preempt(wire.Preempt(1, "uid-vip", world.number))
        if answer.nodes or offer.nodes:
            assert not world.reserve("vip", simulated=True).code
        if offer.nodes:
            ((victim,),) = offer.victims
            del world.api.pods[victim.removeprefix("uid-")]
            world.service.pod_gone(victim)
            found.append(second)
        world.unreserve("vip")
        world.clock.pass_time(1)
        await world.service.tick()
    return found


@run
async def test_a_group_that_preempts_in_vain_does_so_ever_more_seldom() -> None:
    """kube-scheduler evicts for each of its pods before it knows that another one has no place anywhere."""
    found = await rounds_in_vain(900)
    assert found[0] == 0
    assert len(found) <= 7
    assert found[-1] - found[-2] > 200


@run
async def test_room_of_a_group_that_failed_is_free_without_a_further_question() -> None:
    """Its victims come again, and nothing else is scheduled meanwhile."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("low", whole(), priority=1))
    world.create(important("vip", whole()))
    assert await offered(world, "vip")
    assert not world.reserve("vip", simulated=True).code
    world.unreserve("vip")
    del world.api.pods["low"]
    world.service.pod_gone("uid-low")
    world.create(pod("again", whole(), priority=1))
    assert world.propose("again").code

    world.clock.pass_time(11)
    await world.service.tick()
    assert "uid-again" in world.woken
    assert world.propose("again").nodes == ["n1"]


@run
async def test_pods_are_not_woken_for_room_that_stays_kept() -> None:
    """The watches show the nomination of a pod of a group before its victims have ended."""
    world = await cluster("n1", cards=2)
    await runs(world, pod("low", whole(), priority=1))
    world.create(important("vip", whole(2)))
    assert await offered(world, "vip")
    assert not world.reserve("vip", simulated=True).code
    world.unreserve("vip")
    nominated(world, "vip", "n1")
    leaves(world, "low")
    world.create(pod("other", whole()))
    assert world.propose("other").code

    world.clock.pass_time(11)
    await world.service.tick()

    assert not world.service.books.making_room
    assert world.states["uid-vip"] is State.CLEARING
    assert "uid-other" not in world.woken


@run
async def test_a_nomination_without_room_is_no_news_for_others() -> None:
    """The nominated pod may have its room one day; a free card beside it is as old as before."""
    world = await cluster("n1", cards=2)
    await runs(world, pod("stays", whole(), priority=HIGH))
    world.create(pod("vip", whole(2), priority=HIGH, status={"nominatedNodeName": "n1"}))
    world.create(pod("small", whole()))
    assert world.propose("small").nodes == ["n1"]
    rejected = wire.Another(1, "uid-small", world.number, rejected=["n1"])
    assert not world.attempts.another(rejected).again

    for _ in range(100):
        world.clock.pass_time(1)
        await world.service.tick()

    assert world.woken == []


@run
async def test_pods_are_not_woken_for_room_that_goes_to_a_more_important_one() -> None:
    """A less important pod loses the room that was kept for it, and the plan of the other has it at once."""
    world = await cluster("n1", cards=2)
    await runs(world, pod("low", whole(), priority=1))
    world.create(pod("mid", whole(), priority=5, status={"nominatedNodeName": "n1"}))
    world.create(pod("other", whole()))
    assert world.propose("other").code
    world.create(important("vip", whole(2)))
    assert await offered(world, "vip")

    assert not world.reserve("vip", simulated=True).code

    assert "uid-mid" not in world.states
    assert "uid-other" not in world.woken


@run
async def test_of_pods_that_went_unnoticed_nothing_is_kept() -> None:
    """A pod of a group that preempted in vain goes while the watch is interrupted and kube-scheduler starts again."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("low", whole(), priority=1))
    world.create(important("vip", whole()))
    assert await offered(world, "vip")
    assert not world.reserve("vip", simulated=True).code
    world.unreserve("vip")
    world.clock.pass_time(11)
    await world.service.tick()
    assert "uid-vip" in world.attempts._retries._vain

    world.attempts.forget()
    await world.service.rebuild([document(node()), document(device())])
    world.attempts.rebuilt()

    assert not world.attempts._retries._vain


@run
async def test_late_and_broken_questions_offer_nothing() -> None:
    """An engine that does not lead offers nothing either."""
    world = await cluster("n1", cards=1)
    await runs(world, pod("low", whole(), priority=1))
    world.create(important("vip", whole()))
    assert world.propose("vip").preempt
    old = world.number
    assert world.propose("vip").preempt

    late = await world.attempts.preempt(wire.Preempt(1, "uid-vip", old))
    assert late.code == "StaleAttempt"
    world.service.follow()
    assert not (await world.attempts.preempt(wire.Preempt(1, "uid-vip", world.number))).nodes

    broken = wire.Preempt(1, "uid-vip", world.number, [msgspec.Raw(b'{"spec":1}')])
    world.service.lead()
    assert (await world.attempts.preempt(broken)).code == "InvalidRequest"


def test_a_budget_that_compares_thousands_of_values_lets_nobody_go() -> None:
    """Each possible victim would be compared with all of them."""
    values = [f"v{number}" for number in range(5_000)]
    spec = {"selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}}
    given = {"metadata": {"name": "b", "namespace": "team"}, "spec": spec}
    status = {"disruptionsAllowed": 3}

    large, small = (
        wire.budgets(wire.Preempt(1, "u", 1, [msgspec.Raw(msgspec.json.encode(one))]))[0]
        for one in (
            {**given, "status": status},
            {**given, "spec": {"selector": {"matchLabels": {"app": "v0"}}}, "status": status},
        )
    )

    assert (large.allowed, large.counts("team", "p", {"other": "x"})) == (0, True)
    assert (small.allowed, small.counts("team", "p", {"other": "x"})) == (3, False)
