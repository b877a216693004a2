"""Request classes: pods that ask the same are scored once, and only changed nodes again.

A class keeps one number a node: how good it is, or -1 where the pod cannot go. Nodes that changed
since are scored afresh before each decision; the result is the same as that of a full scan (a law
under test).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.model.reason import NodeReason, Refusal
from partage.model.request import DeviceRequest
from partage.placement import kernel, scoring
from partage.placement.fast import is_plain
from partage.placement.fragmentation import Gauge
from partage.placement.priced import TIER, PriceGauge
from partage.placement.scoring import Scene
from partage.placement.tables import Tables
from partage.scheduler.eligibility import Eligibility

if TYPE_CHECKING:  # importing it imports numba, where that is installed
    from partage.placement.accelerated import Rescorer

__all__ = ["RequestClass", "class_key"]

RANKS: Final = 2**20
_PREFERENCE: Final = scoring.CEILING
_PARTIAL: Final = 4


def class_key(pod: Pod) -> object:
    """What makes two pods the same to the engine: everything but their names."""
    request = pod.request
    groups = tuple(
        (g.protocol, g.request, g.phase, g.dialect,
         tuple((c.phase, c.core_milli, c.memory_bytes, c.memory_milli, c.position) for c in g.containers))
        for g in request.groups
    )  # fmt: skip
    return (
        groups, request.joint, request.partition, request.node_labels, request.node_strategy,
        request.card_order, tuple(pod.host.items()), pod.constraint, pod.tolerations,
    )  # fmt: skip


@dataclass(slots=True)
class RequestClass:
    """Scores of one class over all nodes, kept up to date.

    Attributes:
        pod: a pod of the class.
        node_strategy: between nodes, the pod's own wish included.
        card_strategy: between cards.
        plain: the request is of the common kind that `placement.fast` serves.
        tables: what the strategies have learnt.
        value: score and order in one number a node; -1 where the pod cannot go.
        failed: nodes that the kernel passed and the exact rule refused, with the reason.
        eligible: which nodes are in question, whatever they have left.
        gauge: fragmentation of every node, for strategies that look at it.
        priced: value of every node, for the default strategy once it has learnt prices.
        rescorer: scores the class in compiled loops, where it is set.
        flags: a bit for each reserve that loses a slot by a pod of the class on the node.
        refusal: why no node could host a pod of the class, when last asked.
        refused_at: how many changes the ledger had seen then.
    """

    pod: Pod
    node_strategy: Strategy
    card_strategy: Strategy
    eligible: Eligibility
    plain: bool = False
    tables: Tables = field(default_factory=Tables)
    value: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    failed: dict[int, NodeReason] = field(default_factory=dict)
    gauge: Gauge | None = None
    priced: PriceGauge | None = None
    rescorer: "Rescorer | None" = None
    refusal: Refusal | None = None
    refused_at: int = -1
    flags: Ints | None = None
    _suits: list[Bools] = field(default_factory=list)
    _seen: int = 0
    _seen_nodes: int = -1

    @staticmethod
    def of(pod: Pod, policy: Policy, tables: Tables, eligible: Eligibility) -> "RequestClass":
        """The class of a pod under the policy and tables in force."""
        node_strategy = pod.request.node_strategy or policy.node
        return RequestClass(
            pod, node_strategy, policy.card, eligible, is_plain(pod.request), tables
        )

    @property
    def measures(self) -> bool:
        """Whether nodes or cards are chosen by fragmentation."""
        return Strategy.FGD in (self.node_strategy, self.card_strategy)

    @property
    def prices(self) -> bool:
        """Whether nodes or cards are chosen by what they are worth, once that is learnt."""
        return Strategy.PARTAGE in (self.node_strategy, self.card_strategy)

    @property
    def scores_cards(self) -> bool:
        """Whether cards are scored one by one as nodes are."""
        if self.card_strategy is Strategy.PARTAGE:
            return self.priced is not None
        return self.card_strategy.scores_cards

    @property
    def _guarded(self) -> bool:
        if self.node_strategy is not Strategy.PARTAGE or self.priced is None:
            return False
        return bool(self.priced.prices.reserves)

    @property
    def offer(self) -> Ints:
        """`value`, with places that take a slot from a short reserve behind all others."""
        if self.flags is None or self.priced is None:
            return self.value
        tight = self.priced.tight()
        if not tight:
            return self.value
        return np.where(self.flags & tight, self.value - TIER * RANKS, self.value)

    def refresh(self, ledger: Ledger, rank: Ints) -> None:
        """Bring the scores up to date with the ledger."""
        if self._seen_nodes != len(ledger.node_changes):
            self._refresh_nodes(ledger)
            self._score(ledger, rank, slice(None))
            self.failed.clear()
            self._seen = len(ledger.changes)
            return
        if self._seen == len(ledger.changes):
            return
        recent: Iterable[int] = ledger.changes[self._seen :]
        if self.rescorer is None:
            recent = set(recent)  # compiled loops rather do a node twice
        dirty = np.array(list(recent), np.intp)
        self._seen = len(ledger.changes)
        redraw = self.node_strategy is Strategy.RANDOM
        if redraw or dirty.size * _PARTIAL > self.value.size:
            self.failed.clear()
            self._score(ledger, rank, slice(None))
            return
        if self.failed:
            for index in dirty.tolist():
                self.failed.pop(index, None)
        self._score(ledger, rank, dirty)

    def fits(self, ledger: Ledger, nodes: kernel.Nodes) -> tuple[Bools, list[Bools]]:
        """Nodes that the kernel passes, and for each group the cards that serve it."""
        passed = kernel.host_fits(ledger, self.pod.host, nodes) & self.eligible.allowed[nodes]
        fits = []
        for group, suits in zip(self.pod.request.groups, self._suits, strict=True):
            cards = kernel.fitting(ledger, group.request, kernel.at(suits, nodes), nodes)
            count = 1 if group.request.every else group.request.count
            passed &= cards.sum(axis=0) >= count
            fits.append(cards)
        return passed, fits

    def suits(self, index: int) -> list[bool]:
        """For each row of the first group's type on a node, whether the card is the right one."""
        column: list[bool] = self._suits[0][:, index].tolist()
        return column

    def ranking(self, ledger: Ledger, index: int) -> dict[int, int] | None:
        """Score of each fitting card of a node, where the strategy scores cards itself."""
        nodes = np.asarray([index], np.intp)
        if self.rescorer and self.gauge and self.card_strategy is Strategy.FGD:
            asked = self.pod.request.groups[0].request
            if asked.whole:
                return None
            self.gauge.refresh()
            return self.gauge.card_scores(self.pod.host, asked, None, index)
        _, fits = self.fits(ledger, nodes)
        request = self.pod.request.groups[0].request
        scene = self._scene(ledger, request, fits[0], nodes)
        return scoring.ranking(scene, self.card_strategy)

    def fail(self, index: int, reason: NodeReason) -> None:
        """Remember that the exact rule refused a node, until the node changes."""
        self.failed[index] = reason
        self.value[index] = -1

    def _score(self, ledger: Ledger, rank: Ints, nodes: kernel.Nodes) -> None:
        if self.rescorer is not None:
            suits = self._suits[0] if self._suits else None
            eligible = (self.eligible.allowed, self.eligible.preference)
            if self.rescorer.score(ledger, suits, eligible, rank, self.value, nodes):
                return
        passed, fits = self.fits(ledger, nodes)
        groups = self.pod.request.groups
        request, cards = (groups[0].request, fits[0]) if groups else (None, None)
        scene = self._scene(ledger, request, cards, nodes)
        score = scoring.score(scene, self.node_strategy)
        if self._guarded and self.priced is not None:
            if self.flags is None or self.flags.size != self.value.size:
                self.flags = np.zeros(self.value.size, np.int64)
            self.flags[nodes] = self.priced.flags(self.pod.host, request, nodes, score)
        score = score + self.eligible.preference[nodes] * _PREFERENCE
        self.value[nodes] = np.where(passed, score * RANKS + (RANKS - 1 - rank[nodes]), -1)

    def _scene(
        self,
        ledger: Ledger,
        request: DeviceRequest | None,
        fits: Bools | None,
        nodes: kernel.Nodes,
    ) -> Scene:
        if self.gauge is not None:
            self.gauge.refresh()
        if self.priced is not None:
            self.priced.refresh()
        return Scene(
            ledger, self.pod.host, request, fits, nodes, self.tables, self.gauge, self.priced
        )

    def _refresh_nodes(self, ledger: Ledger) -> None:
        self.eligible.refresh(ledger)
        self.value = np.full(ledger.present.shape[0], -1, np.int64)
        self._suits = [
            kernel.suited(ledger, group.request, group.protocol, slice(None))
            for group in self.pod.request.groups
        ]
        self._seen_nodes = len(ledger.node_changes)
