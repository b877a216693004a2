"""Deletes objects: at once, gracefully, or after the last finalizer is removed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from partage.apiserver import metadata
from partage.apiserver.calls import (
    DEFINITIONS,
    Call,
    Cluster,
    check_preconditions,
    missing,
    must_get,
    review,
)
from partage.apiserver.creating import pretend
from partage.apiserver.status import ApiError, bad_request, invalid_options
from partage.apiserver.storage import Absent, Record, Stale

_TRIES: Final = 6
_DONE: Final = ("Failed", "Succeeded")
_POLICIES: Final[Mapping[str, tuple[str, ...]]] = {
    "Background": (),
    "Foreground": ("foregroundDeletion",),
    "Orphan": ("orphan",),
}
"""The finalizers of each policy; an object has those of no other."""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a deletion.

    Attributes:
        grace: seconds until a pod should be gone; None takes the pod's own value.
        policy: handling of dependents: `Background`, `Foreground`, `Orphan` or empty.
        uid: delete only the object with this UID.
    """

    grace: int | None = None
    policy: str = ""
    uid: str = ""
    version: str = ""

    @staticmethod
    def read(body: Any) -> "DeleteOptions":
        """The options of a `DeleteOptions` document. Raises `ApiError`: 400 or 422, no such document."""
        if body is None:
            return DeleteOptions()
        wanted = (body.get("preconditions") or {}) if isinstance(body, Mapping) else None
        if not isinstance(wanted, Mapping):
            raise bad_request("the body is no DeleteOptions document")
        grace, policy = body.get("gracePeriodSeconds"), body.get("propagationPolicy") or ""
        if grace is not None and (type(grace) is not int or not 0 <= grace < 2**31):
            raise bad_request(f"gracePeriodSeconds {grace!r} is no number of seconds")
        orphans = body.get("orphanDependents")
        if isinstance(orphans, bool) and not policy:
            policy = "Orphan" if orphans else "Background"
        if policy and (not isinstance(policy, str) or policy not in _POLICIES):
            known = '"Foreground", "Background", "Orphan", "nil"'
            why = f'propagationPolicy: Unsupported value: "{policy}": supported values: {known}'
            raise invalid_options("DeleteOptions", why)
        return DeleteOptions(
            grace, policy, str(wanted.get("uid") or ""), str(wanted.get("resourceVersion") or "")
        )


async def delete(cluster: Cluster, call: Call, options: DeleteOptions) -> tuple[Record, bool]:
    """Deletes an object, or begins to; returns its last state and whether it is gone. Raises `ApiError`."""
    for _attempt in range(_TRIES):
        old = must_get(cluster, call)
        check_preconditions(call, old, options.uid, options.version)
        await cluster.admission.validate(review(call, "DELETE", None, old))
        try:
            return _begin(cluster, call, old, options)
        except Absent as gone:
            raise missing(call) from gone
        except Stale:
            continue
    raise ApiError(409, "Conflict", f"{call.kind.plural} {call.name} changes too fast to delete")


def _begin(
    cluster: Cluster, call: Call, old: Record, options: DeleteOptions
) -> tuple[Record, bool]:
    kind, store = call.kind, cluster.store
    grace = _grace(kind.resource, old.value, options)
    before = old.metadata.get("finalizers") or []
    finalizers = _finalizers(before, options.policy)
    held = bool(finalizers)
    if kind.resource == "namespaces":
        held = held or bool((old.value.get("spec") or {}).get("finalizers"))
    elif kind.resource == DEFINITIONS:  # the janitor finishes it, and deletes its objects
        held = held or bool(store.all(old.name))
    if not held and not grace:
        if call.dry_run:
            return old, True
        return store.remove(kind.resource, old.namespace, old.name, old.revision), True
    if old.metadata.get("deletionTimestamp"):
        left = old.metadata.get("deletionGracePeriodSeconds") or 0
        # While it ends gracefully, its finalizers stay as they are.
        if grace >= left and (left or finalizers == before):
            return old, False
    value = metadata.begun(old.value, grace, cluster.ambient.now(), finalizers)
    if kind.resource == "namespaces":
        value["status"] = {**(value.get("status") or {}), "phase": "Terminating"}
    if call.dry_run:
        return pretend(kind.resource, value), False
    return store.replace(kind.resource, value, old.revision), False


def _finalizers(before: list[str], policy: str) -> list[str]:
    """An object's finalizers after a request to delete it; without a policy they stay."""
    if not policy:
        return before
    propagation = {name for names in _POLICIES.values() for name in names}
    wanted = [name for name in before if name not in propagation] + [*_POLICIES[policy]]
    return before if set(wanted) == set(before) else wanted


def _grace(resource: str, value: Mapping[str, Any], options: DeleteOptions) -> int:
    """An object's grace period in seconds; only pods on a node have one."""
    if resource != "pods":
        return 0
    spec, status = value.get("spec") or {}, value.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in _DONE:
        return 0
    if options.grace is not None:
        return options.grace
    own = value["metadata"].get("deletionGracePeriodSeconds")
    if own is not None:
        return int(own)
    return max(int(spec.get("terminationGracePeriodSeconds") or 0), 0)
