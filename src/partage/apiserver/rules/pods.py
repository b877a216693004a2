"""Validation of pods and pod templates, and of their later changes; and pods' quality of service."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from partage.apiserver.problems import Problems
from partage.apiserver.rules.containers import (
    check_claims,
    check_host_ports,
    check_mounts,
    check_once,
)

_SOURCES: Final = {"resourceClaimName", "resourceClaimTemplateName"}
_NAMED: Final = [f"`{name}`" for name in sorted(_SOURCES)]
_IMMUTABLE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)


def check_pod(pod: Mapping[str, Any], problems: Problems) -> None:
    """Reports problems of a pod."""
    spec = pod.get("spec") or {}
    check_spec(spec, "spec", problems)
    if spec.get("ephemeralContainers"):
        problems.forbidden("spec.ephemeralContainers", "cannot be set on create")
    for group in ("limits", "requests"):
        for name in (spec.get("resources") or {}).get(group) or ():
            if name not in ("cpu", "memory") and not name.startswith("hugepages-"):
                known = ("cpu", "hugepages-", "memory")
                problems.unsupported(f"spec.resources.{group}[{name}]", name, known)


def check_spec(spec: Mapping[str, Any], field: str, problems: Problems) -> None:
    """Reports problems of a pod's spec in `field`, such as `spec` or `spec.template.spec`."""
    volumes = {one.get("name", "") for one in spec.get("volumes") or ()}
    if not spec.get("containers"):
        problems.required(f"{field}.containers")
    names: set[str] = set()
    claims = _check_claims(spec.get("resourceClaims") or (), field, problems)
    taken: set[str] = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{field}.{group}[{index}]"
            check_mounts(container, f"{where}.volumeMounts", volumes, problems)
            check_claims(container, f"{where}.resources.claims", claims, problems)
            problems.once(f"{where}.name", container.get("name", ""), names)
            if group == "initContainers":
                if container.get("restartPolicy") != "Always":
                    check_once(container, where, problems)
                continue
            check_host_ports(
                container, f"{where}.ports", taken, problems, same=bool(spec.get("hostNetwork"))
            )
    if spec.get("dnsPolicy") == "None" and not spec.get("dnsConfig"):
        problems.required(
            f"{field}.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None"
        )
    if spec.get("schedulingGates") and spec.get("nodeName"):
        problems.forbidden(
            f"{field}.nodeName", "cannot be set until all schedulingGates have been cleared"
        )


def _check_claims(claims: Sequence[Any], field: str, problems: Problems) -> set[str]:
    for index, one in enumerate(claims):
        where = f"{field}.resourceClaims[{index}]"
        sources = len(_SOURCES & set(one))
        if sources > 1:
            problems.invalid(where, one, f"at most one of {' or '.join(_NAMED)} may be specified")
        elif not sources:
            problems.invalid(where, one, f"must specify one of: {', '.join(_NAMED)}")
    return {one.get("name", "") for one in claims}


def check_volume(volume: Mapping[str, Any], field: str, problems: Problems) -> None:
    """Reports a volume without a source or with several, and a source that names nothing."""
    sources = [key for key in volume if key != "name"]
    if not sources:
        problems.required(field, "must specify a volume type")
    for extra in sources[1:]:
        problems.forbidden(f"{field}.{extra}", "may not specify more than 1 volume type")
    for source, key in (("hostPath", "path"), ("configMap", "name"), ("secret", "secretName")):
        if source in volume and not volume[source].get(key):
            problems.required(f"{field}.{source}.{key}")


def check_pod_update(new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems) -> None:
    """Reports changes that an existing pod's spec does not allow."""
    after, before = dict(new.get("spec") or {}), dict(old.get("spec") or {})
    _check_gates(after, before, problems)
    _check_deadline(after.get("activeDeadlineSeconds"), before, problems)
    gated = bool(before.get("schedulingGates"))
    if not _tolerated(before) <= _tolerated(after):
        problems.forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        )
    for group in ("containers", "initContainers"):
        if len(after.get(group) or ()) != len(before.get(group) or ()):
            problems.forbidden(f"spec.{group}", "pod updates may not add or remove containers")
            return
        after[group] = _without_images(after.get(group))
        before[group] = _without_images(before.get(group))
    for key in ("tolerations", "schedulingGates", "activeDeadlineSeconds", "serviceAccount"):
        after.pop(key, None)
        before.pop(key, None)
    if gated:
        for key in ("nodeSelector", "affinity"):
            after.pop(key, None)
            before.pop(key, None)
    if before.get("terminationGracePeriodSeconds", 0) < 0:
        before["terminationGracePeriodSeconds"] = after.get("terminationGracePeriodSeconds")
    if after != before:
        changed = sorted(k for k in {*after, *before} if after.get(k) != before.get(k))
        problems.forbidden("spec", f"{_IMMUTABLE}\n  changed: {', '.join(changed)}\n")


def _tolerated(spec: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """The tolerations of a spec without their seconds, which may change."""
    keys = ("key", "operator", "value", "effect")
    return {tuple(one.get(key) or "" for key in keys) for one in spec.get("tolerations") or ()}


def _check_deadline(after: int | None, spec: Mapping[str, Any], problems: Problems) -> None:
    before = spec.get("activeDeadlineSeconds")
    if before is None or after == before:
        return
    if after is None:
        why = "must not update from a positive integer to nil value"
        problems.invalid("spec.activeDeadlineSeconds", None, why)
    elif after > before:
        why = "must be less than or equal to previous value"
        problems.invalid("spec.activeDeadlineSeconds", after, why)


def _without_images(containers: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in one.items() if k != "image"} for one in containers or ()]


def _check_gates(after: Mapping[str, Any], before: Mapping[str, Any], problems: Problems) -> None:
    old = {gate.get("name") for gate in before.get("schedulingGates") or ()}
    for index, gate in enumerate(after.get("schedulingGates") or ()):
        if (name := gate.get("name")) not in old:
            problems.forbidden(
                f"spec.schedulingGates[{index}].name",
                f"only deletion is allowed, but found new scheduling gate '{name}'",
            )


def quality(spec: Mapping[str, Any]) -> str:
    """The quality of service class: Guaranteed, Burstable or BestEffort, by CPU and memory."""
    requests: set[str] = set()
    limits: set[str] = set()
    guaranteed = True
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        resources = container.get("resources") or {}
        mine = resources.get("limits") or {}
        asked = resources.get("requests") or {}
        for name in ("cpu", "memory"):
            if asked.get(name, "0") != "0":
                requests.add(name)
            if mine.get(name, "0") == "0" or asked.get(name) != mine[name]:
                guaranteed = False
            else:
                limits.add(name)
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
