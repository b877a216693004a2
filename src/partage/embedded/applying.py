"""Applies manifests to the embedded cluster, much as `kubectl apply` would.

An object that the API server or admission rejects is reported, and the others are still applied. A pod that has
a node already is state: it is created, and then bound with the records that it carries, as its scheduler did.
Records have no other way into a cluster.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from partage.apiserver import ApiError, ApiServer, User
from partage.embedded.manifests import Manifest
from partage.embedded.owners import with_owners_here
from partage.embedded.watching import OVER
from partage.kube.bodies import binding
from partage.vendors import names
from partage.vendors.reserved import RESERVED
from partage.wire import permit, record
from partage.wire.documents import unknown

_WORKLOADS: Final = (
    "Pod",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
)
_EXISTS: Final = "AlreadyExists"


@dataclass(frozen=True, slots=True)
class Unapplied:
    """A rejected manifest, and the reason."""

    manifest: Manifest
    message: str


@dataclass(slots=True)
class Outcome:
    """Results for manifests."""

    refused: list[Unapplied] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_state(manifest: Manifest) -> bool:
    """Whether the manifest describes present state, and no pod that still needs a place."""
    if manifest.kind != "Pod":
        return manifest.kind not in _WORKLOADS
    return bool((manifest.value.get("spec") or {}).get("nodeName"))


async def apply_all(
    server: ApiServer, manifests: Iterable[Manifest], user: User, outcome: Outcome
) -> None:
    """Creates every absent object. `user`: one that may write records."""
    for manifest in manifests:
        try:
            await _apply(server, manifest, user, outcome)
        except ApiError as error:
            if error.reason != _EXISTS:
                outcome.refused.append(Unapplied(manifest, error.message))
        await asyncio.sleep(0)  # creating thousands must not look like a server that is away


async def _apply(server: ApiServer, manifest: Manifest, user: User, outcome: Outcome) -> None:
    value = dict(manifest.value)
    kinds = [k for k in server.registry if k.kind == manifest.kind]
    version = value.get("apiVersion")
    kind = next((k for k in kinds if version in (None, k.api_version)), None)
    if kind is None:
        known = {kind.kind for kind in server.registry}
        outcome.notes.append(
            f"{manifest.where}: {unknown(manifest.kind, version, known)}; skipped"
        )
        return
    value.setdefault("apiVersion", kind.api_version)
    namespace = (manifest.namespace or "default") if kind.namespaced else ""
    if namespace and server.store.get("namespaces", "", namespace) is None:
        await server.create("namespaces", {"metadata": {"name": namespace}})
        await server.settle()
    value = with_owners_here(server, value, namespace) or value
    if manifest.kind == "Pod" and is_state(manifest):
        await _adopt(server, value, namespace, user)
    else:
        warnings: list[str] = []
        await server.create(kind.resource, value, namespace, warnings=warnings)
        outcome.notes += [f"{manifest.where}: {text}" for text in warnings]


async def _adopt(server: ApiServer, value: dict[str, Any], namespace: str, user: User) -> None:
    """Creates a pod without its node and records, and binds it with them."""
    spec, head = dict(value["spec"]), dict(value["metadata"])
    phase = (value.get("status") or {}).get("phase")
    node = spec.pop("nodeName")
    annotations = dict(head.get("annotations") or {})
    labels = dict(head.get("labels") or {})
    written = {key: annotations.pop(key) for key in RESERVED.in_annotations(annotations)}
    marked = {key: labels.pop(key) for key in RESERVED.in_labels(labels)}
    head |= {"annotations": annotations, "labels": labels}
    # The objects of the node's devices come with the pod's own record; its UID is a new one here.
    made = await server.create("pods", {**value, "metadata": head, "spec": spec}, namespace)
    if names.ALLOCATION in written:
        written[names.ALLOCATION] = _readdressed(
            written[names.ALLOCATION], str(head.get("uid") or ""), node, made.uid
        )
    known = permit.read(written, str(head.get("uid") or ""))
    if known is not None:
        written[names.PERMIT] = permit.encode(known, made.uid)
    body = binding(namespace, made.name, node, uid=made.uid, annotations=written, labels=marked)
    await server.bind(namespace, made.name, body, user)
    if phase in OVER:
        status = {"status": {"phase": phase}}
        await server.patch("pods", namespace, made.name, status, sub="status", user=user)


def _readdressed(text: str, uid: str, node: str, new: str) -> str:
    """A record with the pod's new UID; an untrusted one stays as it is."""
    found = record.decode(text, uid, node)
    return text if found.problem else record.readdressed(text, new)
