"""The server's defaults, by struct, wherever an object has it. One table for all built-in kinds."""

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

from partage.apiserver.autoscaling import V1
from partage.apiserver.definitions import fill_definition
from partage.apiserver.rules.resources import fill_requests
from partage.apiserver.rules.structs import visit
from partage.wire.field_types import Type

Value = dict[str, Any]
_RBAC: Final = "rbac.authorization.k8s.io"


def fill(value: Value, /, *path: str, **defaults: Any) -> Value:
    """Adds absent defaults to the part of an object at a path, in place; creates an absent part."""
    for name in path:
        value = value.setdefault(name, {})
    for name, default in defaults.items():
        if name not in value:
            value[name] = default.copy() if isinstance(default, dict | list) else default
    return value


def complete(value: Value, type_: Type) -> None:
    """Adds the defaults of an object's structs, in place."""

    def act(name: str, struct: Value, _where: str) -> None:
        DEFAULTS[name](struct)

    visit(value, type_, _FILLED, act)


def _of(**defaults: Any) -> Callable[[Value], object]:
    return lambda value: fill(value, **defaults)


def _rolling(**defaults: Any) -> Callable[[Value], object]:
    """The way of updates, one after another with these settings if no other is chosen."""

    def filled(value: Value) -> None:
        if fill(value, type="RollingUpdate")["type"] == "RollingUpdate":
            fill(value, "rollingUpdate", **defaults)

    return filled


def _containers(spec: Mapping[str, Any]) -> list[Value]:
    groups = ("initContainers", "containers", "ephemeralContainers")
    return [one for group in groups for one in spec.get(group) or ()]


def _pod(pod: Value) -> None:
    """What templates do not have: requests from limits."""
    for container in _containers(fill(pod, "spec", enableServiceLinks=True)):
        fill_requests(container)


def _pod_spec(spec: Value) -> None:
    fill(spec, restartPolicy="Always", dnsPolicy="ClusterFirst", schedulerName="default-scheduler")
    fill(spec, securityContext={}, terminationGracePeriodSeconds=30)
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for container in _containers(spec) if spec.get("hostNetwork") else ():
        for port in container.get("ports") or ():
            port.setdefault("hostPort", port.get("containerPort", 0))


def _container(container: Value) -> None:
    fill(container, resources={}, terminationMessagePath="/dev/termination-log")
    whole = container.get("image", "")
    tag = whole.rpartition("/")[2].partition("@")[0].partition(":")[2]
    moving = tag in ("", "latest") and "@" not in whole
    policy = "Always" if moving else "IfNotPresent"
    fill(container, terminationMessagePolicy="File", imagePullPolicy=policy)


def _volume(volume: Value) -> None:
    if set(volume) == {"name"}:
        volume["emptyDir"] = {}


def _job(job: Value) -> None:
    spec = fill(job, "spec")
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    fill(spec, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False)
    fill(spec, manualSelector=False, podReplacementPolicy="TerminatingOrFailed")


def _replication_controller(value: Value) -> None:
    """Without a selector it has its template's labels."""
    spec = fill(value, "spec")
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        spec.setdefault("selector", dict(labels))
        value["metadata"].setdefault("labels", dict(labels))


def _autoscaler(value: Value) -> None:
    """Version 1 has no metrics."""
    spec = fill(value, "spec", minReplicas=1)
    if value.get("apiVersion") != V1 and not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]


def _object_with_spec(value: Value) -> None:
    """Fills the spec of an object, and not of a struct of the same name that stands within one."""
    if "kind" in value:
        fill(value, "spec")


def _event(value: Value) -> None:
    """What clients need of an event of the core group, and other clients leave out."""
    if value.get("apiVersion") == "v1":
        fill(value, reportingComponent="", reportingInstance="")


def _secret(value: Value) -> None:
    """Moves `stringData` into `data`."""
    texts = value.pop("stringData", None)
    if texts:
        coded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        value["data"] = {**(value.get("data") or {}), **coded}
    value.setdefault("type", "Opaque")


def _node(value: Value) -> None:
    status = fill(value, "status")
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _service_spec(spec: Value) -> None:
    fill(spec, type="ClusterIP", sessionAffinity="None")
    if spec["type"] != "ExternalName":
        fill(spec, internalTrafficPolicy="Cluster", ipFamilies=["IPv4"])
        fill(spec, ipFamilyPolicy="SingleStack")


