"""A claim's allocation is reserved in the books in the same step that finds it free, or refused."""

import os
from typing import Any

import pytest
from claim_races import played, sequence
from world import Manifest, World, card, device, document, half, node, pod, run, whole

from claim_documents import claim, result, share
from fakes.clock import InstantClock
from partage.extender import claim_arbiter
from partage.extender.claim_arbiter import WAIT
from partage.extender.service import SchedulerService
from partage.scheduler.engine import State
from partage.wire.claims import MOST_FINALIZERS
from partage.wire.documents import Document


class Store:
    """Claims as the API server has them.

    Attributes:
        claims: by name; an exception instead of one is raised.
        written: names of those that the service wrote.
    """

    def __init__(self) -> None:
        self.claims: dict[str, Manifest | Exception] = {}
        self.written: list[str] = []

    async def outdate(self, _namespace: str, name: str) -> Document | None:
        """As the service writes a claim."""
        self.written.append(name)
        found = self.claims.get(name)
        if isinstance(found, Exception):
            raise found
        if found is None:
            return None
        if not found["status"]:
            found["metadata"].pop("finalizers", None)
        return document(found)


async def _started(*manifests: Manifest) -> tuple[World, Store]:
    world, store = World(), Store()
    clock = world.clock
    assert isinstance(clock, InstantClock)
    world.service = SchedulerService(world.api, clock, outdate=store.outdate)
    await world.start(node(), device(), *manifests)
    return world, store


def _review(world: World, *results: Any, **more: Any) -> str:
    about = {key: more.pop(key) for key in ("dry_run", "question") if key in more}
    return world.service.review_claim(document(claim(*results, **more)), **about)


def _used(world: World) -> int:
    """Thousandths of all cards that the books have allocated."""
    ledger = world.service.books.engine.ledger
    return sum(one.core_milli for held in ledger.allocations() for one in held.charges)


@run
async def test_what_is_admitted_is_nobodys_elses_at_once() -> None:
    """This holds before the API server reports the claim; afterwards it still counts once."""
    world, _store = await _started()
    assert _review(world, share(cores="60"), share("gpu-1", cores="60")) == ""
    waiting = world.create(pod("web", half()))
    assert world.filter(waiting)["NodeNames"] == []

    world.service.changed(
        document(claim(share(cores="60"), share("gpu-1", cores="60"), version=2))
    )
    assert _used(world) == 1200
    assert world.service.books.engine.states["claim-x"] is State.BOUND
    assert world.service.claims.reserved == {}
    assert world.service.audit().clean


@run
async def test_what_does_not_fit_is_refused_with_its_numbers_and_leaves_nothing() -> None:
    """A card in use by a pod, a missing card, a claim on two nodes, and an unreadable claim."""
    world, _store = await _started(node("n2"), device("n2"))
    world.create(pod("web", half()))
    assert await world.bind("web") == ""

    assert _review(world, share(cores="60")) == (
        "node n1: no room for claim team/x: gpu-0: 60% and 10Gi asked, 50% and 8Gi free"
    )
    assert "gpu-0: 100% and 16Gi asked" in _review(world, result())
    assert "there is no such card" in _review(world, share("gpu-7"))
    assert "devices of several nodes: n1, n2" in _review(world, share("gpu-1"), share(pool="n2"))
    assert "'many' is not a quantity" in _review(world, share(cores="many"))
    assert "node n9 is not known" in _review(world, share(pool="n9"))
    twice = _review(world, share("gpu-1", shareID="s"), share("gpu-1", shareID="s"))
    assert "allocated twice" in twice
    assert _used(world) == 500
    assert world.service.claims.reserved == {}
    assert _review(world, share("gpu-1"), result(driver="gpu.nvidia.com")) == ""


