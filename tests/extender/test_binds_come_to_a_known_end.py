"""Bind through the service: the Binding that is sent, and the end of its reservation."""

import asyncio
import json

import pytest
from world import (
    DONE,
    REFUSED,
    UNKNOWN,
    World,
    card,
    device,
    document,
    half,
    metax_world,
    node,
    pod,
    run,
    sgpu,
    whole,
)

from partage.extender import bindings
from partage.extender.bindings import BindLimits
from partage.extender.ports import Answered, Outcome
from partage.scheduler.engine import State
from partage.vendors import names
from partage.wire.documents import Document


async def after_its_time(world: World) -> None:
    """Let the time pass in which a Binding without an answer may still arrive."""
    world.clock.pass_time(BindLimits().late)
    await world.service.tick()


@run
async def test_record_annotations_and_labels_travel_in_the_binding() -> None:
    """One transaction contains everything, with the uid as its precondition."""
    world = await World().start(node(), device())
    manifest = world.create(pod("web", {"tke.cloud.tencent.com/qgpu-core": "100"}))
    world.filter(manifest)

    error = await world.bind("web")

    (sent,) = world.api.sent
    assert error == ""
    assert (sent.uid, sent.node) == ("uid-web", "n1")
    assert json.loads(sent.annotations[names.ALLOCATION])["node"] == "n1"
    assert sent.annotations[names.QGPU_ALLOCATED] == "true"
    assert sent.labels[names.QGPU_ALLOCATED] == "true"
    assert world.service.books.engine.states["uid-web"] is State.BOUND


@run
async def test_what_was_sent_is_what_a_rebuild_reads() -> None:
    """The books after binding equal those rebuilt from the API server's pods."""
    world = await World().start(node(), device())
    for name in ("a", "b", "c"):
        await world.place(pod(name, half()))
    before = world.service.books.engine.ledger.picture()

    await world.start(node(), device(), *world.api.pods.values())

    assert world.service.books.engine.ledger.picture() == before
    assert world.service.audit().clean


@run
async def test_a_record_for_which_the_annotations_leave_no_room_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server would take it, and then refuse the kubelet's word of the pod's end."""
    world = await World().start(node(), device())
    world.create(pod("web", whole(), meta={"annotations": {"example.com/pad": "x" * 800}}))
    monkeypatch.setattr(bindings, "LARGEST_ANNOTATIONS", 1_000)

    error = await world.bind("web")

    assert "the pod's annotations and its record have" in error
    assert not world.api.sent
    assert "uid-web" not in world.service.books.engine.ledger
    monkeypatch.undo()
    assert await world.bind("web") == ""


@run
async def test_a_refused_binding_gives_everything_back() -> None:
    """Nothing was bound, so nothing stays reserved; the answer has the API server's message."""
    world = await World().start(node(), device())
    world.create(pod("web", whole(2)))
    world.api.answers.append(REFUSED)

    error = await world.bind("web")

    assert "being deleted" in error
    assert "uid-web" not in world.service.books.engine.ledger
    assert await world.bind("web") == ""


@pytest.mark.parametrize(
    ("took", "bound"), [(True, True), (False, False)], ids=["was taken", "was not taken"]
)
@pytest.mark.parametrize("answer", [UNKNOWN, OSError("reset")], ids=["told", "raised"])
def test_an_unknown_outcome_is_read_back(took: bool, bound: bool, answer: object) -> None:  # noqa: FBT001
    """The pod itself shows the outcome of its Binding."""

    async def scene() -> None:
        world = await World().start(node(), device())
        world.create(pod("web", whole(2)))
        world.api.answers.append(answer)  # type: ignore[arg-type]
        world.api.takes.append(took)

        error = await world.bind("web")

        assert (error == "") is bound
        assert "uid-web" in world.service.books.engine.ledger
        await after_its_time(world)
        assert ("uid-web" in world.service.books.engine.ledger) is bound
        assert not world.service.books.unread

    asyncio.run(scene())


