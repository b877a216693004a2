"""The built-in resources, as one table."""

from collections.abc import Mapping
from typing import Final

from partage.apiserver import autoscaling
from partage.apiserver.kinds import ALL_VERBS, Converter, Kind, Subresource
from partage.wire.field_types import catalogue

# Scope letters: N namespaced, C cluster. Marks: `status`, `scale` and others are subresources,
# `+gen` counts generations, `+virtual` is answered and not stored, words after `~` are fields for selectors. Groups
# have version v1 where a row names no other.
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
autoscaling/v2/HorizontalPodAutoscaler horizontalpodautoscalers N hpa all status
autoscaling/v1/HorizontalPodAutoscaler horizontalpodautoscalers N hpa all status
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
events.k8s.io/Event  events                 N ev            -                ~ regarding.kind regarding.namespace regarding.name regarding.uid reason reportingController type
Binding              bindings               N -             -                +virtual
authentication.k8s.io/SelfSubjectReview selfsubjectreviews C - -             +virtual
authorization.k8s.io/SelfSubjectAccessReview selfsubjectaccessreviews C - -  +virtual
authorization.k8s.io/SubjectAccessReview subjectaccessreviews C - -          +virtual
authorization.k8s.io/SelfSubjectRulesReview selfsubjectrulesreviews C - -    +virtual
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
    return [_kind(line) for line in BUILT_IN.strip().splitlines()]


def _kind(row: str) -> Kind:
    words, _tilde, fields = row.partition("~")
    name, plural, scope, short, categories, *subs = words.split()
    *path, kind = name.split("/")
    group, version = (*path, "v1")[:2] if path else ("", "v1")
    package = f"io.k8s.api.{group.partition('.')[0] or 'core'}"
    if group == "apiextensions.k8s.io":
        package = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions"
    storage, convert, unconvert = _CONVERTED.get(name, ("", None, None))
    return Kind(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        namespaced=scope == "N",
        type=catalogue()[f"{package}.{version}.{kind}"],
        short=tuple(short.split(",")) if short != "-" else (),
        categories=(categories,) if categories != "-" else (),
        verbs=("create",) if "+virtual" in subs else ALL_VERBS,
        subresources=tuple(
            subresource(sub, kind, group, version) for sub in subs if not sub.startswith("+")
        ),
        storage=storage,
        generation="+gen" in subs,
        selectable=tuple(fields.split()),
        convert=convert,
        unconvert=unconvert,
    )


def subresource(name: str, kind: str, group: str, version: str) -> Subresource:
    """A subresource; `status` and its like have the kind of the whole object."""
    of, owner, at, verbs = _SUBS.get(name, (kind, group, version, _STATUS))
    return Subresource(name, of, owner, at, verbs)


_NAMES: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
"""Fields of events with another name in `events.k8s.io`."""


def _renamed(names: Mapping[str, str], version: str) -> Converter:
    """The same document with other names of its fields, and of this version."""
    return lambda value: {names.get(k, k): v for k, v in value.items()} | {"apiVersion": version}


_CONVERTED: Final[Mapping[str, tuple[str, Converter, Converter]]] = {
    "autoscaling/v1/HorizontalPodAutoscaler": ("", autoscaling.outward, autoscaling.inward),
    "events.k8s.io/Event": (
        "events",
        _renamed(_NAMES, "events.k8s.io/v1"),
        _renamed({new: old for old, new in _NAMES.items()}, "v1"),
    ),
}
"""Older and newer names of stored resources: the store's name, and the conversions out of its form and into it."""
