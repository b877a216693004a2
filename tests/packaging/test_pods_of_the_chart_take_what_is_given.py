"""What an installation gives reaches the pods of every component, and the pods go to different nodes."""

import yaml

from charts import HELM, generate, needs_helm

COMPONENTS = ("scheduler", "kubeScheduler", "webhook", "agent")


@needs_helm
def test_annotations_and_affinity_reach_every_pod() -> None:
    """Beside the chart's own; without them nothing is written."""
    zone = 'affinity={"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}'
    given = [part for one in COMPONENTS for part in ("--set", f"{one}.podAnnotations.team=gpu")]
    given += [part for one in COMPONENTS for part in ("--set-json", f"{one}.{zone}")]
    for options in ([], given):
        text = generate.rendered(str(HELM), "extender", "--set", "agent.enabled=true", *options)
        found = [one for one in yaml.safe_load_all(text) if one]
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
    found = [one for one in yaml.safe_load_all(text) if one]
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
