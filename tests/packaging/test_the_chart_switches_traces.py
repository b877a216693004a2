"""Traces in the chart: nothing of them by default; with them every program that makes spans has all it needs."""

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from charts import HELM, generate, needs_helm, objects_of

ROOT = Path(__file__).parents[2]


def _containers(*values: str) -> dict[str, dict[str, Any]]:
    """Containers of all programs by name, as the chart makes them with these values."""
    given = ("agent.enabled=true", *values)
    text = generate.rendered(str(HELM), "default", *(p for v in given for p in ("--set", v)))
    found = objects_of(text)
    pods = [
        one["spec"]["template"]["spec"] for one in found if "template" in (one.get("spec") or {})
    ]
    return {one["name"]: one for pod in pods for one in pod["containers"]}


@needs_helm
def test_nothing_is_traced_by_default() -> None:
    """No option and no variable."""
    assert not [
        name
        for name, one in _containers().items()
        if "--traces" in one.get("args", ()) or "OTEL" in str(one.get("env"))
    ]


@needs_helm
def test_every_program_sends_where_the_values_say() -> None:
    """The option, the collector, the ratio, and more variables; kube-scheduler is left alone."""
    found = _containers(
        "traces.enabled=true",
        "traces.endpoint=http://c:4318",
        "traces.ratio=0.1",
        "traces.env[0].name=OTEL_EXPORTER_OTLP_HEADERS",
        "traces.env[0].value=a=b",
    )

    traced = {name for name, one in found.items() if "--traces" in one.get("args", ())}
    assert traced == {"scheduler", "webhook", "agent"}
    for name in traced:
        env = {one["name"]: one.get("value") for one in found[name]["env"]}
        assert {key: value for key, value in env.items() if key.startswith("OTEL")} == {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.1",
            "OTEL_EXPORTER_OTLP_HEADERS": "a=b",
        }


@needs_helm
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("traces.enabled=true", "traces.enabled needs traces.endpoint"),
        ("traces.ratio=2", "traces/ratio|traces.ratio"),
        ("traces.endpoint=c:4318", "endpoint"),
    ],
)
def test_values_that_cannot_work_are_refused(value: str, why: str) -> None:
    """`helm install` refuses them by name."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        generate.rendered(str(HELM), "default", "--set", value)

    assert any(part in raised.value.stderr for part in why.split("|"))


def test_the_image_can_send_traces() -> None:
    """It has the extra, and the tests have what is in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {
        one.partition(">")[0] for one in project["project"]["optional-dependencies"]["trace"]
    }

    locked = (ROOT / "requirements/image.txt").read_text(encoding="utf-8")
    assert all(f"\n{one}==" in locked for one in packages)
    group = {str(one).partition(">")[0] for one in project["dependency-groups"]["test"]}
    assert packages <= group
