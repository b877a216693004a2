"""Attempts of a kube-scheduler with the plugin: proposed, reserved, released, bound."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from plugin_world import Plugged
from world import DONE, UNKNOWN, card, device, document, half, node, pod, run, whole

from partage.extender import attempts
from partage.extender.attempts import Attempts
from partage.extender.bindings import BindLimits
from partage.extender.cycle import PROPOSED, WIDE
from partage.extender.ports import Answered, Outcome
from partage.extender.retries import MOST_REJECTED
from partage.model.errors import InvalidDocument
from partage.scheduler.engine import State
from partage.wire import plugin as wire
from partage.wire.documents import Document


def plugged(test: Callable[[Plugged], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test with one node of two cards."""

    @run
    async def runner() -> None:
        world = Plugged()
        await world.start(node(), device())
        await test(world)
        world.check()

    runner.__name__, runner.__doc__ = test.__name__, test.__doc__
    return runner


@plugged
async def test_a_pod_is_proposed_reserved_and_bound(world: Plugged) -> None:
    """The plugin's Binding contains the record."""
    world.create(pod("web", half()))

    assert world.propose("web").nodes == ["n1"]
    assert world.states["uid-web"] is State.HELD
    assert not world.reserve("web").code
    assert world.states["uid-web"] is State.RESERVED
    allowed, refused = await world.bind_by("web")

    assert refused is None
    assert allowed is not None
    record = json.loads(allowed.annotations["partage.io/allocation"])
    assert record["node"] == "n1"
    assert world.states["uid-web"] is State.BOUND
    registry = world.service.meters.registry
    for verb in ("propose", "reserve", "bind"):
        assert registry.get_sample_value("partage_verb_seconds_count", {"verb": verb}) == 1, verb


@plugged
async def test_the_time_from_waking_to_binding_is_measured(world: Plugged) -> None:
    """It is measured as for pods by the extender, so that the alert on slow wake-ups sees them."""
    await world.place(pod("full", whole(2)))
    world.create(pod("web", half()))
    assert world.propose("web").code
    world.service.pod_gone("uid-full")
    world.clock.pass_time(0.2)
    assert world.propose("web").nodes == ["n1"]
    assert not world.reserve("web").code
    assert (await world.bind_by("web"))[1] is None

    assert world.service.meters.woken._sum.get() == pytest.approx(0.2)


@plugged
async def test_a_proposal_ends_with_the_next_question(world: Plugged) -> None:
    """Nothing is reserved for a pod that kube-scheduler gave up without a message."""
    world.create(pod("first", whole(2)))
    world.create(pod("second", whole(2)))

    assert world.propose("first").nodes == ["n1"]
    assert world.propose("second").nodes == ["n1"]
    assert "uid-first" not in world.states


@plugged
async def test_a_refusal_says_why(world: Plugged) -> None:
    """It has the code and the numbers, and whether evictions would help."""
    world.create(pod("big", whole(3)))
    world.create(pod("odd", {"koordinator.sh/gpu": "150"}))

    refused, broken = world.propose("big"), world.propose("odd")

    assert refused.code == "InsufficientCards"
    assert refused.message
    assert broken.code == "InvalidRequest"
    assert world.service.books.waiting.get("uid-big") is not None


@plugged
async def test_unreserve_releases_and_may_come_at_any_time(world: Plugged) -> None:
    """It may arrive without `reserve`, twice, or late."""
    world.create(pod("web", whole(2)))
    world.propose("web")
    world.unreserve("web")
    assert "uid-web" not in world.states

    world.propose("web")
    world.reserve("web")
    world.unreserve("web")
    world.unreserve("web")
    assert "uid-web" not in world.states

    world.propose("web")
    world.reserve("web")
    world.unreserve("web", attempt=world.number - 1)  # of an attempt that was replaced
    assert world.states["uid-web"] is State.RESERVED


@pytest.mark.parametrize("seen", ["before", "after"])
def test_a_place_that_is_released_is_free_whatever_nomination_is_left(seen: str) -> None:
    """kube-scheduler nominates a pod for its own place while it waits for its group, and may leave that for good."""

    async def story() -> None:
        world = Plugged()
        await world.start(node(), device())
        world.create(pod("web", whole(2), meta={"resourceVersion": "7"}))
        world.propose("web")
        world.reserve("web")
        left = pod(
            "web",
            whole(2),
            meta={"resourceVersion": "8"},
            status={"phase": "Pending", "nominatedNodeName": "n1"},
        )
        if seen == "after":
            world.unreserve("web")
        world.create(left)
        world.unreserve("web")
        assert not world.states
        world.service.books.tick(world.clock.monotonic())
        assert not world.states

        world.propose("web")
        world.unreserve("web")  # without a place; preemption nominated the pod meanwhile
        world.create(pod("web", whole(2), meta={"resourceVersion": "9"}))
        left["metadata"]["resourceVersion"] = "10"
        world.create(left)
        assert world.states == {"uid-web": State.HELD}
        world.check()

    run(story)()


