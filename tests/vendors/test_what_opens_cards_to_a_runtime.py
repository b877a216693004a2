"""Which variables, mounts and CDI names open cards to a vendor's container runtime, as the runtimes' sources say."""

import pytest

from partage.vendors.runtimes import cdi_names, listed, names_others, opening, opens, tells


@pytest.mark.parametrize(
    ("env", "found"),
    [
        pytest.param(("NVIDIA_VISIBLE_DEVICES=all",), ("NVIDIA_VISIBLE_DEVICES",), id="all"),
        pytest.param(("NVIDIA_VISIBLE_DEVICES=void",), (), id="closed"),
        pytest.param(("NVIDIA_VISIBLE_DEVICES=none",), (), id="closed by another word"),
        pytest.param(("CUDA_VERSION=9.0",), ("CUDA_VERSION",), id="a legacy image"),
        pytest.param(("CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA=cuda>=9"), (), id="a newer image"),
        pytest.param(("HABANA_VISIBLE_DEVICES=",), ("HABANA_VISIBLE_DEVICES",), id="empty is all"),
        pytest.param(("ASCEND_VISIBLE_DEVICES=",), (), id="empty is none"),
        pytest.param(("DOCKER_RESOURCE_GPU=0",), ("DOCKER_RESOURCE_GPU",), id="swarm's"),
        pytest.param(("PATH=/bin",), (), id="no runtime's"),
    ],
)
def test_variables(env: tuple[str, ...], found: tuple[str, ...]) -> None:
    """Those with a value that opens cards, and what legacy images do without any."""
    assert opens(env) == found
    assert all(tells(*one.split("=", 1)) for one in env if one.partition("=")[0] in found)


def test_a_variable_that_no_runtime_reads_is_none() -> None:
    """And one that only tells the age of an image opens nothing by itself."""
    assert opening("CUDA_VISIBLE_DEVICES") is None
    assert not tells("CUDA_VISIBLE_DEVICES", "0")
    assert tells("CUDA_VERSION", "12")


@pytest.mark.parametrize(
    ("value", "whole", "part"),
    [
        pytest.param("1", "", "", id="its number"),
        pytest.param("1, Ascend910-3 ,card-b", "", "", id="a list of its cards"),
        pytest.param("3-3", "", "", id="a range of one"),
        pytest.param("100", "'100'", "", id="a part"),
        pytest.param("2", "'2'", "'2'", id="another card"),
        pytest.param("1-3", "'1-3'", "'1-3'", id="a range with another card"),
        pytest.param("all", "'all'", "'all'", id="a word"),
        pytest.param("", "''", "''", id="nothing"),
    ],
)
def test_names_of_other_cards(value: str, whole: str, part: str) -> None:
    """Of a node with the cards 0 to 3, of which 1 and 3 are granted."""
    uuids, granted = {"card-b", "card-d"}, {1, 3}

    assert names_others(value, uuids, granted) == whole
    assert names_others(value, uuids, granted, {0, 2}) == part


def test_a_long_list_is_not_read() -> None:
    """A variable may have half a megabyte."""
    assert names_others("1," * 256, (), {1}) == "list of more than 256 cards"


def test_mounts_and_cdi_names() -> None:
    """A mount below NVIDIA's folder; a CDI name of a vendor's domain, of this node's kind, or of the agent's own."""
    assert listed(("/data", "/run/nvidia-container-devices/0")) == (
        "/run/nvidia-container-devices/0"
    )
    assert not listed(("/run/nvidia-container-devices-of-mine",))
    text = "nvidia.com/gpu=0, k8s.huawei.com/npu=1,a.org/net=b,own.example/card=2,partage.io/mig=3"
    annotations = {"cdi.k8s.io/x": text, "other": "nvidia.com/gpu=9"}

    assert list(cdi_names(annotations)) == ["nvidia.com/gpu=0", "k8s.huawei.com/npu=1"]
    assert list(cdi_names(annotations, "own.example/card", ("huawei",), ours=True)) == [
        "nvidia.com/gpu=0",
        "own.example/card=2",
        "partage.io/mig=3",
    ]
