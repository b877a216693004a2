"""Binpack and spread between nodes and between cards, as the published tables have them."""

from collections.abc import Sequence

import pytest

from fakes.builders import GIB, card, make_node, make_pod, share, whole
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType, Topology
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.model.policy import CardOrder, CardWeights, Policy, Strategy
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import CardFilter, ContainerAsk, PodRequest, RequestGroup, Scope
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, PolicyChanged

BINPACK, SPREAD, FIRST_FIT, PARTAGE = (
    Strategy.BINPACK,
    Strategy.SPREAD,
    Strategy.FIRST_FIT,
    Strategy.PARTAGE,
)


def engine_of(policy: Policy, *nodes: Node) -> Engine:
    """An engine under a policy that has seen these nodes."""
    engine = Engine(policy)
    for node in nodes:
        engine.handle(NodeSeen(node))
    return engine


def taken(engine: Engine, node: str, minor: int, core: int = 0, memory: float = 0) -> None:
    """Book part of a card: compute in percent, memory in GiB."""
    grant = Grant(
        "c",
        DeviceType.GPU,
        minor,
        f"{node}-{minor}",
        core * 10,
        int(memory * GIB),
        GrantMode.SHARE,
    )
    uid = f"{node}-{minor}-{core}-{memory}"
    engine.ledger.apply(Allocation(uid, "default", uid, node, (grant,)))


def cards(node: str, count: int, **fields: object) -> list[Device]:
    """Cards named after their node."""
    return [card(i, prefix=node, **fields) for i in range(count)]


def one_node(policy: Policy, free: Sequence[int], **fields: object) -> Engine:
    """A node whose cards have so many percent of compute free."""
    engine = engine_of(policy, make_node("n", cards("n", len(free), **fields)))
    for minor, percent in enumerate(free):
        if percent < 100:
            taken(engine, "n", minor, 100 - percent)
    return engine


@pytest.mark.parametrize(
    ("strategy", "free", "asked", "expected"),
    [
        pytest.param(BINPACK, [100, 100], [20, 40], [0, 0], id="binpack-idle"),
        pytest.param(BINPACK, [20, 100], [20, 40], [0, 1], id="binpack-fits-once"),
        pytest.param(BINPACK, [10, 100], [20, 40], [1, 1], id="binpack-too-full"),
        pytest.param(BINPACK, [100, 100], [40, 40], [0, 0], id="binpack-two-of-three"),
        pytest.param(BINPACK, [10, 50], [20, 40], None, id="binpack-no-room"),
        pytest.param(SPREAD, [100, 100], [20, 40], [0, 1], id="spread-idle"),
        pytest.param(SPREAD, [20, 100], [20, 40], [1, 1], id="spread-used"),
        pytest.param(SPREAD, [100, 100], [40, 40], [0, 1], id="spread-two-of-three"),
        pytest.param(SPREAD, [10, 50], [20, 40], None, id="spread-no-room"),
        pytest.param(FIRST_FIT, [30, 100], [20, 40], [0, 1], id="first-fit"),
        pytest.param(PARTAGE, [100, 45], [40, 50], [1, 0], id="least-left"),
    ],
)
def test_tables_of_the_elastic_gpu_scheduler(
    strategy: Strategy, free: list[int], asked: list[int], expected: list[int] | None
) -> None:
    """Free percents of two cards and what two containers ask, with the cards they get."""
    engine = one_node(Policy(strategy, strategy), free)

    found = engine.schedule(make_pod("a", *(share(percent) for percent in asked)))

    if expected is None:
        assert isinstance(found, Refusal)
        assert found.code is ReasonCode.INSUFFICIENT_CORE
    else:
        assert isinstance(found, Placement)
        assert [g.minor for g in found.allocation.grants] == expected


