"""Validation of pods and Bindings: rejects forged records and, early, broken requests.

Admission reads a pod with the engine's families, so the two cannot disagree on the meaning of a request. It decides
three things: whether a user writes a reserved key without the right to (in pods, in their subresources, which can
change annotations too, and in Bindings); whether a pod that asks for devices names its node itself, with any
scheduler; and whether a new request breaks a rule of its protocol. An existing pod with a broken request may
still be changed, so the removal of its finalizer is not delayed.

Pods without devices and without reserved keys are always allowed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.model.reason import ReasonCode
from partage.model.request import Fault
from partage.vendors import names
from partage.vendors.reserved import RESERVED
from partage.webhook.manifest import (
    crowded,
    decode_pod,
    mapping,
    names_devices,
    parts,
    texts_of,
    wakes_devices,
)
from partage.webhook.mutating import not_ours, translated
from partage.webhook.review import Review, Verdict, invalid
from partage.webhook.settings import Admission
from partage.wire import shapes
from partage.wire.adjustment import asked, read_changes
from partage.wire.context import Context
from partage.wire.limits import beyond
from partage.wire.near_names import near_names
from partage.wire.pods import TranslatedPod
from partage.wire.record import decode
from partage.wire.routing import HAMI, route

NAMES_ITS_NODE: Final = (
    "a pod that asks for devices may not name its node (spec.nodeName), because no scheduler would "
    "reserve its devices; use nodeSelector or affinity"
)
"""The reason for such a pod's refusal; only the node itself may report one, for a static pod of its own."""

_MIRROR: Final = "kubernetes.io/config.mirror"
_POD: Final = "pods"
_BINDINGS: Final = ("pods/binding", "bindings")


def validate(review: Review, context: Context, admission: Admission) -> Verdict:
    """The answer of the validating webhook."""
    ours = review.resource == _POD or review.resource.startswith(f"{_POD}/")
    if review.namespace in admission.excluded or review.object is None:
        return Verdict(review.uid)
    if not ours and review.resource not in _BINDINGS:
        return Verdict(review.uid)
    forged = "" if _may_write(review, admission) else _forged(review)
    if forged:
        return Verdict(review.uid, allowed=False, message=forged)
    if review.resource != _POD or review.operation not in ("CREATE", "UPDATE"):
        return Verdict(review.uid)
    unread = _misread(review)
    if unread:
        return invalid(review, unread)
    placed = _placed(review.object) and not _may_be_placed(review)
    if placed and wakes_devices(review.object, context):
        return invalid(review, NAMES_ITS_NODE)
    if not names_devices(review.object, context):
        return Verdict(review.uid, warnings=_told(review, context))
    foreign = not_ours(review.object, admission)
    if foreign:
        large = _large(review, review.object, context)
        return invalid(review, large) if large else Verdict(review.uid, warnings=(foreign,))
    if review.operation == "UPDATE":
        return _updated(review, context)
    return _created(review, review.object, context, admission)


def _told(review: Review, context: Context) -> tuple[str, ...]:
    """Warnings about a new pod that wakes a vendor's plugin and asks for no device."""
    pod = mapping(review.object)
    if review.operation != "CREATE" or not wakes_devices(pod, context) or crowded(pod):
        return ()
    document = decode_pod(pod, review.namespace)
    return () if isinstance(document, str) else near_names(document, context)


def _may_write(review: Review, admission: Admission) -> bool:
    return review.user in admission.writers or (
        bool(admission.break_glass) and admission.break_glass in review.groups
    )


def _forged(review: Review) -> str:
    """Reserved keys that the request adds, changes or removes, as a sentence; empty for none."""
    before = review.before if review.operation == "UPDATE" else None
    found = RESERVED.differing(
        (texts_of(before, "annotations"), texts_of(review.object, "annotations")),
        (texts_of(before, "labels"), texts_of(review.object, "labels")),
    )
    if not found:
        return ""
    hint = (
        "; a copied manifest carries them along, remove them there"
        if review.operation == "CREATE"
        else ""
    )
    return f"only Partage may write {', '.join(found)}{hint}"


