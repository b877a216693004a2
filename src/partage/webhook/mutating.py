"""Mutation of new pods that ask for devices: adds the defaults of their protocols.

In order: copies requests and limits of devices to each other; turns a lone `nvidia.com/gpu` in percent into a
number of cards and keeps its original in an annotation; writes HAMi's defaults where HAMi reads the container;
sets the scheduler's name. It leaves values that the engine derives itself (Koordinator's `gpu` as core and ratio,
its `gpu.shared`) as the author wrote them. No reader needs them, and they can do harm: quotas then count other
names, and upstream's own webhook makes requests of them that its scheduler refuses. A second run changes nothing.

Source: docs/decisions/0011; docs/sources/hami.md 1.3 and 9; docs/sources/koordinator.md 8 and 13.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from partage.model.errors import InvalidDocument, InvalidQuantity
from partage.model.quantity import Quantity, decimal
from partage.tracing.context import TraceContext
from partage.vendors import names
from partage.vendors.base import ContainerView
from partage.vendors.settings import HamiSettings
from partage.webhook.manifest import (
    Part,
    crowded,
    decode_pod,
    device_names,
    mapping,
    names_devices,
    parts,
)
from partage.webhook.patch import Patch
from partage.webhook.review import Review, Verdict, invalid
from partage.webhook.settings import Admission
from partage.wire.context import Context
from partage.wire.pods import TranslatedPod, translate_pod
from partage.wire.routing import DEFAULT_SCHEDULER, HAMI, route

_PERCENT: Final = 100
_PRIORITY_ENV: Final = "CUDA_TASK_PRIORITY"


def mutate(
    review: Review,
    context: Context,
    admission: Admission,
    trace: TraceContext | None = None,
    ignored: str = "",
) -> Verdict:
    """The answer of the mutating webhook; it never changes a pod without devices.

    `trace`: the span for the pod's annotation; None writes none. `ignored`: reason why its present span is replaced.
    """
    pod = new_pod(review, context, admission)
    if pod is None:
        return Verdict(review.uid)
    foreign = not_ours(pod, admission)
    if foreign:
        return Verdict(review.uid, warnings=(foreign,))
    too_many = crowded(pod)
    if too_many:
        return invalid(review, too_many)
    patch = Patch(pod)
    decoded = decode_pod(pod, review.namespace)
    if isinstance(decoded, str):
        return Verdict(review.uid, allowed=False, code=400, message=f"the pod: {decoded}")
    _copy(patch, context)
    _rewrite(patch, context)
    read = translated(patch.result, review.namespace, context)
    if isinstance(read, str):
        return invalid(review, read)
    _hami_defaults(patch, read, context)
    scheduler = mapping(patch.result.get("spec")).get("schedulerName")
    if scheduler in (None, "", DEFAULT_SCHEDULER):
        patch.put(("spec", "schedulerName"), admission.scheduler)
    if trace is not None:
        patch.put(("metadata", "annotations", names.TRACEPARENT), str(trace))
    warnings = (f"annotation {names.TRACEPARENT} is ignored: {ignored}",) if ignored else ()
    return Verdict(review.uid, patch=patch.operations, warnings=warnings)


def new_pod(review: Review, context: Context, admission: Admission) -> Mapping[str, Any] | None:
    """The pod with devices that a request creates; None for any other request, and in an exempt namespace."""
    pod = mapping(review.object)
    if (
        (review.resource, review.operation) != ("pods", "CREATE")
        or review.namespace in admission.excluded
        or not names_devices(pod, context)
    ):
        return None
    return pod


def not_ours(pod: Mapping[str, Any], admission: Admission) -> str:
    """The reason to leave a pod with devices alone; empty if Partage places it."""
    name = mapping(pod.get("spec")).get("schedulerName") or DEFAULT_SCHEDULER
    if name in admission.served or (name == DEFAULT_SCHEDULER and admission.convert_default):
        return ""
    return (
        f"schedulerName {name} is not served by Partage: Partage does not allocate the pod's devices, "
        "and on nodes with its agent no container starts with them"
    )


def _copy(patch: Patch, context: Context) -> None:
    """Copy requests and limits of devices to each other if one of the two is missing."""
    for part in list(parts(patch.result)):
        limits, requests = part.resources("limits"), part.resources("requests")
        for name in device_names(part, context):
            if name not in requests:
                patch.put((*part.path, "resources", "requests", name), limits[name])
            elif name not in limits:
                patch.put((*part.path, "resources", "limits", name), requests[name])


def _rewrite(patch: Patch, context: Context) -> None:
    """A lone `nvidia.com/gpu` of hundreds is percent of cards: write the cards.

    No node has a hundred cards, so no other meaning is possible. A count that would read as
    percent again is left alone.
    """
    originals: dict[str, dict[str, str]] = {}
    for part in list(parts(patch.result)):
        if device_names(part, context) != [names.COUNT_NVIDIA]:
            continue
        value = part.resources("limits").get(names.COUNT_NVIDIA)
        cards = _cards(value)
        if not cards or part.resources("requests").get(names.COUNT_NVIDIA) != value:
            continue
        written: object = str(cards) if isinstance(value, str) else cards
        for kind in ("limits", "requests"):
            patch.put((*part.path, "resources", kind, names.COUNT_NVIDIA), written)
        originals[part.name] = {names.COUNT_NVIDIA: str(value)}
    if originals:
        text = msgspec.json.encode({**_originals(patch.result), **originals}).decode()
        patch.put(("metadata", "annotations", names.ORIGINAL_REQUEST), text)


def _originals(pod: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The annotation of an earlier call, before another webhook added a container; nothing if it cannot be that."""
    given = mapping(mapping(pod.get("metadata")).get("annotations")).get(names.ORIGINAL_REQUEST)
    try:
        found = msgspec.json.decode(str(given or "{}"), type=dict[str, dict[str, str]])
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {part.name: found[part.name] for part in parts(pod) if part.name in found}


