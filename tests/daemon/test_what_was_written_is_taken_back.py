"""`partage withdraw` removes the fields that are noted for Partage; others' fields and nodes in use stay."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from partage.apiserver import ApiServer, serve
from partage.cli.main import main
from partage.controllers.withdrawal import removals, reported_by
from partage.daemon.withdrawing import withdraw
from partage.embedded.definitions import DEFINITIONS
from partage.kube.client import Client, PatchKind
from partage.kube.config import ClusterConfig, Config
from partage.kube.errors import NotServed, UndecodableAnswer, api_error
from partage.kube.resources import NODES, PODS, Resource, Scope
from partage.kube.transport import Request

Manifest = dict[str, Any]
DEVICES = "devices.scheduling.koordinator.sh"
LEASES = "leases.coordination.k8s.io"
CLAIMS = "resourceclaims.resource.k8s.io"
MODEL = "node.koordinator.sh/gpu-model"
REGISTERED = "hami.io/node-nvidia-register"
WRITERS = {
    "kubelet": ("cpu",),
    "koord-manager": ("koordinator.sh/rdma",),
    "partage": ("kubernetes.io/gpu", "koordinator.sh/gpu-core"),
}
"""The writer of each of the totals."""
SLOWEST = 240.0
"""Seconds that a slow machine may take; nothing is measured by them."""


def noted(manager: str, fields: Manifest, subresource: str = "") -> Manifest:
    """An entry of managedFields as the API server writes it."""
    entry: Manifest = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsV1": fields,
    }
    return {**entry, "subresource": subresource} if subresource else entry


def keys(*names: str) -> Manifest:
    """Keys of a map, as FieldsV1 spells them."""
    return {".": {}, **{f"f:{name}": {} for name in names}}


def node(name: str = "n1") -> Manifest:
    """A node on which operator, Partage, Koordinator's manager and kubelet have written."""
    totals = {
        "kubernetes.io/gpu": "200",
        "koordinator.sh/gpu-core": "200",
        "koordinator.sh/rdma": "100",
    }
    fields = [
        noted("kubectl-label", {"f:metadata": {"f:labels": keys("qgpu-device-enable")}}),
        noted(
            "partage",
            {"f:metadata": {"f:labels": keys(MODEL, "gone"), "f:annotations": keys(REGISTERED)}},
        ),
        noted(
            "koord-manager", {"f:status": {"f:allocatable": keys("koordinator.sh/rdma")}}, "status"
        ),
        noted("kubelet", {"f:status": {"f:allocatable": keys("cpu")}}, "status"),
        noted(
            "partage",
            {
                "f:status": {
                    part: keys("kubernetes.io/gpu", "koordinator.sh/gpu-core")
                    for part in ("f:allocatable", "f:capacity")
                }
            },
            "status",
        ),
    ]
    return {
        "metadata": {
            "name": name,
            "labels": {"qgpu-device-enable": "enable", MODEL: "T4"},
            "annotations": {REGISTERED: "[]", "other": "x"},
            "managedFields": fields,
        },
        "status": {"allocatable": {"cpu": "8", **totals}, "capacity": {"cpu": "8", **totals}},
    }


def device(name: str, writer: str) -> Manifest:
    """A Device object, last written by `writer`, with an annotation of ours."""
    return {
        "metadata": {
            "name": name,
            "annotations": {"partage.io/mig-foreign": "[]"},
            "managedFields": [
                noted(writer, {"f:spec": {".": {}, "f:devices": {}}}),
                noted(
                    "partage", {"f:metadata": {"f:annotations": keys("partage.io/mig-foreign")}}
                ),
            ],
        },
        "spec": {"devices": []},
    }


def pod(name: str, where: str = "", **metadata: Any) -> Manifest:
    """A pod; bound where a node is named."""
    spec = {
        "containers": [{"name": "main", "image": "i"}],
        **({"nodeName": where} if where else {}),
    }
    return {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec}


def test_only_what_is_noted_for_us_goes() -> None:
    """It goes from the object and its status; the line does not name keys that are already gone."""
    first, second = removals({**node(), "metadata": {**node()["metadata"], "uid": "u"}})

    assert first.body == {
        "metadata": {
            "uid": "u",
            "labels": {MODEL: None},
            "annotations": {REGISTERED: None},
        },
    }
    gone = {"kubernetes.io/gpu": None, "koordinator.sh/gpu-core": None}
    assert second.body == {
        "metadata": {"uid": "u"},
        "status": {"allocatable": gone, "capacity": gone},
    }
    assert (first.subresource, second.subresource) == ("", "status")


def test_an_object_without_notes_is_left_alone() -> None:
    """Its writers are unknown."""
    bare = node()
    del bare["metadata"]["managedFields"]

    assert removals(bare) == []


