"""Admission's decisions inside the API server, as CEL.

The API server asks six questions: whether a request asks for devices anew, or allocates one of ours to a claim,
so that no other request depends on a webhook; whether a user writes a reserved key without the right to; whether a
pod that asks for devices names its node itself; whether a pod has too many labels; and whether a claim gets the
finalizer by which its allocation begins, or loses it while it is allocated. The lists come from the webhook's own tables, so the two cannot disagree.

The API server counts the cost of an expression and fails above a limit. So the costly half of an expression
follows a cheap one that is false for nearly every request. Names of resources are looked up in a map, at the
same cost for any number of names. Reserved keys are looked up in an object's keys, not the other way round. Only
the keys that are a prefix and a container's name need a look at every annotation and label.

Source: Kubernetes 1.36, CEL in admission; docs/decisions/0011.
"""

from collections.abc import Iterable

from partage.vendors.names import CLAIM_FINALIZER, DRA_DRIVER
from partage.vendors.reserved import ReservedKeys

_UPDATE = "request.operation == 'UPDATE'"
_MIRROR = "kubernetes.io/config.mirror"


def names_devices(resources: Iterable[str]) -> str:
    """Whether the pod names one of these resources, in a container or as a whole.

    A list of one list binds the names to a variable, so that the text has them once.
    """
    parts = [
        _asks("object.spec"),
        *(
            f"(has(object.spec.{field}) && object.spec.{field}.exists(c, {_asks('c')}))"
            for field in ("containers", "initContainers")
        ),
        "(has(object.spec.overhead) && object.spec.overhead.exists(n, n in known))",
    ]
    known = ", ".join(f"{_text(name)}: true" for name in sorted(resources))
    return f"[{{{known}}}].exists(known, {' || '.join(parts)})"


def _asks(of: str) -> str:
    asks = " || ".join(
        f"(has({of}.resources.{part}) && {of}.resources.{part}.exists(n, n in known))"
        for part in ("limits", "requests")
    )
    return f"(has({of}.resources) && ({asks}))"


def asks_anew() -> str:
    """Whether the containers' requests may be new: on creation, and after a change of a waiting pod's requests.

    Finalizers, labels, annotations, conditions, scheduling gates, tolerations and node selectors
    do not count, and no change of a bound pod does.
    """
    differs = " || ".join(
        f"(has(object.spec.{field}) != has(oldObject.spec.{field}) || "
        f"(has(object.spec.{field}) && object.spec.{field} != oldObject.spec.{field}))"
        for field in ("containers", "initContainers", "resources", "overhead")
    )
    return f"(!({_UPDATE}) || (!has(object.spec.nodeName) && ({differs})))"


def says_anew(annotation: str) -> str:
    """Whether an annotation exists with another value than before."""
    new, old = "object.metadata.annotations", "oldObject.metadata.annotations"
    key = _text(annotation)
    before = f"({_UPDATE} && has({old}) && {key} in {old} && {old}[{key}] == {new}[{key}])"
    return f"(has({new}) && {key} in {new} && !{before})"


def comes_with_a_node() -> str:
    """Whether this request puts the pod on a node: by name, or as the mirror of a static pod."""
    return f"{_placed('object')} && !({_UPDATE} && {_placed('oldObject')})"


def _placed(which: str) -> str:
    annotations = f"{which}.metadata.annotations"
    mirror = f"(has({annotations}) && {_text(_MIRROR)} in {annotations})"
    return f"(has({which}.spec.nodeName) || {mirror})"


def is_not_its_own_node() -> str:
    """Whether the user is another than the pod's named node, which reports its static pods itself."""
    own = "request.userInfo.username == 'system:node:' + object.spec.nodeName"
    return f"!(has(object.spec.nodeName) && {own})"


def has_more_labels(than: int) -> str:
    """Whether the object has more labels."""
    return f"has(object.metadata.labels) && object.metadata.labels.size() > {than}"


def adds_no_label() -> str:
    """Whether an update leaves the number of labels as it was, or lowers it."""
    before = "oldObject.metadata.labels"
    return f"{_UPDATE} && has({before}) && {before}.size() >= object.metadata.labels.size()"


def carries_reserved(keys: ReservedKeys) -> str:
    """Whether the object has a reserved key, or had one before an update that changes annotations or labels.

    Most updates, those of a kubelet's status, change neither. Comparing two maps is cheaper than a look at each key.
    """
    same = " && ".join(
        f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"
        for field in ("annotations", "labels")
        for new, old in [(f"object.metadata.{field}", f"oldObject.metadata.{field}")]
    )
    now, before = _carries("object", keys), _carries("oldObject", keys)
    return f"!({_UPDATE} && {same}) && (({now}) || ({_UPDATE} && ({before})))"


