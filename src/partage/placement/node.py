"""Which nodes may host a pod at all, by Kubernetes' own rules and the protocols' objections, and how good each is.

`objection` is the plain rule for one node, and gives people the reason that excludes it. The pod's own exclusions come
first: a taint or a cordon of such a node needs no action. The others follow in the order of kube-scheduler's filters;
ordinary resources are last.

`Eligibility` tests every node against the same rules at once. Columns hold what nodes report: labels by key, taints,
and protocols' verdicts. The cost depends on the number of the pod's conditions, not on the number of nodes times the
number of values compared. A key has a column from the first question about it on, because the writer of one node's
documents may name new keys in each. Many classes of request differ in amounts only. Everything that does not depend on
amounts is judged once for all of them.

`node_scores` gives each node one integer, higher is better, never negative. Scores are integers on purpose: near-equal
places are equal, and the explicit node order breaks ties, so a decision is the same on every machine. They are kept by
class of requests, and only changed nodes are scored again. So a score may depend only on its node, the request and the
policy's tables.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from partage.inventory.columns import UNCHECKED
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints, Plane
from partage.model.device import DeviceType
from partage.model.node import Node, Verdict
from partage.model.pod import Pod
from partage.model.policy import Scoring, Strategy
from partage.model.quantity import Quantity, whole_text
from partage.model.reason import NodeReason, ReasonCode
from partage.model.request import DeviceRequest, LabelRule, PodRequest
from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Selector,
    Taint,
    integer,
)
from partage.placement import baselines
from partage.placement.capacity import CapacityGauge
from partage.placement.fragmentation import Gauge
from partage.placement.kernel import Nodes
from partage.placement.priced import PriceGauge
from partage.placement.tables import Tables

_NAME: Final = "metadata.name"
_MOST_VALUES: Final = 4
"""A column is rebuilt once it has seen this many times more values than there are nodes."""
_MOST_JUDGED: Final = 512
_MOST_KEYS: Final = 512
"""Keys with a column; above this number all are forgotten. The selectors of a cluster's pods name far fewer."""

_CONDITIONS_A_UNIT: Final = 1_000
"""Nodes that are compared with one condition for one unit of work."""
_TOLERATIONS_A_UNIT: Final = 8
"""Tolerations that are compared with the taints of a node for one unit of work, if no other node has the same."""

_MOST_TOLD: Final = 8
"""The most terms of a pod's node affinity that a sentence repeats."""
_PASSING: Final = "node.kubernetes.io/"
"""Prefix of the keys of taints that Kubernetes itself adds and removes."""
_UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")

BEYOND_SCORES: Final = 2**34
"""A number above every score."""
_MOST_PREFERENCE: Final = 500  # the most that fits in one number with a score and a rank
_MILLION: Final = 1_000_000
V = TypeVar("V", bound=Hashable)


def objection(node: Node, pod: Pod) -> NodeReason | None:
    """Why the pod excludes the node, regardless of free amounts, or None."""
    if not pod.constraint.matches(node.name, node.labels):
        return _mismatch(node, pod.constraint)
    if node.unschedulable and cordon(pod):
        return NodeReason(ReasonCode.NODE_UNSCHEDULABLE, "the node is cordoned")
    taint = repelling(node.taints, pod)
    if taint is not None:
        message = f"taint {taint} is not tolerated"
        return NodeReason(ReasonCode.TAINT, message, brief=str(taint))
    return _protocol_objection(node, pod.request)


def cordon(pod: Pod) -> bool:
    """Whether the pod excludes the node because of its cordon."""
    return not any(t.tolerates(_UNSCHEDULABLE) for t in pod.tolerations)


def repelling(taints: Iterable[Taint], pod: Pod) -> Taint | None:
    """The first of a node's taints that keeps the pod away."""
    for taint in taints:
        if taint.repels and not any(t.tolerates(taint) for t in pod.tolerations):
            return taint
    return None


def opened(node: Node) -> Node:
    """The node without what passes by itself: a cordon, Kubernetes' own taints, and a silent agent's verdict."""
    if not (node.unschedulable or node.taints or node.verdicts):
        return node
    return replace(
        node,
        unschedulable=False,
        taints=tuple(taint for taint in node.taints if _stays(taint)),
        verdicts=tuple(v for v in node.verdicts if v.code is not ReasonCode.AGENT_SILENT),
    )


