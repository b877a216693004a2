"""A running scheduler follows ResourceClaims if that is switched on, and starts in a cluster without the kind."""

import asyncio
import contextlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from daemon_world import World, until, world

from claim_documents import claim, document, result, share
from fakes.ports import free_port
from fakes.wire import Fault, Wire
from partage.daemon import claim_relay, claim_reviews, watched
from partage.daemon.claim_relay import relay_route
from partage.daemon.claim_reviews import ClaimDesk, outdater
from partage.daemon.options import ElectionOptions, SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.daemon.webhook import WebhookDaemon, WebhookOptions
from partage.kube.resources import Resource, Scope
from partage.serving.limits import Limits
from partage.serving.site import Site
from partage.vendors.catalog import FAMILIES
from partage.vendors.names import CLAIM_FINALIZER
from partage.vendors.settings import Settings
from partage.webhook.installation import Endpoint, installation
from partage.webhook.review import RESERVED
from partage.webhook.settings import Admission
from partage.wire.context import Context
from partage.wire.documents import Document

CLAIMS, API = "resourceclaims.resource.k8s.io", "resource.k8s.io/v1"
FOLLOWING = SchedulerOptions(claims=True)


async def _allocated(cluster: World, name: str, *results: Any) -> None:
    """Make a claim and have it allocated, as Kubernetes' scheduler does."""
    manifest = claim(*results, name=name)
    manifest["metadata"] = {"name": name, "namespace": "default"}
    await cluster.api.create(CLAIMS, manifest, "default")
    await _status(cluster, name, manifest["status"])


async def _status(cluster: World, name: str, status: dict[str, Any]) -> None:
    stored = cluster.stored(name, CLAIMS)
    path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}/status"
    async with cluster.http.put(
        f"{cluster.url}{path}", json={**stored, "status": status}
    ) as answer:
        assert answer.status == 200, await answer.text()


async def test_what_a_claim_holds_goes_to_no_pod_until_it_is_given_back() -> None:
    """Claims count before and after the start, and a new leader counts them in the same way."""
    async with world(nodes=1, cards=2) as cluster:
        await _allocated(cluster, "early", share(pool="n0"))
        async with SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon:
            engine = daemon.service.books.engine
            assert [one.holder for one in engine.ledger.allocations()] == ["claim default/early"]
            await _allocated(cluster, "late", share("gpu-1", pool="n0"))
            await until(lambda: len(list(engine.ledger.allocations())) == 2)
            await cluster.pod("whole")
            assert await cluster.schedule(daemon.url, "whole") == ""
            assert daemon.service.audit().clean

            await _status(cluster, "late", {})
            await until(lambda: len(list(engine.ledger.allocations())) == 1)
            assert await cluster.schedule(daemon.url, "whole") == "n0"
        async with SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon:
            assert len(list(daemon.service.books.engine.ledger.allocations())) == 2
            assert daemon.service.audit().clean


async def test_nothing_is_followed_unless_it_is_switched_on() -> None:
    """The scheduler does not even ask for claims, so it needs no right to them."""
    async with world(nodes=1, cards=1) as cluster:
        await _allocated(cluster, "x", share(pool="n0"))
        async with SchedulerDaemon(await cluster.client()) as daemon:
            assert list(daemon.service.books.engine.ledger.allocations()) == []
            await cluster.pod("whole")
            assert await cluster.schedule(daemon.url, "whole") == "n0"


