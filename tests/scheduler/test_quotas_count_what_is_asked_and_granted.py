"""Quotas count declared amounts before a decision and granted ones with it."""

from collections.abc import Mapping

import numpy as np
import pytest

from fakes.builders import GIB, card, make_node, make_pod, share
from partage.model.allocation import Grant, GrantMode, metered
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import ContainerAsk, DeviceRequest, Phase, PodRequest, RequestGroup
from partage.scheduler.decision import QuotaBook
from partage.scheduler.engine import Engine
from partage.scheduler.events import (
    BindFailed,
    NodeSeen,
    Placement,
    PodGone,
    PodSeen,
    Quota,
    Quotas,
    QuotasChanged,
)

MIB = 2**20
MEMORY, CORE = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"
METERS = ((MEMORY, "memory", MIB), (CORE, "core", 10))


def engine_of(hard: Mapping[str, int], *nodes: Node) -> Engine:
    """An engine whose default namespace has one quota."""
    engine = Engine()
    quotas = Quotas({"default": (Quota("gpus", tuple(hard.items())),)})
    engine.handle(QuotasChanged(quotas))
    for node in nodes or (make_node(devices=[card(0), card(1)]),):
        engine.handle(NodeSeen(node))
    return engine


def counted(
    name: str, *requests: DeviceRequest, phases: tuple[Phase, ...] = (), **fields: object
) -> Pod:
    """A pod whose requests are metered by memory and compute."""
    groups = tuple(
        RequestGroup("hami", request, (ContainerAsk(f"c{i}", phase),), phase, metered=METERS)
        for i, (request, phase) in enumerate(
            zip(requests, phases or (Phase.MAIN,) * len(requests), strict=True)
        )
    )
    return make_pod(name, request=PodRequest(groups), **fields)


def test_declared_amounts_are_checked_before_anything_else() -> None:
    """A pod beyond its quota waits, and the message has all figures."""
    engine = engine_of({"requests.koordinator.sh/gpu-core": 100})
    quota = {"requests.koordinator.sh/gpu-core": 60}
    assert isinstance(engine.schedule(make_pod("a", share(60), quota=quota)), Placement)

    refused = engine.schedule(make_pod("b", share(60), quota=quota))

    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.QUOTA_EXCEEDED
    assert refused.message == (
        "quota gpus of namespace default: requests.koordinator.sh/gpu-core asked 60, used 60, "
        "limited to 100"
    )
    elsewhere = make_pod("c", share(40), quota=quota, namespace="other")
    assert isinstance(engine.schedule(elsewhere), Placement)


def test_granted_amounts_are_checked_with_the_decision() -> None:
    """A share of the card's memory counts in MiB of the card that was chosen."""
    engine = engine_of({MEMORY: 12 * 1024})
    assert isinstance(engine.schedule(counted("a", share(ratio=50))), Placement)
    assert engine.quotas.used("default")[MEMORY] == 8 * 1024

    refused = engine.schedule(counted("b", share(ratio=50)))

    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.QUOTA_EXCEEDED
    assert isinstance(engine.schedule(counted("c", share(ratio=25))), Placement)


def small(name: str, *minors: int) -> Node:
    """A node with cards of 4 GiB."""
    return make_node(name, devices=[card(m, memory=4, prefix=name) for m in minors])


@pytest.mark.parametrize("order", ["big first", "small first"])
def test_a_smaller_card_is_taken_where_the_best_goes_beyond_the_quota(order: str) -> None:
    """Half of a card counts what the card has; a pod that may have 4 GiB does not wait for a card of 4."""
    big = make_node("big", devices=[card(0, prefix="big")])
    nodes = [big, small("small", 0)]
    engine = engine_of({MEMORY: 4 * 1024}, *(nodes if order == "big first" else nodes[::-1]))

    found = engine.schedule(counted("a", share(ratio=50)))

    assert isinstance(found, Placement)
    assert found.allocation.node == "small"


def test_a_quota_that_no_card_meets_is_told_of_the_best() -> None:
    """This holds for any number of sizes of cards, and where none is left of the smaller ones."""
    big = make_node("big", devices=[card(0, prefix="big")])
    engine = engine_of({MEMORY: 1024}, big, small("one", 0, 1), small("two", 0))

    refused = engine.evaluate(counted("a", share(ratio=50)))

    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.QUOTA_EXCEEDED
    assert refused.message == (
        f"quota gpus of namespace default: {MEMORY} asked 8192, used 0, limited to 1024"
    )


def test_only_the_nodes_asked_about_are_taken_instead() -> None:
    """An extender's caller may have left the smaller card out."""
    big = make_node("big", devices=[card(0, prefix="big")])
    engine = engine_of({MEMORY: 4 * 1024}, big, small("small", 0))
    among = np.zeros(engine.ledger.present.shape[0], np.bool_)
    among[engine.ledger.index["big"]] = True

    refused = engine.evaluate(counted("a", share(ratio=50)), among=among)

    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.QUOTA_EXCEEDED
    assert among.sum() == 1  # what the caller gave is left alone


