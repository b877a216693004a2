"""While pods queue up at a large cluster, the next ones are shown their node before their turn."""

import asyncio

import pytest
from world import REFUSED, Manifest, World, card, device, document, node, pod, run, whole

from partage.extender.prospects import AheadSettings
from partage.scheduler.engine import State

SERVED = {"schedulerName": "ours"}


def queued(name: str, cards: int = 1, **more: object) -> Manifest:
    """A pod of a scheduler that asks us."""
    return pod(name, whole(cards), **(SERVED | more))


async def crowd(*names: str, nodes: int = 3, head: int = 0, **settings: int) -> World:
    """Nodes of two cards, and pods that queue up, of which the first has had its turn."""
    world = World(ahead=AheadSettings(nodes=2, head=head, **settings), policy="first-fit")
    parts = [
        part for number in range(nodes) for part in (node(f"n{number}"), device(f"n{number}"))
    ]
    await world.start(*parts)
    for name in ("first", *names):
        world.create(queued(name))
    world.filter(queued("first"))
    return world


def shown(world: World) -> dict[str, str]:
    """The node of each pod that was shown one."""
    return {one.entry.pod.name: one.node for one in world.service.books.prospects.shown.values()}


def told(world: World, name: str, where: str, **status: object) -> Manifest:
    """The API server tells of a pod's nomination."""
    said = {"phase": "Pending", "nominatedNodeName": where, **status}
    return world.create(queued(name, status=said, meta={"resourceVersion": "7"}))


@run
async def test_the_next_pods_of_a_queue_are_shown_the_best_of_all_nodes() -> None:
    """Each in its turn gets what it would have got, and is asked about that node alone."""
    world = await crowd("second", "third")
    assert world.queued == 1

    world.service.look_ahead()

    twin = await crowd()
    others = [
        (name, twin.filter(twin.create(queued(name)))["NodeNames"][0])
        for name in ("second", "third")
    ]
    assert world.nominated == others
    before = world.service.books.engine.ledger.picture()
    assert world.filter(queued("second"), "n0")["NodeNames"] == ["n0"]
    assert world.service.books.engine.ledger.picture() == before
    assert await world.bind("second", "n0") == ""
    assert world.service.books.prospects.counts["taken"] == 1


@run
async def test_pods_that_no_nomination_would_reach_are_left_to_their_turn() -> None:
    """The head of the queue has its turn before anything could be written."""
    world = await crowd("a", "b", "c", head=2)

    world.service.look_ahead()

    assert world.nominated == [("c", "n0")]


@run
async def test_the_important_are_shown_their_node_first() -> None:
    """As kube-scheduler takes them."""
    world = await crowd("low")
    world.create(queued("high", priority=9))

    world.service.look_ahead()

    assert [name for name, _ in world.nominated] == ["high", "low"]


@run
async def test_no_more_than_so_many_are_shown_a_node_at_a_time() -> None:
    """What is chosen later knows more."""
    world = await crowd("a", "b", "c", "d", most=3)

    for _ in range(4):
        world.service.look_ahead()

    assert [name for name, _ in world.nominated] == ["a", "b", "c"]


SOFT = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
HARD = {**SOFT, "whenUnsatisfiable": "DoNotSchedule"}
TRIED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


@pytest.mark.parametrize(
    "more",
    [
        {"schedulingGates": [{"name": "quota"}]},
        {"topologySpreadConstraints": [SOFT]},
        {"topologySpreadConstraints": [HARD]},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
        {"schedulerName": "another"},
        {"status": {"phase": "Pending", "conditions": [TRIED]}},
        {"status": {"phase": "Pending", "nominatedNodeName": "n2"}},
        {"meta": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"cards": 5},
    ],
    ids=[
        "gated", "flexible", "spread", "kept apart", "not ours", "tried", "nominated", "ends",
        "too large",
    ],
)  # fmt: skip
def test_who_does_not_simply_queue_is_shown_nothing(more: Manifest) -> None:
    """Nobody can tell which node will do, or kube-scheduler does not try the pod at all."""

    async def test() -> None:
        world = await crowd()
        world.create(queued("odd", **more))

        world.service.look_ahead()

        assert world.nominated == []

    asyncio.run(test())