@plugged
async def test_a_second_reserve_takes_the_same_place_or_fails(world: Plugged) -> None:
    """The pods of a group are tried, reverted, and reserved again before they are bound."""
    world.create(pod("one", whole()))
    world.create(pod("two", whole()))
    world.propose("one")
    world.reserve("one", simulated=True)
    place = world.service.books.engine.ledger.allocation("uid-one")
    first = world.number
    world.unreserve("one")

    assert not world.reserve("one", attempt=first).code
    assert world.service.books.engine.ledger.allocation("uid-one") == place

    world.unreserve("one")
    world.create(pod("both", whole(2)))
    world.propose("both")
    world.reserve("both")
    lost = world.reserve("one", attempt=first)
    assert lost.code == "PlaceLost"
    assert "uid-one" not in world.states


@pytest.mark.parametrize("reverted", [False, True])
def test_a_place_that_was_only_tried_is_never_bound(*, reverted: bool) -> None:
    """Only a Reserve outside the group's cycle gives its pods their records."""

    @plugged
    async def story(world: Plugged) -> None:
        world.create(pod("web", whole()))
        world.propose("web")
        assert not world.reserve("web", simulated=True).code
        if reverted:
            world.unreserve("web")
        before = dict(world.states)

        allowed, refused = await world.bind_by("web")

        assert allowed is None
        assert refused is not None
        assert refused.code == "StaleAttempt"
        assert world.states == before
        assert not world.reserve("web").code
        assert not world.reserve("web").code  # a repeat
        assert (await world.bind_by("web"))[1] is None
        assert world.states["uid-web"] is State.BOUND

    story()


@plugged
async def test_a_binding_has_an_end_however_long_a_process_stands_still(world: Plugged) -> None:
    """The end counts from before the look at the Lease, by a clock that both processes read."""

    def stands_still() -> bool:
        world.clock.pass_time(3)
        return True

    world.attempts = Attempts(world.service, stands_still)
    world.create(pod("web", whole()))
    world.propose("web")
    world.reserve("web")
    begun = world.clock.monotonic()

    allowed, _ = await world.bind_by("web")

    assert allowed is not None
    assert world.clock.monotonic() == begun + 3
    assert allowed.until == begun + allowed.within


@plugged
async def test_a_failed_group_leaves_nothing(world: Plugged) -> None:
    """The reservations of its pods are released in any order."""
    for name in ("a", "b"):
        world.create(pod(name, whole()))
        world.propose(name)
        world.reserve(name, simulated=True)
    world.create(pod("c", whole()))
    assert world.propose("c").code == "InsufficientCards"
    world.unreserve("b", attempt=2)
    world.unreserve("a", attempt=1)

    assert not list(world.service.books.engine.ledger.allocations())


@plugged
async def test_repeated_and_late_questions_change_nothing(world: Plugged) -> None:
    """Each question names its attempt."""
    world.create(pod("web", half()))
    world.propose("web")
    old = world.number
    world.propose("web")
    assert not world.reserve("web").code
    assert not world.reserve("web").code  # a repeat
    before = world.service.books.engine.ledger.picture()

    assert world.attempts.propose(wire.Propose(1, "uid-web", old)).code == "StaleAttempt"
    assert world.attempts.propose(wire.Propose(1, "uid-web", world.number)).code == "StaleAttempt"
    assert world.reserve("web", attempt=old).code == "StaleAttempt"
    _, refused = await world.bind_by("web", attempt=old)
    assert refused is not None
    assert refused.code == "StaleAttempt"
    assert not world.attempts.bound(wire.Bound(1, "uid-web", world.number, "done"))
    assert world.service.books.engine.ledger.picture() == before


@plugged
async def test_a_late_question_ends_no_proposal(world: Plugged) -> None:
    """It may be of an attempt that another replaced, or come again after its place was reserved."""
    world.create(pod("web", half()))
    world.create(pod("next", half()))
    world.propose("web")
    world.propose("web")
    assert not world.reserve("web").code
    web = world.number
    assert world.propose("next").nodes == ["n1"]

    for late in (web - 1, web):
        assert world.attempts.propose(wire.Propose(1, "uid-web", late)).code == "StaleAttempt"
        assert world.states["uid-next"] is State.HELD
    assert not world.reserve("next").code