@run
async def test_a_card_that_takes_no_further_sharer_says_so() -> None:
    """It has free amounts, but its pods of HAMi's protocol bring a limit of ten."""
    world, _store = await _started()
    for number in range(10):
        tenth = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100", "nvidia.com/gpucores": "1"}
        world.create(pod(f"web-{number}", tenth))
        assert await world.bind(f"web-{number}") == ""

    told = [_review(world, share(name, cores="5"), dry_run=True) for name in ("gpu-0", "gpu-1")]

    (full,) = filter(None, told)
    assert full.endswith("5% and 10Gi asked, 90% and 15.0Gi free, for no further sharer beside 10")


@run
async def test_what_is_not_ours_is_let_through_and_a_rehearsal_keeps_nothing() -> None:
    """Other drivers' claims, access for administrators, and a dry run."""
    world, _store = await _started()
    assert _review(world, result(driver="gpu.nvidia.com")) == ""
    assert _review(world, share(adminAccess=True)) == ""
    assert _review(world, share(), dry_run=True) == ""
    assert "no room" in _review(world, share(cores="200"), dry_run=True)
    assert _used(world) == 0


@run
async def test_what_is_taken_back_is_free_unless_another_write_may_still_arrive() -> None:
    """Two questions about one allocation are two writes; other claims and devices stay reserved."""
    world, _store = await _started()
    for question in ("one", "two"):
        assert _review(world, share(cores="60"), question=question) == ""
    other = {"name": "y", "uid": "claim-y", "question": "three"}
    assert _review(world, share("gpu-1", cores="20", memory="1Gi"), **other) == ""
    for question, used in (("one", 800), ("unknown", 800), ("three", 600), ("two", 0)):
        world.service.withdraw_review(question)
        assert _used(world) == used
    assert "stopped waiting for this answer" in _review(world, share(cores="60"), question="two")
    assert _used(world) == 0
    assert _review(world, share(cores="60"), question="five") == ""
    assert world.service.audit().clean


@run
async def test_one_reservation_answers_a_bounded_number_of_questions() -> None:
    """A user who can name a claim can ask endlessly, and each question is kept as long as its write may arrive."""
    world, _store = await _started()
    answers = [_review(world, share(cores="60"), question=f"q{number}") for number in range(100)]
    assert answers[:64] == [""] * 64
    assert all("too often" in one for one in answers[64:])
    assert _review(world, share(cores="60"), question="dry", dry_run=True) != ""
    world.service.withdraw_review("q7")
    assert _used(world) == 600
    assert _review(world, share(cores="60"), question="again") == ""
    for number in range(64):
        world.service.withdraw_review(f"q{number}")
    assert _used(world) == 600
    world.service.withdraw_review("again")
    assert _used(world) == 0
    assert world.service.claims.reserved == {}


@run
async def test_a_claim_reserves_one_allocation_at_a_time() -> None:
    """Any client that can name a claim can ask, and its other devices and nodes would be beyond what any quota has counted."""
    world, store = await _started(node("n2"), device("n2"))
    for identity in ("a", "b"):
        assert _review(world, share(cores="60", shareID=identity)) == ""
    others = (share("gpu-1", cores="60"), share(cores="10"), share(cores="60", pool="n2"))
    for other in others:
        refused = _review(world, other, dry_run=True)
        assert refused == "another allocation of claim team/x may still be stored; try again"
    await world.service.tick()
    assert store.written == []
    assert _used(world) == 600
    assert "names no resourceVersion" in _review(world, share(cores="9"), version="")

    # A scheduler that asks for others gets them soon, when the first write can no longer arrive.
    store.claims["x"] = claim(version=2)
    assert "another allocation" in _review(world, share("gpu-1", cores="60"))
    await world.service.tick()
    assert store.written == ["x"]
    assert _used(world) == 0
    assert _review(world, share("gpu-1", cores="60"), version=3) == ""
    assert _used(world) == 600
    assert "has changed since" in _review(world, share("gpu-1", cores="60"))

    assert _review(world, share(cores="60"), version=4) == ""
    assert _used(world) == 600
    assert _review(world, share("gpu-1", cores="60"), uid="y", name="y") == ""
    assert "no room" in _review(world, share("gpu-1", cores="60"), uid="z", name="z")
    assert _used(world) == 1200
    assert world.service.audit().clean