@run
async def test_a_pod_whose_gates_are_off_queues_up_like_any_other() -> None:
    """The API server's condition of the gates stays until kube-scheduler has tried the pod."""
    world = await crowd()
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    world.create(queued("second", status={"phase": "Pending", "conditions": [gated]}))

    world.service.look_ahead()

    assert [name for name, _ in world.nominated] == ["second"]


@pytest.mark.parametrize("settings", [None, AheadSettings(nodes=4, head=0)], ids=["off", "few"])
def test_nothing_is_chosen_ahead_where_a_cycle_is_cheap(settings: AheadSettings | None) -> None:
    """A nomination is a write; looking at a few nodes costs less."""

    async def test() -> None:
        world = await World(ahead=settings).start(node(), device(), node("n2"), device("n2"))
        for name in ("first", "second"):
            world.create(queued(name))
        world.filter(queued("first"))

        world.service.look_ahead()

        assert world.queued == 0
        assert world.nominated == []

    asyncio.run(test())


@run
async def test_a_place_kept_ahead_gives_way_to_a_pod_that_has_its_turn() -> None:
    """It was promised to nobody; who lost it is tried there first all the same, then everywhere."""
    world = await crowd("second", "third", nodes=2)
    world.service.look_ahead()
    told(world, "third", "n1")

    answer = world.filter(world.create(queued("large", 2)), "n0", "n1")

    assert answer["NodeNames"] == ["n1"]
    assert shown(world) == {"second": "n0"}
    assert world.filter(queued("third"), "n0", "n1")["NodeNames"] == ["n0"]
    assert shown(world) == {}


@run
async def test_a_place_kept_ahead_stays_where_giving_it_up_helps_nobody() -> None:
    """Not a pod that finds no room all the same, nor one that may not go there."""
    world = await crowd("second", nodes=2)
    world.service.look_ahead()
    world.filter(world.create(queued("full", 2)), "n1")

    world.filter(world.create(queued("large", 2)), "n0", "n1")
    world.filter(world.create(queued("elsewhere", 1)), "n1")

    assert world.told == [("large", "InsufficientCards"), ("elsewhere", "InsufficientCards")]
    assert shown(world) == {"second": "n0"}


@run
async def test_of_the_places_kept_ahead_as_few_are_given_up_as_will_do() -> None:
    """Of the least important, and of these of whose turn is furthest off."""
    world = await crowd("a", "b", "c", "d", nodes=3)
    world.create(queued("vip", priority=5))
    for _ in range(3):
        world.service.look_ahead()
    assert shown(world) == {"vip": "n0", "a": "n2", "b": "n2", "c": "n1", "d": "n1"}

    one = world.filter(world.create(queued("one")))["NodeNames"]
    kept = shown(world)
    two = world.filter(world.create(queued("two", 2, priority=5)))["NodeNames"]

    assert (one, kept) == (["n1"], {"vip": "n0", "a": "n2", "b": "n2", "c": "n1"})
    assert (two, shown(world)) == (["n2"], {"vip": "n0", "c": "n1"})


@run
async def test_one_place_kept_ahead_is_given_up_rather_than_two() -> None:
    """Even where their turns are further off."""
    world = await crowd("a", "b", "c", nodes=3)
    for _ in range(2):
        world.service.look_ahead()
    assert shown(world) == {"a": "n0", "b": "n2", "c": "n2"}
    world.filter(world.create(queued("full", 2)), "n1")
    world.service.pod_gone("uid-first")

    answer = world.filter(world.create(queued("large", 2)))

    assert answer["NodeNames"] == ["n0"]
    assert shown(world) == {"b": "n2", "c": "n2"}


@run
async def test_a_quota_that_places_kept_ahead_use_up_is_given_back_by_one_after_another() -> None:
    """Wherever they are, but only those of its namespace."""
    world = await crowd("a", "b", nodes=3)
    world.service.look_ahead()
    limit = {"requests.koordinator.sh/gpu": "300"}
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": limit},
    }  # fmt: skip
    world.service.config_changed(document(quota))

    answer = world.filter(world.create(queued("now")))

    assert answer["NodeNames"]
    assert list(shown(world)) == ["a"]


