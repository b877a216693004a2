"""Verbs, types and subresources against a server on a real socket. Failures have their own file."""

from typing import Any

import msgspec
import pytest
from kube_builders import PODS_PATH, Pod, client_of, pod, put

from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.daemon.binding import ApiPods
from partage.daemon.watched import LivePod
from partage.kube.client import PatchKind
from partage.kube.errors import (
    AlreadyExists,
    Conflict,
    EvictionBlocked,
    Invalid,
    NotFound,
    NotServed,
    UndecodableAnswer,
    UnknownOutcome,
)
from partage.kube.resources import CONFIG_MAPS, LEASES, NODES, PODS, Resource

LABELLED = {"metadata": {"labels": {"l": "5"}}}


async def test_an_object_is_created_read_replaced_and_deleted() -> None:
    """The four plain verbs, each answer in the caller's type."""
    async with KubeServer() as server, client_of(server) as client:
        created = await client.create(PODS, pod("a"), namespace="default", into=Pod)
        read = await client.get(PODS, "a", namespace="default", into=Pod)
        body = pod("a")
        body["metadata"] |= {
            "resourceVersion": read.metadata.resource_version,
            "labels": {"l": "7"},
        }
        replaced = await client.update(PODS, "a", body, namespace="default", into=Pod)
        await client.delete(PODS, "a", namespace="default")

        assert created == read
        assert replaced.metadata.labels == {"l": "7"}
        with pytest.raises(NotFound, match="GET /api/v1/namespaces/default/pods/a: 404 NotFound"):
            await client.get(PODS, "a", namespace="default", into=Pod)


async def test_raw_answers_pass_through_undecoded() -> None:
    """`msgspec.Raw` is the document as the server wrote it; bytes are sent as they are."""
    async with KubeServer() as server, client_of(server) as client:
        raw = await client.create(
            PODS, msgspec.json.encode(pod("a")), namespace="default", into=msgspec.Raw
        )

        assert msgspec.json.decode(raw)["kind"] == "Pod"


async def test_a_stale_version_is_a_conflict() -> None:
    """An update that names an old version changes nothing."""
    async with KubeServer() as server, client_of(server) as client:
        old = put(server, "a")
        put(server, "a", priority=1)
        body = pod("a")
        body["metadata"]["resourceVersion"] = old.metadata.resource_version

        with pytest.raises(Conflict, match="409 Conflict"):
            await client.update(PODS, "a", body, namespace="default", into=Pod)
        with pytest.raises(AlreadyExists):
            await client.create(PODS, pod("a"), namespace="default", into=Pod)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(PatchKind.MERGE, LABELLED, id="merge"),
        pytest.param(PatchKind.STRATEGIC, LABELLED, id="strategic"),
        pytest.param(
            PatchKind.JSON,
            [{"op": "add", "path": "/metadata/labels", "value": {"l": "5"}}],
            id="json",
        ),
    ],
)
async def test_every_kind_of_patch_changes_the_object(kind: PatchKind, body: object) -> None:
    """Each kind goes out under its own content type."""
    async with KubeServer() as server, client_of(server) as client:
        await client.create(PODS, pod("a", nodeName="n"), namespace="default", into=Pod)

        changed = await client.patch(PODS, "a", body, kind=kind, namespace="default", into=Pod)

        assert (changed.metadata.labels, changed.spec.node_name) == ({"l": "5"}, "n")
        assert server.requests[-1].headers["Content-Type"] == kind.value