async def test_a_cluster_without_the_kind_is_one_without_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before Kubernetes 1.34 the API server does not have the kind in this version."""
    older = Scope(Resource("resource.k8s.io", "v1beta1", "resourceclaims"))
    monkeypatch.setattr(watched, "CLAIMS", replace(watched.CLAIMS, scope=older))
    async with (
        world(nodes=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
    ):
        await cluster.pod("a")
        assert await cluster.schedule(daemon.url, "a") == "n0"


async def _waiting(cluster: World, name: str, **exactly: Any) -> None:
    """Make a claim that kube-scheduler has begun to allocate."""
    manifest = claim(name=name)
    manifest["metadata"] = {
        "name": name,
        "namespace": "default",
        "finalizers": [CLAIM_FINALIZER],
    }
    (request,) = manifest["spec"]["devices"]["requests"]
    request["exactly"] |= exactly
    await cluster.api.create(CLAIMS, manifest, "default")


def _review(cluster: World, name: str, *results: Any, **request: Any) -> dict[str, Any]:
    """What an API server asks where a claim's status is set."""
    stored = deepcopy(cluster.stored(name, CLAIMS))
    given = {
        "uid": f"ask-{name}",
        "operation": "UPDATE",
        "subResource": "status",
        "resource": {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"},
        "object": {**stored, "status": claim(*results)["status"]},
        "oldObject": stored,
        **request,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": given}


async def _asked(cluster: World, url: str, body: Any, status: int = 200) -> Any:
    async with cluster.http.post(f"{url}/webhook/claims", json=body) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def test_the_leader_is_asked_before_an_allocation_is_stored() -> None:
    """The leader reserves admitted allocations; an instance that no longer leads answers 503."""
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
    ):
        for name in ("x", "y", "z"):
            await _waiting(cluster, name)
        asked = partial(_asked, cluster, daemon.url)
        review = partial(_review, cluster)
        rehearsed = await asked(review("x", share(pool="n0", cores="60"), dryRun=True))
        assert rehearsed["response"] == {"uid": "ask-x", "allowed": True}
        first = await asked(review("x", share(pool="n0", cores="60")))
        assert first["response"]["allowed"] is True
        second = await asked(review("y", share(pool="n0", cores="60")))
        assert second["response"]["allowed"] is False
        assert "60% and 10Gi asked, 40% and 6Gi free" in second["response"]["status"]["message"]
        held = review(
            "y", share(pool="n0", cores="60"), oldObject=claim(share(), name="y", uid="y")
        )
        assert (await asked(held))["response"]["allowed"] is True
        odd = review("y", object={"status": "odd"})
        assert "field request.object.status" in (await asked(odd, 400))["message"]
        assert "field [0].pool" in (await asked(review("y", share(pool=["n0"])), 400))["message"]
        await cluster.pod("whole")
        assert await cluster.schedule(daemon.url, "whole") == ""

        assert "AdmissionReview" in (await asked({"kind": "Pod"}, 400))["message"]
        daemon.service.follow()
        assert await asked(review("z", share(pool="n0")), 503) == {
            "message": "the instance is not leader"
        }


@pytest.mark.parametrize("election", [None, ElectionOptions("default")], ids=["alone", "in order"])
async def test_what_a_leader_before_admitted_fails_where_it_arrives_late(
    election: ElectionOptions | None,
) -> None:
    """The next leader gives the card to a pod. The late write has an old version, so its scheduler asks again."""
    options = replace(FOLLOWING, election=election)
    async with world(nodes=1, cards=1) as cluster:
        async with SchedulerDaemon(await cluster.client(), options) as before:
            await until(lambda: before.service.leading)
            await _waiting(cluster, "x")
            admitted = _review(cluster, "x", share(pool="n0", cores="60"))
            answer = await _asked(cluster, before.url, admitted)
            assert answer["response"]["allowed"] is True
        async with SchedulerDaemon(await cluster.client(), options) as after:
            await until(lambda: after.service.leading)
            await cluster.pod("whole")
            assert await cluster.schedule(after.url, "whole") == "n0"
            path = f"/apis/{API}/namespaces/default/resourceclaims/x/status"
            body = admitted["request"]["object"]
            async with cluster.http.put(f"{cluster.url}{path}", json=body) as late:
                assert late.status == 409, await late.text()
            await _patched(cluster, "x", {"finalizers": [CLAIM_FINALIZER]})  # as kube-scheduler
            again = _review(cluster, "x", share(pool="n0", cores="60"))
            refused = (await _asked(cluster, after.url, again))["response"]
            assert "no room for claim default/x" in refused["status"]["message"]


async def test_a_stranger_who_asks_reserves_nothing() -> None:
    """The claim does not exist, or has another uid, version or request: no card is reserved."""
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
    ):
        await _waiting(cluster, "x", capacity={"requests": {"cores": "10", "memory": "1Gi"}})
        stored = cluster.stored("x", CLAIMS)
        mine = share(pool="n0", cores="10", memory="1Gi")
        full = {**stored, "status": claim(share(pool="n0", cores="60"))["status"]}
        forged = [
            {**full, "spec": claim()["spec"]},
            {**full, "metadata": {**stored["metadata"], "uid": "guessed"}},
            {**full, "metadata": {**stored["metadata"], "resourceVersion": "1"}},
            {**full, "metadata": {**stored["metadata"], "name": "unknown"}},
        ]
        for one in forged:
            found = await _asked(cluster, daemon.url, _review(cluster, "x", mine, object=one))
            assert found["response"]["allowed"] is False
            assert not daemon.service.claims.reserved
        found = await _asked(cluster, daemon.url, _review(cluster, "x", mine))
        assert found["response"]["allowed"] is True
        assert len(daemon.service.claims.reserved) == 1


async def test_a_claim_that_no_scheduler_allocates_is_reserved_by_no_question() -> None:
    """A tenant may make claims, and ask about them, but only schedulers may add the finalizer."""
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
    ):
        await cluster.api.create(CLAIMS, claim(name="x") | {"metadata": {"name": "x"}}, "default")
        asked = _review(cluster, "x", share(pool="n0"))
        for one in ("object", "oldObject"):
            meta = asked["request"][one]["metadata"]
            asked["request"][one] |= {"metadata": {**meta, "finalizers": [CLAIM_FINALIZER]}}

        found = (await _asked(cluster, daemon.url, asked))["response"]

        assert found["allowed"] is False
        assert CLAIM_FINALIZER in found["status"]["message"]
        assert not daemon.service.claims.reserved


