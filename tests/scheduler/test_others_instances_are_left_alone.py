"""Instances that Partage did not make take their places, engines and amounts, and no pod is put on them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.allocation import Grant, GrantMode
from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, ForeignInstance, SliceMode
from partage.model.mig import MigSlice, layouts
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import CardFilter, ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, PodGone, PodSeen
from partage.vendors.families.hami.bounds import CardFacts, cutting_of
from partage.vendors.settings import HamiSettings

GIB = 1 << 30
MODEL = "NVIDIA A100-SXM4-40GB"
HIGH, LOW = MigSlice("3g.20gb", 4, 4), MigSlice("3g.20gb", 0, 4)
WHOLE = DeviceRequest(DeviceType.GPU, core_milli=1000, memory_milli=1000, whole=True)
SHARE = DeviceRequest(DeviceType.GPU, memory_bytes=4 * GIB)


def _cutting() -> Cutting:
    found, _ = cutting_of(CardFacts(MODEL, "", 40 * GIB, 1000), HamiSettings())
    assert found is not None
    return found


CUTTING = _cutting()
NAMES = frozenset({"1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"})
LAYOUTS = ((), *layouts(CUTTING.axis, NAMES))


def card(*others: MigSlice, mode: SliceMode = SliceMode.MIG, minor: int = 0) -> Device:
    """A card on which others have made these."""
    return Device(
        DeviceType.GPU,
        minor,
        f"GPU-{minor}",
        "nvidia",
        MODEL,
        memory_bytes=40 * GIB,
        mode=mode,
        slots=10,
        cutting=None if mode is SliceMode.SHARE else CUTTING,
        foreign=tuple(ForeignInstance(one) for one in others),
    )


def engine_of(*cards: Device) -> Engine:
    """An engine with one node."""
    engine = Engine()
    engine.handle(NodeSeen(Node("n", devices=cards)))
    return engine


def pod(name: str, request: DeviceRequest) -> Pod:
    """A pod of one container."""
    group = RequestGroup("hami", request, (ContainerAsk("main"),))
    return Pod(name, "default", name, request=PodRequest((group,)))


def ask(profile: str, **more: object) -> DeviceRequest:
    """One instance of a profile."""
    wanted = CardFilter(modes=(SliceMode.MIG,))
    request = DeviceRequest(DeviceType.GPU, profile=profile, instances=True, filter=wanted)
    return replace(request, **more)  # type: ignore[arg-type]


def bound(name: str, one: MigSlice) -> Pod:
    """A pod that is there already, by its record."""
    grant = Grant("main", DeviceType.GPU, 0, "GPU-0", 428, 20 * GIB, GrantMode.MIG, mig=one)
    return replace(pod(name, ask("3g")), node="n", record=Record((grant,), "hami"))


def placed(engine: Engine, name: str, request: DeviceRequest) -> tuple[Grant, ...]:
    """What a pod is given."""
    decision = engine.schedule(pod(name, request))
    assert isinstance(decision, Placement), decision
    engine.audit()
    return decision.allocation.grants


def refused(engine: Engine, name: str, request: DeviceRequest) -> Refusal:
    """Why a pod is given nothing."""
    decision = engine.schedule(pod(name, request))
    assert isinstance(decision, Refusal), decision
    engine.audit()
    return decision


def test_the_place_is_taken_and_the_refusal_says_by_what() -> None:
    """One 3g goes beside the other's; the next one waits."""
    engine = engine_of(card(HIGH))

    (grant,) = placed(engine, "a", ask("3g"))
    refusal = refused(engine, "b", ask("3g"))

    assert grant.mig == LOW
    assert refusal.code is ReasonCode.MIG_PLACEMENT
    assert refusal.message.endswith(
        "needs 3g.20gb (start 0 or 4), blocked by 3g.20gb at 0, an instance that partage did not "
        "make at 4)"
    )


def test_a_whole_card_is_one_without_others() -> None:
    """A pod that wants all of a card goes to the card that is empty, or waits."""
    whole = replace(ask(""), core_milli=1000, memory_milli=1000, whole=True)

    (grant,) = placed(engine_of(card(HIGH), card(minor=1)), "a", whole)
    refusal = refused(engine_of(card(HIGH)), "b", whole)

    assert grant.uuid == "GPU-1"
    assert "needs 7g.40gb (start 0), blocked by an instance that partage did not make at 4" in (
        refusal.message
    )


@pytest.mark.parametrize("mode", [SliceMode.SHARE, SliceMode.EITHER])
@pytest.mark.parametrize("request_", [WHOLE, SHARE], ids=["whole", "share"])
def test_no_share_and_no_whole_card_beside_others(
    mode: SliceMode, request_: DeviceRequest
) -> None:
    """A card with instances runs programs in instances alone."""
    refusal = refused(engine_of(card(HIGH, mode=mode)), "a", request_)

    assert refusal.code is ReasonCode.CARD_NOT_IDLE
    assert "it is cut into instances that partage did not make" in str(refusal.nodes["n"].cards)


