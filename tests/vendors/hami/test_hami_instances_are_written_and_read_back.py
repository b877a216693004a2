"""Both of HAMi's records of hardware instances: exact, inverse, and closed when in doubt."""

import pytest
from msgspec import structs

from partage.model.allocation import Allocation, Charge, Grant, GrantMode, charges_of
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.request import PodRequest
from partage.vendors import names
from partage.vendors.base import ContainerView, PlacedPod, PodView
from partage.vendors.families.hami.bounds import CardFacts, cutting_of
from partage.vendors.families.hami.result import recover, render
from partage.vendors.settings import HamiSettings, MigGeometry, Settings

MIB = 1 << 20
TABLE = MigGeometry(
    ("A100-SXM4-40GB",),
    (
        (("1g.5gb", 5120, 7),),
        (("2g.10gb", 10240, 3), ("1g.5gb", 5120, 1)),
        (("3g.20gb", 20480, 2),),
    ),
)
BOUNDED = Settings(hami=HamiSettings(geometries=(TABLE,)))
LISTED = Settings(hami=HamiSettings(geometries=(TABLE,), mig_record="allocations"))
FREE = Settings()
FIRST = MigSlice("2g.10gb", 4, 2)
SECOND = MigSlice("1g.5gb", 6, 1)


def node(settings: Settings) -> Node:
    """A node with one A100 of 40 GB in mode mig."""
    facts = CardFacts("NVIDIA A100-SXM4-40GB", "", 40960 * MIB, 1000)
    cutting, _ = cutting_of(facts, settings.hami)
    card = Device(
        DeviceType.GPU,
        0,
        "GPU-0",
        vendor="nvidia",
        model=facts.model,
        memory_bytes=facts.memory_bytes,
        mode=SliceMode.MIG,
        cutting=cutting,
    )
    return Node("n", devices=(card,))


def grant(instance: MigSlice, settings: Settings) -> Grant:
    """The grant of an instance, in the units that the records keep."""
    cutting = node(settings).devices[0].cutting
    assert cutting is not None
    profile = cutting.axis.profile(instance.profile)
    return Grant(
        "main",
        DeviceType.GPU,
        0,
        "GPU-0",
        profile.core_milli // 10 * 10,
        profile.memory_bytes // MIB * MIB,
        GrantMode.MIG,
        protocol="hami",
        mig=instance,
    )


def written(settings: Settings, *instances: MigSlice) -> dict[str, str]:
    """What is written on a pod with these instances."""
    view = PodView("default", "p", uid="u", containers=(ContainerView("main"),))
    grants = tuple(grant(one, settings) for one in instances)
    placed = PlacedPod(
        view, PodRequest(), Allocation("u", "default", "p", "n", grants), node(settings), 0
    )
    return dict(render(placed, settings).annotations)


def read(settings: Settings, annotations: dict[str, str]) -> Record:
    """What is read from a bound pod with these annotations."""
    view = PodView(
        "default",
        "p",
        uid="u",
        node="n",
        annotations=annotations,
        containers=(ContainerView("main"),),
    )
    record = recover(view, node(settings), settings)
    assert record is not None
    return record


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(BOUNDED, id="suffix"),
        pytest.param(LISTED, id="list"),
        pytest.param(FREE, id="no-table"),
    ],
)
def test_what_is_written_is_read_back(settings: Settings) -> None:
    """The very instances, at their places, with each record that the settings may ask for."""
    record = read(settings, written(settings, FIRST, SECOND))

    assert record.problem == ""
    assert record.grants == (grant(FIRST, settings), grant(SECOND, settings))


def test_the_suffix_names_geometry_and_slot() -> None:
    """The 2g is the first of its kind; the 1g is found in the first geometry."""
    annotations = written(BOUNDED, FIRST, SECOND)

    text = "GPU-0[1-0],NVIDIA,10240,28:GPU-0[0-0],NVIDIA,5120,14:;"
    assert annotations[names.HAMI_ALLOCATED] == text
    assert names.HAMI_MIG_ALLOCATIONS not in annotations


