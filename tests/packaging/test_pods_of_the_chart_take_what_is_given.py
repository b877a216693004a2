"""Annotations and affinity that an installation gives reach the pods of every component."""

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
