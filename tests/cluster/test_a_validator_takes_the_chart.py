"""kubeconform, by the API server's own schemas, takes every object of the chart and of the plain manifests."""

import subprocess
from pathlib import Path
from typing import Any

import generate
import pytest
import schemas
import yaml
from chart import CHART
from control_plane import HELM, KUBECONFORM, KUBERNETES, control_plane

PROFILES = tuple(generate.NAMESPACES)
EVERYTHING = (
    "--set",
    "agent.enabled=true,agent.mig=true,agent.devicePlugin.enabled=true",
    "--set",
    "agent.evictUnprotected=true,agent.cdiKind=nvidia.com/gpu,scheduler.preemption=true",
    "--set",
    "agent.dra.enabled=true,scheduler.claims=true",
    "--set",
    "agent.isolation.provider=partage,traces.enabled=true,traces.endpoint=http://c:4318",
)
pytestmark = pytest.mark.skipif(
    not KUBECONFORM.exists(), reason="kubeconform not built; run tests/cluster/build"
)
SIMULATED = ("--set", "agent.enabled=true,agent.simulated.model=Tesla-T4,agent.simulated.cards=2")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schemas of all versions that the chart's objects have."""
    folder = tmp_path_factory.mktemp("schemas")
    used = {
        one["apiVersion"]
        for profile in PROFILES
        for one in yaml.safe_load_all(
            generate.rendered(str(HELM), profile, *EVERYTHING, hooks=True)
        )
        if one
    }
    with control_plane(tmp_path_factory.mktemp("plane")) as plane:
        schemas.write(plane, folder, used)
    return folder


@pytest.mark.parametrize("options", [(), EVERYTHING, SIMULATED], ids=["plain", "all", "simulated"])
@pytest.mark.parametrize("profile", PROFILES)
def test_every_object_of_the_chart_is_taken(
    own: Path, profile: str, options: tuple[str, ...]
) -> None:
    """Each kind has a schema, and no object breaks it."""
    assert not schemas.judged(own, generate.rendered(str(HELM), profile, *options, hooks=True))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_plain_manifest_is_taken(own: Path, profile: str) -> None:
    """What the genuine kubectl makes of the kustomization."""
    made = subprocess.run(
        [str(KUBERNETES / "kubectl"), "kustomize", str(CHART.parents[1] / "kustomize" / profile)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert not schemas.judged(own, made.stdout)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param({"replicas": "two"}, "got string, want integer", id="type"),
        pytest.param({"replica": 2}, "additional properties 'replica' not allowed", id="name"),
        pytest.param({"selector": ...}, "missing property 'selector'", id="required"),
        pytest.param({"strategy": {"type": "Sudden"}}, "must be one of", id="enumeration"),
        pytest.param({"minReadySeconds": 1}, "", id="nothing"),
    ],
)
def test_a_mistake_is_found(own: Path, change: dict[str, Any], told: str) -> None:
    """A schema finds each mistake, and kubeconform prints it."""
    found = yaml.safe_load_all(generate.rendered(str(HELM), "default"))
    one = next(o for o in found if o and o["kind"] == "Deployment")
    spec = {**one["spec"], **change}
    one["spec"] = {key: value for key, value in spec.items() if value is not ...}

    said = "\n".join(schemas.judged(own, yaml.safe_dump(one)))

    assert told in said
    assert bool(told) is bool(said)


def test_a_kind_without_a_schema_is_not_passed_over(own: Path) -> None:
    """A kind without a schema is reported, and not accepted."""
    assert schemas.judged(own, "{apiVersion: example.com/v1, kind: Unknown, metadata: {name: a}}")
