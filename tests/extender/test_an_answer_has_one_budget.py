"""One answer of the service spends one budget, however many searches lead to it.

Tests count the units that the namespace owes afterwards, and no time passes meanwhile.
"""

import asyncio
import json
from typing import Any

import pytest
from plugin_world import Plugged
from world import Manifest, card, device, document, node

from fakes.builders import card as model_card
from fakes.builders import make_node
from partage.extender.cycle import AllowanceSettings
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.placement.card import FEW, MOST, MOST_A_NODE, Work
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen
from partage.scheduler.journal import Entry, JournalledEngine
from partage.sim.rerun import rerun
from partage.wire import plugin as wire
from partage.wire.journal import Header, encode_entry, header_line, read_lines

NODES = 40
PARTS = [21, 22, 23, 24, 26, 27, 28, 29, 31, 33, 34, 36, 37, 38, 39, 41, 43, 44, 46]
SENTENCES = 2_600
"""Units of a refusal's sentences."""
ONE_ANSWER = MOST + SENTENCES + 2 * MOST_A_NODE
"""A decision, its sentences, and what the last node of each may take beyond."""


def hard(memory: int = 100, more: int = 0) -> Manifest:
    """24 shares that are 800 percent together, and some more: only a search can tell whether eight cards take them."""
    asks = [
        {
            "nvidia.com/gpu": "1",
            "nvidia.com/gpumem": str(memory + i),
            "nvidia.com/gpucores": str(PARTS[i % 19] + (3 if i < 14 else 2) + more),
        }
        for i in range(24)
    ]
    containers: list[dict[str, Any]] = [
        {"name": f"c{i}", "image": "x", "resources": {"limits": ask, "requests": {**ask}}}
        for i, ask in enumerate(asks)
    ]
    containers[0]["resources"]["requests"]["cpu"] = "1"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "hard", "namespace": "team", "uid": "uid-hard"},
        "spec": {"schedulerName": "ours", "containers": containers},
        "status": {"phase": "Pending"},
    }


@pytest.fixture
def world() -> Plugged:
    """Forty nodes, no two alike, every second one without CPU."""
    made = Plugged(allowance=AllowanceSettings(10**9, 60_000, 2 * 10**9))
    machines = [
        one
        for i in range(NODES)
        for one in (
            node(f"n{i:02d}"),
            device(f"n{i:02d}", *(card(minor, f"{81_920 + i}Mi") for minor in range(8))),
        )
    ]
    asyncio.run(made.start(*machines))
    made.propose(
        "nobody",
        taken=[wire.Taken(f"n{i:02d}", cpu=32_000 * (i % 2), pods=1) for i in range(NODES)],
    )
    return made


def units(world: Plugged) -> float:
    """The units that the namespace was charged, and those that cost it nothing."""
    return world.service.books.cycle.allowance.debts.get("team", 0.0) + FEW


