"""Many pods that are hard to place delay only their own namespace.

A queue plays kube-scheduler: it asks about pods in turn, one at a time. The tests count units of
work and calls of functions, so a busy machine changes nothing.
"""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugin_world import Plugged
from world import Manifest, World, card, device, node, whole
from world import pod as written_pod

from fakes.builders import card as model_card
from fakes.builders import make_node, make_pod
from partage.extender.cycle import Allowance, AllowanceSettings
from partage.extender.explain import explain
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.placement.card import FEW, MOST, Work
from partage.scheduler.engine import Engine
from partage.scheduler.events import HoldEnded, NodeSeen
from partage.vendors import names

NODES = 40
PARTS = [21, 22, 23, 24, 26, 27, 28, 29, 31, 33, 34, 36, 37, 38, 39, 41, 43, 44, 46]
MOST_CALLS = 3_000_000
"""Calls of functions that what may be owed takes; 0.4 s, where one takes an eighth of a microsecond."""
CALLS_EACH = 8_000
"""The same for each pod beyond that: one millisecond."""


def share(cards: int, memory: int, cores: int) -> dict[str, str]:
    """A share of cards, in names of HAMi."""
    return {
        "nvidia.com/gpu": str(cards),
        "nvidia.com/gpumem": str(memory),
        "nvidia.com/gpucores": str(cores),
    }