def _stays(taint: Taint) -> bool:
    """Whether only a person removes a taint."""
    return not taint.key.startswith(_PASSING)


def _mismatch(node: Node, constraint: NodeConstraint) -> NodeReason:
    """The part of a pod's selector or affinity that a node does not meet."""
    for requirement in constraint.selector.requirements:
        if not requirement.matches(node.labels):
            have = node.labels.get(requirement.key)
            found = f"it is {have!r} here" if have is not None else "the node has no such label"
            if have == node.name:  # a hostname: nodes with the same sentence are one row
                found = "which is another node"
            message = f"nodeSelector asks for {requirement}, {found}"
            return NodeReason(ReasonCode.NODE_AFFINITY, message, brief=str(requirement))
    told = [str(term) for term in (constraint.terms or ())[:_MOST_TOLD]]
    more = len(constraint.terms or ()) - len(told)
    terms = " or ".join([*told, f"{more} more terms"] if more > 0 else told) or "nothing"
    return NodeReason(ReasonCode.NODE_AFFINITY, f"node affinity asks for {terms}", brief=terms)


def _protocol_objection(node: Node, request: PodRequest) -> NodeReason | None:
    for rule in request.node_labels:
        if node.labels.get(rule.key) != rule.value:
            return NodeReason(rule.code, rule.message, brief=rule.message)
    for verdict in node.verdicts:
        if concerned(verdict, request):
            return NodeReason(verdict.code, verdict.message, brief=verdict.message)
    return None


def concerned(verdict: Verdict, request: PodRequest) -> bool:
    """Whether a protocol's objection to a node applies to this request."""
    for group in request.groups:
        cards = group.request.type is DeviceType.GPU
        if verdict.protocol not in ("", group.protocol) or (verdict.cards_only and not cards):
            continue
        if not verdict.sharing_only or (cards and not group.request.whole):
            return True
    return False


def shortage(host: Mapping[str, int], free: Mapping[str, int]) -> NodeReason | None:
    """The ordinary resource that is short on a node, or None; the first by name order of the pod."""
    for resource, asked in host.items():
        left = free.get(resource, 0)
        if asked > max(left, 0):
            facts = (
                f"{resource}: asked {amount(resource, asked)}, "
                f"free {amount(resource, max(left, 0))}"
            )
            return NodeReason(
                ReasonCode.NODE_RESOURCES,
                f"insufficient {facts.replace(': asked', ' (asked')})",
                asked=asked,
                free=left,
                brief=facts,
            )
    return None


def amount(resource: str, value: int) -> str:
    """An amount of an ordinary resource as Kubernetes writes it."""
    if resource == "cpu":
        return str(Quantity(value * 10**6))
    memory = "memory" in resource or "storage" in resource or resource.startswith("hugepages-")
    return whole_text(value, memory=memory)


class _Column(Generic[V]):
    """One property of every node: a number for each value; 0 for a node without one."""

    def __init__(self, size: int) -> None:
        self.codes: NDArray[np.int32] = np.zeros(size, np.int32)
        self.values: list[V] = []
        self.numbers: dict[V, int] = {}
        self._amounts: Ints = np.zeros(1, np.int64)
        self._counts: Bools = np.zeros(1, np.bool_)

    def put(self, index: int, value: V | None) -> None:
        if value is None:
            self.codes[index] = 0
            return
        number = self.numbers.get(value)
        if number is None:
            self.values.append(value)
            number = self.numbers[value] = len(self.values)
        self.codes[index] = number

    def where(self, judge: Callable[[V], bool]) -> Bools:
        """Nodes whose value passes; each value is judged once. A node without a value does not pass."""
        verdicts = np.fromiter((False, *map(judge, self.values)), np.bool_, len(self.values) + 1)
        found: Bools = verdicts.take(self.codes)
        return found

    def comparing(self, bound: int | None, *, greater: bool) -> Bools:
        """Nodes whose value is a number beyond a bound; each value is read once, for any number of bounds."""
        if len(self._counts) <= len(self.values):
            read = [None, *(integer(str(value)) for value in self.values)]
            self._counts = np.array([one is not None for one in read])
            self._amounts = np.array([one or 0 for one in read], np.int64)
        if bound is None:
            return np.zeros(self.codes.size, np.bool_)
        beyond = self._amounts > bound if greater else self._amounts < bound
        found: Bools = (self._counts & beyond).take(self.codes)
        return found

    def present(self) -> Bools:
        """Nodes that have a value."""
        found: Bools = self.codes > 0
        return found

    def among(self, values: tuple[V, ...]) -> Bools:
        """Nodes that have one of these values."""
        verdicts = np.zeros(len(self.values) + 1, np.bool_)
        verdicts[[number for v in values if (number := self.numbers.get(v)) is not None]] = True
        found: Bools = verdicts.take(self.codes)
        return found