@plugged
async def test_a_node_that_was_not_proposed_is_not_reserved(world: Plugged) -> None:
    """This holds for any reason of kube-scheduler's choice."""
    world.service.changed(document(node("n2")))
    world.create(pod("web", half()))
    world.propose("web")

    assert world.reserve("web", "n2").code == "PlaceLost"


@plugged
async def test_a_refused_binding_releases(world: Plugged) -> None:
    """The API server's refusal is final."""
    world.create(pod("web", half()))
    world.propose("web")
    world.reserve("web")

    await world.bind_by("web", Answered(Outcome.REFUSED, "the pod is being deleted"))

    assert "uid-web" not in world.states
    world.unreserve("web")


@plugged
async def test_a_node_that_went_after_its_place_was_reserved_is_bound_by_nobody(
    world: Plugged,
) -> None:
    """The place is released at once. The pod gets one on the next node with that name."""
    world.create(pod("web", half()))
    world.propose("web")
    world.reserve("web")
    world.service.gone(document(node()))

    allowed, refused = await world.bind_by("web")

    assert allowed is None
    assert refused is not None
    assert "node n1 is gone" in refused.message
    assert "uid-web" not in world.states
    world.service.changed(document(node()))
    world.propose("web")
    assert not world.reserve("web").code
    assert (await world.bind_by("web"))[1] is None


@plugged
async def test_an_unknown_end_is_read_back(world: Plugged) -> None:
    """Its cards stay reserved meanwhile, whatever kube-scheduler reports."""
    world.create(pod("web", half()))
    world.propose("web")
    world.reserve("web")

    await world.bind_by("web", UNKNOWN)
    world.unreserve("web")
    assert world.states["uid-web"] is State.UNKNOWN
    assert world.propose("web").code == "StaleAttempt"

    world.clock.pass_time(BindLimits().late)
    await world.service.tick()
    assert "uid-web" not in world.states
    assert world.propose("web").nodes == ["n1"]


@plugged
async def test_a_conflict_that_bound_nothing_holds_no_card(world: Plugged) -> None:
    """The API server has answered, so no Binding is on its way, and the pod can be tried again at once."""
    world.create(pod("web", half()))
    world.propose("web")
    world.reserve("web")

    await world.bind_by("web", Answered(Outcome.UNKNOWN, "409 Conflict", ended=True))

    assert "uid-web" not in world.states
    assert world.propose("web").nodes == ["n1"]


@plugged
async def test_who_does_not_lead_sends_nothing(world: Plugged) -> None:
    """The service checks the Lease right before it allows the Binding."""
    world.create(pod("web", half()))
    world.propose("web")
    world.reserve("web")
    world.leads = False

    allowed, refused = await world.bind_by("web")

    assert allowed is None
    assert refused is not None
    assert refused.code == "NotBound"
    assert "uid-web" not in world.states


