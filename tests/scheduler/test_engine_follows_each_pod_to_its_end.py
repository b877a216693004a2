"""A pod's way through the engine: what each event does, and what the driver is asked to do."""

from dataclasses import replace

import pytest

from answers import feasible
from fakes.builders import GIB, card, make_node, make_pod, share, whole
from partage.inventory.card import Suspicion
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.errors import LedgerError
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.policy import Policy, Strategy
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import Fault, MayUse, PodRequest
from partage.placement.tables import Tables
from partage.scheduler.engine import REMEMBERED, Engine, State
from partage.scheduler.events import (
    BindFailed,
    BindSucceeded,
    BindUnknown,
    NodeGone,
    NodeSeen,
    Placement,
    PodGone,
    PodRead,
    PodSeen,
    Quarantined,
    ReadBack,
    Released,
    TablesChanged,
)
from partage.scheduler.facts import fact_of, rebuild

UID = "uid-a"
HALF = Grant("c0", DeviceType.GPU, 0, "GPU-0", 500, 8 * GIB, GrantMode.SHARE, protocol="test")


def engine_of(*nodes: Node) -> Engine:
    """An engine that has seen these nodes, or one node with one card."""
    engine = Engine()
    for node in nodes or (make_node(devices=[card(0)]),):
        engine.handle(NodeSeen(node))
    return engine


def reserved() -> Engine:
    """An engine that has just reserved the only card for pod `a`."""
    engine = engine_of()
    assert isinstance(engine.schedule(make_pod("a", whole())), Placement)
    return engine


def is_free(engine: Engine) -> bool:
    """Whether the card is free, with the books in order."""
    engine.audit()
    return isinstance(engine.evaluate(make_pod("probe", whole())), Placement)


def seen(record: Record | None = None, version: int = 1, **fields: object) -> Pod:
    """Pod `a` as the API server shows it on its node."""
    base = {"node": "node-1", "record": record, "version": version} | fields
    return make_pod("a", whole(), **base)


def test_a_refused_binding_gives_back() -> None:
    """Nothing was bound, so nothing is held."""
    engine = reserved()

    actions = engine.handle(BindFailed(UID))

    assert actions == [Released("node-1")]
    assert is_free(engine)
    assert UID not in engine.states


def test_a_taken_binding_is_kept() -> None:
    """The API server took it: the pod is bound before its own event arrives."""
    engine = reserved()

    assert engine.handle(BindSucceeded(UID)) == []

    assert engine.states[UID] is State.BOUND
    assert engine.handle(BindFailed(UID)) == []
    assert not is_free(engine)


@pytest.mark.parametrize(
    ("answer", "free"),
    [
        pytest.param(PodRead(UID, None), True, id="gone"),
        pytest.param(PodRead(UID, make_pod("b")), True, id="another of the same name"),
        pytest.param(PodRead(UID, make_pod("a", whole())), True, id="pending"),
        pytest.param(PodRead(UID, seen(Record((HALF,)))), False, id="bound"),
        pytest.param(PodRead(UID, seen(Record((HALF,)), finished=True)), True, id="finished"),
    ],
)
def test_an_unknown_outcome_is_read_back(answer: PodRead, *, free: bool) -> None:
    """A time-out holds everything until the pod has been read; then the truth decides."""
    engine = reserved()

    assert engine.handle(BindUnknown(UID)) == [ReadBack(UID)]
    assert engine.states[UID] is State.UNKNOWN
    assert not is_free(engine)

    engine.handle(answer)
    assert is_free(engine) is free


def test_an_answer_after_a_time_out_still_counts() -> None:
    """A late refusal of a Binding that timed out releases at once."""
    engine = reserved()
    engine.handle(BindUnknown(UID))

    assert engine.handle(BindFailed(UID)) == [Released("node-1")]
    assert is_free(engine)