@pytest.mark.parametrize("took", [True, False])
def test_a_conflict_is_read_back_and_waits_for_nothing(took: bool) -> None:  # noqa: FBT001
    """The pod conflicts perhaps with its own Binding, repeated on the way; the request has ended in any case."""

    async def scene() -> None:
        world = await World().start(node(), device())
        world.create(pod("web", whole(2)))
        world.api.answers.append(Answered(Outcome.UNKNOWN, "409 Conflict", ended=True))
        world.api.takes.append(took)

        error = await world.bind("web")

        assert error == ("" if took else "the pod is not bound to node n1: 409 Conflict")
        assert ("uid-web" in world.service.books.engine.ledger) is took
        assert not world.service.books.unread
        assert world.service.bindings.settled

    asyncio.run(scene())


@run
async def test_a_reservation_stays_while_nobody_can_tell() -> None:
    """Its cards may be in use; the pod is read again later, and a second bind does not reserve twice."""
    world = await World().start(node(), device())
    world.create(pod("web", whole(2)))
    world.api.answers.append(UNKNOWN)
    world.api.takes.append(True)
    world.api.reads += [OSError("down")] * 4

    error = await world.bind("web")
    states = world.service.books.engine.states
    assert "not known" in error
    assert states["uid-web"] is State.UNKNOWN
    other = world.filter(world.create(pod("other", half())))

    await world.service.tick()

    assert other["NodeNames"] == []
    assert states["uid-web"] is State.BOUND
    assert await world.bind("web") == ""
    assert len(world.api.sent) == 1


@run
async def test_a_binding_that_arrives_late_finds_its_card_still_kept() -> None:
    """A pod without a node proves nothing while its Binding may still arrive."""
    world = await World().start(node(), device())
    world.create(pod("web", whole(2)))
    world.api.answers.append(UNKNOWN)
    world.api.takes.append(False)
    await world.bind("web")

    other = world.filter(world.create(pod("other", half())))
    world.api.pods["web"]["spec"]["nodeName"] = "n1"
    world.api.pods["web"]["metadata"]["annotations"] = dict(world.api.sent[0].annotations)
    await after_its_time(world)

    assert other["NodeNames"] == []
    assert world.service.books.engine.states["uid-web"] is State.BOUND
    assert world.service.audit().clean


@run
async def test_an_answer_from_before_its_time_was_over_proves_nothing() -> None:
    """The Binding may arrive while the answer is on its way back."""
    world = await World().start(node(), device())
    world.create(pod("web", whole(2)))
    world.api.answers.append(UNKNOWN)
    world.api.takes.append(False)
    await world.bind("web")
    read = world.api.read

    async def slow(namespace: str, name: str) -> Document | None:
        found = await read(namespace, name)
        world.api._write(world.api.sent[0])
        world.clock.pass_time(2)
        return found

    world.clock.pass_time(BindLimits().late - 1)
    world.api.read = slow  # type: ignore[method-assign]
    await world.service.tick()
    assert world.service.books.engine.states["uid-web"] is State.UNKNOWN
    await world.service.tick()

    assert world.service.books.engine.states["uid-web"] is State.BOUND


@run
async def test_a_pod_whose_binding_never_arrived_is_woken() -> None:
    """kube-scheduler got an unknown outcome, and needs a sign that the outcome is known."""
    world = await World().start(node(), device())
    world.create(pod("web", whole(2)))
    world.api.answers.append(UNKNOWN)
    world.api.takes.append(False)
    await world.bind("web")
    before = list(world.woken)

    await after_its_time(world)

    assert before == []
    assert world.woken == ["uid-web"]
    assert await world.bind("web") == ""


@run
async def test_a_binding_that_nobody_answers_is_unknown_after_its_time() -> None:
    """kube-scheduler gets an answer in time; the service reads the pod back to settle the reservation."""
    world = await World().start(node(), device())
    world.service.bindings.limits = type(world.service.bindings.limits)(send=0.0)
    world.create(pod("web", whole()))
    world.api.gate = asyncio.Event()

    error = await world.bind("web")

    assert "no answer" in error
    await after_its_time(world)
    assert "uid-web" not in world.service.books.engine.ledger


@run
async def test_a_binding_goes_on_when_its_caller_goes_away() -> None:
    """A broken connection must not leave a reservation that is never released."""
    world = await World().start(node(), device())
    world.create(pod("web", whole()))
    world.api.gate = asyncio.Event()
    caller = asyncio.create_task(world.bind("web"))
    await world.api.arrived.wait()

    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    world.api.gate.set()
    await world.service.close()

    assert world.service.books.engine.states["uid-web"] is State.BOUND