@pytest.mark.parametrize(
    ("better", "worse"),
    [([30, 50], [20, 40]), ([90], [50, 40]), ([100], [50, 50])],
    ids=str,
)
def test_spread_prefers_the_node_with_more_room(better: list[int], worse: list[int]) -> None:
    """Free percents of two nodes, in both orders."""
    for first, second in ((better, worse), (worse, better)):
        engine = engine_of(
            Policy(SPREAD, SPREAD),
            make_node("x", cards("x", len(first))),
            make_node("y", cards("y", len(second))),
        )
        for name, free in (("x", first), ("y", second)):
            for minor, percent in enumerate(free):
                taken(engine, name, minor, 100 - percent)
        found = engine.evaluate(make_pod("a", share(10)))
        assert isinstance(found, Placement)
        assert (found.allocation.node == "x") is (first is better)


def hami_cluster(policy: Policy) -> Engine:
    """Node 1 a quarter used on its first card, node 2 three quarters on its second; 8 GiB each."""
    engine = engine_of(
        policy,
        make_node("node1", cards("node1", 2, memory=8)),
        make_node("node2", cards("node2", 2, memory=8)),
    )
    taken(engine, "node1", 0, 25, 2)
    taken(engine, "node2", 1, 75, 6)
    return engine


@pytest.mark.parametrize(
    ("policy", "node", "minor"),
    [
        ("binpack/binpack", "node2", 1),
        ("binpack/spread", "node2", 0),
        ("spread/binpack", "node1", 0),
        ("spread/spread", "node1", 1),
    ],
)
def test_the_matrix_of_hami(policy: str, node: str, minor: int) -> None:
    """Strategies between nodes and between cards are independent (docs/sources/hami.md 4.3)."""
    engine = hami_cluster(Policy.parse(policy))

    found = engine.schedule(make_pod("a", share(20, 1)))

    assert isinstance(found, Placement)
    assert (found.allocation.node, found.allocation.grants[0].minor) == (node, minor)


def test_an_init_container_takes_part_in_the_choice_of_card() -> None:
    """5000 MiB before 4000 MiB fit on node 2's idle card only, which both use (docs/sources/hami.md 4.3)."""
    engine = hami_cluster(Policy.parse("binpack/binpack"))
    main = make_pod("a", share(20, 4000 / 1024)).request.groups[0]
    first = make_pod("a", share(20, 5000 / 1024), phase=ContainerAsk("i").phase.INIT)

    found = engine.schedule(make_pod("b", request=PodRequest((main, *first.request.groups))))

    assert isinstance(found, Placement)
    assert found.allocation.node == "node2"
    assert [g.minor for g in found.allocation.grants] == [0, 0]
    (charge,) = found.allocation.charges
    assert charge.memory_bytes == int(5000 / 1024 * GIB)


@pytest.mark.parametrize(
    ("strategy", "expected"), [(SPREAD, 3), (BINPACK, 1)], ids=["LeastAllocated", "MostAllocated"]
)
def test_case_27_of_koordinator(strategy: Strategy, expected: int) -> None:
    """Half a card where some are half used: the idle one, or the first used one."""
    engine = one_node(Policy(strategy, strategy), [100, 50, 50, 100])
    if strategy is SPREAD:
        taken(engine, "n", 0, 50)

    found = engine.schedule(make_pod("a", share(50)))

    assert isinstance(found, Placement)
    assert found.allocation.grants[0].minor == expected


def test_a_pods_own_wish_goes_before_the_policy() -> None:
    """Between nodes and between cards, the pod's strategy counts."""
    engine = hami_cluster(Policy.parse("binpack/binpack"))
    group = make_pod("a", share(20, 1)).request.groups
    wish = PodRequest(group, node_strategy=SPREAD, card_order=CardOrder(SPREAD))

    found = engine.schedule(make_pod("a", request=wish))

    assert isinstance(found, Placement)
    assert (found.allocation.node, found.allocation.grants[0].minor) == ("node1", 1)


def test_a_new_policy_holds_from_the_next_decision() -> None:
    """Policies enter as events."""
    engine = hami_cluster(Policy.parse("binpack"))
    engine.handle(PolicyChanged(Policy.parse("spread")))

    found = engine.schedule(make_pod("a", share(20, 1)))

    assert isinstance(found, Placement)
    assert found.allocation.node == "node1"


