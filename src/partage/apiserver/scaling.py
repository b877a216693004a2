"""The `scale` subresource: the number of replicas of every kind that has them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from partage.apiserver import jsonpath
from partage.apiserver.calls import Call, Cluster, Patch, accept, must_get
from partage.apiserver.kinds import Kind
from partage.apiserver.patch import PatchError, json_patch, merge_patch
from partage.apiserver.problems import Problems
from partage.apiserver.rules.fields import check_fields
from partage.apiserver.selectors import labels_text, selector_text
from partage.apiserver.status import bad_request, invalid
from partage.apiserver.storage import Record
from partage.apiserver.updating import JSON_PATCH, MERGE, patch
from partage.wire.field_types import catalogue

_PATHS: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": "",
}
_SCALE: Final = Kind(
    group="autoscaling",
    version="v1",
    kind="Scale",
    plural="scales",
    singular="scale",
    namespaced=True,
    type=catalogue()["io.k8s.api.autoscaling.v1.Scale"],
)


def _paths(kind: Kind) -> Mapping[str, str]:
    if kind.definition is None:
        return _PATHS
    return {**_PATHS, **kind.definition["subresources"]["scale"]}


def scale_of(kind: Kind, record: Record) -> dict[str, Any]:
    """An object's `Scale`."""
    paths, value = _paths(kind), kind.outward(record.value)
    head = record.metadata
    selector = (
        jsonpath.find(value, paths["labelSelectorPath"])
        if kind.definition
        else _selector(kind, (value.get("spec") or {}).get("selector"))
    )
    copied = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: head[key] for key in copied if key in head},
        "spec": {"replicas": _number(jsonpath.find(value, paths["specReplicasPath"]))},
        "status": {
            "replicas": _number(jsonpath.find(value, paths["statusReplicasPath"])),
            **({"selector": selector} if isinstance(selector, str) and selector else {}),
        },
    }


def _selector(kind: Kind, selector: Any) -> str:
    """A built-in kind's selector as text; a ReplicationController selects by labels alone."""
    return (labels_text if kind.kind == "ReplicationController" else selector_text)(selector)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


async def set_scale(
    cluster: Cluster, call: Call, body: Any, shown: Patch | None = None
) -> dict[str, Any]:
    """Writes an object's number of replicas. Raises `ApiError`."""
    scale = accept(replace(call, kind=_SCALE, sub=""), body, shown)
    problems = Problems()
    check_fields(scale, _SCALE.type, "", problems)
    if problems:
        raise invalid("Scale", "autoscaling", call.name, problems.causes)
    change: Any = (scale.get("spec") or {}).get("replicas", 0)
    for name in reversed(_paths(call.kind)["specReplicasPath"].lstrip(".").split(".")):
        change = {name: change}
    head = {key: scale["metadata"].get(key) for key in ("uid", "resourceVersion")}
    change["metadata"] = {key: value for key, value in head.items() if value}
    record, _new = await patch(cluster, replace(call, sub=""), MERGE, change)
    return scale_of(call.kind, record)


async def patch_scale(cluster: Cluster, call: Call, media: str, body: Any) -> dict[str, Any]:
    """Patches an object's number of replicas. Raises `ApiError`."""
    live = scale_of(call.kind, must_get(cluster, call))
    try:
        if media == JSON_PATCH:
            changed = json_patch(live, body)
        else:
            del live["metadata"]["resourceVersion"]  # only the patch's own is a precondition
            changed = merge_patch(live, body)
    except PatchError as error:
        raise bad_request(str(error)) from error
    return await set_scale(cluster, call, changed, Patch(msgspec.json.encode(changed).decode()))