@run
async def test_a_place_kept_ahead_for_a_more_important_pod_stays() -> None:
    """As kube-scheduler counts whoever is nominated and not less important."""
    world = await crowd(nodes=1)
    world.create(queued("vip", priority=5))
    world.service.books.prospects._asked = 2
    world.service.look_ahead()

    answer = world.filter(world.create(queued("large")), "n0")

    assert answer["NodeNames"] == []
    assert shown(world) == {"vip": "n0"}


@run
async def test_a_binding_elsewhere_takes_what_was_kept_ahead() -> None:
    """A pod that may choose among nodes goes where kube-scheduler says."""
    world = await crowd("second", nodes=2)
    world.service.look_ahead()
    world.create(queued("free", 1, topologySpreadConstraints=[SOFT]))
    world.filter(queued("free", 1, topologySpreadConstraints=[SOFT]), "n1")

    problem = await world.bind("free", "n0")

    assert problem == ""
    assert shown(world) == {}


@run
async def test_a_node_that_kube_scheduler_minds_is_given_back() -> None:
    """Asked about others, the pod moves, and the room that it leaves is told."""
    world = await crowd("second")
    world.service.look_ahead()

    (found,) = world.filter(queued("second"), "n1", "n2")["NodeNames"]

    assert found != "n0"
    assert world.service.books.prospects.counts["missed"] == 1
    assert world.service.books.engine.ledger.allocation("uid-second").node == found


@run
async def test_too_many_misses_end_it_for_a_while() -> None:
    """What is not taken costs a write for nothing."""
    world = await crowd(*[f"p{number}" for number in range(40)], nodes=22)
    for number in range(40):
        world.service.look_ahead()
        world.filter(queued(f"p{number}"))
    assert world.service.books.prospects.counts["missed"] >= 32
    world.create(queued("late"))

    world.service.look_ahead()
    assert "late" not in shown(world)
    world.clock.pass_time(31.0)
    world.service.look_ahead()

    assert "late" in shown(world)


@run
async def test_who_has_no_turn_for_long_loses_the_place_and_the_nomination() -> None:
    """Once the API server has told of it, until it has told that it is off."""
    world = await crowd("second")
    world.service.look_ahead()
    told(world, "second", "n0")
    world.nominated.clear()

    world.clock.pass_time(31.0)
    for _ in range(5):
        await world.service.tick()
    assert world.nominated == [("second", "")]
    world.clock.pass_time(10.0)
    await world.service.tick()  # that write was lost
    told(world, "second", "")
    world.clock.pass_time(10.0)
    await world.service.tick()

    assert world.nominated == [("second", ""), ("second", "")]
    assert world.service.books.prospects.counts["withdrawn"] == 1
    assert "uid-second" not in world.service.books.engine.states


@run
async def test_a_nomination_is_taken_off_what_the_pod_is_by_now() -> None:
    """It was changed before the write arrived, which is refused then."""
    world = await crowd("second")
    world.service.look_ahead()
    told(world, "second", "n0")
    world.clock.pass_time(31.0)
    await world.service.tick()
    world.nominated.clear()

    said = {"phase": "Pending", "nominatedNodeName": "n0"}
    world.create(queued("second", status=said, meta={"resourceVersion": "8"}))
    await world.service.tick()

    assert world.nominated == [("second", "")]


@run
async def test_a_place_kept_ahead_is_kept_for_the_binding_from_the_turn_on() -> None:
    """However long before its turn it was chosen."""
    world = await crowd("second")
    world.service.look_ahead()
    assert shown(world) == {"second": "n0"}
    world.clock.pass_time(29.0)
    assert world.filter(queued("second"), "n0")["NodeNames"] == ["n0"]

    world.clock.pass_time(29.0)
    await world.service.tick()

    assert world.service.books.engine.states.get("uid-second") is State.HELD
    world.clock.pass_time(2.0)
    await world.service.tick()
    assert "uid-second" not in world.service.books.engine.states


@pytest.mark.parametrize("where", ["", "n1"], ids=["nowhere", "elsewhere"])
def test_a_pod_that_others_nominate_keeps_no_place_from_before(where: str) -> None:
    """kube-scheduler takes a nomination off for more important pods; they may have the room at once."""

    async def test() -> None:
        world = await crowd("second", nodes=2)
        world.service.look_ahead()
        told(world, "second", "n0")
        world.create(
            queued(
                "second",
                status={"phase": "Pending", "nominatedNodeName": where},
                meta={"resourceVersion": "8"},
            )
        )

        held = world.service.books.engine.ledger.allocation("uid-second")
        assert (held.node if held else "") == where
        assert world.filter(world.create(queued("vip", priority=9)), "n0")["NodeNames"] == ["n0"]

    asyncio.run(test())


