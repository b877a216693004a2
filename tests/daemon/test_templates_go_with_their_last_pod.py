"""Templates of translated pods are created when a pod names one and deleted after the last, whatever ends meanwhile.

The embedded API server asks a running webhook, as a genuine one does. A stand-in for Kubernetes' controller of claims
makes claims of templates, and the API server's own collector deletes them with their pods.
"""

import asyncio
import contextlib
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_world import World, pod, until, world

from fakes.ports import free_port
from partage.daemon import claim_templates
from partage.daemon.claim_templates import Cards, ClaimTemplates
from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.daemon.webhook import WebhookDaemon, WebhookOptions
from partage.model.device import Device, DeviceType
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.webhook.installation import Endpoint, installation
from partage.webhook.settings import Admission
from partage.wire.claim_shapes import Shape, Translated, decode_translated, encode_translated
from partage.wire.claim_specs import kinds
from partage.wire.context import Context
from partage.wire.documents import Document, decode
from partage.wire.shapes import Metadata

TEMPLATES = "resourceclaimtemplates.resource.k8s.io"
CLAIMS = "resourceclaims.resource.k8s.io"
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "share.gpu.partage.io"},
    "spec": {},
}
PODS = int(os.environ.get("PARTAGE_TRANSLATED_PODS", "60"))
"""Outside the gate: 10000."""
ASKED = (
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "10"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "20", "nvidia.com/gpucores": "20"},
    {"nvidia.com/gpu": "1"},
    {names.QGPU_CORE: "20", names.QGPU_MEMORY: "4"},
    {names.KOORD_GPU_CORE: "30", names.KOORD_GPU_MEMORY_RATIO: "30"},
    {names.KOORD_GPU: "200"},
)
FOLLOWING = SchedulerOptions(claims=True, claim_templates=True)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every moment, and not twice a minute."""
    monkeypatch.setattr(ClaimTemplates.__init__, "__defaults__", (0.2,))


@contextlib.asynccontextmanager
async def following(cluster: World) -> AsyncIterator[SchedulerDaemon]:
    """A leader that looks after templates."""
    async with SchedulerDaemon(await cluster.client(), FOLLOWING) as daemon:
        yield daemon


def templates(cluster: World) -> dict[str, dict[str, Any]]:
    """Templates that are there, by name."""
    return {
        one.value["metadata"]["name"]: dict(one.value) for one in cluster.api.store.all(TEMPLATES)
    }


def of(**shapes: Shape) -> dict[str, str]:
    """The annotation of a pod with such containers."""
    return {
        names.TRANSLATED: encode_translated(
            {name: Translated(one) for name, one in shapes.items()}
        )
    }


def claims_of(annotations: dict[str, str]) -> list[dict[str, str]]:
    """The claims of a pod with these annotations, as the webhook writes them."""
    with contextlib.suppress(InvalidValue):
        told = decode_translated(annotations[names.TRANSLATED])
        return [
            {"name": f"partage-{number}", "resourceClaimTemplateName": one.shape.template}
            for number, one in enumerate(told.values())
        ]
    return [{"name": "partage-0", "resourceClaimTemplateName": SHARE.template}]


async def made(cluster: World, name: str, annotations: dict[str, str], **spec: Any) -> None:
    """A pod with annotations, as it is stored."""
    manifest = pod(name, {}, resourceClaims=claims_of(annotations), **spec)
    manifest["metadata"]["annotations"] = annotations
    await cluster.api.create("pods", manifest, "default")


SHARE, PERCENT = Shape(core_milli=100, memory_bytes=2**30), Shape(memory_milli=250)


async def test_pods_of_one_shape_share_a_template_until_the_last_has_gone() -> None:
    """The DeviceClass owns it, so that it is deleted with the chart; a pod that has ended needs none."""
    async with world(nodes=1) as cluster:
        owner = await cluster.api.create("deviceclasses.resource.k8s.io", CLASS)
        await made(cluster, "a", of(main=SHARE))
        async with following(cluster):
            await until(lambda: SHARE.template in templates(cluster))
            (found,) = templates(cluster).values()
            (mine,) = found["metadata"]["ownerReferences"]
            assert (mine["kind"], mine["uid"]) == ("DeviceClass", owner.value["metadata"]["uid"])
            (request,) = found["spec"]["spec"]["devices"]["requests"]
            assert request["exactly"]["capacity"]["requests"] == {"cores": "10", "memory": "1Gi"}
            await made(cluster, "b", of(main=SHARE, other=PERCENT))
            await until(lambda: len(templates(cluster)) == 2)
            await cluster.delete("a")
            await cluster.delete("b")
            await until(lambda: not templates(cluster))


async def test_a_new_leader_finds_what_was_left() -> None:
    """Templates without a pod are deleted, and those in use and those of others stay."""
    async with world(nodes=1) as cluster:
        await cluster.api.create("deviceclasses.resource.k8s.io", CLASS)
        await made(cluster, "a", of(main=SHARE))
        await made(cluster, "b", of(main=PERCENT))
        async with following(cluster):
            await until(lambda: len(templates(cluster)) == 2)
        before = templates(cluster)[SHARE.template]
        await cluster.delete("b")
        theirs = {**before, "metadata": {"name": "theirs", "namespace": "default"}}
        await cluster.api.create(TEMPLATES, theirs, "default")
        async with following(cluster):
            await until(lambda: PERCENT.template not in templates(cluster))
            assert templates(cluster)[SHARE.template] == before
            assert "theirs" in templates(cluster)


def test_cards_are_counted_when_their_node_changes() -> None:
    """The kept counts equal a full count; unchanged nodes are not read."""
    read: list[str] = []

    class Noted(Node):
        """A node that tells when its devices are looked at."""

        def __getattribute__(self, name: str) -> Any:
            if name == "devices":
                read.append(object.__getattribute__(self, "name"))
            return object.__getattribute__(self, name)

    def node(name: str, *models: str) -> Node:
        cards = (
            Device(DeviceType.GPU, minor, f"{name}-{minor}", model=model)
            for minor, model in enumerate(models)
        )
        return Noted(name, devices=tuple(cards))

    cards, chance = Cards(), random.Random(7)  # noqa: S311 # repeatable
    nodes: list[Node | None] = [node(f"n{number}", "A100") for number in range(20)]
    for _ in range(200):
        at = chance.randrange(len(nodes))
        models = chance.choices(["A100", "H100", "L4"], k=chance.randrange(4))
        nodes[at] = node(f"n{at}", *models) if models else None
        if chance.random() < 0.1:
            nodes = [
                one and replace(one) for one in nodes[: chance.randrange(10, 20)]
            ]  # new books
        kept = dict(cards.of(nodes))
        assert kept == kinds(device for one in nodes if one for device in one.devices)
    read.clear()
    nodes[3] = node("n3", "H100")
    cards.of(nodes)
    assert set(read) == {"n3"}


async def test_other_cards_make_another_spec() -> None:
    """Percent of memory depends on the size of each card, including cards that appear later."""
    async with world(nodes=1) as cluster:
        await cluster.api.create("deviceclasses.resource.k8s.io", CLASS)
        await made(cluster, "a", of(main=PERCENT))
        async with following(cluster):
            await until(lambda: PERCENT.template in templates(cluster))

            def sizes() -> list[str]:
                found = templates(cluster).get(PERCENT.template)
                if found is None:
                    return []
                (request,) = found["spec"]["spec"]["devices"]["requests"]
                ways = request.get("firstAvailable") or [request["exactly"]]
                return [one["capacity"]["requests"]["memory"] for one in ways]

            assert sizes() == ["4Gi"]
            await cluster.nodes(1)
            larger = cluster.stored("n1", "devices.scheduling.koordinator.sh", "")
            for one in larger["spec"]["devices"]:
                one["resources"]["koordinator.sh/gpu-memory"] = "32Gi"
            await _put(cluster, "/apis/scheduling.koordinator.sh/v1alpha1/devices/n1", larger)
            await until(lambda: sizes() == ["4Gi", "8Gi"])


async def _put(cluster: World, path: str, body: dict[str, Any]) -> None:
    async with cluster.http.put(f"{cluster.url}{path}", json=body) as answer:
        assert answer.status == 200, await answer.text()


async def test_what_cannot_be_made_is_said_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No DeviceClass, a used name, a bad annotation, no card, and more templates than the limit."""
    monkeypatch.setattr(claim_templates, "_MOST", 2)
    async with world(nodes=1) as cluster:
        await made(cluster, "a", of(main=SHARE))
        await made(cluster, "odd", {names.TRANSLATED: "{"})
        async with following(cluster):
            await until(lambda: "cannot bring ResourceClaimTemplates up to date" in caplog.text)
            theirs = {
                "metadata": {"name": SHARE.template, "namespace": "default"},
                "spec": {"spec": {}},
            }
            await cluster.api.create(TEMPLATES, theirs, "default")
            await cluster.api.create("deviceclasses.resource.k8s.io", CLASS)
            await made(cluster, "none", of(main=Shape(shares=False, instances=True)))
            await until(lambda: "no card of the cluster can give it" in caplog.text)
            taken = f"default/{SHARE.template} is not made: another object has the name"
            await until(lambda: taken in caplog.text)
            for count in range(1, 4):
                await made(cluster, f"c{count}", of(main=Shape(count=count, whole=True)))
            await until(lambda: "namespace default has 2" in caplog.text)
            assert templates(cluster)[SHARE.template]["spec"] == {"spec": {}}
            assert len(templates(cluster)) == 3
            await cluster.api.delete(TEMPLATES, "default", SHARE.template)
            await cluster.delete("c1")
            await until(lambda: SHARE.template in templates(cluster))
    for once in (taken, "no card of the cluster can give it", "namespace default has 2"):
        assert caplog.text.count(once) == 1


