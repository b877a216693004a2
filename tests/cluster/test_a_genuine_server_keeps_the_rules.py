"""Admission policy, webhook and controllers against a genuine kube-apiserver."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from control_plane import ADMIN, ControlPlane, missing

from fakes.ports import free_port
from partage.controllers.manager import Controllers, ControllerSettings
from partage.daemon.adjusting import Adjusting
from partage.daemon.binding import ApiPods
from partage.daemon.claim_reviews import outdater
from partage.daemon.watched import LiveClaim, as_document
from partage.daemon.webhook import WebhookDaemon, WebhookOptions
from partage.extender.ports import Outcome
from partage.kube.client import Client, PatchKind
from partage.kube.errors import ApiError, KubeError
from partage.kube.loading import load_config
from partage.kube.recorder import Regarding
from partage.kube.resources import NODES, PODS, Resource
from partage.kube.sender import ClientSettings
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.webhook.installation import Endpoint, installation
from partage.webhook.settings import Admission
from partage.wire import shapes
from partage.wire.context import Context
from partage.wire.documents import Document, decode
from partage.wire.record import encode

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=missing() or "built"),
]

GROUP = "admissionregistration.k8s.io"
PLURALS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
ACCOUNTS = Resource("", "v1", "serviceaccounts")
NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
WRITER = "system:serviceaccount:partage-system:partage-scheduler"
KUBELET = "system:node:n7"
SCHEDULER = "system:kube-scheduler"
TENANT = "jane"
CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims")
SHARE = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
PATIENCE = 240.0
Manifest = dict[str, Any]


class Plane:
    """A control plane with its administrator, Partage's scheduler, a node, kube-scheduler, and an editor of one namespace."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    @contextlib.asynccontextmanager
    async def client(self, *, writer: bool = False, user: str = "") -> AsyncIterator[Client]:
        """A client of one of them."""
        user = WRITER if writer else user
        path = self.plane.kubeconfig(self.plane.token_of(user) if user else None)
        async with Client(
            load_config({}, kubeconfig=path), settings=ClientSettings(attempts=2)
        ) as client:
            yield client


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One server for all tests of this file."""
    folder = tmp_path_factory.mktemp("plane")
    made = ControlPlane(folder)
    for user in (WRITER, KUBELET):
        made.token(user, ADMIN)
    for user in (SCHEDULER, TENANT):
        made.token(user)
    try:
        made.start()
        for namespace in ("partage-system", "default"):
            with contextlib.suppress(OSError):  # there already
                body = {"metadata": {"name": namespace}}
                made.call("POST", "/api/v1/namespaces", body)
            account = {"metadata": {"name": "default"}}
            made.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
        editor = {
            "metadata": {"name": "editor"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:aggregate-to-edit",  # without a controller, nothing is in `edit`
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}
            ],
        }
        bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
        made.call("POST", bindings, editor)
        yield Plane(made)
    finally:
        made.stop()


def pod(name: str, limits: dict[str, str] | None = None, **meta: Any) -> Manifest:
    """A pod."""
    resources = {"limits": limits, "requests": limits} if limits else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": resources}]},
    }


async def create(client: Client, manifest: Manifest, namespace: str = "default") -> Manifest:
    """Create a pod; its newest state."""
    raw = await client.create(PODS, manifest, namespace=namespace, into=msgspec.Raw)
    found: Manifest = json.loads(bytes(raw))
    return found


async def install(client: Client, endpoint: Endpoint, *kinds: str) -> None:
    """Delete and create again what `--manifests` prints."""
    for one in installation(endpoint, Context.of(Settings(), FAMILIES), Admission(), claims=True):
        if one["kind"] not in kinds:
            continue
        resource = Resource(GROUP, "v1", PLURALS[one["kind"]], namespaced=False)
        with contextlib.suppress(KubeError):
            await client.delete(resource, one["metadata"]["name"])
        await client.create(resource, one, into=msgspec.Raw)


async def refused(client: Client, manifest: Manifest, namespace: str = "default") -> str:
    """The server's words against a pod; empty when it would take it."""
    try:
        await client.create(PODS, manifest, namespace=namespace, into=msgspec.Raw, dry_run=True)
    except KubeError as error:
        return str(error)
    return ""


