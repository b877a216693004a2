"""What the chart makes for the Prometheus operator and for Grafana is what the repository has."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import HELM, generate, needs_helm, objects_of

ROOT = Path(__file__).parents[2]
GROUPS = yaml.safe_load((ROOT / "deploy/observability/alerts.yaml").read_text())["groups"]
WANTED = ("metrics.operator=true", "metrics.dashboards=true")


def objects(*values: str) -> list[dict[str, Any]]:
    """What the chart renders to with these values."""
    options = [part for value in values for part in ("--set", value)]
    text = generate.rendered(str(HELM), "default", *options)
    return objects_of(text)


def of(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The objects of a kind."""
    return [one for one in found if one["kind"] == kind]


def test_the_charts_files_are_made_of_the_same_tables() -> None:
    """`deploy/generate.py files` brings them up to date."""
    made = generate.files()
    assert {path.name for path in (generate.CHART / "files").iterdir()} == made.keys()
    for name, text in made.items():
        assert (generate.CHART / "files" / name).read_text("utf-8") == text, name
    assert json.loads(made["alerts.json"])["groups"] == GROUPS


@needs_helm
def test_nothing_of_it_is_there_unasked() -> None:
    """Clusters without the operator's definitions must not meet its objects."""
    found = objects()
    assert of(found, "PodMonitor") == of(found, "PrometheusRule") == []
    assert not [o for o in of(found, "ConfigMap") if "dashboard" in o["metadata"]["name"]]


@needs_helm
@pytest.mark.parametrize(
    ("value", "missing"),
    [("agent.enabled=true", ""), ("webhook.enabled=false", "partage-webhook")],
)
def test_rules_are_those_of_the_programs_that_run(value: str, missing: str) -> None:
    """A group whose program is off would cry about its absence."""
    found = objects(*WANTED, value)
    agent = bool(of(found, "DaemonSet"))
    (rules,) = of(found, "PrometheusRule")
    left = [g for g in GROUPS if g["name"] != missing and (agent or g["name"] != "partage-agent")]

    assert rules["spec"]["groups"] == left


@needs_helm
def test_every_program_is_scraped_where_it_serves_metrics() -> None:
    """The monitor's labels are on every pod, and each of its ports on one of them."""
    found = objects(*WANTED, "agent.enabled=true")
    (monitor,) = of(found, "PodMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    ports = set()
    for one in [*of(found, "Deployment"), *of(found, "DaemonSet")]:
        template = one["spec"]["template"]
        assert wanted <= template["metadata"]["labels"].items(), one["metadata"]["name"]
        ports |= {p["name"] for c in template["spec"]["containers"] for p in c.get("ports", ())}

    assert {end["port"] for end in monitor["spec"]["podMetricsEndpoints"]} <= ports


@needs_helm
def test_dashboards_are_found_by_their_label() -> None:
    """Grafana's sidecar looks for that label, and finds them whole."""
    found = objects(*WANTED, "metrics.dashboardLabel=example.com/board")
    made = generate.dashboards()
    boards = [o for o in of(found, "ConfigMap") if "example.com/board" in o["metadata"]["labels"]]

    assert {n: t for o in boards for n, t in o["data"].items()} == made
