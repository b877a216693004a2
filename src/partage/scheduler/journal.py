"""An engine that keeps a journal: every event it gets and every decision it takes, in order.

The same events with the same questions in the same order lead to the same decisions, so a replay needs only a journal.
It keeps references to frozen values. Other code writes them down later, so a decision pays for one call only.

A journal may begin at any moment with the engine's state. `resumed` makes an engine from that state that decides the
same from then on.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from partage.inventory.card import Suspicion
from partage.inventory.plane import Bools
from partage.model.allocation import Allocation
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.placement.card import Work
from partage.placement.tables import Tables
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import (
    Action,
    Event,
    NodeSeen,
    Placement,
    PodSeen,
    Quotas,
    QuotasChanged,
    TablesChanged,
)


@dataclass(frozen=True, slots=True)
class EngineState:
    """Everything on which an engine's later decisions depend.

    Attributes:
        nodes: in the order of the books, each with its rank.
        next_rank: the rank of the next new node.
        versions: of all nodes, the last deleted ones included.
        gone: uids of deleted pods.
        held: the pods' allocations in the books, with their states.
        suspicions: the capacity closed because of a pod, by uid.
        counted: the amounts that quotas count, by uid: namespace and amounts.
    """

    policy: Policy = Policy()
    tables: Tables = Tables()
    quotas: Quotas = Quotas()
    nodes: tuple[tuple[Node, int], ...] = ()
    next_rank: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    gone: tuple[str, ...] = ()
    held: tuple[tuple[Allocation, str], ...] = ()
    suspicions: Mapping[str, Suspicion] = field(default_factory=dict)
    counted: Mapping[str, tuple[str, Mapping[str, int]]] = field(default_factory=dict)


class Decided(msgspec.Struct, frozen=True, gc=False):
    """A question and its answer; made in every decision, and never part of a reference cycle.

    Attributes:
        number: counts the decisions of one engine from 1.
        verb: `hold` (filter) or `place_on` (bind).
        node: the requested node; empty for any.
        among: the requested nodes, by index; None for all.
        labels: node names by index at that moment; empty if `among` is None.
        few: only little work was allowed.
        spent: units that earlier decisions of the same question had spent.
        alone: where no node took the whole pod, it was decided about by its devices alone.
    """

    number: int
    verb: str
    pod: Pod
    decision: Placement | Refusal
    node: str = ""
    among: Bools | None = None
    labels: tuple[str, ...] = ()
    few: bool = False
    spent: int = 0
    alone: bool = False


Entry = Event | Decided | EngineState
Write = Callable[["JournalledEngine", Entry], None]


class JournalledEngine(Engine):
    """An engine whose journal is kept; `label` begins its decisions' ids."""

    def __init__(self, policy: Policy | None, write: Write, label: str = "") -> None:
        """An empty engine.

        Args:
            write: called with this engine and each entry; must return at once.
            label: unique among all engines of a record.
        """
        super().__init__(policy)
        self.label = label
        self.decision_id = f"{label}-0"
        self._decided = 0
        self._write = write
        self._labels: tuple[str, ...] = ()
        self._labels_at = -1
        write(self, EngineState(policy=self.policy))

    def handle(self, event: Event) -> list[Action]:
        """See `Engine.handle`."""
        self._write(self, event)
        return super().handle(event)

    def hold(
        self,
        pod: Pod,
        among: Bools | None = None,
        work: Work | None = None,
        alone: Pod | None = None,
        decided: Placement | Refusal | None = None,
    ) -> Placement | Refusal:
        """See `Engine.hold`."""
        limited = work or Work()
        decision = super().hold(pod, among, limited, alone, decided)
        self._count()
        labels = () if among is None else self._names()
        told = limited.few, limited.began, alone is not None
        self._write(self, Decided(self._decided, "hold", pod, decision, "", among, labels, *told))
        return decision

    def place_on(self, pod: Pod, name: str) -> Placement | Refusal:
        """See `Engine.place_on`."""
        decision = super().place_on(pod, name)
        self._count()
        self._write(self, Decided(self._decided, "place_on", pod, decision, name))
        return decision

    def _count(self) -> None:
        self._decided += 1
        self.decision_id = f"{self.label}-{self._decided}"

    def _names(self) -> tuple[str, ...]:
        """Node names by index, rebuilt only after nodes were added or removed."""
        if self._labels_at != self.ledger.node_changes.count:
            self._labels_at = self.ledger.node_changes.count
            self._labels = tuple("" if n is None else n.name for n in self.ledger.nodes)
        return self._labels

    def checkpoint(self) -> None:
        """Write down the state, so that a journal can begin here."""
        self._write(self, self.state())

    def state(self) -> EngineState:
        """Everything on which later decisions depend; `resumed` makes an engine of it."""
        return EngineState(
            policy=self.policy,
            tables=self.tables,
            quotas=self.quotas.quotas,
            nodes=tuple(
                (node, int(self._rank[self.ledger.index[node.name]]))
                for node in self.ledger.nodes
                if node is not None
            ),
            next_rank=self.ranks,
            versions={**self._node_versions},
            pods=tuple(self._pods.values()),
            gone=tuple(self._gone),
            held=tuple(
                (allocation, self.states.get(allocation.uid, State.BOUND).value)
                for allocation in self.ledger.allocations()
            ),
            suspicions={**self.ledger.suspicions()},
            counted=self.quotas.counted,
        )

    def resume(self, state: EngineState) -> None:
        """Load a state into an empty engine. A replay of a journal calls this."""
        self.policy = state.policy
        handle = super().handle
        handle(TablesChanged(state.tables))
        handle(QuotasChanged(state.quotas))
        for node, _ in state.nodes:
            handle(NodeSeen(node))
        for node, rank in state.nodes:
            self._rank[self.ledger.index[node.name]] = rank
        self.ranks = state.next_rank
        self._node_versions.update(state.versions)
        self._gone_nodes.update(
            (name, None) for name in state.versions if name not in self.ledger.index
        )
        for pod in state.pods:
            handle(PodSeen(pod))
        self._gone.update(dict.fromkeys(state.gone))
        for allocation, stand in state.held:
            known = self.ledger.allocation(allocation.uid)
            if known is not None and known != allocation:
                self.ledger.undo(allocation.uid)
                known = None
            if known is None:
                self.ledger.apply(allocation)
            self.states[allocation.uid] = State(stand)
            if self.states[allocation.uid] is not State.CLEARING:
                self.permits.apply(allocation)
        for uid, suspicion in state.suspicions.items():
            self.ledger.suspect(uid, suspicion)
        for uid, (namespace, amounts) in state.counted.items():
            self.quotas.apply(uid, namespace, amounts)


def resumed(state: EngineState) -> JournalledEngine:
    """An engine that decides from now on like the engine with this state."""
    engine = JournalledEngine(state.policy, lambda *_: None)
    engine.resume(state)
    return engine


def among_of(engine: Engine, names: Iterable[str] | None) -> Bools | None:
    """The nodes of a question by index, in the engine's form."""
    if names is None:
        return None
    ledger = engine.ledger
    among = np.zeros(ledger.present.shape[0], np.bool_)
    among[[ledger.index[name] for name in names if name in ledger.index]] = True
    return among