@plugged
async def test_a_disconnected_scheduler_keeps_nothing(world: Plugged) -> None:
    """Proposals and reservations end; an open Binding is read back."""
    for name in ("held", "reserved", "sent"):
        world.create(
            pod(name, {"koordinator.sh/gpu-core": "20", "koordinator.sh/gpu-memory-ratio": "20"})
        )
    world.propose("reserved")
    world.reserve("reserved")
    world.propose("sent")
    world.reserve("sent")
    on_its_way = asyncio.create_task(
        world.attempts.bind(wire.Bind(1, "uid-sent", world.number, "n1"), lambda _: None)
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.propose("held")

    world.attempts.disconnected()
    await on_its_way

    assert world.states == {"uid-sent": State.UNKNOWN}


@plugged
async def test_a_new_kube_scheduler_places_what_the_one_before_had_sent(world: Plugged) -> None:
    """Its numbers start again, and the Binding of the one before never arrived."""
    world.create(pod("web", half()))
    world.number = 5000
    world.propose("web")
    world.reserve("web")
    question = wire.Bind(1, "uid-web", world.number, "n1")
    on_its_way = asyncio.create_task(world.attempts.bind(question, world.allowed.append))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.allowed
    world.attempts.forget()
    world.number = 0
    assert world.propose("web").code == "StaleAttempt"  # it may still arrive
    await on_its_way
    world.clock.pass_time(60)
    await world.service.tick()

    assert world.propose("web").nodes == ["n1"]
    assert not world.reserve("web").code
    allowed, refused = await world.bind_by("web")
    assert allowed is not None
    assert refused is None


@plugged
async def test_what_an_engine_before_proposed_is_proposed_anew(world: Plugged) -> None:
    """The engine evicts no pod for one whose rejected nodes it did not choose."""
    world.create(pod("web", half()))
    world.propose("web")
    late = wire.Another(1, "uid-web", world.number, ["n1"])
    world.attempts.forget()

    assert world.attempts.another(late).again


@plugged
async def test_pods_that_are_rejected_everywhere_do_not_wake_each_other(world: Plugged) -> None:
    """Each proposal's end frees what was free before; kube-scheduler would try the two in turn without a pause."""
    world.create(pod("one", half()))
    world.create(pod("two", half()))
    for _ in range(2):
        for name in ("one", "two"):
            nodes = world.propose(name).nodes
            if nodes:
                world.attempts.another(wire.Another(1, f"uid-{name}", world.number, nodes))

    assert not world.woken


@plugged
async def test_room_that_comes_beside_a_proposal_is_found_after_it(world: Plugged) -> None:
    """The proposal was in the way when the room came, and is rejected."""
    await world.place(pod("ends", whole()))
    world.create(pod("big", whole(2)))
    assert world.propose("big").code == "InsufficientCards"
    world.create(pod("small", half()))
    assert world.propose("small").nodes == ["n1"]
    world.service.pod_gone("uid-ends")
    assert not world.woken

    world.attempts.another(wire.Another(1, "uid-small", world.number, ["n1"]))

    assert world.woken == ["uid-big"]


@plugged
async def test_new_books_know_what_is_reserved(world: Plugged) -> None:
    """After a rebuild the books take the reservation again before any other decision."""
    world.create(pod("web", whole(2)))
    world.propose("web")
    world.reserve("web")
    number = world.number
    await world.start(node(), device(), world.api.pods["web"])

    world.create(pod("other", whole()))
    assert world.propose("other").code == "InsufficientCards"
    _, refused = await world.bind_by("web", attempt=number)
    assert refused is None
    assert world.states["uid-web"] is State.BOUND


@plugged
async def test_a_pod_that_changed_is_not_bound(world: Plugged) -> None:
    """The decision was about another spec."""
    manifest = world.create(pod("web", half()))
    world.propose("web")
    world.reserve("web")
    manifest["spec"]["containers"][0]["resources"]["limits"] = whole()
    world.seen("web")

    _, refused = await world.bind_by("web")

    assert refused is not None
    assert refused.code == "PodChanged"


@plugged
async def test_a_pod_recreated_under_its_name_is_another(world: Plugged) -> None:
    """The uid decides."""
    world.create(pod("web", half()))
    world.propose("web")
    world.reserve("web")
    world.service.pod_gone("uid-web")
    world.create(pod("web", half(), meta={"uid": "uid-again"}))

    _, refused = await world.bind_by("web")

    assert refused is not None
    assert refused.code == "PodChanged"
    assert not list(world.service.books.engine.ledger.allocations())


@plugged
async def test_an_unseen_pod_travels_and_is_read_before_it_is_bound(world: Plugged) -> None:
    """kube-scheduler may know a pod before our watch does."""
    manifest = pod("web", half(), meta={"resourceVersion": "7"})
    raw = msgspec.Raw(json.dumps(manifest).encode())
    world.api.pods["web"] = manifest

    assert world.propose("web", version="7").unseen
    assert world.propose("web", version="7", pod=raw).nodes == ["n1"]
    world.reserve("web")
    _, refused = await world.bind_by("web")
    assert refused is None
    assert world.states["uid-web"] is State.BOUND


@plugged
async def test_a_pod_is_bound_before_our_watch_shows_that_its_gates_came_off(
    world: Plugged,
) -> None:
    """kube-scheduler has seen the change, and the API server has it too."""
    gated = pod("web", half(), meta={"resourceVersion": "7"}, schedulingGates=[{"name": "a/b"}])
    world.create(gated)
    free = world.api.pods["web"] = pod("web", half(), meta={"resourceVersion": "8"})

    assert world.propose("web", version="8").unseen
    raw = msgspec.Raw(json.dumps(free).encode())
    assert world.propose("web", version="8", pod=raw).nodes == ["n1"]
    world.reserve("web")
    _, refused = await world.bind_by("web")
    assert refused is None
    assert world.states["uid-web"] is State.BOUND


@pytest.mark.parametrize("how", ["gone", "unreserved", "again"])
def test_who_gives_up_while_the_pod_is_read_binds_nothing(how: str) -> None:
    """The answer would not arrive, and the cards would be kept until the Binding can no longer arrive."""

    async def story() -> None:
        world = Plugged()
        await world.start(node(), device())
        manifest = world.api.pods["web"] = pod("web", half(), meta={"resourceVersion": "7"})
        raw = msgspec.Raw(json.dumps(manifest).encode())
        world.propose("web", version="7", pod=raw)
        world.reserve("web")
        read, may_end = world.service.read, asyncio.Event()

        async def slowly(*which: str) -> Any:
            await may_end.wait()
            return await read(*which)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.service, "read", slowly)
            question = wire.Bind(1, "uid-web", world.number, "n1")
            binding = asyncio.create_task(world.attempts.bind(question, world.allowed.append))
            await asyncio.sleep(0)
            if how == "gone":
                world.attempts.disconnected()
            elif how == "unreserved":
                world.unreserve("web")
            else:
                assert world.propose("web", version="7", pod=raw).nodes == ["n1"]
            may_end.set()
            refused = await binding
        assert refused is not None
        assert refused.code == "StaleAttempt"
        assert not world.allowed
        assert world.states == ({"uid-web": State.HELD} if how == "again" else {})
        world.check()

    run(story)()


