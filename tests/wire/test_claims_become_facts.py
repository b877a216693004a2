"""What an allocated ResourceClaim holds is read in base units, and nothing that cannot be read counts as free."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim_documents import AXIS, GIB, card, claim, document, node, result, share
from partage.inventory.ledger import Ledger
from partage.model.allocation import GrantMode
from partage.model.device import DeviceType, SliceMode
from partage.model.errors import InvalidDocument
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.scheduler.facts import fact_of, rebuild
from partage.wire.claims import Claim, instance_name, read_claim, share_name
from partage.wire.documents import decode

NODE = node()


def read(manifest: dict[str, Any], there: Node | None = NODE) -> Claim:
    """The claim, beside one node."""
    nodes = {} if there is None else {there.name: there}
    return read_claim(document(manifest), nodes.get)


def booked(found: Claim, there: Node = NODE) -> Ledger:
    """A ledger with the node and what the claim holds of it."""
    return rebuild([there], found.facts())


def room(ledger: Ledger, minor: int = 0, name: str = "n1") -> tuple[int, int] | None:
    """Compute and memory that is left of a card; None where it is closed."""
    cards = ledger.cards(DeviceType.GPU, ledger.index[name])
    (found,) = [one for one in cards if one.device.minor == minor]
    return None if found.closed is not None else (found.core_free, found.memory_free)


def test_a_share_is_what_its_consumed_capacity_says() -> None:
    """Percent become thousandths of a card and a quantity bytes, under the claim's uid and the card's uuid."""
    found = read(claim(share(shareID="s1"), reservedFor=[{"resource": "pods", "name": "web"}]))

    (fact,) = found.facts()
    assert (fact.uid, fact.key, fact.node, fact.claim) == ("claim-x", "team/x", "n1", True)
    (grant,) = found.records["n1"].grants
    assert (grant.container, grant.minor, grant.uuid) == ("gpu", 0, "GPU-0")
    assert (grant.core_milli, grant.memory_bytes, grant.mode) == (300, 10 * GIB, GrantMode.SHARE)
    assert found.problems == ()
    assert found.consumers == ("web",)
    assert found.classes == ("share.gpu.partage.io",)
    assert room(booked(found)) == (700, 30 * GIB)


@given(st.integers(0, 10**12), st.integers(0, 10**15))
def test_amounts_are_rounded_against_the_claim(nano: int, milli: int) -> None:
    """A claim never holds less in the books than what the API server says that it consumes."""
    found = read(claim(share(cores=f"{nano}n", memory=f"{milli}m")))

    (grant,) = found.records["n1"].grants
    cores, memory = Fraction(nano, 10**9) * 10, Fraction(milli, 1000)
    assert 0 <= grant.core_milli - cores < 1
    assert 0 <= grant.memory_bytes - memory < 1


def test_a_device_that_is_not_shared_is_all_of_its_card() -> None:
    """Without consumed capacity, as with the gate off, Kubernetes gives a device to one claim alone."""
    (grant,) = read(claim(result())).records["n1"].grants

    assert (grant.core_milli, grant.memory_bytes, grant.mode) == (1000, 40 * GIB, GrantMode.WHOLE)
    assert room(booked(read(claim(result())))) is None


@pytest.mark.parametrize("profile", [one.name for one in AXIS.profiles])
def test_an_instance_is_its_profile_at_its_start(profile: str) -> None:
    """Names of devices say which instance it is, also where profiles differ by a sign."""
    there = AXIS.profile(profile).at(2)
    found = read(claim(result(instance_name(2, there))))

    (grant,) = found.records["n1"].grants
    assert (grant.mig, grant.mode, found.problems) == (there, GrantMode.MIG, ())
    assert grant.memory_bytes == AXIS.profile(profile).memory_bytes


def test_every_place_of_an_instance_has_a_name_of_its_own() -> None:
    """Two devices of one name would be one to the API server, which refuses the slice."""
    names = [instance_name(0, one) for one in AXIS.positions]

    assert len({*names, share_name(0)}) == len(names) + 1
    assert instance_name(3, MigSlice("1g.10gb", 4, 1)) == "gpu-3-mig-1g-10gb-4"


def test_devices_of_others_and_access_for_administrators_take_nothing() -> None:
    """Another driver's pool may bear the node's name; access for administrators does not use a device up."""
    assert read(claim(result(driver="gpu.nvidia.com"))).facts() == ()
    watching = read(claim(share(adminAccess=True)))
    assert watching.facts() == ()
    assert watching.problems == ()


def test_what_is_not_allocated_holds_nothing() -> None:
    """A claim that waits, and one that was released."""
    assert read(claim()).facts() == ()
    assert read(claim(reservedFor=[])).facts() == ()


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a word for an amount": (
        share(cores="many"),
        "consumedCapacity.cores: 'many' is not a quantity",
    ),
    "less than nothing": (
        share(memory="-1Gi"),
        "consumedCapacity.memory: -1Gi is negative",
    ),
    "a list for an amount": (share(cores=["1"]), "consumedCapacity.cores: no quantity"),
    "one dimension": (result(consumedCapacity={"cores": "1"}), "consumedCapacity.memory: missing"),
    "no map": (result(consumedCapacity=[1]), "consumedCapacity: no object"),
    "twice": (
        result(consumedCapacity={"cores": "1", "gpu.partage.io/cores": "2", "memory": "1Gi"}),
        "consumedCapacity.cores: given twice",
    ),
    "an instance of a card for shares": (result("gpu-0-mig-1g-10gb-0"), "no such instance"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_not_understood_takes_its_whole_card(what: str) -> None:
    """The fault names claim, request, device and rule; the other cards of the node stay open."""
    given_, rule = FAULTS[what]
    found = read(claim(given_))

    (problem,) = found.problems
    assert problem.startswith("ResourceClaim team/x: request gpu: device gpu-0")
    assert rule in problem
    ledger = booked(found)
    assert room(ledger, 0) is None
    assert room(ledger, 1) == (1000, 40 * GIB)


@pytest.mark.parametrize("name", ["gpu", "gpu-", "gpu-01", "gpu-0-mig-", "card-0", "gpu-1234567"])
def test_a_name_that_no_device_has_closes_the_cards_of_its_node(name: str) -> None:
    """It is not known which card is meant, so it may be any."""
    found = read(claim(share(name)))

    ledger = booked(found)
    assert [room(ledger, minor) for minor in (0, 1, 2)] == [None] * 3
    assert name in found.problems[0]
    closed = ledger.cards(DeviceType.GPU, 0)[0].closed_detail
    assert closed == "a pod or claim on the node has a record that cannot be trusted"


def test_an_instance_that_the_card_does_not_have_takes_all_of_it() -> None:
    """Its units are not known, so no other instance can be made beside it."""
    found = read(claim(result("gpu-2-mig-7g-80gb-0")))

    assert "no such instance" in found.problems[0]
    assert room(booked(found), 2) is None


def test_a_card_that_is_not_there_is_told_and_counted_once_it_comes() -> None:
    """A claim may be seen before its node, or outlive its card."""
    found = read(claim(share("gpu-7")))
    assert "there is no such card" in found.problems[0]

    early = read(claim(share()), None)
    assert early.problems == ()
    ledger = rebuild([], early.facts())
    ledger.upsert_node(NODE)
    ledger.validate()
    assert room(ledger) == (700, 30 * GIB)


def test_a_device_that_was_given_twice_counts_twice() -> None:
    """Kubernetes' scheduler has done so; the second of the two is not free."""
    found = read(claim(share(shareID="s"), share(shareID="s")))
    assert "allocated twice" in found.problems[0]
    assert room(booked(found)) == (400, 20 * GIB)

    apart = read(claim(share(shareID="s"), share(shareID="t")))
    assert apart.problems == ()
    assert room(booked(apart)) == (400, 20 * GIB)


