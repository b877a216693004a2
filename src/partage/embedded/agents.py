"""The programs on simulated nodes: they register a node, report its devices and renew its lease.

A node that was described as simulated gets its Node, its Device object and its plugins' totals from here. Every
other Node gets a kubelet's additions: conditions, addresses, and the ordinary resources that its manifest omits.
All nodes have a lease that is renewed.

Applying a SimulatedNode adds nodes while the cluster runs; deleting it deletes them.

Devices become unhealthy on demand: `kubectl annotate node NAME simulate.partage.io/unhealthy=0,2`
(reason after `=`, as in `0=Xid 79`), and healthy again without the annotation.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from partage.apiserver import ApiError, ApiServer, Change, Record, Refused, Review
from partage.embedded.definitions import DEVICES, SIMULATED_NODES
from partage.embedded.fleet import API_VERSION, KIND, SimulatedNode, simulated_nodes
from partage.embedded.hardware import (
    device_manifest,
    kubelet_labels,
    node_manifest,
    plugin_totals,
    unhealthy_devices,
    with_health,
)
from partage.embedded.owners import references, with_owners_here
from partage.embedded.watching import STRATEGIC, follow_all, node_user, now, owner, tell
from partage.model.errors import InvalidDocument, InvalidRecord
from partage.vendors import names

_KUBECTL: Final = "kubectl.kubernetes.io/"
_BEAT: Final = 10.0
_PER_SECOND: Final = 25
"""Most leases renewed a second; a large fleet renews more slowly."""
_LEASES: Final = "leases.coordination.k8s.io"
_LEASE_SPACE: Final = "kube-node-lease"
_ORDINARY: Final = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
_VERSION: Final = "v1.36.0"
_TRIES: Final = 5


class Agents:
    """Every node's programs."""

    def __init__(self, server: ApiServer, simulated: Iterable[SimulatedNode]) -> None:
        self._server = server
        self._simulated = {node.name: node for node in simulated}
        self._said: dict[str, str] = {}
        server.admission.mutators.append(self._owned)
        server.admission.validators.append(self._judged)

    async def register(self) -> None:
        """Registers every simulated node, and brings up existing ones. Raises `InvalidDocument`: a node is rejected."""
        for node in self._simulated.values():
            try:
                await self._create(node)
            except ApiError as error:
                raise InvalidDocument(f"simulated node {node.name}: {error.message}") from error
            await asyncio.sleep(0)
        for record in list(self._server.store.all(SIMULATED_NODES)):
            await self._describe(record)
        for record in list(self._server.store.all("nodes")):
            await self._bring_up(record)
            await self._report(record.name)
            await asyncio.sleep(0)

    async def run(self) -> None:
        """Renews nodes' leases and follows changes of nodes, until cancelled."""
        handlers = {
            "nodes": self._node,
            DEVICES: lambda change: self._report(change.record.name),
            SIMULATED_NODES: self._description,
        }
        await follow_all(self._server, handlers, self._beat())

    # --- what happens ------------------------------------------------------------------------

    async def _node(self, change: Change) -> None:
        record = change.record
        if change.kind == "DELETED":
            self._said.pop(record.name, None)
            if record.metadata.get("ownerReferences"):
                self._simulated.pop(record.name, None)
            return
        if not _ready(record):
            await self._bring_up(record)
        await self._report(record.name)

    async def _description(self, change: Change) -> None:
        if change.kind != "DELETED":  # the API server deletes its nodes, which it owns
            await self._describe(change.record)

    async def _describe(self, record: Record) -> None:
        """Simulates the nodes of a description; existing nodes keep their hardware, deleted ones get the new."""
        for node in simulated_nodes(_description(record.value), record.name):
            there = self._server.store.get("nodes", "", node.name) is not None
            if not there or node.name not in self._simulated:
                self._simulated[node.name] = node
                await self._create(node, record)

    async def _create(self, node: SimulatedNode, described: Record | None = None) -> None:
        if self._server.store.get("nodes", "", node.name) is not None:
            return
        manifest = node_manifest(node)
        if described is not None:
            manifest["metadata"]["ownerReferences"] = [owner(described.value, KIND, API_VERSION)]
        await self._server.create("nodes", manifest, user=node_user(node.name))

    def _owned(self, asked: Review) -> dict[str, Any] | None:
        """Makes a Device its Node's own, also one with the UID of another cluster's Node or of a page."""
        if asked.kind.resource != DEVICES or asked.object is None:
            return None
        if asked.old is not None and references(asked.old) == references(asked.object):
            return None  # its Node is being deleted, and its Device with it
        return with_owners_here(self._server, asked.object, "")

    async def _judged(self, asked: Review) -> None:
        """Rejects a broken description at once, and one of nodes that the API server would reject."""
        if asked.kind.resource != SIMULATED_NODES or asked.object is None:
            return
        try:
            nodes = list(simulated_nodes(_description(asked.object), "spec"))
            # They differ only in their numbers, and the last one has the longest name.
            for node in nodes[-1:]:
                await self._server.create(
                    "nodes", node_manifest(node), user=node_user(node.name), dry_run=True
                )
        except InvalidDocument as error:
            raise Refused(str(error), 422) from error
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise Refused(error.message, 422) from error

    async def _beat(self) -> None:
        while True:
            nodes = [record.name for record in self._server.store.all("nodes")]
            started = asyncio.get_running_loop().time()
            for name in nodes:
                await self._renew(name)
                await asyncio.sleep(1 / _PER_SECOND)
            spent = asyncio.get_running_loop().time() - started
            await asyncio.sleep(max(_BEAT - spent, 1.0))

    async def _renew(self, name: str) -> None:
        moment = now(self._server).replace("Z", ".000000Z")
        known = self._server.store.get(_LEASES, _LEASE_SPACE, name)
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": moment}
        try:
            if known is None:
                body = {"metadata": {"name": name}, "spec": {**spec, "acquireTime": moment}}
                await self._server.create(_LEASES, body, _LEASE_SPACE, node_user(name))
            else:
                await self._server.patch(
                    _LEASES, _LEASE_SPACE, name, {"spec": spec}, user=node_user(name)
                )
        except ApiError:
            return  # the node is being deleted

    # --- what a node reports -----------------------------------------------------------------

    async def _bring_up(self, record: Record) -> None:
        """Reports as a kubelet does of its node at its start."""
        known = record.metadata.get("labels") or {}
        if lacking := {k: v for k, v in kubelet_labels(record.name).items() if k not in known}:
            await self._change(record.name, {"metadata": {"labels": lacking}})
        status = record.value.get("status") or {}
        allocatable = {**_ORDINARY, **(status.get("allocatable") or {})}
        moment = now(self._server)
        reported = {
            "allocatable": allocatable,
            "capacity": {**allocatable, **(status.get("capacity") or {})},
            "conditions": _conditions(moment),
            "addresses": status.get("addresses")
            or [
                {"type": "InternalIP", "address": _address(record.uid)},
                {"type": "Hostname", "address": record.name},
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": _VERSION,
                "kubeProxyVersion": "",
                "osImage": "simulated by Partage",
                "kernelVersion": "6.8.0",
                "containerRuntimeVersion": "containerd://2.1.0",
                "machineID": record.uid,
                "systemUUID": record.uid,
                "bootID": record.uid,
            },
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        }
        await self._change(record.name, {"status": reported}, sub="status")

    async def _change(self, name: str, body: Mapping[str, Any], sub: str = "") -> None:
        """Patch a node, as its kubelet."""
        user = node_user(name)
        await self._server.patch("nodes", "", name, body, sub=sub, media=STRATEGIC, user=user)

    async def _report(self, name: str) -> None:
        """Writes the Device object and the plugins' totals if they differ from the present ones."""
        node = self._server.store.get("nodes", "", name)
        if node is None or node.metadata.get("deletionTimestamp"):
            return
        device = await self._described(node)
        if device is None:
            return
        device = await self._with_health(node, device)
        simulated = self._simulated.get(name)
        if simulated is None:
            return
        try:
            totals, annotations = plugin_totals(simulated, device.value)
        except InvalidDocument as error:
            await self._warn(node, "UnreadableDevice", str(error))
            return
        await self._total(name, totals, annotations)

    async def _described(self, node: Record) -> Record | None:
        """The node's Device object; that of a simulated node is created if absent."""
        known = self._server.store.get(DEVICES, "", node.name)
        simulated = self._simulated.get(node.name)
        if known is not None or simulated is None or not simulated.spec.cards:
            return known
        manifest = device_manifest(simulated, now(self._server))
        manifest["metadata"]["ownerReferences"] = [owner(node.value, "Node", "v1")]
        return await self._server.create(DEVICES, manifest, user=node_user(node.name))

    async def _with_health(self, node: Record, device: Record) -> Record:
        """The Device object with the health in the node's annotation."""
        text = (node.metadata.get("annotations") or {}).get(names.SIMULATE_UNHEALTHY)
        if text is None and node.name not in self._said and node.name not in self._simulated:
            return device  # a manifest's own devices keep their health
        try:
            ill, reason = unhealthy_devices(text or "", device.value)
        except InvalidRecord as error:
            if self._said.get(node.name) != text:
                self._said[node.name] = text or ""
                await self._warn(node, "InvalidAnnotation", f"{names.SIMULATE_UNHEALTHY}: {error}")
            return device
        if text is not None:
            self._said[node.name] = text
        for _ in range(_TRIES):
            wanted = with_health(device.value, ill, reason, now(self._server))
            if wanted == device.value:
                return device
            try:
                return await self._server.update(DEVICES, wanted, user=node_user(node.name))
            except ApiError as error:
                found = self._server.store.get(DEVICES, "", node.name)
                if error.reason != "Conflict" or found is None:
                    raise
                device = found
        return device

    async def _total(
        self, name: str, totals: Mapping[str, str], annotations: Mapping[str, str]
    ) -> None:
        node = self._server.store.get("nodes", "", name)
        if node is None:
            return
        status = node.value.get("status") or {}
        parts = {
            part: totals
            for part in ("allocatable", "capacity")
            if any((status.get(part) or {}).get(key) != value for key, value in totals.items())
        }
        if parts:
            await self._change(name, {"status": parts}, sub="status")
        known = node.metadata.get("annotations") or {}
        if any(known.get(key) != value for key, value in annotations.items()):
            await self._change(name, {"metadata": {"annotations": dict(annotations)}})

    async def _warn(self, node: Record, reason: str, message: str) -> None:
        user = node_user(node.name)
        await tell(self._server, node, reason, message, user=user, warning=True)


def _description(value: Mapping[str, Any]) -> dict[str, Any]:
    """A stored description in its author's form."""
    head = value["metadata"]
    kept = {
        key: {k: v for k, v in (head.get(key) or {}).items() if not k.startswith(_KUBECTL)}
        for key in ("labels", "annotations")
    }
    return {
        "apiVersion": value.get("apiVersion"),
        "kind": value.get("kind"),
        "metadata": {"name": head["name"], **kept},
        "spec": value.get("spec") or {},
    }


def _address(uid: str) -> str:
    """An address of the network 10.0.0.0/16; two nodes may have the same."""
    high, low = hashlib.sha256(uid.encode()).digest()[:2]
    return f"10.0.{high}.{low % 250 + 2}"


def _ready(record: Record) -> bool:
    conditions = (record.value.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" for one in conditions)


def _conditions(moment: str) -> list[dict[str, str]]:
    said = (
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    )
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "simulated node",
            "lastHeartbeatTime": moment,
            "lastTransitionTime": moment,
        }
        for kind, status, reason in said
    ]