class NodeColumns:
    """The columns of one ledger's nodes, updated for changed nodes.

    Attributes:
        taints: cordon and taints of each node.
        verdicts: the protocols' objections to each node, without their words.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._labels: dict[str, _Column[str]] = {}
        self._nodes_with: Counter[str] = Counter()
        self._fresh(0)

    def _fresh(self, size: int) -> None:
        self._size = size
        self._seen = 0
        self._labels.clear()
        self._nodes_with.clear()
        self._keys: dict[int, tuple[str, ...]] = {}
        self._names: _Column[str] = _Column(size)
        self.taints: _Column[tuple[bool, tuple[Taint, ...]]] = _Column(size)
        self.verdicts: _Column[tuple[Verdict, ...]] = _Column(size)

    def refresh(self) -> None:
        """Read the nodes that were added, changed or removed since."""
        ledger = self._ledger
        size = ledger.present.shape[0]
        known = [len(column.values) for column in (self._names, *self._labels.values())]
        known += [len(self.taints.values), len(self.verdicts.values)]
        if self._size != size or max(known) > _MOST_VALUES * size:
            self._fresh(size)
        if self._seen == ledger.node_changes.count:
            return
        changed = ledger.node_changes.since(self._seen) if self._seen else None
        if changed is None:
            self._fresh(size)
        self._seen = ledger.node_changes.count
        for index in range(len(ledger.nodes)) if changed is None else set(changed.tolist()):
            self._read(index, ledger.nodes[index])

    def _read(self, index: int, node: Node | None) -> None:
        for key in self._keys.pop(index, ()):
            self._nodes_with[key] -= 1
            if not self._nodes_with[key]:
                del self._nodes_with[key]
                self._labels.pop(key, None)
        for key, column in self._labels.items():
            column.put(index, node.labels.get(key) if node is not None else None)
        if node is None:
            self._names.put(index, None)
            self.taints.put(index, None)
            self.verdicts.put(index, None)
            return
        self._keys[index] = tuple(node.labels)
        self._nodes_with.update(self._keys[index])
        self._names.put(index, node.name)
        self.taints.put(index, (node.unschedulable, tuple(node.taints)))
        # Without their words, which differ between nodes (since when an agent is silent) and decide nothing.
        self.verdicts.put(index, tuple(replace(one, message="") for one in node.verdicts))

    # --- questions -----------------------------------------------------------------------------

    def _column(self, key: str) -> _Column[str] | None:
        """The column of a label; None if no node has the label."""
        column = self._labels.get(key)
        if column is None and key in self._nodes_with:
            if len(self._labels) >= _MOST_KEYS:
                self._labels.clear()
            column = self._labels[key] = _Column(self._size)
            for index, node in enumerate(self._ledger.nodes):
                if node is not None and key in node.labels:
                    column.put(index, node.labels[key])
        return column

    def domains(self, keys: Iterable[str]) -> Ints:
        """By node index, a number that nodes share if they agree in all of these labels."""
        self.refresh()
        found = np.zeros(self._size, np.int64)
        for key in keys:
            column = self._column(key)
            if column is not None:
                found = found * (len(column.values) + 1) + column.codes
        return found

    def constrained(self, constraint: NodeConstraint) -> Bools:
        """Nodes that `NodeConstraint.matches`."""
        found = self._all(constraint.selector)
        if constraint.terms is not None:
            terms = [self.meeting(term) for term in constraint.terms]
            found &= np.logical_or.reduce(terms) if terms else np.bool_(False)
        return found

    def labelled(self, rule: LabelRule) -> Bools:
        """Nodes with the label of a protocol's rule."""
        equal = Requirement(rule.key, Operator.IN, (rule.value,))
        return self._all(Selector((equal,)))

    def accepting(self, pod: Pod) -> Bools:
        """Nodes that the pod accepts by their labels and taints, whatever their state is."""
        return self._labels_accepted(pod) & self.taints.where(
            lambda taints: repelling(taints[1], pod) is None
        )

    def accepting_opened(self, pod: Pod) -> Bools:
        """Nodes to which the pod has no `objection` once they are `opened`."""

        def objecting(verdicts: tuple[Verdict, ...]) -> bool:
            lasting = (one for one in verdicts if one.code is not ReasonCode.AGENT_SILENT)
            return any(concerned(one, pod.request) for one in lasting)

        found = self._labels_accepted(pod)
        found &= self.taints.where(lambda t: repelling(filter(_stays, t[1]), pod) is None)
        return found & ~self.verdicts.where(objecting)

    def _labels_accepted(self, pod: Pod) -> Bools:
        self.refresh()
        found = self.constrained(pod.constraint)
        for rule in pod.request.node_labels:
            found &= self.labelled(rule)
        return found

    def meeting(self, term: NodeTerm) -> Bools:
        """Nodes that `NodeTerm.matches`."""
        if not term.labels and not term.fields:
            return np.zeros(self._size, np.bool_)
        found = self._all(Selector(term.labels))
        for requirement in term.fields:
            column = self._names if requirement.key == _NAME else None
            found &= self._meets(requirement, column)
        return found

    def _all(self, selector: Selector) -> Bools:
        found = np.ones(self._size, np.bool_)
        for requirement in selector.requirements:
            found &= self._meets(requirement, self._column(requirement.key))
        return found

    def _meets(self, requirement: Requirement, column: _Column[str] | None) -> Bools:
        if column is None:
            return np.full(self._size, requirement.matches({}))
        match requirement.operator:
            case Operator.IN:
                return column.among(requirement.values)
            case Operator.NOT_IN:
                return ~column.among(requirement.values)
            case Operator.EXISTS:
                return column.present()
            case Operator.DOES_NOT_EXIST:
                return ~column.present()
        return column.comparing(requirement.bound, greater=requirement.operator is Operator.GT)


