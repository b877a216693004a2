"""ResourceQuota: how much objects use, and whether one more fits.

Like the genuine server, it counts `requests.` for CPU, memory, ephemeral storage, huge pages and extended
resources, and `limits.` for the first three. It does not count `kubernetes.io/*` names.
"""

from collections.abc import Mapping
from typing import Any, Final

from partage.apiserver.rules.pods import quality
from partage.apiserver.rules.resources import CONTAINER, COUNTED, amount, is_extended
from partage.apiserver.storage import Store
from partage.model.quantity import NANO, Quantity
from partage.model.request import Phase
from partage.vendors.base import ContainerView
from partage.wire.demand import effective

_QUOTAS: Final = "resourcequotas"
_DONE: Final = ("Failed", "Succeeded")
Usage = dict[str, Quantity]


def usage(resource: str, value: Mapping[str, Any]) -> Usage:
    """One object's use, by the names of quotas."""
    one = Quantity(NANO)
    found: Usage = {f"count/{resource}": one}
    if resource == "pods":
        if (value.get("status") or {}).get("phase") in _DONE:
            return found
        for name, quantity in _requested(value.get("spec") or {}, "requests").items():
            if name in CONTAINER:
                found[name] = found[f"requests.{name}"] = quantity
            elif is_extended(name) or name.startswith("hugepages-"):
                found[f"requests.{name}"] = quantity
        for name, quantity in _requested(value.get("spec") or {}, "limits").items():
            if name in CONTAINER:
                found[f"limits.{name}"] = quantity
    if resource in COUNTED:
        found[resource] = one
    return found


def _requested(spec: Mapping[str, Any], group: str) -> Usage:
    """A pod's `requests`, or its `limits` by the same arithmetic."""
    starting = [
        (one, Phase.SIDECAR if one.get("restartPolicy") == "Always" else Phase.INIT)
        for one in spec.get("initContainers") or ()
    ]
    return effective(
        ContainerView("", phase, {name: amount(text) for name, text in amounts.items()})
        for one, phase in (*starting, *((one, Phase.MAIN) for one in spec.get("containers") or ()))
        if (amounts := (one.get("resources") or {}).get(group))
    )


def matches(quota: Mapping[str, Any], resource: str, value: Mapping[str, Any]) -> bool:
    """Whether a quota's scopes cover an object."""
    spec = quota.get("spec") or {}
    terms = [(scope, "Exists", ()) for scope in spec.get("scopes") or ()]
    terms.extend(
        (one.get("scopeName", ""), one.get("operator", ""), tuple(one.get("values") or ()))
        for one in (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    )
    if not terms:
        return True
    return resource == "pods" and all(_in_scope(value, *term) for term in terms)


def _in_scope(pod: Mapping[str, Any], scope: str, operator: str, values: tuple[str, ...]) -> bool:
    spec = pod.get("spec") or {}
    if scope == "PriorityClass":
        name = spec.get("priorityClassName", "")
        return {
            "In": name in values,
            "NotIn": name not in values,
            "Exists": bool(name),
            "DoesNotExist": not name,
        }.get(operator, False)
    ends = "activeDeadlineSeconds" in spec
    best = quality(spec) == "BestEffort"
    known = {
        "Terminating": ends,
        "NotTerminating": not ends,
        "BestEffort": best,
        "NotBestEffort": not best,
    }
    return known.get(scope, False)


def totals(store: Store, quota: Mapping[str, Any]) -> Usage:
    """The present use of a quota's namespace, for each name that the quota limits."""
    namespace = quota["metadata"]["namespace"]
    hard = (quota.get("spec") or {}).get("hard") or {}
    found: Usage = {name: Quantity(0, amount(text).format) for name, text in hard.items()}
    for resource in _resources(store, hard):
        for record in store.all(resource, namespace):
            if matches(quota, resource, record.value):
                for name, quantity in usage(resource, record.value).items():
                    if have := found.get(name):
                        found[name] = Quantity(have.nano + quantity.nano, have.format)
    return found


def _resources(store: Store, hard: Mapping[str, Any]) -> set[str]:
    """The resources whose objects a quota counts."""
    found = {name.removeprefix("count/") for name in hard if name.startswith("count/")}
    found |= {name for name in hard if name in COUNTED}
    return (found | {"pods"}) & set(store.resources())


def exceeded(store: Store, namespace: str, resource: str, value: Mapping[str, Any]) -> str | None:
    """The reason why one more object exceeds its namespace's quotas; None if it fits."""
    for record in store.all(_QUOTAS, namespace):
        quota = record.value
        hard = (quota.get("spec") or {}).get("hard") or {}
        if not matches(quota, resource, value):
            continue
        asked = {n: q for n, q in usage(resource, value).items() if n in hard}
        if resource == "pods":
            missing = _unspecified(value, hard)
            if missing:
                return f"failed quota: {record.name}: must specify {missing}"
        if not asked:
            continue
        used = totals(store, quota)
        over = sorted(
            n for n, q in asked.items() if q.nano and used[n].nano + q.nano > amount(hard[n]).nano
        )
        if over:
            return (
                f"exceeded quota: {record.name}, "
                f"requested: {','.join(f'{n}={asked[n]}' for n in over)}, "
                f"used: {','.join(f'{n}={used[n]}' for n in over)}, "
                f"limited: {','.join(f'{n}={hard[n]}' for n in over)}"
            )
    return None


def _unspecified(pod: Mapping[str, Any], hard: Mapping[str, Any]) -> str:
    """Limited amounts that containers do not specify, with these containers."""
    found: dict[str, list[str]] = {}
    for name in sorted(hard):
        group, _dot, plain = name.rpartition(".")
        if plain not in CONTAINER or group not in ("", "requests", "limits"):
            continue
        for container in (pod.get("spec") or {}).get("containers") or ():
            given = (container.get("resources") or {}).get(group or "requests") or {}
            if plain not in given:
                found.setdefault(name, []).append(container.get("name", ""))
    return "; ".join(f"{name} for: {','.join(who)}" for name, who in found.items())
