"""Patches that remove Partage's writes from objects that outlive it.

The API server records the last manager of every field (`metadata.managedFields`). The patches remove only our
fields: not a label that an operator set, nor totals that Koordinator's manager has written since. Records on pods
stay, because readers of the running pods may still need them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from partage.vendors import names
from partage.vendors.catalog import koordinator_reports
from partage.vendors.settings import Settings

Object = Mapping[str, Any]

MANAGER: Final = "partage"
"""The field manager of our programs (`ClientSettings.field_manager`)."""
_WRITERS: Final = ("scheduler", "agent")
_OVER: Final = ("Succeeded", "Failed")
_PART_OF: Final = "app.kubernetes.io/part-of"
_COMPONENT: Final = "app.kubernetes.io/component"


@dataclass(frozen=True, slots=True)
class Removal:
    """Fields to remove from one object.

    Attributes:
        subresource: `status`, or empty for the object itself.
        body: a merge patch that hits this very object only.
    """

    subresource: str
    body: dict[str, Any]
    keys: tuple[str, ...]


def removals(value: Object) -> list[Removal]:
    """Patches that remove our labels, annotations and totals from a Node or a Device; empty without any."""
    owned = _owned(value)
    uid = value["metadata"].get("uid")
    found = []
    for subresource, root in (("", "metadata"), ("status", "status")):
        given = value.get(root) or {}
        changes = {
            part: {key: None for key in sorted(fields) if key in (given.get(part) or {})}
            for (where, top, part), fields in sorted(owned.items())
            if (where, top) == (subresource, root)
        }
        changes = {part: keys for part, keys in changes.items() if keys}
        if changes:
            head = {"uid": uid} if uid else {}
            body = (
                {"metadata": {**head, **changes}}
                if root == "metadata"
                else {"metadata": head, root: changes}
            )
            keys = tuple(dict.fromkeys(key for part in changes.values() for key in part))
            found.append(Removal(subresource, body, keys))
    return found


def reported_by(device: Object) -> bool:
    """Whether Partage's agent wrote a Device object's devices last."""
    return any("f:devices" in (fields.get("f:spec") or {}) for _, fields in _entries(device))


def running(pods: Iterable[Object]) -> list[str]:
    """Running pods of Partage, which would write all of it again."""
    return sorted(
        _name(pod)
        for pod in pods
        if _labels(pod).get(_PART_OF) == MANAGER
        and _labels(pod).get(_COMPONENT) in _WRITERS
        and not pod["metadata"].get("deletionTimestamp")
        and (pod.get("status") or {}).get("phase") not in _OVER
    )


def users(pods: Iterable[Object]) -> dict[str, list[str]]:
    """Nodes to their pods that hold devices by our record, or ask for names to be removed.

    A restarted kubelet compares its pods' requests with the node's totals again, and ends pods
    that ask for absent `kubernetes.io/*` names.
    """
    wanted = koordinator_reports(Settings())
    found = defaultdict(list)
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        node = spec.get("nodeName")
        if not node or status.get("phase") in _OVER:
            continue
        notes = pod["metadata"].get("annotations") or {}
        if names.ALLOCATION in notes or wanted & _asked(spec):
            found[str(node)].append(_name(pod))
    return {node: sorted(pods) for node, pods in sorted(found.items())}


def claimed(claims: Iterable[Object]) -> dict[str, list[str]]:
    """Nodes to the ResourceClaims that hold devices of our driver there, each with its pods by `reservedFor`."""
    found = defaultdict(list)
    for claim in claims:
        status = claim.get("status") or {}
        devices = (status.get("allocation") or {}).get("devices") or {}
        results = devices.get("results") or ()
        pods = ", ".join(one["name"] for one in status.get("reservedFor") or ())
        for node in {one["pool"] for one in results if one["driver"] == names.DRA_DRIVER}:
            found[str(node)].append(f"{_name(claim)} ({pods or 'no pod'})")
    return {node: sorted(held) for node, held in sorted(found.items())}


def _asked(spec: Object) -> set[str]:
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    parts = [one.get("resources") or {} for one in containers]
    return {
        name for part in parts for kind in ("limits", "requests") for name in part.get(kind) or ()
    }


def _owned(value: Object) -> dict[tuple[str, str, str], set[str]]:
    """Subresource, part of the object and map, to the map's keys that we own."""
    found: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for subresource, fields in _entries(value):
        for top, maps in (
            ("metadata", ("labels", "annotations")),
            ("status", ("allocatable", "capacity")),
        ):
            below = fields.get(f"f:{top}") or {}
            for part in maps:
                keys = below.get(f"f:{part}") or {}
                found[subresource, top, part] |= {key[2:] for key in keys if key.startswith("f:")}
    return found


def _entries(value: Object) -> Iterable[tuple[str, Object]]:
    """Our entries of managed fields: subresource, and the fields."""
    for entry in value["metadata"].get("managedFields") or ():
        if entry.get("manager") == MANAGER:
            yield entry.get("subresource") or "", entry.get("fieldsV1") or {}


def _labels(value: Object) -> Object:
    labels: Object = value["metadata"].get("labels") or {}
    return labels


def _name(value: Object) -> str:
    return f"{value['metadata'].get('namespace', '')}/{value['metadata']['name']}"