async def until_refused(client: Client, manifest: Manifest, words: str) -> None:
    """Policies and configurations take a moment to be in force."""
    async with asyncio.timeout(PATIENCE):
        while words not in await refused(client, manifest):  # noqa: ASYNC110 # nothing tells
            await asyncio.sleep(0.2)


FORGED = pod("forged", annotations={"partage.io/allocation": "{}"})


async def test_the_policy_holds_without_any_webhook(plane: Plane) -> None:
    """It holds on creation, update, status and binding, for the administrator too and not for the scheduler."""
    async with plane.client() as client, plane.client(writer=True) as scheduler:
        await install(
            client, Endpoint(), "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
        )
        await until_refused(client, FORGED, "only Partage may write these annotations")
        assert await refused(scheduler, FORGED) == ""
        assert "only Partage" not in await refused(client, FORGED, "kube-system")
        prefixed = pod("p", annotations={"tke.cloud.tencent.com/qgpu-pgpu-main": "0"})
        assert "begin with" in await refused(client, prefixed)
        assert "labels" in await refused(client, pod("l", labels={"hami.io/vgpu-node": "n1"}))

        held = await create(scheduler, pod("held", annotations={"partage.io/allocation": "a"}))
        plain = await create(client, pod("plain", annotations={"own": "a"}))
        for change in ({"partage.io/allocation": "b"}, {"partage.io/allocation": None}):
            for subresource in ("", "status"):
                with pytest.raises(ApiError, match="only Partage"):
                    await client.patch(
                        PODS,
                        "held",
                        {"metadata": {"annotations": change}},
                        kind=PatchKind.MERGE,
                        namespace="default",
                        subresource=subresource,
                        into=msgspec.Raw,
                    )
        for name in ("held", "plain"):
            await client.patch(
                PODS,
                name,
                {"metadata": {"annotations": {"own": "b"}}},
                kind=PatchKind.MERGE,
                namespace="default",
                into=msgspec.Raw,
            )
            body = {"status": {"conditions": [{"type": "x", "status": "True"}]}}
            await client.patch(
                PODS,
                name,
                body,
                kind=PatchKind.STRATEGIC,
                namespace="default",
                subresource="status",
                into=msgspec.Raw,
            )

        uid = plain["metadata"]["uid"]
        with pytest.raises(ApiError, match="only Partage"):
            await client.bind(
                "default", "plain", "n1", uid=uid, annotations={"partage.io/allocation": "{}"}
            )
        await scheduler.bind(
            "default", "plain", "n1", uid=uid, annotations={"partage.io/allocation": "{}"}
        )
        await client.bind("default", "held", "n1", uid=held["metadata"]["uid"])


async def test_no_pod_is_too_costly_to_judge(plane: Plane) -> None:
    """Far more annotations, labels and containers than pods have stay within CEL's budget."""
    crowded = pod("crowded", annotations={f"{number:05x}": "" for number in range(12_000)})
    labels = {f"label-{number}": "x" for number in range(2_000)}
    crowded["metadata"]["labels"] = dict(list(labels.items())[:256])
    resources = {"limits": {f"example.com/r{number}": "1" for number in range(20)}}
    crowded["spec"]["containers"] = [
        {"name": f"c{number}", "image": "x", "resources": resources} for number in range(200)
    ]
    async with plane.client() as client:
        await install(
            client,
            Endpoint(),
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
        )
        try:
            await until_refused(client, FORGED, "only Partage may write these annotations")
            await until_refused(client, pod("share", SHARE), "failed calling webhook")
            assert await refused(client, crowded) == ""
            forged = {**crowded, "metadata": {**crowded["metadata"]}}
            forged["metadata"]["annotations"] = {
                **dict(list(crowded["metadata"]["annotations"].items())[:-100]),
                "tke.cloud.tencent.com/qgpu-pgpu-main": "0",
            }
            assert "begin with" in await refused(client, forged)
            labelled = {**crowded, "metadata": {**crowded["metadata"], "labels": labels}}
            assert "more than 256 labels" in await refused(client, labelled)
        finally:
            for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
                await client.delete(Resource(GROUP, "v1", kind, namespaced=False), "partage")