@plugged
async def test_what_ended_while_the_pod_was_read_is_not_bound(world: Plugged) -> None:
    """The books that are current may be about to be replaced, and the same question may have come again."""
    manifest = pod("web", half(), meta={"resourceVersion": "7"})
    world.api.pods["web"] = manifest
    answer, read = asyncio.Event(), world.api.read

    async def slow(namespace: str, name: str) -> Document | None:
        await answer.wait()
        return await read(namespace, name)

    world.api.read = slow  # type: ignore[method-assign]
    for ends in (True, False):
        answer.clear()
        world.propose("web", version="7", pod=msgspec.Raw(json.dumps(manifest).encode()))
        world.reserve("web")
        binds = [asyncio.create_task(world.bind_by("web")) for _ in range(2)]
        await asyncio.sleep(0)
        if ends:
            world.service.follow()
        answer.set()
        told = [refused.code if refused else "" for _, refused in await asyncio.gather(*binds)]
        world.service.lead()
        assert sorted(told) == (["EngineNotReady"] * 2 if ends else ["", "StaleAttempt"])
    assert world.states["uid-web"] is State.BOUND


@plugged
async def test_a_travelled_pod_may_not_ask_for_more_than_the_api_servers(world: Plugged) -> None:
    """The service checks the question's pod against the API server."""
    world.api.pods["web"] = pod("web", half())
    forged = msgspec.Raw(json.dumps(pod("web", whole())).encode())

    world.propose("web", pod=forged)
    world.reserve("web")
    _, refused = await world.bind_by("web")

    assert refused is not None
    assert refused.code == "PodChanged"


@plugged
async def test_a_travelled_pod_that_is_gone_is_forgotten(world: Plugged) -> None:
    """No watch has reported it, and perhaps none ever reports its end."""
    raw = msgspec.Raw(json.dumps(pod("web", half())).encode())
    world.propose("web", pod=raw)
    world.reserve("web")

    _, refused = await world.bind_by("web")

    assert refused is not None
    assert refused.code == "PodChanged"
    assert "uid-web" not in world.states
    assert not world.attempts._attempts


@plugged
async def test_a_pod_without_devices_is_skipped(world: Plugged) -> None:
    """This holds also if only its annotations made the plugin ask."""
    raw = msgspec.Raw(json.dumps(pod("web")).encode())
    assert world.propose("web", pod=raw).skip


@run
async def test_rejected_nodes_are_left_out_while_there_are_others() -> None:
    """Then all are proposed again: kube-scheduler reports the reasons, and knows the events to wait for."""
    world = Plugged()
    names = [f"n{i:02d}" for i in range(3 * PROPOSED)]
    await world.start(*(one for name in names for one in (node(name), device(name))))
    world.create(pod("web", half()))

    seen: list[str] = []
    for count in (1, PROPOSED, PROPOSED, PROPOSED - 1):
        proposed = world.propose("web").nodes
        assert len(proposed) == count
        assert not set(proposed) & set(seen)
        seen += proposed
        again = world.attempts.another(wire.Another(1, "uid-web", world.number, proposed)).again
        assert again == (len(seen) < len(names))
    assert len(world.propose("web").nodes) == PROPOSED
    world.check()


@run
async def test_a_nomination_that_a_user_wrote_is_only_a_wish() -> None:
    """The best node stays first and is held; the named one comes after it if it has room, and not at all if it has none."""
    world = Plugged()
    await world.start(*(one for n in ("n1", "n2", "n3") for one in (node(n), device(n, card(0)))))
    world.create(pod("other", whole(), nodeName="n2"))
    world.create(pod("web", half()))
    best = world.propose("web").nodes
    assert best == ["n1"]

    assert world.propose("web", nominated="n2").nodes == best
    assert world.propose("web", nominated="nowhere").nodes == best
    assert world.propose("web", nominated="n3").nodes == [*best, "n3"]
    held = world.service.books.engine.ledger.allocation("uid-web")
    assert held is not None
    assert held.node == "n1"
    world.check()