def _network_policy(spec: Value) -> None:
    fill(spec, policyTypes=["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _subject(subject: Value) -> None:
    if subject.get("kind") in ("User", "Group"):
        subject.setdefault("apiGroup", _RBAC)


def _devices(request: Value) -> None:
    if fill(request, allocationMode="ExactCount")["allocationMode"] == "ExactCount":
        request.setdefault("count", 1)


_OF_VOLUMES: Final = ("ConfigMap", "DownwardAPI", "Projected", "Secret")
_WITH_A_SPEC: Final = (
    *("CronJob", "DaemonSet", "Deployment", "NetworkPolicy", "ReplicaSet", "Service"),
    *("ResourceClaimTemplate", "ResourceClaimTemplateSpec", "StatefulSet"),
)
_WEBHOOK: Final[Mapping[str, Any]] = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "timeoutSeconds": 10,
    "namespaceSelector": {},
    "objectSelector": {},
}
DEFAULTS: Final[Mapping[str, Callable[[Value], object]]] = {
    **{f"{source}VolumeSource": _of(defaultMode=0o644) for source in _OF_VOLUMES},
    **dict.fromkeys(_WITH_A_SPEC, _of(spec={})),
    "Container": _container,
    "ContainerPort": _of(protocol="TCP"),
    "CronJobSpec": _of(
        concurrencyPolicy="Allow",
        suspend=False,
        successfulJobsHistoryLimit=3,
        failedJobsHistoryLimit=1,
        jobTemplate={},
    ),
    "CustomResourceDefinition": fill_definition,
    "DaemonSetSpec": _of(revisionHistoryLimit=10, updateStrategy={}, template={}),
    "DaemonSetUpdateStrategy": _rolling(maxUnavailable=1, maxSurge=0),
    "DeploymentSpec": _of(
        replicas=1,
        revisionHistoryLimit=10,
        progressDeadlineSeconds=600,
        strategy={},
        template={},
    ),
    "DeploymentStrategy": _rolling(maxUnavailable="25%", maxSurge="25%"),
    "DeviceSubRequest": _devices,
    "Endpoint": _of(conditions={}),
    "EndpointPort": _of(protocol="TCP"),
    "EphemeralContainer": _container,
    "Event": _event,
    "ExactDeviceRequest": _devices,
    "HTTPGetAction": _of(path="/", scheme="HTTP"),
    "HorizontalPodAutoscaler": _autoscaler,
    "HostPathVolumeSource": _of(type=""),
    "Job": _job,
    # Without a policy for restarts of its own a Job is refused.
    "JobSpec": lambda spec: fill(spec, "template", "spec", restartPolicy=None),
    "JobTemplateSpec": _of(metadata={}, spec={}),
    "MutatingWebhook": _of(**_WEBHOOK, reinvocationPolicy="Never"),
    "NetworkPolicySpec": _network_policy,
    "Node": _node,
    "ObjectFieldSelector": _of(apiVersion="v1"),
    # A StatefulSet's template of one needs no spec.
    "PersistentVolumeClaim": _object_with_spec,
    "PersistentVolumeClaimSpec": _of(volumeMode="Filesystem"),
    "Pod": _pod,
    "PodSpec": _pod_spec,
    "PodTemplateSpec": _of(metadata={}, spec={}),
    "PriorityClass": _of(value=0, preemptionPolicy="PreemptLowerPriority"),
    "Probe": _of(timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3),
    "ReplicaSetSpec": _of(replicas=1, template={}),
    "ReplicationController": _replication_controller,
    "ReplicationControllerSpec": _of(replicas=1, template={}),
    # A container's entry in `resources.claims` has this name too.
    "ResourceClaim": _object_with_spec,
    "RoleRef": _of(apiGroup=_RBAC),
    "RuleWithOperations": _of(scope="*"),
    "Secret": _secret,
    "ServiceAccountTokenProjection": _of(expirationSeconds=3600),
    "ServicePort": lambda port: fill(port, protocol="TCP", targetPort=port.get("port", 0)),
    "ServiceReference": _of(port=443),
    "ServiceSpec": _service_spec,
    "StatefulSetPersistentVolumeClaimRetentionPolicy": _of(
        whenDeleted="Retain", whenScaled="Retain"
    ),
    "StatefulSetSpec": _of(
        replicas=1,
        revisionHistoryLimit=10,
        podManagementPolicy="OrderedReady",
        updateStrategy={},
        persistentVolumeClaimRetentionPolicy={},
        template={},
    ),
    "StatefulSetUpdateStrategy": _rolling(partition=0),
    "Subject": _subject,
    "ValidatingWebhook": _of(**_WEBHOOK),
    "Volume": _volume,
}
_FILLED: Final = frozenset(DEFAULTS)
