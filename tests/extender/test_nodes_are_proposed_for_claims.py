"""The engine proposes nodes on which kube-scheduler tries a pod's claims first; kube-scheduler itself decides."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from plugin_caller import connected
from plugin_world import Plugged
from test_no_pod_costs_more_than_its_share import bounded
from world import Manifest, World, device, document, node, pod, run, whole

from claim_documents import claim, share
from partage.extender import pending_allocations
from partage.extender.claim_proposals import MOST_PROPOSED
from partage.extender.claims_told import explained
from partage.extender.cycle import PROPOSED
from partage.extender.pending_allocations import LIFE
from partage.model.device import MILLI, DeviceType, SliceMode
from partage.model.policy import Policy
from partage.model.request import CardFilter, DeviceRequest
from partage.scheduler.engine import State
from partage.scheduler.events import PolicyChanged
from partage.vendors.names import MIG_CLASS, QGPU_CORE, QGPU_MEMORY, SHARE_CLASS, TRANSLATED
from partage.wire import plugin as wire
from partage.wire.claim_requests import request_of_claims
from partage.wire.claim_shapes import Shape, Translated, encode_translated

PROFILE = 'device.attributes["gpu.partage.io"].profile'
MODEL = 'device.attributes["gpu.partage.io"].model'


def exactly(cores: object = "30", memory: object = "4Gi", **more: Any) -> Manifest:
    """What a request asks; without amounts it names none."""
    amounts = {"cores": cores, "memory": memory}
    given = {key: str(value) for key, value in amounts.items() if value is not None}
    return {
        "deviceClassName": SHARE_CLASS,
        **({"capacity": {"requests": given}} if given else {}),
        **more,
    }


def selected(*expressions: str) -> dict[str, Any]:
    """Selectors of a request."""
    return {"selectors": [{"cel": {"expression": one}} for one in expressions]}


def waiting(*asks: Manifest, **devices: Any) -> Manifest:
    """A claim that is not allocated."""
    made = claim()
    requests = [{"name": f"r{number}", "exactly": one} for number, one in enumerate(asks)]
    made["spec"] = {"devices": {"requests": requests, **devices}}
    return made


def claimant(name: str = "web", **more: Any) -> Manifest:
    """A pod that asks for devices by a claim alone."""
    return pod(name, resourceClaims=[{"name": "x", "resourceClaimName": "x"}], **more)


def propose(
    world: Plugged, *claims: Manifest, user: Manifest | None = None, **more: Any
) -> wire.Answer:
    """A new attempt, asked about as the plugin does."""
    asks = user or claimant()
    raw = [msgspec.Raw(json.dumps(one).encode()) for one in claims or (waiting(exactly()),)]
    body = msgspec.Raw(json.dumps(asks).encode())
    return world.propose(asks["metadata"]["name"], pod=body, claims=raw, **more)


def another(world: Plugged, rejected: list[str], name: str = "web") -> wire.Answer:
    """All of these were rejected."""
    return world.attempts.another(wire.Another(1, f"uid-{name}", world.number, rejected))


async def cluster(*names: str, **settings: Any) -> Plugged:
    """Nodes of two cards each."""
    world = Plugged(**settings)
    await world.start(*(one for name in names for one in (node(name), device(name))))
    return world


@run
async def test_the_node_of_the_same_pod_by_names_comes_first_and_nothing_is_held() -> None:
    """It is one of the nodes with enough amounts; kube-scheduler's own allocator takes the devices."""
    world = await cluster("n1", "n2", "n3")
    world.service.books.take([PolicyChanged(Policy.parse("binpack"))], 0.0)
    world.service.changed(document(_on("n3", share(cores="50", memory="8Gi"))))
    await world.place(pod("whole", whole(2)), "n2")

    answer = propose(world)

    assert answer.nodes == ["n3", "n1"]
    assert not answer.scores
    assert answer.nodes == propose(world).nodes, "nothing is held in between"
    assert world.states.keys() == {"uid-whole", "claim-x"}
    by_names = {"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory": "4Gi"}
    world.create(pod("named", by_names))
    assert world.propose("named").nodes == ["n3"]
    world.check()


