"""A bound pod's records: ours first, a protocol's beside it checked, another's taken over."""

import dataclasses

import pytest
from manifests import (
    Manifest,
    card,
    cluster,
    config_map,
    container,
    device,
    node,
    only,
    pod,
)
from msgspec.structs import replace

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.pod import Record
from partage.vendors import names
from partage.vendors.base import Family, PodView
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.record import encode
from partage.wire.recovery import recover

NODE = Node("n1", devices=(Device(DeviceType.GPU, 0, "GPU-0", memory_bytes=2**34),))
GRANT = Grant("main", DeviceType.GPU, 0, "GPU-0", 500, 2**33, GrantMode.SHARE, protocol="one")
OTHER = replace(GRANT, minor=1, uuid="GPU-1")


def family(name: str, record: Record | None, *, adapts: bool = False) -> Family:
    """A family whose annotations say this."""
    owned = frozenset() if adapts else frozenset({f"{name}.io/gpu"})
    return Family(
        name, owned=lambda _settings: owned, recover=lambda _pod, _node, _settings: record
    )


def recovered(ours: tuple[Grant, ...] | None, *families: Family) -> Record | None:
    """What a pod with these records holds."""
    annotations = (
        {}
        if ours is None
        else {"partage.io/allocation": encode(Allocation("u", "d", "p", "n1", ours))}
    )
    view = PodView("d", "p", uid="u", node="n1", annotations=annotations)
    return recover(view, NODE, Context.of(Settings(), families))


def test_nothing_written_is_no_record() -> None:
    """The engine knows whether that matters."""
    assert recovered(None, family("one", None)) is None


def test_ours_alone_holds() -> None:
    """A vendor's plugin may have removed its keys."""
    assert recovered((GRANT,), family("one", None)) == Record((GRANT,), "partage")


def test_a_card_that_totals_told_of_is_the_one_of_its_index_once_it_is_known() -> None:
    """The same holds for a pod that another scheduler placed; an index that the node lacks stays unknown."""
    made, other = replace(GRANT, uuid="qgpu-n1-0"), replace(OTHER, uuid="qgpu-n1-1")

    assert recovered((made,), family("one", Record((GRANT,), "one"))) == Record(
        (GRANT,), "partage"
    )
    assert recovered((made, other)) == Record((GRANT, other), "partage")


@pytest.mark.parametrize(
    ("theirs", "problem"),
    [
        pytest.param((GRANT,), "", id="the same"),
        pytest.param((replace(GRANT, container=""),), "", id="no container"),
        pytest.param((replace(GRANT, core_milli=0, memory_bytes=0),), "", id="no amounts"),
        pytest.param(
            (replace(GRANT, core_milli=509, memory_bytes=2**33 - 2**20 + 1),),
            "",
            id="rounded to percent and MiB",
        ),
        pytest.param((replace(GRANT, uuid=""),), "", id="no uuid"),
        pytest.param(
            (replace(GRANT, uuid="GPU-9"),),
            "disagree on gpu 0: uuid GPU-0 and GPU-9",
            id="another card",
        ),
        pytest.param(
            (replace(GRANT, core_milli=510),),
            "disagree on gpu 0: 500 and 510 thousandths",
            id="compute",
        ),
        pytest.param(
            (replace(GRANT, memory_bytes=2**32),),
            "disagree on gpu 0: 8589934592 and 4294967296 bytes",
            id="memory",
        ),
        pytest.param(
            (OTHER,), "gpu 0 is in the record of partage.io/allocation and not of one", id="fewer"
        ),
        pytest.param(
            (GRANT, OTHER),
            "gpu 1 is in the record of one and not of partage.io/allocation",
            id="more",
        ),
    ],
)
def test_a_protocols_record_must_agree(theirs: tuple[Grant, ...], problem: str) -> None:
    """It must agree as far as both have the data; a disagreement keeps what we wrote, marked."""
    record = recovered((GRANT,), family("one", Record(theirs, "one")))

    assert record is not None
    assert record.grants == (GRANT,)
    assert problem in record.problem
    assert bool(record.problem) is bool(problem)


@pytest.mark.parametrize("said", [names.ADJUST, names.ENFORCED, ""])
@pytest.mark.parametrize("card", [0, 1])
def test_of_an_adjusted_pod_a_protocol_without_amounts_tells_its_cards(
    said: str, card: int
) -> None:
    """What it says of amounts is what was asked at first; the cards must be the same all the same."""
    theirs = replace(GRANT, minor=card, uuid=f"GPU-{card}", core_milli=300, memory_bytes=2**32)
    told = Record((theirs,), "one")
    one = dataclasses.replace(family("one", told), tells_amounts=False)
    ours = encode(Allocation("u", "d", "p", "n1", (GRANT,)))
    notes = {names.ALLOCATION: ours, said: "compute=50"}
    view = PodView("d", "p", uid="u", node="n1", annotations=notes)

    record = recover(view, NODE, Context.of(Settings(), [one]))
    strict = recover(view, NODE, Context.of(Settings(), [family("one", told)]))

    assert record is not None
    assert strict is not None
    assert bool(record.problem) is (card == 1 or not said)
    assert strict.problem


