"""HorizontalPodAutoscalers of `autoscaling/v1`: the objects of version 2 with fewer fields.

Version 1 has a field for one metric alone, the use of CPU in percent. As on a genuine server, annotations have what else
version 2 knows: other metrics, behaviour and conditions, so a change by version 1 loses none of them.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from partage.apiserver.decoding import Mismatch, conform
from partage.model.errors import UNREADABLE
from partage.wire.field_types import Type, catalogue

V1: Final = "autoscaling/v1"
_V2: Final = "autoscaling/v2"
_PACKAGE: Final = "autoscaling.alpha.kubernetes.io/"
_METRICS: Final = _PACKAGE + "metrics"
_BEHAVIOR: Final = _PACKAGE + "behavior"
_CONDITIONS: Final = _PACKAGE + "conditions"
_NAMED: Final = {"metricName": ("metric", "name"), "selector": ("metric", "selector")}
_AVERAGE: Final = {"targetAverageValue": ("target", "averageValue")}
_RESOURCE: Final = {
    "name": ("name",),
    "targetAverageUtilization": ("target", "averageUtilization"),
    **_AVERAGE,
}
_VALUE: Final = {"targetValue": ("target", "value")}
_SOURCES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "resource": _RESOURCE,
    "containerResource": {**_RESOURCE, "container": ("container",)},
    "pods": {**_NAMED, **_AVERAGE},
    "object": {
        **_NAMED,
        **_VALUE,
        "target": ("describedObject",),
        "averageValue": ("target", "averageValue"),
    },
    "external": {
        "metricName": ("metric", "name"),
        "metricSelector": ("metric", "selector"),
        **_VALUE,
        **_AVERAGE,
    },
}
"""Fields of a metric's source in version 1, and their paths in version 2."""


def outward(value: dict[str, Any]) -> dict[str, Any]:
    """A stored object in the form of version 1."""
    spec, status = dict(value.get("spec") or {}), dict(value.get("status") or {})
    metrics, behavior = spec.pop("metrics", None) or [], spec.pop("behavior", None)
    measured, conditions = status.pop("currentMetrics", None), status.pop("conditions", None)
    if (percent := _percent(metrics, "target")) is not None:
        spec["targetCPUUtilizationPercentage"] = percent
    if (used := _percent(measured or [], "current")) is not None:
        status["currentCPUUtilizationPercentage"] = used
    head = dict(value["metadata"])
    told = {
        _METRICS: [_older(one) for one in metrics if _percent([one], "target") is None],
        _BEHAVIOR: _spelled(behavior, str.upper),
        _CONDITIONS: conditions,
    }
    written = {key: msgspec.json.encode(one).decode() for key, one in told.items() if one}
    if written:
        head["annotations"] = {**(head.get("annotations") or {}), **written}
    return {**value, "apiVersion": V1, "metadata": head, "spec": spec, "status": status}


def inward(value: dict[str, Any]) -> dict[str, Any]:
    """An object of version 1 in its stored form. Without any metric it has the default, 80 % of the CPU."""
    spec, status = dict(value.get("spec") or {}), dict(value.get("status") or {})
    head = dict(value["metadata"])
    annotations = dict(head.get("annotations") or {})
    metrics = [_newer(one) for one in _read(annotations.pop(_METRICS, ""), list[dict[str, Any]])]
    metrics = _kept(metrics, "HorizontalPodAutoscalerSpec", "metrics") or []
    percent = spec.pop("targetCPUUtilizationPercentage", None)
    if percent is not None or not metrics:
        target = {"type": "Utilization", "averageUtilization": 80 if percent is None else percent}
        metrics.append({"type": "Resource", "resource": {"name": "cpu", "target": target}})
    spec["metrics"] = metrics
    behavior = _spelled(_read(annotations.pop(_BEHAVIOR, ""), dict[str, Any]), str.lower)
    if behavior := _kept(behavior, "HorizontalPodAutoscalerSpec", "behavior"):
        spec["behavior"] = behavior
    used = status.pop("currentCPUUtilizationPercentage", None)
    if used is not None:
        current = {"name": "cpu", "current": {"averageUtilization": used}}
        status["currentMetrics"] = [{"type": "Resource", "resource": current}]
    conditions = _read(annotations.pop(_CONDITIONS, ""), list[dict[str, Any]])
    if conditions := _kept(conditions, "HorizontalPodAutoscalerStatus", "conditions"):
        status["conditions"] = conditions
    if annotations:
        head["annotations"] = annotations
    else:
        head.pop("annotations", None)
    return {**value, "apiVersion": _V2, "metadata": head, "spec": spec, "status": status}


def _percent(metrics: list[dict[str, Any]], where: str) -> int | None:
    """The first use of CPU in percent among metrics."""
    for one in metrics:
        source = one.get("resource") or {}
        percent: int | None = (source.get(where) or {}).get("averageUtilization")
        if one.get("type") == "Resource" and source.get("name") == "cpu" and percent is not None:
            return percent
    return None


def _source(metric: Mapping[str, Any]) -> str:
    kind = str(metric.get("type") or "")
    return kind[:1].lower() + kind[1:]


def _older(metric: dict[str, Any]) -> dict[str, Any]:
    """A metric in the form of version 1."""
    source = _source(metric)
    told: dict[str, Any] = {"targetValue": "0"} if source == "object" else {}
    for name, path in _SOURCES.get(source, {}).items():
        found: Any = metric.get(source)
        for key in path:
            found = (found or {}).get(key)
        if found is not None:
            told[name] = found
    return {"type": metric["type"], source: told}


def _newer(metric: dict[str, Any]) -> dict[str, Any]:
    """A metric of version 1 in the form of version 2."""
    source = _source(metric)
    given = metric.get(source)
    if source not in _SOURCES or not isinstance(given, dict):
        return metric
    if source == "object" and "averageValue" in given and given.get("targetValue") == "0":
        given = {key: one for key, one in given.items() if key != "targetValue"}
    told: dict[str, Any] = {"target": {}}
    for name, path in _SOURCES[source].items():
        if name in given:
            place = told
            for key in path[:-1]:
                place = place.setdefault(key, {})
            place[path[-1]] = given[name]
    target = told["target"]
    relative, mean = "averageUtilization" in target, "averageValue" in target
    target["type"] = "Utilization" if relative else "AverageValue" if mean else "Value"
    return {"type": metric["type"], source: told}


def _spelled(value: Any, case: Any) -> Any:
    """A value with the first letter of every key in another case: version 1 has Go's own names of a behaviour."""
    if isinstance(value, dict):
        return {case(key[:1]) + key[1:]: _spelled(one, case) for key, one in value.items()}
    return [_spelled(one, case) for one in value] if isinstance(value, list) else value


def _read(text: str, shape: Any) -> Any:
    """An annotation's value; one that is no such JSON counts as empty, as on a genuine server."""
    try:
        return msgspec.json.decode(text, type=shape)
    except UNREADABLE:
        return shape()


def _kept(value: Any, struct: str, name: str) -> Any:
    """The value in the shape of a field of version 2; None if it has another."""
    shape: Type = catalogue()[f"io.k8s.api.autoscaling.v2.{struct}"].fields[name].type
    try:
        return conform(value, shape, [], "", "HorizontalPodAutoscaler")
    except (Mismatch, RecursionError):
        return None