async def test_nothing_is_left_of_many_pods_whose_webhook_is_killed() -> None:
    """Pods are created and deleted while webhook and leader end and start; no template and no claim remains."""
    async with world(nodes=1) as cluster:
        await cluster.api.create("namespaces", {"metadata": {"name": "partage-system"}})
        await cluster.api.create("deviceclasses.resource.k8s.io", CLASS)
        await _labelled(cluster, "translate")
        endpoint = Endpoint(url=f"https://127.0.0.1:{free_port()}")
        await _installed(cluster, endpoint)
        chance = random.Random(PODS)  # noqa: S311 # repeatable
        churn = _Churn(cluster, chance)
        async with _claims_made(cluster):
            while churn.created < PODS:
                async with following(cluster), _webhook(cluster, endpoint):
                    await churn.go(min(PODS, churn.created + max(20, PODS // 20)))
                await churn.refused()  # the webhook is away: nothing is let in half done
            await _labelled(cluster, "")
            async with following(cluster), _webhook(cluster, endpoint):
                name = await churn.one()
                assert "resourceClaims" not in cluster.stored(name)["spec"]
                await churn.empty()
                await until(lambda: not templates(cluster))
        await until(lambda: not [*cluster.api.store.all(CLAIMS)])
        assert churn.most <= len(ASKED)
        assert churn.created == churn.gone == PODS + 1


class _Churn:
    """Pods that come and go."""

    def __init__(self, cluster: World, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.created = self.gone = self.most = 0
        self.there: list[str] = []

    async def one(self) -> str:
        """One pod more, by HTTP and the webhook; tried again while the webhook does not serve yet."""
        name = f"p{self.created}"
        manifest = pod(name, self.chance.choice(ASKED))
        while True:
            if await self._post(manifest) == 201:
                break
            await asyncio.sleep(0.05)
        self.created += 1
        self.there.append(name)
        return name

    async def _post(self, manifest: dict[str, Any]) -> int:
        path = f"{self.cluster.url}/api/v1/namespaces/default/pods"
        async with self.cluster.http.post(path, json=manifest) as answer:
            return answer.status

    async def go(self, until_created: int) -> None:
        """Create and delete, twenty at a time at most."""
        while self.created < until_created:
            name = await self.one()
            assert self.cluster.stored(name)["spec"]["resourceClaims"], name
            while len(self.there) > 20 or (self.there and self.chance.random() < 0.4):
                await self._delete()
            self.most = max(self.most, len(templates(self.cluster)))

    async def refused(self) -> None:
        """While the webhook is away, no pod with devices is let in."""
        assert await self._post(pod("refused", ASKED[0])) == 500

    async def empty(self) -> None:
        """Delete all that are there."""
        while self.there:
            await self._delete()

    async def _delete(self) -> None:
        await self.cluster.delete(self.there.pop(self.chance.randrange(len(self.there))))
        self.gone += 1


@contextlib.asynccontextmanager
async def _webhook(cluster: World, endpoint: Endpoint) -> AsyncIterator[None]:
    """The webhook for a time; it ends in the middle of what it does."""
    port = int(endpoint.url.rpartition(":")[2])
    options = WebhookOptions(port=port, endpoint=endpoint)
    async with WebhookDaemon(await cluster.client(), options):
        yield


async def _installed(cluster: World, endpoint: Endpoint) -> None:
    context = Context.of(Settings(), FAMILIES)
    for one in installation(endpoint, context, Admission(), translate=True):
        if one["kind"].endswith("WebhookConfiguration"):
            plural = f"{one['kind'].lower()}s.admissionregistration.k8s.io"
            await cluster.api.create(plural, one)


async def _labelled(cluster: World, label: str) -> None:
    """Give the namespace the label, or take it away."""
    labels = {
        "kubernetes.io/metadata.name": "default",
        **({names.CLAIMS_LABEL: label} if label else {}),
    }
    stored = cluster.stored("default", "namespaces", "")
    stored["metadata"] = {**stored["metadata"], "labels": labels}
    await _put(cluster, "/api/v1/namespaces/default", stored)


@contextlib.asynccontextmanager
async def _claims_made(cluster: World) -> AsyncIterator[None]:
    """Kubernetes' controller, as far as it makes claims of templates; it tries again while one is away."""

    async def work() -> None:
        while True:
            for record in list(cluster.api.store.all("pods")):
                await claim(record.value)
            await asyncio.sleep(0.02)

    async def claim(found: Any) -> None:
        head = found["metadata"]
        for one in found["spec"].get("resourceClaims", ()):
            name = f"{head['name']}-{one['name']}"
            template = templates(cluster).get(one["resourceClaimTemplateName"])
            if template is None or cluster.api.store.get(CLAIMS, "default", name) is not None:
                continue
            owner = {"apiVersion": "v1", "kind": "Pod", "name": head["name"], "uid": head["uid"]}
            body = {
                "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]},
                "spec": template["spec"]["spec"],
            }
            await cluster.api.create(CLAIMS, body, "default")

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _Requests:
    """A client that counts its requests, and waits in none."""

    def __init__(self) -> None:
        self.clock, self.sent = SimpleNamespace(monotonic=lambda: 0.0), Counter[str]()
        self.made: list[str] = []

    async def list_all(self, *_: Any, **__: Any) -> Any:
        self.sent["list"] += 1
        return SimpleNamespace(items=[])

    async def get(self, *_: Any, **__: Any) -> Any:
        self.sent["get"] += 1
        return claim_templates._Template()

    async def create(self, *_: Any, namespace: str, **__: Any) -> Any:
        self.sent["create"] += 1
        self.made.append(namespace)
        await asyncio.sleep(0)
        return claim_templates._Template(Metadata(uid=str(self.sent["create"])))


def alone() -> tuple[ClaimTemplates, _Requests]:
    """The templates of a cluster with one card, and their requests."""
    nodes = [Node("n", devices=(Device(DeviceType.GPU, 0, "n-0", memory_bytes=2**34),))]
    books = SimpleNamespace(engine=SimpleNamespace(ledger=SimpleNamespace(nodes=nodes)))
    requests = _Requests()
    return ClaimTemplates(requests, lambda: books), requests  # type: ignore[arg-type,return-value]


def document(
    name: str, annotations: dict[str, str], claims: list[dict[str, str]], namespace: str = "a"
) -> Document:
    """A pod as a watch reports it."""
    meta = {"name": name, "namespace": namespace, "uid": name, "annotations": annotations}
    spec = {"containers": [], "resourceClaims": claims}
    manifest = {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec}
    (found,) = decode("test", json.dumps(manifest).encode()).documents
    return found


IMPOSSIBLE = [Shape(shares=False, instances=True, memory_bytes=n << 20) for n in range(1, 1601)]


async def test_what_cannot_be_made_is_tried_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tenant's pods may name thousands of shapes that no card can give, and each new pod leads to a look."""
    tried: list[Shape] = []
    plain = claim_templates.claim_spec
    monkeypatch.setattr(
        claim_templates, "claim_spec", lambda *given: tried.append(given[0]) or plain(*given)
    )
    mine, requests = alone()
    for number, shape in enumerate(IMPOSSIBLE):
        mine.changed(document(f"p{number}", of(main=shape), claims_of(of(main=shape))))
        if number >= 1500:
            await mine.look()
    assert len(tried) == len(IMPOSSIBLE)
    assert len(caplog.messages) == 21
    assert "more lines about templates of namespace a are left out" in caplog.messages[-1]
    assert requests.sent == {"list": 1}


async def test_a_pod_has_the_templates_alone_that_its_claims_name() -> None:
    """Its author can change its annotations all the time, and its claims never; nor do many pods cost memory after."""
    mine, requests = alone()
    claims = claims_of(of(main=SHARE))
    mine.changed(document("p", of(main=SHARE, other=PERCENT), claims))
    for number in range(1, 50):
        shapes = {f"c{at}": Shape(memory_bytes=(64 * number + at) << 20) for at in range(64)}
        mine.changed(document("p", of(**shapes), claims))
        mine.changed(document("plain", of(**shapes), []))
        await mine.look()
    assert requests.sent == {"list": 1, "get": 1, "create": 1}
    assert set(mine._shapes) == {("a", SHARE.template)}
    for number, shape in enumerate(IMPOSSIBLE):  # of an instance that only follows
        mine.changed(document(f"q{number}", of(main=shape), claims_of(of(main=shape))))
        mine.gone(document(f"q{number}", {}, []))
    assert not mine._missing
    assert set(mine._shapes) == {("a", SHARE.template)}


async def test_a_namespace_with_many_templates_delays_no_other() -> None:
    """Also one whose pod comes while the many are made."""
    mine, requests = alone()
    for number in range(1, 501):
        own = of(main=Shape(memory_bytes=number << 20))
        mine.changed(document(f"p{number}", own, claims_of(own)))
    looking = asyncio.create_task(mine.look())
    for _ in range(50):
        await asyncio.sleep(0)
    before = len(requests.made)
    assert 0 < before < 100
    mine.changed(document("late", of(main=SHARE), claims_of(of(main=SHARE)), "b"))
    await looking
    assert "b" in requests.made[before : before + 3]
    assert len(requests.made) == 501