def test_an_instance_of_no_geometry_is_listed() -> None:
    """A suffix cannot name it, so the exact list is written beside the plain UUID."""
    annotations = written(BOUNDED, MigSlice("3g.20gb", 4, 4), MigSlice("2g.10gb", 2, 2))
    assert names.HAMI_MIG_ALLOCATIONS not in annotations

    annotations = written(FREE, FIRST)
    assert annotations[names.HAMI_ALLOCATED].startswith("GPU-0,NVIDIA,")
    assert annotations[names.HAMI_MIG_ALLOCATIONS] == (
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-0","profile":"2g.10gb",'
        '"placement":{"start":4,"size":2}}]'
    )


def _list(**changes: object) -> str:
    fields = {
        "containerIndex": 0,
        "deviceIndex": 0,
        "gpuUUID": "GPU-0",
        "profile": "2g.10gb",
        "placement": {"start": 4, "size": 2},
        **changes,
    }
    return f"[{str(fields).replace(chr(39), chr(34))}]"


DOUBTFUL = [
    pytest.param("{}", "malformed JSON", id="no-list"),
    pytest.param(_list(placement={"start": 0, "size": 0}), "malformed JSON", id="no-size"),
    pytest.param(_list(profile=""), "malformed JSON", id="no-profile"),
    pytest.param(_list(migUUID="MIG-1"), "in part", id="part-of-an-identity"),
    pytest.param(_list(gpuUUID="GPU-9"), "GPU-9", id="another-card"),
    pytest.param(f"[{_list()[1:-1]},{_list()[1:-1]}]", "is there twice", id="one-position-twice"),
]


@pytest.mark.parametrize(("text", "problem"), DOUBTFUL)
def test_a_list_that_cannot_be_trusted_is_a_problem(text: str, problem: str) -> None:
    """Nothing of such a record is believed."""
    annotations = {
        names.HAMI_ALLOCATED: "GPU-0,NVIDIA,9856,28:;",
        names.HAMI_MIG_ALLOCATIONS: text,
    }

    record = read(FREE, annotations)

    assert record.grants == ()
    assert problem in record.problem


def test_what_the_plugin_adds_is_read() -> None:
    """The identity of the instance that HAMi's plugin made does no harm."""
    text = _list(migUUID="MIG-1", gpuInstanceID=3, computeInstanceID=0)
    annotations = {
        names.HAMI_ALLOCATED: "GPU-0,NVIDIA,9856,28:;",
        names.HAMI_MIG_ALLOCATIONS: text,
    }

    assert read(FREE, annotations).grants[0].mig == FIRST


@pytest.mark.parametrize("uuid", ["GPU-0", "GPU-0[7-0]"])
def test_an_instance_without_a_place_takes_its_card(uuid: str) -> None:
    """Case 50: its place is unknown, so nothing is made on that card."""
    record = read(BOUNDED, {names.HAMI_ALLOCATED: f"{uuid},NVIDIA,10240,28:;"})

    (charge,) = charges_of(record.grants)
    assert record.grants[0].mode is GrantMode.MIG
    assert charge.exclusive


def test_a_slot_is_not_believed_beside_our_own_record() -> None:
    """The table may have changed since; ours has the exact place."""
    annotations = written(BOUNDED, FIRST) | {names.ALLOCATION: "{}"}

    assert read(BOUNDED, annotations).grants[0].mig is None


def test_charges_keep_every_instance() -> None:
    """Two instances of one card are one charge that has both; an init container reuses its own."""
    grants = (grant(FIRST, FREE), grant(SECOND, FREE))

    (charge,) = charges_of(grants)

    assert isinstance(charge, Charge)
    assert charge.instances == (FIRST, SECOND)
    assert charge.slots == 2
    assert not charge.exclusive
    assert structs.replace(charge, instances=()).memory_bytes == sum(
        g.memory_bytes for g in grants
    )
