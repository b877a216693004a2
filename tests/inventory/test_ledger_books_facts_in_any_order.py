"""What the books say follows from the facts, whatever the order they came in."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.builders import GIB, card, make_node
from partage.inventory.card import Suspicion
from partage.inventory.columns import UNCHECKED
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType, Topology
from partage.model.errors import LedgerError
from partage.model.node import Node
from partage.model.reason import ReasonCode
from partage.model.request import EVERY, MayUse, Scope

GPU = DeviceType.GPU


def grant(minor: int, uuid: str | None = None, **fields: object) -> Grant:
    """A share of half a card."""
    base = {"core_milli": 500, "memory_bytes": 8 * GIB, "mode": GrantMode.SHARE} | fields
    name = f"GPU-{minor}" if uuid is None else uuid
    return Grant("c", GPU, minor, name, **base)  # type: ignore[arg-type]


def held(uid: str, *grants: Grant, node: str = "node-1", **host: int) -> Allocation:
    """What a pod holds."""
    return Allocation(uid, "default", uid, node, grants, host)


def ledger_of(*nodes: Node, pods: Sequence[Allocation] = ()) -> Ledger:
    """Books of these nodes and pods."""
    ledger = Ledger()
    for node in nodes:
        ledger.upsert_node(node)
    for allocation in pods:
        ledger.apply(allocation)
    return ledger


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["named first", "nameless first"])
def test_a_nameless_record_never_joins_a_named_ghost(order: tuple[int, int]) -> None:
    """Two records of vanished card 9, one without UUID, make two ghosts in either order."""
    facts = [held("a", grant(9, "GPU-X")), held("b", grant(9, ""))]

    ledger = ledger_of(make_node(devices=[card(0)]), pods=[facts[i] for i in order])

    ledger.validate()
    ghosts = [c for c in ledger.cards(GPU, 0) if c.device.minor == 9]
    assert sorted(c.device.uuid for c in ghosts) == ["", "GPU-X"]
    assert all(c.closed is ReasonCode.UNHEALTHY for c in ghosts)


def test_cards_without_a_uuid_that_are_over_booked_are_told_apart() -> None:
    """Their numbers distinguish them; each is reported with the pods on it."""
    cards = [replace(card(minor), uuid="") for minor in range(2)]
    pods = [held(name, grant(0, ""), grant(1, "")) for name in "abc"]

    ledger = ledger_of(make_node(devices=cards), pods=pods)

    everybody = ("default/a", "default/b", "default/c")
    assert ledger.overbooked("a") == {"gpu 0": everybody, "gpu 1": everybody}


def test_a_card_that_is_gone_is_not_over_booked() -> None:
    """It offers nothing any more, and its pods did not get more than it had."""
    ledger = ledger_of(
        make_node(devices=[card(0)]), pods=[held("a", grant(9)), held("b", grant(9))]
    )

    assert (ledger.overbooked("a"), ledger.overbooked("b")) == ({}, {})


def test_a_record_that_names_one_card_twice_is_given_back_once() -> None:
    """Grants with one UUID under two minors are charged together on that card, and undone."""
    ledger = ledger_of(make_node(devices=[card(0)]))
    before = ledger.picture()

    ledger.apply(held("a", grant(0), grant(1, "GPU-0"), grant(0, "")))

    (only,) = ledger.cards(GPU, 0)
    assert (only.core_free, only.tenants) == (-500, 3)
    assert only.closed is ReasonCode.QUARANTINED
    ledger.validate()
    ledger.undo("a")
    assert ledger.picture() == before


def test_an_allocation_that_takes_the_same_is_not_booked_again() -> None:
    """A protocol that a record names replaces none; other amounts, another node or another pod change nothing."""
    ledger = ledger_of(make_node(devices=[card(0)]), pods=[held("a", grant(0), cpu=1000)])
    before, room, changes = ledger.cards(GPU, 0), ledger.made_room, ledger.changes.count
    named = held("a", grant(0, protocol="koordinator"), cpu=1000)

    assert ledger.restate(named)

    assert (ledger.allocation("a"), [*ledger.on_node("node-1")]) == (named, [named])
    assert (ledger.cards(GPU, 0), ledger.made_room) == (before, room)
    assert ledger.changes.count == changes + 1, "readers of the pods' protocols look again"
    ledger.validate()
    for other in (
        held("a", grant(0, core_milli=400), cpu=1000),
        held("a", grant(0), cpu=2000),
        held("a", grant(0), node="node-2", cpu=1000),
        held("b", grant(0), cpu=1000),
    ):
        assert not ledger.restate(other)
    assert ledger.allocation("a") == named


@pytest.mark.parametrize(
    ("fence", "closed"),
    [
        (Scope.DEVICE, {0}),
        (Scope.PCIE, {0, 1}),
        (Scope.NUMA, {0, 1, 2}),
        (Scope.NODE, {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_a_fence_closes_its_scope_and_no_more(fence: Scope, closed: set[int]) -> None:
    """A pod's fence closes the cards within its scope until the pod is gone."""
    places = [(0, "a"), (0, "a"), (0, "b"), (1, "c")]
    cards = [card(i, topology=Topology(n, p)) for i, (n, p) in enumerate(places)]
    ledger = ledger_of(make_node(devices=cards))

    ledger.apply(held("a", grant(0, fence=fence)))

    assert {c.row for c in ledger.cards(GPU, 0) if c.closed} == closed
    ledger.validate()
    ledger.undo("a")
    assert not [c for c in ledger.cards(GPU, 0) if c.closed]