def test_containers_add_up_before_they_are_compared() -> None:
    """A protocol without containers tells the sum."""
    halves = tuple(replace(GRANT, container=c, core_milli=250, memory_bytes=2**32) for c in "ab")

    record = recovered(halves, family("one", Record((GRANT,), "one")))

    assert record == Record(halves, "partage")


@pytest.mark.parametrize(("told", "problem"), [(281, ""), (274, "570 and 548 thousandths")])
def test_each_part_may_be_rounded_on_its_own(told: int, problem: str) -> None:
    """Two parts of one card in percent may be off by nearly two percent together."""
    mine = tuple(replace(GRANT, container="a", core_milli=285) for _ in range(2))
    theirs = tuple(replace(grant, core_milli=told) for grant in mine)

    record = recovered(mine, family("one", Record(theirs, "one")))

    assert record is not None
    assert problem in record.problem
    assert bool(record.problem) is bool(problem)


def test_each_protocol_is_compared_with_its_own_part() -> None:
    """A pod may speak two."""
    second = replace(OTHER, protocol="two")

    record = recovered(
        (GRANT, second),
        family("one", Record((GRANT,), "one")),
        family("two", Record((second,), "two")),
    )

    assert record == Record((GRANT, second), "partage")


def test_a_vendors_copy_may_be_partial() -> None:
    """It repeats the cards of another protocol, and not its network devices."""
    network = replace(GRANT, type=DeviceType.RDMA, uuid="0000:1f")

    agreeing = recovered((GRANT, network), family("metax", Record((GRANT,), "metax"), adapts=True))
    wrong = recovered((GRANT,), family("metax", Record((OTHER,), "metax"), adapts=True))

    assert agreeing == Record((GRANT, network), "partage")
    assert wrong is not None
    assert "gpu 1" in wrong.problem


def test_a_malformed_record_beside_ours_is_a_problem() -> None:
    """It is unknown how its reader takes it."""
    record = recovered((GRANT,), family("one", Record(source="one", problem="annotation x: bad")))

    assert record == Record((GRANT,), "partage", "annotation x: bad")


def test_a_bad_record_of_ours_is_not_replaced_by_another() -> None:
    """It says that something is wrong, whatever the other says."""
    view = PodView("d", "p", uid="u", node="n1", annotations={"partage.io/allocation": "{"})

    record = recover(view, NODE, Context.of(Settings(), [family("one", Record((GRANT,), "one"))]))

    assert record is not None
    assert record.problem
    assert record.grants == ()


def test_foreign_pods_are_taken_over() -> None:
    """One protocol as it is, several together; a vendor's copy only where nothing else speaks."""
    one = family("one", Record((GRANT,), "one"))
    two = family("two", Record((OTHER,), "two", "odd"))
    copy = family("metax", Record((GRANT,), "metax"), adapts=True)

    assert recovered(None, one, copy) == Record((GRANT,), "one")
    assert recovered(None, copy) == Record((GRANT,), "metax")
    assert recovered(None, one, two) == Record((GRANT, OTHER), "one+two", "odd")


HAMI = {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,4096,30:;", "hami.io/vgpu-node": "n1"}
KOORDINATOR = {
    "scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0,"resources":'
    '{"kubernetes.io/gpu-core":"50","kubernetes.io/gpu-memory":"8Gi","kubernetes.io/gpu-memory-ratio":"50"}}]}'
}


@pytest.mark.parametrize(
    ("limits", "annotations", "source", "amounts"),
    [
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 30},
            HAMI,
            "hami",
            (300, 2**32),
            id="hami",
        ),
        pytest.param(
            {"kubernetes.io/gpu": 50}, KOORDINATOR, "koordinator", (500, 2**33), id="koordinator"
        ),
        pytest.param(
            {"nvidia.com/gpu": 1}, HAMI, "hami", (300, 2**32), id="lone count, by its record"
        ),
    ],
)
def test_documents_of_other_schedulers_are_taken_over(
    limits: Manifest, annotations: dict[str, str], source: str, amounts: tuple[int, int]
) -> None:
    """A bound pod of a running cluster, read with the real families."""
    found = only(
        node(),
        device("n1", card(0)),
        config_map(
            "hami-scheduler-device",
            device_config__yaml="nvidia: {defaultMemory: 4096, defaultCores: 30}",
        ),
        pod("p", container(limits=limits), meta={"annotations": annotations}, nodeName="n1"),
    )

    record = found.pod.record
    assert record is not None
    assert (record.source, record.problem) == (source, "")
    assert [(g.core_milli, g.memory_bytes) for g in record.grants] == [amounts]


@pytest.mark.parametrize(
    ("manifests", "has"),
    [
        pytest.param([pod("p", meta={"annotations": KOORDINATOR})], False, id="not bound"),
        pytest.param(
            [
                {
                    **pod("p", meta={"annotations": KOORDINATOR}, nodeName="n1"),
                    "status": {"phase": "Failed"},
                }
            ],
            False,
            id="over",
        ),
        pytest.param(
            [pod("p", meta={"annotations": KOORDINATOR}, nodeName="gone")],
            True,
            id="on an unknown node",
        ),
    ],
)
def test_only_running_pods_hold_anything(manifests: list[Manifest], *, has: bool) -> None:
    """A record on an unknown node is there, and a problem."""
    record = cluster(node(), device("n1"), *manifests).pods[0].pod.record

    assert (record is not None) is has
    assert record is None or record.problem