def test_a_card_of_either_use_still_gives_instances() -> None:
    """It has begun to be cut, and goes on being cut."""
    (grant,) = placed(engine_of(card(HIGH, mode=SliceMode.EITHER)), "a", ask("3g"))

    assert grant.mig == LOW


def test_engines_count() -> None:
    """The media engines of an A100 are there once, for Partage and others together."""
    refusal = refused(engine_of(card(MigSlice("1g.5gb+me", 6, 1))), "a", ask("1g.5gb+me"))

    assert "of which a card has 1 at most" in refusal.message


def test_a_pod_that_wants_no_neighbours_counts_others() -> None:
    """Alone on a card means without any neighbour."""
    engine = engine_of(card(HIGH), card(minor=1))

    (grant,) = placed(engine, "a", ask("1g", unused=True))
    refusal = refused(engine, "b", ask("1g", unused=True))

    assert grant.uuid == "GPU-1"
    assert refusal.code is ReasonCode.CARD_NOT_IDLE


def test_amounts_are_used_and_come_back() -> None:
    """What others have is not free; when it goes, it is, and the waiting pod gets it."""
    engine = engine_of(card(HIGH))
    refused(engine, "a", ask("7g"))
    (before,) = engine.ledger.cards(DeviceType.GPU, 0)
    room = engine.ledger.made_room

    engine.handle(NodeSeen(Node("n", devices=(card(),), version=1)))

    profile = CUTTING.axis.profile("3g.20gb")
    assert before.memory_free == 40 * GIB - profile.memory_bytes
    assert before.core_free == 1000 - profile.core_milli
    assert (before.foreign, before.instances, before.tenants) == ((HIGH,), (), 0)
    assert engine.ledger.made_room > room
    assert placed(engine, "a", ask("7g"))


def test_what_a_pods_record_names_is_that_pods() -> None:
    """An instance that HAMi made for a pod, whose record says so, counts once, before and after."""
    engine = engine_of(card(HIGH))
    engine.handle(PodSeen(bound("taken-over", HIGH)))
    (with_pod,) = engine.ledger.cards(DeviceType.GPU, 0)
    engine.audit()

    engine.handle(PodGone("taken-over"))

    (after,) = engine.ledger.cards(DeviceType.GPU, 0)
    engine.audit()
    assert (with_pod.closed, with_pod.instances, with_pod.foreign) == (None, (HIGH,), ())
    assert with_pod.memory_free == 20 * GIB
    assert (after.instances, after.foreign) == ((), (HIGH,))
    assert after.memory_free == 40 * GIB - CUTTING.axis.profile("3g.20gb").memory_bytes


def test_a_record_across_anothers_instance_closes_the_card() -> None:
    """Two at one place cannot both be true, so no other pod comes."""
    engine = engine_of(card(MigSlice("2g.10gb", 4, 2)))
    engine.handle(PodSeen(bound("a", HIGH)))

    (found,) = engine.ledger.cards(DeviceType.GPU, 0)

    assert found.closed is ReasonCode.QUARANTINED
    assert "partage did not make 2g.10gb at 4" in found.closed_detail
    assert refused(engine, "b", ask("1g")).code is ReasonCode.QUARANTINED


def test_a_card_in_doubt_takes_nobody() -> None:
    """It gives no instance, no share and not itself; its pods stay."""
    doubtful = replace(card(), doubt="its instances are not known: no answer")
    for request in (ask("1g"), replace(WHOLE, instances=True)):
        refusal = refused(engine_of(doubtful), "a", request)
        assert refusal.code is ReasonCode.QUARANTINED
        assert "not known: no answer" in str(refusal.nodes["n"].cards)
    shared = replace(doubtful, mode=SliceMode.SHARE, cutting=None)
    for request in (WHOLE, SHARE):
        assert refused(engine_of(shared), "a", request).code is ReasonCode.QUARANTINED


@given(st.sampled_from(LAYOUTS), st.lists(st.sampled_from(sorted(NAMES)), max_size=9))
def test_no_instance_is_made_where_another_is(
    others: tuple[MigSlice, ...], wishes: list[str]
) -> None:
    """Whatever others have made, together it is a layout; and one fits exactly where there is room."""
    engine = engine_of(card(*others))
    there = list(others)

    for number, name in enumerate(wishes):
        room = any(
            CUTTING.axis.valid((*there, CUTTING.axis.profile(name).at(start)))
            for start in CUTTING.axis.profile(name).starts
        )
        decision = engine.schedule(pod(f"p{number}", ask(name)))
        assert isinstance(decision, Placement) is room
        if isinstance(decision, Placement):
            there += [grant.mig for grant in decision.allocation.grants if grant.mig is not None]
        engine.audit()
        assert CUTTING.axis.valid(there)
