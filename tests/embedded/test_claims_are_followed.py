"""ResourceClaims in `partage up`: slices of its nodes, claims allocated beside pods, and released with their pods."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from up_world import EXAMPLES, PODS, World, eventually, from_files, node, pod, run, running

from partage.apiserver import ApiServer, Record, Refused, Review
from partage.embedded import claim_lives as lives_module
from partage.embedded import claim_slices, scheduling
from partage.embedded.claim_lives import ClaimLives
from partage.embedded.claim_places import ClaimPlaces
from partage.embedded.fleet import SimulatedNode
from partage.sim.claims import ClaimAllocator
from partage.vendors.names import CLAIM_FINALIZER

pytest.importorskip("celpy", reason="cel-python is not installed: selectors are not judged")

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
Document = dict[str, Any]


def wanted(cores: str = "50", memory: str = "20Gi", **exactly: Any) -> Document:
    """A claim's spec: a share of a card."""
    given = {"deviceClassName": "share.gpu.partage.io", **exactly}
    amounts = {"capacity": {"requests": {"cores": cores, "memory": memory}}}
    return {"devices": {"requests": [{"name": "card", "exactly": {**amounts, **given}}]}}


def user(name: str, **named: str) -> Document:
    """A pod whose container has a claim; `named` says which."""
    container = {"resources": {"claims": [{"name": "card"}]}}
    claims = [{"name": "card", **named}]
    return pod(name, container=container, resourceClaims=claims)


async def devices(w: World) -> dict[str, Document]:
    """What is offered, by name."""
    found = (await w.get(f"{API}/resourceslices"))["items"]
    return {one["name"]: one for part in found for one in part["spec"].get("devices", ())}


def memory(name: str) -> Callable[[dict[str, Document]], str]:
    """How much of a card is offered."""
    return lambda found: found[name]["capacity"]["memory"]["value"] if name in found else ""


async def made(w: World, *specs: tuple[str, Document]) -> None:
    """Claims of users."""
    for name, spec in specs:
        await w.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})


def shown(w: World) -> dict[str, tuple[str, str]]:
    """The cards and amounts that the table at the start shows of each pod with a node, by its name."""
    return {one.name.split("/")[1]: (one.cards, one.given) for one in w.cluster.overview().placed}


async def until(ask: Callable[[], Awaitable[Any]], true: Callable[[Any], object]) -> Any:
    """The answer, once something is true of it."""
    return await eventually(ask, true)


def test_nodes_offer_what_pods_leave() -> None:
    """All of each card, the rest of one with a pod's share, and all of it again."""

    async def story(w: World) -> None:
        whole = await until(lambda: devices(w), memory("gpu-0"))
        assert memory("gpu-1")(whole) == "80Gi"
        await w.create(PODS, pod("named", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20480}))
        await w.phase("named", "Running")
        await until(lambda: devices(w), lambda found: memory("gpu-0")(found) == "60Gi")
        await w.send("DELETE", f"{PODS}/named", {})
        await until(lambda: devices(w), lambda found: memory("gpu-0")(found) == "80Gi")

    run(_up(story))


def test_a_node_with_an_agent_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It renews a Lease: what was offered before goes, and what it offers stays. A node without one has its slices written again."""
    monkeypatch.setattr(claim_slices, "_LOOK", 0.5)

    async def story(w: World) -> None:
        slices = f"{API}/resourceslices"

        async def offered(name: str) -> list[Document]:
            found = (await w.get(slices))["items"]
            return [one for one in found if one["spec"].get("nodeName") == name]

        (before,) = await until(lambda: offered("n0"), bool)
        lease = {"metadata": {"name": "partage-agent-n0"}, "spec": {"holderIdentity": "n0"}}
        await w.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease)
        await until(lambda: offered("n0"), lambda found: not found)
        spec = {**before["spec"], "devices": before["spec"]["devices"][:1]}
        await w.create(slices, {"metadata": {"name": "its-own"}, "spec": spec})
        for _ in range(3):
            for one in await offered("n1"):
                await w.send("DELETE", f"{slices}/{one['metadata']['name']}", {})
            await until(lambda: offered("n1"), bool)
        assert [one["metadata"]["name"] for one in await offered("n0")] == ["its-own"]

    run(_up(story, node(), node("n1")))


def test_pods_are_tried_again_for_a_claim_that_may_help_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Claims that they name, and claims that release devices; not every new claim."""
    monkeypatch.setattr(scheduling, "_FLUSH", 1000.0)
    tried = Counter[str]()
    open_ = ClaimPlaces.open

    def counted(places: ClaimPlaces, record: Record, nodes: Sequence[str], now: float) -> Any:
        tried[record.name] += 1
        return open_(places, record, nodes, now)

    monkeypatch.setattr(ClaimPlaces, "open", counted)

    async def story(w: World) -> None:
        await made(w, ("much", wanted("100", "900Gi")), ("all", wanted("100", "80Gi")))
        await w.create(PODS, user("waits", resourceClaimName="much"))
        await w.refused("waits")
        before = tried["waits"]
        await made(w, *((f"other-{n}", wanted()) for n in range(20)))
        await w.create(PODS, user("first", resourceClaimName="all"))
        await w.phase("first", "Running")
        # A few for slices, which offered less of the card by then; none for each claim.
        assert tried["waits"] < before + 10
        before = tried["waits"]
        await w.send("DELETE", f"{PODS}/first", {})
        await w.send("DELETE", f"{CLAIMS}/all", {})

        async def again() -> int:
            return tried["waits"]

        await until(again, lambda found: found > before)

    run(_up(story))