def eligibility_key(pod: Pod) -> object:
    """The properties that `objection` and the preferred terms use."""
    groups = tuple(
        dict.fromkeys((g.protocol, g.request.type, g.request.whole) for g in pod.request.groups)
    )
    return pod.constraint, pod.tolerations, pod.request.node_labels, groups


def conditions_of(pod: Pod) -> int:
    """The number of the pod's conditions on nodes' labels and names."""
    constraint = pod.constraint
    terms = (*(constraint.terms or ()), *(term for _, term in constraint.preferred))
    asked = sum(1 + len(term.labels) + len(term.fields) for term in terms)
    return len(constraint.selector.requirements) + asked + len(pod.request.node_labels)


@dataclass(slots=True)
class Eligibility:
    """Judgement of every node; by node index.

    Attributes:
        pod: a pod for which it is valid.
        allowed: whether the node is in question at all.
        preference: weight of the preferred terms that it meets.
        codes: whether the node is excluded, by the code of the objection.
    """

    pod: Pod
    columns: NodeColumns
    allowed: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    preference: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    codes: dict[ReasonCode, Bools] = field(default_factory=dict)
    _objections: dict[int, NodeReason] = field(default_factory=dict)
    _seen: int = -1

    def arrears(self, ledger: Ledger) -> int:
        """Units of work that `refresh` would take."""
        if self._seen == ledger.node_changes.count:
            return 0
        pod, taints = self.pod, len(self.columns.taints.values)
        tolerated = taints * len(pod.tolerations) // _TOLERATIONS_A_UNIT
        return (1 + conditions_of(pod)) * len(ledger.index) // _CONDITIONS_A_UNIT + tolerated

    def refresh(self, ledger: Ledger) -> int:
        """Judge the nodes again if any was added, changed or removed since; returns what `arrears` was."""
        owed = self.arrears(ledger)
        if self._seen == ledger.node_changes.count:
            return owed
        self._seen = ledger.node_changes.count
        self.columns.refresh()
        self._objections.clear()
        self.codes.clear()
        self.allowed = np.zeros(ledger.present.shape[0], np.bool_)
        self.allowed[: len(ledger.nodes)] = [node is not None for node in ledger.nodes]
        pod, columns = self.pod, self.columns
        # The order is that of `objection`, because the first objection is reported.
        self._refuse(ReasonCode.NODE_AFFINITY, ~columns.constrained(pod.constraint))
        self._refuse(
            ReasonCode.NODE_UNSCHEDULABLE, columns.taints.where(lambda t: t[0] and cordon(pod))
        )
        self._refuse(
            ReasonCode.TAINT, columns.taints.where(lambda t: repelling(t[1], pod) is not None)
        )
        for rule in pod.request.node_labels:
            self._refuse(rule.code, ~columns.labelled(rule))
        objecting = columns.verdicts.where(lambda verdicts: self._verdict(verdicts) is not None)
        if (self.allowed & objecting).any():
            for code in ReasonCode:
                self._refuse(code, columns.verdicts.where(partial(self._says, code)))
        self.preference = np.zeros(self.allowed.size, np.int64)
        for weight, term in pod.constraint.preferred:
            self.preference[columns.meeting(term)] += weight
        np.minimum(self.preference, _MOST_PREFERENCE, out=self.preference)
        self.preference[~self.allowed] = 0
        return owed

    def _says(self, code: ReasonCode, verdicts: tuple[Verdict, ...]) -> bool:
        return self._verdict(verdicts) is code

    def _verdict(self, verdicts: tuple[Verdict, ...]) -> ReasonCode | None:
        """The code of the first of a node's verdicts that concerns the pod."""
        return next((one.code for one in verdicts if concerned(one, self.pod.request)), None)

    def _refuse(self, code: ReasonCode, nodes: Bools) -> None:
        found = self.allowed & nodes
        if found.any():
            self.codes[code] = self.codes[code] | found if code in self.codes else found
            self.allowed &= ~found

    def objection(self, ledger: Ledger, index: int) -> NodeReason | None:
        """Why a node is excluded; None if it is not."""
        if self.allowed[index]:
            return None
        known = self._objections.get(index)
        if known is None:
            known = objection(ledger.node_at(index), self.pod)
            if known is not None:
                self._objections[index] = known
        return known


