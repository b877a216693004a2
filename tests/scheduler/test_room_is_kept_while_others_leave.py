"""Room that preemption makes: what is free of it is kept, the rest as it becomes free."""

import pytest

from fakes.builders import card, make_node, make_pod, share, whole
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.reason import Refusal
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import (
    BindSucceeded,
    HoldEnded,
    NodeSeen,
    Placement,
    PodGone,
    Released,
    RoomKept,
)
from partage.scheduler.preemption import Bystanders, Occupant
from plans import plan_on

VIP = make_pod("vip", whole(), priority=9)


def _engine(cards: int = 1, node: str = "a") -> Engine:
    engine = Engine()
    engine.handle(NodeSeen(make_node(node, [card(minor) for minor in range(cards)])))
    return engine


def _bound(engine: Engine, *pods: Pod) -> None:
    for pod in pods:
        assert isinstance(engine.schedule(pod), Placement)
        engine.handle(BindSucceeded(pod.uid))


def _keep(engine: Engine, *leaving: str) -> list[object]:
    grants = engine.grants_without(VIP, "a", leaving)
    assert grants is not None
    return list(engine.handle(RoomKept(VIP, "a", grants)))


def test_the_free_part_of_a_card_is_kept_until_all_of_it_is_there() -> None:
    """No other pod gets room between two victims that end one after another."""
    engine = _engine()
    _bound(engine, make_pod("one", share(50, 8)), make_pod("two", share(30, 4)))
    leaving = ("uid-one", "uid-two")

    _keep(engine, *leaving)
    small = make_pod("small", share(20, 2))
    assert engine.states["uid-vip"] is State.CLEARING
    assert isinstance(engine.schedule(small), Refusal)

    engine.handle(PodGone("uid-one"))
    _keep(engine, *leaving)
    held = engine.ledger.allocation("uid-vip")
    assert held is not None
    assert held.charges[0].core_milli == 700
    assert isinstance(engine.schedule(small), Refusal)

    engine.handle(PodGone("uid-two"))
    _keep(engine, *leaving)
    assert engine.states["uid-vip"] is State.HELD
    assert isinstance(engine.place_on(VIP, "a"), Placement)
    engine.audit()


def test_a_part_is_never_bound() -> None:
    """A pod that is bound too early is refused, as without the kept part."""
    engine = _engine()
    _bound(engine, make_pod("one", share(50, 8)))
    _keep(engine, "uid-one")

    assert isinstance(engine.place_on(VIP, "a"), Refusal)
    assert "uid-vip" not in engine.ledger


@pytest.mark.parametrize("event", [HoldEnded("uid-vip"), PodGone("uid-vip")])
def test_kept_room_is_given_back(event: HoldEnded | PodGone) -> None:
    """It is released when the pod gives it up, and when the pod is gone."""
    engine = _engine()
    _bound(engine, make_pod("one", share(50, 8)))
    _keep(engine, "uid-one")

    assert engine.handle(event) == [Released("a")]
    assert isinstance(engine.schedule(make_pod("small", share(20, 2))), Placement)


def test_a_gone_pod_and_a_reserved_one_keep_nothing_more() -> None:
    """A late event changes nothing."""
    engine = _engine(2)
    grants = engine.grants_without(VIP, "a", ())
    assert grants is not None
    engine.place_on(VIP, "a")
    assert engine.handle(RoomKept(VIP, "a", grants)) == []
    assert engine.states["uid-vip"] is State.RESERVED

    engine.handle(PodGone("uid-vip"))
    assert engine.handle(RoomKept(VIP, "a", grants)) == []
    assert "uid-vip" not in engine.ledger


