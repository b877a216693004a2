"""Validation of the other built-in kinds.

Source for ResourceClaims, their templates and DeviceClasses: Kubernetes v1.36.4, `pkg/apis/resource`
(validation).
"""

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from partage.apiserver.problems import Problems
from partage.apiserver.rules.resources import COUNTED, amount, check_amounts
from partage.apiserver.rules.scheduling import check_taints

_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_TEXT: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_ADDRESS_TEXT: Final = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_LARGEST_DATA: Final = 2**20
_SECRETS: Final[Mapping[str, tuple[str, ...]]] = {
    "basic-auth": ("username", "password"),
    "dockercfg": (".dockercfg",),
    "dockerconfigjson": (".dockerconfigjson",),
    "ssh-auth": ("ssh-privatekey",),
    "tls": ("tls.crt", "tls.key"),
}
"""Required data of each type of Secret: a certificate needs all of it, the others one at least."""
_SCOPES: Final = (
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
)


def fixed(*paths: str, why: str = "field is immutable") -> Callable[..., None]:
    """A check that reports changes of immutable fields."""

    def check(new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems) -> None:
        for path in paths:
            pair: list[Any] = [new, old]
            for name in path.split("."):
                pair = [(at or {}).get(name) for at in pair]
            if pair[0] != pair[1]:
                problems.invalid(path, pair[0], why)

    return check


def check_secret(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports problems of a Secret's data, and data that its type needs and it lacks."""
    check_bytes(value, problems)
    data, type_ = value.get("data") or {}, str(value.get("type", ""))
    wanted = _SECRETS.get(type_.removeprefix("kubernetes.io/"), ())
    if wanted and (type_ == "kubernetes.io/tls" or not any(key in data for key in wanted)):
        for key in wanted:
            if key not in data:
                problems.required(f"data[{key}]")


def check_secret_update(
    new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems
) -> None:
    """Reports a change of a Secret's type, and changes of an immutable one."""
    fixed("type")(new, old, problems)
    check_data_update(new, old, problems)


def check_bytes(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports malformed keys and too much data in a ConfigMap or Secret."""
    size = 0
    for group in ("data", "binaryData"):
        for key, text in (value.get(group) or {}).items():
            size += len(text)
            if not _KEY.fullmatch(key) or key in (".", ".."):
                problems.invalid(f"{group}[{key}]", key, _KEY_TEXT)
            if group == "binaryData" and key in (value.get("data") or {}):
                problems.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    if size > _LARGEST_DATA:
        problems.too_long("data" if value["kind"] == "Secret" else "[]", _LARGEST_DATA)


def check_data_update(new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems) -> None:
    """Reports changes of an immutable ConfigMap or Secret."""
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        problems.forbidden("immutable", "field is immutable when `immutable` is set")
    for group in ("data", "binaryData"):
        if new.get(group) != old.get(group):
            problems.forbidden(group, "field is immutable when `immutable` is set")


def check_node(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports malformed taints and amounts of a Node."""
    spec, status = value.get("spec") or {}, value.get("status") or {}
    check_taints(spec.get("taints") or (), "metadata.taints", problems)
    for group in ("capacity", "allocatable"):
        check_amounts(status.get(group) or {}, f"status.{group}", problems, node=True)


def check_node_update(new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems) -> None:
    """Reports a change of a Node's identity at its provider, or of its range of pods' addresses."""
    for key, field in (("providerID", "spec.providerID"), ("podCIDR", "spec.podCIDRs")):
        before = (old.get("spec") or {}).get(key)
        if before and (new.get("spec") or {}).get(key) != before:
            why = f'node updates may not change {key} except from "" to valid'
            problems.forbidden(field, why)


def check_quota(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports malformed names and amounts of a ResourceQuota."""
    hard = (value.get("spec") or {}).get("hard") or {}
    plain = {k: v for k, v in hard.items() if not k.startswith(("count/", "requests.", "limits."))}
    check_amounts(plain, "spec.hard", problems)
    for name, text in hard.items():
        counted = "/" in name or name.partition(".")[0] in COUNTED
        if name not in plain and amount(text).nano < 0:
            problems.invalid(f"spec.hard[{name}]", text, "must be greater than or equal to 0")
        elif counted and amount(text).milli() % 1000:
            problems.invalid(f"spec.hard[{name}]", text, "must be an integer")
    scopes = (value.get("spec") or {}).get("scopes") or []
    if any(one not in _SCOPES for one in scopes):
        problems.invalid("spec.scopes", scopes, "unsupported scope")


def check_event(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports an event in another namespace than its object's."""
    about = (value.get("involvedObject") or {}).get("namespace", "")
    here = value["metadata"].get("namespace", "")
    if (about and about != here) or (not about and here not in ("default", "kube-system")):
        problems.invalid("involvedObject.namespace", about, "does not match event.namespace")


def check_priority_class(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports values reserved for the system."""
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


def check_priority_class_update(
    new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems
) -> None:
    """Reports changes of immutable fields."""
    for key in ("value", "preemptionPolicy"):
        if new.get(key) != old.get(key):
            problems.forbidden(key, "may not be changed in an update.")


def check_service(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports missing ports and names of a Service, and an impossible address."""
    spec = value["spec"]
    ports = spec.get("ports") or ()
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        problems.required("spec.ports")
    names: set[str] = set()
    for index, port in enumerate(ports):
        if port.get("name"):
            problems.once(f"spec.ports[{index}].name", port["name"], names)
        elif len(ports) > 1:
            problems.required(f"spec.ports[{index}].name")
    if spec["type"] == "ExternalName" and not spec.get("externalName"):
        problems.required("spec.externalName")
    address = spec.get("clusterIP", "None")
    if address != "None" and not _is_address(address):
        problems.invalid("spec.clusterIPs[0]", address, _ADDRESS_TEXT)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def check_service_update(
    new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems
) -> None:
    """Reports a changed address of a Service that keeps its type."""
    after, before = new["spec"], old["spec"]
    address = after.get("clusterIP")
    if address and after["type"] == before["type"] and address != before.get("clusterIP"):
        problems.invalid("spec.clusterIPs[0]", [address], "may not change once set")


def check_role_reference(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports a role binding that names no role."""
    reference = value.get("roleRef") or {}
    if reference.get("kind") not in ("Role", "ClusterRole"):
        problems.unsupported("roleRef.kind", reference.get("kind", ""), ["Role", "ClusterRole"])
    if not reference.get("name"):
        problems.required("roleRef.name")


def check_claim(value: Mapping[str, Any], problems: Problems, where: str = "spec") -> None:
    """Reports problems of a ResourceClaim, or of a template with the claim's spec at that path."""
    for name in where.split("."):
        value = value.get(name) or {}
    devices, names = value.get("devices") or {}, set[str]()
    for number, request in enumerate(devices.get("requests") or ()):
        path, name = f"{where}.devices.requests[{number}]", request.get("name") or ""
        problems.once(path, name, names)
        inner: set[str] = set()
        for index, one in enumerate(request.get("firstAvailable") or ()):
            problems.once(f"{path}.firstAvailable[{index}]", one.get("name", ""), inner)
        names |= {f"{name}/{one}" for one in inner}
    for number, one in enumerate(devices.get("constraints") or ()):
        for index, name in enumerate(one.get("requests") or ()):
            if name not in names:
                problems.invalid(
                    f"{where}.devices.constraints[{number}].requests[{index}]",
                    name,
                    "must be the name of a request in the claim or the name of a request and a "
                    "subrequest separated by '/'",
                )
