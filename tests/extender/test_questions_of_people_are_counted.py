"""Readers of a namespace may ask at any rate why its pods wait, and the namespace pays for these searches."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from wire_client import Running
from world import World, card, device, document, node, pod, run

from partage.dashboard import comparison
from partage.dashboard.comparison import comparison_document
from partage.dashboard.fragments import fragments_of, usual
from partage.dashboard.overview import overview_document
from partage.dashboard.view_cache import Standing
from partage.dashboard.ways import ways_document
from partage.extender.explain import explain
from partage.extender.unschedulable_pods import UnschedulablePods
from partage.model.pod import Pod
from partage.model.reason import Refusal
from partage.placement.card import FEW, MOST, Work
from partage.placement.fragmentation import Shape
from partage.scheduler.engine import Engine
from partage.scheduler.events import Placement
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.translation import Translation

PARTS = (21, 22, 23, 24, 26, 27, 28, 29, 31, 33, 34, 36, 37, 38, 39, 41, 43, 44, 46)


def hard(name: str, number: int = 0) -> dict[str, Any]:
    """A pod of two dozen shares that hardly fit, and are different from every other pod's."""
    found = pod(name, {})
    found["spec"]["containers"] = [
        {
            "name": f"c{i}",
            "resources": {
                "limits": {
                    "nvidia.com/gpu": "1",
                    "nvidia.com/gpumem": str(100 + i + 24 * number),
                    "nvidia.com/gpucores": str(PARTS[i % 19] + (3 if i < 14 else 2)),
                }
            },
        }
        for i in range(24)
    ]
    return found


async def asked(question: Callable[[World, str], Any]) -> None:
    """Ask about many hard pods, again and again, without time passing."""
    world = await World().start(node(), device("n1"))
    for number in range(200):
        world.create(hard(f"p{number}", number))
    allowance = world.service.books.cycle.allowance
    for _ in range(3):
        for number in range(200):
            found = question(world, f"p{number}")
            if hasattr(found, "__await__"):
                found = await found
            assert found is not None
    # One decision may begin with a little left of the namespace's part.
    assert 0 < sum(allowance.debts.values()) < allowance.settings.owed + 8 * MOST


@run
async def test_explanations_are_searched_for_in_the_namespaces_turn() -> None:
    """Six hundred explanations, each of which took a decision's work and more."""

    def question(world: World, name: str) -> Any:
        return explain(world.service.books, "team", name, now=world.service.clock.monotonic())

    await asked(question)


@run
async def test_so_are_ways_to_make_a_pod_fit() -> None:
    """Those are kept for ten seconds, but only for few pods."""

    async def question(world: World, name: str) -> Any:
        now = world.service.clock.monotonic()
        return await ways_document(world.service.books, "team", name, now=now)

    await asked(question)


