"""Whatever pods come, race and end: no more are online than an operator's rule allows, and rebuilt books agree."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fakes.builders import card, make_node, make_pod, share, whole
from partage.model.allocation import Allocation, GrantMode
from partage.model.permit import Permit, Wish
from partage.model.pod import Pod, Record
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import (
    BindFailed,
    BindSucceeded,
    BindUnknown,
    Event,
    HoldEnded,
    NodeSeen,
    Placement,
    PodGone,
    PodSeen,
    RoomKept,
)
from partage.scheduler.journal import JournalledEngine, resumed

NODES = ("n1", "n2")
SHOP = Wish(online=True, rule="shop", pods=3, cards_milli=500)
LABS = Wish(online=True, rule="labs", cards_milli=250)
ANY = Wish(online=True, rule="any", pods=1)
WISHES = (SHOP, LABS, ANY, replace(SHOP, online=False), Wish(online=True, denied="no"), None)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("schedule", "hold", "place", "bound", "failed", "unknown", "ended", "gone", "kept")
        ),
        st.integers(0, 11),
        st.sampled_from(WISHES),
        st.sampled_from(NODES),
        st.sampled_from(("a", "b")),
        st.sampled_from((share(20), share(20, count=3), whole())),
    ),
    min_size=5,
    max_size=60,
)


def online(engine: Engine) -> list[tuple[Allocation, Permit]]:
    """Every pod that has a place and goes before others there."""
    return [
        (one, one.permit)
        for one in engine.ledger.allocations()
        if one.permit and one.permit.online and engine.states[one.uid] is not State.CLEARING
    ]


def holds(engine: Engine) -> None:
    """The law, by what allocations say and nothing that counts them."""
    pods: Counter[tuple[str, str]] = Counter()
    cards: dict[tuple[str, str], set[str]] = {}
    for one, permit in online(engine):
        pods[permit.rule, one.namespace] += 1
        assert all(grant.mode is GrantMode.SHARE for grant in one.grants)
        cards.setdefault((permit.rule, one.node), set()).update(g.uuid for g in one.grants)
    for wish in (SHOP, LABS, ANY):
        for namespace in ("a", "b"):
            assert wish.pods is None or pods[wish.rule, namespace] <= wish.pods
        for name in NODES:
            most = 4 * (1000 if wish.cards_milli is None else wish.cards_milli) // 1000
            assert len(cards.get((wish.rule, name), ())) <= most
    assert "" not in {permit.rule for _, permit in online(engine)}


def played(engine: Engine, step: tuple[str, int, Wish | None, str, str, object]) -> None:
    """One thing that happens."""
    what, number, wish, node, namespace, asked = step
    pod = make_pod(f"p{number}", asked, namespace=namespace, wish=wish)  # type: ignore[arg-type]
    known = engine.ledger.allocation(pod.uid)
    free = known is None or engine.states[pod.uid] in {State.HELD, State.CLEARING}
    told: Event | None = None
    if engine.is_gone(pod.uid):
        return
    match what:
        case "schedule" if free:
            engine.schedule(pod)
        case "hold" if free:
            engine.hold(pod)
        case "place" if free:
            engine.place_on(pod, node)
        case "bound" if known is not None and not free:
            record = Record(known.grants, permit=known.permit)
            engine.handle(BindSucceeded(pod.uid))
            told = PodSeen(replace(pod, namespace=known.namespace, node=known.node, record=record))
        case "failed":
            told = BindFailed(pod.uid)
        case "unknown":
            told = BindUnknown(pod.uid)
        case "ended":
            told = HoldEnded(pod.uid)
        case "gone":
            told = PodGone(pod.uid)
        case "kept" if free:
            twin = Engine()
            twin.handle(NodeSeen(fleet()[node]))
            found = twin.schedule(pod)
            if isinstance(found, Placement):
                told = RoomKept(pod, node, found.allocation.grants)
        case _:
            return
    if told is not None:
        engine.handle(told)


def fleet() -> dict[str, object]:
    """Two nodes with four cards each."""
    return {
        name: make_node(name, [card(minor, prefix=name) for minor in range(4)]) for name in NODES
    }


@given(STEPS)
def test_no_order_of_events_gives_more_than_the_rule(
    steps: list[tuple[str, int, Wish | None, str, str, object]],
) -> None:
    """It holds after each step; the audit compares the counts, and a journal goes on with the same ones."""
    engine = JournalledEngine(None, lambda *_: None)
    for node in fleet().values():
        engine.handle(NodeSeen(node))  # type: ignore[arg-type]
    for step in steps:
        played(engine, step)
        holds(engine)
    engine.audit()
    assert resumed(engine.state()).permits.counted == engine.permits.counted


@given(STEPS)
def test_books_made_anew_count_the_same(
    steps: list[tuple[str, int, Wish | None, str, str, object]],
) -> None:
    """They count bound pods, whose records say which are online; today's rules do not matter."""
    engine = Engine()
    for node in fleet().values():
        engine.handle(NodeSeen(node))  # type: ignore[arg-type]
    for step in steps:
        played(engine, step)
    bound: list[Pod] = []
    for one in engine.ledger.allocations():
        if engine.states[one.uid] is State.BOUND:
            record = Record(one.grants, permit=one.permit)
            bound.append(Pod(one.uid, one.namespace, one.name, node=one.node, record=record))
    kept = {pod.uid for pod in bound}
    for uid in [one.uid for one in engine.ledger.allocations() if one.uid not in kept]:
        engine.handle(PodGone(uid))
    fresh = Engine()
    for node in fleet().values():
        fresh.handle(NodeSeen(node))  # type: ignore[arg-type]
    for pod in reversed(bound):
        fresh.handle(PodSeen(pod))

    assert fresh.permits.counted == engine.permits.counted
    holds(fresh)