async def test_a_claim_that_a_tenant_asks_about_holds_one_node() -> None:
    """Its finalizer was left by an allocation that failed. He asks for all devices of four nodes, again and again."""
    async with (
        world(nodes=4, cards=4) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
    ):
        await _waiting(cluster, "x", allocationMode="All")
        answers = []
        for number in range(8):
            cards = [result(f"gpu-{card}", pool=f"n{number % 4}") for card in range(4)]
            found = await _asked(
                cluster, daemon.url, _review(cluster, "x", *cards, uid=f"q{number}")
            )
            answers.append(found["response"]["allowed"])
        assert answers.count(True) <= 2
        await cluster.pod("whole")
        assert await cluster.schedule(daemon.url, "whole") != ""
        # The contradiction has the service write the claim: he reserves no more until kube-scheduler begins again.
        await until(lambda: not daemon.service.claims.reserved)
        assert not cluster.stored("x", CLAIMS)["metadata"].get("finalizers")
        await until(lambda: _heard(daemon, cluster, "x"))
        found = await _asked(cluster, daemon.url, _review(cluster, "x", result(pool="n0")))
        assert CLAIM_FINALIZER in found["response"]["status"]["message"]


async def test_the_finalizer_of_an_allocated_claim_stays() -> None:
    """What the service knows may be old; a claim that is gone, or another one of its name, is left alone too."""
    async with world(nodes=1, cards=1) as cluster:
        await _waiting(cluster, "x")
        old = document({**cluster.stored("x", CLAIMS), "apiVersion": API, "kind": "ResourceClaim"})
        outdate = outdater(await cluster.client(), "me", lambda *_: old)
        await _status(cluster, "x", claim(share(pool="n0"))["status"])
        for _ in range(2):
            before = cluster.stored("x", CLAIMS)["metadata"]
            written = await outdate("default", "x")
            assert written is not None
            assert written.metadata.finalizers == [CLAIM_FINALIZER]
            assert written.metadata.resource_version != before["resourceVersion"]
        await _status(cluster, "x", {})
        await _removed(cluster, "x")
        assert await outdate("default", "x") is None
        await _waiting(cluster, "x")
        await _patched(cluster, "x", {"finalizers": [CLAIM_FINALIZER, "example.com/mine"]})
        written = await outdate("default", "x")
        assert written is not None
        assert len(written.metadata.finalizers or ()) == 2
        old = written
        written = await outdate("default", "x")
        assert written is not None
        assert written.metadata.finalizers == ["example.com/mine"]


@pytest.mark.parametrize("executed", [False, True], ids=["refused", "stored all the same"])
async def test_a_claim_into_which_no_label_fits_loses_its_finalizer_alone(
    *, executed: bool
) -> None:
    """Such a claim is as large as the store allows. Without that write the next leader waits, and all pods with it."""
    async with world(nodes=1, cards=1) as cluster, Wire(cluster.url) as wire:
        await _waiting(cluster, "x")
        old = document({**cluster.stored("x", CLAIMS), "apiVersion": API, "kind": "ResourceClaim"})
        wire.fail(Fault("PATCH", "resourceclaims/x", status=500, executed=executed))
        outdate = outdater(await cluster.client(wire.url), "me", lambda *_: old)
        written = await outdate("default", "x")
        assert written is not None
        assert not written.metadata.finalizers
        assert bool(written.metadata.labels) is executed
        assert written.metadata.resource_version != old.metadata.resource_version


async def test_a_claim_of_endless_finalizers_keeps_them_and_is_not_admitted() -> None:
    """The service keeps some of them, and removes none of a claim when it does not know all."""
    many = [*(f"example.com/{number}" for number in range(100)), CLAIM_FINALIZER]
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
    ):
        await _waiting(cluster, "x")
        await _patched(cluster, "x", {"finalizers": many})
        await until(lambda: _heard(daemon, cluster, "x"))
        found = await _asked(cluster, daemon.url, _review(cluster, "x", result(pool="n0")))
        assert "more than 64 finalizers" in found["response"]["status"]["message"]
        old = daemon._claim("default", "x")  # nothing else shows it
        assert old is not None
        assert len(old.metadata.finalizers or ()) == 65
        await outdater(await cluster.client(), "me", lambda *_: old)("default", "x")
        assert cluster.stored("x", CLAIMS)["metadata"]["finalizers"] == many


