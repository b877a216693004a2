"""What a pod's author and its predecessor leave behind does not make a grant larger than it is."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from partage.agent.container_edits import HostFacts, Instance
from partage.agent.injection import Injected, Place, Refusal, inject
from partage.agent.nri.messages import Container, PodSandbox
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import encode

GIB = 2**30
CARD = model.Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", memory_bytes=80 * GIB, slots=10)
PLACE = Place(Node("n1", devices=(CARD,)), Settings(), FAMILIES, HostFacts(lambda *_: Instance()))
SHARE = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, 30 * GIB, GrantMode.SHARE)


def _pod(grant: Grant, labels: Mapping[str, str] | None = None) -> PodSandbox:
    text = encode(Allocation("u", "team", "train", "n1", (grant,)))
    return PodSandbox("p", "train", "u", "team", labels or {}, {names.ALLOCATION: text})


def test_limits_of_ones_own_go_where_limits_are_given() -> None:
    """HAMi's library reads that of one card first, and Koordinator writes that of all cards."""
    wishes = ("CUDA_DEVICE_MEMORY_LIMIT_0=80g", "CUDA_DEVICE_SM_LIMIT_0=100", "A=b")
    share = structs.replace(SHARE, protocol="koordinator")
    pod = _pod(share, {names.GPU_ISOLATION_PROVIDER: "HAMi-core"})

    found = inject(pod, Container("c", "p", "main", env=wishes), PLACE, ())

    assert isinstance(found, Injected)
    assert found.given.env["CUDA_DEVICE_MEMORY_LIMIT"] == str(30 * GIB)
    assert found.removed == ("CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT_0")


def test_limits_that_stand_beside_no_others_stay() -> None:
    """The tenant of a whole card may limit itself further."""
    whole = structs.replace(SHARE, mode=GrantMode.WHOLE, protocol="koordinator")
    wishes = ("CUDA_DEVICE_MEMORY_LIMIT_0=1g",)

    found = inject(_pod(whole), Container("c", "p", "main", env=wishes), PLACE, ())

    assert isinstance(found, Injected)
    assert not found.removed


def test_a_pod_and_its_successor_of_the_same_name_both_count() -> None:
    """The first is still ending when the second has begun; together they leave too little of the card."""
    held = [Allocation(uid, "team", "web-0", "n1", (SHARE,)) for uid in ("old", "new")]

    found = inject(_pod(SHARE), Container("c", "p", "main"), PLACE, held)

    assert isinstance(found, Refusal)
    assert "held by team/web-0" in found.message


def test_a_card_that_has_another_identity_now_is_the_same() -> None:
    """An agent that asks another program may get it in other letters; a running container has the earlier one."""
    earlier = structs.replace(SHARE, uuid="gpu-0", mode=GrantMode.WHOLE, core_milli=1000)
    elsewhere = structs.replace(earlier, minor=1)

    found = inject(
        _pod(SHARE),
        Container("c", "p", "main"),
        PLACE,
        [Allocation("old", "team", "old", "n1", (earlier,))],
    )
    beside = inject(
        _pod(SHARE),
        Container("c", "p", "main"),
        PLACE,
        [Allocation("old", "team", "old", "n1", (elsewhere,))],
    )

    assert isinstance(found, Refusal)
    assert "held by team/old" in found.message
    assert isinstance(beside, Injected)


@pytest.mark.parametrize("protocol", ["koordinator", "hami"])
def test_a_card_that_has_another_number_now_is_found_by_its_identity(protocol: str) -> None:
    """The first card did not survive a boot: its neighbour has its number, and its files."""
    there = replace(CARD, uuid="GPU-1")
    place = Place(Node("n1", devices=(there,)), Settings(), FAMILIES, PLACE.host)
    lost, kept = (
        structs.replace(SHARE, minor=n, uuid=f"GPU-{n}", protocol=protocol) for n in range(2)
    )

    found = inject(_pod(kept), Container("c", "p", "main"), place, ())
    other = inject(_pod(lost), Container("c", "p", "main"), place, ())

    assert isinstance(found, Injected)
    assert found.given.files[0] == "/dev/nvidia0"
    assert found.given.env["NVIDIA_VISIBLE_DEVICES"] in {"0", "GPU-1"}
    assert found.allocation is not None
    assert found.allocation.grants == (kept,)
    assert isinstance(other, Refusal)
    assert "UnknownDevice" in other.message


def test_an_identity_that_two_cards_have_is_neither() -> None:
    """The record names the card by its number alone then."""
    twice = replace(CARD, minor=1)
    place = Place(Node("n1", devices=(twice, CARD)), Settings(), FAMILIES, PLACE.host)

    found = inject(_pod(structs.replace(SHARE, minor=1)), Container("c", "p", "main"), place, ())

    assert isinstance(found, Refusal)