async def test_the_server_finds_no_fault_in_the_expressions(plane: Plane) -> None:
    """Type checking of the policies ends without a warning."""
    async with plane.client() as client:
        await install(
            client, Endpoint(), "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
        )
        resource = Resource(GROUP, "v1", "validatingadmissionpolicies", namespaced=False)
        for name in (
            "partage-reserved-keys",
            "partage-node-name",
            "partage-pod-labels",
            "partage-claim-finalizer",
        ):
            raw = await client.get(resource, name, into=msgspec.Raw)
            warnings = json.loads(bytes(raw)).get("status", {}).get("typeChecking", {})
            assert not warnings.get("expressionWarnings")


async def test_only_who_may_allocate_makes_a_claim_look_begun(plane: Plane) -> None:
    """A new leader writes every such claim before it serves; the user keeps all other rights to his claim."""
    request = {"name": "card", "exactly": {"deviceClassName": "gpu.partage.io"}}
    spec = {"devices": {"requests": [request]}}
    finalizers = [names.CLAIM_FINALIZER]

    def claim(name: str, **meta: Any) -> Manifest:
        return {"metadata": {"name": name, **meta}, "spec": spec}

    async def patch(client: Client, **meta: Any) -> str:
        body = {"metadata": meta}
        try:
            await client.patch(
                CLAIMS,
                "mine",
                body,
                kind=PatchKind.MERGE,
                namespace="default",
                into=msgspec.Raw,
            )
        except KubeError as error:
            return str(error)
        return ""

    policies = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    async with (
        plane.client() as admin,
        plane.client(user=TENANT) as tenant,
        plane.client(user=SCHEDULER) as scheduler,
    ):
        await install(admin, Endpoint(), *policies)
        await tenant.create(CLAIMS, claim("mine"), namespace="default", into=msgspec.Raw)
        async with asyncio.timeout(PATIENCE):
            while "is for schedulers" not in await patch(tenant, finalizers=finalizers):
                await patch(tenant, finalizers=None)
                await asyncio.sleep(0.2)
        with pytest.raises(
            KubeError,
            match="is for schedulers: a user who sets it, or removes it from an allocated",
        ):
            await tenant.create(
                CLAIMS,
                claim("begun", finalizers=finalizers),
                namespace="default",
                into=msgspec.Raw,
            )
        assert not await patch(tenant, finalizers=["example.com/mine"])

        assert not await patch(scheduler, finalizers=finalizers)
        assert not await patch(tenant, annotations={"mine": "yes"})
        assert not await patch(tenant, finalizers=None)


async def test_an_allocated_claim_is_not_deleted_under_its_pods(plane: Plane) -> None:
    """Its tenant could remove the finalizer, and its cards would look free while the pods compute on them."""
    given = {"request": "card", "driver": names.DRA_DRIVER, "pool": "n7", "device": "gpu-0"}
    allocation = {"status": {"allocation": {"devices": {"results": [given]}}}}
    request = {"name": "card", "exactly": {"deviceClassName": "gpu.partage.io"}}

    async def change(client: Client, body: Manifest, subresource: str = "") -> str:
        try:
            await client.patch(
                CLAIMS,
                "used",
                body,
                kind=PatchKind.MERGE,
                namespace="default",
                subresource=subresource,
                into=msgspec.Raw,
            )
        except KubeError as error:
            return str(error)
        return ""

    policies = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    async with plane.client() as admin, plane.client(user=TENANT) as tenant:
        await install(admin, Endpoint(), *policies)
        made: Manifest = {
            "metadata": {"name": "used", "finalizers": [names.CLAIM_FINALIZER]},
            "spec": {"devices": {"requests": [request]}},
        }
        await admin.create(CLAIMS, made, namespace="default", into=msgspec.Raw)
        assert not await change(admin, allocation, "status")
        removed: Manifest = {"metadata": {"finalizers": None}}
        async with asyncio.timeout(PATIENCE):
            while not (refused := await change(tenant, removed)):
                # The API server takes the policy in a moment later.
                await change(admin, {"metadata": {"finalizers": [names.CLAIM_FINALIZER]}})
                await asyncio.sleep(0.2)
        assert "removes it from an allocated claim" in refused
        assert not await change(admin, {"status": {"allocation": None}}, "status")
        assert not await change(tenant, removed)