@run
async def test_two_calls_for_one_pod_share_one_binding() -> None:
    """kube-scheduler may ask again before the first answer."""
    world = await World().start(node(), device())
    world.create(pod("web", whole()))

    errors = await asyncio.gather(world.bind("web"), world.bind("web"))

    assert errors == ["", ""]
    assert len(world.api.sent) == 1


@run
async def test_a_pod_that_is_bound_elsewhere_is_not_bound_again() -> None:
    """The API server decides where a pod is."""
    world = await World().start(node("n1"), device("n1"), node("n2"), device("n2"))
    await world.place(pod("web", whole()), "n1")

    assert await world.bind("web", "n1") == ""
    assert "is on node n1 already" in await world.bind("web", "n2")


@run
async def test_what_does_not_fit_is_refused_with_numbers_and_not_sent() -> None:
    """Bind decides, whatever filter answered before."""
    world = await World().start(node(), device())
    world.create(pod("big", whole(3)))

    error = await world.bind("big")

    assert error.startswith("InsufficientCards: node n1:")
    assert world.api.sent == []
    assert world.told == [("big", "InsufficientCards")]
    assert (await world.bind("big", "nowhere")).startswith("NodeAffinity: ")


@run
async def test_a_pod_without_devices_is_bound_without_a_record() -> None:
    """kube-scheduler leaves the binding of every pod to an extender with the verb."""
    world = await World().start(node(), device())
    world.filter(pod("plain"))

    assert await world.bind("plain") == ""
    world.api.answers.append(REFUSED)
    assert "being deleted" in await world.bind("plain")
    assert world.api.sent[0].annotations == {}


@run
async def test_a_pod_that_was_never_seen_is_read_first() -> None:
    """After a fail-over the new leader may have to bind a pod that the old one filtered."""
    world = await World().start(node(), device())
    world.api.pods["web"] = pod("web", whole())

    assert await world.bind("web") == ""
    assert names.ALLOCATION in world.api.sent[0].annotations


@run
async def test_a_service_that_stops_while_it_reads_a_pod_binds_nothing() -> None:
    """Its books may be about to be replaced, and the new ones would lack the reservation."""
    world = await World().start(node(), device())
    world.api.pods["web"] = pod("web", whole())
    read = world.api.read

    async def last(namespace: str, name: str) -> Document | None:
        world.service.follow()
        return await read(namespace, name)

    world.api.read = last  # type: ignore[method-assign]

    assert "not leader" in await world.bind("web")
    assert not world.api.sent
    assert "uid-web" not in world.service.books.engine.ledger


@pytest.mark.parametrize(
    ("name", "uid", "message"),
    [
        ("nobody", "uid-nobody", "there is no pod"),
        ("web", "uid-other", "there is no pod"),
        ("other", "uid-web", "is that of pod team/web"),
    ],
    ids=["no such pod", "another uid", "another's uid"],
)
def test_a_pod_must_be_the_one_that_is_meant(name: str, uid: str, message: str) -> None:
    """A uid names exactly one pod."""

    async def scene() -> None:
        world = await World().start(node(), device())
        world.create(pod("web", whole()))

        assert message in await world.bind(name, uid=uid)
        assert world.api.sent == []

    asyncio.run(scene())


@run
async def test_a_pod_that_cannot_be_read_is_not_bound() -> None:
    """Its needs are unknown."""
    world = await World().start(node(), device())
    world.api.reads.append(OSError("down"))

    assert "cannot be read: down" in await world.bind("web")


@run
async def test_without_adaption_nothing_is_written_for_a_vendors_plugin() -> None:
    """Koordinator's gate is off: there is no lock and no vendor's key, and the record is unchanged."""
    world = await metax_world(adapts=False)
    world.create(pod("web", sgpu()))

    assert await world.bind("web") == ""
    (binding,) = world.api.sent
    assert not [key for key in binding.annotations if key.startswith("metax-tech.com/")]
    assert names.ALLOCATION in binding.annotations
    assert not world.api.locks


@run
async def test_a_vendors_lock_is_taken_before_its_pod_is_bound() -> None:
    """The vendor's plugin finds the pod by the lock; the service waits for another holder."""
    world = await metax_world()
    world.create(pod("web", sgpu()))
    world.api.refusing = 2

    assert await world.bind("web") == ""
    assert names.METAX_LOCK in world.api.locks["n1"]
    assert len(world.clock.slept) == 2