async def test_the_webhook_passes_the_question_on() -> None:
    """The leader answers through the webhook; without a scheduler the API server gets an error."""
    async with world(nodes=1, cards=1) as cluster:
        await cluster.api.create("namespaces", {"metadata": {"name": "partage-system"}})
        port = free_port()
        endpoint = Endpoint(url=f"https://127.0.0.1:{port}")
        context = Context.of(Settings(), FAMILIES)
        (config,) = [
            one
            for one in installation(endpoint, context, Admission(), claims=True)
            if one["kind"] == "ValidatingWebhookConfiguration"
        ]
        await cluster.api.create(
            "validatingwebhookconfigurations.admissionregistration.k8s.io", config
        )
        async with SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon:
            options = WebhookOptions(port=port, endpoint=endpoint, claims=daemon.url, period=0.05)
            async with WebhookDaemon(await cluster.client(), options):
                for name in ("x", "y"):
                    await _waiting(cluster, name)
                await _status(cluster, "x", claim(share(pool="n0", cores="60"))["status"])
                with pytest.raises(AssertionError, match="60% and 10Gi asked, 40% and 6Gi free"):
                    await _status(cluster, "y", claim(share(pool="n0", cores="60"))["status"])
                await daemon.__aexit__()
                with pytest.raises(AssertionError, match="does not answer"):
                    await _status(cluster, "y", claim(share(pool="n0", cores="10"))["status"])


async def test_a_question_that_is_early_is_answered_by_the_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """News of a claim wakes its question at any time; more questions than a limit do not wait."""
    monkeypatch.setattr(claim_reviews, "_LATE", 3600.0)
    monkeypatch.setattr(claim_reviews, "_WAITING", 2)
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
    ):
        known: dict[tuple[str, str], Document] = {}
        desk = ClaimDesk(daemon.service, lambda: True, lambda *key: known.get(key))
        app = web.Application()
        app.add_routes(desk.routes(Limits()))
        async with TestClient(TestServer(app)) as client:

            async def ask(name: str) -> tuple[int, str]:
                asked = _review(cluster, name, share(pool="n0", memory="1Gi"))
                async with client.post("/webhook/claims", json=asked) as answer:
                    return answer.status, await answer.text()

            for name in ("x", "y", "z"):
                await _waiting(cluster, name)
            early = {name: asyncio.create_task(ask(name)) for name in ("x", "y")}
            await until(lambda: len(desk._waiting) == 2)  # nothing else shows it
            assert (await ask("z"))[0] == 503
            monkeypatch.setattr(claim_reviews, "_WAITING", 3)
            monkeypatch.setattr(claim_reviews, "_OF_ONE", 2)
            assert (await ask("z"))[0] == 503  # one address has as many as it may
            monkeypatch.setattr(claim_reviews, "_OF_ONE", 3)
            for name, question in early.items():
                key = ("default", name)
                known[key] = found = document(
                    {**cluster.stored(name, CLAIMS), "apiVersion": API, "kind": "ResourceClaim"}
                )
                desk.claim_changed(found)
                status, text = await question
                assert status == 200
                assert json.loads(text)["response"] == {"uid": f"ask-{name}", "allowed": True}
            assert not desk._waiting


async def test_a_question_about_a_past_version_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user who changes a claim all the time, or deletes it, keeps no place by questions about it."""
    for name in ("_SOON", "_LATE"):
        monkeypatch.setattr(claim_reviews, name, 3600.0)
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
        asyncio.timeout(20),  # bounds a hang
    ):
        await _waiting(cluster, "x")
        past = _review(cluster, "x", share(pool="n0"))
        unnamed = _review(cluster, "x", share(pool="n0"))
        del unnamed["request"]["object"]["metadata"]["resourceVersion"]
        await _patched(cluster, "x", {"labels": {"a": "b"}})
        await until(lambda: _heard(daemon, cluster, "x"))
        for asked in (past, unnamed):
            found = (await _asked(cluster, daemon.url, asked))["response"]
            assert "is not known here as it was named" in found["status"]["message"]

        last = _review(cluster, "x", share(pool="n0"))
        uid = last["request"]["object"]["metadata"]["uid"]
        await _removed(cluster, "x")
        await until(lambda: daemon.service.books.cluster_cache.claims.is_gone(uid))
        found = (await _asked(cluster, daemon.url, last))["response"]
        assert "is not known here as it was named" in found["status"]["message"]


async def _removed(cluster: World, name: str) -> None:
    """Delete a claim that is not allocated."""
    await _patched(cluster, name, {"finalizers": None})
    await cluster.api.delete(CLAIMS, "default", name)


async def _patched(cluster: World, name: str, metadata: dict[str, Any]) -> None:
    """Change a claim as its tenant does."""
    path = f"/apis/{API}/namespaces/default/resourceclaims/{name}"
    async with cluster.http.patch(
        f"{cluster.url}{path}",
        json={"metadata": metadata},
        headers={"Content-Type": "application/merge-patch+json"},
    ) as answer:
        assert answer.status == 200, await answer.text()


def _heard(daemon: SchedulerDaemon, cluster: World, name: str) -> bool:
    """Whether the service knows a claim's newest version."""
    known = daemon._claim("default", name)  # nothing else shows it
    newest = cluster.stored(name, CLAIMS)["metadata"]["resourceVersion"]
    return known is not None and known.metadata.resource_version == newest