@run
@pytest.mark.parametrize("how", ["repeats", "is withdrawn", "changes the claim"])
async def test_no_question_prolongs_a_reservation(how: str) -> None:
    """The service writes the claim a minute after the first one, and kube-scheduler has to begin anew."""
    world, store = await _started()
    version = 1
    for number in range(13):
        question = f"q{number}"
        assert _review(world, share(cores="60"), version=version, question=question) == ""
        assert _used(world) == 600
        if how == "changes the claim":
            version += 1
            world.service.changed(document(claim(version=version)))
        elif how == "is withdrawn":
            world.service.withdraw_review(question)
        assert _used(world) == (600 if how == "repeats" else 0)
        await world.clock.sleep(5)
        await world.service.tick()
    assert store.written == []
    await world.clock.sleep(WAIT - 65)
    store.claims["x"] = claim(version=version + 1)
    assert "was admitted 66 s ago" in _review(world, share(cores="60"), version=version)
    await world.service.tick()
    assert store.written == ["x"]
    assert _used(world) == 0
    assert _review(world, share(cores="60"), version=version + 2) == ""
    assert _used(world) == 600


@run
async def test_a_claim_that_keeps_its_finalizer_has_its_turn_again() -> None:
    """Its tenant changes it at each write of the service, or an older policy allows no removal."""
    world, store = await _started()
    assert _review(world, share(cores="60")) == ""
    await world.clock.sleep(WAIT)
    kept = claim(version=2, reservedFor=[])
    store.claims["x"] = kept
    await world.service.tick()
    assert _used(world) == 0
    assert "is not stored" in _review(world, share(cores="60"), version=2)
    await world.service.tick()
    assert store.written == ["x", "x"]
    await world.clock.sleep(WAIT)
    assert _review(world, share(cores="60"), version=2) == ""


@run
async def test_a_namespace_has_a_bound_of_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claims leave room for others', and their writes take turns."""
    monkeypatch.setattr(claim_arbiter, "_OF_NAMESPACE", 20)
    world, store = await _started()

    def ask(name: str, namespace: str) -> str:
        made = claim(share(cores="1", memory="1Mi"), name=name, uid=name)
        made["metadata"]["namespace"] = namespace
        return world.service.review_claim(document(made), question=name)

    assert [ask(f"c{n}", "many") for n in range(20)] == [""] * 20
    assert "too many claims are being allocated" in ask("c20", "many")
    assert ask("one", "few") == ""
    world.service.withdraw_review("c0")
    assert ask("c20", "many") == ""
    await world.clock.sleep(WAIT)
    await world.service.tick()
    assert "one" in store.written
    assert len(store.written) < 20


@run
async def test_a_claim_that_is_believed_to_be_allocated_waits_for_the_news() -> None:
    """Its devices were released, which is not known here: its earlier devices would be freed unseen."""
    world, _store = await _started(claim(share()))
    assert _review(world, share()) == ""
    assert "still allocated in this instance" in _review(world, share("gpu-1"))
    # The same devices again, over a version that is not known here: it was deallocated in between.
    assert "still allocated in this instance" in _review(world, share(), version=3)
    world.service.changed(document(claim(version=2)))
    assert _review(world, share("gpu-1"), version=2) == ""
    world.service.gone(document(claim(version=3)))
    assert _used(world) == 0
    assert "is gone" in _review(world, share())