def test_what_the_server_says_replaces_what_was_reserved() -> None:
    """A record that differs from the reservation wins, and what is free is announced."""
    engine = reserved()

    actions = engine.handle(PodSeen(seen(Record((HALF,)))))

    assert actions == [Released("node-1")]
    assert engine.states[UID] is State.BOUND
    assert engine.ledger.cards(DeviceType.GPU, 0)[0].core_free == 500
    assert engine.handle(PodSeen(seen(Record((HALF,))))) == []


@pytest.mark.parametrize(
    "record", [None, Record(problem="not JSON")], ids=["missing", "malformed"]
)
def test_untrusted_records_close_the_node_until_they_are_mended(record: Record | None) -> None:
    """Quarantine is announced once, lifted by a good record, and ends with the pod."""
    engine = engine_of()

    first = engine.handle(PodSeen(seen(record)))
    again = engine.handle(PodSeen(seen(record)))

    assert [type(action) for action in first] == [Quarantined]
    assert again == []
    assert not is_free(engine)
    mended = engine.handle(PodSeen(seen(Record((HALF,)), version=2)))
    assert Released("node-1") in mended
    assert engine.ledger.suspicions() == {}
    engine.handle(PodSeen(seen(record, version=3)))
    assert engine.handle(PodGone(UID)) == [Released("node-1")]
    assert is_free(engine)


def test_old_events_change_nothing() -> None:
    """Versions tell late events from news; a pod that is gone stays gone."""
    engine = engine_of()
    engine.handle(PodSeen(seen(Record((HALF,)), version=5)))

    assert engine.handle(PodSeen(seen(None, version=4))) == []
    engine.handle(PodGone(UID))
    assert engine.handle(PodSeen(seen(Record((HALF,)), version=5))) == []

    assert is_free(engine)


def test_pods_that_are_gone_are_remembered_up_to_a_bound() -> None:
    """A service that runs for months forgets the oldest; a pod that goes again is among the latest."""
    engine = engine_of()
    engine.handle(PodGone(UID))
    for number in range(REMEMBERED - 1):
        engine.handle(PodGone(f"gone-{number}"))
    assert engine.is_gone(UID)

    engine.handle(PodGone(UID))
    engine.handle(PodGone("last"))

    assert engine.is_gone(UID)
    assert engine.is_gone("last")
    assert not engine.is_gone("gone-0")


def test_nodes_that_are_gone_are_remembered_up_to_a_bound() -> None:
    """An autoscaler gives each new node a name of its own; late news of the last ones still counts as old."""
    engine = Engine()
    for number in range(REMEMBERED + 1):
        engine.handle(NodeGone(f"gone-{number}", 5))

    for name, known in (("gone-0", True), ("gone-1", False), (f"gone-{REMEMBERED}", False)):
        engine.handle(NodeSeen(make_node(name, devices=[card(0)], version=3)))
        assert (name in engine.ledger.index) == known


def test_finished_pods_hold_nothing_though_they_are_there() -> None:
    """Release comes with the end of the containers."""
    engine = engine_of()
    engine.handle(PodSeen(seen(Record((HALF,)))))

    assert engine.handle(PodSeen(seen(Record((HALF,)), version=2, finished=True))) == [
        Released("node-1")
    ]
    assert is_free(engine)


def test_pods_wait_for_their_node() -> None:
    """A pod seen before its node is counted when the node comes, and stays when the node goes."""
    engine = Engine()
    engine.handle(PodSeen(seen(Record((HALF,)))))
    engine.audit()

    engine.handle(NodeSeen(make_node(devices=[card(0)], version=3)))
    assert not is_free(engine)
    engine.handle(NodeGone("node-1", 2))
    assert engine.ledger.index
    engine.handle(NodeGone("node-1", 4))
    assert engine.handle(NodeSeen(make_node(devices=[card(0)], version=3))) == []
    engine.handle(NodeSeen(make_node(devices=[card(0)], version=5)))

    assert not is_free(engine)


