"""Hardware instances, shares and whole cards on one pool, through the engine."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.allocation import Grant, GrantMode
from partage.model.cutting import Cutting, Geometry, arrangements
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.policy import Policy, Strategy
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import (
    CardFilter,
    ContainerAsk,
    DeviceRequest,
    Phase,
    PodRequest,
    RequestGroup,
)
from partage.placement.layouts import tabulate
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, PodGone, PodSeen, Unserviceable
from partage.vendors.families.hami.bounds import CardFacts, cutting_of
from partage.vendors.settings import HamiSettings

GIB = 1 << 30
MODEL = "NVIDIA A100-SXM4-40GB"
SIZES = {"1g": 4, "2g": 9, "3g": 19, "7g": 30}


def _cutting() -> Cutting:
    found, _ = cutting_of(CardFacts(MODEL, "", 40 * GIB, 1000), HamiSettings())
    assert found is not None
    return found


CUTTING = _cutting()


def _card(minor: int, mode: SliceMode = SliceMode.MIG) -> Device:
    cutting = None if mode is SliceMode.SHARE else CUTTING
    return Device(
        DeviceType.GPU,
        minor,
        f"GPU-{minor}",
        "nvidia",
        MODEL,
        memory_bytes=40 * GIB,
        mode=mode,
        slots=10,
        cutting=cutting,
    )


def _engine(*cards: Device, strategy: Strategy = Strategy.PARTAGE) -> Engine:
    engine = Engine(Policy(strategy, strategy))
    engine.handle(NodeSeen(Node("n", devices=cards)))
    return engine


def _ask(gib: int = 0, count: int = 1, **more: object) -> DeviceRequest:
    request = DeviceRequest(DeviceType.GPU, count, memory_bytes=gib * GIB, instances=True)
    return replace(request, **more)


def _pod(name: str, *asks: DeviceRequest, init: DeviceRequest | None = None) -> Pod:
    groups = [
        RequestGroup("hami", ask, (ContainerAsk(f"c{i}", position=i + 1),))
        for i, ask in enumerate(asks)
    ]
    if init is not None:
        container = ContainerAsk("init", Phase.INIT)
        groups.append(RequestGroup("hami", init, (container,), Phase.INIT))
    return Pod(name, "default", name, request=PodRequest(tuple(groups)))


def _given(engine: Engine, pod: Pod) -> tuple[Grant, ...]:
    decision = engine.schedule(pod)
    assert isinstance(decision, Placement), decision
    engine.audit()
    return decision.allocation.grants


def _refused(engine: Engine, pod: Pod) -> Refusal:
    decision = engine.schedule(pod)
    assert isinstance(decision, Refusal)
    return decision


ONLY = CardFilter(modes=(SliceMode.MIG,))
SHARES = CardFilter(modes=(SliceMode.SHARE,))


@settings(max_examples=30)
@given(st.lists(st.sampled_from(sorted(SIZES)), max_size=9), st.integers(1, 3))
def test_the_engine_and_the_simulator_choose_alike(sizes: list[str], cards: int) -> None:
    """Live scheduling, and the tables that simulation asks by themselves, put every instance alike."""
    engine = _engine(*(_card(i) for i in range(cards)))
    layouts = tabulate(CUTTING.axis)
    states = np.zeros(cards, np.int32)

    for number, size in enumerate(sizes):
        wish = tuple(p.name for p in CUTTING.axis.profiles if p.plain and p.name.startswith(size))
        choice = layouts.cheapest(states, layouts.column(wish))
        decision = engine.schedule(_pod(f"p{number}", _ask(profile=size, filter=ONLY)))
        if choice is None:
            assert isinstance(decision, Refusal)
            continue
        card, one, states[choice[0]] = choice
        assert isinstance(decision, Placement)
        (grant,) = decision.allocation.grants
        assert (grant.minor, grant.mig) == (card, one)


def test_an_unmarked_pod_takes_a_share_before_an_instance() -> None:
    """A share rounds nothing up; where none is left, an instance serves."""
    engine = _engine(_card(0), _card(1, SliceMode.SHARE))

    modes = [_given(engine, _pod(f"p{i}", _ask(30)))[0].mode for i in range(2)]

    assert modes == [GrantMode.SHARE, GrantMode.MIG]


def test_shares_and_instances_are_never_on_one_card() -> None:
    """A card in mode either has one use at a time, and is free for the other afterwards."""
    engine = _engine(_card(0, SliceMode.EITHER))
    engine.handle(NodeSeen(Node("n", devices=(_card(0, SliceMode.EITHER),))))

    _given(engine, _pod("instance", _ask(4, filter=ONLY)))
    share = _refused(engine, _pod("share", _ask(4, filter=SHARES)))
    whole = _refused(
        engine,
        _pod(
            "whole", DeviceRequest(DeviceType.GPU, core_milli=1000, memory_milli=1000, whole=True)
        ),
    )
    engine.handle(PodGone("instance"))
    shared = _given(engine, _pod("share2", _ask(4, filter=SHARES)))
    instance = _refused(engine, _pod("instance2", _ask(4, filter=ONLY)))

    assert share.code is whole.code is instance.code is ReasonCode.CARD_NOT_IDLE
    assert shared[0].mode is GrantMode.SHARE


def test_a_whole_card_is_the_instance_that_is_all_of_it() -> None:
    """In mode mig a whole card is given as its largest profile."""
    (grant,) = _given(
        _engine(_card(0)), _pod("p", _ask(core_milli=1000, memory_milli=1000, whole=True))
    )

    assert (grant.mode, grant.mig) == (GrantMode.MIG, MigSlice("7g.40gb", 0, 8))


def test_a_special_profile_is_given_by_name_only() -> None:
    """The one with media engines exists once on a card."""
    engine = _engine(_card(0))
    asked = _ask(profile="1g.5gb+me", filter=ONLY)

    (grant,) = _given(engine, _pod("p", asked))
    refusal = _refused(engine, _pod("q", asked))
    (plain,) = _given(engine, _pod("r", _ask(4, filter=ONLY)))

    assert grant.mig is not None
    assert grant.mig.profile == "1g.5gb+me"
    assert refusal.code is ReasonCode.MIG_PLACEMENT
    assert "of which a card has 1 at most" in refusal.message
    assert plain.mig is not None
    assert plain.mig.profile == "1g.5gb"


def test_a_refusal_names_starts_and_what_is_there() -> None:
    """The text says what to wait for."""
    engine = _engine(_card(0))
    _given(engine, _pod("a", _ask(profile="3g", filter=ONLY)))
    _given(engine, _pod("b", _ask(profile="1g", filter=ONLY)))

    refusal = _refused(engine, _pod("c", _ask(profile="3g", filter=ONLY)))

    (reason,) = refusal.nodes["n"].cards
    assert reason.detail.startswith("needs 3g.20gb (start 0 or 4), blocked by 1g.5gb at ")
    assert "3g.20gb at 4" in reason.detail


def test_an_init_container_uses_the_instance_of_its_pod() -> None:
    """It runs before the others, so it needs no place of its own where theirs will do."""
    engine = _engine(_card(0))

    main, init = sorted(
        _given(engine, _pod("p", _ask(profile="3g", filter=ONLY), init=_ask(4, filter=ONLY))),
        key=lambda grant: grant.phase is Phase.INIT,
    )

    assert main.mig == init.mig
    (card,) = engine.ledger.cards(DeviceType.GPU, 0)
    assert card.instances == (main.mig,)


def test_an_init_container_that_needs_more_has_a_place_of_its_own() -> None:
    """Both instances exist while the pod lives, so they may not overlap."""
    engine = _engine(_card(0))

    _given(engine, _pod("p", _ask(profile="1g", filter=ONLY), init=_ask(9, filter=ONLY)))

    (card,) = engine.ledger.cards(DeviceType.GPU, 0)
    assert sorted(one.profile for one in card.instances) == ["1g.5gb", "2g.10gb"]
    assert CUTTING.axis.valid(card.instances)


def test_several_containers_fit_whatever_their_order() -> None:
    """3g, 2g and two 1g fill a card, asked from the smallest up."""
    engine = _engine(_card(0))
    asks = [_ask(profile=size, filter=ONLY) for size in ("1g", "1g", "2g", "3g")]

    grants = _given(engine, _pod("p", *asks))

    assert [grant.mig.profile for grant in grants if grant.mig is not None] == [
        "1g.5gb",
        "1g.5gb",
        "2g.10gb",
        "3g.20gb",
    ]


def test_cards_in_mode_mig_that_cannot_be_cut_are_told_of() -> None:
    """The operator gets a report when the node is seen, and pods are refused there."""
    old = replace(_card(0), model="Tesla V100", cutting=None)
    engine = Engine()

    actions = engine.handle(NodeSeen(Node("n", devices=(old, _card(1)))))

    (told,) = [action for action in actions if isinstance(action, Unserviceable)]
    assert told.node == "n"
    assert "cards GPU-0 (Tesla V100)" in told.message
    assert "GPU-1" not in told.message


BROKEN = [
    pytest.param([MigSlice("3g.20gb", 4, 4), MigSlice("1g.5gb", 5, 1)], "unit 5", id="overlap"),
    pytest.param([MigSlice("5g.25gb", 0, 5)], "no MIG profile", id="unknown-profile"),
    pytest.param([MigSlice("3g.20gb", 1, 4)], "cannot take", id="illegal-start"),
    pytest.param([None], "held by one pod alone", id="no-place"),
]


@pytest.mark.parametrize(("instances", "told"), BROKEN)
def test_what_cannot_be_on_a_card_closes_it(instances: list[MigSlice | None], told: str) -> None:
    """Records of bound pods are facts; a card whose records contradict gives nothing."""
    engine = _engine(_card(0), _card(1))
    for number, one in enumerate(instances):
        grant = Grant("c0", DeviceType.GPU, 0, "GPU-0", 100, GIB, GrantMode.MIG, mig=one)
        bound = replace(_pod(f"b{number}", _ask(1)), node="n", record=Record((grant,), "hami"))
        engine.handle(PodSeen(bound))

    cards = engine.ledger.cards(DeviceType.GPU, 0)
    (grant,) = _given(engine, _pod("p", _ask(1, filter=ONLY)))

    assert told in cards[0].closed_detail
    assert not cards[0].takes_instances
    assert grant.minor == 1


@pytest.mark.parametrize(
    ("strategy", "minors"), [(Strategy.BINPACK, [0, 0]), (Strategy.SPREAD, [0, 1])]
)
def test_strategies_order_cards(strategy: Strategy, minors: list[int]) -> None:
    """Binpack fills a card, spread takes the emptiest."""
    engine = _engine(_card(0), _card(1), strategy=strategy)

    grants = [_given(engine, _pod(f"p{i}", _ask(4, filter=ONLY)))[0] for i in range(2)]

    assert [grant.minor for grant in grants] == minors


def test_a_refusal_names_a_profile_that_the_operators_table_has() -> None:
    """It names no smaller one without a geometry: the table gives the 3g more memory than the 4g has."""
    sizes = {"3g.20gb": 20 * GIB, "4g.20gb": 19 * GIB}
    profiles = (
        replace(one, memory_bytes=sizes.get(one.name, one.memory_bytes))
        for one in CUTTING.axis.profiles
    )
    axis, slots = replace(CUTTING.axis, profiles=tuple(profiles)), (("3g.20gb", 2),)
    table = Geometry(0, slots, arrangements(axis, slots))
    cutting = replace(CUTTING, axis=axis, geometries=(table,))
    engine = _engine(replace(_card(0), cutting=cutting))
    for name in ("a", "b"):
        _given(engine, _pod(name, _ask(15, filter=ONLY)))

    refusal = _refused(engine, _pod("c", _ask(15, filter=ONLY)))

    (reason,) = refusal.nodes["n"].cards
    assert reason.detail.startswith("needs 3g.20gb (start 0 or 4), blocked by 3g.20gb at ")
