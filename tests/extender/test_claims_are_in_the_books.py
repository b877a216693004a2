"""The devices of allocated ResourceClaims count with the pods' shares, on the same cards and in the same books."""

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from world import Manifest, World, card, device, document, half, node, pod, run, whole

from claim_documents import claim, result, share
from partage.dashboard.comparison import comparison_document
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.extender.rebuild import filled
from partage.model.device import DeviceType
from partage.scheduler.events import Event


def _free(world: World, name: str = "n1") -> list[tuple[int, int] | None]:
    """Compute (milli) and memory (GiB) that is left of each card; None where it is closed."""
    ledger = world.service.books.engine.ledger
    cards = ledger.cards(DeviceType.GPU, ledger.index[name])
    return [None if one.closed else (one.core_free, one.memory_free >> 30) for one in cards]


def _told(world: World, *manifests: Manifest) -> None:
    for one in manifests:
        world.service.changed(document(one))


async def _started(*manifests: Manifest) -> World:
    return await World().start(node(), device(), *manifests)


@run
async def test_claims_keep_their_devices_under_every_policy() -> None:
    """What they hold is free in no row of a comparison, and pods that ask by claims are counted beside it."""
    world = await _started(claim(share(cores="60", memory="6Gi")))
    named = [{"name": "card", "resourceClaimName": "x"}]
    world.create(pod("asks", {}, resourceClaims=named))
    world.create(pod("one", whole()))
    world.create(pod("two", whole()))

    found = await comparison_document(world.service.books)

    assert found["by_claims"] == {"placed": 0, "waiting": 1}
    assert found["pods"] == 2
    under = [row for row in found["rows"] if not row["now"]]
    assert {(row["placed"], row["waiting"], row["core_milli"]["used"]) for row in under} == {
        (1, 1, 1600)
    }


@run
async def test_a_claim_and_a_pod_share_a_card() -> None:
    """Each gets only what the other leaves. A pod that does not fit gets the reason and is woken in time."""
    world = await _started()
    _told(
        world,
        claim(share(cores="60", memory="6Gi")),
        claim(share("gpu-1", cores="60", memory="2Gi"), uid="y"),
    )

    waiting = world.create(pod("web", half()))
    assert world.filter(waiting)["NodeNames"] == []
    assert world.told == [("web", "InsufficientCore")]
    assert _free(world) == [(400, 10), (400, 14)]
    assert world.service.audit().clean

    _told(world, claim(uid="y", version=2))
    assert _free(world) == [(400, 10), (1000, 16)]
    assert world.woken == ["uid-web"]
    assert world.filter(waiting)["NodeNames"] == ["n1"]
    assert await world.bind("web") == ""
    assert _free(world) == [(400, 10), (500, 8)]


@run
async def test_a_claim_that_several_pods_share_counts_once() -> None:
    """It counts as long as it is allocated, for any reservation, whether or not a pod of it was bound."""
    world = await _started()
    pods = [{"resource": "pods", "name": f"web-{n}", "uid": f"u{n}"} for n in range(3)]
    _told(world, claim(share()))
    assert _free(world)[0] == (700, 6)

    for version, count in enumerate((1, 3, 0), 2):
        _told(world, claim(share(), version=version, reservedFor=pods[:count]))
        assert _free(world)[0] == (700, 6)
        assert world.service.audit().clean


