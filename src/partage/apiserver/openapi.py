"""OpenAPI documents, made from the same shapes that decoding uses.

They contain enough for kubectl: validation of fields on the server (every PATCH lists the `fieldValidation`
parameter), `explain`, and the merge keys with which a client-side apply computes its patch.

For built-in kinds `explain` prints our own sentences, for the fields that pods with devices use. We do not keep
Kubernetes' own texts. A struct without a sentence links to Kubernetes' documentation.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from partage.apiserver.discovery import VERSION
from partage.apiserver.kinds import Kind, Registry
from partage.wire.field_types import META, Field, Type, catalogue

SENTENCES: Final[dict[str, str]] = {
    "ConfigMap": "Settings as text, by key.",
    "ConfigMap.data": "The values, by key.",
    "Container": "One program of a pod: its image, its command, and what it may use.",
    "Container.args": "Arguments of the command; the image's own where they are left out.",
    "Container.command": "The program and its first arguments; the image's own where they are left out.",
    "Container.env": "Environment variables, by name and value.",
    "Container.image": "The image that the container is made of.",
    "Container.imagePullPolicy": "When the image is fetched: Always, IfNotPresent or Never.",
    "Container.name": "The container's name, unique in its pod.",
    "Container.ports": "Ports that the program listens on, for readers and Services.",
    "Container.resources": "What the container asks for: CPU, memory, devices and claims.",
    "Container.volumeMounts": "Which of the pod's volumes appear in the container, and where.",
    "Deployment": "Keeps a number of equal pods running, and replaces them step by step when their template changes.",
    "DeploymentSpec.replicas": "How many pods there should be; 1 where it is left out.",
    "DeploymentSpec.selector": "Labels by which the Deployment finds its pods.",
    "DeploymentSpec.template": "The pod that is made so many times.",
    "DeviceClaim.config": "Settings that a driver gets with the devices.",
    "DeviceClaim.constraints": "What the devices of several requests must have in common.",
    "DeviceClaim.requests": "The devices that are asked for, one request a kind.",
    "DeviceClass": "A kind of device that claims ask for by name, as an administrator describes it.",
    "DeviceRequest.exactly": "One kind of device, with its number and conditions.",
    "DeviceRequest.firstAvailable": "Alternatives; the first that can be had is allocated.",
    "DeviceRequest.name": "The request's name, by which containers choose its devices.",
    "ExactDeviceRequest.allocationMode": "ExactCount for so many devices as `count`, or All for every one that fits.",
    "ExactDeviceRequest.capacity": "How much of a device is asked for, where it can be shared.",
    "ExactDeviceRequest.count": "How many devices; 1 where it is left out.",
    "ExactDeviceRequest.deviceClassName": "The DeviceClass that the devices must be of.",
    "ExactDeviceRequest.selectors": "Conditions on a device's attributes and capacity, as CEL expressions.",
    "Job": "Runs pods until so many of them have succeeded.",
    "JobSpec.backoffLimit": "How many failures there may be before the Job counts as failed.",
    "JobSpec.completions": "How many pods have to succeed.",
    "JobSpec.parallelism": "How many pods run at a time at most.",
    "JobSpec.template": "The pod that is run.",
    "Node": "A machine of the cluster.",
    "NodeSpec.taints": "Marks that keep pods away which do not tolerate them.",
    "NodeSpec.unschedulable": "Whether the node is cordoned: it takes no new pods.",
    "NodeStatus.allocatable": "What pods may use of the node, by resource name.",
    "NodeStatus.capacity": "What the node has, by resource name.",
    "ObjectMeta.annotations": "Notes for programs. Partage's record of a pod's devices is the annotation partage.io/allocation.",
    "ObjectMeta.labels": "Words by which objects are selected.",
    "ObjectMeta.name": "The object's name, unique among those of its kind in its namespace.",
    "ObjectMeta.namespace": "Where the object is; some kinds belong to the whole cluster.",
    "Pod": "Containers that run together on one node.",
    "Pod.spec": "What is asked for.",
    "Pod.status": "How it stands, as the cluster reports it.",
    "PodSpec.affinity": "Wishes for the node, and for pods to be near to or far from.",
    "PodSpec.containers": "The programs that run side by side.",
    "PodSpec.initContainers": "Programs that run before the others, one after another.",
    "PodSpec.nodeName": "The node that the pod is on. The scheduler writes it; a pod with devices must not name its own.",
    "PodSpec.nodeSelector": "Labels that the node must have.",
    "PodSpec.priorityClassName": "How important the pod is: more important pods go first, and less important ones may be evicted for them.",
    "PodSpec.resourceClaims": "ResourceClaims of the pod, under the names that its containers use.",
    "PodSpec.restartPolicy": "Whether containers that end are started again: Always, OnFailure or Never.",
    "PodSpec.schedulerName": "Which scheduler places the pod. Partage serves those of its chart's `schedulerNames`.",
    "PodSpec.schedulingGates": "While there is one, the pod is not scheduled.",
    "PodSpec.tolerations": "Taints of nodes that do not keep the pod away.",
    "PodSpec.volumes": "Data that containers mount.",
    "ResourceClaim": "A request for devices that a driver offers, and what was allocated for it.",
    "ResourceClaimSpec.devices": "The devices that are asked for.",
    "ResourceClaimStatus.allocation": "The devices that the claim got.",
    "ResourceClaimStatus.reservedFor": "The pods that may use the devices.",
    "ResourceClaimTemplate": "The ResourceClaim that each pod naming the template gets for itself.",
    "ResourceRequirements.claims": "Names in the pod's `resourceClaims` whose devices the container gets.",
    "ResourceRequirements.limits": "The most that the container may use, by resource name. Devices are asked for here.",
    "ResourceRequirements.requests": "What is reserved for the container; as the limits where left out. Of devices it must equal them.",
    "ResourceSlice": "Devices that a driver offers on a node, with attributes and capacity.",
    "Toleration.effect": "The effect that is tolerated; empty for every one.",
    "Toleration.key": "The taint's key; empty for every one.",
}
"""By struct, or struct and field: one sentence or two."""
OF_EVERY_OBJECT: Final[dict[str, str]] = {
    "apiVersion": "Group and version of the object's kind.",
    "kind": "What the object is.",
    "metadata": "Name, labels and annotations.",
}
"""By field of custom objects."""


_SCALARS: Final[dict[str, dict[str, Any]]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "format": "int32"},
    "long": {"type": "integer", "format": "int64"},
    "float": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string"},
    "intorstring": {"type": "string", "format": "int-or-string"},
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
_REFERENCE: Final = "https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.36/"
_GVK: Final = "x-kubernetes-group-version-kind"
_INFO: Final = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
_PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
)
_STRATEGIC: Final = "application/strategic-merge-patch+json"


def index(registry: Registry) -> dict[str, Any]:
    """The answer of `/openapi/v3`."""
    paths = {}
    for group, versions in registry.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            url = f"/openapi/v3/{path}?hash={registry.counter}"
            paths[path] = {"serverRelativeURL": url}
    return {"paths": paths}


def v3(registry: Registry, group: str, version: str) -> dict[str, Any] | None:
    """The answer of `/openapi/v3/apis/<group>/<version>`; None if nothing is served there."""
    kinds = registry.served(group, version)
    if not kinds:
        return None
    schemas = _schemas(kinds, "#/components/schemas/")
    paths = {path: item for kind in kinds for path, item in _paths(kind, version=3)}
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": paths,
        "components": {"schemas": schemas},
    }


def v2(registry: Registry) -> dict[str, Any]:
    """The answer of `/openapi/v2`."""
    kinds = list(registry)
    return {
        "swagger": "2.0",
        "info": _INFO,
        "paths": {path: item for kind in kinds for path, item in _paths(kind, version=2)},
        "definitions": _schemas(kinds, "#/definitions/"),
    }


def schema_name(kind: Kind) -> str:
    """The name of a kind's schema; that of a custom one has its group reversed."""
    if kind.type.name:
        return kind.type.name
    return ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])