async def test_few_questions_of_an_address_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all news are early, so a webhook's places are not full of questions that have no answer."""
    monkeypatch.setattr(claim_reviews, "_SOON", 0.0)
    monkeypatch.setattr(claim_reviews, "_LATE", 3600.0)
    monkeypatch.setattr(claim_reviews, "_LONG", 2)
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
        asyncio.timeout(20),  # bounds a hang
    ):
        await _waiting(cluster, "x")
        asked = _review(cluster, "x", share(pool="n0"))
        asked["request"]["object"]["metadata"] |= {"resourceVersion": "9" * 9}
        crowd = [asyncio.create_task(_asked(cluster, daemon.url, asked)) for _ in range(9)]
        await until(lambda: sum(one.done() for one in crowd) == 7)
        refused = [one.result()["response"] for one in crowd if one.done()]
        assert all("is not known here" in one["status"]["message"] for one in refused)
        await _removed(cluster, "x")
        await asyncio.gather(*crowd)


async def test_questions_that_come_at_once_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader gets few questions at a time and answers all; more questions than a limit do not wait."""
    monkeypatch.setattr(claim_relay, "_AT_ONCE", 12)  # a quarter of them of one address
    monkeypatch.setattr(claim_relay, "_WAITING", 18)
    monkeypatch.setattr(claim_relay, "_SECONDS", 3600.0)
    there, most, full = 0, 0, asyncio.Event()

    async def leader(request: web.Request) -> web.Response:
        nonlocal there, most
        there += 1
        most = max(most, there)
        await full.wait()
        there -= 1
        uid = (await request.json())["request"]["uid"]
        return web.json_response({"response": {"uid": uid, "allowed": True}})

    behind, app = web.Application(), web.Application()
    behind.add_routes([web.post("/webhook/claims", leader)])
    async with TestServer(behind) as served:
        app.add_routes([relay_route(str(served.make_url("")).rstrip("/"), Limits())])
        async with TestClient(TestServer(app)) as client:

            async def ask(number: int) -> Any:
                request = {"uid": f"{number}", "operation": "UPDATE"}
                body = {
                    "apiVersion": "admission.k8s.io/v1",
                    "kind": "AdmissionReview",
                    "request": request,
                }
                async with client.post("/webhook/claims", json=body) as answer:
                    return (await answer.json())["response"]

            asked = [asyncio.create_task(ask(number)) for number in range(13)]
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            (refused,) = (one.result() for one in done)
            assert refused["allowed"] is False
            assert "too many claims are asked about at once" in refused["status"]["message"]
            await until(lambda: most == 3)
            full.set()
            answers = await asyncio.gather(*asked)
            assert sum(one["allowed"] for one in answers) == 12
            assert most == 3


async def test_questions_of_a_stranger_leave_room_for_the_api_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any client may ask about claims that do not exist, and the leader waits for news of them."""
    monkeypatch.setattr(claim_relay, "_AT_ONCE", 4)
    monkeypatch.setattr(claim_relay, "_WAITING", 16)
    monkeypatch.setattr(claim_relay, "_HELD", 20_000)
    monkeypatch.setattr(claim_relay, "_SECONDS", 3600.0)
    held, go = list[str](), asyncio.Event()

    async def leader(request: web.Request) -> web.Response:
        uid = (await request.json())["request"]["uid"]
        if uid.startswith("stranger"):
            held.append(uid)
            await go.wait()
        return web.json_response({"response": {"uid": uid, "allowed": True}})

    behind, app = web.Application(), web.Application()
    behind.add_routes([web.post("/webhook/claims", leader)])
    async with TestServer(behind) as served:
        app.add_routes([relay_route(str(served.make_url("")).rstrip("/"), Limits())])
        async with TestServer(app) as site:
            url = str(site.make_url("/webhook/claims"))

            async def ask(uid: str, address: str) -> Any:
                request = {"uid": uid, "operation": "UPDATE", "object": {"x": "x" * 400}}
                body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
                way = aiohttp.TCPConnector(local_addr=(address, 0))
                async with (
                    aiohttp.ClientSession(connector=way) as http,
                    http.post(url, json={**body, "request": request}) as answer,
                ):
                    return (await answer.json())["response"]["allowed"]

            strangers = [
                asyncio.create_task(ask(f"stranger-{number}", "127.0.0.2")) for number in range(20)
            ]
            await until(lambda: sum(one.done() for one in strangers) >= 11)
            await until(lambda: bool(held))  # refusals may come before the leader is asked
            assert len(held) == 1
            async with asyncio.timeout(120):  # bounds a hang
                assert await ask("api-server", "127.0.0.1")
            go.set()
            assert any(await asyncio.gather(*strangers))


