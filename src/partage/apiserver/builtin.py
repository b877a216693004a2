"""The built-in resources, as one table."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from partage.apiserver import autoscaling
from partage.apiserver.kinds import Kind, Subresource
from partage.wire.field_types import Type, catalogue

_VERSIONS: Final = {"autoscaling": "v2"}
"""Versions of groups other than v1."""

# Scope letters: N namespaced, C cluster. Marks: `status`, `scale` and others are subresources,
# `+gen` counts generations, words after `~` are fields for selectors.
BUILT_IN: Final = """
Node                 nodes                  C no            -                status ~ spec.unschedulable
Pod                  pods                   N po            all              status binding eviction log exec attach portforward resize ephemeralcontainers +gen ~ spec.nodeName status.phase spec.schedulerName spec.restartPolicy spec.serviceAccountName status.podIP status.nominatedNodeName spec.hostNetwork
Namespace            namespaces             C ns            -                status finalize ~ status.phase
ConfigMap            configmaps             N cm            -
Secret               secrets                N -             -                ~ type
ServiceAccount       serviceaccounts        N sa            -                token
Service              services               N svc           all              status ~ spec.clusterIP spec.type
Endpoints            endpoints              N ep            -
Event                events                 N ev            -                ~ involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid involvedObject.apiVersion involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent source type
ResourceQuota        resourcequotas         N quota         -                status
LimitRange           limitranges            N limits        -
PersistentVolumeClaim persistentvolumeclaims N pvc          -                status
PersistentVolume     persistentvolumes      C pv            -                status
ReplicationController replicationcontrollers N rc           all              status scale +gen ~ status.replicas
apps/Deployment      deployments            N deploy        all              status scale +gen
apps/ReplicaSet      replicasets            N rs            all              status scale +gen
apps/StatefulSet     statefulsets           N sts           all              status scale +gen
apps/DaemonSet       daemonsets             N ds            all              status +gen
apps/ControllerRevision controllerrevisions N -             -
batch/Job            jobs                   N -             all              status +gen ~ status.successful
batch/CronJob        cronjobs               N cj            all              status +gen
autoscaling/HorizontalPodAutoscaler horizontalpodautoscalers N hpa all status
coordination.k8s.io/Lease leases            N -             -
scheduling.k8s.io/PriorityClass priorityclasses C pc        -                +gen
admissionregistration.k8s.io/MutatingWebhookConfiguration mutatingwebhookconfigurations C - api-extensions +gen
admissionregistration.k8s.io/ValidatingWebhookConfiguration validatingwebhookconfigurations C - api-extensions +gen
admissionregistration.k8s.io/ValidatingAdmissionPolicy validatingadmissionpolicies C - api-extensions status +gen
admissionregistration.k8s.io/ValidatingAdmissionPolicyBinding validatingadmissionpolicybindings C - api-extensions +gen
rbac.authorization.k8s.io/Role roles        N -             -
rbac.authorization.k8s.io/RoleBinding rolebindings N -      -
rbac.authorization.k8s.io/ClusterRole clusterroles C -      -
rbac.authorization.k8s.io/ClusterRoleBinding clusterrolebindings C - -
policy/PodDisruptionBudget poddisruptionbudgets N pdb       -                status +gen
networking.k8s.io/NetworkPolicy networkpolicies N netpol    -                +gen
networking.k8s.io/Ingress ingresses         N ing           -                status +gen
networking.k8s.io/IngressClass ingressclasses C -           -                +gen
discovery.k8s.io/EndpointSlice endpointslices N -           -
node.k8s.io/RuntimeClass runtimeclasses     C -             -
storage.k8s.io/StorageClass storageclasses  C sc            -
resource.k8s.io/ResourceClaim resourceclaims N -            -                status
resource.k8s.io/ResourceClaimTemplate resourceclaimtemplates N - -
resource.k8s.io/DeviceClass deviceclasses   C -             -                +gen
resource.k8s.io/ResourceSlice resourceslices C -            -                +gen ~ spec.nodeName spec.driver
apiextensions.k8s.io/CustomResourceDefinition customresourcedefinitions C crd,crds api-extensions status +gen
"""  # a table reads best with one row a resource

_STATUS: Final = ("get", "patch", "update")
_SUBS: Final = {
    "binding": ("Binding", "", "v1", ("create",)),
    "eviction": ("Eviction", "policy", "v1", ("create",)),
    "scale": ("Scale", "autoscaling", "v1", _STATUS),
    "log": ("Pod", "", "v1", ("get",)),
    "exec": ("PodExecOptions", "", "v1", ("create", "get")),
    "attach": ("PodAttachOptions", "", "v1", ("create", "get")),
    "portforward": ("PodPortForwardOptions", "", "v1", ("create", "get")),
    "finalize": ("Namespace", "", "v1", ("update",)),
    "token": ("TokenRequest", "authentication.k8s.io", "v1", ("create",)),
}


def kinds() -> list[Kind]:
    """Every built-in resource, including virtual ones."""
    return [*_rows(), *_older_autoscalers(), *_events(), *_virtual()]


def _rows() -> Iterator[Kind]:
    for line in BUILT_IN.strip().splitlines():
        words, _tilde, fields = line.partition("~")
        name, plural, scope, short, categories, *subs = words.split()
        group, _slash, kind = name.rpartition("/")
        version = _VERSIONS.get(group, "v1")
        yield Kind(
            group=group,
            version=version,
            kind=kind,
            plural=plural,
            singular=kind.lower(),
            namespaced=scope == "N",
            type=struct(group, kind),
            short=tuple(short.split(",")) if short != "-" else (),
            categories=(categories,) if categories != "-" else (),
            subresources=tuple(
                subresource(sub, kind, group, version) for sub in subs if not sub.startswith("+")
            ),
            generation="+gen" in subs,
            selectable=tuple(fields.split()),
        )


def struct(group: str, kind: str) -> Type:
    """The shape of a built-in kind."""
    package = f"io.k8s.api.{group.partition('.')[0] or 'core'}"
    if group == "apiextensions.k8s.io":
        package = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions"
    return catalogue()[f"{package}.{_VERSIONS.get(group, 'v1')}.{kind}"]


def subresource(name: str, kind: str, group: str, version: str) -> Subresource:
    """A subresource; `status` and its like have the kind of the whole object."""
    of, owner, at, verbs = _SUBS.get(name, (kind, group, version, _STATUS))
    return Subresource(name, of, owner, at, verbs)


def _events() -> Iterator[Kind]:
    """The same events under their newer name; the store has the core's form."""
    yield Kind(
        group="events.k8s.io",
        version="v1",
        kind="Event",
        plural="events",
        singular="event",
        namespaced=True,
        type=struct("events.k8s.io", "Event"),
        short=("ev",),
        storage="events",
        selectable=(
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "reason",
            "reportingController",
            "type",
        ),
        convert=_outward,
        unconvert=_inward,
    )


