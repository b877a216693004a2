"""Whether waiting can help a pod: would a node host it if nothing else ran there?

The exact rule is asked about one node of each shape, so the answer is that of a decision. Only a person's question has
this cost, because decisions never ask.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Ints
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Strategy
from partage.model.reason import NodeReason, ReasonCode
from partage.placement.card import MOST, MOST_A_NODE, Work
from partage.placement.node import opened, shortage
from partage.placement.pod import place
from partage.scheduler.engine import Engine

_MOST_SHAPES: Final = 64
"""The most different nodes for one question."""

_SEEN_A_UNIT: Final = 4
"""Nodes whose shapes are compared for one unit of work."""


def fits_when_idle(engine: Engine, pod: Pod, work: Work | None = None) -> bool | None:
    """Whether any node would host the pod if it were empty, healthy and open.

    Args:
        work: the work done before, to which this adds; None if nothing is counted. It ends at a decision's limit.

    Returns:
        None if there are too many different nodes.
    """
    work = work or Work()
    before = work.taken
    nodes: Ints = np.flatnonzero(engine.accepting_opened(pod))
    for number, node in enumerate(_shapes(engine.ledger, pod, nodes, work)):
        if number == _MOST_SHAPES or work.taken > before + MOST:
            return None
        mine = Work(MOST_A_NODE)
        found = _found(node, pod, engine.policy.card, mine)
        work.aside += mine.done
        if found is None:
            return None
        if found:
            return True
    return False


def _shapes(ledger: Ledger, pod: Pod, nodes: Ints, work: Work) -> Iterator[Node]:
    """One of these nodes of each shape, without temporary states."""
    seen: set[object] = set()
    filters = {group.request.filter for group in pod.request.groups}
    named = {
        index
        for one in filters
        for uuid in (*one.use_uuids, *one.avoid_uuids)
        for _, index, _ in ledger.at_uuid(uuid)
    }
    types = sorted({group.request.type for group in pod.request.groups})
    totals = [ledger.planes[type_].totals(nodes) for type_ in types]
    for number, index in enumerate(nodes.tolist()):
        if not number % _SEEN_A_UNIT:
            work.aside += 1
        cards, node = [next(one) for one in totals], ledger.node_at(index)
        shape = index if index in named else (*cards, ledger.trees.get(index), *_rest(node, pod))
        if shape not in seen:
            seen.add(shape)
            yield opened(node)


def recovered(node: Node) -> Node:
    """The node once nothing temporary is wrong with it or its devices."""
    healthy = tuple(
        replace(device, healthy=True, health_detail="", cordoned=False, doubt="")
        for device in node.devices
    )
    return replace(opened(node), devices=healthy)


def _rest(node: Node, pod: Pod) -> tuple[object, ...]:
    """The node's resources beside cards that the pod finds once the node is idle."""
    room = tuple([node.allocatable.get(name) for name in pod.host])
    tables = tuple(node.partitions), node.honour_partitions, tuple(node.templates.items())
    return room, tables, node.single_numa


def _found(node: Node, pod: Pod, strategy: Strategy, work: Work) -> bool | None:
    """Whether the node, idle, hosts the pod; None if the search was given up."""
    idle = Ledger()
    idle.upsert_node(recovered(node))
    if shortage(pod.host, idle.host_left(0, pod.host)) is not None:
        return False
    cards = {type_: idle.cards(type_, 0) for type_ in DeviceType}
    found = place(node, cards, pod.request, strategy, work=work)
    if not isinstance(found, NodeReason):
        return True
    return None if found.code is ReasonCode.SEARCH_LIMIT else False