async def test_no_user_keeps_a_claim_from_being_written(plane: Plane) -> None:
    """Annotations may have used up all their room: the next leader, and with it all pods, would wait for that claim."""
    body = {
        "metadata": {"name": "full", "annotations": {"a": "x" * (2**18 - 1)}},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}},
    }
    async with plane.client() as client:
        await client.create(CLAIMS, body, namespace="default", into=msgspec.Raw)
        outdate = outdater(client, "partage-scheduler-5d4_d1c9", lambda *_: None)
        first, second = [await outdate("default", "full") for _ in range(2)]
    assert first is not None
    assert second is not None
    assert first.metadata.resource_version != second.metadata.resource_version


async def test_no_user_fills_a_claim_so_that_it_cannot_be_written(plane: Plane) -> None:
    """No label fits into one of the largest that the store takes; the finalizer's removal does, and also outdates it."""
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}}
    path = f"/apis/{CLAIMS.group}/{CLAIMS.version}/namespaces/default/{CLAIMS.plural}"

    domain = ".".join("x" * length for length in (50, 60, 60, 60))
    labels = {f"{number:05}.{domain}/{'x' * 63}": "x" * 63 for number in range(3800)}

    def fits(rest: int) -> bool:
        meta = {
            "name": f"largest-{rest}",
            "labels": labels,
            "annotations": {"rest": "x" * rest},
        }
        begun = {"metadata": {"finalizers": [names.CLAIM_FINALIZER]}}
        kind = "application/merge-patch+json"
        try:
            plane.plane.call("POST", path, {"metadata": meta, "spec": spec})
            plane.plane.call("PATCH", f"{path}/largest-{rest}", begun, kind=kind)
        except OSError:
            return False
        return True

    least, most = 0, 2**18
    while most - least > 32:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    async with plane.client() as client:
        name = f"largest-{least}"
        found = await client.get(CLAIMS, name, namespace="default", into=LiveClaim)
        begun = as_document("ResourceClaim", found)
        written = await outdater(client, "me", lambda *_: begun)("default", name)
    assert written is not None
    assert written.metadata.resource_version != begun.metadata.resource_version
    assert not written.metadata.finalizers


def placed(name: str, limits: dict[str, str], node: str = "n7", **spec: Any) -> Manifest:
    """A pod that names its node, and a scheduler that is not ours."""
    made = pod(name, limits)
    made["spec"] |= {"nodeName": node, "schedulerName": "volcano", **spec}
    return made


