"""Why no node can host a pod: codes for all nodes, sentences for the nodes that people will read."""

from typing import Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints, Plane
from partage.model.reason import NodeReason, ReasonCode, Refusal
from partage.model.request import DeviceRequest
from partage.placement import kernel
from partage.placement.card import MOST_A_NODE, Work
from partage.placement.instance_kernel import pool_ranks
from partage.placement.node import shortage
from partage.placement.picks import template
from partage.placement.pod import GIVEN_UP
from partage.placement.reasons import LEADING, WRONG, Finding, none_left, refusal_of
from partage.scheduler.classes import RequestClass

DETAILED: Final = 100
"""The largest cluster in which every node gets a sentence of its own."""

LEFT_OUT: Final = NodeReason(
    ReasonCode.SEARCH_LIMIT,
    "the node was not searched: the nodes before it took as much work as one decision may; ask "
    "for devices in fewer containers, or for equal amounts in them",
)
"""Why a node is refused that a decision did not reach."""

_TOGETHER: Final = NodeReason(ReasonCode.INSUFFICIENT_CARDS, "its containers do not fit together")

_A_SENTENCE: Final = 10
_SENTENCES: Final = 2_600
"""Units of work for sentences; a pod of one group gets a hundred sentences. All other nodes are counted by code."""

_FEW_SENTENCES: Final = 100
"""The same if a decision is allowed little work."""

EXAMPLES: Final = 20
"""Nodes that get a sentence in a larger cluster; the others are counted by code."""


def deferred(namespace: str) -> Refusal:
    """The refusal of a pod that needs a search, after its namespace has used its share of search."""
    return Refusal(
        ReasonCode.SEARCH_DEFERRED,
        f"the pod needs a search, and namespace {namespace} has used its allowance for now; the pod has its turn later",
    )


def refuse(ledger: Ledger, group: RequestClass, rank: Ints, work: Work) -> Refusal:
    """The refusal of a pod of a class that no node can host now; it stays the same until something changes.

    Args:
        rank: by node index, the explicit order: it decides which of equal nodes are named.
        work: that of the decision; sentences are counted in addition.
    """
    told_at = group.refused_at, group.refused_few
    if told_at != (ledger.changes.count, work.few) or group.refusal is None:
        group.refusal = _refusal(ledger, group, rank, work)
        group.refused_at, group.refused_few = ledger.changes.count, work.few
        group.refused_among = None
    return group.refusal


def _refusal(ledger: Ledger, group: RequestClass, rank: Ints, decision: Work) -> Refusal:
    present = _ordered(ledger.present, rank).tolist()
    codes: dict[ReasonCode, list[int]] = {}
    detailed = present
    large = len(present) > DETAILED or decision.few
    if large:
        codes = _codes(ledger, group, rank)
        detailed = _closest(codes)
    findings: dict[ReasonCode, Finding] = {}
    nodes: dict[str, NodeReason] = {}
    work = Work(_FEW_SENTENCES if decision.few else _SENTENCES)
    told = 0
    for index in detailed:
        if work.spent:
            break
        told += 1
        reason = why(ledger, group, index, work)
        name = ledger.node_at(index).name
        nodes[name] = reason
        findings.setdefault(reason.code, Finding()).add(name, reason)
    decision.aside += work.taken
    if told < len(detailed) and not large:
        codes = _codes(ledger, group, rank)
    if codes:
        sentenced = set(detailed[:told])
        for code, indexes in codes.items():
            if rest := sum(index not in sentenced for index in indexes):
                findings.setdefault(code, Finding()).count += rest
    return refusal_of(findings, nodes, len(present))


def brief(group: RequestClass) -> Refusal:
    """A refusal without reasons, for drivers that only count them."""
    groups = group.pod.request.groups
    code = ReasonCode.INSUFFICIENT_CARDS if groups else ReasonCode.NODE_RESOURCES
    if group.given_up:
        return Refusal(ReasonCode.SEARCH_LIMIT, LEFT_OUT.message)
    return Refusal(code, "no node can host the pod now")


def why(ledger: Ledger, group: RequestClass, index: int, work: Work | None = None) -> NodeReason:
    """Why one node cannot host a pod of the class.

    The columns have refused the node, so the exact rule stops at the first obstacle, which people expect to see.
    """
    known = group.eligible.objection(ledger, index) or group.failed.get(index)
    if known is not None:
        return known
    if group.given_up and group.value[index] >= 0:
        return LEFT_OUT
    short = shortage(group.pod.host, ledger.host_left(index, group.pod.host))
    if short is not None:
        return short
    told = group.told.get(index)
    if told is None:
        here = Work(MOST_A_NODE)
        told = group.told[index] = _obstacle(ledger, group, index, here), _A_SENTENCE + here.done
        if work is not None:
            work.recalled += here.recalled
    elif work is not None:
        work.recalled += told[1]
    if work is not None:
        work.done += told[1]
    return told[0]


def _obstacle(ledger: Ledger, group: RequestClass, index: int, work: Work) -> NodeReason:
    """The exact rule's first obstacle on a node that the columns have refused."""
    request = group.pod.request
    types = {g.request.type for g in request.groups}
    cards = {type_: ledger.cards(type_, index) for type_ in types}
    node, strategy = ledger.node_at(index), group.card_strategy
    found = group.equals.place(node, cards, request, strategy, None, work, obstacle=True)
    if found is GIVEN_UP:
        return _TOGETHER
    if isinstance(found, NodeReason):
        return found
    return NodeReason(ReasonCode.NODE_RESOURCES, "the node fits, but was not chosen")


def _ordered(nodes: Bools, rank: Ints) -> Ints:
    """Indexes of these nodes in the explicit order."""
    found: Ints = np.flatnonzero(nodes)
    return found[np.argsort(rank[found], kind="stable")]


