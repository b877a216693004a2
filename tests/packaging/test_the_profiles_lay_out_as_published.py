"""What an operator of the qGPU or HAMi document finds after an install with the profile, and no further value."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from charts import HELM, generate, needs_helm, objects_of
from partage.model.policy import Policy

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"

Manifest = dict[str, Any]


def _plain(profile: str) -> list[Manifest]:
    """The plain manifests, which tests compare with the chart."""
    return objects_of((KUSTOMIZE / profile / "partage.yaml").read_text())


def _objects(profile: str, *values: str) -> list[Manifest]:
    options = [part for value in values for part in ("--set", value)]
    text = generate.rendered(str(HELM), profile, *options)
    return objects_of(text)


def _container(found: list[Manifest], kind: str, name: str) -> Manifest:
    (hit,) = (o for o in found if o["kind"] == kind and o["metadata"]["name"] == name)
    (container,) = hit["spec"]["template"]["spec"]["containers"]
    result: Manifest = container
    return result


QGPU = [
    ("DaemonSet", "qgpu-manager", {"memory": "300M", "cpu": "200m"}, "kube-system"),
    ("ClusterRole", "qgpu-manager", None, None),
    ("ServiceAccount", "qgpu-manager", None, "kube-system"),
    ("ClusterRoleBinding", "qgpu-manager", None, None),
    ("Deployment", "qgpu-scheduler", {"memory": "800M", "cpu": "1"}, "kube-system"),
    ("ClusterRole", "qgpu-scheduler", None, None),
    ("ClusterRoleBinding", "qgpu-scheduler", None, None),
    ("ServiceAccount", "qgpu-scheduler", None, "kube-system"),
    ("Service", "qgpu-scheduler", None, "kube-system"),
]
"""The table of the qGPU document: name, kind, requests, namespace (it gives the bindings, which have none, one too)."""


@pytest.mark.parametrize(("kind", "name", "requests", "namespace"), QGPU)
def test_every_object_of_the_qgpu_document_is_there(
    kind: str, name: str, requests: dict[str, str] | None, namespace: str | None
) -> None:
    """It has the document's requests, and no limits, of which the document names none."""
    found = _plain("qgpu")

    (hit,) = (o for o in found if o["kind"] == kind and o["metadata"]["name"] == name)

    assert hit["metadata"].get("namespace") == namespace
    if requests is not None:
        resources = _container(found, kind, name)["resources"]
        assert resources["requests"] == requests
        assert not resources.get("limits")


def _arguments(profile: str, name: str) -> tuple[list[str], dict[str, str]]:
    found = _plain(profile)
    (hit,) = (o for o in found if o["kind"] == "DaemonSet")
    selector: dict[str, str] = hit["spec"]["template"]["spec"]["nodeSelector"]
    return _container(found, "DaemonSet", name)["args"], selector


def test_the_qgpu_manager_enforces_policies_on_qgpus_nodes() -> None:
    """One on every node with the add-on's label, privileged, which holds pods to the nodes' policies."""
    given, selector = _arguments("qgpu", "qgpu-manager")

    assert selector == {"qgpu-device-enable": "enable"}
    assert {"--isolation=partage", "--qgpu", "--kubelet-dir=/var/lib/kubelet"} <= set(given)
    assert "--isolation-policy=best-effort" in given
    security = _container(_plain("qgpu"), "DaemonSet", "qgpu-manager")["securityContext"]
    assert security["privileged"]


def test_hamis_device_plugin_cuts_cards_and_holds_shares() -> None:
    """The HAMi document: instances are its doing; shares are held in HAMi-core's place; nodes are registered as HAMi does."""
    given, selector = _arguments("hami", "hami-device-plugin")

    assert selector == {"gpu": "on"}
    assert {"--mig", "--isolation=partage", "--hami", "--kubelet-dir=/var/lib/kubelet"} <= set(
        given
    )
    assert "--config-map=kube-system/hami-device-plugin" in given


MAPS = ["hami-scheduler-device", "hami-device-plugin"]
OWN = {
    "HAMi's usual names": ([], MAPS),
    "other names": (
        ["configNames={partage-config,vgpu-device}"],
        ["partage-config", "vgpu-device"],
    ),
}