def _carries(which: str, keys: ReservedKeys) -> str:
    annotations, labels = f"{which}.metadata.annotations", f"{which}.metadata.labels"
    prefixed = " || ".join(f"k.startsWith('{prefix}')" for prefix in keys.prefixes)
    return (
        f"(has({annotations}) && ({_list(keys.annotations)}.exists(k, k in {annotations}) || "
        f"{annotations}.exists(k, {prefixed}))) || "
        f"(has({labels}) && ({_list(keys.labels)}.exists(k, k in {labels}) || "
        f"{labels}.exists(k, {prefixed})))"
    )


def may_not_write(users: Iterable[str], group: str) -> str:
    """Whether the user may not write reserved keys.

    `users`: names of users and service accounts. `group`: a group whose members may write them too; empty for none.
    """
    others = f"!(request.userInfo.username in {_list(users)})"
    if not group:
        return others
    return (
        f"{others} && !(has(request.userInfo.groups) && {_text(group)} in request.userInfo.groups)"
    )


def forges_nothing(keys: ReservedKeys) -> list[tuple[str, str]]:
    """Rules that every unforged object follows, each with the message for a violation."""
    annotations = _unchanged("annotations", keys.annotations)
    labels = _unchanged("labels", keys.labels)
    said = "only Partage may write"
    hint = "; a copied manifest carries them along, remove them there"
    rules = [
        (annotations, f"{said} these annotations: {', '.join(sorted(keys.annotations))}{hint}"),
        (labels, f"{said} these labels: {', '.join(sorted(keys.labels))}{hint}"),
    ]
    rules += [
        (_unchanged_prefix(field, prefix), f"{said} {field} that begin with {prefix}{hint}")
        for prefix in keys.prefixes
        for field in ("annotations", "labels")
    ]
    return rules


def _unchanged(field: str, keys: Iterable[str]) -> str:
    """No key is added, changed or removed.

    A key is on both sides with the same value, or on neither.
    """
    new, old = f"object.metadata.{field}", f"oldObject.metadata.{field}"
    has_new = f"(has({new}) && k in {new})"
    has_old = f"({_UPDATE} && has({old}) && k in {old})"
    return f"{_list(keys)}.all(k, {has_new} ? ({has_old} && {old}[k] == {new}[k]) : !{has_old})"


def _unchanged_prefix(field: str, prefix: str) -> str:
    new, old = f"object.metadata.{field}", f"oldObject.metadata.{field}"
    text = _text(prefix)
    kept = (
        f"(!has({new}) || {new}.all(k, !k.startsWith({text}) || "
        f"({_UPDATE} && has({old}) && k in {old} && {old}[k] == {new}[k])))"
    )
    removed = (
        f"(!({_UPDATE} && has({old})) || {old}.all(k, !k.startsWith({text}) || "
        f"(has({new}) && k in {new})))"
    )
    return f"{kept} && {removed}"


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(_text(text) for text in sorted(texts))}]"


def _text(text: str) -> str:
    """A text literal, escaped because names come from settings too and must not end it early."""
    escaped = "".join(
        char if char.isprintable() and char not in "'\\" else f"\\U{ord(char):08x}"
        for char in text
    )
    return f"'{escaped}'"


def allocates_a_card() -> str:
    """Whether a claim's status gets an allocation with a device of our driver."""
    return f"!({_is_allocated('oldObject')}) && {_has_a_card('object')}"


def begins_an_allocation() -> str:
    """Whether a claim gets the finalizer that a scheduler sets before it allocates one."""
    return f"{_begun('object')} && !({_UPDATE} && {_begun('oldObject')})"


def unprotects_an_allocation() -> str:
    """Whether a claim with a device of our driver loses that finalizer, and so could be deleted while pods use it."""
    held = _has_a_card("oldObject")
    return f"{_UPDATE} && {_begun('oldObject')} && !{_begun('object')} && {held}"


def _begun(claim: str) -> str:
    held = f"{claim}.metadata.finalizers"
    return f"(has({held}) && {_text(CLAIM_FINALIZER)} in {held})"


def _is_allocated(claim: str) -> str:
    return f"has({claim}.status) && has({claim}.status.allocation)"


def _has_a_card(claim: str) -> str:
    devices = f"{claim}.status.allocation.devices"
    return (
        f"{_is_allocated(claim)} && has({devices}) && has({devices}.results) && "
        f"{devices}.results.exists(one, one.driver == {_text(DRA_DRIVER)})"
    )


def may_allocate() -> str:
    """Whether the user may write what a claim is allocated, in this namespace."""
    claims = "authorizer.group('resource.k8s.io').resource('resourceclaims').subresource('status')"
    return f"{claims}.namespace(request.namespace).check('update').allowed()"
