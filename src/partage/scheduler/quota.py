"""Namespace quotas for device keys: the used amounts, and which requests exceed a quota.

Quotas count the amounts that pods declare (`requests.koordinator.sh/gpu-core`) and, for keys that a protocol meters,
the amounts granted (`limits.nvidia.com/gpumem` in MiB; docs/sources/hami.md 4.6). An explicit 0 blocks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partage.model.allocation import Charge, Grant, charges_of
from partage.model.pod import Pod
from partage.model.request import PodRequest

_MOST_CHANGES: Final = 4096


@dataclass(frozen=True, slots=True)
class Quota:
    """One ResourceQuota: its name and its hard limits by key."""

    name: str
    hard: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Quotas:
    """All quotas by namespace."""

    by_namespace: Mapping[str, tuple[Quota, ...]] = field(default_factory=dict)

    def keys(self, namespace: str) -> frozenset[str]:
        """Keys that the namespace's quotas limit."""
        return frozenset(k for q in self.by_namespace.get(namespace, ()) for k, _ in q.hard)


def metered(request: PodRequest, grants: Sequence[Grant]) -> dict[str, int]:
    """The amounts of the request's metered keys in its grants, rounded up to the key's unit.

    Containers that run at different times count by maximum, as in the books.
    """
    metering = [group for group in request.groups if group.metered]
    counted: dict[tuple[str, str, int], list[Grant]] = {}
    for group in metering:
        names = [container.name for container in group.containers]
        protocol, type_ = group.protocol, group.request.type
        mine = [
            grant
            for grant in grants
            if grant.container in names and grant.protocol == protocol and grant.type is type_
        ]
        for meter in group.metered:
            counted[meter] = counted[meter] + mine if meter in counted else mine
    totals: dict[str, int] = {}
    charged: dict[int, tuple[Charge, ...]] = {}  # mostly all keys count the same grants
    for (key, dimension, unit), mine in counted.items():
        charges = charged.get(id(mine))
        if charges is None:
            charges = charged[id(mine)] = charges_of(mine)
        total = 0
        for charge in charges:
            total += charge.memory_bytes if dimension == "memory" else charge.core_milli
        totals[key] = totals.get(key, 0) - (-total // unit)
    return totals


def amounts(pod: Pod, grants: tuple[Grant, ...]) -> Mapping[str, int]:
    """The pod's amounts against its namespace's quota, by key, once it has its grants."""
    for group in pod.request.groups:
        if group.metered:
            break
    else:
        return pod.quota
    amounts = metered(pod.request, grants)
    for key, amount in pod.quota.items():
        amounts[key] = amounts.get(key, 0) + amount
    return amounts


@dataclass(slots=True)
class _Change:
    """How many more pods use these amounts than the sums contain; keeps their identity in use."""

    amounts: Mapping[str, int]
    pods: int


class QuotaBook:
    """The amounts that each namespace uses, by pod.

    Pods of one template share their amounts. So changes are first counted by template and added up only on request;
    most namespaces have no quota and are never added up.
    """

    def __init__(self) -> None:
        self.quotas = Quotas()
        self._of: dict[str, tuple[str, Mapping[str, int]]] = {}
        self._used: dict[str, Counter[str]] = {}
        self._changes: dict[str, dict[int, _Change]] = {}
        self._pods = Counter[str]()

    def apply(self, uid: str, namespace: str, amounts: Mapping[str, int]) -> None:
        """Count a pod; another count replaces the earlier one."""
        if uid in self._of:
            self.undo(uid)
        if not amounts:
            return
        self._of[uid] = (namespace, amounts)
        self._pods[namespace] += 1
        self._change(namespace, amounts, 1)

    def take_in(self, pod: Pod, grants: tuple[Grant, ...]) -> None:
        """Count a pod that holds these grants."""
        self.apply(pod.uid, pod.namespace, amounts(pod, grants))

    def undo(self, uid: str) -> None:
        """Stop counting a pod."""
        entry = self._of.pop(uid, None)
        if entry is None:
            return
        namespace, amounts = entry
        self._pods[namespace] -= 1
        if self._pods[namespace]:
            self._change(namespace, amounts, -1)
        else:  # namespaces are deleted too
            for sums in (self._pods, self._changes, self._used):
                sums.pop(namespace, None)

    def _change(self, namespace: str, amounts: Mapping[str, int], pods: int) -> None:
        changes = self._changes.get(namespace)
        if changes is None:
            changes = self._changes[namespace] = {}
        change = changes.get(id(amounts))
        if change is None:
            changes[id(amounts)] = _Change(amounts, pods)
        else:
            change.pods += pods
        if len(changes) > _MOST_CHANGES:
            self.used(namespace)

    @property
    def counted(self) -> dict[str, tuple[str, Mapping[str, int]]]:
        """The counted amounts of each pod, by uid: its namespace and amounts."""
        return dict(self._of)

    def used(self, namespace: str) -> Mapping[str, int]:
        """The namespace's used amounts, by key."""
        changes = self._changes.pop(namespace, None)
        if changes is None:
            return self._used.get(namespace, {})
        used = self._used.setdefault(namespace, Counter())
        for change in changes.values():
            if change.pods:
                for key, amount in change.amounts.items():
                    used[key] += amount * change.pods
        return used

    def excess(self, namespace: str, amounts: Mapping[str, int]) -> str:
        """The quota that the pod would exceed, as a sentence; empty if none."""
        quotas = self.quotas.by_namespace.get(namespace)
        if not quotas:
            return ""
        used = self.used(namespace)
        for quota in quotas:
            for key, hard in quota.hard:
                asked = amounts.get(key, 0)
                if asked and used.get(key, 0) + asked > hard:
                    return (
                        f"quota {quota.name} of namespace {namespace}: {key} asked {asked}, "
                        f"used {used.get(key, 0)}, limited to {hard}"
                    )
        return ""