def test_a_claim_of_a_template_lives_with_its_pod() -> None:
    """Made, allocated and reserved for the pod, counted beside pods of a protocol, and gone with it."""

    async def story(w: World) -> None:
        template = {"metadata": {"name": "half"}, "spec": {"spec": wanted("60", "40Gi")}}
        await w.create(TEMPLATES, template)
        for name in ("one", "two", "three"):
            await w.create(PODS, user(name, resourceClaimTemplateName="half"))
        for name in ("one", "two"):
            found = await w.phase(name, "Running")
            (told,) = found["status"]["resourceClaimStatuses"]
            claim = await w.get(f"{CLAIMS}/{told['resourceClaimName']}")
            assert claim["metadata"]["name"].startswith(f"{name}-card-")
            (mine,) = claim["status"]["reservedFor"]
            assert (mine["name"], mine["uid"]) == (name, found["metadata"]["uid"])
            (device,) = claim["status"]["allocation"]["devices"]["results"]
            assert device["consumedCapacity"]["cores"] == "60"
            assert device["shareID"]
            told = await w.get(f"{PODS}/{name}/log")
            assert f"device gpu {device['device'][-1]} (GPU-" in told
            assert "env NVIDIA_VISIBLE_DEVICES=GPU-" in told
            assert f"file /dev/nvidia{device['device'][-1]}" in told
            assert shown(w)[name] == (f"gpu {device['device'][-1]}", "60% + 40Gi")
        assert "asked 60%, most free 40%" in await w.refused("three")
        # A pod by a protocol's names finds what claims leave of the two cards, and no more.
        await w.create(
            PODS,
            pod(
                "named",
                {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 50, "nvidia.com/gpumem": 1000},
            ),
        )
        assert "50" in await w.refused("named")
        await w.send("DELETE", f"{PODS}/named", {})

        await w.send("DELETE", f"{PODS}/one", {})
        await w.phase("three", "Running")
        left = await until(lambda: w.get(CLAIMS), lambda found: len(found["items"]) == 2)
        assert not any(one["metadata"]["name"].startswith("one-") for one in left["items"])

    run(_up(story))


def test_a_claim_that_pods_share_stays_until_the_last_one_is_gone() -> None:
    """It is a user's own: deallocated then, and still there; one that is in use cannot be deleted."""

    async def story(w: World) -> None:
        await made(w, ("shared", wanted()))
        for name in ("one", "two"):
            await w.create(PODS, user(name, resourceClaimName="shared"))
            await w.phase(name, "Running")
        claim = await w.get(f"{CLAIMS}/shared")
        assert len(claim["status"]["reservedFor"]) == 2
        assert shown(w) == dict.fromkeys(("one", "two"), ("gpu 0", "50% + 20Gi"))
        await w.send("DELETE", f"{PODS}/one", {})
        await until(
            lambda: w.get(f"{CLAIMS}/shared"), lambda one: len(one["status"]["reservedFor"]) == 1
        )
        await w.send("DELETE", f"{CLAIMS}/shared", {})
        assert "deletionTimestamp" in (await w.get(f"{CLAIMS}/shared"))["metadata"]
        await w.send("DELETE", f"{PODS}/two", {})
        await until(lambda: w.get(CLAIMS), lambda found: not found["items"])

    run(_up(story))