def test_more_devices_than_a_claim_can_have_close_the_node() -> None:
    """The work of reading a claim is bounded, and what was not read is not free."""
    found = read(claim(*(share(shareID=str(number)) for number in range(33))))

    assert "33 devices are more than the 32 of a claim" in found.problems[0]
    assert room(booked(found), 1) is None
    elsewhere = read(claim(*(share(shareID=str(one)) for one in range(33)), share(pool="n2")))
    assert elsewhere.records["n2"].problem == "34 devices are more than the 32 of a claim"

    whole = read(claim(*(share(cores="1", shareID=str(number)) for number in range(32))))
    assert whole.problems == ()


def test_a_result_that_cannot_be_read_closes_the_cards_of_its_node() -> None:
    """It may hold any of them, unless it names another driver."""
    found = read(claim(share(), share("gpu-1", request=7, pool="n2")))
    assert "results[1]: field request" in found.problems[0]
    assert found.records["n2"].problem in found.problems[0]
    assert read(claim(share(request=7, driver="gpu.nvidia.com"))).records == {}


def test_a_claim_on_two_nodes_holds_on_both() -> None:
    """No scheduler of Kubernetes allocates so; a user may write it by hand."""
    found = read(claim(share(), share(pool="n2")))

    one, other = found.facts()
    assert (one.uid, one.node) == ("claim-x", "n1")
    assert (other.uid, other.node) == ("claim-x/n2", "n2")
    assert fact_of(other)[0].holder == "claim team/x"


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ("request", "driver", "pool", "device", "shareID", "adminAccess", "consumedCapacity")


@given(
    st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=7) | JSON, max_size=4), JSON
)
def test_no_allocation_is_a_traceback(results: list[Any], status: Any) -> None:
    """Anything may stand where an allocation is expected."""
    manifest = claim(*results)
    read(manifest)
    manifest["status"] = {"allocation": status, "reservedFor": status}
    read(manifest)
    manifest["status"] = status
    if status is None or isinstance(status, dict):
        read(manifest)
        return
    with pytest.raises(InvalidDocument, match="status"):
        decode("x.json", json.dumps(manifest).encode())


@given(st.dictionaries(st.sampled_from(FIELDS[4:]), JSON, max_size=3), st.integers(0, 2))
def test_no_spoilt_result_frees_its_card(spoilt: dict[str, Any], minor: int) -> None:
    """A result that names a card of the node takes all of it, unless its amounts can be read or it takes none."""
    given_ = {**share(f"gpu-{minor}"), **spoilt}
    if given_.get("adminAccess") is True:
        return
    found = read(claim(given_))
    there = node("n1", card(0), card(1), card(2, mode=SliceMode.EITHER))
    ledger = booked(found, there)

    left = room(ledger, minor)
    if isinstance(given_["consumedCapacity"], dict) and not found.problems and found.records:
        assert left is None or (left[0] <= 1000 and left[1] <= 40 * GIB)
    elif found.records:
        assert left is None
    else:
        assert found.problems  # it is reported, and no API server keeps it
