"""What pods hold of a card is withdrawn from what claims are offered of it, never less than that."""

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from claim_documents import AXIS, GIB, card, node
from partage.agent.dra.withdrawn import HELD, BoundPods, Charges, left_for_claims, without_unknown
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.documents import Document, decode
from partage.wire.translation import Translation


def held(minor: int = 0, core: int = 300, memory: int = 10 * GIB, **more: object) -> Grant:
    """A grant of a pod."""
    given_ = {"mode": GrantMode.SHARE, "protocol": "hami", **more}
    return Grant("main", DeviceType.GPU, minor, f"GPU-{minor}", core, memory, **given_)  # type: ignore[arg-type]


def left(*grants: Grant, there: Node | None = None, minor: int = 0) -> Device:
    """A card as claims may use it, each grant being a pod of its own."""
    pods = [Allocation(f"u{n}", "ns", f"p{n}", "n1", (one,)) for n, one in enumerate(grants)]
    found = left_for_claims(there or node(), pods)
    return next(one for one in found.devices if one.minor == minor)


def test_shares_of_pods_are_taken_off() -> None:
    """Compute, memory and sharers; other cards are as they were."""
    mine = left(held(), held(core=250))

    assert (mine.core_milli, mine.memory_bytes, mine.slots) == (450, 20 * GIB, 98)
    assert left(held(), minor=1) == card(1)
    assert left_for_claims(node(), []) is not None


def test_a_record_without_a_uuid_is_found_by_its_number() -> None:
    """Koordinator's own record knows no more; one with another card's uuid is not this card's."""
    nameless = Grant("main", DeviceType.GPU, 0, "", 300, GIB, GrantMode.SHARE)
    assert left(nameless).core_milli == 700
    assert left(Grant("main", DeviceType.GPU, 0, "GPU-9", 300, GIB, GrantMode.SHARE)) == card(0)


def test_a_card_that_a_pod_has_alone_takes_no_claim() -> None:
    """It keeps its name and amounts, with the reason why it takes no claim."""
    for taken in (
        held(mode=GrantMode.WHOLE),
        held(exclusive=True),
        held(core=1000),
        held(memory=40 * GIB),
        held(sharers=1),
    ):
        mine = left(taken)
        assert (mine.doubt, mine.core_milli, mine.memory_bytes) == (HELD, 1000, 40 * GIB)
    assert (
        left(held(mode=GrantMode.WHOLE), there=node("n1", replace(card(0), doubt="lost"))).doubt
        == "lost"
    )


def test_a_card_that_can_be_cut_is_what_pods_made_of_it() -> None:
    """It takes shares alone beside a pod's share, and instances alone beside a pod's instance, as the books have it."""
    either = node("n1", card(0, mode=SliceMode.EITHER))
    place = AXIS.profile("2g.20gb").at(2)

    shared = left(held(), there=either)
    assert (shared.mode, shared.cutting, shared.core_milli) == (SliceMode.SHARE, None, 700)
    cut = left(held(mode=GrantMode.MIG, mig=place), there=either)
    assert (cut.mode, [one.instance for one in cut.foreign]) == (SliceMode.MIG, [place])
    assert left(held(mode=GrantMode.MIG), there=either).doubt == HELD
    both = left(held(), held(mode=GrantMode.MIG, mig=place), there=either)
    assert both.doubt == HELD


SHARES = st.builds(
    held,
    minor=st.integers(0, 1),
    core=st.integers(0, 1100),
    memory=st.integers(0, 45 * GIB),
    slots=st.integers(0, 3),
    sharers=st.none() | st.integers(1, 4),
    exclusive=st.sampled_from([False] * 4 + [True]),
)
PLACES = [MigSlice(one.profile, one.start, one.size) for one in AXIS.positions]
INSTANCES = st.builds(
    lambda one: held(2, 250, 10 * GIB, mode=GrantMode.MIG, mig=one), st.sampled_from(PLACES)
)


@given(st.lists(SHARES | INSTANCES, max_size=5))
def test_a_card_offers_no_more_than_the_books_have_left(grants: list[Grant]) -> None:
    """The ledger's own sums are the measure: what is offered is what is free there, or nothing."""
    ledger = Ledger()
    there = node("n1", card(0), card(1), card(2, mode=SliceMode.MIG))
    ledger.upsert_node(there)
    pods = [Allocation(f"u{n}", "ns", f"p{n}", "n1", (one,)) for n, one in enumerate(grants)]
    for one in pods:
        ledger.apply(one)
    offered = {one.minor: one for one in left_for_claims(there, pods).devices}
    for mine in ledger.cards(DeviceType.GPU, 0):
        card_ = offered[mine.device.minor]
        if mine.closed is not None and card_.mode is SliceMode.SHARE:
            assert card_.doubt == HELD
        elif card_.mode is SliceMode.SHARE and not card_.doubt:
            assert (card_.core_milli, card_.memory_bytes) == (mine.core_free, mine.memory_free)
            assert card_.slots == mine.slots_free
        elif card_.mode is SliceMode.MIG and not card_.doubt:
            assert {one.instance for one in card_.foreign} == set(mine.instances)