def test_whole_cards_spare_the_larger_memory() -> None:
    """Binpack and the default give the small card; spread and first-fit go by use and order."""
    devices = [card(0, memory=80), card(1, memory=40)]
    for name, expected in (("binpack", 1), ("partage", 1), ("spread", 0), ("first-fit", 0)):
        found = engine_of(Policy.parse(name), make_node("n", devices)).schedule(
            make_pod("a", whole())
        )
        assert isinstance(found, Placement)
        assert found.allocation.grants[0].minor == expected, name


def test_the_default_takes_the_first_node_and_its_tightest_card() -> None:
    """Before it has learnt prices: nodes in their order, within a node the card left with least."""
    engine = engine_of(Policy(), make_node("x", cards("x", 2)), make_node("y", cards("y", 1)))
    taken(engine, "x", 1, 20, 8)
    taken(engine, "y", 0, 50, 8)

    found = engine.schedule(make_pod("a", share(50, 8)))

    assert isinstance(found, Placement)
    assert found.allocation.node == "x"
    assert found.allocation.grants[0].minor == 1


def test_pods_without_devices_keep_away_from_cards() -> None:
    """The default puts an ordinary pod on a node without cards."""
    nodes = [make_node("x", cards("x", 1)), make_node("y", [])]

    found = engine_of(Policy(), *nodes).schedule(make_pod("a", host={"cpu": 1}))

    assert isinstance(found, Placement)
    assert (found.allocation.node, found.allocation.grants) == ("y", ())


@pytest.mark.parametrize(
    ("policy", "expected"), [("binpack", "y"), ("spread", "x"), ("first-fit", "x")]
)
def test_ordinary_pods_follow_the_strategy_by_cpu(policy: str, expected: str) -> None:
    """Without devices, CPU and memory in use decide."""
    room = {"cpu": 4000, "memory": 8 * GIB, "pods": 10}
    engine = engine_of(
        Policy.parse(policy), make_node("x", allocatable=room), make_node("y", allocatable=room)
    )
    engine.ledger.apply(Allocation("u", "default", "u", "y", (), {"cpu": 2000}))

    found = engine.schedule(make_pod("a", host={"cpu": 1000, "memory": GIB, "pods": 1}))

    assert isinstance(found, Placement)
    assert found.allocation.node == expected


# --- order of cards by NUMA, links and weights -----------------------------------------------------


def placed(node: Node, order: CardOrder, count: int = 1, **fields: object) -> list[int]:
    """The cards that a pod with its own order gets."""
    request = share(10, 1, count=count, **fields)
    group = RequestGroup("hami", request, (ContainerAsk("c"),))
    found = engine_of(Policy(FIRST_FIT, FIRST_FIT), node).schedule(
        make_pod("a", request=PodRequest((group,), card_order=order))
    )
    assert isinstance(found, Placement), found
    return [g.minor for g in found.allocation.grants]


