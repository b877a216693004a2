"""What admission decides inside the API server, as CEL.

Two questions are asked there: whether a pod concerns Partage at all, so that no other pod ever
depends on a webhook, and whether somebody writes a reserved key who may not. The lists come from
the tables that the webhook itself reads by, so the two cannot disagree.

Reserved keys are looked up in an object's keys and not the other way round: the cost then does not
grow with what somebody puts on an object. Only the keys that are a prefix and a container's name
need a look at every annotation.

Source: Kubernetes 1.36, CEL in admission; DESIGN, decision 8.
"""

from collections.abc import Iterable

from partage.vendors.reserved import ReservedKeys

__all__ = [
    "carries_reserved",
    "forges_nothing",
    "is_not_leaving",
    "may_not_write",
    "names_devices",
]

_UPDATE = "request.operation == 'UPDATE'"


def names_devices(resources: Iterable[str]) -> str:
    """Whether the pod names one of these resources, in a container or as a whole.

    The names are bound to a variable by a list of one list, so that they stand there once.
    """
    parts = [
        _asks("object.spec"),
        *(
            f"(has(object.spec.{field}) && object.spec.{field}.exists(c, {_asks('c')}))"
            for field in ("containers", "initContainers")
        ),
        "(has(object.spec.overhead) && object.spec.overhead.exists(n, n in known))",
    ]
    return f"[{_list(resources)}].exists(known, {' || '.join(parts)})"


def _asks(of: str) -> str:
    asks = " || ".join(
        f"(has({of}.resources.{part}) && {of}.resources.{part}.exists(n, n in known))"
        for part in ("limits", "requests")
    )
    return f"(has({of}.resources) && ({asks}))"


def carries_reserved(keys: ReservedKeys) -> str:
    """Whether the object carries a reserved key, or did before an update."""
    now = _carries("object", keys)
    return f"({now}) || ({_UPDATE} && ({_carries('oldObject', keys)}))"


def _carries(which: str, keys: ReservedKeys) -> str:
    annotations, labels = f"{which}.metadata.annotations", f"{which}.metadata.labels"
    prefixed = " || ".join(f"k.startsWith('{prefix}')" for prefix in keys.prefixes)
    return (
        f"(has({annotations}) && ({_list(keys.annotations)}.exists(k, k in {annotations}) || "
        f"{annotations}.exists(k, {prefixed}))) || "
        f"(has({labels}) && {_list(keys.labels)}.exists(k, k in {labels}))"
    )


def is_not_leaving() -> str:
    """Whether the object is not being deleted; who removes its finalizers is not held up."""
    return f"!({_UPDATE} && has(object.metadata.deletionTimestamp))"


def may_not_write(users: Iterable[str], group: str) -> str:
    """Whether the user is none of those who may write reserved keys.

    Args:
        users: names of users and service accounts.
        group: a group whose members may too; empty for none.
    """
    others = f"!(request.userInfo.username in {_list(users)})"
    if not group:
        return others
    return (
        f"{others} && !(has(request.userInfo.groups) && {_text(group)} in request.userInfo.groups)"
    )


def forges_nothing(keys: ReservedKeys) -> list[tuple[str, str]]:
    """Rules that an object keeps which nobody forged, each with what to say where it does not."""
    annotations = _unchanged("annotations", keys.annotations)
    labels = _unchanged("labels", keys.labels)
    said = "only Partage may write"
    hint = "; a copied manifest carries them along, remove them there"
    rules = [
        (annotations, f"{said} these annotations: {', '.join(sorted(keys.annotations))}{hint}"),
        (labels, f"{said} these labels: {', '.join(sorted(keys.labels))}{hint}"),
    ]
    rules += [
        (_unchanged_prefix(prefix), f"{said} annotations that begin with {prefix}{hint}")
        for prefix in keys.prefixes
    ]
    return rules


def _unchanged(field: str, keys: Iterable[str]) -> str:
    """No key is added, altered or removed.

    A key is on both sides with the same value, or on neither.
    """
    new, old = f"object.metadata.{field}", f"oldObject.metadata.{field}"
    has_new = f"(has({new}) && k in {new})"
    has_old = f"({_UPDATE} && has({old}) && k in {old})"
    return f"{_list(keys)}.all(k, {has_new} ? ({has_old} && {old}[k] == {new}[k]) : !{has_old})"


def _unchanged_prefix(prefix: str) -> str:
    new, old = "object.metadata.annotations", "oldObject.metadata.annotations"
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
    """A text literal; names come from settings too, so nothing may end it early."""
    escaped = "".join(
        char if char.isprintable() and char not in "'\\" else f"\\U{ord(char):08x}"
        for char in text
    )
    return f"'{escaped}'"
