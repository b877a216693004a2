"""Room that is kept while others leave stays within every device, whatever kind of device it is."""

from hypothesis import given
from hypothesis import strategies as st
from worlds import node_lists, pods, policies

from partage.scheduler.engine import Engine, State
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement, PodGone, RoomKept


@given(st.data())
def test_what_is_kept_was_free_and_grows_into_the_whole_place(data: st.DataObject) -> None:
    """No card goes beyond its amounts on the way, and the end is a hold that can be bound."""
    engine = Engine(data.draw(policies()))
    for node in data.draw(node_lists(2)):
        engine.handle(NodeSeen(node))
    bound: dict[str, str] = {}
    for number in range(data.draw(st.integers(1, 6))):
        decision = engine.schedule(data.draw(pods(f"pod-{number}")))
        if isinstance(decision, Placement):
            engine.handle(BindSucceeded(decision.allocation.uid))
            bound[decision.allocation.uid] = decision.allocation.node
    vip = data.draw(pods("vip"))
    name = data.draw(st.sampled_from(sorted(engine.ledger.index)))
    leaving = [uid for uid, node in bound.items() if node == name]

    for gone in [None, *data.draw(st.permutations(leaving))]:
        if gone is not None:
            engine.handle(PodGone(gone))
            leaving.remove(gone)
        before = engine.ledger.picture()
        grants = engine.grants_without(vip, name, leaving)
        assert engine.ledger.picture() == before
        if grants:
            engine.handle(RoomKept(vip, name, grants))
        engine.ledger.validate()
        assert not engine.ledger.overbooked(vip.uid)
        if grants and not leaving:
            assert engine.states.get(vip.uid) is State.HELD
            assert isinstance(engine.place_on(vip, name), Placement)