def _older_autoscalers() -> Iterator[Kind]:
    """The same autoscalers in their first version; the store has the second's form."""
    newest = next(kind for kind in _rows() if kind.kind == "HorizontalPodAutoscaler")
    yield replace(
        newest,
        version="v1",
        type=catalogue()["io.k8s.api.autoscaling.v1.HorizontalPodAutoscaler"],
        subresources=tuple(replace(sub, version="v1") for sub in newest.subresources),
        convert=autoscaling.outward,
        unconvert=autoscaling.inward,
    )


def _virtual() -> Iterator[Kind]:
    """A resource that is answered and not stored."""
    rows = (
        ("", "Binding", "bindings", True),
        ("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews", False),
        ("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False),
        ("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews", False),
        ("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews", False),
    )
    for group, kind, plural, namespaced in rows:
        yield Kind(
            group=group,
            version="v1",
            kind=kind,
            plural=plural,
            singular=kind.lower(),
            namespaced=namespaced,
            type=struct(group, kind),
            verbs=("create",),
        )


_NAMES: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_BACK: Final = {new: old for old, new in _NAMES.items()}
"""Fields of events with another name in `events.k8s.io`."""


def _outward(value: dict[str, Any]) -> dict[str, Any]:
    """A stored event in the form of `events.k8s.io/v1`."""
    found = {_NAMES.get(key, key): inner for key, inner in value.items()}
    found["apiVersion"] = "events.k8s.io/v1"
    return found


def _inward(value: dict[str, Any]) -> dict[str, Any]:
    """An `events.k8s.io/v1` event in its stored form."""
    found = {_BACK.get(key, key): inner for key, inner in value.items()}
    found["apiVersion"] = "v1"
    return found
