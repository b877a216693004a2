"""A Device object tells what its cards can be cut into by their own driver."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import card as entry
from manifests import cluster, config_map, device, node

from partage.model.device import Device
from partage.vendors import names
from partage.vendors.mig import MIG_CARDS
from partage.wire.mig_profiles import decode_axes, encode_axes

A100 = {
    "node.koordinator.sh/gpu-vendor": "nvidia",
    "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
}


def devices(written: str) -> tuple[Device, ...]:
    """The cards of a node in mode mig whose Device object carries the annotation."""
    meta: dict[str, Any] = {"labels": A100, "annotations": {names.MIG_PROFILES: written}}
    config = {"nodeconfig": [{"name": "n1", "operatingmode": "mig"}]}
    (found,) = cluster(
        device("n1", entry(0, "80Gi"), entry(1, "80Gi"), meta=meta),
        node(),
        config_map("hami-device-plugin", **{"config.json": json.dumps(config)}),
    ).nodes
    return found.devices


@pytest.mark.parametrize("model", sorted(MIG_CARDS))
def test_what_is_told_comes_back(model: str) -> None:
    """Every model: names, places, amounts, engines and kinds; cards that are alike share an entry."""
    axis = MIG_CARDS[model].axis
    text = encode_axes({"GPU-a": axis, "GPU-b": axis})

    told, problem = decode_axes(text)

    assert problem == ""
    assert len(json.loads(text)["axes"]) == 1
    for profile, same in zip(told["GPU-b"].profiles, axis.profiles, strict=True):
        for field in (
            "name",
            "compute",
            "size",
            "starts",
            "memory_bytes",
            "core_milli",
            "count",
            "engines",
            "attributes",
        ):
            assert getattr(profile, field) == getattr(same, field)


def test_it_counts_before_the_published_table() -> None:
    """It counts for its own card; the other one goes by the table."""
    axis = MIG_CARDS["A100-80GB"].axis
    text = encode_axes({"GPU-0": axis}).replace("10200547328", str(9 << 30))

    first, second = devices(text)

    assert first.cutting is not None
    assert second.cutting is not None
    assert first.cutting.axis.profile("1g.10gb").memory_bytes == 9 << 30
    assert second.cutting.axis.profile("1g.10gb").memory_bytes == 9728 << 20


ODD = [
    "",
    "{",
    "null",
    '{"v":2,"axes":[],"cards":{}}',
    '{"v":1,"axes":[],"cards":{"GPU-0":3}}',
    '{"v":1,"axes":[{"model":"x","profiles":[{"name":""}]}],"cards":{}}',
]


@pytest.mark.parametrize("text", ODD)
def test_what_cannot_be_read_leaves_the_table_in_force(text: str) -> None:
    """With published figures nothing is allocated twice; the agent refuses what its card cannot do."""
    first, _ = devices(text)

    assert first.axis is None
    assert first.cutting is not None
    assert first.cutting.axis.profile("1g.10gb").memory_bytes == 9728 << 20


@given(st.text())
def test_no_text_is_a_traceback(text: str) -> None:
    """Something is said, or the annotation is odd."""
    told, problem = decode_axes(text)

    assert problem or isinstance(told, dict)