@run
async def test_a_comparison_of_policies_searches_for_few_hard_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It places all pods again under each policy, and others wait for their decisions meanwhile."""
    # No two nodes are alike.
    cards = {f"n{n}": [card(minor, f"{16 + n}Gi") for minor in range(8)] for n in range(8)}
    world = await World().start(*map(node, cards), *(device(n, *cards[n]) for n in cards))
    for number in range(60):
        world.create(hard(f"p{number}", number))
    world.create(pod("last", {"koordinator.sh/gpu": "100"}))
    decide, beyond = Engine.evaluate, Counter[Engine]()

    def counted(engine: Engine, asked: Pod, **more: Any) -> Placement | Refusal:
        work = more.pop("work", None) or Work()
        found = decide(engine, asked, work=work, **more)
        beyond[engine] += max(0, work.taken - FEW)
        return found

    monkeypatch.setattr(Engine, "evaluate", counted)

    found = await comparison_document(world.service.books)

    assert len(beyond) == 4
    # The last search and its sentences may go beyond.
    assert all(MOST < units < 20 * MOST + 3 * MOST for units in beyond.values())
    rows = [row for row in found["rows"] if not row["now"]]
    assert {row["placed"] for row in rows} == {1}
    told = [{one["code"] for one in row["waiting_by_code"]} for row in rows]
    assert all("SearchDeferred" in codes for codes in told)


async def beside(question: Awaitable[object]) -> int:
    """How often others have their turn until the question is answered."""
    turns, others = 0, True

    async def another() -> None:
        nonlocal turns
        while others:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(another())
    await question
    others = False
    await task
    return turns


async def crowded() -> World:
    """A node of eight full cards, and a pod for which many of their pods would have to end."""
    cards = [card(minor, id=f"GPU-{minor}") for minor in range(8)]
    world = await World().start(node(), device("n1", *cards))
    part = {f"koordinator.sh/gpu-{what}": "10" for what in ("core", "memory-ratio")}
    for number in range(72):
        record = json.dumps({"gpu": [{"minor": number % 8, "resources": part}]})
        notes = {names.DEVICE_ALLOCATED: record}
        meta = {"uid": f"b{number}", "annotations": notes}
        world.create(pod(f"b{number}", part, meta=meta, nodeName="n1"))
    wanting = hard("hard")
    wanting["spec"]["containers"] = wanting["spec"]["containers"][:16]
    world.create(wanting)
    return world


@run
async def test_whose_end_makes_room_is_searched_for_at_the_namespaces_expense() -> None:
    """That takes far more than a decision, so without a turn the answer lacks it."""
    world = await crowded()
    allowance, now = world.service.books.cycle.allowance, world.service.clock.monotonic()

    while allowance.has_turn("team", now):
        before = allowance.debts.get("team", 0)
        await ways_document(world.service.books, "team", "hard", now=now)
        assert allowance.debts["team"] > before + MOST
    owed = allowance.debts["team"]
    await ways_document(world.service.books, "team", "hard", now=now)

    assert allowance.debts["team"] < owed + MOST


@run
async def test_others_have_their_turn_while_a_plan_is_searched_for() -> None:
    """The search for pods whose end makes room for a hard pod takes many questions, each of them a search."""
    world = await crowded()

    turns = await beside(ways_document(world.service.books, "team", "hard"))

    assert turns > 20, turns  # in one stretch there were 3


@run
async def test_others_have_their_turn_while_pods_are_listed_for_a_comparison() -> None:
    """Every caller may ask for one; with too many pods nothing is placed, yet the pods are listed."""
    world = await World().start(node(), device("n1"))
    for number in range(2_000):
        world.create(pod(f"p{number}", {"koordinator.sh/gpu": "100"}))

    turns = await beside(comparison_document(world.service.books, most=10))

    assert turns >= 2_000 / 256, turns


@run
async def test_others_have_their_turn_while_requests_are_judged_for_a_comparison() -> None:
    """Each of a hundred pods may have hundreds of conditions on nodes."""
    world = await World().start(node(), device("n1"))
    for number in range(100):
        world.create(pod(f"p{number}", {"koordinator.sh/gpu": "100"}))

    books = world.service.books
    pods = [entry.pod for entry in books.cluster_cache.pods.values()]
    turns = await beside(comparison._tables(books.engine, pods))

    assert turns >= 100 / 4, turns


@run
async def test_a_comparison_goes_by_few_kinds_of_requests() -> None:
    """FGD and the measure of fragmentation weigh every node against each kind, and any user may make pods that all differ."""
    world = await World().start(node(), device("n1"))
    for number in range(90):
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": str(1 + number)}
        world.create(pod(f"p{number}", limits))
    for number in range(12):
        world.create(uneven(f"q{number}", number))
    books = world.service.books
    pods = [entry.pod for entry in books.cluster_cache.pods.values()]

    workload = (await comparison._tables(books.engine, pods)).workload
    found = await comparison_document(books)

    assert len(workload.shapes) == len(workload.chances) == 64
    assert sum(workload.chances) == pytest.approx(1)
    assert {row["fragmentation"]["asks"] <= 64 for row in found["rows"]} == {True}


def uneven(name: str, number: int) -> dict[str, Any]:
    """A pod of 24 containers that all ask for something else, as no other pod does."""
    found = pod(name, {})
    found["spec"]["containers"] = [
        {
            "name": f"c{i}",
            "resources": {
                "limits": {
                    "nvidia.com/gpu": str(1 + number % 4),
                    "nvidia.com/gpumem": "100",
                    "nvidia.com/gpucores": str(1 + i + 24 * (number // 4)),
                }
            },
        }
        for i in range(24)
    ]
    return found


@run
async def test_others_have_their_turn_while_nodes_are_measured_for_the_overview() -> None:
    """Pods of many unequal containers change the usual requests: few kinds count, and nodes are measured piece by piece."""
    nodes = [f"n{number}" for number in range(1_100)]
    world = await World().start(*map(node, nodes), *map(device, nodes))
    standing = Standing()
    await overview_document(world.service.books, standing)
    for number in range(12):
        world.create(uneven(f"p{number}", number))

    turns = await beside(overview_document(world.service.books, standing))

    assert turns >= 1_100 / 512 + 1, turns  # in one stretch there was 1
    found = await overview_document(world.service.books, standing)
    assert 32 < found["fragmentation"]["asks"] <= 64
    # What is kept is not measured again.
    assert await beside(overview_document(world.service.books, standing)) <= 1


@run
async def test_nodes_that_change_while_others_are_measured_are_measured_again() -> None:
    """A node that was among the first gets a pod, and one is added, before the last was measured."""
    nodes = [f"n{number}" for number in range(1_100)]
    world = await World().start(*map(node, nodes), *map(device, nodes))
    books = world.service.books
    workload = await usual({Shape(1000, milli, 1): milli for milli in (300, 600, 1000)})
    before = await fragments_of(books.engine.ledger, workload)

    measuring = asyncio.create_task(fragments_of(books.engine.ledger, workload))
    await asyncio.sleep(0)
    world.create(pod("p", {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "50"}))
    placed = books.engine.schedule(books.cluster_cache.pods["uid-p"].pod)
    assert isinstance(placed, Placement)
    for one in (node("late"), device("late")):
        world.service.changed(document(one))
    assert not measuring.done()
    found = await measuring

    assert found == await fragments_of(books.engine.ledger, workload) != before


@run
async def test_of_waiting_pods_only_unreported_ones_are_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A question may name a pod that does not exist, and a hundred thousand may wait."""
    world = await World().start(node(), device("n1"))
    world.filter(world.create(pod("reported", {"nvidia.com/gpu": "9"})))
    world.filter(pod("unreported", {"nvidia.com/gpu": "9"}))
    monkeypatch.setattr(UnschedulablePods, "values", lambda _: pytest.fail("all are looked at"))

    assert explain(world.service.books, "team", "absent") is None
    told = explain(world.service.books, "team", "unreported")
    assert told is not None
    assert told["state"] == "waiting"