def _on(name: str, *results: Manifest, version: int = 1) -> Manifest:
    """An allocated claim on a node."""
    return claim(*({**one, "pool": name} for one in results), version=version)


@run
async def test_what_was_rejected_is_left_out_once_and_then_kube_scheduler_looks_by_itself() -> (
    None
):
    """Each pod is tried three times at most, even with wrong books, and again a minute later."""
    names = [f"n{number:03}" for number in range(PROPOSED + MOST_PROPOSED + 10)]
    world = await cluster(*names)

    first = propose(world)
    assert len(first.nodes) == PROPOSED
    assert another(world, first.nodes).again
    second = propose(world)
    assert len(second.nodes) == MOST_PROPOSED
    assert not {*first.nodes} & {*second.nodes}
    assert another(world, second.nodes).again
    assert propose(world).skip
    assert len(propose(world, user=claimant("other")).nodes) == PROPOSED, "of no other pod"

    world.clock.pass_time(61)
    assert propose(world).nodes == first.nodes


@run
async def test_where_no_other_node_fits_kube_scheduler_looks_by_itself() -> None:
    """The engine refuses no such pod: the allocator may know better than the books, which lag behind it."""
    world = await cluster("n1")

    assert propose(world, waiting(exactly(cores="30", memory="64Gi"))).skip
    assert propose(world).nodes == ["n1"]
    assert another(world, ["n1"]).again
    assert propose(world).skip
    assert world.service.books.waiting.get("uid-web") is None


@run
async def test_only_nodes_whose_slices_kube_scheduler_has_seen_are_proposed() -> None:
    """A Device or totals may show cards earlier or without slices; a node is included once its slices arrive."""
    world = await cluster("n1", "n2", "n3")
    bare = node("bare")
    bare["status"]["allocatable"] |= {QGPU_CORE: "100", QGPU_MEMORY: "80"}
    world.service.changed(document(bare))

    def proposed(name: str = "web", **more: Any) -> list[str]:
        return sorted(propose(world, user=claimant(name), **more).nodes)

    assert proposed() == ["bare", "n1", "n2", "n3"], "a plugin that tells nothing"
    assert propose(world, pools=wire.Pools()).skip, "of none"
    assert proposed(pools=wire.Pools(whole=["n2", "n3", "stranger"])) == ["n2", "n3"]
    assert proposed() == ["n2", "n3"], "it tells changes alone"
    assert another(world, ["n2"]).again
    assert proposed(pools=wire.Pools(whole=["n1"], gone=["n3"])) == ["n1"]
    await world.start(*(one for name in ("n1", "n2", "n3") for one in (node(name), device(name))))
    assert proposed("other") == ["n1", "n2"], "rebuilt books"
    assert proposed("wide", wide=True) == ["n1", "n2"]

    world.attempts.disconnected()
    assert proposed("last") == ["n1", "n2", "n3"], "the next may tell nothing"
    world.check()


@pytest.mark.parametrize("claims", [True, False])
def test_the_plugin_is_asked_for_pools_of_this_driver_where_claims_are_followed(
    *, claims: bool
) -> None:
    """The plugin itself knows no driver."""

    async def main() -> None:
        async with connected(World(), claims=claims) as (caller, _):
            (words,) = (one["vocabulary"] for one in caller.pushed if "vocabulary" in one)
            assert words.get("driver") == ("gpu.partage.io" if claims else None)

    asyncio.run(main())


@run
async def test_nothing_else_of_an_attempt_is_for_pods_with_claims() -> None:
    """A message out of order books nothing, and neither does one of an old attempt."""
    world = await cluster("n1")
    propose(world)

    assert world.reserve("web").code == "PlaceLost"
    allowed, refused = await world.bind_by("web")
    assert allowed is None
    assert refused is not None
    world.unreserve("web")
    world.attempts.disconnected()
    assert not world.states
    world.number -= 1
    assert propose(world).nodes == ["n1"]
    world.number -= 2
    assert propose(world).code == "StaleAttempt"