def test_a_resource_seen_late_knows_who_holds_it_already() -> None:
    """Earlier pods hold a foreign resource, too, that a later node brings in."""
    early = make_node("early", allocatable={"cpu": 4000})
    late = make_node("late", allocatable={"example.com/x": 3})
    pods = [held("a", node="early", **{"example.com/x": 2})]
    ledger = ledger_of(early, pods=pods)

    ledger.upsert_node(late)

    ledger.validate()
    assert ledger.picture() == ledger_of(late, early, pods=pods).picture()


def test_a_resource_that_left_with_its_node_is_forgotten() -> None:
    """Books that once knew a resource equal books that never did."""
    plain = make_node("plain")
    rich = make_node("rich", allocatable={"example.com/x": 3})
    ledger = ledger_of(plain, rich, pods=[held("a", node="plain", **{"example.com/x": 2})])

    ledger.remove_node("rich")

    ledger.validate()
    assert "example.com/x" not in str(ledger.picture())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["ascending", "descending"])
def test_a_vanished_card_closes_every_position_it_was_known_by(order: tuple[int, int]) -> None:
    """Records that place one vanished card at two minors close the cards that sit there now."""
    facts = [held("a", grant(0, "GPU-X")), held("b", grant(1, "GPU-X"))]

    ledger = ledger_of(make_node(devices=[card(0), card(1), card(2)]))
    for position in order:
        ledger.apply(facts[position])

    ledger.validate()
    assert [c.closed for c in ledger.cards(GPU, 0)] == [
        ReasonCode.QUARANTINED,
        ReasonCode.QUARANTINED,
        None,
        ReasonCode.UNHEALTHY,
    ]
    ledger.undo("a")
    assert [c.row for c in ledger.cards(GPU, 0) if c.closed is None] == [0, 2]


def test_a_record_that_is_not_trusted_closes_its_types_until_acquitted() -> None:
    """Closed for one pod at a time, on a node seen or not."""
    ledger = Ledger()
    ledger.suspect("p", Suspicion("node-1", (GPU,), "edited"))
    ledger.upsert_node(make_node(devices=[card(0), card(1)]))

    assert [c.closed for c in ledger.cards(GPU, 0)] == [ReasonCode.QUARANTINED] * 2
    ledger.suspect("p", Suspicion("node-1", (DeviceType.RDMA,), "edited"))
    ledger.suspect("q", Suspicion("elsewhere", (GPU,), "edited"))
    assert closed(ledger) == []
    ledger.validate()
    assert ledger.acquit("p")
    assert ledger.acquit("q")
    assert not ledger.acquit("p")


def closed(ledger: Ledger, type_: DeviceType = GPU) -> list[int]:
    """Rows of the first node that are closed for pods without a record."""
    ledger.validate()
    return [c.row for c in ledger.cards(type_, 0) if c.closed is ReasonCode.QUARANTINED]


def unknown(*may_use: MayUse, node: str = "node-1") -> Suspicion:
    """What is closed for a pod without a record."""
    return Suspicion(node, (), "no record", may_use)


def test_a_pod_without_a_record_closes_as_many_idle_cards_as_it_may_use() -> None:
    """Never a card that a pod holds by a record, and none beyond; what is free counts first."""
    ledger = ledger_of(make_node(devices=[card(i) for i in range(4)]), pods=[held("a", grant(0))])

    ledger.suspect("p", unknown(MayUse(GPU, 1)))
    assert closed(ledger) == [1]
    ledger.suspect("q", unknown(MayUse(GPU, 2)))
    assert closed(ledger) == [1, 2, 3]
    ledger.suspect("r", unknown(MayUse(GPU, EVERY)))
    assert closed(ledger) == [1, 2, 3]
    ledger.acquit("r")
    ledger.acquit("p")
    assert closed(ledger) == [1, 2]

    ledger.apply(held("b", grant(1)))
    assert closed(ledger) == [2, 3]
    ledger.apply(held("c", grant(2)))
    assert closed(ledger) == [3]
    room = ledger.made_room
    ledger.undo("a")
    assert closed(ledger) == [0, 3]
    ledger.acquit("q")
    assert closed(ledger) == []
    assert ledger.made_room > room