def test_kept_room_that_moves_says_where_room_appeared() -> None:
    """A pod that was refused because of it is woken."""
    engine = _engine(2)
    _bound(engine, make_pod("one", share(50, 8)), make_pod("two", share(60, 8)))
    first = engine.grants_without(VIP, "a", ("uid-one",))
    second = engine.grants_without(VIP, "a", ("uid-two",))
    assert first is not None
    assert second is not None
    assert first[0].minor != second[0].minor

    assert engine.handle(RoomKept(VIP, "a", first)) == []
    assert engine.handle(RoomKept(VIP, "a", first)) == []
    assert engine.handle(RoomKept(VIP, "a", second)) == [Released("a")]


def test_room_on_an_unknown_node_is_not_kept() -> None:
    """The node may have gone since the plan was made."""
    engine = _engine()
    grants = engine.grants_without(VIP, "a", ())
    assert grants is not None

    engine.handle(RoomKept(VIP, "elsewhere", grants))

    assert "uid-vip" not in engine.ledger


def test_one_crowded_card_is_spared_for_one_with_a_single_pod() -> None:
    """One pod with 90 % leaves, and not two with 50 % each."""
    engine = _engine(2)
    first, *rest = (make_pod(n, share(c, 1)) for n, c in (("a", 90), ("b", 50), ("c", 50)))
    _bound(engine, first, *rest)
    occupants = [Occupant(pod.uid, 0, float(born)) for born, pod in enumerate((first, *rest))]

    plan = plan_on(engine, VIP, "a", occupants, {})

    assert plan is not None
    assert [one.uid for one in plan.victims] == ["uid-a"]


def test_the_younger_goes_and_the_less_important_first() -> None:
    """The choice is among single pods that would each do."""
    engine = _engine(3)
    pods = [make_pod(name, whole()) for name in ("old", "young", "low")]
    _bound(engine, *pods)
    priorities = (1, 1, 0)
    occupants = [
        Occupant(pod.uid, rank, float(born))
        for born, (pod, rank) in enumerate(zip(pods, priorities, strict=True))
    ]

    low = plan_on(engine, VIP, "a", occupants, {})
    equal = plan_on(engine, VIP, "a", occupants[:2], {})

    assert low is not None
    assert [one.uid for one in low.victims] == ["uid-low"]
    assert equal is not None
    assert [one.uid for one in equal.victims] == ["uid-young"]


def test_the_smaller_goes_whatever_its_age() -> None:
    """One tenth of a card is wanted, and each of two pods would do."""
    engine = _engine(4)
    large, small = make_pod("large", whole(3)), make_pod("small", whole())
    _bound(engine, large, small)
    wants = make_pod("vip", share(10), priority=9)

    for born in ((0.0, 1.0), (1.0, 0.0)):
        occupants = [Occupant("uid-large", 0, born[0]), Occupant("uid-small", 0, born[1])]
        plan = plan_on(engine, wants, "a", occupants, {})
        assert plan is not None
        assert [one.uid for one in plan.victims] == ["uid-small"]


def test_those_who_leave_anyway_are_waited_for_and_promised_once() -> None:
    """The second pod that wants room does not count on what the first was promised."""
    engine = _engine(2)
    _bound(engine, make_pod("one", whole()), make_pod("two", whole()))
    other = make_pod("other", whole(), priority=8)
    occupants = [Occupant("uid-two", 0)]

    waits = plan_on(engine, VIP, "a", occupants, {}, Bystanders(leaving=("uid-one",)))
    second = plan_on(engine, other, "a", occupants, {}, Bystanders(("uid-one",), first=(VIP,)))

    assert waits is not None
    assert waits.victims == ()
    assert waits.cost < second.cost if second else False
    assert second is not None
    assert [one.uid for one in second.victims] == ["uid-two"]


def test_a_less_important_claim_yields() -> None:
    """Room that is kept for a pod of lower priority is no obstacle."""
    engine = _engine()
    engine.hold(make_pod("claim", whole(), priority=1))

    plan = plan_on(engine, VIP, "a", (), {}, Bystanders(yielding=("uid-claim",)))

    assert plan is not None
    assert plan.victims == ()
    assert engine.ledger.planes[DeviceType.GPU].core_free[0, 0] == 0