@run
async def test_nothing_is_kept_of_a_node_whose_lock_nobody_has() -> None:
    """Nodes with other names come and go; meanwhile one pod at a time has a node's lock."""
    world = await metax_world("n1", "n2")
    world.api.gate = asyncio.Event()
    for name in ("a", "b", "c"):
        world.create(pod(name, sgpu()))
    binds = [
        asyncio.create_task(world.bind(name, where))
        for name, where in (("a", "n1"), ("b", "n1"), ("c", "n2"))
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    await world.service.tick()
    assert [sent.name for sent in world.api.sent] == ["a", "c"]
    world.api.locks.clear()
    world.api.gate.set()

    assert await asyncio.gather(*binds) == ["", "", ""]
    assert world.service.bindings._locks is not None
    assert not world.service.bindings._locks._turns


@run
async def test_a_lock_that_stays_taken_gives_the_reservation_back() -> None:
    """The service waits less than the extender's time-out, and then gives an answer that leads to a retry."""
    world = await metax_world()
    world.create(pod("web", sgpu()))
    world.api.refusing = 100

    error = await world.bind("web")

    assert "is locked" in error
    assert "uid-web" not in world.service.books.engine.ledger
    assert sum(world.clock.slept) <= 4
    assert world.api.sent == []


@run
async def test_a_lock_is_given_back_when_the_binding_is_refused() -> None:
    """Otherwise the plugin would wait for a pod that never arrives."""
    world = await metax_world()
    world.create(pod("web", sgpu()))
    world.api.answers.append(REFUSED)

    assert await world.bind("web") != ""
    assert world.api.locks == {}
    world.api.answers.append(DONE)
    assert await world.bind("web") == ""


@run
async def test_a_lock_that_nobody_can_tell_about_is_given_back() -> None:
    """The lock may have been written; kube-scheduler tries the pod again."""
    world = await metax_world()
    world.create(pod("web", sgpu()))
    world.api.lock_faults += [OSError("reset")]

    error = await world.bind("web")

    assert "OSError: reset" in error
    assert world.api.locks == {}
    assert await world.bind("web") == ""


@run
async def test_a_pod_that_comes_back_unreadable_keeps_its_reservation() -> None:
    """An unreadable pod may be bound."""
    world = await World().start(node(), device())
    world.create(pod("web", whole()))
    world.api.answers.append(UNKNOWN)
    world.api.takes.append(True)
    world.api.pods["web"]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "much"}

    assert "not known" in await world.bind("web")
    assert world.service.books.engine.states["uid-web"] is State.UNKNOWN
    assert "not known yet" in await world.bind("web")


@run
async def test_a_pod_that_is_gone_when_it_is_read_back_holds_nothing() -> None:
    """No pod is left to hold devices."""
    world = await World().start(node(), device())
    world.create(pod("web", whole()))
    del world.api.pods["web"]
    world.api.answers.append(UNKNOWN)
    world.api.takes.append(False)

    assert "is not bound" in await world.bind("web")
    assert "uid-web" not in world.service.books.engine.ledger
    assert not world.service.books.unread


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen yet"])
def test_a_bug_on_the_way_leaves_the_reservation_to_be_read_back(seen: bool) -> None:  # noqa: FBT001
    """The Binding may have been sent, so its devices stay reserved."""

    @run
    async def scene() -> None:
        world = await World().start(node(), device())
        world.api.pods["web"] = pod("web", whole())
        if seen:
            world.seen("web")

        def broken(*_: object) -> None:
            raise ValueError("bug")

        world.service.bindings._render = broken  # type: ignore[assignment, method-assign]
        with pytest.raises(ValueError, match="bug"):
            await world.bind("web")

        assert world.service.books.engine.states["uid-web"] is State.UNKNOWN
        await world.service.tick()
        await after_its_time(world)
        assert "uid-web" not in world.service.books.engine.ledger

    scene()


@run
async def test_a_pod_that_is_bound_meanwhile_is_not_reserved_again() -> None:
    """Filter after bind is an error that leads to a retry, not a second place."""
    world = await World().start(node(), device())
    manifest = world.create(pod("web", whole()))
    await world.bind("web")

    assert "placed already" in world.filter(manifest)["Error"]
    world.seen("web")
    assert "on node n1 already" in world.filter(manifest)["Error"]


