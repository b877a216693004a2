"""What the books say follows from the facts, whatever the order they came in."""

from collections.abc import Sequence

import pytest

from partage.inventory.ledger import UNCHECKED, Ledger, Suspicion
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType, Topology
from partage.model.errors import LedgerError
from partage.model.node import Node
from partage.model.reason import ReasonCode
from partage.model.request import Scope
from partage.testing.builders import GIB, card, make_node

GPU = DeviceType.GPU


def grant(minor: int, uuid: str | None = None, **fields: object) -> Grant:
    """A share of half a card."""
    base = {"core_milli": 500, "memory_bytes": 8 * GIB, "mode": GrantMode.SHARE} | fields
    name = f"GPU-{minor}" if uuid is None else uuid
    return Grant("c", GPU, minor, name, **base)  # type: ignore[arg-type]


def held(uid: str, *grants: Grant, node: str = "node-1", **host: int) -> Allocation:
    """What a pod holds."""
    return Allocation(uid, "default", uid, node, grants, host)


def ledger_of(*nodes: Node, pods: Sequence[Allocation] = ()) -> Ledger:
    """Books of these nodes and pods."""
    ledger = Ledger()
    for node in nodes:
        ledger.upsert_node(node)
    for allocation in pods:
        ledger.apply(allocation)
    return ledger


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["named first", "nameless first"])
def test_a_nameless_record_never_joins_a_named_ghost(order: tuple[int, int]) -> None:
    """Two records of vanished card 9, one without UUID, make two ghosts in either order."""
    facts = [held("a", grant(9, "GPU-X")), held("b", grant(9, ""))]

    ledger = ledger_of(make_node(devices=[card(0)]), pods=[facts[i] for i in order])

    ledger.validate()
    ghosts = [c for c in ledger.cards(GPU, 0) if c.device.minor == 9]
    assert sorted(c.device.uuid for c in ghosts) == ["", "GPU-X"]
    assert all(c.closed is ReasonCode.UNHEALTHY for c in ghosts)
