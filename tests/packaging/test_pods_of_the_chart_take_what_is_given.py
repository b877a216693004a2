"""What an installation gives reaches the pods of every component, and the pods go to different nodes.

The page on restricted clusters says what their ports are and what they need.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from charts import HELM, generate, needs_helm, objects_of

COMPONENTS = ("scheduler", "kubeScheduler", "webhook", "agent")


@needs_helm
def test_annotations_and_affinity_reach_every_pod() -> None:
    """They come beside the chart's own; without them nothing is written."""
    zone = 'affinity={"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}'
    given = [part for one in COMPONENTS for part in ("--set", f"{one}.podAnnotations.team=gpu")]
    given += [part for one in COMPONENTS for part in ("--set-json", f"{one}.{zone}")]
    for options in ([], given):
        text = generate.rendered(str(HELM), "extender", "--set", "agent.enabled=true", *options)
        found = objects_of(text)
        pods = [one["spec"]["template"] for one in found if "template" in one.get("spec", {})]
        assert len(pods) == len(COMPONENTS)
        for one in pods:
            team = (one["metadata"].get("annotations") or {}).get("team")
            assert (team, "affinity" in one["spec"]) == (
                ("gpu", True) if options else (None, False)
            )


@needs_helm
def test_replicas_go_to_different_nodes() -> None:
    """Each component's pods spread over nodes, counted by labels that its pods have and no other's; the agent is on each."""
    text = generate.rendered(str(HELM), "extender", "--set", "agent.enabled=true")
    found = objects_of(text)
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in found
        if "template" in one.get("spec", {})
    }
    replicated = [one for one in found if one["kind"] == "Deployment"]

    assert len(replicated) == len(COMPONENTS) - 1
    for one in replicated:
        (spread,) = one["spec"]["template"]["spec"]["topologySpreadConstraints"]
        wanted = spread.pop("labelSelector")["matchLabels"].items()
        assert spread == {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
        }
        counted = [name for name, has in labels.items() if wanted <= has.items()]
        assert counted == [one["metadata"]["name"]]


PAGE = Path(__file__).parents[2] / "docs/how-to/restricted-clusters.md"
CLAIMS = ("--set", "agent.enabled=true,scheduler.claims=true")


def pods(seam: str) -> dict[str, dict[str, Any]]:
    """Specs of all pods of an installation, by what makes them."""
    text = generate.rendered(str(HELM), seam, *CLAIMS, hooks=True)
    found = objects_of(text)
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in found
        if "template" in one.get("spec", {})
    }


@needs_helm
def test_the_page_has_every_port() -> None:
    """It has those of both seams, and none that no pod has."""
    ports = {
        port["containerPort"]
        for seam in ("default", "extender")
        for spec in pods(seam).values()
        for container in spec["containers"]
        for port in container.get("ports", [])
    }
    table = PAGE.read_text("utf-8").partition("| from | to |")[2].partition("\n\n")[0]
    ours = [row for row in table.splitlines() if "not restricted" not in row]

    assert {int(number) for row in ours for number in re.findall(r"\b\d{4,5}\b", row)} == ports


@needs_helm
@pytest.mark.parametrize("seam", ["default", "extender"])
def test_pods_but_the_agents_pass_the_strictest_pod_security(seam: str) -> None:
    """They pass Kubernetes' standard `restricted`; the agent's does not, which the page says."""
    strict = {name: _restricted(spec) for name, spec in pods(seam).items()}

    assert {name for name, passes in strict.items() if not passes} == {"partage-agent"}
    assert len(strict) > len(COMPONENTS) - 2


def _restricted(spec: dict[str, Any]) -> bool:
    whole = spec.get("securityContext", {})
    kinds = {kind for one in spec.get("volumes", []) for kind in one if kind != "name"}
    host = any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    return (
        not host
        and kinds <= {"configMap", "emptyDir", "projected", "secret"}
        and whole.get("runAsNonRoot") is True
        and whole.get("seccompProfile") == {"type": "RuntimeDefault"}
        and all(
            not own.get("privileged")
            and own.get("allowPrivilegeEscalation") is False
            and own.get("capabilities") == {"drop": ["ALL"]}
            and own.get("runAsUser", whole.get("runAsUser")) != 0
            for container in spec["containers"]
            for own in (container["securityContext"],)
        )
    )


@needs_helm
@pytest.mark.parametrize("seam", ["default", "extender"])
def test_a_record_of_decisions_has_room_for_two(seam: str) -> None:
    """Full ones are kept beside the one that is written; without the value there is neither record nor volume."""
    text = generate.rendered(str(HELM), seam, "--set", "scheduler.recordMiB=256")
    (spec,) = (
        one["spec"]["template"]["spec"]
        for one in objects_of(text)
        if one and one["kind"] == "Deployment" and one["metadata"]["name"] == "partage-scheduler"
    )
    main = spec["containers"][0]
    (mount,) = (one for one in main["volumeMounts"] if one["name"] == "record")
    (volume,) = (one for one in spec["volumes"] if one["name"] == "record")

    assert f"--record={mount['mountPath']}/decisions" in main["args"]
    assert "--record-size=256" in main["args"]
    assert volume["emptyDir"] == {"sizeLimit": f"{2 * 256 + 64}Mi"}
    assert "record" not in generate.rendered(str(HELM), seam).partition("kind: Deployment")[2]