def _schemas(kinds: list[Kind], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in kinds:
        name = schema_name(kind)
        custom = kind.definition
        if custom is None:
            _add(kind.type, found, prefix)
        else:
            _add(kind.type.fields["metadata"].type, found, prefix)
            found[name] = _custom(custom["schema"]["openAPIV3Schema"], prefix)
        gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        found[name] = {**found[name], _GVK: [gvk]}
        list_gvk = {**gvk, "kind": f"{kind.kind}List"}
        found[f"{name}List"] = {
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "items": {"type": "array", "items": {"$ref": prefix + name}},
                "metadata": {"type": "object"},
            },
            _GVK: [list_gvk],
        }
    return found


def _custom(schema: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """A definition's own schema, with the fields that every object has."""
    metadata = _type(catalogue()[f"{META}ObjectMeta"], prefix)
    head = {
        "apiVersion": {"type": "string", "description": OF_EVERY_OBJECT["apiVersion"]},
        "kind": {"type": "string", "description": OF_EVERY_OBJECT["kind"]},
        "metadata": metadata | {"description": OF_EVERY_OBJECT["metadata"]},
    }
    if "definitions" in prefix and schema.get("x-kubernetes-preserve-unknown-fields"):
        # The older form cannot have this beside fields: clients would reject fields that it lacks.
        return {key: value for key, value in schema.items() if key != "properties"}
    return {**schema, "properties": {**(schema.get("properties") or {}), **head}}


def _add(type_: Type, found: dict[str, Any], prefix: str) -> None:
    """Adds a struct's schema and those it refers to."""
    if type_.form in ("list", "map"):
        if type_.item is not None:
            _add(type_.item, found, prefix)
        return
    if type_.form != "struct" or not type_.name or type_.name in found:
        return
    made: dict[str, Any] = {"type": "object", "description": _described(type_.name)}
    found[type_.name] = made
    if type_.fields:
        made["properties"] = {f.name: _field(f, type_, prefix) for f in type_.fields.values()}
    required = [f.name for f in type_.fields.values() if f.required]
    if required:
        made["required"] = required
    if type_.atomic:
        made["x-kubernetes-map-type"] = "atomic"
    for field in type_.fields.values():
        _add(field.type, found, prefix)


def _described(name: str) -> str:
    """Our description of a struct, if any, and the link to Kubernetes' documentation."""
    *packages, version, kind = name.split(".")
    group = "core" if packages[-1] == "core" else packages[-1]
    anchor = f"{kind}-{version}-{group}".lower()
    return f"{SENTENCES.get(kind, '')} Documented at {_REFERENCE}#{anchor}".lstrip()


def _field(field: Field, of: Type, prefix: str) -> dict[str, Any]:
    made = _type(field.type, prefix)
    sentence = SENTENCES.get(f"{of.name.rpartition('.')[2]}.{field.name}")
    if sentence:
        made["description"] = sentence
    strategies = [name for name in (field.patch, "retainKeys" if field.retain else "") if name]
    if strategies:
        made["x-kubernetes-patch-strategy"] = ",".join(strategies)
    if field.merge_key:
        made["x-kubernetes-patch-merge-key"] = field.merge_key
    return made


def _type(type_: Type, prefix: str) -> dict[str, Any]:
    if type_.form == "list":
        made: dict[str, Any] = {"type": "array", "items": _type(type_.item or type_, prefix)}
        made["x-kubernetes-list-type"] = type_.listing
        if type_.keys:
            made["x-kubernetes-list-map-keys"] = list(type_.keys)
        return made
    if type_.form == "map":
        return {
            "type": "object",
            "additionalProperties": _type(type_.item or type_, prefix),
            **({"x-kubernetes-map-type": "atomic"} if type_.atomic else {}),
        }
    if type_.form == "struct":
        if not type_.name:
            return {"type": "object"}
        reference = {"$ref": prefix + type_.name}
        return {"allOf": [reference], "default": {}} if "components" in prefix else reference
    return dict(_SCALARS[type_.form])


def _paths(kind: Kind, *, version: int) -> Iterator[tuple[str, dict[str, Any]]]:
    head = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    base = (
        f"{head}/namespaces/{{namespace}}/{kind.plural}"
        if kind.namespaced
        else (f"{head}/{kind.plural}")
    )
    if kind.namespaced:
        yield f"{head}/{kind.plural}", {"get": _operation(kind, "list", version)}
    collection = {"get": _operation(kind, "list", version)}
    collection["post"] = _operation(kind, "post", version)
    yield base, collection
    if "get" in kind.verbs:
        verbs = ("get", "put", "patch", "delete")
        yield f"{base}/{{name}}", {verb: _operation(kind, verb, version) for verb in verbs}


def _operation(kind: Kind, verb: str, version: int) -> dict[str, Any]:
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    where = {"schema": {"type": "string"}} if version == 3 else {"type": "string"}
    media = list(_PATCHES) if kind.definition is not None else [*_PATCHES, _STRATEGIC]
    made: dict[str, Any] = {
        "operationId": f"{verb}{kind.group.title().replace('.', '')}{kind.version}{kind.kind}",
        "x-kubernetes-action": verb,
        _GVK: gvk,
        "parameters": [{"name": name, "in": "query", **where} for name in _PARAMETERS]
        if verb in ("patch", "post", "put")
        else [],
        "responses": {"200": {"description": "OK"}},
    }
    if verb == "patch" and version == 3:
        made["requestBody"] = {"content": {one: {"schema": {}} for one in media}}
    elif verb == "patch":
        made["consumes"] = media
    return made