def mirror(name: str, limits: dict[str, str], node: str = "n7") -> Manifest:
    """A static pod as its kubelet reports it."""
    made = placed(name, limits, node)
    made["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "abc"}
    return made


MEMORY = {"nvidia.com/gpumem": "1"}


async def test_no_pod_with_devices_names_its_node(plane: Plane) -> None:
    """This holds for every scheduler name and for the administrator; the node itself reports its own."""
    async with plane.client() as client, plane.client(user=KUBELET) as kubelet:
        await install(
            client, Endpoint(), "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
        )
        words = "may not name its node"
        await until_refused(client, placed("a", MEMORY), words)
        for made in (
            placed("a", SHARE),
            placed("a", MEMORY, schedulerName="default-scheduler"),
            placed("a", MEMORY, schedulerName="partage-scheduler"),
            mirror("a", MEMORY),
            placed("a", {"nvidia.com/gpu": "1"}),
            placed("a", {"tke.cloud.tencent.com/qgpu-core": "5"}),
            placed("a", {"metax-tech.com/sgpu": "1"}),
            placed("a", {"koordinator.sh/rdma": "1"}),
        ):
            assert words in await refused(client, made)
            init = json.loads(json.dumps(made))
            init["spec"]["initContainers"] = init["spec"]["containers"]
            init["spec"]["containers"] = [{"name": "plain", "image": "x"}]
            assert words in await refused(client, init)
        assert words in await refused(kubelet, mirror("a", MEMORY, "n8"))
        assert await refused(kubelet, mirror("a", MEMORY)) == ""
        for made in (placed("a", {"cpu": "1"}), mirror("a", {"cpu": "1"}), pod("a", MEMORY)):
            assert await refused(client, made) == ""


async def test_devices_come_to_a_pod_on_its_creation_alone(plane: Plane) -> None:
    """Kubernetes' own rules for what changes later: node, ephemeral containers, resizing."""
    async with plane.client() as client:
        made = await create(client, pod("later", {"cpu": "1"}))
        asking = await create(client, pod("asking", MEMORY))
        await client.bind("default", "later", "n1", uid=made["metadata"]["uid"])
        container = made["spec"]["containers"][0]
        more = {"limits": {"cpu": "1", **MEMORY}, "requests": {"cpu": "1", **MEMORY}}
        debugger = {"name": "d", "image": "x", "resources": more}
        for name, subresource, spec in (
            ("later", "ephemeralcontainers", {"ephemeralContainers": [debugger]}),
            ("later", "resize", {"containers": [{**container, "resources": more}]}),
            ("later", "", {"containers": [{**container, "resources": more}]}),
            ("asking", "", {"nodeName": "n7"}),
            ("asking", "resize", {"nodeName": "n7"}),
        ):
            with contextlib.suppress(ApiError):
                await client.patch(
                    PODS,
                    name,
                    {"spec": spec},
                    kind=PatchKind.STRATEGIC,
                    namespace="default",
                    subresource=subresource,
                    into=msgspec.Raw,
                )
            found = await read(client, PODS, name, "Pod")
            assert "nodeName" not in found["spec"] or name == "later"
            listed = found["spec"]["containers"] + found["spec"].get("ephemeralContainers", [])
            named = {n for c in listed for n in c.get("resources", {}).get("limits", {})}
            assert named <= {"cpu", *(MEMORY if name == "asking" else ())}
        assert asking["metadata"]["uid"]


@pytest.mark.parametrize("many", [1_000, 4_000])
async def test_a_pod_of_many_containers_stays_within_the_budget(plane: Plane, many: int) -> None:
    """This holds for creation and every update, by name and by webhook; its devices are found all the same."""
    crowd = pod("crowd")
    resources = {
        "limits": {"cpu": "1m", "memory": "1Mi"},
        "requests": {"cpu": "1m", "memory": "1Mi"},
    }
    crowd["spec"]["containers"] = [
        {"name": f"c{number}", "image": "x", "resources": resources} for number in range(many)
    ]
    asking = json.loads(json.dumps(crowd))
    asking["spec"]["containers"][-1]["resources"]["limits"] |= MEMORY
    stands = {**asking, "spec": {**asking["spec"], "nodeName": "n7"}}
    plain = {
        **crowd,
        "metadata": {"name": "crowd-placed"},
        "spec": {**crowd["spec"], "nodeName": "n7"},
    }
    async with plane.client() as client:
        await install(
            client, Endpoint(), "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
        )
        await until_refused(client, placed("a", MEMORY), "may not name its node")
        assert "may not name its node" in (await refused(client, stands))[:500]
        said = await refused(client, plain)
        assert not said, said[:500]
        await install(
            client,
            Endpoint(url=f"https://127.0.0.1:{free_port()}"),
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
        )
        try:
            await until_refused(client, pod("share", SHARE), "failed calling webhook")
            assert "failed calling webhook" in (await refused(client, asking))[:500]
            await create(client, crowd)
            for field in ("labels", "annotations"):
                change = {"metadata": {field: {"own": "x"}}}
                await client.patch(
                    PODS,
                    "crowd",
                    change,
                    kind=PatchKind.MERGE,
                    namespace="default",
                    into=msgspec.Raw,
                )
        finally:
            for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
                await client.delete(Resource(GROUP, "v1", kind, namespaced=False), "partage")
        await client.delete(PODS, "crowd", namespace="default", grace_seconds=0)


async def test_only_device_pods_wait_for_the_webhook_and_it_makes_itself_trusted(
    plane: Plane,
) -> None:
    """Without the webhook, only pods with devices wait; with it, it completes and judges them."""
    port = free_port()
    endpoint = Endpoint(url=f"https://127.0.0.1:{port}")
    device_pod = pod("share", SHARE)
    async with plane.client() as client:
        await install(
            client, endpoint, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
        )
        await until_refused(client, device_pod, "failed calling webhook")
        assert await refused(client, pod("ordinary", {"cpu": "1", "example.com/x": "1"})) == ""
        assert await refused(client, device_pod, "partage-system") == ""
        ordinary = await create(client, pod("ordinary"))
        assert ordinary["spec"]["schedulerName"] == "default-scheduler"

        async with WebhookDaemon(client, WebhookOptions(port=port, endpoint=endpoint)):
            async with asyncio.timeout(PATIENCE):
                while await refused(client, device_pod):  # noqa: ASYNC110 # nothing tells
                    await asyncio.sleep(0.2)
            made = await create(client, device_pod)
            assert made["spec"]["schedulerName"] == "partage-scheduler"
            broken = pod("broken", {"tke.cloud.tencent.com/qgpu-core": "7"})
            assert "InvalidRequest" in await refused(client, broken)
        await until_refused(client, pod("later", SHARE), "failed calling webhook")
        own = {"metadata": {"annotations": {"own": "x"}}}
        await client.patch(
            PODS, "share", own, kind=PatchKind.MERGE, namespace="default", into=msgspec.Raw
        )
        await client.delete(PODS, "share", namespace="default", grace_seconds=0)
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            await client.delete(Resource(GROUP, "v1", kind, namespaced=False), "partage")


class Silent:
    """Hears events and keeps their reasons."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def normal(self, regarding: Regarding, reason: str, message: str) -> None:
        """See `Notices`."""
        self.reasons.append(reason)

    warning = normal


def document(manifest: Manifest) -> Document:
    """The manifest decoded."""
    (found,) = decode("test", json.dumps(manifest).encode()).documents
    return found


async def read(client: Client, resource: Resource, name: str, kind: str) -> Manifest:
    """An object as the server has it."""
    namespace = "default" if resource.namespaced else None
    raw = await client.get(resource, name, namespace=namespace, into=msgspec.Raw)
    return {"kind": kind, "apiVersion": "v1", **json.loads(bytes(raw))}


DEVICE: Manifest = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "Device",
    "metadata": {"name": "n1", "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}},
    "spec": {
        "devices": [
            {
                "type": "gpu",
                "id": f"GPU-{minor}",
                "minor": minor,
                "health": True,
                "resources": {
                    "kubernetes.io/gpu-core": "100",
                    "kubernetes.io/gpu-memory": "16Gi",
                    "kubernetes.io/gpu-memory-ratio": "100",
                },
            }
            for minor in range(2)
        ]
    },
}


async def test_controllers_write_what_a_genuine_server_takes(plane: Plane) -> None:
    """Totals in both dialects, a label, a flag, an unlocked node; then rest; a new node is not hit."""
    lock = {"hami.io/mutex.lock": "2020-01-01T00:00:00Z,default,nobody"}
    ears = Silent()
    async with plane.client(writer=True) as client:
        manifest = {"metadata": {"name": "n1", "annotations": lock}}
        await client.create(NODES, manifest, into=msgspec.Raw)
        bypassing = pod("bypassing", {"example.com/x": "1", "koordinator.sh/gpu": "100"})
        made = await create(client, bypassing)
        await client.bind("default", "bypassing", "n1", uid=made["metadata"]["uid"])
        controllers = Controllers(client, ears, settings=ControllerSettings(grace=0.1))

        async def tell() -> None:
            controllers.changed(document(await read(client, NODES, "n1", "Node")))
            controllers.changed(document(await read(client, PODS, "bypassing", "Pod")))

        async def rest() -> None:
            async with asyncio.timeout(PATIENCE):
                while not controllers.idle:  # noqa: ASYNC110 # no event tells of rest
                    await asyncio.sleep(0.02)

        await tell()
        controllers.changed(document(DEVICE))
        task = asyncio.create_task(controllers.run())
        await rest()
        node = await read(client, NODES, "n1", "Node")
        for part in ("capacity", "allocatable"):
            found = node["status"][part]
            assert found["kubernetes.io/gpu"] == found["koordinator.sh/gpu"] == "200"
            assert found["kubernetes.io/gpu-memory"] == "32Gi"
        assert node["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "nvidia"
        assert "annotations" not in node["metadata"]
        flagged = await read(client, PODS, "bypassing", "Pod")
        (condition,) = [
            c for c in flagged["status"]["conditions"] if c["type"] == "partage.io/DeviceProblem"
        ]
        assert condition["reason"] == "NoAllocationRecord"
        assert ears.reasons == ["NoAllocationRecord"]

        versions = [one["metadata"]["resourceVersion"] for one in (node, flagged)]
        await tell()
        await rest()
        again = [
            await read(client, NODES, "n1", "Node"),
            await read(client, PODS, "bypassing", "Pod"),
        ]
        assert [one["metadata"]["resourceVersion"] for one in again] == versions

        await client.delete(NODES, "n1")
        await client.create(NODES, {"metadata": {"name": "n1"}}, into=msgspec.Raw)
        grown = json.loads(json.dumps(DEVICE).replace("16Gi", "32Gi"))
        controllers.changed(document(grown))
        conflicts = {"what": "node_status", "outcome": "conflict"}
        async with asyncio.timeout(PATIENCE):
            while not controllers.meters.registry.get_sample_value(  # noqa: ASYNC110 # the same
                "partage_controller_writes_total", conflicts
            ):
                await asyncio.sleep(0.02)
        assert "capacity" not in (await read(client, NODES, "n1", "Node"))["status"]
        task.cancel()


async def test_adjustments_are_written_as_a_genuine_server_takes_them(plane: Plane) -> None:
    """The record by the scheduler, the node's report through the pod's status; each only over the version that was read."""
    share = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, 2**32, GrantMode.SHARE, protocol="hami")
    async with plane.client(writer=True) as client:
        made = await create(client, pod("adjusted"))
        uid = made["metadata"]["uid"]
        await client.bind("default", "adjusted", "n1", uid=uid)
        amender = ApiPods(client, lambda: True, 10.0)
        first = await amender.read("default", "adjusted")
        assert first is not None
        record = encode(Allocation(uid, "default", "adjusted", "n1", (share,)))

        assert (await amender.amend(first, {names.ALLOCATION: record})).outcome is Outcome.DONE
        assert (await amender.amend(first, {names.ALLOCATION: "x"})).outcome is Outcome.UNKNOWN
        await amender.answer(first, "NoRoom", "card 0 is full")

        second = await amender.read("default", "adjusted")
        assert second is not None
        assert isinstance(second.shape, shapes.Pod)
        agent = Adjusting(None, client, "n1", list)  # type: ignore[arg-type] # what it sends alone
        said = "True", "InForce", "container main"
        await agent._tell(second.shape, second.metadata, (share,), said, raised=True)
        with pytest.raises(ApiError, match="409"):
            await agent._tell(second.shape, second.metadata, (share,), said, raised=True)

        now = await read(client, PODS, "adjusted", "Pod")
    assert now["metadata"]["annotations"] == {names.ALLOCATION: record, names.ENFORCED: record}
    (condition,) = [
        one for one in now["status"]["conditions"] if one["type"] == names.ADJUSTED_CONDITION
    ]
    assert (condition["status"], condition["reason"]) == ("True", "InForce")