@needs_helm
@pytest.mark.parametrize(("more", "names"), OWN.values(), ids=OWN)
def test_an_agent_reads_the_config_maps_that_are_left_in_force(
    more: list[str], names: list[str]
) -> None:
    """Otherwise it would register cards by the published defaults, which precede the operator's settings."""
    off = "configMaps.hami=false"
    found = _objects("default", "agent.enabled=true", off, "configNamespaces={gpu}", *more)

    given = _container(found, "DaemonSet", "partage-agent")["args"]
    spaces = ["gpu", "partage-system"]
    maps = [one.partition("=")[2] for one in given if one.startswith("--config-map=")]
    assert maps == [f"{space}/{name}" for space in spaces for name in names]
    rights = {
        one["metadata"]["namespace"]: one["rules"][0]["resourceNames"]
        for one in found
        if (one["kind"], one["metadata"]["name"]) == ("Role", "partage-agent")
        and one["rules"][0]["resources"] == ["configmaps"]
    }
    assert rights == dict.fromkeys(spaces, names)


@needs_helm
def test_simulated_cards_are_not_cut() -> None:
    """A trial of the profile runs on nodes without a driver, which --mig would ask for at once."""
    found = _objects("hami", "agent.simulated.model=Tesla-T4", "agent.simulated.cards=1")

    assert "--mig" not in _container(found, "DaemonSet", "hami-device-plugin")["args"]


@needs_helm
@pytest.mark.parametrize(
    ("profile", "told"), [("qgpu", "qgpu-device-enable=enable"), ("hami", "gpu=on")]
)
def test_the_notes_say_which_nodes_it_runs_on(profile: str, told: str) -> None:
    """Without the label no pod would run, and no message would say why."""
    values = str(generate.CHART / "profiles" / f"{profile}.yaml")
    command = [str(HELM), "install", "x", str(generate.CHART), "--dry-run=client", "-f", values]

    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert f"kubectl label node NODE {told}" in said.partition("NOTES:")[2]


@needs_helm
@pytest.mark.parametrize(
    ("repository", "warns"), [("registry.example.com/partage", True), ("ghcr.io/x/partage", False)]
)
def test_the_notes_say_that_no_node_can_pull_a_placeholder(
    repository: str, *, warns: bool
) -> None:
    """Without the sentence all pods end in ImagePullBackOff."""
    command = [str(HELM), "install", "x", str(generate.CHART), "--dry-run=client"]
    command += ["--set", f"image.repository={repository}"]

    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert ("set image.repository" in said.partition("NOTES:")[2]) is warns


@needs_helm
def test_the_packaged_chart_has_its_readme() -> None:
    """`helm show readme` prints what the files of the chart hold, less what .helmignore leaves out."""
    command = [str(HELM), "show", "readme", str(generate.CHART)]

    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert said.strip() == (generate.CHART / "README.md").read_text("utf-8").strip()


@pytest.mark.parametrize("profile", generate.NAMESPACES)
def test_every_pod_that_listens_has_a_network_policy(profile: str) -> None:
    """Chosen by its component; policies would not hold for a pod of its node's network."""
    found = _plain(profile)
    listening = [
        (
            o["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"],
            o["spec"]["template"]["spec"],
        )
        for o in found
        if o["kind"] in {"Deployment", "DaemonSet"}
    ]
    policies = {
        o["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: o["spec"][
            "ingress"
        ]
        for o in found
        if o["kind"] == "NetworkPolicy"
    }

    assert set(policies) == {component for component, _ in listening}
    for component, spec in listening:
        assert not spec.get("hostNetwork")
        named = {one["name"] for container in spec["containers"] for one in container["ports"]}
        probed = {
            one["httpGet"]["port"]
            for container in spec["containers"]
            for key, one in container.items()
            if key.endswith("Probe")
        }
        # A port of their own; Kubernetes' kube-scheduler has none.
        assert probed <= {"health", "secure"}
        assert "health" in probed or component == "kube-scheduler"
        # The kubelet of the same node is let in by every network; no other client asks the probes.
        assert {
            port["port"] for rule in policies[component] for port in rule["ports"]
        } == named - {"health"}


@pytest.mark.parametrize(
    ("profile", "policy"), [("hami", "binpack/spread"), ("koordinator", "spread")]
)
def test_a_profile_places_pods_as_its_original_does(profile: str, policy: str) -> None:
    """HAMi's chart has binpack between nodes and spread between cards; Koordinator takes the least allocated."""
    configs = [one for one in _plain(profile) if one["kind"] == "ConfigMap"]

    assert policy in [one.get("data", {}).get("policy") for one in configs]
    assert str(Policy.parse(policy)) == policy


def test_the_definition_that_qgpus_page_keeps_is_there() -> None:
    """The page calls it deprecated and keeps its definition; so does every layout."""
    text = (KUSTOMIZE / "qgpu" / "definitions.yaml").read_text()
    found = {one["metadata"]["name"]: one for one in objects_of(text) if one}

    assert found["gpus.elasticgpu.io"]["spec"]["names"]["plural"] == "gpus"