async def test_the_status_is_changed_apart_from_the_object() -> None:
    """A subresource gets its own path; the server keeps the two apart."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        patch = {"status": {"phase": "Failed"}}

        await client.patch(
            PODS,
            "a",
            patch,
            kind=PatchKind.MERGE,
            subresource="status",
            namespace="default",
            into=msgspec.Raw,
        )

        assert server.store.get(PODS_PATH, "default", "a")["status"]["phase"] == "Failed"
        assert server.requests[-1].path.endswith("/pods/a/status")


async def test_a_binding_carries_annotations_in_one_change() -> None:
    """Node and annotations arrive together, under the UID precondition."""
    async with KubeServer() as server, client_of(server) as client:
        waiting = put(server, "a")

        await client.bind(
            "default",
            "a",
            "node-1",
            uid=waiting.metadata.uid,
            annotations={"x/y": "z"},
            labels={"l": "v"},
        )

        bound = msgspec.convert(server.store.get(PODS_PATH, "default", "a"), Pod)
        assert bound.spec.node_name == "node-1"
        assert bound.metadata.annotations == {"x/y": "z"}
        assert bound.metadata.labels == {"l": "v"}
        assert int(bound.metadata.resource_version) == server.store.version
        assert "annotations" not in server.requests[0].query


@pytest.mark.parametrize("body", [b"", b"{}", b"<html></html>", b'{"status": "Failure"}'])
async def test_a_binding_is_done_only_where_the_server_says_so(body: bytes) -> None:
    """A page to log in, with code 200, has bound no pod."""
    async with KubeServer() as server, client_of(server) as client:
        uid = put(server, "a").metadata.uid
        server.fail(Fault(method="POST", body=body))

        with pytest.raises(UnknownOutcome):
            await client.bind("default", "a", "node-1", uid=uid)

        await client.bind("default", "a", "node-1", uid=uid)
        assert server.store.get(PODS_PATH, "default", "a")["spec"]["nodeName"] == "node-1"


@pytest.mark.parametrize("body", [b"", b"{}", b"<html></html>", b'{"kind": "Status"}'])
async def test_a_pod_leaves_only_where_the_server_says_so(body: bytes) -> None:
    """Otherwise a page to log in, with code 200, would count as an eviction, which is never asked for again."""
    async with KubeServer() as server, client_of(server) as client:
        uid = put(server, "a").metadata.uid
        server.fail(Fault(method="POST", body=body), Fault(method="DELETE", body=body))

        with pytest.raises(UnknownOutcome):
            await client.evict("default", "a", uid=uid)
        with pytest.raises(UnknownOutcome):
            await client.delete(PODS, "a", namespace="default", uid=uid)

        assert server.store.get(PODS_PATH, "default", "a")
        await client.delete(PODS, "a", namespace="default", uid=uid)


@pytest.mark.parametrize("body", [b"", b"{}", b"<html></html>", b'{"kind": "Status"}'])
async def test_an_object_is_changed_only_where_the_server_says_so(body: bytes) -> None:
    """The caller reads back, as after any answer that is none."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        server.fail(*(Fault(method=method, body=body) for method in ("POST", "PUT", "PATCH")))

        with pytest.raises(UnknownOutcome):
            await client.create(PODS, pod("b"), namespace="default", into=msgspec.Raw)
        with pytest.raises(UnknownOutcome):
            await client.update(PODS, "a", pod("a"), namespace="default", into=msgspec.Raw)
        with pytest.raises(UnknownOutcome):
            await client.patch(
                PODS,
                "a",
                LABELLED,
                kind=PatchKind.MERGE,
                namespace="default",
                into=msgspec.Raw,
            )

        assert "labels" not in server.store.get(PODS_PATH, "default", "a")["metadata"]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"kind": "Status", "metadata": {}, "code": 500}',
        b'{"kind": "Pod", "metadata": {"name": "a", "namespace": "default"}}',
        b'{"kind": "Pod", "metadata": {"name": "a", "namespace": "other", "uid": "u"}}',
    ],
)
async def test_what_is_no_object_is_not_taken_for_another(body: bytes) -> None:
    """Otherwise the requested pod would count as gone, and its cards as free."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        for into in (LivePod, dict[str, Any]):
            server.fail(Fault(method="GET", body=body))

            with pytest.raises(UndecodableAnswer):
                await client.get(PODS, "a", namespace="default", into=into)

        assert (
            await client.get(PODS, "a", namespace="default", into=LivePod)
        ).metadata.name == "a"


async def test_a_404_of_the_way_is_no_word_of_the_pod() -> None:
    """A gateway that does not know where to send a request says so of every path."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        server.fail(Fault(method="GET", status=404))
        pods = ApiPods(client, lambda: True)

        with pytest.raises(NotServed):
            await pods.read("default", "a")

        assert await pods.read("default", "a") is not None
        assert await pods.read("default", "b") is None


async def test_a_binding_with_a_failed_precondition_changes_nothing() -> None:
    """A pod of the same name but another UID is not bound."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")

        with pytest.raises(Conflict):
            await client.bind("default", "a", "node-1", uid="other")

        assert "nodeName" not in server.store.get(PODS_PATH, "default", "a")["spec"]


async def test_a_pod_is_bound_once() -> None:
    """A second binding is a conflict, not an overwrite."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a", nodeName="node-1")

        with pytest.raises(Conflict, match="already assigned"):
            await client.bind("default", "a", "node-2", uid="uid-1")


