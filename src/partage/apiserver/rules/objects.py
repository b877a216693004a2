"""The other built-in kinds: what is filled in and refused.

Source of what holds of ResourceClaims, their templates and DeviceClasses: Kubernetes v1.36.4, `pkg/apis/resource`
(defaults, validation).
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems
from partage.apiserver.rules.resources import check_amounts
from partage.apiserver.rules.scheduling import check_taints

_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_TEXT: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_LARGEST_DATA: Final = 2**20
_RBAC: Final = "rbac.authorization.k8s.io"


def fill_secret(value: dict[str, Any]) -> None:
    """Moves `stringData` into `data`, in place."""
    texts = value.pop("stringData", None)
    if texts:
        coded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        value["data"] = {**(value.get("data") or {}), **coded}
    value.setdefault("type", "Opaque")


def check_bytes(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports malformed keys and too much data in a ConfigMap or Secret."""
    size = 0
    for group in ("data", "binaryData"):
        for key, text in (value.get(group) or {}).items():
            size += len(text)
            if not _KEY.fullmatch(key) or key in (".", ".."):
                problems.invalid(f"{group}[{key}]", key, _KEY_TEXT)
            if group == "binaryData" and key in (value.get("data") or {}):
                problems.invalid(f"binaryData[{key}]", key, "duplicate of key present in data")
    if size > _LARGEST_DATA:
        problems.too_long("data" if value["kind"] == "Secret" else "", _LARGEST_DATA)


def check_data_update(new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems) -> None:
    """Reports changes of an immutable ConfigMap or Secret."""
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        problems.forbidden("immutable", "field is immutable when `immutable` is set")
    for group in ("data", "binaryData"):
        if new.get(group) != old.get(group):
            problems.forbidden(group, "field is immutable when `immutable` is set")


