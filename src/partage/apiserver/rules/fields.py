"""Rules of structs and of their fields, wherever an object has them: enumerations, bounds, kinds of name.

One table for all built-in kinds. `rules.table` has the rules of whole objects.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems
from partage.apiserver.rules import containers, scheduling
from partage.apiserver.rules.pods import check_volume
from partage.apiserver.rules.resources import check_requirements
from partage.apiserver.rules.structs import visit
from partage.apiserver.rules.workloads import check_deployment
from partage.wire.field_types import Type

Rule = Callable[[Any, str, Problems], None]


def _one_of(*known: str) -> Rule:
    def rule(value: Any, where: str, problems: Problems) -> None:
        if value is not None and value not in known:
            problems.unsupported(where, value, known)

    return rule


def _between(least: int, most: float, why: str = "", absent: Any = None) -> Rule:
    """A number within bounds; an absent one counts as `absent`."""

    def rule(value: Any, where: str, problems: Problems) -> None:
        number = absent if value is None else value
        if isinstance(number, int) and not least <= number <= most:
            told = why or f"must be between {least} and {most}, inclusive"
            problems.invalid(where, number, told)

    return rule


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


def _label(*, required: bool) -> Rule:
    """A label of a domain, of lower-case letters everywhere."""

    def rule(value: Any, where: str, problems: Problems) -> None:
        if required and not value:
            problems.required(where)
            return
        for why in naming.domain_label(value or ""):
            problems.invalid(where, value or "", why)

    return rule


def _unique(key: str) -> Rule:
    """A list whose items have different values of a field."""

    def rule(value: Any, where: str, problems: Problems) -> None:
        seen: set[str] = set()
        for index, one in enumerate(value or ()):
            if name := one.get(key):
                problems.once(f"{where}[{index}].{key}", name, seen)

    return rule


def _exactly_one(*names: str) -> Rule:
    """A struct that sets one field of several."""
    among = (" or " if len(names) == 2 else ", ").join(f"`{name}`" for name in names)

    def rule(value: Any, where: str, problems: Problems) -> None:
        given = [f"`{name}`" for name in names if value.get(name)]
        if not given:
            problems.required(where, f"exactly one of {among} is required")
        elif len(given) > 1:
            why = f"exactly one of {among} is required, but multiple fields are set"
            problems.invalid(where, f"{{{', '.join(given)}}}", why)

    return rule


def _count(one: Any, where: str, problems: Problems) -> None:
    """A request for devices whose number goes with its mode."""
    count = one.get("count", 1)
    if one.get("allocationMode") == "All" and "count" in one:
        why = "must not be specified when allocationMode is 'All'"
        problems.invalid(f"{where}.count", count, why)
    elif count <= 0:
        problems.invalid(f"{where}.count", count, "must be greater than zero")


def _container_port(value: Any, where: str, problems: Problems) -> None:
    (_PORT if value else _required())(value, where, problems)


def _budget(spec: Any, where: str, problems: Problems) -> None:
    """A budget of disruptions by one of its two numbers."""
    if {"minAvailable", "maxUnavailable"} <= set(spec):
        problems.invalid(where, spec, "minAvailable and maxUnavailable cannot be both set")


# A controller could not use longer numbers.
_is_percent = re.compile("[0-9]{1,9}%").fullmatch
_PERCENT_TEXT: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)
_not_negative: Final = _between(0, math.inf, "must be greater than or equal to 0")
_EFFECTS: Final = _one_of(*scheduling.EFFECTS)
_OPERATORS: Final = _one_of("Equal", "Exists")
_WEIGHT: Final = _between(1, 100, "must be in the range 1-100", absent=0)
_NODE_PORT: Final = (
    "provided port is not in the valid range. The range of valid ports is 30000-32767"
)
_ID: Final = _between(0, 2**31 - 1)
_PORT: Final = _between(1, 65535)
_ALLOCATION: Final = _one_of("All", "ExactCount")
_CLASS: Final = _named(naming.subdomain, required=True)
_SUBDOMAIN: Final = _named(naming.subdomain)
RULES: Final[Mapping[str, Rule]] = {
    "Container.imagePullPolicy": _one_of("Always", "IfNotPresent", "Never"),
    "Container.image": containers.check_image,
    "Container.name": _label(required=True),
    "Container.ports": _unique("name"),
    "Container.resources": check_requirements,
    "Container.restartPolicy": _one_of("Always", "Never", "OnFailure"),
    "Container.terminationMessagePolicy": _one_of("File", "FallbackToLogsOnError"),
    "ContainerPort.containerPort": _container_port,
    "ContainerPort.hostPort": _PORT,
    "ContainerPort.name": _named(naming.port_name),
    "ContainerPort.protocol": _one_of("SCTP", "TCP", "UDP"),
    "CronJobSpec.concurrencyPolicy": _one_of("Allow", "Forbid", "Replace"),
    "DaemonSetSpec.minReadySeconds": _not_negative,
    "DeploymentSpec": check_deployment,
    "DeploymentSpec.minReadySeconds": _not_negative,
    "DeploymentSpec.replicas": _not_negative,
    "DeploymentSpec.revisionHistoryLimit": _not_negative,
    "Device.name": _named(naming.domain_label),
    "DeviceRequest": _exactly_one("exactly", "firstAvailable"),
    "DeviceRequest.name": _label(required=False),
    "DeviceSelector.cel": _required(),
    "DeviceSubRequest": _count,
    "DeviceSubRequest.allocationMode": _ALLOCATION,
    "DeviceSubRequest.deviceClassName": _CLASS,
    "DeviceToleration.effect": _EFFECTS,
    "DeviceToleration.operator": _OPERATORS,
    "EnvVar": containers.check_variable,
    "ExactDeviceRequest": _count,
    "ExactDeviceRequest.allocationMode": _ALLOCATION,
    "ExactDeviceRequest.deviceClassName": _CLASS,
    "JobSpec.activeDeadlineSeconds": _not_negative,
    "JobSpec.backoffLimit": _not_negative,
    "JobSpec.completions": _not_negative,
    "JobSpec.parallelism": _not_negative,
    "LabelSelector.matchLabels": naming.check_labels,
    "LeaseSpec.leaseDurationSeconds": _between(1, math.inf, "must be greater than 0"),
    "LeaseSpec.leaseTransitions": _not_negative,
    "NodeSelector.nodeSelectorTerms": _required("must have at least one node selector term"),
    "NodeSelectorRequirement": scheduling.check_expression,
    "PodAffinityTerm.topologyKey": scheduling.check_topology,
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
    "PodSpec.nodeSelector": naming.check_labels,
    "PodSpec.priorityClassName": _SUBDOMAIN,
    "PodSpec.restartPolicy": _one_of("Always", "OnFailure", "Never"),
    "PodSpec.runtimeClassName": _SUBDOMAIN,
    "PodSpec.serviceAccountName": _SUBDOMAIN,
    "PodSpec.resourceClaims": _unique("name"),
    "PodSpec.schedulingGates": scheduling.check_gates,
    "PodSpec.subdomain": _named(naming.domain_label),
    "PodSpec.topologySpreadConstraints": scheduling.check_spread,
    "PodSpec.volumes": _unique("name"),
    "OpaqueDeviceConfiguration.driver": _CLASS,
    "PersistentVolumeClaimSpec.accessModes": _required("at least 1 access mode is required"),
    "PodDisruptionBudgetSpec": _budget,
    "PodDisruptionBudgetSpec.maxUnavailable": _part,
    "PodDisruptionBudgetSpec.minAvailable": _part,
    "PolicyRule.verbs": _required("verbs must contain at least one value"),
    "PreferredSchedulingTerm.weight": _WEIGHT,
    "PriorityClass.preemptionPolicy": _one_of("PreemptLowerPriority", "Never"),
    "Probe": containers.check_probe,
    "Probe.failureThreshold": _not_negative,
    "Probe.initialDelaySeconds": _not_negative,
    "Probe.periodSeconds": _not_negative,
    "Probe.timeoutSeconds": _not_negative,
    "ReplicaSetSpec.minReadySeconds": _not_negative,
    "ReplicaSetSpec.replicas": _not_negative,
    "ResourcePool.name": _required(),
    "ResourceSliceSpec": _exactly_one(
        "nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"
    ),
    "ResourceSliceSpec.driver": _CLASS,
    "RollingUpdateDeployment.maxSurge": _share,
    "RollingUpdateDeployment.maxUnavailable": _part,
    "RuntimeClass.handler": _named(naming.domain_label),
    "ScaleSpec.replicas": _not_negative,
    "SeccompProfile.type": _one_of("Localhost", "RuntimeDefault", "Unconfined"),
    "SecurityContext.runAsGroup": _ID,
    "SecurityContext.runAsUser": _ID,
    "ServicePort.nodePort": _between(30000, 32767, _NODE_PORT),
    "ServicePort.port": _between(1, 65535, absent=0),
    "ServicePort.protocol": _one_of("SCTP", "TCP", "UDP"),
    "ServicePort.targetPort": _PORT,
    "ServiceSpec.selector": naming.check_labels,
    "ServiceSpec.sessionAffinity": _one_of("ClientIP", "None"),
    "ServiceSpec.type": _one_of("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"),
    "StatefulSetSpec.replicas": _not_negative,
    "StorageClass.provisioner": _required(),
    "Toleration": scheduling.check_toleration,
    "Toleration.effect": _EFFECTS,
    "Toleration.operator": _OPERATORS,
    "TopologySpreadConstraint.maxSkew": _between(1, math.inf, "must be greater than zero", 0),
    "TopologySpreadConstraint.topologyKey": _required("can not be empty"),
    "TopologySpreadConstraint.whenUnsatisfiable": _one_of("DoNotSchedule", "ScheduleAnyway"),
    "Volume": check_volume,
    "Volume.name": _label(required=True),
    "WeightedPodAffinityTerm.weight": _WEIGHT,
}
"""By struct, or struct and field."""
_RULED: Final = frozenset(key.partition(".")[0] for key in RULES)


def check_fields(value: Any, type_: Type, where: str, problems: Problems) -> None:
    """Reports everything in an object that breaks the rule of its struct or field."""

    def act(name: str, struct: dict[str, Any], at: str) -> None:
        for field, rule in _rules(name):
            if field:
                rule(struct.get(field), f"{at}.{field}" if at else field, problems)
            else:
                rule(struct, at, problems)

    visit(value, type_, _RULED, act, where)


@cache
def _rules(name: str) -> Sequence[tuple[str, Rule]]:
    """The rules of a struct, by field; its own without one."""
    found = ((key.partition("."), rule) for key, rule in RULES.items())
    return [(field, rule) for (struct, _dot, field), rule in found if struct == name]