@pytest.mark.parametrize(("writer", "ours"), [("partage", True), ("koordlet", False)])
def test_a_device_is_whose_devices_were_written_last(writer: str, ours: bool) -> None:  # noqa: FBT001 # a table
    """Our annotation on koordlet's object does not make it ours."""
    assert reported_by(device("n1", writer)) is ours


def _by(manager: str, client: Client) -> Client:
    """The client as another field manager."""
    other = copy.copy(client)
    other.settings = replace(client.settings, field_manager=manager)
    return other


async def written(server: ApiServer, client: Client) -> None:
    """Two nodes and their Devices, each field by its usual writer; Leases of ours and of a kubelet."""
    for name, writer in (("n1", "partage"), ("n2", "koordlet")):
        bare = node(name)
        head, status = bare["metadata"], bare["status"]
        labels, notes = dict(head["labels"]), dict(head["annotations"])
        ours = {
            "labels": {MODEL: labels.pop(MODEL)},
            "annotations": {REGISTERED: notes.pop(REGISTERED)},
        }
        await server.create(
            "nodes", {"metadata": {"name": name, "labels": labels, "annotations": notes}}
        )
        await client.patch(NODES, name, {"metadata": ours}, kind=PatchKind.MERGE, into=Manifest)
        for manager, keys in WRITERS.items():
            part = {key: status["capacity"][key] for key in keys}
            body = {"status": {"capacity": part, "allocatable": part}}
            await _by(manager, client).patch(
                NODES, name, body, kind=PatchKind.MERGE, subresource="status", into=Manifest
            )
        await server.create(DEVICES, {"metadata": {"name": name}})
        known = Resource("scheduling.koordinator.sh", "v1alpha1", "devices", namespaced=False)
        spec = {"devices": [{"type": "gpu", "id": "a", "minor": 0, "health": True}]}
        note = {"annotations": {"partage.io/mig-foreign": "[]"}}
        for body, manager in (({"spec": spec}, writer), ({"metadata": note}, "partage")):
            await _by(manager, client).patch(
                known, name, body, kind=PatchKind.MERGE, into=Manifest
            )
    for name in ("partage-agent-n1", "n1"):
        head = {"name": name, "namespace": "kube-node-lease"}
        await server.create(LEASES, {"metadata": head, "spec": {}}, namespace=head["namespace"])


Story = Callable[[ApiServer, Callable[..., Awaitable[tuple[int, str]]]], Awaitable[None]]


def run(story: Story, tmp_path: Any) -> None:
    """A server with two nodes, a Device of ours and one of koordlet's, and Leases; and the command."""

    async def main_() -> None:
        server = ApiServer()
        for definition in DEFINITIONS:
            await server.create("customresourcedefinitions.apiextensions.k8s.io", definition)
        async with serve(server) as url:
            async with Client(Config(ClusterConfig(url))) as client:
                await written(server, client)
            file = tmp_path / "config"
            file.write_text(
                f"{{clusters: [{{name: c, cluster: {{server: {url}}}}}], users: [{{name: u, user: {{}}}}], "
                "contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
            )

            async def withdraw(*options: str) -> tuple[int, str]:
                given = ["withdraw", "--kubeconfig", str(file), *options]
                done = await asyncio.to_thread(CliRunner().invoke, main, given)
                return done.exit_code, done.output

            await asyncio.wait_for(story(server, withdraw), SLOWEST)

    asyncio.run(main_())


async def create(server: ApiServer, value: Manifest) -> None:
    """A pod."""
    await server.create("pods", value, namespace="default")


def held(server: ApiServer, resource: str, name: str, space: str = "") -> Manifest | None:
    """An object as the server has it."""
    found = server.store.get(resource, space, name)
    return None if found is None else found.value


def test_nothing_of_partage_is_left_and_all_of_others(tmp_path: Any) -> None:
    """Nodes, Devices and Leases; a second run finds nothing to do."""

    async def story(
        server: ApiServer, withdraw: Callable[..., Awaitable[tuple[int, str]]]
    ) -> None:
        code, said = await withdraw("--dry-run")
        assert (code, held(server, DEVICES, "n1") is not None) == (0, True)
        assert "would: device n1: deleted" in said

        assert (await withdraw())[0] == 0

        for name in ("n1", "n2"):
            found = held(server, "nodes", name)
            assert found is not None
            assert found["metadata"]["labels"] == {"qgpu-device-enable": "enable"}
            assert found["metadata"]["annotations"] == {"other": "x"}
            assert found["status"]["allocatable"] == {"cpu": "8", "koordinator.sh/rdma": "100"}
            assert found["status"]["capacity"] == {"cpu": "8", "koordinator.sh/rdma": "100"}
        assert held(server, DEVICES, "n1") is None
        theirs = held(server, DEVICES, "n2")
        assert theirs is not None
        assert not theirs["metadata"].get("annotations")
        assert held(server, LEASES, "partage-agent-n1", "kube-node-lease") is None
        assert held(server, LEASES, "n1", "kube-node-lease") is not None
        assert (await withdraw()) == (0, "nothing of Partage is here\n")

    run(story, tmp_path)


