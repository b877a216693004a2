"""The encoded devices of a pod, instance suffixes and kubelet IDs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.errors import InvalidRecord
from partage.vendors.families.hami.codec import (
    ContainerDevice,
    MigMark,
    decode_pod_devices,
    encode_pod_devices,
    parse_mig_uuid,
)

DEVICES = st.builds(
    ContainerDevice,
    uuid=st.text(min_size=1, max_size=20),
    memory_mib=st.integers(0, 10**10 - 1),
    cores=st.integers(0, 10**10 - 1),
    type=st.text(min_size=1, max_size=8),
)


@given(st.lists(st.lists(DEVICES, max_size=3).map(tuple), max_size=4).map(tuple))
def test_encode_then_decode_is_identity(
    containers: tuple[tuple[ContainerDevice, ...], ...],
) -> None:
    """Every list of containers comes back as it was, whatever the UUIDs hold."""
    assert decode_pod_devices(encode_pod_devices(containers)) == containers


@given(st.one_of(st.text(max_size=60), st.text(alphabet="GPU-a1,:;[]%2C", max_size=60)))
def test_any_text_decodes_or_is_refused(text: str) -> None:
    """A text that decodes says the same again once encoded; no other error leaves."""
    try:
        devices = decode_pod_devices(text)
    except InvalidRecord:
        return

    assert decode_pod_devices(encode_pod_devices(devices)) == devices


@pytest.mark.parametrize(
    ("containers", "text"),
    [
        pytest.param([[ContainerDevice("GPU-1f", 3000, 30)]], "GPU-1f,NVIDIA,3000,30:;", id="one"),
        pytest.param(
            [[], [ContainerDevice("GPU-1f", 3000, 0)]], ";GPU-1f,NVIDIA,3000,0:;", id="second-only"
        ),
        pytest.param(
            [[ContainerDevice("GPU-1f[1-1]", 10240, 28)]],
            "GPU-1f[1-1],NVIDIA,10240,28:;",
            id="instance",
        ),
        pytest.param(
            [[ContainerDevice("a", 1, 2), ContainerDevice("b", 3, 4)], []],
            "a,NVIDIA,1,2:b,NVIDIA,3,4:;;",
            id="two-devices",
        ),
        pytest.param([], "", id="nothing"),
    ],
)
def test_published_texts(containers: list[list[ContainerDevice]], text: str) -> None:
    """The exact texts of the published protocol, both ways."""
    assert encode_pod_devices(containers) == text
    assert decode_pod_devices(text) == tuple(map(tuple, containers))


@pytest.mark.parametrize(
    "text",
    [
        "GPU,NVIDIA,1,1:",
        "GPU,NVIDIA,1,1;",
        "GPU,NVIDIA,1:;",
        "GPU,NVIDIA,1,1,1:;",
        ",NVIDIA,1,1:;",
        "GPU,,1,1:;",
        "GPU,NVIDIA,-1,1:;",
        "GPU,NVIDIA,1,x:;",
        "GPU,NVIDIA,1,1::;",
        "GPU,NVIDIA,1,99999999999:;",
        "GPU,NVIDIA,\u0661,1:;",
        "x" * 500,
    ],
)
def test_malformed_texts_are_refused_with_the_part_at_fault(text: str) -> None:
    """The message is short and quotes what was found."""
    with pytest.raises(InvalidRecord) as caught:
        decode_pod_devices(text)

    assert len(str(caught.value)) < 200


def test_an_instance_suffix_is_parsed() -> None:
    """`[geometry-slot]` behind the card's UUID."""
    assert parse_mig_uuid("GPU-x[1-2]") == MigMark("GPU-x", 1, 2)


@pytest.mark.parametrize(
    "text",
    ["GPU-x", "GPU-x1-2]", "GPU-x[1-2", "GPU-x[12]", "GPU-x[a-2]", "GPU-x[1-]", "[1-2]", ""],
)
def test_a_malformed_suffix_is_refused(text: str) -> None:
    """A missing bracket, dash or number."""
    with pytest.raises(InvalidRecord):
        parse_mig_uuid(text)