def test_a_node_seen_again_as_it_was_is_no_news() -> None:
    """Only a change announces room."""
    engine = engine_of()
    node = make_node(devices=[card(0)], version=7)

    assert engine.handle(NodeSeen(node)) == []
    assert engine.handle(NodeSeen(replace(node, devices=(), version=8))) == [Released("node-1")]


def test_a_pod_is_placed_once() -> None:
    """Scheduling what holds something already is the driver's mistake."""
    engine = reserved()

    with pytest.raises(LedgerError, match="is placed already"):
        engine.schedule(make_pod("a", whole()))
    with pytest.raises(LedgerError, match="is placed already"):
        engine.place_on(make_pod("a", whole()), "node-1")


def test_answers_about_nobody_are_ignored() -> None:
    """Events about pods that hold nothing do nothing."""
    engine = engine_of()

    for event in (BindFailed("x"), BindSucceeded("x"), BindUnknown("x"), PodGone("x")):
        assert engine.handle(event) == []
    assert engine.handle(PodRead("y", None)) == []


def test_facts_follow_the_record() -> None:
    """What a bound pod holds, and what is closed because of it."""
    nothing = Pod("u", "default", "p", node="n")
    asking = replace(nothing, request=make_pod("x", share(1)).request)
    bad = PodRequest(fault=Fault("bad"), broken=((DeviceType.GPU, 3),))
    faulty = replace(nothing, request=bad)

    assert fact_of(nothing)[1] is None
    assert fact_of(replace(asking, record=Record((HALF,))))[1] is None
    assert fact_of(replace(asking, record=Record((HALF,))))[0].grants == (HALF,)
    closed = fact_of(asking)[1]
    message = "pod default/p: it asks for devices and has no record"
    assert closed == Suspicion("n", (), message, (MayUse(DeviceType.GPU, 1),))
    assert fact_of(faulty)[1] == Suspicion("n", (), message, (MayUse(DeviceType.GPU, 3),))
    assert fact_of(replace(nothing, request=PodRequest(fault=Fault("bad"))))[1] is None
    spoilt = Record(problem="edited")
    told = fact_of(replace(asking, record=spoilt))[1]
    assert told == Suspicion("n", (DeviceType.GPU,), "pod default/p: edited")
    everything = fact_of(replace(nothing, record=spoilt))[1]
    assert everything is not None
    assert everything.types == tuple(DeviceType)


def test_a_rebuild_leaves_out_what_holds_nothing() -> None:
    """Pending and finished pods are not in the books."""
    pods = [seen(Record((HALF,)), finished=True), make_pod("b", whole())]

    ledger = rebuild([make_node(devices=[card(0)])], pods)

    assert list(ledger.allocations()) == []
    ledger.validate()


def test_an_audit_finds_what_should_not_be() -> None:
    """Books that differ from the server's objects are an error that names the node."""
    engine = engine_of()
    engine.handle(PodSeen(seen(Record((HALF,)))))
    engine.ledger.undo(UID)

    with pytest.raises(LedgerError, match="ledger of node node-1"):
        engine.audit()


@pytest.mark.parametrize(
    "devices",
    [(card(0, healthy=False),), (card(0, uuid="GPU-new"),), ()],
    ids=["unhealthy", "another card", "none"],
)
def test_a_hold_on_a_card_that_failed_is_not_bound(devices: tuple[Device, ...]) -> None:
    """Bind looks again at the held card: a card that broke or was exchanged since is not allocated."""
    engine = engine_of()
    assert isinstance(engine.hold(make_pod("a", share(10))), Placement)
    engine.handle(NodeSeen(make_node(devices=devices, version=1)))

    found = engine.place_on(make_pod("a", share(10)), "node-1")

    if devices and devices[0].healthy:
        assert isinstance(found, Placement)
        assert found.allocation.grants[0].uuid == "GPU-new"
    else:
        assert isinstance(found, Refusal)
    engine.audit()