@run
async def test_a_pod_that_most_nodes_repel_gets_to_the_others() -> None:
    """A tenant's pods may repel all others from any number of nodes, and those may be the best."""
    world = Plugged()
    names = [f"n{i:03d}" for i in range(MOST_REJECTED + 3 * PROPOSED)]
    await world.start(*(one for name in names for one in (node(name), device(name))))
    world.create(pod("web", half()))

    seen: set[str] = set()
    while len(seen) < MOST_REJECTED:
        few = world.propose("web").nodes
        seen.update(few)
        assert world.attempts.another(wire.Another(1, "uid-web", world.number, few)).again
    rest = world.propose("web")

    assert len(rest.nodes) == len(rest.scores) == 3 * PROPOSED
    assert max(rest.scores) == 100
    assert seen.union(rest.nodes) == set(names)
    assert not world.reserve("web", rest.nodes[-1]).code
    world.propose("web")
    rejected = wire.Another(1, "uid-web", world.number, rest.nodes)
    assert not world.attempts.another(rejected).again  # kube-scheduler waits for a change of these
    world.check()


@run
async def test_several_nodes_are_proposed_where_one_may_not_do() -> None:
    """This holds for a minute after a rejection by kube-scheduler, and for pods of a group."""
    world = Plugged()
    await world.start(*(one for n in ("n1", "n2", "n3") for one in (node(n), device(n))))
    world.create(pod("web", half()))
    world.create(pod("other", half()))

    assert len(world.propose("web").nodes) == 1
    assert len(world.propose("web", simulated=True).nodes) == 3
    world.propose("web")
    world.attempts.another(wire.Another(1, "uid-web", world.number, ["n1"]))
    assert len(world.propose("other").nodes) == 3
    world.clock.pass_time(61)
    assert len(world.propose("other").nodes) == 1


@pytest.mark.parametrize("wide", [False, True])
@run
async def test_a_pod_that_is_rejected_where_devices_are_waits_for_devices_elsewhere(
    wide: bool,  # noqa: FBT001 # a case
) -> None:
    """kube-scheduler knows its own obstacle on the rejected node, as a zone, and no lack of devices on others."""
    world = Plugged()
    await world.start(node(), device(), node("n2"), device("n2"))
    await world.place(pod("filler", whole(2)), "n2")
    world.create(pod("web", half()))
    assert world.propose("web", wide=wide).nodes == ["n1"]
    assert not world.attempts.another(wire.Another(1, "uid-web", world.number, ["n1"])).again
    assert not world.told, "kube-scheduler says why it waits"
    assert not world.woken

    world.service.pod_gone("uid-filler")

    assert world.woken == ["uid-web"]
    assert "n2" in world.propose("web", wide=wide).nodes
    world.check()


@run
async def test_of_a_domain_whose_best_nodes_are_rejected_all_are_proposed() -> None:
    """This happens once: then kube-scheduler reports why it rejects them."""
    world = Plugged()
    names = [f"n{i:02d}" for i in range(2 * PROPOSED)]
    labels = {"labels": {"zone": "a"}}
    await world.start(*(one for name in names for one in (node(name, **labels), device(name))))
    world.create(pod("web", half()))

    best = world.propose("web", wide=True, domains=["zone"]).nodes
    assert len(best) == PROPOSED
    assert world.attempts.another(wire.Another(1, "uid-web", world.number, best)).again
    every = world.propose("web", wide=True, domains=["zone"]).nodes
    assert set(every) == set(names)
    assert not world.attempts.another(wire.Another(1, "uid-web", world.number, best)).again


@run
async def test_rejected_nodes_are_left_out_for_a_minute() -> None:
    """They may fit again by then."""
    world = Plugged()
    await world.start(node(), device(), node("n2"), device("n2"))
    world.create(pod("web", half()))
    (first,) = world.propose("web").nodes
    assert world.attempts.another(wire.Another(1, "uid-web", world.number, [first])).again
    (second,) = world.propose("web").nodes
    assert {first, second} == {"n1", "n2"}
    world.clock.pass_time(61)
    assert world.propose("web").nodes == [first]


@run
async def test_a_wide_pod_is_proposed_every_node_that_fits_with_scores() -> None:
    """kube-scheduler weighs them with its own wishes; a nominated node is also a wish."""
    world = Plugged()
    names = [f"n{i:02d}" for i in range(2 * PROPOSED)]
    await world.start(*(one for name in names for one in (node(name), device(name, card(0)))))
    world.create(pod("web", half()))

    answer = world.propose("web", wide=True)
    assert sorted(answer.nodes) == names
    assert len(answer.scores) == len(names)
    assert answer.scores[0] == 100
    assert all(0 <= score <= 100 for score in answer.scores)

    narrow = world.propose("web")
    outside = next(name for name in names if name not in narrow.nodes)
    assert outside in world.propose("web", nominated=outside).nodes
    assert "elsewhere" not in world.propose("web", nominated="elsewhere").nodes


