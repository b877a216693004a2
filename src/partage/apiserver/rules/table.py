"""The rules of each built-in kind, as one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems
from partage.apiserver.rules import objects, pods, workloads

Document = dict[str, Any]
_WITH_NODE_PORTS: Final = ("LoadBalancer", "NodePort")


@dataclass(frozen=True, slots=True)
class Rules:
    """The server's rules for one kind.

    Attributes:
        name: reports problems of a name.
        begin: sets a new object's first status and fields that depend on its UID, in place.
        keep: restores allocated fields that a change omits, in place: new, old.
        check_update: reports forbidden changes: new, old.
        keeps_status: whether a new object keeps its given status.
    """

    name: Callable[[str], list[str]] = naming.subdomain
    begin: Callable[[Document], None] | None = None
    keep: Callable[[Document, Mapping[str, Any]], None] | None = None
    check: Callable[[Mapping[str, Any], Problems], None] | None = None
    check_update: Callable[[Mapping[str, Any], Mapping[str, Any], Problems], None] | None = None
    keeps_status: bool = False


def _begin_pod(pod: Document) -> None:
    pod["status"] = {"phase": "Pending", "qosClass": pods.quality(pod["spec"])}
    if pod["spec"].get("schedulingGates"):
        pod["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]


def _begin_namespace(namespace: Document) -> None:
    metadata = namespace["metadata"]
    metadata["labels"] = {
        **(metadata.get("labels") or {}),
        "kubernetes.io/metadata.name": metadata["name"],
    }
    spec = namespace.setdefault("spec", {})
    spec["finalizers"] = sorted({*(spec.get("finalizers") or ()), "kubernetes"})
    namespace["status"] = {"phase": "Active"}


def _begin_service(service: Document) -> None:
    service["status"] = {"loadBalancer": {}}
    _allocate(service)
    if service["spec"].get("clusterIP"):
        service["spec"]["clusterIPs"] = [service["spec"]["clusterIP"]]


def _allocate(service: Document) -> None:
    """Sets the addresses and node ports that the type has, made from the UID; nothing listens there."""
    spec = service["spec"]
    digits = int(str(service["metadata"]["uid"]).replace("-", "")[:8] or "0", 16)
    if spec["type"] != "ExternalName" and not spec.get("clusterIP"):
        spec["clusterIP"] = f"10.96.{digits >> 8 & 255}.{digits & 255 or 1}"
        spec["clusterIPs"] = [spec["clusterIP"]]
    if spec["type"] in _WITH_NODE_PORTS:
        for index, port in enumerate(spec.get("ports") or ()):
            port.setdefault("nodePort", 30000 + (digits + index) % 2768)


def _keep_service(service: Document, before: Mapping[str, Any]) -> None:
    """Restores the Service's addresses and node ports, as `kubectl replace` of a manifest without them expects.

    A type without node ports loses those that the Service had.
    """
    spec, old = dict(service["spec"]), before["spec"]
    service["spec"] = spec
    if "ExternalName" not in (spec["type"], old["type"]):
        for key in ("clusterIP", "clusterIPs"):
            if not spec.get(key) and old.get(key):
                spec[key] = old[key]
    known = {
        (one.get("port"), one.get("protocol")): {"nodePort": one["nodePort"]}
        for one in old.get("ports") or ()
        if one.get("nodePort")
    }
    if "ports" in spec:
        spec["ports"] = [_port(port, known, spec["type"]) for port in spec["ports"] or ()]
    _allocate(service)


def _port(port: Mapping[str, Any], known: Mapping[Any, Document], type_: str) -> Document:
    """A port of a changed Service. `known`: what each had of the nodes', by number and protocol."""
    had = known.get((port.get("port"), port.get("protocol")), {})
    if type_ in _WITH_NODE_PORTS:
        return {**had, **port}
    return {key: value for key, value in port.items() if had.get(key) != value}


_ROLE: Final = Rules(name=naming.path_segment)
_BINDING: Final = Rules(
    name=naming.path_segment,
    check=objects.check_role_reference,
    check_update=objects.fixed("roleRef", why="cannot change roleRef"),
)
_BYTES: Final = Rules(check=objects.check_bytes, check_update=objects.check_data_update)
_WORKLOAD: Final = Rules(
    check=workloads.check_workload, check_update=workloads.check_workload_update
)

RULES: Final[Mapping[str, Rules]] = {
    "pods": Rules(
        begin=_begin_pod,
        check=pods.check_pod,
        check_update=pods.check_pod_update,
    ),
    "nodes": Rules(
        check=objects.check_node,
        check_update=objects.check_node_update,
        keeps_status=True,
    ),
    "namespaces": Rules(name=naming.domain_label, begin=_begin_namespace),
    "configmaps": _BYTES,
    "secrets": Rules(
        check=objects.check_secret,
        check_update=objects.check_secret_update,
    ),
    "services": Rules(
        name=naming.domain_label,
        begin=_begin_service,
        keep=_keep_service,
        check=objects.check_service,
        check_update=objects.check_service_update,
    ),
    "events": Rules(check=objects.check_event),
    "resourcequotas": Rules(check=objects.check_quota),
    "persistentvolumeclaims": Rules(begin=lambda claim: claim.update(status={"phase": "Pending"})),
    "deployments.apps": _WORKLOAD,
    "replicasets.apps": _WORKLOAD,
    "statefulsets.apps": _WORKLOAD,
    "daemonsets.apps": _WORKLOAD,
    "jobs.batch": Rules(
        begin=workloads.own_job,
        check=workloads.check_job,
        check_update=workloads.check_job_update,
    ),
    "cronjobs.batch": Rules(check=workloads.check_cron_job),
    "horizontalpodautoscalers.autoscaling": Rules(
        begin=lambda value: value.update(status={}),
        check=workloads.check_autoscaler,
    ),
    "resourceclaims.resource.k8s.io": Rules(
        begin=lambda value: value.update(status={}),
        check=objects.check_claim,
        check_update=objects.fixed("spec"),
    ),
    "resourceclaimtemplates.resource.k8s.io": Rules(
        check=partial(objects.check_claim, where="spec.spec"),
        check_update=objects.fixed("spec"),
    ),
    "resourceslices.resource.k8s.io": Rules(
        check_update=objects.fixed("spec.driver", "spec.nodeName", "spec.pool.name"),
    ),
    "priorityclasses.scheduling.k8s.io": Rules(
        check=objects.check_priority_class,
        check_update=objects.check_priority_class_update,
    ),
    "roles.rbac.authorization.k8s.io": _ROLE,
    "clusterroles.rbac.authorization.k8s.io": _ROLE,
    "rolebindings.rbac.authorization.k8s.io": _BINDING,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDING,
}
"""Other kinds have names of the usual kind and no rules of their own."""