class Judgements:
    """Which nodes are in question for pods; pods that ask the same of nodes share a judgement.

    The columns do not have them: two that refer to each other would outlive their ledger (`daemon.gc_tuning`).
    """

    def __init__(self, columns: NodeColumns) -> None:
        """None yet, by these columns."""
        self._columns = columns
        self._known: dict[object, Eligibility] = {}

    def of(self, pod: Pod) -> Eligibility:
        """The judgement for a pod; a new one if none is known."""
        key = eligibility_key(pod)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_JUDGED:
                self._known.clear()
            found = self._known[key] = Eligibility(pod, self._columns)
        return found


# --- scores -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scene:
    """A strategy's inputs.

    Attributes:
        host: ordinary resources that the pod asks.
        request: the pod's first device request, or None for a pod without devices.
        fits: the cards that serve it, for `nodes`; None without devices.
        gauge: fragmentation of every node, if the tables have usual requests.
        priced: value of every node, if prices or usual requests are learnt.
        scoring: the criteria of the pod's protocol under binpack and spread.
    """

    ledger: Ledger
    host: Mapping[str, int]
    request: DeviceRequest | None
    fits: Bools | None
    nodes: Nodes
    tables: Tables
    gauge: Gauge | None = None
    priced: PriceGauge | CapacityGauge | None = None
    scoring: Scoring = Scoring()


def node_scores(scene: Scene, strategy: Strategy) -> Ints:
    """Scores of the scene's nodes.

    Binpack and spread use the amounts before the pod arrives. The default takes the first node that fits until it has
    learnt something; it keeps pods without devices off nodes with devices.
    """
    ledger, host, request, nodes = scene.ledger, scene.host, scene.request, scene.nodes
    if strategy in (Strategy.BINPACK, Strategy.SPREAD):
        return _by_use(scene, strategy)
    if strategy is Strategy.RANDOM:
        return baselines.drawn(ledger, scene.tables.seed, nodes)
    if strategy is Strategy.BESTFIT:
        return baselines.best_fit(ledger, host, request, nodes)
    if strategy is Strategy.DOTPROD:
        return baselines.dot_product(ledger, host, request, nodes)
    if strategy is Strategy.GPUPACKING:
        return baselines.packing(ledger, request, nodes)
    if strategy is Strategy.GPUCLUSTERING:
        return baselines.clustering(ledger, request, nodes)
    gauge = _gauge(scene, strategy)
    if gauge is not None:
        return gauge.node_scores(host, request, scene.fits, nodes)
    # Cards that pods without devices strand serve no pod.
    apart = strategy is Strategy.PARTAGE and request is None
    return (ledger.bare[nodes] & apart).astype(np.int64)


