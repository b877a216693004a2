"""ResourceClaims as the API server keeps them, and the cards that they are read beside."""

import json
from collections.abc import Mapping
from typing import Any

from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.mig import MigAttribute, MigAxis, MigProfile
from partage.model.node import Node
from partage.vendors.names import CLAIM_FINALIZER
from partage.wire.documents import Document, decode

GIB = 2**30
STARTS = 0, 1, 2, 3
MEDIA, NO_MEDIA = frozenset({MigAttribute.MEDIA}), frozenset({MigAttribute.NO_MEDIA})
AXIS = MigAxis(
    "quarters",
    (
        MigProfile("1g.10gb", 1, 1, STARTS, 10 * GIB, 250, 4),
        MigProfile("1g.10gb+me", 1, 1, STARTS, 10 * GIB, 250, 1, attributes=MEDIA),
        MigProfile("1g.10gb-me", 1, 1, STARTS, 10 * GIB, 250, 1, attributes=NO_MEDIA),
        MigProfile("2g.20gb", 2, 2, (0, 2), 20 * GIB, 500, 2),
    ),
)
"""A card that is cut into quarters, with names that differ in one character."""


def card(minor: int, *, mode: SliceMode = SliceMode.SHARE, memory: int = 40 * GIB) -> Device:
    """A card of a node."""
    cutting = None if mode is SliceMode.SHARE else Cutting(AXIS, frozenset({"1g.10gb", "2g.20gb"}))
    uuid = f"GPU-{minor}"
    return Device(DeviceType.GPU, minor, uuid, memory_bytes=memory, mode=mode, cutting=cutting)


def node(name: str = "n1", *devices: Device) -> Node:
    """A node, by default with two cards for shares and one for instances."""
    given = devices or (card(0), card(1), card(2, mode=SliceMode.MIG))
    return Node(name, devices=given)


def share(
    device: str = "gpu-0", cores: object = "30", memory: object = "10Gi", **more: Any
) -> dict[str, Any]:
    """A share among the results of an allocation."""
    return result(device, consumedCapacity={"cores": cores, "memory": memory}, **more)


def result(device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    """A device among the results of an allocation."""
    given = {"request": "gpu", "driver": "gpu.partage.io", "pool": "n1", "device": device, **more}
    return {key: value for key, value in given.items() if value is not None}


def claim(
    *results: Any, name: str = "x", uid: str = "claim-x", version: int = 1, **status: Any
) -> dict[str, Any]:
    """A claim that kube-scheduler has begun to allocate; without results it is not allocated."""
    allocation = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    exactly = {"deviceClassName": "share.gpu.partage.io"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "resourceVersion": str(version),
            "finalizers": [CLAIM_FINALIZER],
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {**allocation, **status},
    }


def document(manifest: Mapping[str, Any]) -> Document:
    """The manifest decoded."""
    (found,) = decode("claims.json", json.dumps(manifest).encode()).documents
    return found