def test_a_hold_on_a_node_that_went_is_not_bound() -> None:
    """Nothing is bound to a node that is gone."""
    engine = engine_of()
    engine.hold(make_pod("a", share(10)))
    engine.handle(NodeGone("node-1"))

    found = engine.place_on(make_pod("a", share(10)), "node-1")

    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.NODE_AFFINITY


def test_placing_on_a_node_obeys_faults_and_quotas_too() -> None:
    """The rules that hold for any decision hold for one on a given node."""
    engine = engine_of()
    faulty = engine.place_on(make_pod("f", request=PodRequest(fault=Fault("bad"))), "node-1")

    assert isinstance(faulty, Refusal)
    assert faulty.code is ReasonCode.INVALID_REQUEST


def test_tables_take_part_in_decisions_from_their_event_on() -> None:
    """New tables make new classes."""
    engine = Engine(Policy(Strategy.RANDOM, Strategy.RANDOM))
    for i in range(8):
        engine.handle(NodeSeen(make_node(f"n{i}", devices=[card(0, prefix=f"n{i}")])))
    chosen = set()

    for seed in range(12):
        engine.handle(TablesChanged(Tables(version=seed, seed=seed)))
        found = engine.evaluate(make_pod("a", share(10)))
        assert isinstance(found, Placement)
        chosen.add(found.allocation.node)

    assert len(chosen) > 1


def test_dry_runs_leave_the_books_as_they_were() -> None:
    """Preemption's question is answered without changing anything."""
    engine = reserved()
    before = engine.ledger.picture()

    assert engine.grants_without(make_pod("b", whole()), "node-1", [UID]) is not None
    assert engine.grants_without(make_pod("b", whole()), "node-1", []) is None
    assert engine.grants_without(make_pod("b", whole()), "nowhere", [UID]) is None
    assert engine.ledger.picture() == before
    engine.audit()


def test_feasible_nodes_come_in_their_order() -> None:
    """A node that went and came back is the last; names do not matter."""
    engine = engine_of(*(make_node(n, devices=[card(0, prefix=n)]) for n in "cab"))
    engine.handle(NodeGone("c"))
    engine.handle(NodeSeen(make_node("c", devices=[card(0, prefix="c")])))

    assert list(feasible(engine, make_pod("a", whole()))) == ["a", "b", "c"]


def test_many_classes_forget_the_oldest() -> None:
    """More different requests than are remembered are still decided alike."""
    engine = engine_of(make_node(devices=[card(0, memory=64)]))

    for i in range(600):
        assert isinstance(engine.evaluate(make_pod(f"p{i}", share(memory_bytes=i + 1))), Placement)
    assert isinstance(engine.evaluate(make_pod("again", share(memory_bytes=1))), Placement)


def test_a_cluster_may_grow_between_decisions() -> None:
    """Columns grow with nodes and cards; decisions go on."""
    engine = engine_of()
    assert isinstance(engine.evaluate(make_pod("a", whole(3))), Refusal)

    for i in range(40):
        devices = [card(m, prefix=f"n{i}") for m in range(1 + i % 4)]
        engine.handle(NodeSeen(make_node(f"n{i}", devices=devices)))

    found = engine.schedule(make_pod("a", whole(4)))
    assert isinstance(found, Placement)
    assert found.allocation.node == "n3"
    engine.audit()


def test_allocations_are_told_by_pod_and_by_node() -> None:
    """The ledger's questions: which pod is where, and which holds a card."""
    engine = reserved()
    ledger = engine.ledger

    assert UID in ledger
    assert [a.uid for a in ledger.on_node("node-1")] == [UID]
    assert list(ledger.on_node("other")) == []
    assert isinstance(ledger.allocation(UID), Allocation)
    assert ledger.allocation("nobody") is None
    assert set(ledger.tenants(DeviceType.GPU, 0, 0)) == {UID}
    assert ledger.undo("nobody") is None
    engine.handle(NodeGone("node-1"))
    with pytest.raises(LedgerError, match="no node at index 0"):
        ledger.node_at(0)