async def test_addresses_by_whose_questions_devices_are_reserved_have_room_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Strangers of two hundred networks hold all places of others, and all memory for their questions."""
    monkeypatch.setattr(claim_relay, "_AT_ONCE", 8)
    monkeypatch.setattr(claim_relay, "_HELD", 40_000)
    monkeypatch.setattr(claim_relay, "_SECONDS", 3600.0)
    held, go = list[str](), asyncio.Event()

    async def leader(request: web.Request) -> web.Response:
        uid = (await request.json())["request"]["uid"]
        if uid.startswith("stranger"):
            held.append(uid)
            await go.wait()
            return web.json_response({"response": {"uid": uid, "allowed": True}})
        response = {"response": {"uid": uid, "allowed": True}}
        return web.json_response(response, headers={RESERVED: "true"})

    behind, app = web.Application(), web.Application()
    behind.add_routes([web.post("/webhook/claims", leader)])
    async with TestServer(behind) as served:
        app.add_routes([relay_route(str(served.make_url("")).rstrip("/"), Limits())])
        site = Site(app, Limits())
        await site.start("0.0.0.0")  # noqa: S104 # loopback's addresses are several
        url = f"http://127.0.0.1:{site.port}/webhook/claims"

        async def ask(uid: str, address: str) -> Any:
            request = {"uid": uid, "operation": "UPDATE", "object": {"x": "x" * 400}}
            body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
            way = aiohttp.TCPConnector(local_addr=(address, 0))
            async with (
                aiohttp.ClientSession(connector=way) as http,
                http.post(url, json={**body, "request": request}) as answer,
            ):
                return (await answer.json())["response"]["allowed"]

        try:
            assert await ask("first", "127.0.0.1")
            strangers = [
                asyncio.create_task(ask(f"stranger-{n}", f"127.1.{n}.1")) for n in range(100)
            ]
            await until(lambda: len(held) == 4 and any(one.done() for one in strangers))
            async with asyncio.timeout(120):  # bounds a hang
                for number in range(5):
                    assert await ask(f"api-server-{number}", "127.0.0.1")
            assert len(held) == 4
            go.set()
            await asyncio.gather(*strangers)
        finally:
            await site.stop()


async def test_the_first_question_about_a_claim_is_marked_once() -> None:
    """Each mark gives an address room at the webhook, and a question that is repeated from a hundred addresses gets one."""
    async with (
        world(nodes=1, cards=2) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
    ):
        await _waiting(cluster, "x")
        asked = partial(_review, cluster, "x", share(pool="n0"))

        async def marked(body: Any) -> bool:
            async with cluster.http.post(f"{daemon.url}/webhook/claims", json=body) as answer:
                return RESERVED in answer.headers

        assert not await marked(asked(dryRun=True))
        assert await marked(asked())
        assert not await marked(asked())
        assert not await marked(asked(uid="other"))
        await _patched(cluster, "x", {"labels": {"a": "b"}})
        await until(lambda: _heard(daemon, cluster, "x"))
        assert not await marked(asked(uid="of another version"))
        await _status(cluster, "x", claim(share(pool="n0"))["status"])
        await until(lambda: not daemon.service.claims.reserved)
        await until(lambda: _heard(daemon, cluster, "x"))
        again = asked(uid="again")
        del again["request"]["oldObject"]
        assert not await marked(again)


async def test_large_questions_are_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The webhook limits the bytes of all questions, and releases them afterwards."""
    monkeypatch.setattr(claim_relay, "_HELD", 8000)  # a quarter of it of one address
    go, there = asyncio.Event(), 0

    async def leader(request: web.Request) -> web.Response:
        nonlocal there
        there += 1
        await go.wait()
        uid = (await request.json())["request"]["uid"]
        return web.json_response({"response": {"uid": uid, "allowed": True}})

    def review(size: int) -> dict[str, Any]:
        request = {"uid": "x", "operation": "UPDATE", "object": {"x": "x" * size}}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}

    behind, app = web.Application(), web.Application()
    behind.add_routes([web.post("/webhook/claims", leader)])
    async with TestServer(behind) as served:
        app.add_routes([relay_route(str(served.make_url("")).rstrip("/"), Limits())])
        async with TestClient(TestServer(app)) as client:

            async def ask(size: int) -> Any:
                async with client.post("/webhook/claims", json=review(size)) as answer:
                    return (await answer.json())["response"]["allowed"]

            first = asyncio.create_task(ask(1500))
            await until(lambda: there == 1)
            assert not await ask(1500)
            small = asyncio.create_task(ask(10))
            await until(lambda: there == 2)
            go.set()
            assert await first
            assert await small
            assert await ask(1500)


FULL = {
    "lists": {"object": {"spec": [[]] * 300_000}},
    "results": {"object": claim(*[{}] * 300_000)},
    "amounts": {
        "object": claim(result(consumedCapacity=dict.fromkeys(map(str, range(9**5)), "1")))
    },
    "labels": {"object": {"metadata": {"labels": dict.fromkeys(map(str, range(9**5)), "")}}},
    "groups": {"userInfo": {"groups": ["a"] * 200_000}},
}