async def test_an_eviction_respects_budgets() -> None:
    """A blocked eviction is reported at once and not tried again; an allowed one removes the pod."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        server.budget_blocked = True

        with pytest.raises(EvictionBlocked):
            await client.evict("default", "a", uid="uid-1")
        server.budget_blocked = False
        await client.evict("default", "a", uid="uid-1")

        assert len(server.requests) == 2
        assert server.requests[1].body["deleteOptions"]["preconditions"] == {"uid": "uid-1"}
        assert not list(server.store.list(PODS_PATH, None))


async def test_a_delete_may_name_its_very_object() -> None:
    """Precondition and grace travel in the body."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")

        with pytest.raises(Conflict):
            await client.delete(PODS, "a", namespace="default", uid="other")
        await client.delete(PODS, "a", namespace="default", uid="uid-1", grace_seconds=0)

        assert server.requests[1].body == {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": "uid-1"},
            "gracePeriodSeconds": 0,
        }


async def test_a_dry_run_leaves_no_trace() -> None:
    """Withdrawals can be rehearsed, and creations."""
    async with KubeServer() as server, client_of(server) as client:
        await client.create(PODS, pod("a"), namespace="default", into=Pod)
        server.requests.clear()
        before = server.store.version

        await client.create(PODS, pod("b"), namespace="default", into=Pod, dry_run=True)
        await client.patch(
            PODS,
            "a",
            LABELLED,
            kind=PatchKind.MERGE,
            namespace="default",
            into=Pod,
            dry_run=True,
        )
        await client.delete(PODS, "a", namespace="default", dry_run=True)

        assert server.store.version == before
        assert all(request.query["dryRun"] == "All" for request in server.requests)


async def test_other_documents_are_read_by_path() -> None:
    """Version, discovery and the like have no resource."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(path="/version", body=b'{"major":"1"}'))

        assert await client.read("/version", into=dict[str, str], query={"q": "a b"}) == {
            "major": "1"
        }
        assert server.requests[0].query == {"q": "a b"}


async def test_an_answer_of_another_type_is_told() -> None:
    """The change was made, only its answer is of no use."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        server.fail(Fault(method="GET", body=b"[" * 100_000))

        with pytest.raises(UndecodableAnswer, match="undecodable answer"):
            await client.get(PODS, "a", namespace="default", into=Pod)
        with pytest.raises(UndecodableAnswer):
            await client.create(PODS, pod("b"), namespace="default", into=list[int])


async def test_a_server_with_a_path_keeps_it() -> None:
    """Some clusters live behind a gateway, under a prefix."""
    async with KubeServer() as server, client_of(f"{server.url}/k8s/c-1") as client:
        with pytest.raises(NotFound):
            await client.get(NODES, "n", into=msgspec.Raw)

        assert server.requests[0].path == "/k8s/c-1/api/v1/nodes/n"


async def test_a_refused_object_says_which_field() -> None:
    """422 is `Invalid`, with the server's words."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(status=422, reason="Invalid", message="spec.x: Required value"))

        with pytest.raises(Invalid, match=r"spec\.x: Required value"):
            await client.create(PODS, pod("a"), namespace="default", into=Pod)


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "subresource", "path"),
    [
        pytest.param(PODS, None, None, "", "/api/v1/pods", id="all-namespaces"),
        pytest.param(PODS, "a", "b", "status", "/api/v1/namespaces/a/pods/b/status", id="status"),
        pytest.param(NODES, None, "n:1 é", "", "/api/v1/nodes/n%3A1%20%C3%A9", id="quoted"),
        pytest.param(
            LEASES, "a", None, "", "/apis/coordination.k8s.io/v1/namespaces/a/leases", id="group"
        ),
    ],
)
def test_resources_know_their_paths(
    resource: Resource, namespace: str | None, name: str | None, subresource: str, path: str
) -> None:
    """Core resources live elsewhere than those of a group."""
    assert resource.path(namespace, name, subresource) == path


@pytest.mark.parametrize(
    ("resource", "namespace", "name"),
    [
        pytest.param(PODS, "a", "../secrets/s", id="climbs"),
        pytest.param(PODS, "..", "p", id="climbs-by-namespace"),
        pytest.param(PODS, "a", "", id="empty"),
        pytest.param(CONFIG_MAPS, None, "c", id="no-namespace"),
        pytest.param(NODES, "a", "n", id="namespace-of-a-node"),
    ],
)
def test_a_name_cannot_leave_its_place(
    resource: Resource, namespace: str | None, name: str
) -> None:
    """Names come from foreign documents."""
    with pytest.raises(ValueError, match=r"segment|namespace"):
        resource.path(namespace, name)


def test_api_versions_are_written_as_in_documents() -> None:
    """The core group has no name."""
    assert (PODS.api_version, LEASES.api_version) == ("v1", "coordination.k8s.io/v1")


async def test_a_closed_client_says_so() -> None:
    """Using it outside `async with` is a mistake of the program."""
    client = client_of("http://127.0.0.1:1")

    with pytest.raises(RuntimeError, match="not open"):
        await client.get(NODES, "n", into=msgspec.Raw)
