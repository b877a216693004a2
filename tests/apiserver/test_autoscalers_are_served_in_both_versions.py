"""HorizontalPodAutoscalers of `autoscaling/v1` and `v2` are the same objects, as on a genuine server."""

import json
from typing import Any

import pytest
from apiserver_world import World, ok, run

V1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
V2 = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
PREFIX = "autoscaling.alpha.kubernetes.io/"
BEHAVIOR = {
    "scaleDown": {
        "stabilizationWindowSeconds": 60,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}],
    }
}
CPU = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 55}},
}
SELECTOR = {"matchLabels": {"a": "b"}}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Resource": (
        {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}},
        {"name": "memory", "targetAverageValue": "1Gi"},
    ),
    "ContainerResource": (
        {
            "name": "cpu",
            "container": "c",
            "target": {"type": "Utilization", "averageUtilization": 9},
        },
        {"name": "cpu", "container": "c", "targetAverageUtilization": 9},
    ),
    "Pods": (
        {
            "metric": {"name": "m", "selector": SELECTOR},
            "target": {"type": "AverageValue", "averageValue": "5"},
        },
        {"metricName": "m", "selector": SELECTOR, "targetAverageValue": "5"},
    ),
    "Object": (
        {
            "describedObject": TARGET,
            "metric": {"name": "m"},
            "target": {"type": "AverageValue", "averageValue": "5"},
        },
        {"target": TARGET, "metricName": "m", "targetValue": "0", "averageValue": "5"},
    ),
    "External": (
        {
            "metric": {"name": "m", "selector": SELECTOR},
            "target": {"type": "Value", "value": "5"},
        },
        {"metricName": "m", "metricSelector": SELECTOR, "targetValue": "5"},
    ),
}


def autoscaler(version: str, **spec: Any) -> dict[str, Any]:
    """An autoscaler of a Deployment."""
    return {
        "apiVersion": f"autoscaling/{version}",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": TARGET, **spec},
    }


@pytest.mark.parametrize(
    ("given", "percent"), [({}, 80), ({"targetCPUUtilizationPercentage": 7}, 7)]
)
def test_the_first_version_is_stored_as_the_second(given: dict[str, Any], percent: int) -> None:
    """One object is read by both; without a metric it has the default."""

    async def story(w: World) -> None:
        made = ok(await w.post(V1, autoscaler("v1", **given)), 201)
        assert made["apiVersion"] == "autoscaling/v1"
        assert made["spec"] == {
            "maxReplicas": 3,
            "minReplicas": 1,
            "scaleTargetRef": TARGET,
            "targetCPUUtilizationPercentage": percent,
        }
        newer = ok(await w.get(f"{V2}/h"))
        target = {"type": "Utilization", "averageUtilization": percent}
        assert newer["spec"]["metrics"] == [
            {"type": "Resource", "resource": {"name": "cpu", "target": target}}
        ]
        assert (newer["apiVersion"], newer["metadata"]["uid"]) == (
            "autoscaling/v2",
            made["metadata"]["uid"],
        )
        assert "annotations" not in newer["metadata"]

    run(story)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_change_by_the_first_version_loses_no_field_of_the_second(kind: str) -> None:
    """Annotations have what the first version has no field for."""
    newer, older = OTHERS[kind]
    source = kind[0].lower() + kind[1:]

    async def story(w: World) -> None:
        metrics = [{"type": kind, source: newer}, CPU]
        ok(await w.post(V2, autoscaler("v2", metrics=metrics, behavior=BEHAVIOR)), 201)
        before = ok(await w.get(f"{V2}/h"))["spec"]
        shown = ok(await w.get(f"{V1}/h"))
        assert shown["spec"]["targetCPUUtilizationPercentage"] == 55
        written = shown["metadata"]["annotations"]
        assert json.loads(written[PREFIX + "metrics"]) == [{"type": kind, source: older}]
        assert json.loads(written[PREFIX + "behavior"])["ScaleDown"]["SelectPolicy"] == "Max"
        change = {"spec": {"maxReplicas": 5}}
        ok(await w.patch(f"{V1}/h", change))
        after = ok(await w.get(f"{V2}/h"))
        assert after["spec"] == {**before, "maxReplicas": 5}
        assert "annotations" not in after["metadata"]

    run(story)


@pytest.mark.parametrize(
    "text", ["no JSON", "[1]", '[{"type": "Pods", "pods": {"metricName": 1}}]']
)
def test_an_annotation_that_holds_no_metrics_counts_as_none(text: str) -> None:
    """As on a genuine server, it is dropped."""

    async def story(w: World) -> None:
        given = autoscaler("v1")
        given["metadata"]["annotations"] = {PREFIX + "metrics": text, "mine": "x"}
        ok(await w.post(V1, given), 201)
        newer = ok(await w.get(f"{V2}/h"))
        assert [one["resource"]["name"] for one in newer["spec"]["metrics"]] == ["cpu"]
        assert newer["metadata"]["annotations"] == {"mine": "x"}

    run(story)


def test_the_table_is_the_same_in_both() -> None:
    """A row is made from the stored form."""

    async def story(w: World) -> None:
        ok(await w.post(V2, autoscaler("v2", metrics=[CPU])), 201)
        table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        cells = [ok(await w.get(path, headers=table))["rows"][0]["cells"][:4] for path in (V1, V2)]
        assert cells[0] == cells[1] == ["h", "Deployment/web", "cpu: <unknown>/55%", 1]

    run(story)


def test_code_in_the_same_process_creates_either() -> None:
    """`partage up -f` creates an object in the version of its manifest."""

    async def story(w: World) -> None:
        name = "horizontalpodautoscalers.autoscaling"
        await w.server.create(name, autoscaler("v1"), "default")
        assert ok(await w.get(f"{V2}/h"))["spec"]["metrics"]

    run(story)