def test_a_node_whose_devices_are_held_is_left_and_told(tmp_path: Any) -> None:
    """A record holds them, or a resource name to be removed; an ended pod holds nothing."""

    async def story(
        server: ApiServer, withdraw: Callable[..., Awaitable[tuple[int, str]]]
    ) -> None:
        await create(server, pod("train", "n1", annotations={"partage.io/allocation": "{}"}))
        await create(server, pod("over", "n2", annotations={"partage.io/allocation": "{}"}))
        status = {"status": {"phase": "Succeeded"}}
        await server.patch("pods", "default", "over", status, sub="status")

        code, said = await withdraw()

        assert code == 3
        assert "left: node n1: pods that hold its devices run there: default/train" in said
        assert held(server, DEVICES, "n1") is not None
        used, free = held(server, "nodes", "n1"), held(server, "nodes", "n2")
        assert used is not None
        assert free is not None
        assert "kubernetes.io/gpu" in used["status"]["allocatable"]
        assert "kubernetes.io/gpu" not in free["status"]["allocatable"]
        assert (await withdraw("--force"))[0] == 0
        assert held(server, DEVICES, "n1") is None

    run(story, tmp_path)


def claim(name: str, driver: str, node: str, *pods: str) -> Manifest:
    """An allocated ResourceClaim."""
    result = {"driver": driver, "pool": node, "device": "gpu-0", "request": "r"}
    reserved = [{"resource": "pods", "name": one, "uid": one} for one in pods]
    requests = [{"name": "r", "exactly": {"deviceClassName": "x"}}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved},
    }


def test_a_node_whose_devices_claims_hold_is_left_and_told(tmp_path: Any) -> None:
    """Its pods cannot end without the driver; claims of other drivers do not matter."""

    async def story(
        server: ApiServer, withdraw: Callable[..., Awaitable[tuple[int, str]]]
    ) -> None:
        for one in (
            claim("mine", "gpu.partage.io", "n1", "train", "serve"),
            claim("theirs", "gpu.example.com", "n2", "other"),
        ):
            await server.create(CLAIMS, one, namespace="default")
            head = one["metadata"]
            await server.patch(
                CLAIMS, "default", head["name"], {"status": one["status"]}, sub="status"
            )

        code, said = await withdraw()

        assert code == 3
        assert "left: node n1: ResourceClaims hold its devices" in said
        assert "default/mine (train, serve)" in said
        assert "n2: ResourceClaims" not in said
        assert held(server, DEVICES, "n1") is not None
        free = held(server, "nodes", "n2")
        assert free is not None
        assert "kubernetes.io/gpu" not in free["status"]["allocatable"]
        await server.patch(
            CLAIMS, "default", "mine", {"status": {"allocation": None}}, sub="status"
        )
        assert (await withdraw())[0] == 0
        assert held(server, DEVICES, "n1") is None

    run(story, tmp_path)


def test_nothing_is_done_while_partage_runs(tmp_path: Any) -> None:
    """Partage would write the data again at once."""
    labels = {"app.kubernetes.io/part-of": "partage", "app.kubernetes.io/component": "agent"}

    async def story(
        server: ApiServer, withdraw: Callable[..., Awaitable[tuple[int, str]]]
    ) -> None:
        await create(server, pod("partage-agent-x", labels=labels))

        code, said = await withdraw()

        assert code == 3
        assert "default/partage-agent-x; uninstall it first" in said
        assert held(server, DEVICES, "n1") is not None

    run(story, tmp_path)


@pytest.mark.parametrize("status", [404, 200])
async def test_an_answer_of_a_proxy_does_not_look_as_if_nobody_held_a_card(status: int) -> None:
    """Nothing is removed while the pods cannot be listed."""

    class Behind(Client):
        async def list_all(self, scope: Scope, *, into: Any) -> Any:
            if scope.resource == PODS:
                if status == 404:
                    raise api_error("GET", scope.path, status, b"404 page not found")
                request = Request("GET", scope.path)
                return await self._decoders.page(request, b'{"message": "log in"}', into)
            return await super().list_all(scope, into=into)

    told: list[str] = []
    server = ApiServer()
    async with serve(server) as url:
        await server.create("nodes", node())
        async with Behind(Config(ClusterConfig(url))) as client:
            with pytest.raises((NotServed, UndecodableAnswer)):
                await withdraw(client, told.append)
    assert not told