def fill_node(value: dict[str, Any]) -> None:
    """Allocatable is capacity where it is not told."""
    status = value.setdefault("status", {})
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def check_node(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports malformed taints and amounts of a Node."""
    spec, status = value.get("spec") or {}, value.get("status") or {}
    check_taints(spec.get("taints") or (), "metadata.taints", problems)
    for group in ("capacity", "allocatable"):
        check_amounts(status.get(group) or {}, f"status.{group}", problems)


def check_node_update(new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems) -> None:
    """Reports another range of pods' addresses where a Node has one."""
    before = (old.get("spec") or {}).get("podCIDR")
    if before and (new.get("spec") or {}).get("podCIDR") != before:
        problems.forbidden(
            "spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid'
        )


def check_quota(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports malformed names and amounts of a ResourceQuota."""
    hard = (value.get("spec") or {}).get("hard") or {}
    plain = {k: v for k, v in hard.items() if not k.startswith(("count/", "requests.", "limits."))}
    check_amounts(plain, "spec.hard", problems)


def check_lease(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports impossible durations of a Lease."""
    spec = value.get("spec") or {}
    if spec.get("leaseDurationSeconds", 1) <= 0:
        problems.invalid(
            "spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"
        )
    problems.negative(spec, "spec", "leaseTransitions")


def check_event(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports an event that lies in another namespace than what it is about."""
    about = (value.get("involvedObject") or {}).get("namespace", "")
    here = value["metadata"].get("namespace", "")
    if (about and about != here) or (not about and here not in ("default", "kube-system")):
        problems.invalid("involvedObject.namespace", about, "does not match event.namespace")


def check_priority_class(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports values that are reserved for the system."""
    name = value["metadata"].get("name", "")
    if name.startswith("system-") and name not in (
        "system-cluster-critical",
        "system-node-critical",
    ):
        problems.forbidden(
            "metadata.name",
            "priority class names with 'system-' prefix are reserved for system use only. error: "
            f"{name} is not a known system priority class",
        )
    if value.get("value", 0) > 10**9 and not name.startswith("system-"):
        problems.forbidden(
            "value", "maximum allowed value of a user defined priority is 1000000000"
        )
    if value.get("preemptionPolicy") not in ("Never", "PreemptLowerPriority"):
        problems.unsupported(
            "preemptionPolicy", value.get("preemptionPolicy"), ["Never", "PreemptLowerPriority"]
        )


def check_priority_class_update(
    new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems
) -> None:
    """Reports changes of what may not change."""
    for key in ("value", "preemptionPolicy"):
        if new.get(key) != old.get(key):
            problems.forbidden(key, "may not be changed in an update.")


def fill_service(value: dict[str, Any]) -> None:
    """Fills in a Service, in place."""
    spec = value.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port", 0))
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")


def check_service(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports missing and impossible ports of a Service."""
    spec = value["spec"]
    types = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec["type"] not in types:
        problems.unsupported("spec.type", spec["type"], types)
    ports = spec.get("ports") or ()
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        problems.required("spec.ports")
    for index, port in enumerate(ports):
        problems.port(f"spec.ports[{index}].port", port.get("port", 0))
        target = port.get("targetPort", 1)
        if isinstance(target, int):
            problems.port(f"spec.ports[{index}].targetPort", target)
        if len(ports) > 1 and not port.get("name"):
            problems.required(f"spec.ports[{index}].name")


def fill_roles(value: dict[str, Any]) -> None:
    """Fills in the API groups of a role binding, in place."""
    if "roleRef" in value:
        value["roleRef"].setdefault("apiGroup", _RBAC)
    for subject in value.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", _RBAC)


def check_role_reference(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports a role binding that names no role."""
    reference = value.get("roleRef") or {}
    if reference.get("kind") not in ("Role", "ClusterRole"):
        problems.unsupported("roleRef.kind", reference.get("kind", ""), ["ClusterRole", "Role"])
    if not reference.get("name"):
        problems.required("roleRef.name")


def fill_webhooks(value: dict[str, Any]) -> None:
    """Fills in a webhook configuration, in place."""
    for hook in value.get("webhooks") or ():
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("timeoutSeconds", 10)
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        if value["kind"].startswith("Mutating"):
            hook.setdefault("reinvocationPolicy", "Never")
        for rule in hook.get("rules") or ():
            rule.setdefault("scope", "*")
        service = (hook.get("clientConfig") or {}).get("service")
        if service is not None:
            service.setdefault("port", 443)


def fill_claim(value: dict[str, Any]) -> None:
    """Fills in a ResourceClaim, in place."""
    _fill(value.setdefault("spec", {}))


def fill_template(value: dict[str, Any]) -> None:
    """Fills in a ResourceClaimTemplate, in place."""
    _fill(value.setdefault("spec", {}).setdefault("spec", {}))


def check_claim(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports what is wrong with a ResourceClaim."""
    _check(value.get("spec") or {}, "spec", problems)


def check_template(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports what is wrong with a ResourceClaimTemplate."""
    _check((value.get("spec") or {}).get("spec") or {}, "spec.spec", problems)


def check_spec_update(new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems) -> None:
    """Reports changes of what a claim or a template asks for."""
    if new.get("spec") != old.get("spec"):
        problems.invalid("spec", new.get("spec"), "field is immutable")


def _fill(spec: dict[str, Any]) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        exactly = request.get("exactly")
        for one in ([exactly] if exactly else []) + list(request.get("firstAvailable") or ()):
            one.setdefault("allocationMode", "ExactCount")
            if one["allocationMode"] == "ExactCount":
                one.setdefault("count", 1)


def _check(spec: Mapping[str, Any], where: str, problems: Problems) -> None:
    for number, request in enumerate((spec.get("devices") or {}).get("requests") or ()):
        path = f"{where}.devices.requests[{number}]"
        name = request.get("name") or ""
        for why in naming.domain_label(name):
            problems.invalid(f"{path}.name", name, why)
        for part, one in _asked(path, request):
            if not one.get("deviceClassName"):
                problems.required(f"{part}.deviceClassName")


def _asked(path: str, request: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if request.get("exactly"):
        yield f"{path}.exactly", request["exactly"]
    for number, one in enumerate(request.get("firstAvailable") or ()):
        yield f"{path}.firstAvailable[{number}]", one