@run
async def test_nodes_without_cpu_are_not_proposed() -> None:
    """Kube-scheduler's count decides, of which it reports only changes; also after a new Node or new books."""
    world = await cluster("n1", "n2", "n3")
    asks = claimant(container={"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}})
    full = wire.Taken("n1", cpu=31_000), wire.Taken("n2", memory=64 << 30)

    assert propose(world, user=asks, taken=[*full]).nodes == ["n3"]
    assert propose(world, user=asks).nodes == ["n3"]
    world.service.changed(document(node("n1", 2)))
    assert propose(world, user=asks).nodes == ["n3"]
    world.check()
    await world.start(*(one for name in ("n1", "n2", "n3") for one in (node(name), device(name))))
    assert propose(world, user=asks).nodes == ["n3"]
    world.check()

    changed = propose(world, user=asks, taken=[wire.Taken("n2"), wire.Taken("gone")])
    assert sorted(changed.nodes) == ["n2", "n3"]
    assert not world.woken, "no room for devices has appeared"


@run
async def test_pods_with_soft_wishes_get_every_node_that_fits_with_scores() -> None:
    """kube-scheduler weighs them; after a rejection of all it looks at all nodes."""
    names = [f"n{number:02}" for number in range(PROPOSED + 4)]
    world = await cluster(*names)

    answer = propose(world, wide=True)

    assert sorted(answer.nodes) == names
    assert len(answer.scores) == len(names)
    assert another(world, answer.nodes).again
    assert propose(world, wide=True).skip


@run
async def test_pods_with_claims_are_learnt_from() -> None:
    """Their requests, CPU included, count until they are gone, and so do the amounts of all others."""
    world = await cluster("n1")
    asks = claimant(container={"resources": {"requests": {"cpu": "2"}}})
    propose(world, user=asks)

    cache = world.service.books.cluster_cache
    (one,) = cache.compared.values()

    assert one.host["cpu"] == 2000
    assert one.request.groups[0].request.core_milli == 300
    assert not cache.taken_by_others()
    propose(world, user=asks, taken=[wire.Taken("n1", cpu=7000, memory=1 << 30, pods=3)])
    assert cache.taken_by_others() == {"cpu": 5000, "memory": 1 << 30, "pods": 2}
    world.service.changed(document(asks))
    assert cache.taken_by_others() == {"cpu": 7000, "memory": 1 << 30, "pods": 3}, "it waits"
    world.service.pod_gone("uid-web")
    assert not world.service.books.cluster_cache.compared


def allocated(
    world: Plugged, *claims: Manifest, name: str = "web", attempt: int | None = None
) -> wire.Answer:
    """kube-scheduler has reserved a pod, with what it has allocated to its claims."""
    raw = [msgspec.Raw(json.dumps(one).encode()) for one in claims]
    number = world.number if attempt is None else attempt
    return world.attempts.reserve(wire.Reserve(0, f"uid-{name}", number, "n1", claims=raw))


def used(world: Plugged) -> dict[str, int]:
    """Thousandths of compute that the books have given of each node's cards."""
    found: dict[str, int] = {}
    for held in world.service.books.engine.ledger.allocations():
        found[held.node] = found.get(held.node, 0) + sum(one.core_milli for one in held.charges)
    return found


FULL = share("gpu-0", cores="100", memory="16Gi"), share("gpu-1", cores="100", memory="16Gi")
"""Both cards of a node."""


@run
async def test_what_kube_scheduler_has_allocated_is_held_until_it_is_stored() -> None:
    """Next pods avoid it, by claims and by names; the question before storage and the news count it once."""
    world = await cluster("n1", "n2")
    propose(world)

    assert not allocated(world, _on("n1", *FULL)).code
    assert used(world) == {"n1": 2000}
    assert propose(world, user=claimant("other")).nodes == ["n2"]
    world.create(pod("named", whole()))
    assert world.propose("named").nodes == ["n2"]

    assert world.service.review_claim(document(_on("n1", *FULL))) == ""
    assert used(world)["n1"] == 2000
    world.service.changed(document({**waiting(exactly()), "metadata": _head(version=2)}))
    assert world.service.review_claim(document(_on("n1", *FULL, version=2))) == ""
    world.service.changed(document(_on("n1", *FULL, version=3)))
    assert used(world)["n1"] == 2000
    assert world.states["claim-x"] is State.BOUND
    world.check()


def _head(**more: Any) -> Manifest:
    metadata: Manifest = claim(**more)["metadata"]
    return metadata


@run
async def test_the_question_and_the_news_take_the_place_of_what_was_held() -> None:
    """This holds even with room for both together, and in either order."""
    world = await cluster("n1")
    propose(world)
    mine = _on("n1", share(cores="30", memory="1Gi"))
    other = {**_on("n1", share(cores="20", memory="1Gi")), "metadata": _head(uid="y")}
    allocated(world, mine)
    allocated(world, other, name="other")
    assert world.service.review_claim(document(mine)) == ""
    assert used(world) == {"n1": 300 + 200}
    world.service.changed(document(_on("n1", share(cores="30", memory="1Gi"), version=2)))
    allocated(world, mine)
    assert used(world) == {"n1": 300 + 200}


@run
async def test_news_of_a_claim_ends_what_was_held_for_it_only_once_it_is_allocated() -> None:
    """kube-scheduler writes a finalizer first; without a webhook the allocation itself is the first news."""
    world = await cluster("n1")
    propose(world)
    allocated(world, _on("n1", *FULL))

    world.service.changed(document({**waiting(exactly()), "metadata": _head(version=2)}))
    assert used(world) == {"n1": 2000}
    world.service.changed(document(_on("n1", share(cores="10"), version=3)))
    assert used(world) == {"n1": 100}


@pytest.mark.parametrize(
    "end",
    ["unreserve", "again", "anew", "pod", "claim", "time", "disconnect", "incarnation"],
)
@run
async def test_what_is_not_stored_is_released(end: str) -> None:
    """This holds for any end of the attempt; a pod that waits for the room is woken."""
    world = await cluster("n1")
    propose(world)
    allocated(world, _on("n1", *FULL))
    world.create(pod("named", whole()))
    assert world.propose("named").code
    mine = world.number - 1

    match end:
        case "unreserve":
            world.unreserve("web", mine - 1)
            assert used(world), "an older attempt's"
            world.unreserve("web", mine)
            assert not used(world)
            world.clock.pass_time(1)
            await world.service.tick()
        case "again":
            propose(world)
        case "anew":
            allocated(world, _on("n1", share(cores="10")))
            assert used(world) == {"n1": 100}
            world.unreserve("web")
        case "pod":
            world.service.pod_gone("uid-web")
        case "claim":
            world.service.gone(document(waiting(exactly())))
        case "time":
            world.clock.pass_time(LIFE - 1)
            await world.service.tick()
            assert used(world)
            world.clock.pass_time(1)
            await world.service.tick()
        case "disconnect":
            world.attempts.disconnected()
        case "incarnation":
            world.attempts.forget()

    assert not used(world)
    assert "uid-named" in world.woken
    assert not len(world.service.pending)
    world.check()


BY_NAMES = {"koordinator.sh/gpu-core": "60", "koordinator.sh/gpu-memory": "10Gi"}


@run
async def test_a_pods_share_by_names_leaves_the_card_of_its_claim() -> None:
    """kube-scheduler's allocator does not know the proposal: its first card may be the one held for the names."""
    world = await cluster("n1")
    world.create(claimant("both", limits=BY_NAMES))
    assert world.propose("both", wide=True).nodes == ["n1"]
    ledger = world.service.books.engine.ledger
    held = ledger.allocation("uid-both")
    assert held is not None
    (grant,) = held.grants
    mine = _on("n1", share(f"gpu-{grant.minor}", cores="60", memory="10Gi"))

    assert not allocated(world, mine, name="both").code
    assert not world.reserve("both").code

    place = ledger.allocation("uid-both")
    assert place is not None
    assert [one.minor for one in place.grants] == [1 - grant.minor]
    assert world.service.review_claim(document(mine)) == ""
    assert used(world) == {"n1": 600 + 600}
    allowed, refused = await world.bind_by("both")
    assert allowed is not None
    assert refused is None
    world.check()


@run
async def test_a_node_where_a_pods_claim_leaves_nothing_for_its_names_is_left_out() -> None:
    """The allocator would choose the same cards again; without another node it is tried all the same."""
    world = await cluster("n1", "n2")
    world.create(claimant("both", limits=BY_NAMES))
    for node_, other in (("n1", ["n2"]), ("n2", ["n1", "n2"])):
        assert node_ in world.propose("both", wide=True).nodes
        assert not allocated(world, _on(node_, *FULL), name="both").code
        assert world.reserve("both", node_).code
        world.unreserve("both")
        assert not used(world)
        assert sorted(world.propose("both", wide=True).nodes) == other
    world.check()


@run
async def test_no_claim_is_refused_for_what_is_not_stored() -> None:
    """Another scheduler stores its claim first, which precedes pending allocations of kube-scheduler."""
    world = await cluster("n1", "n2")
    propose(world)
    allocated(world, _on("n1", *FULL))
    propose(world, user=claimant("far"))
    allocated(world, {**_on("n2", *FULL), "metadata": _head(name="z", uid="z")}, name="far")
    other = {**_on("n1", share(cores="60")), "metadata": _head(name="y", uid="y")}

    assert world.service.review_claim(document(other)) == ""
    assert used(world) == {"n1": 600, "n2": 2000}
    assert "no room" in world.service.review_claim(document(_on("n1", *FULL)))


@run
async def test_a_question_that_reserves_nothing_ends_nothing_pending() -> None:
    """Any client may ask about a claim of its own, and would end the pending allocations of all others on a node."""
    world = await cluster("n1")
    propose(world)
    allocated(world, _on("n1", *FULL))
    begun = _head(name="y", uid="y")
    free = {key: value for key, value in begun.items() if key != "finalizers"}
    for head, devices, dry_run in (
        (free, FULL, False),
        (begun, [share(cores="200")], False),
        (begun, FULL, True),
    ):
        forged = {**_on("n1", *devices), "metadata": head}
        assert world.service.review_claim(document(forged), dry_run=dry_run) != ""
        assert used(world) == {"n1": 2000}
        assert len(world.service.pending) == 1
    world.unreserve("web")
    assert not used(world)
    world.check()


@run
async def test_a_claim_gets_the_devices_that_kube_scheduler_has_allocated_to_it() -> None:
    """A user who can read a claim could ask about other ones, in the moment before the API server asks."""
    world = await cluster("n1", "n2")
    propose(world)
    mine = _on("n1", share(cores="30"))
    allocated(world, mine)
    for other in (_on("n1", share("gpu-1", cores="30")), _on("n2", share(cores="30"))):
        refused = world.service.review_claim(document(other))
        assert "kube-scheduler has allocated other devices to claim team/x" in refused
        assert used(world) == {"n1": 300}
    assert world.service.review_claim(document(mine)) == ""
    assert used(world) == {"n1": 300}


@run
async def test_only_what_can_be_stored_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other driver's, unreadable, too large or late allocations; of too many, the latest."""
    world = await cluster("n1")
    propose(world)
    assert allocated(world, {"metadata": 1}).code == "InvalidRequest"
    for nothing in (
        _on("n1", share(driver="gpu.example.com")),
        _on("n1", share(cores="many")),
        _on("n1", share(cores="200")),
        _on("n9", share()),
        waiting(exactly()),
    ):
        allocated(world, nothing)
        assert not used(world)
    propose(world)
    assert allocated(world, _on("n1", share()), attempt=world.number - 1).code == "StaleAttempt"
    world.service.follow()
    assert allocated(world, _on("n1", share())).code == "EngineNotReady"
    world.service.lead()
    assert not used(world)

    monkeypatch.setattr(pending_allocations, "MOST", 2)
    for number in range(3):
        name = f"p{number}"
        device_ = share(f"gpu-{number % 2}", cores=str(10 + number), memory="1Gi")
        one = {**_on("n1", device_), "metadata": _head(uid=name)}
        allocated(world, one, name=name, attempt=1)
    assert used(world) == {"n1": 110 + 120}


@run
async def test_a_namespace_with_many_pending_allocations_ends_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended the oldest of all, which other namespaces have."""
    monkeypatch.setattr(pending_allocations, "MOST", 2)
    world = await cluster("n1")
    for number, namespace in enumerate(("quiet", "crowd", "crowd")):
        one = _on("n1", share(cores=str(10 + number), memory="1Gi"))
        head = _head(uid=f"p{number}") | {"namespace": namespace}
        allocated(world, {**one, "metadata": head}, name=f"p{number}", attempt=1)

    assert used(world) == {"n1": 100 + 120}


@run
async def test_books_that_are_made_anew_hold_it_too() -> None:
    """Except allocations that are known to be stored by then."""
    world = await cluster("n1", "n2")
    propose(world)
    allocated(world, _on("n1", *FULL))
    propose(world, user=claimant("other"))
    stored = {**_on("n2", share(cores="40")), "metadata": _head(name="y", uid="y")}
    allocated(world, stored, name="other")

    nodes = [
        one for name in ("n1", "n2") for one in (document(node(name)), document(device(name)))
    ]
    await world.service.rebuild([*nodes, document(stored)])
    assert used(world) == {"n1": 2000, "n2": 400}
    assert len(world.service.pending) == 1
    world.check()


def asked(*claims: Manifest, **annotations: str) -> list[DeviceRequest] | None:
    """What claims of a pod ask, for the engine."""
    user = document(claimant(meta={"annotations": annotations}))
    found = request_of_claims(user, [document(one) for one in claims])
    return None if found is None else [group.request for group in found.groups]


def request(core: int, memory: int, **more: Any) -> DeviceRequest:
    """Amounts in thousandths and GiB."""
    return DeviceRequest(DeviceType.GPU, core_milli=core, memory_bytes=memory << 30, **more)


WHOLE = DeviceRequest(DeviceType.GPU, core_milli=MILLI, memory_milli=MILLI, whole=True)
"""A card of which a claim takes all compute."""


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        (exactly(), request(300, 4)),
        (exactly(count=2), request(300, 4, count=2)),
        (exactly(cores="100"), WHOLE),
        (exactly(cores="100", memory=None), WHOLE),
        (
            exactly(
                **selected(
                    f'{MODEL} == "A100" && device.attributes["gpu.partage.io"].vendor == "x"'
                )
            ),
            request(300, 4, filter=CardFilter(use_types=("A100",), vendors=("x",))),
        ),
        (
            {"deviceClassName": MIG_CLASS, **selected(f'{PROFILE} == "1g.10gb"')},
            DeviceRequest(
                DeviceType.GPU,
                instances=True,
                profile="1g.10gb",
                filter=CardFilter(modes=(SliceMode.MIG,)),
            ),
        ),
        (exactly(memory=None), None),
        (exactly(cores=None), None),
        (exactly(None, None), None),
        (exactly(cores="101"), None),
        (exactly(allocationMode="All"), None),
        (exactly(adminAccess=True), None),
        (exactly(count=0), None),
        (exactly(**selected(f'{MODEL} != "A100"')), None),
        (exactly(**selected(f'{MODEL} == "A"', f'{MODEL} == "B"')), None),
        ({"deviceClassName": MIG_CLASS}, None),
        ({"deviceClassName": "gpu.example.com"}, None),
    ],
    ids=str,
)
def test_a_request_is_read_where_that_is_exact(
    asks: Manifest, expected: DeviceRequest | None
) -> None:
    """Otherwise kube-scheduler itself looks at all nodes."""
    assert asked(waiting(asks)) == (None if expected is None else [expected])


def test_all_claims_of_a_pod_must_be_ours_and_free() -> None:
    """Claims of another driver or with a device already, constraints and alternatives are kube-scheduler's."""
    mine, other = waiting(exactly()), waiting({"deviceClassName": "gpu.example.com"})
    assert asked(mine, waiting(exactly(cores="100"))) == [request(300, 4), WHOLE]
    assert asked(mine, other) is None
    assert asked(mine, claim(share())) is None
    assert asked(waiting(exactly(), other["spec"]["devices"]["requests"][0]["exactly"])) is None
    assert (
        asked(waiting(exactly(), constraints=[{"matchAttribute": "gpu.partage.io/model"}])) is None
    )
    several = waiting()
    ways = [{"name": "a", **exactly()}, {"name": "b", **exactly(cores="50")}]
    several["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": ways}]
    assert asked(several) is None


def test_a_translated_pod_says_in_full_what_it_asked() -> None:
    """Its annotation counts, unless it has other claims too or the annotation is invalid."""
    shape = Shape(core_milli=500, memory_milli=500, use_types=("A100",))
    text = encode_translated({"main": Translated(shape)})
    plain = waiting(exactly())

    (only,) = asked(plain, **{TRANSLATED: text}) or ()

    assert (only.memory_milli, only.filter.use_types) == (500, ("A100",))
    assert asked(plain, plain, **{TRANSLATED: text}) == [request(300, 4)] * 2
    assert asked(plain, **{TRANSLATED: "no"}) == [request(300, 4)]
    assert asked(waiting({"deviceClassName": "gpu.example.com"}), **{TRANSLATED: text}) is None


@run
async def test_what_cannot_be_read_is_left_to_kube_scheduler() -> None:
    """An invalid claim or pod, another pod than the one in question, and a pod that also asks by names."""
    world = await cluster("n1")
    assert propose(world).nodes
    assert propose(world, {"metadata": 1}).skip
    assert propose(world, user={**claimant(), "spec": 1}).skip
    assert propose(world, user=claimant() | {"metadata": {"name": "web", "uid": "u"}}).skip
    assert propose(world, user=claimant(limits=whole())).skip


@run
async def test_cards_that_are_shared_make_no_instances() -> None:
    """kube-scheduler itself looks at all nodes if the books have no instances."""
    world = await cluster("n1")
    instance = {"deviceClassName": MIG_CLASS, **selected(f'{PROFILE} == "1g.10gb"')}
    assert propose(world, waiting(instance)).skip


def crowd(
    claims: int, alternatives: int = 0, padding: str = ""
) -> tuple[Manifest, list[Manifest]]:
    """A pod, and claims of 32 requests each that it names, as many as the API server takes."""
    made: list[Manifest] = []
    for number in range(claims):
        asks = [
            exactly(1 + (7 * i + number) % 50, f"{100 + i + 37 * number}Mi") for i in range(32)
        ]
        one = waiting(*asks)
        one["metadata"] |= {"name": f"x{number}", "uid": f"claim-{number}"}
        for request in one["spec"]["devices"]["requests"]:
            if padding:
                request["exactly"] |= selected(padding)
            if alternatives:
                ask = request.pop("exactly")
                request["firstAvailable"] = [{**ask, "name": f"a{i}"} for i in range(alternatives)]
        made.append(one)
    named = [{"name": f"x{i}", "resourceClaimName": f"x{i}"} for i in range(claims)]
    return pod("crowd", resourceClaims=named), made


@run
async def test_claims_of_thousands_of_requests_are_left_to_kube_scheduler() -> None:
    """Their comparison takes no longer than a hard pod may take."""
    world = await cluster(*(f"n{number}" for number in range(60)))
    for claims, padding in ((3, ""), (30, ""), (4, f"true || {'x' * 9_000}")):
        user, made = crowd(claims, padding=padding)
        with bounded(50_000):
            assert propose(world, *made, user=user).skip


@pytest.mark.parametrize("amounts", [{"cores": "-1"}, {"memory": "-1Gi"}])
@run
async def test_a_claim_for_less_than_nothing_is_left_to_kube_scheduler(
    amounts: dict[str, str],
) -> None:
    """It is no fault of the engine."""
    world = await cluster("n1")

    assert propose(world, waiting(exactly(**amounts))).skip


@run
async def test_an_explanation_looks_at_so_many_requests_of_claims() -> None:
    """Any reader of a pod may ask, and the leader answers: of 7,680 alternatives it explains the first."""
    world = await cluster(*(f"n{number}" for number in range(120)))
    user, made = crowd(30, alternatives=8)
    found = {one["metadata"]["name"]: document(one) for one in (user, *made)}
    for one in found.values():
        world.service.changed(one)

    with bounded(100_000):
        told = explained(
            world.service.books,
            "team",
            "crowd",
            lambda _kind, _namespace, name: found.get(name),
            0.0,
        )

    assert told is not None
    assert len(told["request"]) == 64
    assert "the service looks at the first 64 requests of the pod's claims" in told["notes"]


@run
async def test_devices_of_nodes_that_the_pod_may_not_use_are_not_explained() -> None:
    """A node whose cards are too small as well is refused by the pod's own selector."""
    world = await cluster("n1", "n2")
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    needs = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    user = claimant(affinity={"nodeAffinity": needs})
    found = {
        one["metadata"]["name"]: document(one) for one in (user, waiting(exactly(memory="400Gi")))
    }
    for one in found.values():
        world.service.changed(one)

    told = explained(
        world.service.books, "team", "web", lambda _kind, _namespace, name: found.get(name), 0.0
    )

    assert told is not None
    codes = {name: why["code"] for name, why in told["reason"]["nodes"].items()}
    assert codes == {"n1": "InsufficientMemory", "n2": "NodeAffinity"}


@run
async def test_devices_of_an_operators_class_are_not_called_free() -> None:
    """The service does not know which devices such a class selects, so it says that, and names no node."""
    world = await cluster("n1")
    made = waiting(exactly(memory="400Gi", deviceClassName="fast.example.com"))
    found = {one["metadata"]["name"]: document(one) for one in (claimant(), made)}
    for one in found.values():
        world.service.changed(one)

    told = explained(
        world.service.books, "team", "web", lambda _kind, _namespace, name: found.get(name), 0.0
    )

    assert told is not None
    assert told["fits_now_on"] is None
    assert any("does not judge claims of class fast.example.com" in one for one in told["notes"])


def _hostnames(count: int) -> list[Manifest]:
    """Node affinity terms that all differ."""
    return [
        {
            "matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [f"x{number}"]}
            ]
        }
        for number in range(count)
    ]