@run
async def test_victims_are_added_without_a_look_at_all_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kube-scheduler names the nodes, and the pods of others do not matter."""
    world = await World().start(node(), device("n1"))
    await world.place(pod("low", {"nvidia.com/gpu": "2"}, priority=1))
    vip = world.create(pod("vip", {"nvidia.com/gpu": "2"}, priority=9))

    class Pods(dict[str, Any]):
        def items(self) -> Any:
            pytest.fail("all are looked at")

    cache = world.service.books.cluster_cache
    monkeypatch.setattr(cache, "pods", Pods(cache.pods))
    victims = {"n1": {"Pods": [], "NumPDBViolations": 0}}
    asked = {"Pod": vip, "NodeNameToVictims": victims}
    told = json.loads(world.service.preempt(json.dumps(asked).encode()))

    assert list(told["NodeNameToMetaVictims"]) == ["n1"]


def test_an_ordinary_pod_is_explained_whatever_its_namespace_owes() -> None:
    """Only a search waits for a turn, and the answer has the last result meanwhile."""
    with Running(node("n1"), device("n1")) as site:
        for number in range(100):
            site.world.create(hard(f"p{number}", number))
            site.get(f"/api/explain/team/p{number}")
        site.world.create(pod("large", {"koordinator.sh/gpu": "6400"}))
        told = json.loads(site.get("/api/explain/team/large")[2])
    assert told["reason"]["code"] != "SearchDeferred"


def test_pods_that_differ_in_what_nobody_reads_fill_no_memory() -> None:
    """A tenant writes another 200 KiB into an annotation each time."""
    translation = Translation(Context.of(Settings(), FAMILIES))
    for number in range(1000):
        manifest = pod(
            "web",
            {"koordinator.sh/gpu": "100"},
            meta={"annotations": {"x": f"{number}" + "y" * 200_000}},
        )
        translation.read(document(manifest))
    assert translation._bytes <= 32 * 2**20
    assert len(translation._known) < 200
    again = pod("web", {"koordinator.sh/gpu": "100"})
    one, two = translation.read(document(again)), translation.read(document(again))
    assert one.pod.request is two.pod.request
