"""Whatever is asked and released in whatever order, every device and every promise holds."""

from bookkeeping import assert_sound
from hypothesis import given
from hypothesis import strategies as st
from worlds import node_lists, pods, policies

from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, PodGone


@given(st.data())
def test_what_the_engine_places_is_sound(data: st.DataObject) -> None:
    """Sums over grants stay within each device, and no pod shares an exclusive one."""
    engine = Engine(data.draw(policies()))
    nodes = data.draw(node_lists())
    for node in nodes:
        engine.handle(NodeSeen(node))
    placed = {}

    for i in range(data.draw(st.integers(1, 8))):
        if placed and data.draw(st.integers(0, 3)) == 0:
            gone = data.draw(st.sampled_from(sorted(placed)))
            engine.handle(PodGone(gone))
            del placed[gone]
            continue
        decision = engine.schedule(data.draw(pods(f"pod-{i}")))
        if isinstance(decision, Placement):
            placed[decision.allocation.uid] = decision.allocation
        assert_sound(nodes, placed.values())
        engine.audit()