def test_an_instance_is_claimed_beside_shares() -> None:
    """On a card that can be cut: the last place first; a pod of HAMi's names goes beside it, on the same card."""

    async def story(w: World) -> None:
        profile = 'device.attributes["gpu.partage.io"].profile == "3g.40gb"'
        mine = {
            "deviceClassName": "mig.gpu.partage.io",
            "selectors": [{"cel": {"expression": profile}}],
        }
        await made(w, ("cut", {"devices": {"requests": [{"name": "card", "exactly": mine}]}}))
        await w.create(PODS, user("instance", resourceClaimName="cut"))
        await w.phase("instance", "Running")
        claim = await w.get(f"{CLAIMS}/cut")
        (device,) = claim["status"]["allocation"]["devices"]["results"]
        assert device["device"] == "gpu-0-mig-3g-40gb-4"
        assert "3g.40gb" in await w.get(f"{PODS}/instance/log")
        meta = {"annotations": {"nvidia.com/vgpu-mode": "mig"}}
        await w.create(
            PODS, pod("beside", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000}, meta=meta)
        )
        await w.phase("beside", "Running")
        (seen,) = (await w.get("/api/nodes", scheduler=True))["nodes"]
        assert (seen["pods"], seen["claims"]) == (1, 1)  # who has a claim is not in the books

    run(_up(story, node(cards=1, registers=("hami",), mode="mig")))


def test_a_pod_waits_for_what_is_not_there_yet() -> None:
    """A claim, a template, a class: named while they are missing, and the pod runs once they come."""

    async def story(w: World) -> None:
        await w.create(PODS, user("early", resourceClaimName="late"))
        assert "ResourceClaim default/late" in await w.refused("early")
        await made(w, ("late", wanted(deviceClassName="other")))
        told = await w.until("early", lambda one: "DeviceClass other" in str(one["status"]))
        assert told["status"]["phase"] == "Pending"
        expression = 'device.driver == "gpu.partage.io"'
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        await w.create(f"{API}/deviceclasses", {"metadata": {"name": "other"}, "spec": spec})
        await w.phase("early", "Running")

    run(_up(story))


async def test_a_claim_that_is_refused_leaves_other_pods_theirs() -> None:
    """They all waited for one template."""
    server = ApiServer()
    await server.furnish()

    def refuses(review: Review) -> None:
        made = (review.object or {}).get("metadata") or {}
        if review.kind.plural == "resourceclaims" and "one-" in made.get("generateName", ""):
            raise Refused("not for this one")

    server.admission.validators.append(refuses)
    for name in ("one", "two", "three"):
        spec = user(name, resourceClaimTemplateName="half")
        await server.create("pods", spec, "default")
    following = asyncio.create_task(ClaimLives(server).run())
    await asyncio.sleep(0.05)
    template = {"metadata": {"name": "half"}, "spec": {"spec": wanted()}}
    await server.create(lives_module.TEMPLATES, template, "default")
    async with asyncio.timeout(60):
        while len(server.store.all(lives_module.CLAIMS)) < 2:  # noqa: ASYNC110 # the store sets no event
            await asyncio.sleep(0.01)
    following.cancel()


async def test_each_claim_of_a_pod_is_found_without_a_look_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This includes one whose name the pod's status lacks."""
    server = ApiServer()
    await server.furnish()
    lives = ClaimLives(server)
    template = {"metadata": {"name": "half"}, "spec": {"spec": wanted()}}
    await server.create(lives_module.TEMPLATES, template, "default")
    read, every = Counter[str](), server.store.all

    def counted(resource: str, namespace: str = "") -> list[Record]:
        read[resource] += 1
        return every(resource, namespace)

    monkeypatch.setattr(server.store, "all", counted)
    following = asyncio.create_task(lives.run())

    def told(name: str) -> object:
        record = server.store.get("pods", "default", name)
        return record is not None and record.value["status"].get("resourceClaimStatuses")

    async with asyncio.timeout(60):
        for name in ("one", "two", "three"):
            spec = user(name, resourceClaimTemplateName="half")
            await server.create("pods", spec, "default")
        while not all(map(told, ("one", "two", "three"))):  # noqa: ASYNC110 # the store sets no event
            await asyncio.sleep(0.01)
        await server.patch(
            "pods", "default", "one", {"status": {"resourceClaimStatuses": None}}, sub="status"
        )
        while not told("one"):  # noqa: ASYNC110 # the store sets no event
            await asyncio.sleep(0.01)
    following.cancel()

    assert len(every(lives_module.CLAIMS)) == 3
    assert read[lives_module.CLAIMS] <= 1  # at the start


