"""Whatever events come, in whatever order, the books are those of the API server's objects."""

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from ledgers import grants
from worlds import nodes, pods

from drawn import sampled
from partage.model.allocation import Allocation
from partage.model.device import Device
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.reason import Refusal
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import (
    BindFailed,
    BindSucceeded,
    BindUnknown,
    Event,
    HoldEnded,
    NodeGone,
    NodeSeen,
    Placement,
    PodGone,
    PodRead,
    PodSeen,
    ReadBack,
)
from partage.scheduler.facts import rebuild

NAMES = ("node-0", "node-1", "node-2")


@dataclass
class Server:
    """The API server: the truth, and a version for every change."""

    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    version: int = 0

    def next(self) -> int:
        """The next version."""
        self.version += 1
        return self.version

    def put_node(self, node: Node) -> Event:
        """Create or change a node; the event that tells."""
        self.nodes[node.name] = replace(node, version=self.next())
        return NodeSeen(self.nodes[node.name])

    def put_pod(self, pod: Pod) -> Event:
        """Create or change a pod; the event that tells."""
        self.pods[pod.uid] = replace(pod, version=self.next())
        return PodSeen(self.pods[pod.uid])

    def bind(self, allocation: Allocation) -> Event | None:
        """Take a Binding with its record; None where the pod is gone or bound."""
        pod = self.pods.get(allocation.uid)
        if pod is None or pod.node is not None:
            return None
        return self.put_pod(replace(pod, node=allocation.node, record=Record(allocation.grants)))


