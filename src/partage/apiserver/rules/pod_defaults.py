"""The server's defaults for pods and pod templates."""

from collections.abc import Mapping
from typing import Any

from partage.apiserver.rules.resources import fill_requests


def fill(value: dict[str, Any], /, *path: str, **defaults: Any) -> dict[str, Any]:
    """Adds absent defaults to the part of an object at a path, in place; creates an absent part."""
    for name in path:
        value = value.setdefault(name, {})
    for name, default in defaults.items():
        value.setdefault(name, default)
    return value


def fill_pod(pod: dict[str, Any]) -> None:
    """Fills in a pod, in place: a template's defaults, and requests from limits."""
    spec = fill(pod, "spec")
    fill_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in _containers(spec):
        fill_requests(container)


def fill_spec(spec: dict[str, Any]) -> None:
    """Fills in a pod's or a template's spec, in place."""
    fill(spec, restartPolicy="Always", dnsPolicy="ClusterFirst", schedulerName="default-scheduler")
    fill(spec, securityContext={}, terminationGracePeriodSeconds=30)
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for container in _containers(spec):
        _fill_container(container)
        if spec.get("hostNetwork"):
            for port in container.get("ports") or ():
                port.setdefault("hostPort", port.get("containerPort", 0))
    for volume in spec.get("volumes") or ():
        _fill_volume(volume)


def _containers(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        *(spec.get("initContainers") or ()),
        *(spec.get("containers") or ()),
        *(spec.get("ephemeralContainers") or ()),
    ]


def _fill_container(container: dict[str, Any]) -> None:
    fill(container, resources={}, terminationMessagePath="/dev/termination-log")
    fill(container, terminationMessagePolicy="File")
    if "imagePullPolicy" not in container:
        image = container.get("image", "").rpartition("/")[2].partition("@")[0]
        moving = image.partition(":")[2] in ("", "latest") and "@" not in container.get(
            "image", ""
        )
        container["imagePullPolicy"] = "Always" if moving else "IfNotPresent"
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for one in container.get("env") or ():
        reference = (one.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if name in container:
            _fill_probe(container[name])


def _fill_probe(probe: dict[str, Any]) -> None:
    fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    if "httpGet" in probe:
        fill(probe["httpGet"], path="/", scheme="HTTP")


def _fill_volume(volume: dict[str, Any]) -> None:
    if set(volume) == {"name"}:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        if source in volume:
            volume[source].setdefault("defaultMode", 0o644)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)


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
