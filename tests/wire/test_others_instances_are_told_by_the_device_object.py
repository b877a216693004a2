"""What a Device object says of instances that are not Partage's; what cannot be read closes cards."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import card as entry
from manifests import cluster, config_map, device, node

from partage.model.device import Device, ForeignInstance, SliceMode
from partage.model.mig import MigSlice
from partage.vendors import names
from partage.wire.foreign import OnCard, decode_foreign, encode_foreign

A100 = {
    "node.koordinator.sh/gpu-vendor": "nvidia",
    "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
}
HIGH = {"profile": "3g.40gb", "start": 4, "size": 4, "uuids": ["MIG-1"]}


def devices(written: str | None, mode: str = "mig", *, cards: int = 2) -> tuple[Device, ...]:
    """The cards of a node whose Device object carries the annotation."""
    meta: dict[str, Any] = {"labels": A100}
    if written is not None:
        meta["annotations"] = {names.FOREIGN_INSTANCES: written}
    config = {"nodeconfig": [{"name": "n1", "operatingmode": mode}]}
    (found,) = cluster(
        device("n1", *(entry(i, "80Gi") for i in range(cards)), meta=meta),
        node(),
        config_map("hami-device-plugin", **{"config.json": json.dumps(config)}),
    ).nodes
    return found.devices


def annotation(*instances: Any, uuid: str = "GPU-0", **more: Any) -> str:
    """The annotation with these entries of one card."""
    return json.dumps({"v": 1, "cards": {uuid: {"instances": list(instances), **more}}})


def test_an_instance_is_read_with_its_place() -> None:
    """Its card has it; the other card has none."""
    first, second = devices(annotation(HIGH))

    assert first.foreign == (ForeignInstance(MigSlice("3g.40gb", 4, 4), ("MIG-1",)),)
    assert (first.mode, first.doubt) == (SliceMode.MIG, "")
    assert (second.foreign, second.doubt) == ((), "")


@pytest.mark.parametrize("written", [None, '{"v":1,"cards":{}}'])
def test_nothing_told_is_nothing_there(written: str | None) -> None:
    """No other program cuts cards there, or none was cut."""
    assert all((one.foreign, one.doubt) == ((), "") for one in devices(written))


def test_a_drivers_rounding_of_names_is_understood() -> None:
    """Drivers have printed 3g.39gb for 3g.40gb; the place tells that it is the same."""
    first, _ = devices(annotation({**HIGH, "profile": "3g.39gb"}))

    assert [one.instance for one in first.foreign] == [MigSlice("3g.40gb", 4, 4)]
    assert first.doubt == ""


IMPOSSIBLE = [
    pytest.param([{**HIGH, "profile": "profile 99"}], "no MIG profile", id="profile"),
    pytest.param([{**HIGH, "start": 2}], "cannot take 4 units from unit 2", id="start"),
    pytest.param([{**HIGH, "size": 3}], "cannot take 3 units", id="size"),
    pytest.param(
        [HIGH, {**HIGH, "profile": "2g.20gb", "size": 2}], "both take unit 4", id="twice"
    ),
    pytest.param([HIGH, HIGH], "both take unit 4", id="same"),
]


@pytest.mark.parametrize(("instances", "why"), IMPOSSIBLE)
def test_what_cannot_be_closes_its_card(instances: list[Any], why: str) -> None:
    """It closes no other."""
    first, second = devices(annotation(*instances))

    assert why in first.doubt
    assert second.doubt == ""


ODD = [
    pytest.param({"instances": [{"profile": "1g.10gb"}]}, id="no place"),
    pytest.param({"instances": [{**HIGH, "start": -1}]}, id="negative"),
    pytest.param({"instances": [{**HIGH, "more": 1}]}, id="a field of another version"),
    pytest.param({"unknown": "the driver does not answer"}, id="unknown"),
    pytest.param(None, id="null"),
    pytest.param([HIGH], id="list"),
]


@pytest.mark.parametrize("mode", ["mig", "hami-core", "either"])
@pytest.mark.parametrize("value", ODD)
def test_an_odd_entry_closes_its_card(value: Any, mode: str) -> None:
    """The mode of the card does not matter; the other card stays open."""
    first, second = devices(json.dumps({"v": 1, "cards": {"GPU-0": value}}), mode)

    assert first.doubt.startswith("its instances are not known")
    assert second.doubt == ""


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{", '{"v":2,"cards":{}}', '{"cards":{}}', "{}"]
)
def test_an_odd_annotation_closes_every_card(text: str) -> None:
    """Another version, or no annotation of ours at all; a note says so."""
    found = devices(text)

    assert all("cannot be read" in one.doubt for one in found)


def test_a_card_that_an_operator_must_switch_gives_no_instances() -> None:
    """It takes no pod in mode mig and is shared in mode either; nothing changes for a card that is not cut."""
    off = json.dumps({"v": 1, "cards": {"GPU-0": {"uncuttable": "MIG mode is off: an operator"}}})

    mig, either, shared = (devices(off, mode)[0] for mode in ("mig", "either", "hami-core"))

    assert (mig.mode, mig.doubt) == (SliceMode.MIG, "MIG mode is off: an operator")
    assert (either.mode, either.cutting, either.doubt) == (SliceMode.SHARE, None, "")
    assert (shared.mode, shared.doubt) == (SliceMode.SHARE, "")
    assert devices(off, "mig")[1].doubt == ""


@given(st.text())
def test_no_text_is_a_traceback(text: str) -> None:
    """Something is said, or the whole annotation is odd."""
    told, problem = decode_foreign(text)

    assert problem or isinstance(told, dict)


_ONE = st.builds(
    ForeignInstance,
    st.builds(MigSlice, st.text(min_size=1, max_size=9), st.integers(0, 15), st.integers(1, 16)),
    st.lists(st.text(max_size=9), max_size=2).map(tuple),
)
_CARDS = st.dictionaries(
    st.text(max_size=9),
    st.builds(
        OnCard, st.lists(_ONE, max_size=3).map(tuple), st.text(max_size=20), st.text(max_size=20)
    ),
    max_size=3,
)


@given(_CARDS)
def test_what_is_told_comes_back(cards: dict[str, OnCard]) -> None:
    """Cards without a report are left out."""
    told, problem = decode_foreign(encode_foreign(cards))

    assert problem == ""
    assert told == {uuid: one for uuid, one in cards.items() if one != OnCard()}


@pytest.mark.parametrize(
    ("mode", "closed"), [("hami-core", True), ("mig", False), ("either", False)]
)
def test_a_card_in_mig_mode_is_not_shared_by_software(mode: str, *, closed: bool) -> None:
    """A process could use it only through an instance, and nothing makes any there."""
    config = {"nodeconfig": [{"name": "n1", "operatingmode": mode}]}
    told = {names.MIG_MODE: names.MIG_ENABLED, "kept": "yes"}
    (found,) = cluster(
        device("n1", entry(0, "80Gi", labels=told), entry(1, "80Gi"), meta={"labels": A100}),
        node(),
        config_map("hami-device-plugin", **{"config.json": json.dumps(config)}),
    ).nodes
    switched, other = found.devices

    assert ("MIG mode" in switched.doubt) is closed
    assert other.doubt == ""
    assert dict(switched.labels) == {"kept": "yes"}, "the mode of the moment makes no other card"
