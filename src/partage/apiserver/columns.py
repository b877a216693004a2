"""The columns that `kubectl get` shows for the built-in kinds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from partage.apiserver.pod_cells import pod_cells
from partage.apiserver.selectors import labels_text, selector_text

Value = Mapping[str, Any]
_NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
_ROLE: Final = "node-role.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        cell: from the object and the present time (seconds since 1970) to the shown value.
        type: `string`, `integer`, `boolean`, `number` or `date`.
        wide: whether it is shown only with `-o wide`.
        format: `name` marks the column that names the object.
    """

    name: str
    cell: Callable[[Value, float], Any]
    type: str = "string"
    wide: bool = False
    format: str = ""


def age(text: Any, now: float) -> str:
    """The time since `text`, in kubectl's format: `45s`, `5m30s`, `3h`, `12d`."""
    if not isinstance(text, str):
        return UNKNOWN
    try:
        then = datetime.fromisoformat(text)
    except ValueError:
        return UNKNOWN
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = int(now - then.timestamp())
    if seconds < -1:
        return "<invalid>"
    return _duration(max(seconds, 0))


def _duration(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    years = days // 365
    steps = (
        (seconds < 120, f"{seconds}s", ""),
        (minutes < 10, f"{minutes}m", f"{seconds % 60}s" if seconds % 60 else ""),
        (hours < 3, f"{minutes}m", ""),
        (hours < 8, f"{hours}h", f"{minutes % 60}m" if minutes % 60 else ""),
        (hours < 48, f"{hours}h", ""),
        (days < 8, f"{days}d", f"{hours % 24}h" if hours % 24 else ""),
        (years < 2, f"{days}d", ""),
        (years < 8, f"{years}y", f"{days % 365}d" if days % 365 else ""),
    )
    return next((head + tail for fits, head, tail in steps if fits), f"{years}y")


def _name(value: Value, _now: float) -> str:
    return str(value["metadata"].get("name", ""))


def _at(*path: str, absent: Any = _NONE) -> Callable[[Value, float], Any]:
    def cell(value: Value, _now: float) -> Any:
        at: Any = value
        for part in path:
            at = at.get(part) if isinstance(at, Mapping) else None
        return absent if at is None or at == "" else at

    return cell


NAME: Final = Column("Name", _name, format="name")
AGE: Final = Column("Age", lambda v, now: age(v["metadata"].get("creationTimestamp"), now))


def _workload(value: Value) -> Value:
    """The spec of a workload, and of the jobs of a CronJob."""
    spec: Value = value.get("spec") or {}
    if "jobTemplate" in spec:
        spec = (spec["jobTemplate"] or {}).get("spec") or {}
    return spec


def _inner(value: Value) -> Value:
    """The spec of a workload's pods, or of the pod itself."""
    spec = _workload(value)
    template = spec.get("template")
    inner: Value = spec if template is None else template.get("spec") or {}
    return inner


def _containers(value: Value, _now: float, key: str) -> str:
    return ",".join(str(one.get(key, "")) for one in _inner(value).get("containers") or ())


def _selector(value: Value, _now: float) -> str:
    return selector_text(_workload(value).get("selector")) or _NONE


def _selected(value: Value, _now: float) -> str:
    """The selector of a kind that selects by labels alone."""
    return labels_text((value.get("spec") or {}).get("selector")) or _NONE


_PODS: Final = (
    Column("Containers", partial(_containers, key="name"), wide=True),
    Column("Images", partial(_containers, key="image"), wide=True),
)
_TEMPLATE: Final = (*_PODS, Column("Selector", _selector, wide=True))


def _restarts(value: Value, now: float) -> str:
    return pod_cells(value).restarted(lambda text: age(text, now))


def _pod_address(value: Value, _now: float) -> str:
    addresses = (value.get("status") or {}).get("podIPs") or ()
    return str(addresses[0].get("ip") or _NONE) if addresses else _NONE


def _gates(value: Value, _now: float) -> str:
    states = {
        c.get("type"): c.get("status") for c in (value.get("status") or {}).get("conditions") or ()
    }
    gates = (value.get("spec") or {}).get("readinessGates") or ()
    if not gates:
        return _NONE
    met = sum(1 for gate in gates if states.get(gate.get("conditionType")) == "True")
    return f"{met}/{len(gates)}"


def _node_status(value: Value, _now: float) -> str:
    states = [
        "Ready" if one.get("status") == "True" else "NotReady"
        for one in (value.get("status") or {}).get("conditions") or ()
        if one.get("type") == "Ready"
    ] or ["Unknown"]
    if (value.get("spec") or {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    return ",".join(states)


def _node_roles(value: Value, _now: float) -> str:
    labels = value["metadata"].get("labels") or {}
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)}
    roles.add(labels.get("kubernetes.io/role"))
    return ",".join(sorted(filter(None, roles))) or _NONE


def _address(value: Value, _now: float, kind: str) -> str:
    told = (value.get("status") or {}).get("addresses") or ()
    return next((str(one.get("address")) for one in told if one.get("type") == kind), _NONE)


def _info(name: str) -> Callable[[Value, float], Any]:
    return _at("status", "nodeInfo", name, absent=UNKNOWN)


def _kernel(value: Value, now: float) -> str:
    arch = _at("status", "nodeInfo", "architecture", absent="")(value, now)
    return f"{_info('kernelVersion')(value, now)}{f' ({arch})' if arch else ''}"


def _ready(value: Value, _now: float) -> str:
    status, spec = value.get("status") or {}, value.get("spec") or {}
    return f"{status.get('readyReplicas') or 0}/{spec.get('replicas') or 0}"


_JOB_STATES: Final = (
    "Complete",
    "Failed",
    "Terminating",
    "Suspended",
    "FailureTarget",
    "SuccessCriteriaMet",
)


def _job_state(value: Value, _now: float) -> str:
    holds = {
        one.get("type"): one.get("status") == "True"
        for one in reversed((value.get("status") or {}).get("conditions") or ())
    }
    holds["Terminating"] = bool(value["metadata"].get("deletionTimestamp"))
    return next((one for one in _JOB_STATES if holds.get(one)), "Running")


def _completions(value: Value, _now: float) -> str:
    spec, done = value.get("spec") or {}, (value.get("status") or {}).get("succeeded") or 0
    if spec.get("completions") is not None:
        return f"{done}/{spec['completions']}"
    parallel = spec.get("parallelism") or 0
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _job_duration(value: Value, now: float) -> str:
    status = value.get("status") or {}
    start, end = status.get("startTime"), status.get("completionTime")
    if not start:
        return ""
    try:
        last = datetime.fromisoformat(end).timestamp() if end else now
    except ValueError:
        last = now
    return age(start, last)


def _first_seen(value: Value, now: float) -> str:
    return age(value.get("firstTimestamp") or value.get("eventTime"), now)


def _last_seen(value: Value, now: float) -> str:
    series = value.get("series")
    if series is not None:
        return age(series.get("lastObservedTime"), now)
    last = value.get("lastTimestamp")
    return age(last, now) if last else _first_seen(value, now)


def _times(value: Value, _now: float) -> int:
    series = value.get("series")
    return int((series.get("count") if series is not None else value.get("count") or 1) or 0)


def _about(value: Value, _now: float) -> str:
    about = value.get("involvedObject") or {}
    return "/".join(filter(None, (str(about.get("kind", "")).lower(), about.get("name"))))


def _source(value: Value, _now: float) -> str:
    source = value.get("source") or {}
    component = source.get("component") or value.get("reportingComponent") or ""
    instance = source.get("host") or value.get("reportingInstance")
    return f"{component}, {instance}" if instance else str(component)


def _count(*groups: str) -> Callable[[Value, float], int]:
    return lambda value, _now: sum(len(value.get(group) or ()) for group in groups)


def _amounts(value: Value, _now: float, *, limits: bool) -> str:
    status = value.get("status") or {}
    used = status.get("used") or {}
    return ", ".join(
        f"{name}: {used.get(name, '0')}/{limit}"
        for name, limit in sorted((status.get("hard") or {}).items())
        if name.startswith("limits.") is limits
    )


def _outside(value: Value, _now: float) -> str:
    """A service's addresses outside the cluster."""
    spec = value.get("spec") or {}
    kind, given = spec.get("type"), list(spec.get("externalIPs") or ())
    if kind == "ExternalName":
        return str(spec.get("externalName") or "")
    if kind != "LoadBalancer":
        return ",".join(given) or _NONE
    ingress = ((value.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    known = {str(one.get("ip") or one.get("hostname") or "") for one in ingress} - {""}
    return ",".join([*sorted(known), *given]) or "<pending>"


def _ports(value: Value, _now: float) -> str:
    ports = (value.get("spec") or {}).get("ports") or ()
    texts = (
        f"{one.get('port')}{':' if one.get('nodePort') else ''}{one.get('nodePort', '')}"
        f"/{one.get('protocol', 'TCP')}"
        for one in ports
    )
    return ",".join(texts) or _NONE


def _node_selector(value: Value, _now: float) -> str:
    return labels_text(_inner(value).get("nodeSelector")) or _NONE


def _metrics(value: Value, _now: float) -> str:
    """An autoscaler's targets; nothing is measured, so the current values are unknown."""
    told = []
    for one in (value.get("spec") or {}).get("metrics") or ():
        kind = str(one.get("type") or "")
        of = one.get(f"{kind[:1].lower()}{kind[1:]}") or {}
        target = of.get("target") or {}
        percent = target.get("averageUtilization")
        aim = target.get("averageValue") or target.get("value")
        name = f"{of['name']}: " if "name" in of else ""
        told.append(f"{name}{UNKNOWN}/{aim if percent is None else f'{percent}%'}")
    more = f" + {len(told) - 2} more..." if len(told) > 2 else ""
    return ", ".join(told[:2]) + more or _NONE


def _claim_state(value: Value, _now: float) -> str:
    status = value.get("status") or {}
    states = ["deleted"] if value["metadata"].get("deletionTimestamp") else []
    if status.get("allocation") is not None:
        states += ["allocated", "reserved"] if status.get("reservedFor") else ["allocated"]
    elif not states:
        states.append("pending")
    return ",".join(states)


def _last_schedule(value: Value, now: float) -> str:
    last = (value.get("status") or {}).get("lastScheduleTime")
    return age(last, now) if last else _NONE


def _reference(*path: str) -> Callable[[Value, float], str]:
    """Kind and name of what a field refers to."""
    at = _at(*path, absent={})
    return lambda value, now: "/".join(at(value, now).get(key, "") for key in ("kind", "name"))


def _subjects(value: Value, _now: float, kind: str) -> str:
    return ", ".join(
        f"{one.get('namespace', '')}/{one.get('name')}"
        if kind == "ServiceAccount"
        else str(one.get("name"))
        for one in value.get("subjects") or ()
        if one.get("kind") == kind
    )


_COUNTS: Final = (
    NAME,
    Column("Desired", _at("spec", "replicas", absent=0), "integer"),
    Column("Current", _at("status", "replicas", absent=0), "integer"),
    Column("Ready", _at("status", "readyReplicas", absent=0), "integer"),
    AGE,
    *_PODS,
)
_CREATED: Final = (NAME, Column("Created At", _at("metadata", "creationTimestamp"), "date"))
_BINDING: Final = (
    NAME,
    Column("Role", _reference("roleRef")),
    AGE,
    *(
        Column(f"{kind}s", partial(_subjects, kind=kind), wide=True)
        for kind in ("User", "Group", "ServiceAccount")
    ),
)
_WEBHOOKS: Final = (NAME, Column("Webhooks", _count("webhooks"), "integer"), AGE)

COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "pods": (
        NAME,
        Column("Ready", lambda pod, _now: pod_cells(pod).readiness),
        Column("Status", lambda pod, _now: pod_cells(pod).status),
        Column("Restarts", _restarts),
        AGE,
        Column("IP", _pod_address, wide=True),
        Column("Node", _at("spec", "nodeName"), wide=True),
        Column("Nominated Node", _at("status", "nominatedNodeName"), wide=True),
        Column("Readiness Gates", _gates, wide=True),
    ),
    "nodes": (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        AGE,
        Column("Version", _at("status", "nodeInfo", "kubeletVersion", absent="")),
        Column("Internal-IP", partial(_address, kind="InternalIP"), wide=True),
        Column("External-IP", partial(_address, kind="ExternalIP"), wide=True),
        Column("OS-Image", _info("osImage"), wide=True),
        Column("Kernel-Version", _kernel, wide=True),
        Column("Container-Runtime", _info("containerRuntimeVersion"), wide=True),
    ),
    "namespaces": (NAME, Column("Status", _at("status", "phase", absent="")), AGE),
    "configmaps": (NAME, Column("Data", _count("data", "binaryData"), "integer"), AGE),
    "resourceclaims.resource.k8s.io": (NAME, Column("State", _claim_state), AGE),
    "resourceslices.resource.k8s.io": (
        NAME,
        Column("Node", _at("spec", "nodeName", absent="")),
        Column("Driver", _at("spec", "driver", absent="")),
        Column("Pool", _at("spec", "pool", "name", absent="")),
        AGE,
    ),
    "secrets": (NAME, Column("Type", _at("type")), Column("Data", _count("data"), "integer"), AGE),
    "services": (
        NAME,
        Column("Type", _at("spec", "type")),
        Column("Cluster-IP", _at("spec", "clusterIP")),
        Column("External-IP", _outside),
        Column("Port(s)", _ports),
        AGE,
        Column("Selector", _selected, wide=True),
    ),
    "events": (
        Column("Last Seen", _last_seen),
        Column("Type", _at("type", absent="")),
        Column("Reason", _at("reason", absent="")),
        Column("Object", _about),
        Column("Subobject", _at("involvedObject", "fieldPath", absent=""), wide=True),
        Column("Source", _source, wide=True),
        Column("Message", lambda v, _now: str(v.get("message") or "").strip()),
        Column("First Seen", _first_seen, wide=True),
        Column("Count", _times, wide=True),
        Column("Name", _name, wide=True, format="name"),
    ),
    "resourcequotas": (
        NAME,
        Column("Request", partial(_amounts, limits=False)),
        Column("Limit", partial(_amounts, limits=True)),
        AGE,
    ),
    "deployments.apps": (
        NAME,
        Column("Ready", _ready),
        Column("Up-to-date", _at("status", "updatedReplicas", absent=0), "integer"),
        Column("Available", _at("status", "availableReplicas", absent=0), "integer"),
        AGE,
        *_TEMPLATE,
    ),
    "replicasets.apps": (*_COUNTS, Column("Selector", _selector, wide=True)),
    "statefulsets.apps": (NAME, Column("Ready", _ready), AGE, *_PODS),
    "daemonsets.apps": (
        NAME,
        Column("Desired", _at("status", "desiredNumberScheduled", absent=0), "integer"),
        Column("Current", _at("status", "currentNumberScheduled", absent=0), "integer"),
        Column("Ready", _at("status", "numberReady", absent=0), "integer"),
        Column("Up-to-date", _at("status", "updatedNumberScheduled", absent=0), "integer"),
        Column("Available", _at("status", "numberAvailable", absent=0), "integer"),
        Column("Node Selector", _node_selector),
        AGE,
        *_TEMPLATE,
    ),
    "jobs.batch": (
        NAME,
        Column("Status", _job_state),
        Column("Completions", _completions),
        Column("Duration", _job_duration),
        AGE,
        *_TEMPLATE,
    ),
    "replicationcontrollers": (*_COUNTS, Column("Selector", _selected, wide=True)),
    "cronjobs.batch": (
        NAME,
        Column("Schedule", _at("spec", "schedule")),
        Column("Timezone", _at("spec", "timeZone")),
        Column("Suspend", lambda v, _now: str(bool(v["spec"].get("suspend")))),
        Column(
            "Active", lambda v, _now: len((v.get("status") or {}).get("active") or ()), "integer"
        ),
        Column("Last Schedule", _last_schedule),
        AGE,
        *_TEMPLATE,
    ),
    "horizontalpodautoscalers.autoscaling": (
        NAME,
        Column("Reference", _reference("spec", "scaleTargetRef")),
        Column("Targets", _metrics),
        Column("MinPods", _at("spec", "minReplicas")),
        Column("MaxPods", _at("spec", "maxReplicas"), "integer"),
        Column("Replicas", _at("status", "currentReplicas", absent=0), "integer"),
        AGE,
    ),
    "poddisruptionbudgets.policy": (
        NAME,
        Column("Min Available", _at("spec", "minAvailable", absent="N/A")),
        Column("Max Unavailable", _at("spec", "maxUnavailable", absent="N/A")),
        Column("Allowed Disruptions", _at("status", "disruptionsAllowed", absent=0), "integer"),
        AGE,
    ),
    "runtimeclasses.node.k8s.io": (NAME, Column("Handler", _at("handler")), AGE),
    "rolebindings.rbac.authorization.k8s.io": _BINDING,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDING,
    "roles.rbac.authorization.k8s.io": _CREATED,
    "clusterroles.rbac.authorization.k8s.io": _CREATED,
    "limitranges": _CREATED,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _WEBHOOKS,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _WEBHOOKS,
    "leases.coordination.k8s.io": (
        NAME,
        Column("Holder", _at("spec", "holderIdentity", absent="")),
        AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        Column("Value", _at("value", absent=0), "integer"),
        Column("Global-Default", _at("globalDefault", absent=False), "boolean"),
        AGE,
        Column("PreemptionPolicy", _at("preemptionPolicy", absent="")),
    ),
    "customresourcedefinitions.apiextensions.k8s.io": _CREATED,
}
"""Columns by resource; others have name and age."""
