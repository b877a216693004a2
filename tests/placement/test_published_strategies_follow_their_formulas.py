from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_formulas import Asked, State, best_fit, clustering, dot_product, fgd, frag, packing

from drawn import sampled
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.policy import Strategy
from partage.model.request import DeviceRequest
from partage.placement import kernel
from partage.placement.fragmentation import Gauge, Lens, Shape, Workload, fragmentation
from partage.placement.node import BEYOND_SCORES, Scene, card_scores, node_scores
from partage.placement.tables import Tables

MODELS = ("A10", "A100", "T4")
EVERY_NODE = slice(None)

shapes = st.builds(
    Shape,
    cpu_milli=st.integers(0, 12) | st.integers(0, 96).map(lambda n: n * 1000),
    core_milli=st.sampled_from([0, 50, 250, 333, 500, 810, 1000]),
    count=st.sampled_from([1, 1, 2, 4]),
    models=st.sampled_from(["", "", "A10", "A10|T4", "A100|A100", "|"]),
)
workloads = st.lists(shapes, min_size=1, max_size=60).map(Workload.of)
asks = st.one_of(
    st.builds(Asked, st.integers(0, 20_000), st.just(0), st.just(0)),
    st.builds(Asked, st.integers(0, 20_000), st.just(1), st.integers(1, 999)),
    st.builds(Asked, st.integers(0, 20_000), st.sampled_from([1, 2, 4]), st.just(1000)),
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Ledger, list[State]]:
    """Nodes with pods on them, in the ledger and as plain states."""
    ledger, states = Ledger(), []
    for number in range(draw(st.integers(1, 5))):
        model, cards = draw(sampled(MODELS)), draw(st.integers(1, 8))
        cpu = draw(st.integers(1, 128)) * 1000
        devices = tuple(
            Device(DeviceType.GPU, i, f"{number}/{i}", model=model) for i in range(cards)
        )
        ledger.upsert_node(Node(f"n{number}", allocatable={"cpu": cpu}, devices=devices))
        left, kinds = [1000] * cards, set()
        for pod in range(draw(st.integers(0, 4))):
            used, grants, kind = draw(_grants(f"{number}", left))
            asked = draw(st.integers(0, cpu // 4))
            cpu -= asked
            left = [a - b for a, b in zip(left, used, strict=True)]
            kinds |= {kind} if grants else set()
            allocation = Allocation(
                f"{number}-{pod}", "d", "p", f"n{number}", grants, {"cpu": asked}
            )
            ledger.apply(allocation)
        states.append(State(cpu, tuple(left), model, frozenset(kinds)))
    return ledger, states


@st.composite
def _grants(
    draw: st.DrawFn, node: str, left: list[int]
) -> tuple[list[int], tuple[Grant, ...], str]:
    """What one pod takes of a node's cards: a share, some idle cards, or nothing."""
    used = [0] * len(left)
    idle = [row for row, free in enumerate(left) if free == 1000]
    partial = [row for row, free in enumerate(left) if free > 1]
    choices = ["none", *(["share"] if partial else []), *(["whole"] if idle else [])]
    choice = draw(sampled(choices))
    rows: list[int] = []
    if choice == "share":
        row = draw(sampled(partial))
        used[row] = draw(st.integers(1, min(999, left[row])))
        rows = [row]
    elif choice == "whole":
        rows = idle[: draw(st.integers(1, len(idle)))]
        for row in rows:
            used[row] = 1000
    mode = GrantMode.WHOLE if choice == "whole" else GrantMode.SHARE
    grants = tuple(
        Grant("c", DeviceType.GPU, row, f"{node}/{row}", used[row], 0, mode) for row in rows
    )
    return used, grants, "share" if choice == "share" else f"{len(rows)}-gpu"


def _scene(ledger: Ledger, asked: Asked, gauge: Gauge | None = None) -> Scene:
    request = fits = None
    if asked.cards:
        whole = asked.milli == 1000
        request = DeviceRequest(DeviceType.GPU, asked.cards, asked.milli, whole=whole)
        suits = kernel.suited(ledger, request, "", EVERY_NODE)
        fits = kernel.fitting(ledger, request, suits, EVERY_NODE)
    host = {"cpu": asked.cpu}
    return Scene(ledger, host, request, fits, EVERY_NODE, Tables(), gauge)


def _hosts(state: State, asked: Asked) -> bool:
    return asked.cpu <= state.cpu and sum(x >= asked.milli for x in state.left) >= asked.cards


TWINS: list[tuple[Strategy, Callable[[State, Asked], int]]] = [
    (Strategy.BESTFIT, best_fit),
    (Strategy.DOTPROD, dot_product),
    (Strategy.GPUPACKING, packing),
    (Strategy.GPUCLUSTERING, clustering),
]


@pytest.mark.parametrize(("strategy", "twin"), TWINS, ids=[s.value for s, _ in TWINS])
@given(clusters(), asks)
def test_nodes_score_as_published(
    strategy: Strategy,
    twin: Callable[[State, Asked], int],
    cluster: tuple[Ledger, list[State]],
    asked: Asked,
) -> None:
    """Differences between nodes that can host the request are those of the formula."""
    ledger, states = cluster
    got = node_scores(_scene(ledger, asked), strategy)

    hosts = [index for index, state in enumerate(states) if _hosts(state, asked)]
    want = [twin(states[index], asked) for index in hosts]

    assert [int(got[i] - got[hosts[0]]) for i in hosts] == [w - want[0] for w in want]
    assert bool(((got >= 0) & (got < BEYOND_SCORES)).all())


@given(clusters(), asks, workloads)
def test_fgd_scores_as_published(
    cluster: tuple[Ledger, list[State]], asked: Asked, workload: Workload
) -> None:
    """Scores of nodes, together, few and one by one, and of cards equal those of the formula, to the last point."""
    ledger, states = cluster
    gauge = Gauge(workload, ledger)
    scene = _scene(ledger, asked, gauge)
    got = node_scores(scene, Strategy.FGD)

    for index, state in enumerate(states):
        if _hosts(state, asked):
            points, cards = fgd(state, asked, workload)
            assert int(got[index]) == points
            for others in ([0, len(states)], []):
                nodes = np.array([*others, index])
                fits = None if scene.fits is None else scene.fits[:, nodes]
                here = Scene(ledger, scene.host, scene.request, fits, nodes, Tables(), gauge)
                assert node_scores(here, Strategy.FGD).tolist() == got[nodes].tolist()
            if cards:
                assert card_scores(here, Strategy.FGD) == cards


@given(clusters(), workloads)
def test_fragmentation_is_summed_as_published(
    cluster: tuple[Ledger, list[State]], workload: Workload
) -> None:
    """Every bit of the sum is that of the published order of additions."""
    ledger, states = cluster
    plane = ledger.planes[DeviceType.GPU]
    left = np.where(plane.open, plane.core_free, 0)

    for nodes in (slice(None), slice(0, 3), slice(0, 1)):
        got = fragmentation(
            Lens.of(workload, ledger.models),
            ledger.host_free["cpu"][nodes],
            left[:, nodes],
            plane.kind[0, nodes],
        )
        assert got.tolist()[: len(states)] == [frag(s, workload) for s in states][: got.size]


@given(st.data())
def test_a_gauge_follows_the_ledger(data: st.DataObject) -> None:
    """After any changes a gauge says what a fresh one says."""
    ledger, states = data.draw(clusters())
    gauge = Gauge(data.draw(workloads), ledger)
    for step in range(3):
        index = data.draw(st.integers(0, len(states) - 1))
        uid = f"late-{step}"
        grant = Grant("c", DeviceType.GPU, 0, f"{index}/0", 10, 0, GrantMode.SHARE)
        match data.draw(sampled(["apply", "undo", "node"])):
            case "apply":
                ledger.apply(Allocation(uid, "d", "p", f"n{index}", (grant,), {"cpu": 100}))
            case "undo":
                ledger.undo(data.draw(sampled([a.uid for a in ledger.allocations()] or [""])))
            case "node":
                devices = (Device(DeviceType.GPU, 0, f"{index}/0", model="H100"),)
                ledger.upsert_node(Node(f"n{index}", allocatable={"cpu": 5000}, devices=devices))
        gauge.refresh()

        asked = data.draw(asks)
        mine = node_scores(_scene(ledger, asked, gauge), Strategy.FGD)
        fresh = node_scores(_scene(ledger, asked, Gauge(gauge.workload, ledger)), Strategy.FGD)
        assert mine.tolist() == fresh.tolist()


def test_the_usual_requests_cover_95_percent() -> None:
    """The most frequent shapes are kept until they cover 95 % of the pods; chances sum to 1."""
    common, rare, last = Shape(1000, 500, 1), Shape(2000, 0, 0), Shape(4000, 1000, 8)

    workload = Workload.of([last] * 4 + [common] * 56 + [rare] * 40)

    assert workload.shapes == (common, rare)
    assert workload.chances == ((56 / 100) / (96 / 100), (40 / 100) / (96 / 100))
    assert Workload.of([common, rare]).chances == (0.5, 0.5)
    assert Workload.of([]) == Workload()


def test_requests_that_all_differ_are_not_all_usual() -> None:
    """Each usual one costs time on every node; what is asked for often stays among them."""
    often = Shape(1000, 500, 1)

    workload = Workload.of([often, often, *(Shape(2000 + i, 500, 1) for i in range(10_000))])

    assert len(workload.shapes) == 256
    assert workload.shapes[0] == often
    assert sum(workload.chances) == pytest.approx(1.0)
    assert workload.chances[0] == pytest.approx(2 * workload.chances[1])


def test_no_cpu_counts_as_kubernetes_counts_it() -> None:
    """A shape that asks for no CPU is taken for one of 100 milli."""
    workload = Workload.of([Shape(0, 500, 1), Shape(100, 500, 1)])

    assert workload.shapes == (Shape(100, 500, 1),)


def test_fgd_without_usual_requests_takes_the_first_place() -> None:
    """All places are equal to it while it knows no mix."""
    ledger = Ledger()
    ledger.upsert_node(
        Node("n", devices=tuple(Device(DeviceType.GPU, i, f"{i}") for i in range(2)))
    )
    scene = _scene(ledger, Asked(0, 1, 500))

    assert node_scores(scene, Strategy.FGD).tolist()[:1] == [0]
    assert card_scores(scene, Strategy.FGD) == {}
    assert card_scores(_scene(ledger, Asked(0, 1, 1000)), Strategy.FGD) is None


def test_large_nodes_keep_their_order() -> None:
    """Nodes beyond the published size score lower and lower, never below zero."""
    ledger = Ledger()
    for number, cards in enumerate((8, 64, 512)):
        devices = tuple(Device(DeviceType.GPU, i, f"{number}/{i}") for i in range(cards))
        node = Node(f"n{number}", allocatable={"cpu": cards * 64_000}, devices=devices)
        ledger.upsert_node(node)

    for strategy in (Strategy.BESTFIT, Strategy.DOTPROD):
        score = node_scores(_scene(ledger, Asked(1000, 1, 500)), strategy).tolist()[:3]
        assert score == sorted(score, reverse=True)
        assert len(set(score)) == 3
        assert min(score) >= 0


def test_nodes_that_tell_no_cpu_are_scored_by_cards() -> None:
    """BestFit prefers the fuller node where CPU is not known."""
    ledger = Ledger()
    for number, cards in enumerate((8, 2)):
        devices = tuple(Device(DeviceType.GPU, i, f"{number}/{i}") for i in range(cards))
        ledger.upsert_node(Node(f"n{number}", devices=devices))

    score = node_scores(_scene(ledger, Asked(1000, 1, 500)), Strategy.BESTFIT)

    assert score[1] > score[0]