def _codes(ledger: Ledger, group: RequestClass, rank: Ints) -> dict[ReasonCode, list[int]]:
    """Node indexes by leading code, from the columns alone, in the explicit order."""
    everyone = slice(None)
    result: dict[ReasonCode, list[int]] = {}
    open_ = ledger.present.copy()
    for code, refused in group.eligible.codes.items():
        result[code] = _ordered(open_ & refused, rank).tolist()
        open_ &= ~refused
    for index, reason in sorted(group.failed.items(), key=lambda item: int(rank[item[0]])):
        if open_[index]:
            result.setdefault(reason.code, []).append(index)
            open_[index] = False
    host = kernel.host_fits(ledger, group.pod.host, everyone)
    short = open_ & ~host
    if short.any():
        result.setdefault(ReasonCode.NODE_RESOURCES, []).extend(_ordered(short, rank).tolist())
    open_ &= host
    passed = group.value >= 0  # up to date; failed nodes have their code already
    judged: kernel.Judged = {}
    parts = group.parts(ledger, everyone)
    for number, kind in enumerate(group.kinds):
        member = kind.group
        if not (open_ & ~passed).any() and not member.request.templated:
            continue
        asked = 1 if member.request.every else member.request.count
        cut = member.request.instances and bool(ledger.cut_nodes)
        few_cards = ~group.with_cards(parts, number, asked)
        served = group.instances_fit(ledger, number) if cut else ~few_cards
        if not (open_ & few_cards & ~served).any() and not member.request.templated:
            continue
        if member.request.templated and (odd := _without_template(ledger, open_, member.request)):
            result.setdefault(ReasonCode.TEMPLATE_MISMATCH, []).extend(odd)
            open_[odd] = False
        none = none_left(member.request.type)
        # A pod may ask many things, each of which excludes some nodes: only the remaining ones are read.
        nodes = np.flatnonzero(open_ & few_cards & ~served)
        nodes = nodes[np.argsort(rank[nodes], kind="stable")]
        ranks = kernel.classify(ledger, member.request, member.protocol, judged, nodes)
        lacking = (ranks == kernel.FITS).sum(axis=0) < member.request.count
        if cut:
            ranks = pool_ranks(ledger, member.request, member.protocol, ranks, judged, nodes)
        lead = kernel.leading(ranks)
        few = (ranks >= 0).sum(axis=0) < member.request.count
        wrong = np.isin(ranks, [LEADING.index(code) for code in WRONG]).any(axis=0)
        lead[few & ~wrong] = kernel.FITS
        for worst in np.unique(lead[lacking]).tolist():
            code = LEADING[worst] if worst < kernel.FITS else none
            at = np.flatnonzero(lacking & (lead == worst))
            found, plane = nodes[at], ledger.planes[member.request.type]
            if code in WRONG:
                found = _each_model_first(ledger, plane, found)
            else:
                fitting = (ranks[:, at] == kernel.FITS).sum(axis=0)
                found = found[np.argsort(-fitting, kind="stable")]
            short_cards = ranks[:, at] == worst
            result.setdefault(code, []).extend(_most_free(plane, code, short_cards, found))
        open_[nodes[lacking]] = False
    _of_the_rest(ledger, group, rank, (open_ & ~passed, open_ & passed), result)
    return result


def _of_the_rest(
    ledger: Ledger,
    group: RequestClass,
    rank: Ints,
    rest: tuple[Bools, Bools],
    result: dict[ReasonCode, list[int]],
) -> None:
    """Nodes with cards for each group but not for all together, and nodes that were not asked."""
    short, left_out = (_ordered(nodes, rank).tolist() for nodes in rest)
    if short:
        # One node's answer stands for all: the exact rule is too slow to ask about each.
        result.setdefault(why(ledger, group, short[0]).code, []).extend(short)
    if left_out and group.given_up:
        failed = group.failed
        listed = [index for index in left_out if index not in failed]
        result.setdefault(ReasonCode.SEARCH_LIMIT, []).extend(listed)


def _without_template(ledger: Ledger, open_: Bools, request: DeviceRequest) -> list[int]:
    """Nodes with no sharing template, or several, that the request equals."""
    nodes = np.flatnonzero(open_).tolist()
    return [index for index in nodes if not template(ledger.node_at(index), request)]


def _most_free(plane: Plane, code: ReasonCode, cards: Bools, found: Ints) -> list[int]:
    """Nodes whose cards have too little left, those with the most on one card first."""
    columns = {
        ReasonCode.INSUFFICIENT_MEMORY: plane.memory_free,
        ReasonCode.INSUFFICIENT_CORE: plane.core_free,
    }
    column = columns.get(code)
    if column is not None:
        most = np.where(cards, column[:, found], -1).max(axis=0)
        found = found[np.argsort(-most, kind="stable")]
    return [int(index) for index in found]


def _each_model_first(ledger: Ledger, plane: Plane, found: Ints) -> Ints:
    """The same nodes, but first one of each model of card, so that sentences name all models."""
    models = {model: number for number, model in enumerate({d.model for d in ledger.kinds if d})}
    of_kind = np.array([models[d.model] if d else -1 for d in ledger.kinds], np.int64)
    _, first = np.unique(of_kind[plane.kind[0, found]], return_index=True)
    first.sort()
    return np.concatenate([found[first], np.delete(found, first)])


def _closest(codes: dict[ReasonCode, list[int]]) -> list[int]:
    """The nodes worth a sentence: those refused for their free amounts come first."""
    ranked: list[ReasonCode] = [code for code in LEADING if code in codes]
    ranked += [code for code in codes if code not in ranked]
    share = max(1, EXAMPLES // max(len(ranked), 1))
    return [index for code in ranked for index in codes[code][:share]]
