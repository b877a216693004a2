"""Pods of namespaces with a label: their devices by ResourceClaims instead of a protocol's names.

The API server asks here only for pods of namespaces with the label, so none is looked up. The webhook writes
nothing. The leader of the scheduler service makes the templates that the pods name, because it sees the pods and
knows the cards. So a lost answer, or an answer for a pod that is rejected later, leaves nothing behind.

All of a pod becomes claims, or nothing. A request that no claim can express stays as it is, with a warning and an
annotation. A request that validation rejects stays too, so the message is about the author's text.

Source: docs/decisions/0030.
"""

from collections.abc import Mapping
from typing import Any, Final

from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.webhook.manifest import (
    Part,
    crowded,
    device_names,
    mapping,
    parts,
    texts_of,
)
from partage.webhook.mutating import new_pod, not_ours, translated
from partage.webhook.patch import Patch
from partage.webhook.review import Review, Verdict
from partage.webhook.settings import Admission
from partage.webhook.validating import validate
from partage.wire.claim_shapes import Shape, Translated, encode_translated, shapes_of
from partage.wire.context import Context

_LONGEST: Final = 512


def translate(review: Review, context: Context, admission: Admission) -> Verdict:
    """The answer of the translating webhook, which runs after the mutating one."""
    pod = new_pod(review, context, admission)
    if (
        pod is None
        or not_ours(pod, admission)
        or crowded(pod)
        or not validate(review, context, admission).allowed
    ):
        return Verdict(review.uid)
    patch = Patch(pod)
    found = _shapes(pod, review.namespace, context)
    if isinstance(found, str):
        patch.put(("metadata", "annotations", names.NOT_TRANSLATED), found[:_LONGEST])
        told = f"the pod keeps its protocol's names, and gets no ResourceClaims: {found}"
        return Verdict(review.uid, patch=patch.operations, warnings=(told,))
    _claim(patch, found, context)
    if names.NOT_TRANSLATED in texts_of(pod, "annotations"):
        patch.put(("metadata", "annotations", names.NOT_TRANSLATED), "")
    return Verdict(review.uid, patch=patch.operations)


def _shapes(
    pod: Mapping[str, Any], namespace: str, context: Context
) -> list[tuple[Part, Shape]] | str:
    """Containers with their claims' shapes, or a text with the reason why the pod keeps its protocol."""
    read = translated(pod, namespace, context)
    if isinstance(read, str):
        return read
    request = read.pod.request
    if request.fault is not None and request.fault.code is not ReasonCode.SCHEDULING_GATED:
        return request.fault.message
    shapes = shapes_of(request)
    if isinstance(shapes, str):
        return shapes
    found = []
    for part in parts(pod):
        asked = device_names(part, context)
        triggers = [name for name in asked if name not in context.owners]
        if triggers:
            return f"container {part.name}: {triggers[0]} comes from its vendor's plugin alone"
        if part.name in shapes:
            if mapping(part.body.get("resources")).get("claims"):
                return f"container {part.name} has a claim of its own"
            found.append((part, shapes[part.name]))
    mine = {_name(number) for number in range(len(found))}
    listed = mapping(pod.get("spec")).get("resourceClaims")
    others = {mapping(one).get("name") for one in listed} if isinstance(listed, list) else set()
    if mine & others:
        return f"the pod has a claim named {min(mine & others, key=str)}"
    return found


def _claim(patch: Patch, found: list[tuple[Part, Shape]], context: Context) -> None:
    """Remove the devices' names from all containers, and add claims to those that asked for devices."""
    shapes = {part.path: (number, shape) for number, (part, shape) in enumerate(found)}
    told: dict[str, Translated] = {}
    for part in list(parts(patch.result)):
        asked = device_names(part, context)
        if not asked:
            continue
        resources = dict(mapping(part.body.get("resources")))
        written = {**part.resources("requests"), **part.resources("limits")}
        for kind in ("limits", "requests"):
            left = {name: one for name, one in part.resources(kind).items() if name not in asked}
            resources.pop(kind, None)
            resources |= {kind: left} if left else {}
        if part.path in shapes:
            number, shape = shapes[part.path]
            resources["claims"] = [{"name": _name(number)}]
            named = {"name": _name(number), "resourceClaimTemplateName": shape.template}
            patch.append(("spec", "resourceClaims"), named)
            told[part.name] = Translated(shape, {name: str(written[name]) for name in asked})
        patch.put((*part.path, "resources"), resources)
    patch.put(("metadata", "annotations", names.TRANSLATED), encode_translated(told))


def _name(number: int) -> str:
    """The pod's name for a container's claim."""
    return f"partage-{number}"
