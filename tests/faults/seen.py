"""What pods' records and Device objects say, read by their published formats alone.

Nothing of Partage is imported here.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "RECORD",
    "Cards",
    "Document",
    "Findings",
    "Handed",
    "amount",
    "asks",
    "capacities",
    "live",
    "record",
    "taken",
]

Document = Mapping[str, Any]
Cards = Mapping[tuple[str, str], Counter[str]]
"""What each device has, by node and uuid."""
Handed = Mapping[str, Mapping[str, frozenset[str]]]
"""Devices that containers were handed when they started: by pod's uid and container, the uuids."""

RECORD = "partage.io/allocation"
_DOMAINS = (
    "koordinator.sh/",
    "kubernetes.io/",
    "nvidia.com/",
    "tke.cloud.tencent.com/",
    "metax-tech.com/",
)
_ORDINARY = ("cpu", "memory", "ephemeral-storage", "pods")
_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def amount(text: str) -> int:
    """A Kubernetes quantity, rounded down."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    assert found is not None, text
    return int(float(found[1]) * _UNITS[found[2]])


def live(pod: Document) -> bool:
    """Whether the pod has a place: bound, and its containers have not all ended."""
    over = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
    return bool(pod["spec"].get("nodeName")) and not over


def record(pod: Document) -> Document | None:
    """The pod's record, if it has one that can be read; one that cannot names no device."""
    text = (pod["metadata"].get("annotations") or {}).get(RECORD)
    try:
        found = None if text is None else json.loads(text)
    except ValueError:
        return None
    whole = isinstance(found, dict) and isinstance(found.get("containers"), list)
    return found if whole else None


def taken(pod: Document, found: Document) -> dict[str, Counter[str]]:
    """What a pod's record takes, by uuid: `milli` and `bytes`, as Kubernetes counts.

    An init container runs beside the sidecars that were started before it, and ends before the
    others start; sidecars run on beside these.
    """
    given: dict[tuple[bool, str], list[tuple[str, Counter[str]]]] = {}
    for container in found["containers"]:
        for device in container["devices"]:
            amounts = Counter(milli=device["milli"], bytes=device["bytes"])
            key = container.get("phase", "main") != "main", container["name"]
            given.setdefault(key, []).append((device["uuid"], amounts))
    staying: dict[str, Counter[str]] = {}
    most: dict[str, Counter[str]] = {}
    for one in pod["spec"].get("initContainers") or ():
        stays = one.get("restartPolicy") == "Always"
        for uuid, amounts in given.pop((True, one["name"]), ()):
            beside = staying.setdefault(uuid, Counter())
            if stays:
                beside.update(amounts)
            held = most.setdefault(uuid, Counter())
            held |= beside if stays else beside + amounts
    for rows in given.values():  # what the pod has no container for counts as running
        for uuid, amounts in rows:
            staying.setdefault(uuid, Counter()).update(amounts)
    for uuid, amounts in staying.items():
        held = most.setdefault(uuid, Counter())
        held |= amounts
    return most


def capacities(devices: Iterable[Document]) -> Cards:
    """What each device has, by node and uuid."""
    found = {}
    for document in devices:
        for one in document["spec"].get("devices") or ():
            has = one.get("resources") or {}
            parts = {name.rpartition("/")[2]: text for name, text in has.items()}
            core = amount(parts.get("gpu-core", parts.get("rdma", parts.get("fpga", "100"))))
            size = amount(parts.get("gpu-memory", "0"))
            found[document["metadata"]["name"], one["id"]] = Counter(milli=core * 10, bytes=size)
    return found


def asks(pod: Document) -> bool:
    """Whether the pod asks for a device."""
    containers = [*pod["spec"].get("containers", ()), *pod["spec"].get("initContainers", ())]
    return any(
        name.startswith(_DOMAINS)
        for one in containers
        for part in ("limits", "requests")
        for name in ((one.get("resources") or {}).get(part) or {})
        if name not in _ORDINARY
    )


@dataclass(slots=True)
class Findings:
    """What was seen at one moment, and what is wrong with it.

    Attributes:
        standing: all nodes of the cluster, by name; empty where they were not read.
        quotas: all quotas of the cluster; None where they were not read.
    """

    pods: list[Document] = field(default_factory=list)
    devices: list[Document] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    summaries: dict[str, Any] = field(default_factory=dict)
    explained: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    standing: dict[str, Document] = field(default_factory=dict)
    quotas: list[Document] | None = None