def reject(world: Plugged, names: list[str]) -> None:
    """kube-scheduler's own filters rejected these nodes a moment ago."""
    world.attempts._retries.rejected.add("uid-hard", names, world.clock.monotonic())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("rejected", [0, NODES // 2])
def test_a_question_of_the_plugin_that_is_refused_has_one(
    world: Plugged, *, wide: bool, rejected: int
) -> None:
    """Its searches: all nodes that fit, with CPU and without; the best, with and without; again after a rejection."""
    world.create(hard())
    reject(world, [f"n{i:02d}" for i in range(rejected)])

    answer = world.propose("hard", wide=wide)

    assert answer.code == "SearchLimit"
    assert MOST < units(world) <= ONE_ANSWER


@pytest.mark.parametrize("wish", ["", "n39"])
def test_so_has_one_that_is_answered_with_nodes(world: Plugged, wish: str) -> None:
    """The best node is found within the limit, and the others with what is left."""
    world.create(hard(more=-2))

    answer = world.propose("hard", wide=True, nominated=wish)

    assert len(answer.nodes) > 1
    assert MOST_A_NODE < units(world) <= ONE_ANSWER


def test_so_has_a_question_of_the_extender(world: Plugged) -> None:
    """It wants every node that fits of a pod with soft constraints."""
    soft = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    manifest = hard(more=-2)
    manifest["spec"]["topologySpreadConstraints"] = [soft]
    world.create(manifest)

    body = json.dumps({"Pod": manifest, "NodeNames": [f"n{i:02d}" for i in range(NODES)]})
    answer = json.loads(world.service.filter(body.encode()))

    assert len(answer["NodeNames"]) > 1
    assert MOST_A_NODE < units(world) <= ONE_ANSWER


def test_a_pod_that_fits_by_its_devices_alone_is_proposed_there(world: Plugged) -> None:
    """The nodes with CPU have no cards left; kube-scheduler reports what the others lack."""
    for index in range(0, NODES, 2):
        world.service.changed(_withdrawn(index))
    world.create(hard(more=-2))

    answer = world.propose("hard", wide=True)

    assert {int(name[1:]) % 2 for name in answer.nodes} == {1}


def _withdrawn(index: int) -> Any:
    ill = [card(minor, f"{81_920 + index}Mi", health=False) for minor in range(8)]
    return document(device(f"n{index:02d}", *ill))


def test_nodes_that_were_rejected_are_proposed_again_within_the_budget(world: Plugged) -> None:
    """No other node takes the pod; kube-scheduler has to give its reasons once more."""
    for index in range(NODES):
        if index != 4:
            world.service.changed(_withdrawn(index))
    world.create(hard(more=-2))
    reject(world, ["n04"])

    assert world.propose("hard").nodes == ["n04"]


def test_with_little_work_each_search_of_an_answer_may_take_little() -> None:
    """A namespace that owes more than its part gets the same answers for pods that need no search."""
    work = Work(FEW)
    work.done = 300
    work.go_on()
    assert (work.limit - work.done, work.few, work.spent) == (FEW, True, False)
    full = Work()
    full.done = MOST
    full.go_on()
    assert full.spent


def test_what_is_only_listed_does_not_count_what_is_remembered() -> None:
    """A repeated question lists as many nodes as the first."""
    work = Work()
    work.done, work.recalled, work.aside = 5_000, 4_000, 7
    before = work.taken
    work.go_on(listing=True)
    assert (work.done, work.taken) == (1_000, before)


def _pod(sizes: list[int]) -> Pod:
    groups = tuple(
        RequestGroup(
            "hami",
            DeviceRequest(DeviceType.GPU, core_milli=size, memory_bytes=2**20 + position),
            (ContainerAsk(f"c{position}", position=position),),
        )
        for position, size in enumerate(sizes)
    )
    return Pod("hard", "team", "hard", request=PodRequest(groups), host={"cpu": 1000, "pods": 1})


@pytest.mark.parametrize("few", [False, True])
def test_decisions_that_share_a_budget_are_replayed_alike(few: bool) -> None:  # noqa: FBT001 # a case
    """A recording has what the question had spent before, and whether devices alone were decided about."""
    written: list[bytes] = [header_line(Header())]

    def write(engine: JournalledEngine, entry: Entry) -> None:
        written.append(encode_entry(engine.label, entry))

    engine = JournalledEngine(Policy.parse("binpack"), write, "test/1")
    _cluster(engine)
    work = Work(FEW) if few else Work()
    sizes = (
        [*([210, 220, 230, 240, 260, 270, 280, 290, 310, 330] * 3)[:24]] if not few else [600] * 2
    )
    whole = _pod(sizes)
    alone = Pod("hard", "team", "hard", request=whole.request)
    nodes = engine.ledger.present
    first = nodes.copy()
    first[:3] = False
    decisions = []
    for among in (first, nodes & ~first):
        decisions.append(engine.hold(whole, among, work, alone))
        work.go_on()

    found = list(rerun(read_lines("journal", written)))

    assert [one.question.decision for one in found] == decisions
    assert all(one.same for one in found)
    assert [one.question.alone for one in found] == [True, True]
    assert found[0].question.spent == 0 < found[1].question.spent


def _cluster(engine: Engine) -> None:
    for number in range(6):
        cards = [
            model_card(minor, prefix=f"GPU-{number}", memory=8 + number) for minor in range(8)
        ]
        allocatable = {"cpu": 4000 * (number % 2), "pods": 10}
        engine.handle(NodeSeen(make_node(f"n{number}", cards, allocatable=allocatable)))
