"""A node with many devices widens the books of all; nothing is decided otherwise for it, and no pod costs much more."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import feasible
from fakes.builders import card, make_node, make_pod, share, whole
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.model.request import DeviceRequest
from partage.placement import greedy, kernel
from partage.scheduler import classes
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeGone, NodeSeen, Placement

SMALL = 40
POLICIES = ("partage", "binpack", "spread", "first-fit", "random", "bestfit", "fgd")
REQUESTS = st.lists(
    st.sampled_from(
        (
            share(20),
            share(35, 30),
            share(60),
            share(10, 3, count=3),
            share(1, 1, count=20),
            whole(),
            whole(2),
            whole(18),
        )
    ),
    min_size=1,
    max_size=6,
)


def machine(name: str, cards: int) -> Node:
    """A node with cards of its own size, so that hardly two are alike."""
    size = 16 + int(name[1:]) % 7
    return make_node(name, [card(minor, memory=size, prefix=name) for minor in range(cards)])


def fleet(large: int) -> list[Node]:
    """Small nodes, and two among them that have more cards."""
    return [
        machine(f"n{number}", large if number in (7, 23) else 2 + number % 3)
        for number in range(SMALL)
    ]


@contextmanager
def looking_at_all() -> Iterator[None]:
    """The books are asked in their whole width."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "narrowed", lambda _: None)
        yield


def story(policy: str, pods: list[list[DeviceRequest]], large: int) -> list[object]:
    """What is decided of these pods one after another, and what could be; a large node comes and goes."""
    engine, told = Engine(Policy.parse(policy)), []
    for node in fleet(large):
        engine.handle(NodeSeen(node))
    for number, requests in enumerate(pods):
        pod = make_pod(f"p{number}", *requests)
        decision = engine.schedule(pod)
        told.append(decision)
        told.append(feasible(engine, make_pod(f"q{number}", *requests)))
        if number == 2:
            engine.handle(NodeSeen(machine("n3", large)))
        if number == 3:
            engine.handle(NodeGone("n7"))
    engine.ledger.validate()
    return told


@given(
    st.sampled_from(POLICIES),
    st.lists(REQUESTS, min_size=2, max_size=6),
    st.sampled_from((17, 40)),
)
def test_nothing_is_decided_otherwise(
    policy: str, pods: list[list[DeviceRequest]], large: int
) -> None:
    """Places, scores and refusals to the letter, by each policy."""
    with looking_at_all():
        plain = story(policy, pods, large)

    assert story(policy, pods, large) == plain
    assert any(isinstance(one, Placement | Refusal) for one in plain)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Cells of the columns that are looked at, for groups one by one."""
    cells = [0]
    fitting, taking_all = kernel.fitting, greedy.taking_all

    def counting(
        ledger: Ledger, request: DeviceRequest, suits: Bools, nodes: kernel.Nodes, *more: object
    ) -> object:
        cells[0] += kernel.at(suits, nodes).size
        return fitting(ledger, request, suits, nodes, *more)  # type: ignore[arg-type]

    def trying(ledger: Ledger, kinds: object, suits: object, nodes: object) -> object:
        cells[0] += ledger.planes[DeviceType.GPU].cards * nodes.size * len(kinds)  # type: ignore[attr-defined, arg-type]
        return taking_all(ledger, kinds, suits, nodes)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "fitting", counting)
        patch.setattr(classes, "taking_all", trying)
        yield cells


def cells_of(large: int) -> int:
    """What a pod of thirty kinds takes that no node has room for, with so many cards on one of a hundred nodes."""
    engine = Engine()
    for number in range(100):
        engine.handle(NodeSeen(machine(f"n{number}", large if number == 50 else 16)))
    pod = make_pod("hard", *[share(50 + number, count=8) for number in range(30)])
    with counted() as cells:
        assert isinstance(engine.schedule(pod), Refusal)
    return cells[0]


def test_one_large_node_makes_no_pod_dear() -> None:
    """It costs what its own cards do."""
    assert cells_of(64) < 1.2 * cells_of(16)
    with looking_at_all():
        assert cells_of(64) > 3 * cells_of(16)