@run
async def test_old_news_of_a_claim_ends_no_newer_reservation() -> None:
    """News of its earlier allocation may arrive after the reservation of the next one."""
    world, _store = await _started()
    assert _review(world, share("gpu-1"), version=3) == ""
    world.service.changed(document(claim(share(), version=2)))
    assert _used(world) == 600
    world.service.changed(document(claim(version=3)))
    assert _used(world) == 300
    world.service.changed(document(claim(share("gpu-1"), version=4)))
    assert _used(world) == 300
    assert world.service.claims.reserved == {}


@run
async def test_claims_that_cannot_be_written_keep_no_others_reserved() -> None:
    """Few are written at a time, and failed ones follow after the others."""
    world, store = await _started()
    names = [f"odd{number}" for number in range(9)]
    store.claims = {name: OSError("refused") for name in names}
    for name in [*names, "gone"]:
        assert _review(world, share(cores="10", memory="1Gi"), uid=name, name=name) == ""
    await world.clock.sleep(WAIT)
    for _ in range(2):
        await world.service.tick()
    assert set(store.written) == {*names, "gone"}
    assert _used(world) == 900


@run
async def test_a_reservation_that_came_to_nothing_ends() -> None:
    """Only the leader writes the claim, so that no earlier write can arrive; then the API server's state holds."""
    world, store = await _started()
    for name in ("gone", "unallocated", "stored", "replaced", "unread"):
        assert _review(world, share(cores="10", memory="1Gi"), uid=name, name=name) == ""
    store.claims = {
        "unallocated": claim(name="unallocated", uid="unallocated"),
        "stored": claim(share(cores="10", memory="1Gi"), name="stored", uid="stored", version=2),
        "replaced": claim(share(cores="10", memory="1Gi"), name="replaced", uid="another"),
        "unread": OSError("connection reset"),
    }
    await world.clock.sleep(WAIT - 1)
    await world.service.tick()
    world.service.follow()
    await world.clock.sleep(2)
    await world.service.tick()
    world.service.lead()
    assert store.written == []
    assert _used(world) == 500

    await world.service.tick()
    assert sorted(store.written) == ["gone", "replaced", "stored", "unallocated", "unread"]
    held = {one.uid for one in world.service.books.engine.ledger.allocations()}
    assert held == {"stored", "unread#0"}
    store.claims["unread"] = claim(name="unread", uid="unread")
    await world.service.tick()
    assert _used(world) == 100
    assert world.service.audit().clean


def _begun(name: str, *results: Any, begun: bool = True) -> Document:
    """A claim that kube-scheduler has begun to allocate, or has not."""
    made = claim(*results, name=name, uid=name)
    if not begun:
        del made["metadata"]["finalizers"]
    return document(made)


@run
async def test_a_claim_that_nobody_has_begun_to_allocate_is_not_admitted() -> None:
    """The next leader would not look for its write, and no controller would release its devices."""
    world, _store = await _started()
    refusal = world.service.review_claim(_begun("x", share(), begun=False))
    assert "lacks the finalizer resource.kubernetes.io/delete-protection, which" in refusal
    assert "must set it too" in refusal
    assert _used(world) == 0


@run
async def test_a_new_leader_writes_the_claims_that_may_be_allocated() -> None:
    """It writes no others. Recently stored claims are in the books at once, and failed writes are repeated."""
    world, store = await _started()
    stored = claim(share(), name="stored", uid="stored", version=2)
    store.claims = {"waits": claim(name="waits", uid="waits"), "stored": stored, "odd": OSError()}
    listed = [_begun("waits"), _begun("stored"), _begun("gone"), _begun("held", share())]
    listed.append(_begun("new", begun=False))
    ends = [f"example.com/{number}" for number in range(MOST_FINALIZERS)]
    many = claim(name="many", uid="many")
    many["metadata"]["finalizers"] += ends
    listed.append(document(many))  # which no leader admits
    start = world.clock.monotonic()
    assert await world.service.outdate_claims(listed, start)
    assert sorted(store.written) == ["gone", "stored", "waits"]
    assert [one.uid for one in world.service.books.engine.ledger.allocations()] == ["stored"]

    store.written.clear()
    assert not await world.service.outdate_claims([*listed, _begun("odd")], start)
    assert store.written.count("waits") == 1
    assert WAIT - 2 <= store.written.count("odd") <= WAIT + 1
    assert world.clock.monotonic() >= start + WAIT
    store.written.clear()
    assert await world.service.outdate_claims(listed, start), "also where that was long ago"
    store.written.clear()
    assert await world.service.outdate_claims([], start)
    assert store.written == []