BEYOND: dict[str, Manifest] = {
    "required terms": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": _hostnames(4_000)
                }
            }
        }
    },
    "preferred terms": {
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": one} for one in _hostnames(4_000)
                ]
            }
        }
    },
    "tolerations": {
        "tolerations": [{"key": f"k{number}", "operator": "Exists"} for number in range(9_000)]
    },
    "selector labels": {"nodeSelector": {f"k{number}": "v" for number in range(4_000)}},
    "containers": {
        "containers": [{"name": f"c{number}", "image": "x"} for number in range(4_000)]
    },
}
"""Pods that the API server takes and no webhook sees, because they name no device."""


@pytest.mark.parametrize("shape", BEYOND)
@run
async def test_a_pod_beyond_the_bounds_of_pods_with_names_is_left_to_kube_scheduler(
    shape: str,
) -> None:
    """The bounds hold for pods that ask by claims alone too, when nodes are compared and when they are explained."""
    world = await cluster(*(f"n{number}" for number in range(60)))
    user, made = claimant(**BEYOND[shape]), waiting(exactly())
    found = {one["metadata"]["name"]: document(one) for one in (user, made)}
    for one in found.values():
        world.service.changed(one)

    with bounded(50_000):
        assert propose(world, made, user=user).skip
        told = explained(
            world.service.books,
            "team",
            "web",
            lambda _kind, _namespace, name: found.get(name),
            0.0,
        )

    assert told is not None
    assert told["reason"]["code"] == "SearchLimit"
    assert "kube-scheduler alone looks for its node" in told["reason"]["message"]
    assert not propose(world, made).skip


@pytest.mark.parametrize("shape", BEYOND)
@run
async def test_such_a_pod_is_explained_on_its_node_too(shape: str) -> None:
    """Any reader may ask about each of a thousand such pods, again and again."""
    world = await cluster("n1")
    user, held = claimant(nodeName="n1", **BEYOND[shape]), claim(share())
    found = {one["metadata"]["name"]: document(one) for one in (user, held)}
    for one in found.values():
        world.service.changed(one)

    with bounded(45_000):
        told = explained(
            world.service.books,
            "team",
            "web",
            lambda _kind, _namespace, name: found.get(name),
            0.0,
        )

    assert told is not None
    assert (told["state"], told["node"]) == ("bound", "n1")
    assert told["allocations"]