@run
async def test_what_was_chosen_ahead_is_no_claim_of_preemption() -> None:
    """Room for it is not kept for ever; from preemption on, what it is nominated for is a claim."""
    world = await crowd("second")
    world.service.look_ahead()
    told(world, "second", "n0")
    assert world.service.books.nomination("uid-second") == ""

    world.service.books.prospects.leave_alone("uid-second")
    told(world, "second", "n0")

    assert world.service.books.nomination("uid-second") == "n0"


@run
async def test_a_nomination_that_outlived_its_turn_is_taken_off() -> None:
    """kube-scheduler has tried the pod and left what it did not write."""
    world = await crowd("second")
    world.service.look_ahead()
    world.filter(queued("second"), "n0")
    world.nominated.clear()
    told(world, "second", "n0", conditions=[TRIED])

    world.clock.pass_time(31.0)
    await world.service.tick()

    assert world.nominated == [("second", "")]
    assert world.service.books.nomination("uid-second") == ""


@run
async def test_new_books_remember_whom_the_old_ones_nominated() -> None:
    """Made anew in the middle of a queue, they take it for no preemption."""
    world = await crowd("second")
    world.service.look_ahead()
    nominated = told(world, "second", "n0")
    parts = [node("n0"), device("n0", card(0), card(1)), nominated]

    await world.start(*parts)
    world.nominated.clear()
    await world.service.tick()

    assert world.service.books.nomination("uid-second") == ""
    assert world.service.books.engine.states.get("uid-second") is not State.HELD
    assert world.nominated == [("second", "")]


@run
async def test_new_books_remember_what_nobody_has_told_of_yet() -> None:
    """It was on its way while they were made: no claim either, and taken off."""
    world = await crowd("second")
    world.service.look_ahead()
    parts = [node("n0"), device("n0", card(0), card(1)), queued("second")]
    await world.start(*parts)

    told(world, "second", "n0")
    world.nominated.clear()
    await world.service.tick()

    assert world.service.books.nomination("uid-second") == ""
    assert world.nominated == [("second", "")]


@run
async def test_new_books_remember_nobody_who_is_gone() -> None:
    """Nobody would ever tell of it."""
    world = await crowd("second")
    world.service.look_ahead()
    told(world, "second", "n0")

    await world.start(node("n0"), device("n0"))

    assert world.service.books.prospects._told == {}
    assert world.service.books.prospects._stale == {}


@run
async def test_an_instance_that_does_not_lead_chooses_nothing() -> None:
    """What was asked for before it lost the Lease comes too late."""
    world = await crowd("second")

    world.service.follow()
    world.service.look_ahead()

    assert world.nominated == []


@run
async def test_a_pod_that_is_gone_leaves_its_place() -> None:
    """As any pod does."""
    world = await crowd("second")
    world.service.look_ahead()

    world.service.pod_gone("uid-second")

    assert shown(world) == {}
    assert world.service.books.engine.ledger.allocation("uid-second") is None
    world.service.pod_changed(document(queued("second")))
    world.service.look_ahead()
    assert world.nominated == [("second", "n0")]


@run
async def test_a_pod_that_is_bound_unasked_is_no_prospect_any_more() -> None:
    """A Binding that is refused gives everything back."""
    world = await crowd("second")
    world.service.look_ahead()
    world.api.answers.append(REFUSED)

    assert await world.bind("second", "n2")

    assert shown(world) == {}
    assert "uid-second" not in world.service.books.engine.states


@run
async def test_a_card_that_failed_meanwhile_is_not_given() -> None:
    """Asked about the node alone, the books have the last word."""
    world = await crowd("second")
    world.service.look_ahead()
    (held,) = world.service.books.engine.ledger.allocation("uid-second").grants
    cards = [card(minor, health=minor != held.minor) for minor in (0, 1)]
    world.service.device_changed(document(device("n0", *cards, version=2)))

    answer = world.filter(queued("second"), "n0")

    given = world.service.books.engine.ledger.allocation("uid-second")
    assert not answer["NodeNames"] or given.grants[0].minor != held.minor