@run
async def test_a_fault_in_a_written_claim_costs_a_new_leader_another_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not its reign."""
    world, store = await _started()
    listed, told = [_begun("one"), _begun("two")], []
    store.claims = {name: claim(name=name, uid=name) for name in ("one", "two")}

    def broken(found: Document) -> str:
        told.append(found.metadata.name)
        raise KeyError(found.label)

    monkeypatch.setattr(world.service, "changed", broken)
    assert not await world.service.outdate_claims(listed, world.clock.monotonic())
    assert sorted(told) == sorted(store.written) == ["one", "two"]


@run
async def test_claims_without_number_hold_a_new_leader_up_for_a_while_only() -> None:
    """Any user may create claims and set the finalizer."""
    world, store = await _started()

    async def slow(namespace: str, name: str) -> Document | None:
        await world.clock.sleep(1)
        return await store.outdate(namespace, name)

    world.service = SchedulerService(world.api, world.clock, outdate=slow)
    start = world.clock.monotonic()
    assert not await world.service.outdate_claims([_begun(f"c{n}") for n in range(2000)], start)
    assert 0 < len(store.written) < 2000
    assert world.clock.monotonic() <= start + 2 * WAIT


@run
async def test_reservations_outlive_books_that_are_made_anew() -> None:
    """The list for the new books may be older than the write."""
    world, _store = await _started()
    assert _review(world, share(cores="60")) == ""
    await world.start(node(), device())
    assert _used(world) == 600
    assert _review(world, share(cores="60"), uid="y", name="y") != ""

    await world.start(node(), device(), claim(share(cores="60"), version=2))
    assert world.service.claims.reserved == {}
    assert _used(world) == 600


@run
async def test_only_a_leader_with_whole_books_admits() -> None:
    """A follower's books may lag, so it reserves nothing."""
    world, _store = await _started()
    world.service.follow()
    assert _review(world, share()) == "the instance is not leader"
    assert _used(world) == 0


@run
async def test_a_card_is_cut_as_its_node_has_it() -> None:
    """No instance of a card for shares, and no device of a closed node or a closed card."""
    world, _store = await _started()
    assert "no such instance" in _review(world, result("gpu-0-mig-1g-10gb-0"))
    world.create(pod("web", whole()))
    assert await world.bind("web") == ""
    assert "held by one pod alone" in _review(world, share(cores="1", memory="1Mi"))
    world.service.changed(document(device("n1", card(0), card(1, health=False), version=2)))
    assert "no room" in _review(world, share("gpu-1"))


FOUND = (48, 103, 106_668, 122_244)
"""What went wrong once: writes that outlived a reservation, or a leader; the same devices over a deallocation that was not
heard of; room that another leader gave away."""


@run
async def test_no_interleaving_of_two_deciders_gives_a_card_twice() -> None:
    """A short run with late news, lost and late writes, fail-over, shared claims, and claims of missing pods.

    After every step the test adds up the store's allocations, and at the end it compares the leader's books.
    """
    first, count = (
        int(os.environ.get("PARTAGE_SEED", "0")),
        int(os.environ.get("PARTAGE_SEQUENCES", "60")),
    )
    stored = refused = 0
    for seed in (*range(first, first + count), *FOUND):
        races = await played(sequence(seed))
        stored, refused = stored + races.stored, refused + races.refused
    assert stored > 20
    assert refused > 20