def test_a_hundred_pods_that_ask_for_little_close_no_card_that_is_held() -> None:
    """Four shares each on three of four cards stay open for more."""
    pods = [held(f"p{i}", grant(i % 3, core_milli=100, memory_bytes=GIB)) for i in range(12)]
    ledger = ledger_of(make_node(devices=[card(i) for i in range(4)]), pods=pods)

    for number in range(100):
        ledger.suspect(f"s{number}", unknown(MayUse(GPU, 1)))

    assert closed(ledger) == [3]
    for number in range(100):
        ledger.acquit(f"s{number}")
    assert closed(ledger) == []


def test_only_cards_of_the_vendor_that_was_asked_for_are_closed() -> None:
    """Cards of an unknown vendor are closed too; ill or cordoned ones need no closing."""
    cards = [
        card(0, vendor="metax"),
        card(1, vendor="nvidia"),
        card(2, vendor=""),
        card(3, vendor="nvidia", healthy=False),
        card(4, vendor="nvidia", cordoned=True),
    ]
    ledger = ledger_of(make_node(devices=cards))

    ledger.suspect("p", unknown(MayUse(GPU, 9, ("nvidia",))))
    assert closed(ledger) == [1, 2]
    ledger.suspect("p", unknown(MayUse(GPU, 9, avoid_vendors=("nvidia",))))
    assert closed(ledger) == [0, 2]
    ledger.suspect("q", unknown(MayUse(GPU, 1, ("nvidia",))))
    ledger.suspect("p", unknown(MayUse(GPU, 1)))
    assert closed(ledger) == [0, 1]
    ledger.suspect("p", unknown(MayUse(DeviceType.RDMA, 1)))
    assert closed(ledger) == [1]


@settings(deadline=None)
@given(st.data())
def test_what_is_closed_follows_from_the_facts_in_any_order(data: st.DataObject) -> None:
    """It is never more than what may be used, nor a card that is held."""
    cards = [card(i, vendor="nvidia" if i % 2 else "") for i in range(5)]
    kinds = st.builds(MayUse, st.just(GPU), st.integers(1, 3), st.sampled_from([(), ("nvidia",)]))
    facts: list[Allocation | tuple[str, Suspicion]] = [
        held(f"h{i}", grant(data.draw(st.integers(0, 4))))
        for i in range(data.draw(st.integers(0, 4)))
    ]
    doubts = data.draw(st.lists(kinds, max_size=4))
    facts += [(f"s{i}", unknown(one)) for i, one in enumerate(doubts)]
    seen = []
    for order in (facts, data.draw(st.permutations(facts))):
        ledger = ledger_of(make_node(devices=cards))
        for fact in order:
            if isinstance(fact, Allocation):
                ledger.apply(fact)
            else:
                ledger.suspect(*fact)
        ledger.validate()
        seen.append(ledger.picture())
        shut = [c for c in ledger.cards(GPU, 0) if "has no record" in c.closed_detail]
        assert len(shut) <= sum(one.count for one in doubts)
        assert not any(c.tenants for c in shut)
        idle = [c for c in ledger.cards(GPU, 0) if not c.tenants]
        assert len(shut) == min(
            len(idle), sum(one.count for one in doubts if not one.vendors)
        ) or any(one.vendors for one in doubts)
    assert seen[0] == seen[1]


def test_ordinary_resources_are_summed_by_node() -> None:
    """What pods of a node hold, by name."""
    ledger = ledger_of(make_node(), pods=[held("a", cpu=2, pods=1), held("b", cpu=3)])

    assert ledger.host_left(0, ("cpu", "example.com/x")) == {
        "cpu": UNCHECKED - 5,
        "example.com/x": UNCHECKED,
    }


def test_a_pod_is_booked_once() -> None:
    """Booking it again is the caller's mistake, and changes nothing."""
    ledger = ledger_of(make_node(devices=[card(0)]), pods=[held("a", grant(0))])

    with pytest.raises(LedgerError, match="in the ledger already"):
        ledger.apply(held("a", grant(0)))

    ledger.validate()


def test_validation_finds_tampered_columns() -> None:
    """Columns that do not follow from the facts are an error with both figures."""
    ledger = ledger_of(make_node(devices=[card(0)]))
    ledger.planes[GPU].core_free[0, 0] = 999

    with pytest.raises(LedgerError, match=r"ledger of node node-1 is .*999.*recomputed .*1000"):
        ledger.validate()


def test_removing_an_unknown_node_does_nothing() -> None:
    """A node that was never seen can go."""
    ledger = ledger_of(make_node())

    ledger.remove_node("elsewhere")

    ledger.validate()
    assert set(ledger.index) == {"node-1"}