def _misread(review: Review) -> str:
    """The reason why a pod's adjustment of its shares is invalid; empty if it is valid or not new."""
    now = texts_of(review.object, "annotations")
    before = texts_of(review.before, "annotations") if review.operation == "UPDATE" else {}
    wish = now.get(names.ADJUST)
    if wish is None or wish == before.get(names.ADJUST):
        return ""
    try:
        read_changes(wish)
        uid = mapping(mapping(review.object).get("metadata")).get("uid")
        node = mapping(mapping(review.object).get("spec")).get("nodeName")
        record = decode(now.get(names.ALLOCATION, ""), str(uid), str(node))
        if not record.problem:
            asked(wish, record.grants)
    except InvalidValue as error:
        return str(error)
    return ""


def _placed(pod: Mapping[str, Any] | None) -> bool:
    """Whether the pod itself names its node: by name, or as the mirror of a static pod."""
    named = mapping(mapping(pod).get("spec")).get("nodeName")
    return bool(named) or _MIRROR in texts_of(pod, "annotations")


def _may_be_placed(review: Review) -> bool:
    """Whether the pod was on a node before, or the node itself reports it."""
    if review.operation == "UPDATE" and _placed(review.before):
        return True
    node = mapping(mapping(review.object).get("spec")).get("nodeName")
    return isinstance(node, str) and review.user == f"system:node:{node}"


def _created(
    review: Review, pod: Mapping[str, Any], context: Context, admission: Admission
) -> Verdict:
    too_many = crowded(pod)
    if too_many:
        return invalid(review, too_many)
    read = translated(pod, review.namespace, context)
    if isinstance(read, str):
        return invalid(review, read)
    if admission.deny_privileged:
        privileged = _privileged(pod, read, context)
        if privileged:
            return Verdict(
                review.uid,
                allowed=False,
                message=f"container {privileged} is privileged and asks for a part of a card: it "
                "would see every card of its node",
            )
    fault, notes = read.pod.request.fault, read.pod.request.notes
    if fault is not None and fault.code is ReasonCode.INVALID_REQUEST:
        return replace(invalid(review, f"{fault.code}: {fault.message}"), warnings=notes)
    if fault is not None:
        notes = (f"the pod will wait: {fault.code}: {fault.message}", *notes)
    return Verdict(review.uid, warnings=notes)


def _large(review: Review, pod: Mapping[str, Any], context: Context) -> str:
    """The bound that a new pod of another scheduler breaks; empty for none. Once bound, it is read like any other."""
    if review.operation != "CREATE":
        return ""
    document = None if crowded(pod) else decode_pod(pod, review.namespace)
    if document is None or isinstance(document, str):
        return crowded(pod)
    spec = document.shape.spec if isinstance(document.shape, shapes.Pod) else None
    broken = beyond(spec or shapes.PodSpec(), document.annotations, context.is_device)
    return broken and f"{ReasonCode.INVALID_REQUEST}: {broken}"


def _updated(review: Review, context: Context) -> Verdict:
    """Reject a change that breaks a valid request of a waiting pod."""
    pod, before = mapping(review.object), mapping(review.before)
    if mapping(pod.get("spec")).get("nodeName") or mapping(pod.get("metadata")).get(
        "deletionTimestamp"
    ):
        return Verdict(review.uid)
    if crowded(before):
        return Verdict(review.uid)  # it existed before the bound did
    if crowded(pod):
        return invalid(review, crowded(pod))
    new = _fault(pod, review.namespace, context)
    if new is None or _fault(before, review.namespace, context) is not None:
        return Verdict(review.uid)
    return invalid(review, f"{new.code}: {new.message}")


def _fault(pod: Mapping[str, Any], namespace: str, context: Context) -> Fault | None:
    read = translated(pod, namespace, context)
    if isinstance(read, str):
        return Fault(read)
    fault = read.pod.request.fault
    return fault if fault is not None and fault.code is ReasonCode.INVALID_REQUEST else None


def _privileged(pod: Mapping[str, Any], read: TranslatedPod, context: Context) -> str:
    """A privileged container that asks for a part of a card, or with HAMi's names; empty without one."""
    mine = {container.name for container in route(read.view, context).families.get(HAMI, ())}
    mine |= {
        container.name
        for group in read.pod.request.groups
        if group.request.type is DeviceType.GPU and not group.request.whole
        for container in group.containers
    }
    for part in parts(pod):
        if (
            part.name in mine
            and mapping(part.body.get("securityContext")).get("privileged") is True
        ):
            return part.name
    return ""