def _cards(value: object) -> int:
    """Cards of a count in percent; 0 for any other count."""
    if not isinstance(value, str | int | float):
        return 0
    try:
        amount = Quantity.parse(value)
    except InvalidQuantity:
        return 0
    count = amount.floor()
    if not amount.integral or count <= 0 or count % _PERCENT:
        return 0
    cards = count // _PERCENT
    return cards if cards % _PERCENT else 0


def translated(pod: Mapping[str, Any], namespace: str, context: Context) -> TranslatedPod | str:
    """A pod as the engine reads it, or the reason why it cannot be read."""
    document = decode_pod(pod, namespace)
    if isinstance(document, str):
        return f"the pod: {document}"
    try:
        return translate_pod(document, context)
    except InvalidDocument as error:
        return str(error)


def _hami_defaults(patch: Patch, read: TranslatedPod, context: Context) -> None:
    """Write HAMi's own defaults into the containers that HAMi's protocol reads."""
    mine = {c.name: c for c in route(read.view, context).families.get(HAMI, ())}
    for part in list(parts(patch.result)):
        view = mine.get(part.name)
        if view is not None:
            _hami_container(patch, part, view, context.settings.hami)


def _hami_container(patch: Patch, part: Part, view: ContainerView, hami: HamiSettings) -> None:
    asked = set(part.resources("limits"))  # broken amounts are rejected, not replaced
    amounts = asked & {hami.memory_name, hami.percentage_name, hami.cores_name} - {""}
    count = view.ask(hami.count_name)
    if hami.count_name not in asked and amounts and hami.default_count > 0:
        count = decimal(hami.default_count)
        _ask(patch, part, hami.count_name, str(count))
    if count is not None and hami.cores_name and hami.cores_name not in asked:
        percentage = view.ask(hami.percentage_name)
        whole = asked.isdisjoint({hami.memory_name, hami.percentage_name})
        if percentage is not None:  # then it decides, as for the engine (`hami.request`)
            whole = percentage.floor() == _PERCENT
        if whole and count.nano > 0:
            _ask(patch, part, hami.cores_name, str(_PERCENT))
    priority = view.ask(hami.priority_name)
    env = part.body.get("env")
    known = [mapping(entry).get("name") for entry in env] if isinstance(env, list) else []
    if priority is not None and _PRIORITY_ENV not in known and isinstance(env, list | None):
        patch.append((*part.path, "env"), {"name": _PRIORITY_ENV, "value": str(priority)})


def _ask(patch: Patch, part: Part, name: str, value: str) -> None:
    for kind in ("limits", "requests"):
        patch.put((*part.path, "resources", kind, name), value)