class Scheduling(RuleBasedStateMachine):
    """A server, a scheduler, and a network that delays, repeats and reorders."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.engine = Engine()
        self.network: list[Event] = []
        self.binding: dict[str, Allocation] = {}
        self.held: dict[str, Pod] = {}
        self.count = 0

    def tell(self, event: Event) -> None:
        """Hand an event to the engine, answer its questions, and audit."""
        for action in self.engine.handle(event):
            if isinstance(action, ReadBack):
                self.network.append(PodRead(action.uid, self.server.pods.get(action.uid)))
        self.engine.audit()

    # --- the cluster ---------------------------------------------------------------------------

    @rule(data=st.data(), name=sampled(NAMES))
    def a_node_comes_or_changes(self, data: st.DataObject, name: str) -> None:
        """A node appears, or is another one altogether."""
        self.network.append(self.server.put_node(data.draw(nodes(name))))

    @precondition(lambda self: self.server.nodes)
    @rule(data=st.data())
    def devices_change(self, data: st.DataObject) -> None:
        """Cards go away, come back, fail or get other numbers."""
        name = data.draw(sampled(sorted(self.server.nodes)))
        node = self.server.nodes[name]
        kept = [d for d in node.devices if data.draw(st.integers(0, 3))]
        if data.draw(st.booleans()):
            kept = [replace(d, healthy=data.draw(st.booleans())) for d in kept]
        if data.draw(st.booleans()):
            kept = renumbered(kept)
        self.network.append(self.server.put_node(replace(node, devices=tuple(kept))))

    @precondition(lambda self: self.server.nodes)
    @rule(data=st.data())
    def a_node_goes(self, data: st.DataObject) -> None:
        """A node is deleted while its pods may still be there."""
        name = data.draw(sampled(sorted(self.server.nodes)))
        del self.server.nodes[name]
        self.network.append(NodeGone(name, self.server.next()))

    @rule(data=st.data(), name=sampled(NAMES))
    def a_bound_pod_comes_from_elsewhere(self, data: st.DataObject, name: str) -> None:
        """A pod that another scheduler bound: with a record, a bad one, or none."""
        self.count += 1
        pod = data.draw(pods(f"foreign-{self.count}"))
        given = tuple(data.draw(st.lists(grants(name), max_size=2)))
        record = data.draw(sampled([Record(given), Record((), "", "malformed"), None]))
        self.network.append(self.server.put_pod(replace(pod, node=name, record=record)))

    @precondition(lambda self: self.server.pods)
    @rule(data=st.data(), end=sampled(["finished", "gone", "gone", "record"]))
    def a_pod_ends_or_changes(self, data: st.DataObject, end: str) -> None:
        """A pod finishes or is deleted, or its record becomes unreadable."""
        uid = data.draw(sampled(sorted(self.server.pods)))
        pod = self.server.pods[uid]
        if end == "finished":
            self.network.append(self.server.put_pod(replace(pod, finished=True)))
        elif end == "record":
            spoilt = Record(problem="edited") if pod.node else None
            self.network.append(self.server.put_pod(replace(pod, record=spoilt)))
        else:
            del self.server.pods[uid]
            self.network.append(PodGone(uid))

    # --- the scheduler -------------------------------------------------------------------------

    @rule(data=st.data())
    def a_pod_is_scheduled(self, data: st.DataObject) -> None:
        """A pending pod is decided and its Binding sent."""
        self.count += 1
        pod = data.draw(pods(f"pod-{self.count}"))
        self.network.append(self.server.put_pod(pod))
        decision = self.engine.schedule(self.server.pods[pod.uid])
        if isinstance(decision, Placement):
            self.binding[pod.uid] = decision.allocation
            assert self.engine.states[pod.uid] is State.RESERVED
        else:
            assert isinstance(decision, Refusal)
        self.engine.audit()

    @rule(data=st.data())
    def a_pod_is_held(self, data: st.DataObject) -> None:
        """Another scheduler filters a pod: its predicted place is kept."""
        self.count += 1
        pod = data.draw(pods(f"held-{self.count}"))
        self.network.append(self.server.put_pod(pod))
        if isinstance(self.engine.hold(self.server.pods[pod.uid]), Placement):
            self.held[pod.uid] = pod
            assert self.engine.states[pod.uid] is State.HELD
        self.engine.audit()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), end=sampled(["bind", "bind", "again", "time"]))
    def a_hold_ends(self, data: st.DataObject, end: str) -> None:
        """A held pod is bound to the node it was kept on or to another, or filtered again."""
        uid = data.draw(sampled(sorted(self.held)))
        pod = self.held[uid]
        if end == "time" or self.engine.states.get(uid) is not State.HELD:
            del self.held[uid]
            self.tell(HoldEnded(uid))
        elif end == "again":
            self.engine.hold(pod)
        else:
            del self.held[uid]
            node = data.draw(sampled(NAMES))
            decision = self.engine.place_on(pod, node)
            if isinstance(decision, Placement):
                assert decision.allocation.node == node
                self.binding[uid] = decision.allocation
            else:
                assert uid not in self.engine.states
        self.engine.audit()

    @precondition(lambda self: self.binding)
    @rule(
        data=st.data(),
        taken=st.booleans(),
        answer=sampled(["truth", "truth", "unknown"]),
    )
    def a_binding_is_answered(self, data: st.DataObject, taken: bool, answer: str) -> None:  # noqa: FBT001
        """The server takes or refuses a Binding, and says so or times out."""
        uid = data.draw(sampled(sorted(self.binding)))
        event = self.server.bind(self.binding.pop(uid)) if taken else None
        if event is not None:
            self.network.append(event)
        if answer == "unknown":
            self.tell(BindUnknown(uid))
        else:
            self.tell(BindSucceeded(uid) if event is not None else BindFailed(uid))

    # --- the network ---------------------------------------------------------------------------

    @precondition(lambda self: self.network)
    @rule(data=st.data(), again=st.booleans())
    def something_arrives(self, data: st.DataObject, again: bool) -> None:  # noqa: FBT001
        """Any event arrives, and perhaps once more later."""
        position = data.draw(st.integers(0, len(self.network) - 1))
        event = self.network[position] if again else self.network.pop(position)
        self.tell(event)

    def teardown(self) -> None:
        """Once everything has arrived, the books are a rebuild of the server's objects."""
        for uid in sorted(self.binding):
            self.tell(BindFailed(uid))
        for uid in sorted(self.held):
            self.tell(HoldEnded(uid))
        rounds = 0
        while self.network and rounds < 3:
            events, self.network = self.network, []
            for event in (*events, *reversed(events)):
                self.tell(event)
            rounds += 1
        fresh = rebuild(self.server.nodes.values(), self.server.pods.values())
        assert self.engine.ledger.picture() == fresh.picture()
        assert held(self.engine) == {a.uid: a for a in fresh.allocations()}
        assert self.engine.ledger.suspicions() == fresh.suspicions()
        running = [p for p in self.server.pods.values() if p.node and not p.finished]
        assert set(self.engine.states) == {p.uid for p in running}
        quotas = Counter[str]()
        for pod in running:
            quotas.update(pod.quota)
        assert +Counter(self.engine.quotas.used("default")) == +quotas


def held(engine: Engine) -> dict[str, Allocation]:
    """What every pod holds in the engine's books."""
    return {a.uid: a for a in engine.ledger.allocations()}


def renumbered(devices: list[Device]) -> list[Device]:
    """The same devices with their minors reversed within each type."""
    result = []
    for type_ in {d.type for d in devices}:
        mine = [d for d in devices if d.type is type_]
        minors = [d.minor for d in reversed(mine)]
        result += [replace(d, minor=m) for d, m in zip(mine, minors, strict=True)]
    return sorted(result, key=lambda d: (d.type, d.minor))


TestBooks = Scheduling.TestCase
TestBooks.settings = settings(
    max_examples=max(1, settings.default.max_examples // 3), stateful_step_count=30
)
