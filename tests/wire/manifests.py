"""Builders of manifests, and the shortest ways from them to the model."""

import json
from typing import Any

from partage.model.pod import Pod
from partage.wire.cluster import Cluster, assemble
from partage.wire.documents import Document, decode
from partage.wire.pods import TranslatedPod

Manifest = dict[str, Any]


def container(
    name: str = "main",
    limits: Manifest | None = None,
    requests: Manifest | None = None,
    **more: Any,
) -> Manifest:
    """A container with its resources."""
    resources = {k: v for k, v in (("limits", limits), ("requests", requests)) if v is not None}
    return {"name": name, "resources": resources, **more}


def pod(
    name: str = "web", *containers: Manifest, meta: Manifest | None = None, **spec: Any
) -> Manifest:
    """A pod; without containers it has one that asks for nothing."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(meta or {})},
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def node(
    name: str = "n1", labels: Manifest | None = None, spec: Manifest | None = None, **totals: Any
) -> Manifest:
    """A node with these totals."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec or {},
        "status": {
            "allocatable": totals.pop("allocatable", None)
            or {"cpu": "32", "memory": "64Gi", "pods": "110"}
        },
    }


def card(
    minor: int = 0, memory: str = "16Gi", domain: str = "koordinator.sh", **more: Any
) -> Manifest:
    """A GPU of a Device object."""
    return {
        "type": "gpu",
        "health": True,
        "minor": minor,
        "id": f"GPU-{minor}",
        "resources": {
            f"{domain}/gpu-core": "100",
            f"{domain}/gpu-memory": memory,
            f"{domain}/gpu-memory-ratio": "100",
        },
        **more,
    }


def device(name: str = "n1", *devices: Manifest, meta: Manifest | None = None) -> Manifest:
    """A Device object."""
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name, **(meta or {})},
        "spec": {"devices": list(devices) or [card(0), card(1)]},
    }


def config_map(name: str, **data: str) -> Manifest:
    """A ConfigMap; keys are written with `__` for a dot and `_` for a dash."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "kube-system"},
        "data": {key.replace("__", ".").replace("_", "-"): value for key, value in data.items()},
    }


def encoded(*manifests: Any) -> bytes:
    """The manifests as one JSON List."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}).encode()


def documents(*manifests: Any) -> tuple[Document, ...]:
    """The manifests decoded."""
    return decode("test.json", encoded(*manifests)).documents


def cluster(*manifests: Any) -> Cluster:
    """The cluster of these manifests."""
    return assemble([decode("test.json", encoded(*manifests))])


def only(*manifests: Any) -> TranslatedPod:
    """The one pod among these manifests."""
    (found,) = cluster(*manifests).pods
    return found


def read(*manifests: Any) -> Pod:
    """The one pod among these manifests, as the engine sees it."""
    return only(*manifests).pod