@pytest.mark.parametrize("room", [True, False])
@run
async def test_any_number_of_attempts_of_others_release_no_place(
    monkeypatch: pytest.MonkeyPatch, *, room: bool
) -> None:
    """A pod may wait for its group or its volume while thousands of others are asked about."""
    monkeypatch.setattr(attempts, "_MOST", 5)
    world = await Plugged().start(node(), device())
    for name in ("web", "sidecar"):
        world.create(pod(name, half()))
        assert world.propose(name).nodes == ["n1"]
        assert not world.reserve(name).code
    for number in range(20):
        world.create(pod(f"other{number}", half() if room else whole(5)))
        world.propose(f"other{number}")

    assert {uid for uid, state in world.states.items() if state is State.RESERVED} == {
        "uid-web",
        "uid-sidecar",
    }
    for number, name in enumerate(("web", "sidecar"), 1):
        _, refused = await world.bind_by(name, attempt=number)
        assert refused is None
    assert len(world.attempts._attempts) <= 5
    world.check()


@run
async def test_attempts_are_bounded_if_all_have_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest loses its place then."""
    monkeypatch.setattr(attempts, "_MOST", 2)
    world = await Plugged().start(node(), device())
    for name in ("first", "second", "third"):
        world.create(pod(name, half()))
        assert world.propose(name).nodes == ["n1"]
        assert not world.reserve(name).code

    assert world.states == {"uid-second": State.RESERVED, "uid-third": State.RESERVED}
    _, refused = await world.bind_by("first", attempt=1)
    assert refused is not None
    assert refused.code == "StaleAttempt"
    world.check()


@run
async def test_only_the_newest_proposal_is_remembered() -> None:
    """Each of thousands of pods, of a group or with wishes of kube-scheduler's own, is proposed every node."""
    world = Plugged()
    names = [f"n{i:02d}" for i in range(40)]
    await world.start(*(one for name in names for one in (node(name), device(name, card(0)))))
    for number in range(30):
        world.create(pod(f"pod-{number}", half()))
        proposed = world.propose(f"pod-{number}", wide=True, simulated=number % 3 == 0).nodes
        assert len(proposed) >= 20
        if number % 2:
            assert not world.reserve(f"pod-{number}", proposed[0]).code
    kept = world.attempts._attempts.values()
    assert len(kept) == 30
    assert sum(len(one.nodes) for one in kept) <= 40


@run
async def test_every_node_that_fits_is_proposed_in_parts_where_one_answer_may_not_have_all() -> (
    None
):
    """The exact rule judges a part of the nodes; a volume may be on any other. Less important pods are evicted after all."""
    world = Plugged()
    names = {f"n{i:03d}" for i in range(2 * WIDE + 1)}
    await world.start(*(one for name in names for one in (node(name), device(name))))
    two = {"name": "second", "resources": {"limits": half()}}
    asks = pod("web", half())
    asks["spec"]["containers"].append(two)
    world.create(asks)

    seen: list[str] = []
    for count in (WIDE, WIDE, 1):
        proposed = world.propose("web", wide=True).nodes
        assert len(proposed) == count
        assert not set(proposed) & set(seen)
        seen += proposed
        again = world.attempts.another(wire.Another(1, "uid-web", world.number, proposed)).again
        assert again == (len(seen) < len(names))
    assert set(seen) == names
    world.check()


@run
async def test_a_pod_that_is_spread_is_proposed_the_best_nodes_of_each_domain() -> None:
    """All nodes for a minute, if kube-scheduler's own filters rejected some of those."""
    world = Plugged()
    zones = {f"n{i:02d}": "abc"[i % 3] for i in range(9 * PROPOSED)}
    await world.start(
        *(
            one
            for name, zone in zones.items()
            for one in (node(name, labels={"zone": zone}), device(name, card(0)))
        ),
        node("alone"),
        device("alone", card(0)),
    )
    world.create(pod("web", half()))
    world.create(pod("other", half()))
    every = {*zones, "alone"}

    answer = world.propose("web", wide=True, domains=["zone"])
    assert Counter(zones.get(name) for name in answer.nodes) == {
        **dict.fromkeys("abc", PROPOSED),
        None: 1,
    }
    assert len(answer.scores) == len(answer.nodes)
    assert answer.nodes[0] == world.propose("web").nodes[0]
    assert set(world.propose("web", wide=True, domains=["rack"]).nodes) < every
    assert len(world.propose("web", wide=True, domains=["zone", "rack"]).nodes) == 1 + 3 * PROPOSED
    assert set(world.propose("web", wide=True).nodes) == every

    world.propose("web", wide=True, domains=["zone"])
    assert not world.reserve("web", answer.nodes[1], filtered=True).code
    assert set(world.propose("other", wide=True, domains=["zone"]).nodes) == every
    world.clock.pass_time(61)
    assert set(world.propose("other", wide=True, domains=["zone"]).nodes) < every


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"verb": "hello"}',
        b'{"verb": "no", "id": 1}',
        b'{"verb": "propose", "id": 1, "uid": 3, "attempt": 1}',
        b'{"verb": "propose", "id": 1, "uid": "u", "attempt": "1"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_refused(frame: bytes) -> None:
    """The refusal has a sentence."""
    with pytest.raises(InvalidDocument, match="message of the plugin"):
        wire.decode_question(frame)


