"""Rules of single fields, in every struct that has them: enumerations, bounds, kinds of name.

One table for all built-in kinds. The other modules have the rules that depend on more than one field.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems
from partage.wire.field_types import Type

Rule = Callable[[Any, str, Problems], None]


def _one_of(*known: str) -> Rule:
    def rule(value: Any, where: str, problems: Problems) -> None:
        if value is not None and value not in known:
            problems.unsupported(where, value, known)

    return rule


def _between(least: int, most: int) -> Rule:
    def rule(value: Any, where: str, problems: Problems) -> None:
        if isinstance(value, int) and not least <= value <= most:
            problems.invalid(where, value, f"must be between {least} and {most}, inclusive")

    return rule


def _not_negative(value: Any, where: str, problems: Problems) -> None:
    if isinstance(value, int) and value < 0:
        problems.invalid(where, value, "must be greater than or equal to 0")


def _share(value: Any, where: str, problems: Problems) -> None:
    """A number that is not negative, or a percentage."""
    if isinstance(value, str) and not _is_percent(value):
        problems.invalid(where, value, _PERCENT_TEXT)
    else:
        _not_negative(value, where, problems)


def _part(value: Any, where: str, problems: Problems) -> None:
    """A number that is not negative, or a percentage up to 100."""
    _share(value, where, problems)
    if isinstance(value, str) and _is_percent(value) and int(value[:-1]) > 100:
        problems.invalid(where, value, "must not be greater than 100%")


def _required(why: str = "") -> Rule:
    def rule(value: Any, where: str, problems: Problems) -> None:
        if not value:
            problems.required(where, why)

    return rule


def _named(check: Callable[[str], list[str]], *, required: bool = False) -> Rule:
    def rule(value: Any, where: str, problems: Problems) -> None:
        if required and not value:
            problems.required(where)
        for why in check(problems.name(value)) if value else ():
            problems.invalid(where, value, why)

    return rule


# A controller could not use longer numbers.
_is_percent = re.compile("[0-9]{1,9}%").fullmatch
_PERCENT_TEXT: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)
_EFFECTS: Final = _one_of("NoSchedule", "PreferNoSchedule", "NoExecute")
_ID: Final = _between(0, 2**31 - 1)
_PORT: Final = _between(1, 65535)
_ALLOCATION: Final = _one_of("All", "ExactCount")
_CLASS: Final = _named(naming.subdomain, required=True)
_SUBDOMAIN: Final = _named(naming.subdomain)
RULES: Final[Mapping[str, Rule]] = {
    "Container.imagePullPolicy": _one_of("Always", "IfNotPresent", "Never"),
    "Container.restartPolicy": _one_of("Always", "Never", "OnFailure"),
    "Container.terminationMessagePolicy": _one_of("File", "FallbackToLogsOnError"),
    "ContainerPort.hostPort": _PORT,
    "ContainerPort.name": _named(naming.port_name),
    "ContainerPort.protocol": _one_of("SCTP", "TCP", "UDP"),
    "CronJobSpec.concurrencyPolicy": _one_of("Allow", "Forbid", "Replace"),
    "DaemonSetSpec.minReadySeconds": _not_negative,
    "DeploymentSpec.minReadySeconds": _not_negative,
    "DeploymentSpec.replicas": _not_negative,
    "DeploymentSpec.revisionHistoryLimit": _not_negative,
    "Device.name": _named(naming.domain_label),
    "DeviceSelector.cel": _required(),
    "DeviceSubRequest.allocationMode": _ALLOCATION,
    "DeviceSubRequest.deviceClassName": _CLASS,
    "DeviceToleration.effect": _EFFECTS,
    "DeviceToleration.operator": _one_of("Equal", "Exists"),
    "ExactDeviceRequest.allocationMode": _ALLOCATION,
    "ExactDeviceRequest.deviceClassName": _CLASS,
    "JobSpec.activeDeadlineSeconds": _not_negative,
    "JobSpec.backoffLimit": _not_negative,
    "JobSpec.completions": _not_negative,
    "JobSpec.parallelism": _not_negative,
    "PodReadinessGate.conditionType": _named(naming.qualified_name),
    "PodResourceClaim.name": _named(naming.domain_label),
    "PodResourceClaim.resourceClaimName": _SUBDOMAIN,
    "PodResourceClaim.resourceClaimTemplateName": _SUBDOMAIN,
    "PodSecurityContext.fsGroup": _ID,
    "PodSecurityContext.runAsGroup": _ID,
    "PodSecurityContext.runAsUser": _ID,
    "PodSpec.activeDeadlineSeconds": _between(1, 2**31 - 1),
    "PodSpec.dnsPolicy": _one_of("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    "PodSpec.hostname": _named(naming.domain_label),
    "PodSpec.nodeName": _SUBDOMAIN,
    "PodSpec.priorityClassName": _SUBDOMAIN,
    "PodSpec.restartPolicy": _one_of("Always", "OnFailure", "Never"),
    "PodSpec.runtimeClassName": _SUBDOMAIN,
    "PodSpec.serviceAccountName": _SUBDOMAIN,
    "PodSpec.subdomain": _named(naming.domain_label),
    "LeaseSpec.leaseTransitions": _not_negative,
    "OpaqueDeviceConfiguration.driver": _CLASS,
    "PersistentVolumeClaimSpec.accessModes": _required("at least 1 access mode is required"),
    "PodDisruptionBudgetSpec.maxUnavailable": _part,
    "PodDisruptionBudgetSpec.minAvailable": _part,
    "PolicyRule.verbs": _required("verbs must contain at least one value"),
    "PriorityClass.preemptionPolicy": _one_of("PreemptLowerPriority", "Never"),
    "Probe.failureThreshold": _not_negative,
    "Probe.initialDelaySeconds": _not_negative,
    "Probe.periodSeconds": _not_negative,
    "Probe.timeoutSeconds": _not_negative,
    "ReplicaSetSpec.minReadySeconds": _not_negative,
    "ReplicaSetSpec.replicas": _not_negative,
    "ResourcePool.name": _required(),
    "ResourceSliceSpec.driver": _CLASS,
    "RollingUpdateDeployment.maxSurge": _share,
    "RollingUpdateDeployment.maxUnavailable": _part,
    "RuntimeClass.handler": _named(naming.domain_label),
    "ScaleSpec.replicas": _not_negative,
    "SeccompProfile.type": _one_of("Localhost", "RuntimeDefault", "Unconfined"),
    "SecurityContext.runAsGroup": _ID,
    "SecurityContext.runAsUser": _ID,
    "ServicePort.protocol": _one_of("SCTP", "TCP", "UDP"),
    "ServiceSpec.sessionAffinity": _one_of("ClientIP", "None"),
    "ServiceSpec.type": _one_of("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"),
    "StatefulSetSpec.replicas": _not_negative,
    "StorageClass.provisioner": _required(),
    "Toleration.effect": _EFFECTS,
    "TopologySpreadConstraint.whenUnsatisfiable": _one_of("DoNotSchedule", "ScheduleAnyway"),
}
"""By struct and field."""


def check_fields(value: Any, type_: Type, where: str, problems: Problems) -> None:
    """Reports every field of an object that breaks its own rule."""
    if type_.form == "struct" and isinstance(value, Mapping):
        for name, rule, of in _checked(type_):
            inner = value.get(name)
            if rule is None and inner is None:
                continue
            here = f"{where}.{name}" if where else name
            if rule is not None:
                rule(inner, here, problems)
            if of is not None and inner is not None:
                check_fields(inner, of, here, problems)
    elif type_.item is not None and isinstance(value, list) and _ruled(type_.item):
        for index, inner in enumerate(value):
            check_fields(inner, type_.item, f"{where}[{index}]", problems)


@lru_cache(maxsize=4096)
def _checked(type_: Type) -> Sequence[tuple[str, Rule | None, Type | None]]:
    """The fields of a struct that have a rule or rules within, with both; most have none."""
    struct = type_.name.rpartition(".")[2]
    found = (
        (name, RULES.get(f"{struct}.{name}"), field.type if _ruled(field.type) else None)
        for name, field in type_.fields.items()
    )
    return [one for one in found if one[1] is not None or one[2] is not None]


@lru_cache(maxsize=4096)
def _ruled(type_: Type) -> bool:
    """Whether any part of a type has a rule."""
    seen: set[int] = set()
    todo = [type_]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        struct = one.name.rpartition(".")[2]
        if any(f"{struct}.{name}" in RULES for name in one.fields):
            return True
        todo += [field.type for field in one.fields.values()]
        todo += [one.item] if one.item is not None else []
    return False