def test_an_explicit_nothing_blocks() -> None:
    """A hard limit of 0 refuses every pod that asks for the key, and no other."""
    engine = engine_of({MEMORY: 0})

    assert isinstance(engine.schedule(counted("a", share(memory=1))), Refusal)
    assert isinstance(engine.schedule(make_pod("b", share(memory=1))), Placement)


@pytest.mark.parametrize("end", [BindFailed("uid-a"), PodGone("uid-a")], ids=["refused", "gone"])
def test_what_was_counted_is_given_back(end: BindFailed | PodGone) -> None:
    """A pod that is gone or was not bound counts no more."""
    engine = engine_of({MEMORY: 1024})
    engine.schedule(counted("a", share(memory=1)))
    assert isinstance(engine.evaluate(counted("b", share(memory=1))), Refusal)

    engine.handle(end)

    assert isinstance(engine.evaluate(counted("b", share(memory=1))), Placement)
    assert not engine.quotas.used("default")


def test_bound_pods_count_by_their_record() -> None:
    """A pod seen bound counts what its record says, once however often it is seen."""
    engine = engine_of({MEMORY: 4096})
    pod = counted("a", share(memory=1))
    grant = Grant("c0", DeviceType.GPU, 0, "GPU-0", 0, 3 * GIB, GrantMode.SHARE, protocol="hami")
    seen = PodSeen(
        Pod(pod.uid, "default", "a", node="node-1", request=pod.request, record=Record((grant,)))
    )

    engine.handle(seen)
    engine.handle(seen)

    assert engine.quotas.used("default")[MEMORY] == 3072


@pytest.mark.parametrize(
    ("phases", "memory", "core"),
    [
        pytest.param((Phase.MAIN, Phase.MAIN), 5 * 1024, 30, id="side by side"),
        pytest.param((Phase.MAIN, Phase.INIT), 3 * 1024, 20, id="one after the other"),
        pytest.param((Phase.SIDECAR, Phase.INIT), 5 * 1024, 30, id="beside a sidecar"),
    ],
)
def test_containers_count_as_in_the_books(
    phases: tuple[Phase, Phase], memory: int, core: int
) -> None:
    """Init containers count by maximum, the others by sum."""
    pod = counted("a", share(10, 3), share(20, 2), phases=phases)

    found = engine_of({}, make_node(devices=[card(0)])).evaluate(pod)

    assert isinstance(found, Placement)
    assert metered(pod.request, found.allocation.grants) == {MEMORY: memory, CORE: core}


def test_meters_round_up_and_look_at_their_own_grants_only() -> None:
    """A byte beyond a unit counts a unit; other types, containers and protocols count nothing."""
    pod = counted("a", share(memory=1))
    mine = Grant("c0", DeviceType.GPU, 0, "G", 1, MIB + 1, GrantMode.SHARE, protocol="hami")
    others = (
        Grant("c0", DeviceType.RDMA, 0, "N", 9, MIB, GrantMode.SHARE, protocol="hami"),
        Grant("c1", DeviceType.GPU, 0, "G", 9, MIB, GrantMode.SHARE, protocol="hami"),
        Grant("c0", DeviceType.GPU, 0, "G", 9, MIB, GrantMode.SHARE, protocol="qgpu"),
    )

    assert metered(pod.request, (mine, *others)) == {MEMORY: 2, CORE: 1}
    assert metered(make_pod("b", share(1)).request, (mine,)) == {}


def test_a_book_counts_a_pod_once() -> None:
    """Counting again replaces; undoing what is not counted does nothing."""
    book = QuotaBook()
    book.apply("a", "ns", {"x": 2})
    book.apply("a", "ns", {"x": 3})
    book.undo("b")

    assert book.used("ns") == {"x": 3}
    assert book.used("none") == {}
    book.quotas = Quotas({"ns": (Quota("q", (("x", 4), ("y", 1))),)})
    assert book.excess("ns", {"x": 2})
    assert not book.excess("ns", {"x": 1, "z": 100})


def test_namespaces_that_come_and_go_leave_nothing() -> None:
    """A cluster has a new one for each test that its users run."""
    book = QuotaBook()
    for number in range(20):
        namespace = f"ci-{number}"
        for pod in range(3):
            book.apply(f"{number}-{pod}", namespace, {"x": pod + 1})
        assert book.used(namespace) == {"x": 6}
        book.apply(f"{number}-0", namespace, {"x": 10})
        assert book.used(namespace) == {"x": 15}
        for pod in range(3):
            book.undo(f"{number}-{pod}")
        assert not book.used(namespace)

    assert not any((book.counted, book._used, book._changes, book._pods))
