"""A node that is ruled out for a pod would have refused it."""

from hypothesis import given
from hypothesis import strategies as st
from ledgers import ledgers
from worlds import node_lists, pods

from answers import feasible
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen
from partage.sim.queue import Prefilter


@given(st.data())
def test_nodes_that_can_host_a_pod_are_never_ruled_out(data: st.DataObject) -> None:
    """`Prefilter` asks for no more than a decision does."""
    nodes = data.draw(node_lists())
    held = list(data.draw(ledgers(nodes)).allocations())
    engine = Engine()
    for node in nodes:
        engine.handle(NodeSeen(node))
    for allocation in held:
        engine.ledger.apply(allocation)
    wishes = [data.draw(pods(f"pod-{i}")) for i in range(data.draw(st.integers(1, 4)))]
    hopes = Prefilter(wishes)

    for name, index in engine.ledger.index.items():
        able = hopes.on(engine.ledger, index)
        for place, pod in enumerate(wishes):
            if pod.request.fault is None and name in feasible(engine, pod):
                assert able[place]