def pod(name: str, asks: list[dict[str, str]], namespace: str = "bad") -> Manifest:
    """A pod of many containers."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"},
        "spec": {
            "schedulerName": "ours",
            "containers": [
                {"name": f"c{i}", "image": "x", "resources": {"limits": ask, "requests": ask}}
                for i, ask in enumerate(asks)
            ],
        },
        "status": {"phase": "Pending"},
    }


def no_gap(number: int) -> list[dict[str, str]]:
    """24 shares that are 800 percent together: no node takes them, and only a search can tell."""
    return [
        share(1, 100 + i + 24 * number, PARTS[i % 19] + (3 if i < 14 else 2)) for i in range(24)
    ]


def small_gap(number: int) -> list[dict[str, str]]:
    """The same with six percent to spare; a node takes them at the first try."""
    return [share(1, 100 + i + 24 * number, PARTS[i % 19]) for i in range(24)]


def all_different(number: int) -> list[dict[str, str]]:
    """A pod with a different size for each container."""
    return [share(1, 100 + 7 * i + number, 13 + i % 5) for i in range(64)]


def sets(number: int) -> list[dict[str, str]]:
    """Sets of two to seven cards."""
    return [share(2 + i % 6, 100 + i + 12 * number, 30) for i in range(12)]


def more_than_half(number: int) -> list[dict[str, str]]:
    """Two never share a card: amounts alone rule every node out, and each gets a reason."""
    return [share(1, 100 + number, 51)] * 64


def threes(number: int) -> list[dict[str, str]]:
    """Sets of three of eight."""
    return [share(3, 100 + i + 20 * number, 9 + i) for i in range(20)]


SHAPES: dict[str, Callable[[int], list[dict[str, str]]]] = {
    "no gap": no_gap,
    "small gap": small_gap,
    "all different": all_different,
    "sets": sets,
    "more than half": more_than_half,
    "threes": threes,
}


OWED = 48_000
"""Units that may be owed here: a fifth of what may by default, so that rows need not be long."""
BY_DEFAULT = AllowanceSettings()
LESS = AllowanceSettings(OWED, BY_DEFAULT.rate // 5, 2 * OWED)


def cluster(made: World) -> World:
    """Forty nodes of eight cards."""
    machines = [
        one for i in range(NODES) for one in (node(f"n{i}"), device(f"n{i}", *map(card, range(8))))
    ]
    asyncio.run(made.start(*machines))
    return made


@pytest.fixture
def world() -> World:
    """One in which little may be owed."""
    return cluster(World(allowance=LESS))


class TooMuchWork(BaseException):
    """More than may be taken; no handler of the service catches it."""


@contextmanager
def bounded(most: int) -> Iterator[list[int]]:
    """Stops what takes more calls than it may."""
    done = [0]

    def count(_frame: object, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            done[0] += 1
            if done[0] > most:
                raise TooMuchWork(f"more than {most} calls")

    sys.setprofile(count)
    try:
        yield done
    finally:
        sys.setprofile(None)


def codes(world: World, manifest: Manifest) -> set[str]:
    """What filter says of a pod; nothing where it has a node."""
    answer = world.filter(manifest)
    assert not answer["Error"]
    told = {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
    return {text.partition(":")[0] for text in told.values()} if not answer["NodeNames"] else set()


def row(world: World, manifests: list[Manifest]) -> Counter[str]:
    """All of them come, and each is asked about once; how often each code was the answer."""
    for manifest in manifests:
        world.create(manifest)
    found: Counter[str] = Counter()
    for manifest in manifests:
        found.update(codes(world, manifest) or {"placed"})
    return found


def behind(world: World, hard: list[Manifest]) -> int:
    """How many calls of functions it takes until an ordinary pod behind a row of others has a node."""
    ordinary = pod("web", [share(1, 100, 1)], "good")
    for manifest in [*hard, ordinary]:
        world.create(manifest)
    with bounded(MOST_CALLS + len(hard) * CALLS_EACH) as calls:
        for manifest in hard:
            world.filter(manifest)
        assert world.filter(ordinary)["NodeNames"]
    return calls[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_an_ordinary_pod_behind_a_row_has_its_turn_soon(world: World, shape: str) -> None:
    """No time passes meanwhile, so the whole search is what a namespace may owe."""
    behind(world, [pod(f"p{i}", SHAPES[shape](i)) for i in range(120)])


@pytest.mark.parametrize("namespaces", [1, 2, 40])
def test_many_namespaces_share_what_one_has(world: World, namespaces: int) -> None:
    """Two or forty tenants get no more search than one; each gets a decision about one pod."""
    behind(world, [pod(f"p{i}", no_gap(i), f"bad{i % namespaces}") for i in range(160)])
    debts = world.service.books.cycle.allowance.debts
    assert min(namespaces, 8) <= len(debts) <= namespaces
    assert sum(debts.values()) <= 2 * OWED + 2 * MOST


def test_a_thousand_hard_pods_are_answered_in_two_seconds_of_work() -> None:
    """The allowance is the default; each pod takes twenty milliseconds by itself."""
    calls = behind(cluster(World()), [pod(f"p{i}", no_gap(i)) for i in range(1000)])
    assert calls < 8_000_000


def test_a_pod_that_was_deferred_has_its_turn(world: World) -> None:
    """As time pays, the service wakes as many pods as it may search for, and decides all in the end."""
    hard = [pod(f"p{i}", no_gap(i)) for i in range(40)]
    found = row(world, hard)
    assert found["SearchDeferred"] > 0
    assert found["SearchLimit"] >= OWED // (2 * MOST)
    waiting = world.service.books.waiting
    by_uid = {one["metadata"]["uid"]: one for one in hard}
    for _second in range(120):
        world.clock.pass_time(1.0)
        world.woken.clear()
        world.service.books.tick(world.clock.monotonic())
        assert len(world.woken) <= OWED // (2 * MOST)
        for uid in world.woken:
            world.filter(by_uid[uid])
    assert {code.value for code in waiting.counts()} == {"SearchLimit"}
    assert not any(one.deferred for one in waiting.values())


def test_another_namespace_is_searched_for_at_once(world: World) -> None:
    """This holds for any number of pods of the first namespace, which asks repeatedly."""
    row(world, [pod(f"p{i}", no_gap(i)) for i in range(60)])
    assert codes(world, pod("other", no_gap(99), "other")) == {"SearchLimit"}
    assert codes(world, pod("more", no_gap(98))) == {"SearchDeferred"}


def test_why_a_pod_waits_stays_told_while_it_is_deferred(world: World) -> None:
    """Its events and `explain` keep the better reason; a new pod reads that it is deferred."""
    first = pod("first", no_gap(0))
    row(world, [first, *(pod(f"p{i}", no_gap(i)) for i in range(1, 40))])
    told = [*world.told]
    assert ("first", "SearchLimit") in told
    assert ("p39", "SearchDeferred") in told
    world.create(pod("web", [share(1, 100, 1)], "good"))
    world.filter(pod("web", [share(1, 100, 1)], "good"))  # a fact that may matter to `first`
    assert codes(world, first) == {"SearchDeferred"}
    assert world.told == told
    waiting = world.service.books.waiting.get(first["metadata"]["uid"])
    assert waiting is not None
    assert waiting.refusal.code == "SearchLimit"


def test_the_same_answer_costs_next_to_nothing_while_nothing_changes(world: World) -> None:
    """kube-scheduler asks again for reasons of its own."""
    one = pod("one", no_gap(0))
    row(world, [one])
    with bounded(CALLS_EACH):
        assert codes(world, one) == {"SearchLimit"}
    debts = world.service.books.cycle.allowance.debts
    assert sum(debts.values()) < 2 * MOST


def test_ordinary_pods_are_never_deferred(world: World) -> None:
    """Six hundred different requests, most of which find the cluster full; the namespace owes nothing."""
    asks = [share(1 + i % 2, 100 + i, 20 + i % 50) for i in range(600)]
    found: Counter[str] = Counter()
    for number, ask in enumerate(asks):
        found.update(codes(world, pod(f"p{number}", [ask])) or {"placed"})
    assert found["placed"] > NODES
    assert set(found) <= {"placed", "InsufficientCore", "InsufficientCards", "InsufficientMemory"}


def test_ordinary_pods_of_a_namespace_with_hard_ones_are_decided(world: World) -> None:
    """Some fit and some do not, with one to three containers, and the reasons are true."""
    row(world, [pod(f"p{i}", no_gap(i)) for i in range(60)])
    assert codes(world, pod("late", no_gap(77))) == {"SearchDeferred"}
    for number in range(60):
        asks = [share(1, 100 + i, 10 + number % 7 + i) for i in range(1 + number % 3)]
        assert not codes(world, pod(f"small{number}", asks))
    assert codes(world, pod("big", [share(8, 90_000, 1)])) == {"InsufficientMemory"}


def test_a_pod_whose_spec_changed_is_asked_about_anew(world: World) -> None:
    """Its earlier search does not count for its new request."""
    row(world, [pod(f"p{i}", no_gap(i)) for i in range(60)])
    assert codes(world, pod("one", no_gap(77))) == {"SearchDeferred"}
    assert not codes(world, pod("one", [share(1, 100, 1)]))


def test_books_made_anew_forgive_nothing(world: World) -> None:
    """A deferred pod has its turn in the new books too."""
    hard = [pod(f"p{i}", no_gap(i)) for i in range(30)]
    row(world, hard)
    before = dict(world.service.books.cycle.allowance.debts)
    machines = [
        one for i in range(NODES) for one in (node(f"n{i}"), device(f"n{i}", *map(card, range(8))))
    ]
    asyncio.run(world.start(*machines, *hard))
    assert world.service.books.cycle.allowance.debts == before
    for _second in range(60):
        world.clock.pass_time(1.0)
        world.service.books.tick(world.clock.monotonic())
    assert {hard[-1]["metadata"]["uid"]} <= set(world.woken)


def test_the_plugins_pods_wait_for_their_own_namespace_too() -> None:
    """The same pods are proposed one after another."""
    world = Plugged(allowance=LESS)
    cluster(world)
    hard = [pod(f"p{i}", no_gap(i)) for i in range(60)]
    ordinary = pod("web", [share(1, 100, 1)], "good")
    for manifest in [*hard, ordinary]:
        manifest["metadata"]["uid"] = f"uid-{manifest['metadata']['name']}"
        world.create(manifest)
    with bounded(MOST_CALLS + len(hard) * CALLS_EACH):
        told = Counter(world.propose(one["metadata"]["name"]).code for one in hard)
        assert world.propose("web").nodes
    assert set(told) == {"SearchLimit", "SearchDeferred"}


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 12_000), st.floats(0, 3)), max_size=80
    ),
    owed=st.integers(10_000, 100_000),
)
def test_what_is_owed_is_bounded_and_paid(steps: list[tuple[str, int, float]], owed: int) -> None:
    """A namespace with a turn owes less than its part; time pays at its rate, and never more."""
    allowance = Allowance(AllowanceSettings(owed, owed // 4, 2 * owed))
    now, spent = 0.0, 0
    for namespace, units, seconds in steps:
        now += seconds
        one = replace(make_pod(namespace), namespace=namespace)
        if allowance.has_turn(namespace, now):
            assert allowance.debts.get(namespace, 0.0) < owed
            allowance.spend(one, units, now)
            spent += max(0, units - FEW)
        total = sum(allowance.debts.values())
        assert total < 2 * owed + 12_000
        assert total >= spent - now * (owed // 4) - 1e-6
        assert all(debt > 0 for debt in allowance.debts.values())
    assert allowance.has_turn("a", now + 20.0)
    assert not allowance.debts or max(allowance.debts.values()) < owed


def test_little_work_decides_as_much_does() -> None:
    """A pod that is not deferred gets the same place, or a refusal with the same code."""
    full, little = Engine(Policy.parse("binpack")), Engine(Policy.parse("binpack"))
    for engine in (full, little):
        for number in range(6):
            cards = [model_card(minor, prefix=f"GPU-{number}") for minor in range(8)]
            engine.handle(NodeSeen(make_node(f"n{number}", cards)))
    chance, found = random.Random(18), Counter[str]()  # noqa: S311 # no secret
    for number in range(400):
        size = chance.choice((1, 1, 1, 2, 3, 5, 8, 13, 24))
        groups = tuple(
            RequestGroup(
                "hami",
                DeviceRequest(
                    DeviceType.GPU,
                    chance.choice((1, 1, 1, 2, 4)),
                    core_milli=chance.randrange(10, 700, 10),
                    memory_bytes=chance.randrange(1, 12) * 2**30,
                ),
                (ContainerAsk(f"c{position}", position=position),),
            )
            for position in range(size)
        )
        one = Pod(f"p{number}", "team", f"p{number}", request=PodRequest(groups))
        told = little.hold(one, None, Work(FEW))
        if isinstance(told, Refusal) and told.code is ReasonCode.SEARCH_DEFERRED:
            found["deferred"] += 1
            continue
        truth = full.hold(one)
        if isinstance(told, Refusal):
            assert isinstance(truth, Refusal)
            assert told.nodes.items() <= truth.nodes.items()
            assert sum(told.counts.values()) == 6
            # Where a node lacks several things, either may be what is counted.
            assert set(told.counts) & set(truth.counts)
            assert size > 1 or (told.code, told.counts) == (truth.code, truth.counts)
            found["refused"] += 1
        else:
            assert told == truth
            found["placed"] += 1
        for engine in (full, little):
            engine.handle(HoldEnded(f"p{number - 12}"))
    assert min(found["deferred"], found["refused"], found["placed"]) > 15, found


def test_what_is_wrong_with_a_pod_is_not_told_thousands_of_times_at_full_length() -> None:
    """16 KiB of an annotation were five megabytes of each answer about 5,000 nodes; `explain` has all of it."""

    async def answered() -> tuple[dict[str, str], Manifest | None]:
        world = await World().start(node(), device())
        odd = written_pod("odd", whole(), meta={"annotations": {names.NODE_POLICY: "x" * 16_000}})
        world.create(odd)
        some = world.filter(odd, "n1")["FailedAndUnresolvableNodes"]
        many = world.filter(odd, *(f"n{n}" for n in range(5000)))["FailedAndUnresolvableNodes"]
        assert len(some["n1"]) > 1000
        return many, explain(world.service.books, "team", "odd", settled=True)

    many, told = asyncio.run(answered())
    assert sum(map(len, many.values())) <= 2**20
    assert all(
        one.startswith("InvalidRequest: annotation partage.io/node-policy: 'xxx")
        for one in many.values()
    )
    assert told is not None
    assert len(told["reason"]["message"]) > 1000