def test_a_burst_shares_what_there_is_and_an_end_gives_it_back() -> None:
    """The pods beyond run as ordinary ones, with a reason; the next one after an end is online again."""
    engine = Engine()
    for node in fleet().values():
        engine.handle(NodeSeen(node))  # type: ignore[arg-type]
    wish = Wish(online=True, rule="shop", pods=3)
    found = [engine.hold(make_pod(f"p{n}", share(5), namespace="a", wish=wish)) for n in range(20)]

    permits = [one.allocation.permit for one in found if isinstance(one, Placement)]
    assert [one is not None and one.online for one in permits] == [True] * 3 + [False] * 17
    assert permits[3] == Permit(
        "shop",
        why="online is not granted: 3 of 3 pods of namespace a are online already (rule shop)",
    )

    other = engine.hold(make_pod("other", share(5), namespace="b", wish=wish))
    assert isinstance(other, Placement)
    assert other.allocation.permit == Permit("shop", online=True)
    engine.handle(PodGone("uid-p1"))
    again = engine.hold(make_pod("again", share(5), namespace="a", wish=wish))
    assert isinstance(again, Placement)
    assert again.allocation.permit == Permit("shop", online=True)


def test_a_place_that_was_kept_is_as_good_as_any() -> None:
    """Room that preemption makes, and that all is there of, is a hold with all that the pod gets."""
    engine = Engine()
    for node in fleet().values():
        engine.handle(NodeSeen(node))  # type: ignore[arg-type]
    twin = Engine()
    twin.handle(NodeSeen(fleet()["n1"]))  # type: ignore[arg-type]
    pod = make_pod("p", share(5), wish=SHOP)
    found = twin.schedule(pod)
    assert isinstance(found, Placement)
    engine.handle(RoomKept(pod, "n1", found.allocation.grants))
    placed = engine.place_on(pod, "n1")

    assert isinstance(placed, Placement)
    assert placed.allocation.permit == Permit("shop", online=True)


def test_a_part_of_a_nodes_cards_is_rounded_down() -> None:
    """A quarter of two cards is none; the sentence has the figures."""
    engine = Engine()
    engine.handle(NodeSeen(make_node("small", [card(0), card(1)])))
    found = engine.schedule(make_pod("p", share(5), wish=LABS))

    assert isinstance(found, Placement)
    assert found.allocation.permit is not None
    assert found.allocation.permit.why == (
        "online is not granted: 0 of 2 cards of node small have online pods, and 0 may (rule labs)"
    )