def test_costly_claims_of_a_namespace_share_an_allowance_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each try of each pod took seconds, in which no part of the cluster answered."""
    monkeypatch.setattr("partage.embedded.claim_places._PERIOD", 1000.0)
    looks = Counter[str]()
    room = ClaimAllocator._room  # what it costs

    def counted(allocator: ClaimAllocator, *args: Any) -> str:
        looks["rooms"] += 1
        return room(allocator, *args)

    monkeypatch.setattr(ClaimAllocator, "_room", counted)
    half = wanted("50", "1Mi")["devices"]["requests"][0]["exactly"]
    requests = [{"name": f"r{number}", "exactly": half} for number in range(17)]

    async def story(w: World) -> None:
        await made(w, ("costly", {"devices": {"requests": requests}}), ("easy", wanted()))
        for number in range(4):
            await w.create(PODS, user(f"costly-{number}", resourceClaimName="costly"))
        for number in range(4):
            await w.refused(f"costly-{number}")
        await w.create(PODS, user("easy", resourceClaimName="easy"))
        await w.phase("easy", "Running")

    run(_up(story, *(node(f"n{number}", cards=8) for number in range(3))))
    assert 0 < looks["rooms"] < 200_000 // 8 // 8 + 1000


def test_what_another_has_is_not_allocated() -> None:
    """The books decide before any allocation is stored, by any writer."""

    async def story(w: World) -> None:
        await w.create(PODS, pod("whole", {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 100}))
        await w.phase("whole", "Running")
        await made(w, ("forced", wanted()))
        claim = await w.get(f"{CLAIMS}/forced")
        claim["metadata"]["finalizers"] = [CLAIM_FINALIZER]
        code, claim = await w.send("PUT", f"{CLAIMS}/forced", claim)
        assert code == 200, claim
        result = {"request": "card", "driver": "gpu.partage.io", "pool": "n0", "device": "gpu-0"}
        for number, expected in ((0, 409), (1, 200)):
            claim["status"] = {
                "allocation": {"devices": {"results": [{**result, "device": f"gpu-{number}"}]}}
            }
            code, answer = await w.send("PUT", f"{CLAIMS}/forced/status", claim)
            assert code == expected, answer

    run(_up(story))


def test_a_pod_asks_by_names_and_by_a_claim() -> None:
    """Neither knows of the other before the pod has a node: they are on two cards where one has no room for both."""

    async def story(w: World) -> None:
        await made(w, ("mine", wanted()))
        both = user("both", resourceClaimName="mine")
        resources = both["spec"]["containers"][0]["resources"]
        resources["limits"] = {
            "nvidia.com/gpu": 1,
            "nvidia.com/gpucores": 80,
            "nvidia.com/gpumem": 1000,
        }
        await w.create(PODS, both)
        await w.phase("both", "Running")
        # Slices say what names leave: the other card has claims alone.
        left = lambda found: {one["capacity"]["cores"]["value"] for one in found.values()}  # noqa: E731
        await until(lambda: devices(w), lambda found: left(found) == {"20", "100"})
        (claimed,) = (await w.get(f"{CLAIMS}/mine"))["status"]["allocation"]["devices"]["results"]
        assert left({claimed["device"]: (await devices(w))[claimed["device"]]}) == {"100"}

    run(_up(story, node(cards=2)))


def test_the_service_counts_the_pods_of_an_operators_class() -> None:
    """The example's Deployment asks by a class of its own: two of its pods have a place, and the third is listed as waiting."""

    async def story() -> None:
        given = from_files(EXAMPLES / "claims")
        async with running(given.simulated, given.objects) as w:

            async def pods() -> Document:
                return dict((await w.get("/api/overview", scheduler=True))["pods"])

            await eventually(pods, lambda one: (one["placed"], one["waiting"]) == (6, 1))

    run(story())


async def _up(story: Callable[[World], Awaitable[None]], *nodes: SimulatedNode) -> None:
    async with running(nodes or [node()]) as w:
        await story(w)