def test_numa_goes_before_use() -> None:
    """With NUMA first, cards of the lower NUMA node come before less used ones."""
    devices = [card(i, topology=Topology(1 - i // 2, "")) for i in range(4)]

    assert placed(make_node(devices=devices), CardOrder(SPREAD, by_numa=True), count=2) == [2, 3]
    assert placed(make_node(devices=devices), CardOrder(SPREAD), count=2) == [0, 1]


def test_numa_binding_keeps_cards_together_or_refuses() -> None:
    """Two cards of one NUMA node, in the pod's own order; three are on several."""
    devices = [card(i, topology=Topology(i % 2, "")) for i in range(4)]
    node = make_node(devices=devices)
    bound = {"scope": Scope.NUMA, "scope_code": ReasonCode.NUMA_MISMATCH}

    assert placed(node, CardOrder(by_numa=True), count=2, **bound) == [0, 2]
    found = engine_of(Policy(), node).schedule(make_pod("a", share(10, count=3, **bound)))
    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.NUMA_MISMATCH


@pytest.mark.parametrize(
    ("strategy", "expected"), [(SPREAD, 1), (BINPACK, 0)], ids=["spread", "binpack"]
)
def test_numa_binding_leaves_the_strategy_in_force(strategy: Strategy, expected: int) -> None:
    """One card is within any NUMA node: the pod's own strategy chooses it."""
    devices = [card(i, prefix="n", topology=Topology(i // 2, "p")) for i in range(4)]
    engine = engine_of(Policy(), make_node("n", devices))
    taken(engine, "n", 0, 50, 4)
    group = RequestGroup("hami", share(10, 1, scope=Scope.NUMA), (ContainerAsk("c"),))
    order = CardOrder(strategy, by_numa=True)

    found = engine.schedule(make_pod("a", request=PodRequest((group,), card_order=order)))

    assert isinstance(found, Placement)
    assert found.allocation.grants[0].minor == expected


LINKS = {("GPU-0", "GPU-1"): 10, ("GPU-0", "GPU-2"): 1, ("GPU-1", "GPU-2"): 5}


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [2]), (2, [0, 1]), (3, [0, 1, 2])], ids=["worst", "best", "all"]
)
def test_links_choose_sets(count: int, expected: list[int]) -> None:
    """One card: the worst linked; several: the best linked set."""
    node = make_node(devices=[card(i) for i in range(3)], links=LINKS)

    assert placed(node, CardOrder(by_links=True), count=count) == expected


def test_links_of_a_large_node_are_not_searched_for_ever() -> None:
    """With too many combinations the first cards in order are taken."""
    links = {("GPU-0", "GPU-1"): 1}
    node = make_node(devices=[card(i) for i in range(20)], links=links)

    assert placed(node, CardOrder(by_links=True), count=10) == list(range(10))


def test_weights_say_what_counts_as_use() -> None:
    """Slots, compute and memory can each be made the only measure."""
    devices = [card(i, prefix="n", slots=10) for i in range(3)]
    expected = {(1, 0, 0): 2, (0, 1, 0): 0, (0, 0, 1): 1}
    for (slot, core, memory), minor in expected.items():
        engine = engine_of(Policy(), make_node("n", devices))
        taken(engine, "n", 0, 60, 1)
        taken(engine, "n", 1, 10, 12)
        taken(engine, "n", 2, 10, 1)
        taken(engine, "n", 2, 10, 0.5)
        order = CardOrder(BINPACK, weights=CardWeights(slot, core, memory))
        group = RequestGroup("hami", share(10, 1), (ContainerAsk("c"),))
        found = engine.schedule(make_pod("a", request=PodRequest((group,), card_order=order)))
        assert isinstance(found, Placement)
        assert found.allocation.grants[0].minor == minor


@pytest.mark.parametrize("weights", [(0, 0, 0), (-1, 2, 2)], ids=["nothing", "negative"])
def test_weights_must_order_something(weights: tuple[int, int, int]) -> None:
    """Weights that order nothing, or backwards, are refused."""
    with pytest.raises(InvalidValue):
        CardWeights(*weights)


@pytest.mark.parametrize("name", ["binpack", "spread/binpack", "partage", "first-fit/fgd"])
def test_policies_are_called_by_name(name: str) -> None:
    """A policy prints the name that reads back to it."""
    assert str(Policy.parse(name)) == name
    assert Policy.parse(str(Policy.parse(name))) == Policy.parse(name)
    assert Policy.parse("spread/spread") == Policy.parse("spread")


@pytest.mark.parametrize("name", ["", "/", "best", "binpack/", "/binpack", "a/b/c", "Bin-pack"])
def test_unknown_policies_are_refused(name: str) -> None:
    """The message lists what there is."""
    with pytest.raises(InvalidValue, match="choose one of binpack, spread, first-fit, partage"):
        Policy.parse(name)


# --- rules of sharing ------------------------------------------------------------------------------


def test_an_exclusive_share_keeps_everyone_out() -> None:
    """All compute with some memory holds the card alone (docs/sources/hami.md 4.2)."""
    engine = engine_of(Policy(), make_node("n", [card(0)]))
    first = engine.schedule(make_pod("a", share(100, 4, exclusive=True)))

    second = engine.schedule(make_pod("b", share(memory=1)))

    assert isinstance(first, Placement)
    assert isinstance(second, Refusal)
    assert second.code is ReasonCode.CARD_NOT_IDLE


def test_an_exclusive_share_wants_an_idle_card() -> None:
    """It does not join others either; `unused` wants the same but lets others follow."""
    engine = engine_of(Policy(), make_node("n", [card(0)]))
    engine.schedule(make_pod("a", share(10, 1)))
    for request in (share(50, 1, exclusive=True), share(10, 1, unused=True)):
        found = engine.evaluate(make_pod("b", request))
        assert isinstance(found, Refusal)
        assert found.code is ReasonCode.CARD_NOT_IDLE

    fresh = engine_of(Policy(), make_node("n", [card(0)]))
    assert isinstance(fresh.schedule(make_pod("c", share(10, 1, unused=True))), Placement)
    assert isinstance(fresh.schedule(make_pod("d", share(10, 1))), Placement)


def test_a_card_whose_compute_is_taken_refuses_who_asks_for_none() -> None:
    """The full-card rule of HAMi holds for those that claim compute only."""
    engine = engine_of(Policy(), make_node("n", [card(0)]))
    engine.schedule(make_pod("a", share(100, 4)))

    refused = engine.evaluate(make_pod("b", share(memory=1, claims_core=True)))

    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.INSUFFICIENT_CORE
    assert isinstance(engine.evaluate(make_pod("c", share(memory=1))), Placement)


@pytest.mark.parametrize(("sharers", "slots", "most"), [(16, 100, 16), (None, 10, 10), (4, 3, 3)])
def test_a_card_takes_so_many_sharers(sharers: int | None, slots: int, most: int) -> None:
    """The protocol's limit or the card's, the lower of both; one more is refused."""
    engine = engine_of(Policy(), make_node("n", [card(0, slots=slots)]))

    fit = [
        engine.schedule(make_pod(f"p{i}", share(1, 0.1, sharers=sharers))) for i in range(most + 1)
    ]

    assert [isinstance(found, Placement) for found in fit] == [True] * most + [False]
    last = fit[-1]
    assert isinstance(last, Refusal)
    assert last.code is ReasonCode.INSUFFICIENT_SLOTS


def test_the_tightest_limit_on_a_card_binds_everyone() -> None:
    """Pods without a limit do not join where a resident's limit is reached."""
    engine = engine_of(Policy(), make_node("n", [card(0)]))
    for name, limit in (("a", None), ("b", 2)):
        assert isinstance(engine.schedule(make_pod(name, share(1, 1, sharers=limit))), Placement)

    assert isinstance(engine.evaluate(make_pod("c", share(1, 1))), Refusal)


def test_native_units_stand_for_compute() -> None:
    """Three of eight cores are charged as 37.5 % of the card, rounded up, and must be there."""
    npu = card(0, vendor="huawei", extras=(("core", 8),), vendor_cut=True)
    node = make_node("n", [npu], templates={"vir03": (("core", 3), ("memory", 2 * GIB))})
    asked = share(memory=2, extras=(("core", 3),), core_unit="core", templated=True)
    engine = engine_of(Policy(), node)

    found = [engine.schedule(make_pod(f"p{i}", asked)) for i in range(3)]

    first = found[0]
    assert isinstance(first, Placement)
    (grant,) = first.allocation.grants
    assert (grant.core_milli, grant.template, grant.mode) == (375, "vir03", GrantMode.VENDOR)
    last = found[2]
    assert isinstance(last, Refusal)
    assert last.code is ReasonCode.INSUFFICIENT_CORE


def test_a_card_without_the_unit_cannot_stand_for_it() -> None:
    """A request in native units does not fit a card that has none."""
    found = engine_of(Policy(), make_node("n", [card(0)])).evaluate(
        make_pod("a", share(extras=(("core", 1),), core_unit="core"))
    )

    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.INSUFFICIENT_DEVICES


def test_filters_are_alternatives_and_ignore_case() -> None:
    """Types match as parts of the model's name; the first match suffices."""
    devices = [card(0, model="Tesla T4"), card(1, model="NVIDIA A100-SXM4-80GB")]
    engine = engine_of(Policy(), make_node("n", devices))
    wanted = CardFilter(use_types=("h100", "a100"), avoid_types=("t4",))

    found = engine.evaluate(make_pod("a", share(1, filter=wanted)))

    assert isinstance(found, Placement)
    assert found.allocation.grants[0].minor == 1