def waiting_for_a_turn(
    test: Callable[[Plugged, asyncio.Task[Any]], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    """A test with a pod whose Binding waits behind another's, which is never answered."""

    @run
    async def runner() -> None:
        world = Plugged(limits=BindLimits(at_once=1))
        await world.start(node(), device())
        tasks = []
        for name in ("first", "second"):
            world.create(pod(name, whole()))
            world.propose(name)
            world.reserve(name)
            question = wire.Bind(1, f"uid-{name}", world.number, "n1")
            tasks.append(asyncio.create_task(world.attempts.bind(question, world.allowed.append)))
            for _ in range(10):
                await asyncio.sleep(0)
        assert len(world.allowed) == 1
        await test(world, tasks[1])
        for task in tasks:
            await task
        world.check()

    runner.__name__, runner.__doc__ = test.__name__, test.__doc__
    return runner


@waiting_for_a_turn
async def test_what_waits_for_its_turn_goes_with_kube_scheduler(
    world: Plugged, second: asyncio.Task[Any]
) -> None:
    """The Binding was not sent: nothing needs to be read back, and its card is free."""
    world.attempts.disconnected()

    refused = await second

    assert refused is not None
    assert refused.code == "NotBound"
    assert len(world.allowed) == 1
    assert "uid-second" not in world.states


@waiting_for_a_turn
async def test_a_pod_that_changed_while_it_waited_is_not_bound(
    world: Plugged, second: asyncio.Task[Any]
) -> None:
    """A sent Binding always follows a decision about the same spec."""
    changed = pod("second", half())
    world.create(changed)
    world.attempts.bound(wire.Bound(2, "uid-first", world.number - 1, "refused", "no"))

    refused = await second

    assert refused is not None
    assert "changed since" in refused.message
    assert len(world.allowed) == 1


@plugged
async def test_nothing_is_kept_of_pods_that_are_gone(world: Plugged) -> None:
    """This holds for a pod in any state: pods that a tenant makes and deletes must not fill the memory."""
    for number, name in enumerate(("asked", "reserved", "bound", "binding", "refused", "missed")):
        world.create(pod(name, whole(3 if name == "refused" else 1)))
        world.propose(name)
        if number in (1, 2, 3):
            assert not world.reserve(name).code
        if name == "bound":
            await world.bind_by(name)
            world.seen(name)
        if name == "binding":
            gone = document(world.api.pods[name])

            def reply(_: wire.Answer, gone: Document = gone, number: int = world.number) -> None:
                world.service.gone(gone)
                world.attempts.bound(wire.Bound(2, "uid-binding", number, Outcome.REFUSED.value))

            await world.attempts.bind(wire.Bind(1, "uid-binding", world.number, "n1"), reply)
            assert "uid-binding" not in world.attempts._attempts
        elif name != "missed":
            world.service.gone(document(world.api.pods.pop(name)))
    assert list(world.attempts._attempts) == ["uid-missed"]

    await world.service.rebuild([document(node()), document(device())])
    world.attempts.rebuilt()

    assert not world.attempts._attempts


@plugged
async def test_nothing_is_kept_of_a_pod_that_came_and_went_unseen(world: Plugged) -> None:
    """The watch may have been interrupted for all of its life; then only a read shows that it is gone."""
    for name, end in (("bound", DONE), ("lost", UNKNOWN)):
        manifest = pod(name, half(), meta={"resourceVersion": "7"})
        world.api.pods[name] = manifest
        world.propose(name, version="7", pod=msgspec.Raw(json.dumps(manifest).encode()))
        world.reserve(name)
        await world.bind_by(name, end)
    world.api.pods.clear()

    world.clock.pass_time(BindLimits().late)
    await world.service.tick()

    assert not world.attempts._attempts
    assert not world.states