def card_scores(scene: Scene, strategy: Strategy) -> dict[int, int] | None:
    """Score of each fitting card, by row, of the scene's only node.

    None if the strategy leaves cards to `placement.order`.
    """
    request, fits = scene.request, scene.fits
    if request is None or fits is None or request.whole:
        return None
    gauge = _gauge(scene, strategy)
    if gauge is None and strategy is not Strategy.RANDOM:
        return {}
    index = int(np.arange(scene.ledger.present.shape[0])[scene.nodes][0])
    if gauge is None:
        rows = np.flatnonzero(fits[:, 0])
        place = (index * fits.shape[0] + rows).astype(np.uint64)
        draws = baselines.mixed(place, ~scene.tables.seed, scene.ledger.changes.count)
        return dict(zip(rows.tolist(), draws.tolist(), strict=True))
    if strategy is Strategy.PARTAGE and request.type is not DeviceType.GPU:
        return None
    return gauge.card_scores(scene.host, request, fits, index)


def _gauge(scene: Scene, strategy: Strategy) -> Gauge | PriceGauge | CapacityGauge | None:
    """The columns by which the strategy scores nodes and cards; None if it has none yet, or uses only the books."""
    if strategy is Strategy.FGD:
        return scene.gauge
    return scene.priced if strategy is Strategy.PARTAGE else None


def _by_use(scene: Scene, strategy: Strategy) -> Ints:
    """How much of the nodes is used, for spread how little."""
    if scene.request is None or scene.fits is None:
        return _host_score(scene.ledger, scene.nodes, strategy)
    plane, nodes = scene.ledger.planes[scene.request.type], scene.nodes
    if strategy is Strategy.SPREAD and scene.scoring.left:
        return _left(plane, nodes)
    usage, most = _usage(plane, nodes), 2 * _MILLION
    if scene.scoring.sharers:
        usage, most = usage + _sharing(plane, nodes), most + _MILLION
    return most - usage if strategy is Strategy.SPREAD else usage


def _usage(plane: Plane, nodes: Nodes) -> Ints:
    """Used compute plus used memory of each node's devices, in millionths of each."""
    core_total = plane.core_total[:, nodes].sum(axis=0)
    memory_total = plane.memory_total[:, nodes].sum(axis=0)
    core_free = np.clip(plane.core_free[:, nodes].sum(axis=0), 0, core_total)
    memory_free = np.clip(plane.memory_free[:, nodes].sum(axis=0), 0, memory_total)
    return _part(core_total - core_free, core_total) + _part(
        memory_total - memory_free, memory_total
    )


def _sharing(plane: Plane, nodes: Nodes) -> Ints:
    """Sharers of each node's devices, in millionths of the sharers that these may have."""
    total = plane.slots_total[:, nodes].sum(axis=0)
    return _part(np.minimum(plane.tenants[:, nodes].sum(axis=0), total), total)


def _left(plane: Plane, nodes: Nodes) -> Ints:
    """Compute plus memory that each node has left, in millionths of its devices; closed ones have nothing."""
    left: Ints = np.zeros(plane.open.shape[1:], np.int64)[nodes]
    for free, total in (
        (plane.core_free, plane.core_total),
        (plane.memory_free, plane.memory_total),
    ):
        parts = _part(np.clip(free[:, nodes], 0, total[:, nodes]), total[:, nodes])
        left = left + np.where(plane.open[:, nodes], parts, 0).sum(axis=0)
    return left


def _part(part: Ints, whole: Ints) -> Ints:
    """`part` in millionths of `whole` without overflow: huge values of both are scaled down."""
    shift = np.maximum(whole >> 40, 0)
    scale = np.where(shift > 0, 1 << 20, 1)
    return (part // scale) * _MILLION // np.maximum(whole // scale, 1)


def _host_score(ledger: Ledger, nodes: Nodes, strategy: Strategy) -> Ints:
    usage: Ints = np.zeros(ledger.present[nodes].shape, np.int64)
    for resource in ("cpu", "memory"):
        total = ledger.host_total[resource][nodes]
        free = np.clip(ledger.host_free[resource][nodes], 0, total)
        usage += np.where(total >= UNCHECKED, 0, _part(total - free, total))
    return 2 * _MILLION - usage if strategy is Strategy.SPREAD else usage