async def burst(count: int, *, at_once: int) -> tuple[World, list[asyncio.Task[str]]]:
    """Pods that are bound at the same time, at an API server that does not answer yet."""
    world = await World(limits=BindLimits(at_once=at_once)).start(
        node(), device("n1", *(card(number) for number in range(count)))
    )
    for number in range(count):
        world.create(pod(f"p{number}", whole()))
    world.api.gate = asyncio.Event()
    tasks = [asyncio.create_task(world.bind(f"p{number}")) for number in range(count)]
    for _ in range(20):
        await asyncio.sleep(0)
    return world, tasks


@run
async def test_bindings_wait_here_and_not_at_the_api_server() -> None:
    """A limited number is open at a time; the others follow in order, and none runs out of time."""
    world, tasks = await burst(7, at_once=2)
    assert [sent.name for sent in world.api.sent] == ["p0", "p1"]

    assert world.api.gate is not None
    world.api.gate.set()

    assert await asyncio.gather(*tasks) == [""] * 7
    assert [sent.name for sent in world.api.sent] == [f"p{number}" for number in range(7)]
    assert not world.service.bindings.busy


@run
async def test_a_service_that_stops_sends_no_more() -> None:
    """Open Bindings end; waiting ones were never sent and release their cards."""
    world, tasks = await burst(5, at_once=2)
    closing = asyncio.create_task(world.service.close())
    await asyncio.sleep(0)
    assert world.api.gate is not None
    world.api.gate.set()
    await closing

    done = await asyncio.gather(*tasks)
    assert done[:2] == ["", ""]
    assert all("not sent" in why for why in done[2:])
    assert len(world.api.sent) == 2
    held = [one.uid for one in world.service.books.engine.ledger.allocations()]
    assert sorted(held) == ["uid-p0", "uid-p1"]


@run
async def test_what_ends_by_time_ends_while_the_api_server_answers_no_read() -> None:
    """A tick does not wait for a read, and the next one does not read a second time."""
    world = await World().start(node(), device())
    world.create(pod("web", half()))
    world.api.answers.append(UNKNOWN)
    world.api.reads += [OSError("down")] * 3
    await world.bind("web")
    world.filter(world.create(pod("other", whole())))
    assert world.service.books.engine.states["uid-other"] is State.HELD
    reads, answer = 0, asyncio.Event()

    async def read(namespace: str, name: str) -> None:
        nonlocal reads
        reads += 1
        await answer.wait()

    world.api.read = read  # type: ignore[method-assign]
    world.clock.pass_time(600)

    for _ in range(2):
        await world.service.tick()

    assert "uid-other" not in world.service.books.engine.states
    assert reads == 1
    answer.set()
    await world.service.tick()
    assert "uid-web" not in world.service.books.engine.states


@run
async def test_a_leader_that_stops_while_it_reads_goes_on_with_its_periodic_work() -> None:
    """The end of the lead cancels the read; the next tick is not cancelled by that, and reads again."""
    world = await World().start(node(), device())
    world.create(pod("web", half()))
    world.api.answers.append(UNKNOWN)
    world.api.reads += [OSError("down")] * 3
    await world.bind("web")
    answered, sound = asyncio.Event(), world.api.read

    async def silent(namespace: str, name: str) -> None:
        await answered.wait()

    world.api.read = silent  # type: ignore[method-assign, assignment]
    await world.service.tick()
    await world.service.close()
    world.api.read = sound  # type: ignore[method-assign]

    await world.service.tick()
    await after_its_time(world)

    assert not world.service.books.unread


@run
async def test_a_binding_whose_time_is_over_can_arrive_no_more() -> None:
    """This holds even if its pod was deleted before the read; otherwise no lead could be handed over any more."""
    world = await World().start(node(), device())
    manifest = world.create(pod("web", whole(2)))
    world.api.answers.append(UNKNOWN)
    world.api.reads += [OSError("down")] * 3
    await world.bind("web")
    world.service.gone(document(manifest))
    assert not world.service.bindings.settled

    await after_its_time(world)

    assert world.service.bindings.settled