def pods(*manifests: dict[str, Any]) -> list[Document]:
    """Pods of the node, as the API server has them."""
    lines = b"\n".join(json.dumps(one).encode() for one in manifests)
    return list(decode("pods.json", lines).documents)


def whole(name: str, **annotations: str) -> dict[str, Any]:
    """A running pod that asks for a card by Koordinator's names."""
    container = {"name": "main", "resources": {"limits": {"koordinator.sh/gpu": "100"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"phase": "Running"},
    }


def offered(*manifests: dict[str, Any], claims: Iterable[Allocation] = ()) -> list[int] | None:
    """Numbers of the cards of two that claims may use beside pods; None where nothing is known to be free."""
    there = node("n1", card(0), card(1))
    found = BoundPods(Translation(Context.of(Settings()))).held(pods(*manifests), there)
    if found is None:
        return None
    known = without_unknown(there, [*found.allocations, *claims], found.unknown)
    left = left_for_claims(known, found.allocations)
    return [one.minor for one in left.devices if not one.doubt]


def test_pods_that_another_scheduler_placed_are_withdrawn_too() -> None:
    """The service counts them too; otherwise claims would be allocated on their cards, and refused, again and again."""
    amounts = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    record = json.dumps({"gpu": [{"minor": 0, "resources": amounts}]})
    theirs = whole("theirs", **{names.DEVICE_ALLOCATED: record})

    assert offered(theirs) == [1]
    assert offered({**theirs, "status": {"phase": "Succeeded"}}) == [0, 1]
    assert offered(whole("odd", **{names.DEVICE_ALLOCATED: "{"})) is None
    assert offered(whole("odd", **{names.ALLOCATION: "{"})) is None


def test_a_pod_without_a_record_closes_the_card_that_the_service_closes() -> None:
    """It closes as many idle cards as it asks for, and none that a claim holds; pods without devices close nothing."""
    plain = {**whole("plain"), "spec": {"nodeName": "n1", "containers": [{"name": "main"}]}}
    mine = Allocation("c", "ns", "c", "n1", (held(),))

    assert offered(plain) == [0, 1]
    assert offered(whole("bare"), plain) == [1]
    assert offered(whole("bare"), claims=[mine]) == [0]
    assert offered(whole("bare"), whole("another")) == []


@given(
    st.lists(st.lists(st.integers(0, 11), unique=True), max_size=6),
    st.lists(SHARES | INSTANCES, min_size=12, max_size=12),
)
def test_sums_that_are_kept_are_those_made_afresh(
    rounds: list[list[int]], grants: list[Grant]
) -> None:
    """Whatever comes and goes between two looks."""
    there = node("n1", card(0), card(1), card(2, mode=SliceMode.MIG))
    all_ = [Allocation(f"u{n}", "ns", f"p{n}", "n1", (one,)) for n, one in enumerate(grants)]
    kept = Charges()
    for numbers in rounds:
        now = [all_[number] for number in numbers]
        assert left_for_claims(there, now, kept) == left_for_claims(there, now)


def test_a_change_of_a_pod_costs_no_look_at_all_others_and_all_claims() -> None:
    """With thousands of containers the event loop answers the runtime between two changes of pods."""
    there = node("n1", card(0), card(1))
    claims = [
        Allocation(f"c{n}", "ns", f"c{n}", "n1", (held(core=1, memory=1),)) for n in range(4000)
    ]
    amounts = {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10"}
    record = json.dumps({"gpu": [{"minor": 1, "resources": amounts}]})
    many = pods(*(whole(f"p{n}", **{names.DEVICE_ALLOCATED: record}) for n in range(50)))
    bound, charges = BoundPods(Translation(Context.of(Settings()))), Charges()

    def look(those: list[Document]) -> int:
        calls = 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            found = bound.held(those, there)
            assert found is not None
            left = left_for_claims(there, [*found.allocations, *claims], charges)
        finally:
            sys.setprofile(None)
        assert left.devices[0].core_milli < 1000 or left.devices[0].doubt
        return calls

    first = look(many)
    assert look([*many[1:], *pods(whole("new", **{names.DEVICE_ALLOCATED: record}))]) < first / 20
    assert look(many[2:]) < first / 20