@run
async def test_a_claim_holds_until_its_allocation_or_itself_is_gone() -> None:
    """A claim in deletion still has a pod on its devices; late news of it changes nothing."""
    world = await _started(claim(share()))
    ending = claim(share(), version=2)
    ending["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    _told(world, ending)
    assert _free(world)[0] == (700, 6)

    _told(world, claim(version=3), claim(share(cores="90"), version=2))
    assert _free(world)[0] == (1000, 16)
    _told(world, claim(share("gpu-1"), version=4))
    assert _free(world) == [(1000, 16), (700, 6)]
    world.service.gone(document(claim(share("gpu-1"), version=5)))
    _told(world, claim(share("gpu-1"), version=4))
    assert _free(world) == [(1000, 16), (1000, 16)]
    assert world.service.audit().clean
    assert not world.service.books.engine.states


@run
async def test_what_is_allocated_anew_elsewhere_is_given_back_where_it_was() -> None:
    """After an interrupted watch one event has both the end and the beginning."""
    world = await _started(node("n2"), device("n2"), claim(share()))
    _told(world, claim(share(pool="n2"), version=2))

    assert _free(world, "n1")[0] == (1000, 16)
    assert _free(world, "n2")[0] == (700, 6)
    assert world.service.audit().clean


@run
async def test_an_audit_finds_a_claim_that_is_not_counted_as_it_should_be() -> None:
    """It finds missing and leaked devices by the same comparison as for pods."""
    world = await _started(claim(share()))
    engine = world.service.books.engine
    held = engine.ledger.undo("claim-x")
    assert held is not None

    assert world.service.audit().missing == {
        "core_milli": 300,
        "memory_bytes": 10 << 30,
        "slots": 1,
    }
    found = await world.service.audit_gently(list)
    assert found is not None
    assert not found.clean
    engine.ledger.apply(held)
    assert world.service.audit().clean
    world.service.books.cluster_cache.claim_gone(document(claim()))
    assert world.service.audit().leaked["core_milli"] == 300
    found = await world.service.audit_gently(list)
    assert found is not None
    assert not found.clean


@run
async def test_a_claim_keeps_its_card_when_cards_change() -> None:
    """Its device is a number: the card with that number now has the claim, and a missing one still counts."""
    world = await _started(claim(share("gpu-1")))
    world.service.changed(document(device("n1", card(0), version=2)))
    assert world.service.books.cluster_cache.problems == {
        "ResourceClaim team/x": "ResourceClaim team/x: request gpu: device gpu-1 of node n1: "
        "there is no such card on the node"
    }
    world.service.changed(document(device("n1", card(0), card(1), version=3)))
    assert world.service.books.cluster_cache.problems == {}
    assert _free(world) == [(1000, 16), (700, 6)]
    assert world.service.audit().clean
    (held,) = world.service.books.engine.ledger.on_node("n1")
    assert held.grants[0].uuid == "GPU-1"


@run
async def test_what_cannot_be_read_closes_its_card_and_is_told() -> None:
    """It stays closed until a person corrects the claim, and no pod is evicted for it."""
    world = await _started(claim(share(cores="many")))
    assert _free(world) == [None, (1000, 16)]
    assert (
        "'many' is not a quantity"
        in world.service.books.cluster_cache.problems["ResourceClaim team/x"]
    )

    _told(world, claim(share("odd"), version=2))
    assert _free(world) == [None, None]
    assert any("claim team/x" in message for message in world.quarantined)
    _told(world, claim(share(), version=3))
    assert _free(world) == [(700, 6), (1000, 16)]
    assert world.service.books.cluster_cache.problems == {}


@run
async def test_a_card_that_is_given_twice_names_the_claim() -> None:
    """A pod and a claim exceed one card: the card takes no other pod, and the report names both."""
    world = await _started()
    world.create(pod("web", whole()))
    assert await world.bind("web") == ""
    world.seen("web")
    _told(world, claim(share("gpu-0"), share("gpu-1")))

    assert _free(world) == [None, (700, 6)]
    (message,) = world.quarantined
    assert "claim team/x and team/web" in message


@run
async def test_no_claim_is_sent_away_for_an_important_pod() -> None:
    """A claim is no pod: its end gains nothing, and its own pods may have any priority."""
    world = await _started(claim(result()))
    world.create(pod("web", whole()))
    assert await world.bind("web") == ""
    world.seen("web")
    victims = {"n1": {"Pods": [{"UID": "uid-web"}]}}
    one, two = (world.create(pod(f"vip-{n}", whole(n), priority=1000)) for n in (1, 2))

    assert world.filter(one)["NodeNames"] == []
    assert list(_preempted(world, {"Pod": one, "NodeNameToMetaVictims": victims})) == ["n1"]
    assert world.filter(two)["NodeNames"] == []
    assert _preempted(world, {"Pod": two, "NodeNameToMetaVictims": victims}) == {}


def _preempted(world: World, body: Manifest) -> Manifest:
    answer: Manifest = json.loads(world.service.preempt(json.dumps(body).encode()))
    return answer["NodeNameToMetaVictims"] or {}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["x", "y"]),
        st.sampled_from(
            [
                (),
                (share(),),
                (share("gpu-1", cores="55", memory="3Gi"),),
                (result("gpu-1"),),
                (share(), share("gpu-1", pool="n2")),
                (share("odd", pool="n2"),),
                (share(cores="?"),),
                (share(driver="gpu.nvidia.com"),),
                None,
            ]
        ),
        st.integers(0, 3),
    ),
    max_size=8,
)


@given(STEPS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_any_order_of_news_ends_in_the_books_of_a_rebuild(steps: list[Any], chance: Any) -> None:
    """Claims in their order, nodes and cards between them, all repeated, end in the books of a new leader."""
    nodes: list[Manifest] = [
        node(),
        device(),
        node("n2"),
        device("n2", card(0), version=2),
        device("n2"),
    ]
    nodes[-1]["metadata"]["resourceVersion"] = "3"
    claims: list[tuple[str, Manifest]] = []
    uids: dict[str, str] = {}
    for version, (name, results, times) in enumerate(steps, 10):
        uid = uids.setdefault(name, f"{name}-{version}")
        if results is None:
            claims.append(("gone", claim(name=name, uid=uids.pop(name), version=version)))
        else:
            claims += [("changed", claim(*results, name=name, uid=uid, version=version))] * times
    books = Books(ClusterCache(), Hooks())
    cache, engine = books.cluster_cache, books.engine

    def told(events: list[Event]) -> None:
        for event in events:
            engine.handle(event)
        engine.audit()

    streams: list[list[Any]] = [[("node", one) for one in nodes], list(claims)]
    while any(streams):
        stream = chance.choice([one for one in streams if one])
        what, manifest = stream.pop(0)
        found = document(manifest)
        if what == "gone":
            told(cache.gone(found))
        else:
            told(cache.changed(found))

    latest: dict[str, Manifest] = {}
    for what, manifest in claims:
        latest[manifest["metadata"]["uid"]] = manifest
        if what == "gone":
            del latest[manifest["metadata"]["uid"]]
    fresh = _fresh([node(), device(), node("n2"), nodes[-1]], list(latest.values()))
    assert engine.ledger.picture() == fresh.engine.ledger.picture()
    assert engine.ledger.suspicions() == fresh.engine.ledger.suspicions()
    assert {one.uid for one in engine.ledger.allocations()} == {
        one.uid for one in cache.claims.facts()
    }


def _fresh(nodes: list[Manifest], claims: list[Manifest]) -> Books:
    documents = [document(one) for one in (*nodes, *claims)]
    return asyncio.run(filled(Books(ClusterCache(), Hooks()), documents))
