"""A refusal gives a pod's reason, and not whose pods are in its way: these may be of other namespaces."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fakes.builders import GIB, card, make_node, make_pod, share
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.reason import Refusal
from partage.model.request import CardFilter, DeviceRequest
from partage.scheduler.engine import Engine
from partage.scheduler.events import Action, NodeSeen, PodSeen, Quarantined
from partage.vendors.families.hami.bounds import CardFacts, cutting_of
from partage.vendors.settings import HamiSettings

GPU = DeviceType.GPU
THEIRS = "blue-whale"
"""In every name of the others, and in what their records say."""


def theirs(number: int, record: Record | None, asks: DeviceRequest | None = None) -> Pod:
    """A bound pod of another namespace."""
    name = f"{THEIRS}-{number}"
    made = make_pod(name, asks if asks is not None else share(1), node="node-1")
    return replace(made, namespace=f"{THEIRS}-team", record=record)


def grant(**fields: object) -> Grant:
    """Most of card 0."""
    base = {"core_milli": 900, "memory_bytes": 12 * GIB, "mode": GrantMode.SHARE} | fields
    return Grant(f"{THEIRS}-main", GPU, 0, "GPU-0", **base)  # type: ignore[arg-type]


def told(refusal: Refusal) -> Iterator[str]:
    """All words of a refusal that anyone reads."""
    yield refusal.message
    for node in refusal.nodes.values():
        yield from (node.message, node.brief)
        for one in node.cards:
            yield one.detail


def cut_card() -> Device:
    """A card in MIG mode."""
    model = "NVIDIA A100-SXM4-40GB"
    cutting, _ = cutting_of(CardFacts(model, "", 40 * GIB, 1000), HamiSettings())
    assert isinstance(cutting, Cutting)
    return replace(
        card(0), model=model, memory_bytes=40 * GIB, mode=SliceMode.MIG, cutting=cutting
    )


INSTANCES = DeviceRequest(GPU, profile="7g", filter=CardFilter(modes=(SliceMode.MIG,)))
MADE = grant(
    mode=GrantMode.MIG,
    core_milli=428,
    memory_bytes=20 * GIB,
    mig=MigSlice("3g.20gb", 4, 4),
)

SHAPES: dict[str, tuple[Device, list[Pod], DeviceRequest]] = {
    "an instance": (cut_card(), [theirs(1, Record((MADE,)))], INSTANCES),
    "no record": (card(0), [theirs(1, None)], share(1)),
    "a record that says its pod": (
        card(0),
        [theirs(1, Record(problem=f"container {THEIRS}-main asks nothing"))],
        share(1),
    ),
    "less than nothing": (card(0), [theirs(1, Record((grant(core_milli=-1),)))], share(1)),
    "two on one card": (
        card(0),
        [theirs(1, Record((grant(),))), theirs(2, Record((grant(),)))],
        share(1),
    ),
    "shares": (card(0), [theirs(1, Record((grant(),)))], share(12)),
    "a whole card": (card(0), [theirs(1, Record((grant(exclusive=True),)))], share(1)),
}


@pytest.mark.parametrize(("device", "pods", "asks"), SHAPES.values(), ids=SHAPES)
def test_who_is_in_the_way_stays_unnamed(
    device: Device, pods: list[Pod], asks: DeviceRequest
) -> None:
    """This holds for any cause that closes a card, and any name of the pod behind it."""
    engine = Engine()
    node: Node = make_node(devices=[device])
    actions: list[Action] = engine.handle(NodeSeen(node))
    for pod in pods:
        actions += engine.handle(PodSeen(pod))

    refusal = engine.schedule(make_pod("mine", asks, protocol="hami"))

    assert isinstance(refusal, Refusal)
    texts = [*told(refusal), *(one.brief for one in actions if isinstance(one, Quarantined))]
    assert texts
    assert not [text for text in texts if THEIRS in text]
    assert all(
        len(one.message) > len(one.brief) for one in actions if isinstance(one, Quarantined)
    )


def test_holders_of_ones_own_namespace_are_named() -> None:
    """A pod, and a claim; those of others are counted as such."""
    pod = Allocation("u", "team", "pod", "node-1")
    claim = replace_claim(pod)

    assert [pod.holder_for(one) for one in ("team", "else")] == [
        "team/pod",
        "a pod of another namespace",
    ]
    assert [claim.holder_for(one) for one in ("team", "else")] == [
        "claim team/pod",
        "a claim of another namespace",
    ]


def replace_claim(pod: Allocation) -> Allocation:
    """The same, held by a claim."""
    return Allocation(pod.uid, pod.namespace, pod.name, pod.node, claim=True)