@pytest.mark.parametrize("what", FULL)
async def test_a_question_takes_little_more_memory_than_its_text(what: str) -> None:
    """Any client may ask, and values took 26 times their text: ten megabytes took most of a second of the leader, and two such questions the webhook's memory."""
    given = {
        "uid": "x",
        "operation": "UPDATE",
        "subResource": "status",
        "resource": {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"},
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    body = json.dumps(review | {"request": given | FULL[what]}, separators=(",", ":")).encode()
    assert len(body) > 400_000

    async def leader(_request: web.Request) -> web.Response:
        return web.json_response({})

    leads, passes = web.Application(client_max_size=2**26), web.Application()
    behind = web.Application(client_max_size=2**26)
    behind.add_routes([web.post("/webhook/claims", leader)])
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
        TestServer(behind) as served,
    ):
        desk = ClaimDesk(daemon.service, lambda: True, lambda *_: None)
        leads.add_routes(desk.routes(Limits()))
        passes.add_routes([relay_route(str(served.make_url("")).rstrip("/"), Limits())])
        for app in (leads, passes):
            async with TestClient(TestServer(app)) as client:
                tracemalloc.start()
                try:
                    async with client.post("/webhook/claims", data=body) as answer:
                        assert answer.status in (200, 400)
                    assert tracemalloc.get_traced_memory()[1] < 10 * len(body)
                finally:
                    tracemalloc.stop()
                async with client.post(
                    "/webhook/claims", data=BytesIO(b" " * 4 * 2**20)
                ) as answer:
                    assert answer.status == 413


class _Leader:
    """Stands for the scheduler that leads.

    Attributes:
        asked: uids of questions that came.
        withdrawn: uids of questions that were taken back.
        at_the_relay: questions that are there, passed on or not.
        may_answer: what all answers wait for.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.withdrawn: list[str] = []
        self.at_the_relay = 0
        self.may_answer = asyncio.Event()
        self.app = web.Application()
        self.app.add_routes([web.post("/webhook/claims", self._ask)])
        self.app.add_routes([web.post("/webhook/claims/withdrawn", self._take_back)])

    async def _ask(self, request: web.Request) -> web.Response:
        uid = (await request.json())["request"]["uid"]
        self.asked.append(uid)
        await self.may_answer.wait()
        return web.json_response({"response": {"uid": uid, "allowed": True}})

    async def _take_back(self, request: web.Request) -> web.Response:
        self.withdrawn.append((await request.json())["uid"])
        return web.json_response({})


@contextlib.asynccontextmanager
async def _relayed() -> AsyncIterator[tuple[_Leader, Callable[[str], Awaitable[Any]]]]:
    """A leader, and a way to ask it through the webhook, over a connection of its own that ends with the question."""
    leader = _Leader()

    @web.middleware
    async def counted(request: web.Request, handler: Any) -> Any:
        leader.at_the_relay += 1
        try:
            return await handler(request)
        finally:
            leader.at_the_relay -= 1

    app = web.Application(middlewares=[counted])
    async with TestServer(leader.app) as served, aiohttp.ClientSession() as http:
        app.add_routes([relay_route(str(served.make_url("")).rstrip("/"), Limits())])
        site = Site(app, Limits())
        await site.start()

        async def ask(uid: str) -> Any:
            request = {"uid": uid, "operation": "UPDATE"}
            body = {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "request": request,
            }
            async with http.post(f"{site.url}/webhook/claims", json=body) as answer:
                return (await answer.json())["response"]

        try:
            yield leader, ask
        finally:
            leader.may_answer.set()
            await site.stop()


async def test_what_the_api_server_waits_for_no_more_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gives up a question in progress, or a question without a turn; the relay never passes on the latter."""
    monkeypatch.setattr(claim_relay, "_SECONDS", 3600.0)
    monkeypatch.setattr(claim_relay, "_AT_ONCE", 1)
    async with _relayed() as (leader, ask):
        first = asyncio.create_task(ask("first"))
        await until(lambda: leader.asked == ["first"])
        second = asyncio.create_task(ask("second"))
        await until(lambda: leader.at_the_relay == 2)
        second.cancel()
        await until(lambda: leader.at_the_relay == 1)
        third = asyncio.create_task(ask("third"))
        await until(lambda: leader.at_the_relay == 2)
        first.cancel()
        await until(lambda: leader.withdrawn == ["first"])
        leader.may_answer.set()
        assert (await third)["allowed"]
        assert (await ask("fourth"))["allowed"]
        assert leader.asked == ["first", "third", "fourth"]
        assert leader.withdrawn == ["first"]


async def test_what_the_leader_does_not_answer_in_time_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server gets a refusal, so the leader must release its reservation."""
    async with _relayed() as (leader, ask):
        monkeypatch.setattr(claim_relay, "_SECONDS", 0.2)
        refused = await ask("late")
        assert not refused["allowed"]
        assert "does not answer: TimeoutError" in refused["status"]["message"]
        await until(lambda: leader.withdrawn == ["late"])


async def test_what_is_taken_back_is_free_at_once_and_not_reserved_later() -> None:
    """The next claim gets the devices; a question that arrives after its withdrawal is refused."""
    async with (
        world(nodes=1, cards=1) as cluster,
        SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon,
    ):
        for name in ("x", "y"):
            await _waiting(cluster, name)
        asked = partial(_asked, cluster, daemon.url)
        withdrawn = f"{daemon.url}/webhook/claims/withdrawn"

        async def take_back(body: bytes) -> int:
            async with cluster.http.post(withdrawn, data=body) as answer:
                return answer.status

        assert (await asked(_review(cluster, "x", share(pool="n0"))))["response"]["allowed"]
        full = _review(cluster, "y", share(pool="n0", cores="100"))
        assert not (await asked(full))["response"]["allowed"]
        assert await take_back(b'{"uid": "ask-x"}') == 200
        late = (await asked(_review(cluster, "x", share(pool="n0"))))["response"]
        assert "stopped waiting for this answer" in late["status"]["message"]
        assert (await asked({**full, "request": {**full["request"], "uid": "again"}}))["response"][
            "allowed"
        ]
        for wrong in (b"{}", b'{"uid": ""}', b"[", b'{"uid": "\xff"}'):
            assert await take_back(wrong) == 400


async def _naming(cluster: World, name: str) -> None:
    """A pod with nothing but the claim of its own name."""
    claims = [{"name": "card", "resourceClaimName": name}]
    spec = {"containers": [{"name": "main", "image": "x"}], "resourceClaims": claims}
    await cluster.api.create("pods", {"metadata": {"name": name}, "spec": spec}, "default")


async def test_people_are_told_what_each_card_lacks_for_a_claim() -> None:
    """The answer has numbers and holders. The service evaluates no expression and does not change the books."""
    async with world(nodes=2, cards=1) as cluster:
        await _allocated(cluster, "held", share(pool="n0", cores="60", memory="4Gi"))
        never = [{"cel": {"expression": "[1].all(x, [x].all(y, y == 2))"}}]
        amounts = {"requests": {"cores": "70", "memory": "2Gi"}}
        await _waiting(cluster, "large", capacity=amounts, selectors=never)
        await _waiting(cluster, "small", capacity={"requests": {"cores": "30", "memory": "1Gi"}})
        await _waiting(cluster, "instance", deviceClassName="mig.gpu.partage.io")
        await _waiting(cluster, "huge", capacity={"requests": {"cores": "90", "memory": "900Gi"}})
        for name in ("held", "large", "small", "instance", "huge", "missing"):
            await _naming(cluster, name)
        await cluster.pod("whole")
        async with SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon:
            assert await cluster.schedule(daemon.url, "whole") == "n1"
            before = list(daemon.service.books.engine.ledger.allocations())

            async def told(name: str) -> Any:
                async with cluster.http.get(f"{daemon.url}/api/explain/default/{name}") as answer:
                    assert answer.status == 200, await answer.text()
                    return await answer.json()

            large = await told("large")
            assert (large["state"], large["reason"]["code"]) == ("waiting", "InsufficientCore")
            (card,) = large["reason"]["nodes"]["n0"]["cards"]
            assert (card["minor"], card["asked"], card["free"]) == (0, 700, 400)
            assert "fits with at most 40% of cores" in card["detail"]
            assert list(large["reason"]["nodes"]) == ["n0", "n1"], "the nearest first"
            assert large["reason"]["nodes"]["n1"]["code"] == "CardNotIdle"
            (held,) = (one for one in large["claims"] if one["name"])
            assert (held["name"], held["core_milli"]) == ("held", 600)
            assert large["request"][0]["core_milli"] == 700
            assert any("judges no selectors" in note for note in large["notes"])
            small = await told("small")
            assert (small["reason"], small["fits_now_on"]) == (None, "n0")
            assert (await told("instance"))["reason"]["code"] == "MigPlacement"
            assert "or wait" in large["next"]
            huge = await told("huge")
            assert huge["reason"]["code"] == "InsufficientMemory", "of all amounts the scarcest"
            (card,) = huge["reason"]["nodes"]["n0"]["cards"]
            assert card["detail"].startswith("cores 90% asked, 40% left; memory 900Gi asked, ")
            assert "waiting does not help" in huge["next"]
            missing = await told("missing")
            assert missing["reason"]["code"] == "ClaimUnready"
            assert "ResourceClaim missing" in missing["reason"]["message"]
            assert (await told("held"))["allocations"][0]["core_milli"] == 600
            assert list(daemon.service.books.engine.ledger.allocations()) == before


async def test_claims_are_explained_only_where_they_are_followed() -> None:
    """If claims are not followed, a pod with only a claim counts as a pod without devices."""
    async with world(nodes=1, cards=1) as cluster:
        await _naming(cluster, "x")
        async with (
            SchedulerDaemon(await cluster.client()) as daemon,
            cluster.http.get(f"{daemon.url}/api/explain/default/x") as answer,
        ):
            assert answer.status == 404
