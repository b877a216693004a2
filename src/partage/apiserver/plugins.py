"""Admission that every cluster has: namespaces, service accounts, priorities, tolerations."""

from typing import Any, Final

from partage.apiserver.admission import Refused, Review
from partage.apiserver.selectors import parse_labels
from partage.apiserver.status import ApiError, forbidden, not_found, too_many
from partage.apiserver.storage import Record, Store

IMMORTAL: Final = ("default", "kube-public", "kube-system")
_FOR_A_WHILE: Final = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
_NOT_RUNNING: Final = ("Pending", "Succeeded", "Failed")
_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
CLASSES: Final = "priorityclasses.scheduling.k8s.io"


class Plugins:
    """Built-in mutators and validators over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def namespace(self, review: Review) -> None:
        """Rejects creations in a namespace that is absent or in deletion. Raises `ApiError`: 404 or 403."""
        if review.kind.plural == "namespaces" and not review.kind.group:
            if review.operation == "DELETE" and review.name in IMMORTAL:
                raise Refused("this namespace may not be deleted")
            return
        if review.operation != "CREATE" or review.subresource or not review.namespace:
            return
        found = self._store.get("namespaces", "", review.namespace)
        if found is None:
            raise not_found("namespaces", "", review.namespace)
        if found.metadata.get("deletionTimestamp"):
            raise forbidden(
                review.kind.plural,
                review.kind.group,
                review.name,
                f"unable to create new content in namespace {review.namespace} because it is "
                "being terminated",
            )

    def completed(self, review: Review) -> dict[str, Any]:
        """The object to store; a pod with its priority and tolerations, and a new one with its service account.

        Raises `ApiError`: 403.
        """
        value = review.object or {}
        if review.kind.resource != "pods" or review.subresource:
            return value
        spec = dict(value.get("spec") or {})
        if review.operation == "CREATE":
            why = self._account(spec, review.namespace) or self._priority(spec)
            if why:
                raise forbidden("pods", "", review.name, why)
        else:
            before = (review.old or {}).get("spec") or {}
            for key in ("priority", "preemptionPolicy"):
                if key in before:
                    spec.setdefault(key, before[key])
        _tolerate(spec)
        return {**value, "spec": spec}

    def _account(self, spec: dict[str, Any], namespace: str) -> str:
        """Sets the service account; the reason against it, if there is one."""
        name = spec.setdefault("serviceAccountName", "default")
        spec["serviceAccount"] = name
        if name != "default" and self._store.get("serviceaccounts", namespace, name) is None:
            return (
                f'error looking up service account {namespace}/{name}: serviceaccount "{name}" '
                "not found"
            )
        return ""

    def _priority(self, spec: dict[str, Any]) -> str:
        """Sets the priority by its class; the reason against the given one, if there is one."""
        name = spec.get("priorityClassName", "")
        found = self._store.get(CLASSES, "", name) if name else self._default_class()
        if name and found is None:
            return f"no PriorityClass with name {name} was found"
        if found is not None:
            spec["priorityClassName"] = found.name
        chosen = found.value if found is not None else {}
        value = chosen.get("value", 0)
        policy = chosen.get("preemptionPolicy", "PreemptLowerPriority")
        if spec.get("priority", value) != value:
            return (
                f"the integer value of priority ({spec['priority']}) must not be provided in pod "
                f"spec; priority admission controller computed {value} from the given "
                "PriorityClass name"
            )
        spec["priority"] = value
        given = spec.setdefault("preemptionPolicy", policy)
        if given != policy:
            return (
                f"the string value of PreemptionPolicy ({given}) must not be provided in pod spec; "
                f"priority admission controller computed {policy} from the given PriorityClass name"
            )
        return ""

    def default_class(self, review: Review) -> None:
        """Allows only one class as the global default. Raises `Refused`."""
        if review.kind.resource != CLASSES or not (review.object or {}).get("globalDefault"):
            return
        for record in self._store.all(CLASSES):
            if record.value.get("globalDefault") and record.name != review.name:
                raise Refused(
                    f"PriorityClass {record.name} is already marked as default. Only one default "
                    "can exist"
                )

    def _default_class(self) -> Record | None:
        """The class for pods without one: the global default with the lowest value."""
        chosen = [one for one in self._store.all(CLASSES) if one.value.get("globalDefault")]
        return min(chosen, key=lambda one: one.value.get("value", 0), default=None)

    def disruption(self, pod: Record) -> ApiError | None:
        """Whether a disruption budget forbids the eviction of a pod now.

        It never forbids that of a pod that has not started, has ended or is in deletion. A running pod that
        several budgets select is never evicted.
        """
        phase = (pod.value.get("status") or {}).get("phase")
        if phase in _NOT_RUNNING or pod.metadata.get("deletionTimestamp"):
            return None
        mine = [
            record.value
            for record in self._store.all("poddisruptionbudgets.policy", pod.namespace)
            if (selector := (record.value.get("spec") or {}).get("selector")) is not None
            and parse_labels(selector).matches(pod.labels)
        ]
        if len(mine) > 1:
            return ApiError(
                500,
                "InternalError",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource "
                "does not support.",
            )
        if mine and (mine[0].get("status") or {}).get("disruptionsAllowed") == 0:
            return too_many(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                10,
                [{"reason": "DisruptionBudget", "message": "the disruption budget allows none"}],
            )
        return None


def _tolerate(spec: dict[str, Any]) -> None:
    have = list(spec.get("tolerations") or ())
    known = {one.get("key", "") for one in have if one.get("effect", "") in ("", "NoExecute")}
    if "" not in known:
        have += [{"key": taint, **_FOR_A_WHILE} for taint in _TAINTS if taint not in known]
    spec["tolerations"] = have
